// Package conversation runs conversations: it launches them, takes their prompts, and drives the agent of each turn,
// from the machine that must be up to the last row of the transcript.
//
// A turn is an operation that one server owns (worker.go): it makes sure of the machine, the config home and the adapter
// (attach.go, home.go, process.go), speaks the Agent Client Protocol with it (session.go), and turns what comes back into
// rows (pump.go, tools.go). One goroutine per live adapter handles everything that adapter says, in order.
package conversation

import (
	"context"
	"log/slog"
	"sync"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/agent"
	"managoat/internal/broker"
	"managoat/internal/inference"
	"managoat/internal/ledger"
	"managoat/internal/quota"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/queries"
)

// resource is the type of a conversation in audit rows.
const resource = "conversation"

// Tokens is what the service needs of the broker: *broker.Client.
type Tokens interface {
	PutToken(ctx context.Context, t broker.Token) error
	RemoveToken(ctx context.Context, id uuid.UUID) error
	Boot() string
	Gone(ctx context.Context, boot string) bool
}

// Options of the service. All but Tell and Log are required.
type Options struct {
	Owner       uuid.UUID // of this server, the same after a restart: who holds operations
	RuntimesDir string    // where adapters are installed, absolute

	Agents     *agent.Service
	Workspaces *workspace.Service // may be set later, by UseWorkspaces: the two know each other
	Inference  *inference.Service
	Keys       *secret.Keyring
	Broker     Tokens
	Ledger     *ledger.Service
	Writer     *transcript.Writer
	Account    *stream.Account
	Quotas     quota.Defaults

	// Tell has the server that does an operation, or must, look at it, when that is another one (see machine.Service.Tell). nil:
	// nobody is told.
	Tell func(ctx context.Context, ref db.Ref, host *uuid.UUID)

	Log *slog.Logger // nil: slog.Default()
}

// Service runs the conversations of every account.
type Service struct {
	db  *db.DB
	o   Options
	log *slog.Logger

	work worker

	mu        sync.Mutex
	processes map[uuid.UUID]*process      // by conversation: adapters that this server holds
	turns     map[uuid.UUID]chan struct{} // by turn: closed when somebody asks to interrupt it
}

// New makes the service. Run does its work.
func New(d *db.DB, o Options) *Service {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Service{db: d, o: o, log: o.Log, processes: map[uuid.UUID]*process{}, turns: map[uuid.UUID]chan struct{}{}}
	s.work.init()
	return s
}

// UseWorkspaces names the workspaces that conversations run in, when they were made after this service, which they need
// as their Occupants. It comes before everything else.
func (s *Service) UseWorkspaces(w *workspace.Service) { s.o.Workspaces = w }

// lock reads and locks a conversation that the actor may reach.
func (s *Service) lock(ctx context.Context, tx db.Tx, actor tenant.Actor, id uuid.UUID) (queries.Conversation, error) {
	c, err := tx.LockConversation(ctx, id)
	if err != nil {
		return queries.Conversation{}, missing(err)
	}
	return c, reach(actor, c)
}

// reach lets a sandbox key at its own conversation and that one's children only; the others are not there for it.
func reach(actor tenant.Actor, c queries.Conversation) error {
	if actor.Scope != tenant.ScopeSandbox || c.ID == actor.ConversationID || c.ParentID != nil && *c.ParentID == actor.ConversationID {
		return nil
	}
	return refusal.NotFoundError()
}

// Reach refuses an actor that may not see the conversation: for what lies beside this package, such as its stream.
func (s *Service) Reach(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	row, err := s.db.Tenant(actor.TenantID).Conversation(ctx, id)
	if err != nil {
		return missing(err)
	}
	return reach(actor, row.Conversation)
}

// show reads a conversation after a change.
func (s *Service) show(ctx context.Context, tenantID, id uuid.UUID) (Conversation, error) {
	return s.Get(ctx, tenant.SystemActor(tenantID, "conversation"), id)
}

// tell puts a conversation's state, as the transaction leaves it, on the account's stream. It comes last: the account's
// counter stays locked until the commit.
func (s *Service) tell(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID) error {
	return s.o.Account.ConversationTx(ctx, tx, tenantID, id)
}
