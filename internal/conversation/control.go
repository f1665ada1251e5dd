package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/identity"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/queries"
)

// Reasons why a turn was interrupted. Meaning says what each is.
const (
	ByUser            = "user"
	ByWithdrawal      = "withdrawn"
	ByTermination     = "conversation_terminated"
	ByInstanceRestart = "instance_restarted"
	ByEgressRestart   = "egress_restarted"
	ByParking         = workspace.MachineParked
	ByDestruction     = workspace.MachineDestroyed
)

// Values of title_source.
const (
	titleByPerson = "person"
	titleByAgent  = "agent"
)

// Interrupt ends a turn: the one that is named, else the one that runs, else the next that waits. One that waits is
// withdrawn at once; one that runs is asked to stop, and is ended by a deadline whatever its agent does.
func (s *Service) Interrupt(ctx context.Context, actor tenant.Actor, id uuid.UUID, turnID *uuid.UUID) (Turn, error) {
	var turn queries.Turn
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if _, err := s.lock(ctx, tx, actor, id); err != nil {
			return err
		}
		target, err := interruptible(ctx, tx, id, turnID)
		if err != nil {
			return err
		}
		if target.Status == Pending {
			turn, err = s.withdraw(ctx, tx, target.ID, ByWithdrawal)
		} else {
			turn, err = tx.AskInterrupt(ctx, "", target.ID)
			tx.OnCommit(func() { s.ask(actor.TenantID, target.ID) })
		}
		if err != nil {
			return err
		}
		if err := audit.Write(ctx, tx, actor, audit.ConversationInterrupt, resource, id); err != nil {
			return err
		}
		return s.tell(ctx, tx, actor.TenantID, id)
	})
	if err != nil {
		return Turn{}, fmt.Errorf("interrupt: %w", err)
	}
	s.kick(actor.TenantID, id)
	return viewTurn(turn)
}

func interruptible(ctx context.Context, tx db.Tx, id uuid.UUID, turnID *uuid.UUID) (queries.Turn, error) {
	open, err := tx.OpenTurns(ctx, id)
	if err != nil {
		return queries.Turn{}, err
	}
	for _, t := range open {
		if turnID == nil || t.ID == *turnID {
			return t, nil
		}
	}
	if turnID == nil {
		return queries.Turn{}, refusal.New(refusal.NoTurnRunning, "No turn runs or waits in this conversation.")
	}
	t, err := tx.Turn(ctx, *turnID)
	if err != nil || t.ConversationID != id {
		if err == nil || db.NotFound(err) {
			return queries.Turn{}, refusal.NotFoundError()
		}
		return queries.Turn{}, err
	}
	return queries.Turn{}, refusal.New(refusal.NoTurnRunning, "Turn %d has ended: it is %s.", t.TurnNumber, t.Status)
}

// withdraw ends a turn that waits. The agent was never shown it.
func (s *Service) withdraw(ctx context.Context, tx db.Tx, id uuid.UUID, reason string) (queries.Turn, error) {
	if _, err := tx.CancelTurnOperation(ctx, id); err != nil {
		return queries.Turn{}, err
	}
	return tx.EndTurn(ctx, queries.EndTurnParams{ID: id, Status: Interrupted, Reason: reason, Usage: json.RawMessage("{}")})
}

// endTurns ends open turns of a locked conversation, in their order: one that runs is asked to, and those that wait are
// withdrawn. What was asked in those is shown at once, before the end of the one that runs.
func (s *Service) endTurns(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID, turns []workspace.OpenTurn, reason string) (running bool, err error) {
	var rows []transcript.Row
	for _, t := range turns {
		if t.Status != Pending {
			running = true
			if _, err := tx.AskInterrupt(ctx, reason, t.TurnID); err != nil {
				return false, fmt.Errorf("interrupt turn %s: %w", t.TurnID, err)
			}
			tx.OnCommit(func() { s.ask(tenantID, t.TurnID) })
			continue
		}
		ended, err := s.withdraw(ctx, tx, t.TurnID, reason)
		if err != nil {
			return false, fmt.Errorf("withdraw turn %s: %w", t.TurnID, err)
		}
		if rows, err = appendUnbegun(rows, ended); err != nil {
			return false, err
		}
	}
	if len(rows) == 0 {
		return running, nil
	}
	return running, s.o.Writer.AppendTx(ctx, tx, tenantID, id, rows...)
}

// Terminate ends a conversation: its turns, its adapter, its config home. The transcript stays. Ending one that has ended
// changes nothing.
func (s *Service) Terminate(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Conversation, error) {
	if err := s.end(ctx, actor, id, audit.ConversationTerminate, nil); err != nil {
		return Conversation{}, fmt.Errorf("terminate: %w", err)
	}
	return s.show(ctx, actor.TenantID, id)
}

// Delete ends a conversation and hides it.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.end(ctx, actor, id, audit.ConversationDelete, func(tx db.Tx) error { return tx.HideConversation(ctx, id) })
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

func (s *Service) end(ctx context.Context, actor tenant.Actor, id uuid.UUID, action audit.Action, also func(db.Tx) error) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		c, err := s.lock(ctx, tx, actor, id)
		if err != nil {
			return err
		}
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		if err := audit.Write(ctx, tx, actor, action, resource, id); err != nil {
			return err
		}
		return s.terminate(ctx, tx, actor, c)
	})
	if err != nil {
		return err
	}
	s.kick(actor.TenantID, id)
	return nil
}

// terminate ends a locked conversation. What remains on its machine is the work of an operation, which outlives us.
func (s *Service) terminate(ctx context.Context, tx db.Tx, actor tenant.Actor, c queries.Conversation) error {
	n, err := tx.TerminateConversation(ctx, c.ID)
	if err != nil || n == 0 {
		return err
	}
	open, err := tx.OpenTurns(ctx, c.ID)
	if err != nil {
		return err
	}
	turns := make([]workspace.OpenTurn, len(open))
	for i, t := range open {
		turns[i] = workspace.OpenTurn{TurnID: t.ID, Status: t.Status}
	}
	running, err := s.endTurns(ctx, tx, c.TenantID, c.ID, turns, ByTermination)
	if err != nil {
		return err
	}
	if !running { // else the turns' own ends are the transcript's last rows
		if err := s.o.Writer.AppendTx(ctx, tx, c.TenantID, c.ID, transcript.Row{Type: transcript.Stage, Body: transcript.StageBody{Stage: "terminate", State: "done"}}); err != nil {
			return err
		}
	}
	if err := identity.RevokeSandboxKeys(ctx, tx, actor, c.ID); err != nil {
		return err
	}
	return s.finish(ctx, tx, c)
}

// finish leaves the cleaning up after a conversation that ended to an operation of its own. A workspace of its own ends
// with it.
func (s *Service) finish(ctx context.Context, tx db.Tx, c queries.Conversation) error {
	if err := tx.InsertEndOperation(ctx, queries.InsertEndOperationParams{ID: uuid.Must(uuid.NewV7()), WorkspaceID: c.WorkspaceID, ConversationID: c.ID}); err != nil {
		return err
	}
	if err := s.o.Workspaces.EndImplicitTx(ctx, tx, c.TenantID, c.WorkspaceID); err != nil {
		return err
	}
	return s.tell(ctx, tx, c.TenantID, c.ID)
}

// PatchInput is what people change of a conversation. A field that is nil stays.
type PatchInput struct {
	Title  *string            `json:"title" doc:"up to 120 characters; empty: from the first prompt again"`
	Labels *map[string]string `json:"labels" doc:"replaces all of them"`
}

// Patch changes a conversation's title or labels.
func (s *Service) Patch(ctx context.Context, actor tenant.Actor, id uuid.UUID, in PatchInput) (Conversation, error) {
	var v refusal.Validation
	if in.Title != nil {
		title := strings.TrimSpace(db.SafeText(*in.Title))
		in.Title = &title
		v.Check(utf8.RuneCountInString(title) <= maxTitle, "title", "must have at most %d characters", maxTitle)
	}
	if in.Labels != nil {
		checkLabels(&v, in.Labels)
	}
	if err := v.Err(); err != nil {
		return Conversation{}, err
	}
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		c, err := s.lock(ctx, tx, actor, id)
		if err != nil {
			return err
		}
		p := queries.UpdateConversationParams{ID: id, Title: c.Title, TitleSource: c.TitleSource, Labels: c.Labels}
		var changed []string
		if in.Title != nil {
			changed = append(changed, "title")
			p.Title, p.TitleSource = *in.Title, titleByPerson
			if *in.Title == "" {
				p.TitleSource = ""
				if first, err := tx.TurnByNumber(ctx, id, 1); err == nil {
					p.Title = titleOf(first.Prompt)
				} else if !db.NotFound(err) {
					return err
				}
			}
		}
		if in.Labels != nil {
			changed = append(changed, "labels")
			if p.Labels, err = json.Marshal(*in.Labels); err != nil {
				return err
			}
		}
		if err := tx.UpdateConversation(ctx, p); err != nil {
			return err
		}
		if err := audit.Write(ctx, tx, actor, audit.ConversationUpdate, resource, id, changed...); err != nil {
			return err
		}
		return s.tell(ctx, tx, actor.TenantID, id)
	})
	if err != nil {
		return Conversation{}, fmt.Errorf("change a conversation: %w", err)
	}
	return s.show(ctx, actor.TenantID, id)
}

// MarkRead notes that a person has read the conversation up to now.
func (s *Service) MarkRead(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if _, err := s.lock(ctx, tx, actor, id); err != nil {
			return err
		}
		if _, err := tx.MarkConversationRead(ctx, id); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.ConversationRead, resource, id)
	})
	if err != nil {
		return fmt.Errorf("mark a conversation read: %w", err)
	}
	return nil
}

// Answer answers an open permission request. Every policy of this version answers by itself, so a request that a person
// can see is resolved already.
func (s *Service) Answer(ctx context.Context, actor tenant.Actor, id, requestID uuid.UUID, optionID string) (Request, error) {
	q := s.db.Tenant(actor.TenantID)
	if _, err := q.Conversation(ctx, id); err != nil {
		return Request{}, missing(err)
	}
	r, err := q.PermissionRequest(ctx, requestID, id)
	if err != nil {
		return Request{}, missing(err)
	}
	return Request{}, refusal.New(refusal.PermissionResolved, "The permission request was answered already: %s.", r.Outcome).With("request", viewRequest(r))
}
