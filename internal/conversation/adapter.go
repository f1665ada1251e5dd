package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/inference"
	"managoat/internal/secret"
	"managoat/internal/workspace"
	"managoat/queries"
)

// adapter is the process of a conversation as its row keeps it: what a server needs to take it up again.
type adapter struct {
	ExecID    uuid.UUID `json:"exec_id"`
	MachineID uuid.UUID `json:"machine_id"`
	BootID    string    `json:"boot_id"`
	Version   string    `json:"version"` // of the adapter that was started
	StartedAt time.Time `json:"started_at"`

	// Rev counts the writes of this row, so that a lost write is noticed by the next.
	Rev int64 `json:"rev"`
	// Stdout and Stderr are where reading goes on: the end of the last line of which nothing was held back. Skip is what
	// was stored of the lines after it, and is left out when they are read again.
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
	Skip   skip  `json:"skip"`
	// Records is the last record of the machine's recording shell that is dealt with.
	Records int64 `json:"records"`

	Session bool       `json:"session"` // its session stands: prompts may be sent
	Images  bool       `json:"images"`  // they may hold images
	TurnID  *uuid.UUID `json:"turn_id"` // the last turn whose prompt it got
	Prompt  int64      `json:"prompt"`  // the number of that request
	Egress  string     `json:"egress"`  // the egress process that carried it

	Token  sealed        `json:"token"`  // for the broker
	Key    *sealed       `json:"key"`    // for our API; nil when it has none
	Policy broker.Policy `json:"policy"` // of the network, as it was when the process started
}

// skip is what rows of lines that will be read again have stored already.
type skip struct {
	Rows int            `json:"rows,omitempty"`
	Text map[string]int `json:"text,omitempty"` // bytes by stream
}

// clone keeps the state of a moment, for a write of that moment.
func (k skip) clone() skip {
	out := skip{Rows: k.Rows}
	for key, n := range k.Text {
		if n > 0 {
			if out.Text == nil {
				out.Text = map[string]int{}
			}
			out.Text[key] = n
		}
	}
	return out
}

// sealed is a secret of a conversation at rest.
type sealed struct {
	ID      uuid.UUID `json:"id"` // of the token; also what the secret is sealed for
	Value   []byte    `json:"value"`
	Version int32     `json:"version"`
}

func readAdapter(raw json.RawMessage) (*adapter, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var a adapter
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("read a conversation's adapter: %w", err)
	}
	return &a, nil
}

// on tells whether it was started on this machine, since that one's last start.
func (a adapter) on(up *workspace.Up) bool {
	return a.MachineID == up.MachineID && a.BootID == up.Guest.Hello().BootID
}

func (a adapter) json() json.RawMessage {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // plain values
	}
	return b
}

// openKeys opens what the process holds of ours.
func (s *Service) openKeys(ctx context.Context, tenantID uuid.UUID, a adapter) ([]secret.Value, error) {
	q := s.db.Tenant(tenantID)
	token, err := s.o.Keys.Unseal(ctx, q, tenantID, a.Token.ID, a.Token.Value, a.Token.Version)
	if err != nil {
		return nil, fmt.Errorf("open a conversation's token: %w", err)
	}
	values := []secret.Value{token}
	if a.Key != nil {
		key, err := s.o.Keys.Unseal(ctx, q, tenantID, a.Key.ID, a.Key.Value, a.Key.Version)
		if err != nil {
			return nil, fmt.Errorf("open a conversation's key: %w", err)
		}
		values = append(values, key)
	}
	return values, nil
}

// token is what the broker must know of a conversation's token.
func token(c queries.Conversation, a adapter, plain secret.Value, bound *inference.Bound) broker.Token {
	t := broker.Token{ID: a.Token.ID, Hash: broker.HashToken(plain.Reveal()), MachineID: a.MachineID, ConversationID: c.ID, Policy: a.Policy}
	if bound != nil {
		t.Model = &broker.ModelCredential{CredentialID: bound.CredentialID, Source: bound.Source, Provider: bound.Provider, Kind: bound.Kind,
			BaseURL: bound.BaseURL, Key: bound.Key}
	}
	return t
}

// Restore tells the broker about the tokens of every adapter of an account's conversations on this host: after a restart of the
// server, before the broker forgets what nobody named.
func (s *Service) Restore(ctx context.Context, tenantID uuid.UUID) error {
	rows, err := s.db.Tenant(tenantID).ConversationsWithAdapter(ctx, s.o.Owner)
	if err != nil {
		return fmt.Errorf("list conversations with an adapter: %w", err)
	}
	for _, c := range rows {
		a, err := readAdapter(c.Adapter)
		if err != nil {
			return err
		}
		keys, err := s.openKeys(ctx, tenantID, *a)
		if err != nil { // one that does not open stops no other
			s.log.Error("a conversation's token does not open", "conversation", c.ID, "error", err)
			continue
		}
		bound, err := s.openBound(ctx, s.db.Tenant(tenantID), c)
		if err != nil {
			// A credential that was changed or deleted: the adapter's model calls are refused from now on.
			s.log.Warn("a conversation's credential does not open", "conversation", c.ID, "error", err)
			bound = nil
		}
		if err := s.o.Broker.PutToken(ctx, token(c, *a, keys[0], bound)); err != nil {
			return fmt.Errorf("tell the broker a token: %w", err)
		}
	}
	return nil
}

// openBound opens what the conversation calls models with; nil when it is bound to nothing.
func (s *Service) openBound(ctx context.Context, q *queries.Queries, c queries.Conversation) (*inference.Bound, error) {
	if c.InferenceCredentialID == nil {
		return nil, nil
	}
	b, err := s.o.Inference.Open(ctx, q, *c.InferenceCredentialID, c.CredentialRevision)
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// dropAdapter forgets a process that has ended or is ended.
func (s *Service) dropAdapter(ctx context.Context, tenantID, conversationID uuid.UUID, a adapter) error {
	err := s.persist(ctx, func() error {
		return s.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
			_, err := tx.DropAdapter(ctx, conversationID, a.ExecID.String())
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("forget an adapter: %w", err)
	}
	if err := s.o.Broker.RemoveToken(ctx, a.Token.ID); err != nil {
		return fmt.Errorf("take back a token: %w", err)
	}
	return nil
}
