package conversation

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/quota"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/queries"
)

// Limits of a prompt.
const (
	maxPrompt          = 200_000  // characters
	maxImage           = 10 << 20 // bytes of one, decoded
	maxImages          = 20
	maxClientRequestID = 200 // characters
	maxQueued          = 20  // turns that wait in one conversation
)

var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// PromptInput is what people write of a prompt.
type PromptInput struct {
	Prompt          string       `json:"prompt" doc:"1 to 200,000 characters"`
	Images          []ImageInput `json:"images"`
	Queue           bool         `json:"queue" doc:"wait behind the turn that runs instead of being refused"`
	ClientRequestID string       `json:"client_request_id" doc:"yours, to find the turn again; up to 200 characters"`
}

// ImageInput is an image of a prompt.
type ImageInput struct {
	Data      string `json:"data" doc:"base64"`
	MediaType string `json:"media_type" enum:"image/png,image/jpeg,image/gif,image/webp"`
}

// image is an image as a turn keeps it.
type image struct {
	MediaType string `json:"media_type"`
	Data      string `json:"data"` // base64
}

func (in *PromptInput) validate() error {
	in.Prompt = strings.ReplaceAll(db.SafeText(in.Prompt), "\r\n", "\n")
	if strings.TrimSpace(in.Prompt) == "" {
		return refusal.New(refusal.InvalidPrompt, "A prompt is text: this one is empty.")
	}
	if n := utf8.RuneCountInString(in.Prompt); n > maxPrompt {
		return refusal.New(refusal.InvalidPrompt, "A prompt has at most %d characters; this one has %d. Put long texts into files of the workspace.", maxPrompt, n)
	}
	if len(in.Images) > maxImages {
		return refusal.New(refusal.InvalidImages, "A prompt has at most %d images; this one has %d.", maxImages, len(in.Images))
	}
	for i, img := range in.Images {
		if err := img.check(); err != nil {
			return refusal.New(refusal.InvalidImages, "Image %d %s.", i+1, err)
		}
	}
	var v refusal.Validation
	v.Check(utf8.RuneCountInString(in.ClientRequestID) <= maxClientRequestID && db.SafeText(in.ClientRequestID) == in.ClientRequestID,
		"client_request_id", "must be text of at most %d characters", maxClientRequestID)
	return v.Err()
}

func (i ImageInput) check() error {
	if !slices.Contains(imageTypes, i.MediaType) {
		return errors.New("must have a media_type of " + strings.Join(imageTypes, ", "))
	}
	data, err := base64.StdEncoding.DecodeString(i.Data)
	switch {
	case err != nil:
		return errors.New("is not base64")
	case len(data) == 0 || len(data) > maxImage:
		return fmt.Errorf("must have 1 to %d bytes", maxImage)
	case http.DetectContentType(data) != i.MediaType:
		return errors.New("is not of its media_type")
	}
	return nil
}

// Prompt opens the next turn of a conversation. While another one runs or waits it is refused with conversation_busy,
// unless it asks to be queued.
func (s *Service) Prompt(ctx context.Context, actor tenant.Actor, id uuid.UUID, in PromptInput) (Turn, error) {
	if err := in.validate(); err != nil {
		return Turn{}, err
	}
	if p := s.ready(id); p != nil && p.tenant == actor.TenantID && actor.Scope != tenant.ScopeSandbox { // what that may reach is looked up
		turn, err := p.hand(ctx, actor, in)
		if err == nil {
			return viewTurn(turn)
		}
		if !errors.Is(err, errNotIdle) {
			return Turn{}, fmt.Errorf("prompt: %w", err)
		}
	}
	var turn queries.Turn
	var ahead int
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		c, err := s.lock(ctx, tx, actor, id)
		if err != nil {
			return err
		}
		if c.Status == Failed || c.Status == Terminated {
			return ended(c)
		}
		if _, err := s.openBound(ctx, tx.Queries, c); err != nil { // what it is bound to must be what it was
			return err
		}
		open, err := tx.OpenTurns(ctx, id)
		if err != nil {
			return err
		}
		ahead = len(open)
		if err := checkBusy(open, in.Queue); err != nil {
			return err
		}
		turn, err = s.accept(ctx, tx, actor, c, in)
		return err
	})
	if err != nil {
		return Turn{}, fmt.Errorf("prompt: %w", err)
	}
	v, err := viewTurn(turn)
	v.QueuePosition = ahead
	return v, err
}

func checkBusy(open []queries.Turn, queue bool) error {
	if len(open) == 0 {
		return nil
	}
	first := open[0]
	if !queue {
		doing := "runs"
		if first.Status == Pending {
			doing = "waits"
		}
		return refusal.New(refusal.ConversationBusy, "Turn %d %s in this conversation, so the prompt was not taken. Wait for it, interrupt it, or send the prompt with queue: true.",
			first.TurnNumber, doing).With("turn_number", int(first.TurnNumber))
	}
	if len(open) > maxQueued {
		return refusal.New(refusal.ConversationBusy, "%d turns wait in this conversation, as many as may. Wait for one, or withdraw one.", maxQueued).
			With("turn_number", int(first.TurnNumber))
	}
	return nil
}

// accept opens a turn of a locked conversation, which waits for whoever claims it. The quota's row and then the account's
// counter are locked last, as everywhere.
func (s *Service) accept(ctx context.Context, tx db.Tx, actor tenant.Actor, c queries.Conversation, in PromptInput) (queries.Turn, error) {
	turn, op, err := s.insert(ctx, tx, actor, c.ID, c.WorkspaceID, in, false)
	if err != nil {
		return queries.Turn{}, err
	}
	if err := s.o.Workspaces.AdmitTx(ctx, tx, c.TenantID, c.WorkspaceID); err != nil {
		return queries.Turn{}, err
	}
	if err := quota.TakePrompt(ctx, tx, c.TenantID, s.o.Quotas); err != nil {
		return queries.Turn{}, err
	}
	tx.OnCommit(func() { s.open(db.Ref{TenantID: c.TenantID, ID: op.ID}, nil) })
	return turn, s.tell(ctx, tx, c.TenantID, c.ID)
}

// insert adds a turn of a conversation in a workspace, with its operation. sent: it begins as it is made, its prompt is sent
// once that is committed, and its operation is ours. What has ended takes none: there is no row then.
func (s *Service) insert(ctx context.Context, tx db.Tx, actor tenant.Actor, id, workspaceID uuid.UUID, in PromptInput, sent bool) (queries.Turn, queries.Operation, error) {
	images := make([]image, len(in.Images))
	for i, img := range in.Images {
		images[i] = image{MediaType: img.MediaType, Data: img.Data}
	}
	stored, err := json.Marshal(images)
	if err != nil {
		return queries.Turn{}, queries.Operation{}, err
	}
	p := queries.InsertTurnParams{ID: uuid.Must(uuid.NewV7()), ConversationID: id, Prompt: in.Prompt, AskedBy: actor.By(), Images: stored,
		ClientRequestID: in.ClientRequestID, WaitingFor: ForQueue, Sent: sent}
	op := queries.Operation{TenantID: actor.TenantID, ID: uuid.Must(uuid.NewV7()), Kind: "turn", WorkspaceID: &workspaceID, ConversationID: &id, TurnID: &p.ID}
	if sent {
		p.WaitingFor, op.Owner, op.Epoch = ForModel, &s.o.Owner, 1
	}
	turn, err := tx.InsertTurn(ctx, p)
	if err != nil {
		return queries.Turn{}, queries.Operation{}, err
	}
	if err := tx.CountTurn(ctx, queries.CountTurnParams{ID: id, TurnNumber: turn.TurnNumber, Title: titleOf(in.Prompt), Sent: sent}); err != nil {
		return queries.Turn{}, queries.Operation{}, err
	}
	err = tx.InsertTurnOperation(ctx, queries.InsertTurnOperationParams{ID: op.ID, WorkspaceID: workspaceID, ConversationID: id, TurnID: turn.ID,
		Owner: op.Owner, Lease: lease.Seconds()})
	if err != nil {
		return queries.Turn{}, queries.Operation{}, err
	}
	return turn, op, audit.Write(ctx, tx, actor, audit.ConversationPrompt, resource, id)
}

// titleOf makes a title from a prompt: the first line with text in it, cut to size.
func titleOf(prompt string) string {
	for line := range strings.Lines(prompt) {
		if line = plain.OneLine(line, maxTitle); line != "" {
			return line
		}
	}
	return ""
}

// plain is a gate for what people write: it knows no secrets.
var plain = transcript.NewGate(transcript.NewRedactor())

// ended refuses what a conversation that has ended cannot take.
func ended(c queries.Conversation) *refusal.Refusal {
	if c.Status == Failed {
		return refusal.New(refusal.ConversationTerminated, "This conversation failed and takes no more prompts. Its error says why; mend that and start a new conversation.")
	}
	return refusal.New(refusal.ConversationTerminated, "This conversation was ended and takes no more prompts. Start a new conversation.")
}
