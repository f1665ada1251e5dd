// Package workspace keeps machines that people build once and use for many conversations: their rows, their setup, and
// the way from a conversation to a machine that is up.
//
// A workspace is the noun; the machine under it (package machine) may be replaced. Conversations are above: what a
// workspace needs of them (turns that run, live credentials) it asks through Occupants.
package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/environment"
	"managoat/internal/input"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/vault"
	"managoat/queries"
	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// Status of a workspace.
type Status string

// Statuses. Deleted is a row that conversations still name; the API does not know it.
const (
	Provisioning Status = "provisioning"
	Ready        Status = "ready"
	Failed       Status = "failed"
	Deleting     Status = "deleting"
	Deleted      Status = "deleted"
)

// Workspace is a workspace as it is shown.
type Workspace struct {
	ID                uuid.UUID      `json:"id"`
	Name              string         `json:"name"`
	Implicit          bool           `json:"implicit" doc:"a conversation's own, ended with it"`
	EnvironmentID     *uuid.UUID     `json:"environment_id"`
	VaultID           *uuid.UUID     `json:"vault_id"`
	SandboxProvider   string         `json:"sandbox_provider"`
	SandboxID         *uuid.UUID     `json:"sandbox_id" doc:"its current machine; a rebuild replaces it"`
	Status            Status         `json:"status" enum:"provisioning,ready,failed,deleting"`
	MachineStatus     machine.Status `json:"machine_status" enum:"pending,starting,ready,suspended,terminated,failed,lost"`
	SetupID           uuid.UUID      `json:"setup_id" doc:"the running or the last setup"`
	SetupStep         string         `json:"setup_step" doc:"the step that runs, or that failed"`
	Error             *SetupError    `json:"error" doc:"why the last setup failed"`
	Stale             bool           `json:"stale" doc:"the environment has changed since the machine was built"`
	ChangedFields     []string       `json:"changed_fields" doc:"names of the environment's fields that changed"`
	ConversationCount int            `json:"conversation_count"`
	DiskBytes         int64          `json:"disk_bytes" doc:"what the machine wrote to its disk, as it was last measured"`
	Limits            sandbox.Limits `json:"limits" doc:"what its machine was made with; zeros before it is"`
	Use               *machine.Use   `json:"use" doc:"what its machine uses now; null while it is not up, when it does not answer at once, and in lists"`
	Base              sandbox.Base   `json:"base" doc:"what the machine's root file system was made from"`
	Transition        string         `json:"transition" doc:"provisioning, waking, parking, destroying; empty when nothing is under way"`
	IdleSince         *time.Time     `json:"idle_since" doc:"since when nothing is done on the machine: the end of the last turn, or the moment it came up; null while a turn runs or waits, and while the machine is not up"`
	ParksAt           *time.Time     `json:"parks_at" doc:"when the machine parks if nothing runs until then; null while a turn runs or waits, while the machine is not up, and where machines never park"`
	WaitingReason     string         `json:"waiting_reason" doc:"why the machine is not up, or why what is under way with it cannot go on now"`
	Metadata          map[string]any `json:"metadata"`
	LastActiveAt      time.Time      `json:"last_active_at"`
	CreatedAt         time.Time      `json:"created_at"`
	UpdatedAt         time.Time      `json:"updated_at"`
}

// SetupError says why a setup failed, redacted.
type SetupError struct {
	Step       string `json:"step"`
	Message    string `json:"message"`
	ExitCode   *int   `json:"exit_code"`
	Signal     string `json:"signal"`
	OutputTail string `json:"output_tail" doc:"the last lines of the step"`
}

// Occupants are the conversations of a workspace. Package conversation fills it.
type Occupants interface {
	// HoldTurns locks the conversations of a workspace in which turns run or wait to the end of the transaction, before the
	// workspace itself is locked, and names them.
	HoldTurns(ctx context.Context, tx db.Tx, workspaceID uuid.UUID) ([]uuid.UUID, error)
	// OpenTurns are the turns that run and those that wait.
	OpenTurns(ctx context.Context, q *queries.Queries, workspaceID uuid.UUID) ([]OpenTurn, error)
	// EndTurns ends turns of conversations that are held, for a reason that each will carry: those that wait at once, those
	// that run as soon as their agents are told. It comes last in its transaction.
	EndTurns(ctx context.Context, tx db.Tx, tenantID uuid.UUID, turns []OpenTurn, reason string) error
	// EndingTurns counts the turns that run and were asked to end.
	EndingTurns(ctx context.Context, tenantID, workspaceID uuid.UUID) (int, error)
	// TerminateAll ends every live conversation of a workspace. Ending none is success.
	TerminateAll(ctx context.Context, actor tenant.Actor, workspaceID uuid.UUID) error
	// InterruptTurns asks the turns that are on a workspace's machine to end, for a reason that each will carry, and tells how
	// many there are still.
	InterruptTurns(ctx context.Context, tenantID, workspaceID uuid.UUID, reason string) (left int, err error)
	// LiveSecrets are the credentials that live conversations hold beside the environment's and the vault's.
	LiveSecrets(ctx context.Context, tenantID, workspaceID uuid.UUID) ([]secret.Value, error)
	// LiveDirs are the working directories of live conversations.
	LiveDirs(ctx context.Context, tenantID, workspaceID uuid.UUID) ([]string, error)
	// ConversationCounts counts the conversations that live in each of the workspaces.
	ConversationCounts(ctx context.Context, tenantID uuid.UUID, workspaceIDs []uuid.UUID) (map[uuid.UUID]int, error)
	// ImplicitStage puts what the setup of a conversation's own workspace does into its transcript.
	ImplicitStage(ctx context.Context, tenantID, workspaceID uuid.UUID, e StageEvent) error
}

// Options of the service.
type Options struct {
	Machines     *machine.Service
	Operations   *operation.Runner
	Environments *environment.Service
	Vaults       *vault.Service
	Stream       *stream.Account
	Occupants    Occupants
	Lifetimes    Lifetimes

	ExtraCA     []byte // PEM, trusted in every machine beside the public roots
	AptSources  string // lines of sources.list; "": what the base has
	NPMRegistry string // "": npm's own
	PIPIndex    string // "": pip's own

	Version string // of this server, for diagnostics

	Log *slog.Logger // nil: slog.Default()
}

// Service keeps the workspaces of every account.
type Service struct {
	db  *db.DB
	o   Options
	log *slog.Logger

	mu      sync.Mutex
	changed map[uuid.UUID]chan struct{} // by workspace: closed at its next change
	survey  Survey                      // nil: nobody looks
	keeping sync.WaitGroup              // of layers, after the setups that made them
}

// New makes the service and names the handlers of its operations.
func New(d *db.DB, o Options) *Service {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Service{db: d, o: o, log: o.Log, changed: map[uuid.UUID]chan struct{}{}}
	o.Operations.Handle(operation.Setup, s.setup)
	o.Operations.Handle(operation.Wake, func(ctx context.Context, h *operation.Held) error {
		return o.Machines.Wake(ctx, h, func(ctx context.Context, g *guest.Client) error {
			_, err := s.trust(ctx, g)
			return err
		})
	})
	o.Operations.Handle(operation.Park, s.park)
	o.Operations.Handle(operation.Destroy, s.destroy)
	return s
}

// Run does the background work until ctx ends: operations, half-done deletes first, and parking what is due.
func (s *Service) Run(ctx context.Context) error {
	defer s.keeping.Wait()
	deletes, err := s.db.Due(ctx, db.DueDeletes)
	if err != nil {
		return fmt.Errorf("look for half-done deletes: %w", err)
	}
	for _, ref := range deletes {
		op, err := s.db.Tenant(ref.TenantID).OpenMachineOperation(ctx, ref.ID)
		if err != nil {
			s.log.Error("a half-done delete has no operation", "workspace", ref.ID, "error", err)
			continue
		}
		s.o.Operations.Wake(db.Ref{TenantID: ref.TenantID, ID: op.ID})
	}
	var sweeper sync.WaitGroup
	sweeper.Go(func() { s.sweep(ctx) })
	defer sweeper.Wait()
	return s.o.Operations.Run(ctx)
}

// CreateInput is what people write of a new workspace.
type CreateInput struct {
	Name            string         `json:"name"`
	EnvironmentID   uuid.UUID      `json:"environment_id"`
	VaultID         *uuid.UUID     `json:"vault_id"`
	SandboxProvider string         `json:"sandbox_provider" doc:"default: the instance's"`
	Fresh           bool           `json:"fresh" doc:"install the packages anew, whatever an earlier setup has left of them"`
	Metadata        map[string]any `json:"metadata"`
}

// RetryInput is what people may say to a retry.
type RetryInput struct {
	Fresh bool `json:"fresh" doc:"install the packages anew, whatever an earlier setup has left of them"`
}

// setupPayload is what a setup's operation carries.
type setupPayload struct {
	Fresh bool `json:"fresh,omitempty"`
}

// Create makes a workspace and answers at once, while its machine is set up.
func (s *Service) Create(ctx context.Context, actor tenant.Actor, in CreateInput) (Workspace, error) {
	var v refusal.Validation
	input.Name(&v, "name", &in.Name)
	input.Metadata(&v, "metadata", &in.Metadata)
	v.Check(in.EnvironmentID != uuid.Nil, "environment_id", "must be given")
	if err := v.Err(); err != nil {
		return Workspace{}, err
	}
	var id uuid.UUID
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) (err error) {
		id, err = s.create(ctx, tx, actor, in, &in.EnvironmentID, false)
		if err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.WorkspaceCreate, "workspace", id, "name", "environment_id", "vault_id", "sandbox_provider")
	})
	if err != nil {
		return Workspace{}, fmt.Errorf("create a workspace: %w", err)
	}
	return s.Get(ctx, actor, id)
}

// ImplicitInput is a conversation's own workspace.
type ImplicitInput struct {
	Name          string     // the conversation's title
	EnvironmentID *uuid.UUID // nil: nothing but the base
	VaultID       *uuid.UUID
	Provider      string // "": the instance's
}

// CreateImplicitTx makes the workspace of a conversation that names none, in the conversation's transaction.
func (s *Service) CreateImplicitTx(ctx context.Context, tx db.Tx, actor tenant.Actor, in ImplicitInput) (uuid.UUID, error) {
	if in.Name = strings.TrimSpace(in.Name); in.Name == "" {
		in.Name = "conversation"
	}
	if r := []rune(in.Name); len(r) > input.MaxName {
		in.Name = string(r[:input.MaxName])
	}
	return s.create(ctx, tx, actor, CreateInput{Name: in.Name, VaultID: in.VaultID, SandboxProvider: in.Provider}, in.EnvironmentID, true)
}

func (s *Service) create(ctx context.Context, tx db.Tx, actor tenant.Actor, in CreateInput, environmentID *uuid.UUID, implicit bool) (uuid.UUID, error) {
	if in.SandboxProvider == "" {
		in.SandboxProvider = s.o.Machines.DefaultProvider()
	}
	provider, err := s.o.Machines.Provider(in.SandboxProvider)
	if err != nil {
		return uuid.Nil, err
	}
	if environmentID != nil {
		if err := environment.Hold(ctx, tx, *environmentID); err != nil {
			return uuid.Nil, err
		}
		env, err := readEnvironment(ctx, tx.Queries, environmentID)
		if err != nil {
			return uuid.Nil, err
		}
		if err := able(ctx, provider, env); err != nil {
			return uuid.Nil, err
		}
	}
	if in.VaultID != nil {
		if err := vault.Hold(ctx, tx, *in.VaultID); err != nil {
			return uuid.Nil, err
		}
	}
	if in.Metadata == nil {
		in.Metadata = map[string]any{}
	}
	metadata, err := json.Marshal(in.Metadata)
	if err != nil {
		return uuid.Nil, err
	}
	id, setupID, machineID := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	_, err = tx.InsertWorkspace(ctx, queries.InsertWorkspaceParams{
		ID: id, Name: in.Name, Implicit: implicit, EnvironmentID: environmentID, VaultID: in.VaultID, Provider: in.SandboxProvider,
		MachineID: machineID, SetupID: setupID, Metadata: metadata,
	})
	if db.IsUnique(err, "workspaces_name") {
		return uuid.Nil, input.NameTaken("workspace", in.Name)
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("insert the workspace: %w", err)
	}
	ref, err := s.plan(ctx, tx, actor.TenantID, id, in.SandboxProvider, setupID, machineID, nil, in.Fresh)
	if err != nil {
		return uuid.Nil, err
	}
	s.wakes(tx, ref)
	return id, s.statusEvent(ctx, tx, actor.TenantID, id)
}

// able refuses what the provider can never do for this environment on this host.
func able(ctx context.Context, provider sandbox.Provider, env environment.Environment) error {
	if none(env.Packages) {
		return nil
	}
	caps, err := provider.Capabilities(ctx)
	if err != nil {
		return machine.Unreachable(err)
	}
	if !caps.Root {
		return refusal.New(refusal.ProviderUnable, "%s", noRoot(provider.Name())).With("provider", provider.Name())
	}
	return nil
}

func noRoot(provider string) string {
	return fmt.Sprintf("The environment has packages, and machines of the provider %q on this host have no root user to install them with: run the server as root, or take the packages out of the environment.", provider)
}

// plan adds the machine and the operation of a setup, and the rows of its steps. It is the last of its transaction: the
// quota is held from here. preferred: the host where it goes when it fits as well on others.
func (s *Service) plan(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID, provider string, setupID, machineID uuid.UUID, preferred *uuid.UUID, fresh bool) (db.Ref, error) {
	if err := tx.DeleteSetupSteps(ctx, id); err != nil {
		return db.Ref{}, fmt.Errorf("clear the last setup: %w", err)
	}
	if err := tx.InsertSetupSteps(ctx, queries.InsertSetupStepsParams{WorkspaceID: id, SetupID: setupID, Steps: stepNames}); err != nil {
		return db.Ref{}, fmt.Errorf("add the setup's steps: %w", err)
	}
	if err := s.o.Stream.BeginSetupTx(ctx, tx, id, setupID); err != nil {
		return db.Ref{}, fmt.Errorf("drop the last setup's lines: %w", err)
	}
	if err := s.o.Machines.Plan(ctx, tx, tenantID, machineID, id, provider, preferred); err != nil {
		return db.Ref{}, err
	}
	return operation.Insert(ctx, tx, tenantID, setupID, operation.Setup, id, machineID, setupPayload{fresh})
}

// Get shows a workspace.
func (s *Service) Get(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Workspace, error) {
	row, err := s.row(ctx, s.db.Tenant(actor.TenantID), id)
	if err != nil {
		return Workspace{}, err
	}
	views, err := s.views(ctx, actor.TenantID, []record{row})
	if err != nil {
		return Workspace{}, err
	}
	w := views[0]
	if w.MachineStatus == machine.Ready && !row.away {
		use, err := s.o.Machines.Use(ctx, actor.TenantID, row.m.ID)
		if err == nil {
			w.Use, w.DiskBytes = &use, use.DiskBytes
		} else if ctx.Err() != nil {
			return Workspace{}, ctx.Err()
		}
	}
	return w, nil
}

// List shows the workspaces of the account, the newest first.
func (s *Service) List(ctx context.Context, actor tenant.Actor, includeImplicit bool, page input.Page) (input.List[Workspace], error) {
	after, err := page.ID()
	if err != nil {
		return input.List[Workspace]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).Workspaces(ctx, queries.WorkspacesParams{Implicit: includeImplicit, After: after, AtMost: page.Fetch()})
	if err != nil {
		return input.List[Workspace]{}, fmt.Errorf("list the workspaces: %w", err)
	}
	all := make([]record, len(rows))
	for i, r := range rows {
		all[i] = record{r.Workspace, r.Machine, r.Waiting, r.Away, r.Draining}
	}
	views, err := s.views(ctx, actor.TenantID, all)
	if err != nil {
		return input.List[Workspace]{}, err
	}
	same := func(w Workspace) Workspace { return w }
	return input.Paged(page, views, same, func(w Workspace) string { return w.ID.String() }), nil
}

// PatchInput is a change of a workspace. Only the metadata may change; the other fields are there to be refused by name.
type PatchInput struct {
	Name            *string         `json:"name,omitempty"`
	EnvironmentID   *string         `json:"environment_id,omitempty"`
	VaultID         *string         `json:"vault_id,omitempty"`
	SandboxProvider *string         `json:"sandbox_provider,omitempty"`
	Metadata        *map[string]any `json:"metadata,omitempty"`
}

// Patch changes a workspace's metadata. What is fixed at creation is refused with workspace_field_fixed.
func (s *Service) Patch(ctx context.Context, actor tenant.Actor, id uuid.UUID, in PatchInput) (Workspace, error) {
	for _, f := range []struct {
		name string
		set  bool
	}{{"name", in.Name != nil}, {"environment_id", in.EnvironmentID != nil}, {"vault_id", in.VaultID != nil}, {"sandbox_provider", in.SandboxProvider != nil}} {
		if f.set {
			return Workspace{}, refusal.New(refusal.WorkspaceFieldFixed, "%s is fixed when a workspace is made. Make another workspace.", f.name).With("field", f.name)
		}
	}
	if in.Metadata == nil {
		return s.Get(ctx, actor, id)
	}
	var v refusal.Validation
	input.Metadata(&v, "metadata", in.Metadata)
	if err := v.Err(); err != nil {
		return Workspace{}, err
	}
	raw, err := json.Marshal(*in.Metadata)
	if err != nil {
		return Workspace{}, err
	}
	err = s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if _, err := lock(ctx, tx, id); err != nil {
			return err
		}
		if err := tx.SetWorkspaceMetadata(ctx, raw, id); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.WorkspaceUpdate, "workspace", id, "metadata")
	})
	if err != nil {
		return Workspace{}, fmt.Errorf("change a workspace: %w", err)
	}
	return s.Get(ctx, actor, id)
}

// Retry sets a failed workspace up again, on a new machine, from its environment and vault as they are now.
func (s *Service) Retry(ctx context.Context, actor tenant.Actor, id uuid.UUID, in RetryInput) (Workspace, error) {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		w, err := lock(ctx, tx, id)
		if err != nil {
			return err
		}
		if w.Implicit {
			return implicit()
		}
		if Status(w.Status) != Failed {
			return refusal.New(refusal.WorkspaceNotFailed, "Only a failed workspace can be retried; this one is %s.", w.Status).With("status", w.Status)
		}
		if err := audit.Write(ctx, tx, actor, audit.WorkspaceRetry, "workspace", id); err != nil {
			return err
		}
		_, err = s.begin(ctx, tx, w, in.Fresh)
		return err
	})
	if err != nil {
		return Workspace{}, fmt.Errorf("retry a workspace: %w", err)
	}
	return s.Get(ctx, actor, id)
}

// begin starts a setup of a locked workspace that has none under way.
func (s *Service) begin(ctx context.Context, tx db.Tx, w queries.Workspace, fresh bool) (uuid.UUID, error) {
	provider, err := s.o.Machines.Provider(w.Provider)
	if err != nil {
		return uuid.Nil, err
	}
	env, err := readEnvironment(ctx, tx.Queries, w.EnvironmentID)
	if err != nil {
		return uuid.Nil, err
	}
	if err := able(ctx, provider, env); err != nil {
		return uuid.Nil, err
	}
	// What was installed for the machine of before is kept on its host.
	old, err := tx.Machine(ctx, *w.MachineID)
	if err != nil {
		return uuid.Nil, fmt.Errorf("read the machine of before: %w", err)
	}
	setupID, machineID := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	n, err := tx.ProvisionWorkspace(ctx, queries.ProvisionWorkspaceParams{ID: w.ID, MachineID: machineID, SetupID: setupID, Previous: *w.SetupID})
	if err != nil {
		return uuid.Nil, err
	}
	if n == 0 {
		return uuid.Nil, fmt.Errorf("workspace %s changed under its own lock", w.ID)
	}
	ref, err := s.plan(ctx, tx, w.TenantID, w.ID, w.Provider, setupID, machineID, old.HostID, fresh)
	if err != nil {
		return uuid.Nil, err
	}
	s.wakes(tx, ref)
	return setupID, s.statusEvent(ctx, tx, w.TenantID, w.ID)
}

// Delete ends every conversation of a workspace and destroys its machine with its disk. It is accepted from every
// status, answers at once, and is finished by whichever server runs next if this one dies.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		w, err := lock(ctx, tx, id)
		if err != nil {
			return err
		}
		if w.Implicit {
			return implicit()
		}
		if Status(w.Status) == Deleting {
			return nil
		}
		if err := s.end(ctx, tx, w); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.WorkspaceDelete, "workspace", id)
	})
	if err != nil {
		return fmt.Errorf("delete a workspace: %w", err)
	}
	return nil
}

// EndImplicitTx ends a conversation's own workspace in the transaction that ends the conversation. A workspace that has
// ended already is success.
func (s *Service) EndImplicitTx(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID) error {
	w, err := tx.LockWorkspace(ctx, id)
	if err != nil {
		return fmt.Errorf("lock the workspace: %w", err)
	}
	if !w.Implicit || w.Status == string(Deleting) || w.Status == string(Deleted) {
		return nil
	}
	return s.end(ctx, tx, w)
}

// end marks a workspace as deleting, takes its machine from whatever is under way with it, and adds the operation that
// destroys it.
func (s *Service) end(ctx context.Context, tx db.Tx, w queries.Workspace) error {
	if _, err := tx.DeletingWorkspace(ctx, w.ID); err != nil {
		return err
	}
	if err := s.cancel(ctx, tx, w); err != nil {
		return err
	}
	ref, err := operation.Insert(ctx, tx, w.TenantID, uuid.Must(uuid.NewV7()), operation.Destroy, w.ID, *w.MachineID, nil)
	if err != nil {
		return err
	}
	s.wakes(tx, ref)
	return s.statusEvent(ctx, tx, w.TenantID, w.ID)
}

// wakes has an operation begin once its transaction is committed.
func (s *Service) wakes(tx db.Tx, ref db.Ref) {
	tx.OnCommit(func() { s.o.Operations.Wake(ref) })
}

// destroy is the operation behind a delete, and behind the end of a machine whose workspace stays: its payload says why.
func (s *Service) destroy(ctx context.Context, h *operation.Held) error {
	var why cause
	if err := json.Unmarshal(h.Payload, &why); err != nil {
		return fmt.Errorf("read why the machine is destroyed: %w", err)
	}
	if why.Code != "" {
		return s.discard(ctx, h, why)
	}
	row, err := s.db.Tenant(h.TenantID).Workspace(ctx, h.WorkspaceID)
	if err != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	if !row.Workspace.Implicit {
		if err := s.o.Occupants.TerminateAll(ctx, tenant.SystemActor(h.TenantID, "workspace.delete"), h.WorkspaceID); err != nil {
			return fmt.Errorf("end the workspace's conversations: %w", err)
		}
	}
	machines, err := s.db.Tenant(h.TenantID).MachinesToDestroy(ctx, h.WorkspaceID, nil)
	if err != nil {
		return fmt.Errorf("look for the workspace's machines: %w", err)
	}
	for _, m := range machines {
		if err := s.o.Machines.Destroy(ctx, h, m, machine.Terminated); err != nil {
			return later(err)
		}
	}
	return s.told(ctx, h, h.End, func(tx db.Tx) error {
		if err := tx.DeletedWorkspace(ctx, h.WorkspaceID); err != nil {
			return err
		}
		return tx.DropRetiredSecrets(ctx, row.Workspace.EnvironmentID, row.Workspace.VaultID)
	})
}

// Touch notes in the caller's transaction that something happened in a workspace.
func Touch(ctx context.Context, tx db.Tx, id uuid.UUID) error {
	if err := tx.TouchWorkspace(ctx, id); err != nil {
		return fmt.Errorf("note the workspace's activity: %w", err)
	}
	return nil
}

// LogStep is one step of a setup as it is kept.
type LogStep struct {
	Step         string     `json:"step"`
	State        string     `json:"state" enum:"pending,running,done,failed,skipped"`
	Note         string     `json:"note"`
	StartedAt    *time.Time `json:"started_at"`
	DurationMS   *int64     `json:"duration_ms"`
	ExitCode     *int       `json:"exit_code"`
	Signal       string     `json:"signal"`
	Output       string     `json:"output" doc:"the last 64 KiB of what it printed, standard output and error in order of arrival, redacted"`
	DroppedBytes int64      `json:"dropped_bytes" doc:"what was printed before that"`
}

// Log is the log of a workspace's running or last setup. It outlives the machine.
type Log struct {
	SetupID uuid.UUID `json:"setup_id"`
	Status  Status    `json:"status"`
	Steps   []LogStep `json:"steps"`
}

// SetupLog shows what the running or the last setup printed.
func (s *Service) SetupLog(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Log, error) {
	q := s.db.Tenant(actor.TenantID)
	row, err := s.row(ctx, q, id)
	if err != nil {
		return Log{}, err
	}
	if row.w.Implicit {
		return Log{}, implicit()
	}
	rows, err := q.SetupSteps(ctx, id)
	if err != nil {
		return Log{}, fmt.Errorf("read the setup's steps: %w", err)
	}
	log := Log{SetupID: *row.w.SetupID, Status: Status(row.w.Status), Steps: make([]LogStep, len(rows))}
	for i, r := range rows {
		log.Steps[i] = LogStep{
			Step: r.Step, State: r.State, Note: r.Note, StartedAt: r.StartedAt, DurationMS: r.DurationMs, ExitCode: intPointer(r.ExitCode),
			Signal: r.Signal, Output: r.Output, DroppedBytes: r.DroppedBytes,
		}
	}
	return log, nil
}

func intPointer(n *int32) *int {
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}

func implicit() error {
	return refusal.New(refusal.ImplicitWorkspace, "This is the machine of one conversation: act on the conversation instead.")
}

// lock reads a workspace for a change.
func lock(ctx context.Context, tx db.Tx, id uuid.UUID) (queries.Workspace, error) {
	w, err := tx.LockWorkspace(ctx, id)
	if db.NotFound(err) || err == nil && Status(w.Status) == Deleted {
		return w, refusal.NotFoundError()
	}
	if err != nil {
		return w, fmt.Errorf("lock the workspace: %w", err)
	}
	return w, nil
}
