package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/queries"
	"managoat/sandbox/guest"
)

// lookEvery is how often somebody who waits looks at the rows: what another server does is seen no later.
const lookEvery = 500 * time.Millisecond

// Up is a workspace whose machine is up, and what a conversation on it starts with: the environment and the secrets as
// they are now, not as the machine was built.
type Up struct {
	WorkspaceID  uuid.UUID
	Implicit     bool
	MachineID    uuid.UUID
	Provider     string    // of the machine
	ReadyAt      time.Time // when its setup ended: a conversation that knew another machine sees that this one is new
	Guest        *guest.Client
	Env          *environment.Environment
	Vars         map[string]string       // the environment's variables
	Trust        map[string]string       // variables that make programs read the machine's certificates
	Registries   map[string]string       // variables that name the operator's package registries
	Secrets      map[string]secret.Value // the vault's win
	Masks        []secret.Value          // what nothing may show of the machine: see Service.Masks
	Policy       broker.Policy           // networking as it is now
	Repositories []string                // mount paths
}

// Waiting is what Ensure waits for.
type Waiting struct {
	For  string // "setup" or "machine"
	Step string // of the setup; of the machine: its transition, when it is on its way down
}

// ErrElsewhere says that a workspace's machine is on another host, whose server does what is to be done on it.
var ErrElsewhere = errors.New("the machine is on another host")

// Caller is who waits for a machine in Ensure. What it leaves out is not asked.
type Caller struct {
	// Progress is told what is waited for.
	Progress func(Waiting)
	// Rebuild is asked whether the caller may have a machine built again that was lost, in the transaction that begins it.
	// What it writes there is undone when somebody else was faster; its error ends the wait.
	Rebuild func(ctx context.Context, tx db.Tx) error
}

// Ensure returns when the workspace's machine is up on this host; one that another host has is ErrElsewhere. It waits for a
// setup that runs, starts one for a workspace that failed or whose machine was lost, and starts a machine that is parked;
// what several callers need at once happens once. A setup that fails is the refusal setup_failed.
func (s *Service) Ensure(ctx context.Context, tenantID, id uuid.UUID, caller Caller) (*Up, error) {
	var joined uuid.UUID // the setup this call waited for
	var last Waiting
	report := func(w Waiting) {
		if w != last && caller.Progress != nil {
			caller.Progress(w)
		}
		last = w
	}
	var asked uuid.UUID // the machine that did not answer, and about which the provider was asked
	for {
		changed := s.changes(id)
		row, err := s.current(ctx, tenantID, id)
		if err != nil {
			return nil, err
		}
		status := machine.Status(row.m.Status)
		switch {
		case Status(row.w.Status) == Provisioning:
			joined = *row.w.SetupID
			report(Waiting{For: "setup", Step: row.w.SetupStep})
			if err := wait(ctx, changed); err != nil {
				return nil, err
			}
		case Status(row.w.Status) == Failed && *row.w.SetupID == joined:
			return nil, setupFailed(row.w)
		case Status(row.w.Status) == Failed:
			if joined, err = s.again(ctx, tenantID, id, false, nil); err != nil {
				return nil, err
			}
		case status == machine.Lost:
			if joined, err = s.again(ctx, tenantID, id, true, caller.Rebuild); err != nil {
				return nil, err
			}
		case s.o.Machines.Elsewhere(row.m):
			return nil, ErrElsewhere
		case down(row.m):
			report(Waiting{For: "machine", Step: row.m.Transition})
			if err := wait(ctx, changed); err != nil {
				return nil, err
			}
		case status == machine.Suspended || status == machine.Starting:
			report(Waiting{For: "machine"})
			if err := s.wake(ctx, tenantID, id); err != nil {
				return nil, err
			}
		case status == machine.Ready:
			up, err := s.up(ctx, tenantID, row)
			if err == nil || asked == row.m.ID || ctx.Err() != nil {
				return up, err
			}
			// It does not answer: stopped, gone, or just out of reach? The provider knows.
			asked = row.m.ID
			if err := s.o.Machines.Found(ctx, tenantID, row.m.ID); err != nil {
				return nil, machine.Unreachable(err)
			}
		default:
			return nil, fmt.Errorf("workspace %s is ready and its machine %s", id, status)
		}
	}
}

// Peek is Ensure for what only looks: it waits for nothing and starts nothing. A machine that is not up is the refusal
// sandbox_not_ready with its status.
func (s *Service) Peek(ctx context.Context, tenantID, id uuid.UUID) (*Up, error) {
	up, err := s.Reach(ctx, tenantID, id)
	if r, ok := refusal.As(err); ok && r.Code == refusal.ProviderDisabled {
		return nil, refusal.New(refusal.SandboxNotReady, "%s", r.Message).With("status", r.Fields["status"])
	}
	return up, err
}

// Reach is Peek for a turn that runs on: that the provider is disabled is refused as such, with the machine's status.
func (s *Service) Reach(ctx context.Context, tenantID, id uuid.UUID) (*Up, error) {
	row, err := s.row(ctx, s.db.Tenant(tenantID), id)
	if err != nil {
		return nil, err
	}
	status := machine.Status(row.m.Status)
	if _, err := s.o.Machines.Provider(row.w.Provider); err != nil {
		if r, ok := refusal.As(err); ok {
			err = r.With("status", string(status))
		}
		return nil, err
	}
	if Status(row.w.Status) == Deleting {
		return nil, refusal.New(refusal.SandboxNotReady, "The workspace is being deleted.").With("status", row.w.Status)
	}
	if Status(row.w.Status) != Ready || status != machine.Ready {
		return nil, machine.NotReady(status)
	}
	if down(row.m) {
		return nil, machine.NotReady(machine.Suspended)
	}
	up, err := s.up(ctx, tenantID, row)
	if err == nil || ctx.Err() != nil {
		return up, err
	}
	if found := s.o.Machines.Found(ctx, tenantID, row.m.ID); found == nil {
		if now, err := s.row(ctx, s.db.Tenant(tenantID), id); err == nil && machine.Status(now.m.Status) != machine.Ready {
			return nil, machine.NotReady(machine.Status(now.m.Status))
		}
	}
	return nil, err
}

// down tells whether a machine is on its way down. It may stay up after all, when a park meets a prompt.
func down(m queries.Machine) bool { return m.Transition == "parking" || m.Transition == "destroying" }

// current reads the workspace for a prompt. No prompt runs on a provider that is disabled, even when the machine is up.
func (s *Service) current(ctx context.Context, tenantID, id uuid.UUID) (record, error) {
	row, err := s.row(ctx, s.db.Tenant(tenantID), id)
	if refusal.Is(err, refusal.NotFound) {
		return row, refusal.New(refusal.WorkspaceNotFound, "The workspace was deleted.")
	}
	if err != nil {
		return row, err
	}
	if Status(row.w.Status) == Deleting {
		return row, refusal.New(refusal.WorkspaceDeleting, "The workspace is being deleted.")
	}
	_, err = s.o.Machines.Provider(row.w.Provider)
	return row, err
}

func wait(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// setupFailed is the refusal of everything that waited for a setup that failed.
func setupFailed(w queries.Workspace) error {
	var e SetupError
	if err := json.Unmarshal(w.Error, &e); err != nil {
		return fmt.Errorf("read why the setup of workspace %s failed: %w", w.ID, err)
	}
	r := refusal.New(refusal.SetupFailed, "The workspace's setup failed in its step %s. %s", e.Step, e.Message).
		With("step", e.Step).With("output_tail", e.OutputTail).With("exit_code", e.ExitCode)
	if e.Signal != "" {
		r = r.With("signal", e.Signal)
	}
	return r
}

// wake starts a parked machine, or joins what is under way with it, and returns when that has ended.
func (s *Service) wake(ctx context.Context, tenantID, id uuid.UUID) error {
	var opID uuid.UUID
	err := s.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
		w, err := lock(ctx, tx, id)
		if err != nil {
			return err
		}
		m, err := tx.LockMachine(ctx, *w.MachineID)
		if err != nil {
			return fmt.Errorf("lock the machine: %w", err)
		}
		opID, _, err = s.begun(ctx, tx, w, m)
		return err
	})
	if err != nil || opID == uuid.Nil { // it is up already, or lost: the caller looks again
		return err
	}
	return s.join(ctx, tenantID, id, opID)
}

// begun is what is under way with the machine of a locked workspace; where that is nothing, and the machine is parked, its
// wake, which begins with the transaction's end.
func (s *Service) begun(ctx context.Context, tx db.Tx, w queries.Workspace, m queries.Machine) (uuid.UUID, operation.Kind, error) {
	if open, err := tx.OpenMachineOperation(ctx, w.ID); err == nil {
		return open.ID, operation.Kind(open.Kind), nil
	} else if !db.NotFound(err) {
		return uuid.Nil, "", fmt.Errorf("look for what is under way: %w", err)
	}
	switch machine.Status(m.Status) {
	case machine.Suspended:
		if err := s.o.Machines.AdmitWake(ctx, tx, m); err != nil {
			return uuid.Nil, "", err
		}
	case machine.Starting: // counted already, and nobody is at it
	default:
		return uuid.Nil, "", nil
	}
	if _, err := tx.WakeMachine(ctx, m.ID); err != nil {
		return uuid.Nil, "", fmt.Errorf("wake the machine: %w", err)
	}
	ref, err := operation.Insert(ctx, tx, w.TenantID, uuid.Must(uuid.NewV7()), operation.Wake, w.ID, m.ID, nil)
	if err != nil {
		return uuid.Nil, "", err
	}
	s.wakes(tx, ref)
	return ref.ID, operation.Wake, s.statusEvent(ctx, tx, w.TenantID, w.ID)
}

// AdmitTx refuses a prompt when its turn would have to start a machine and no more may run. It takes no place: where the last
// one goes meanwhile to somebody else, the turn fails of it. The workspace keeps its machine until the prompt is committed.
func (s *Service) AdmitTx(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID) error {
	if err := tx.HoldWorkspace(ctx, id); err != nil {
		return err
	}
	r, err := tx.Workspace(ctx, id)
	if err != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	status := machine.Status(r.Machine.Status)
	there := status == machine.Pending || machine.Kept(status)
	if there && r.Draining {
		return draining(r.Workspace.Implicit)
	}
	if there && status != machine.Suspended {
		return nil // it is counted
	}
	if status := Status(r.Workspace.Status); status != Ready && status != Failed {
		return nil
	}
	if _, err := s.o.Machines.Provider(r.Workspace.Provider); err != nil {
		return nil // nothing starts, as the turn will say
	}
	if there {
		return s.o.Machines.AdmitWake(ctx, tx, r.Machine)
	}
	_, err = s.o.Machines.AdmitNew(ctx, tx, tenantID, r.Workspace.Provider, r.Machine.HostID)
	return err
}

// draining refuses what would keep a machine on a host that is drained.
func draining(implicit bool) error {
	next := "Try again when it is back, or rebuild the workspace, whose new machine is made on another host without what is on the disk of this one."
	if implicit {
		next = "Try again when it is back, or start another conversation, whose machine is made on another host."
	}
	return refusal.New(refusal.HostDraining, "%s %s", machine.HostDraining, next).RetryAfter(drainRetry)
}

// join returns when an operation has ended. A wake that failed is a refusal.
func (s *Service) join(ctx context.Context, tenantID, id, opID uuid.UUID) error {
	for {
		changed := s.changes(id)
		op, err := s.db.Tenant(tenantID).Operation(ctx, opID)
		if err != nil {
			return fmt.Errorf("read what is under way: %w", err)
		}
		switch op.State {
		case "pending", "running":
		case "failed":
			return wakeFailed(op)
		default:
			return nil
		}
		if err := wait(ctx, changed); err != nil {
			return err
		}
	}
}

// wakeFailed is the refusal of what waited for a machine that did not start. A lost one is not an error here: the caller
// builds another.
func wakeFailed(op queries.Operation) error {
	var cause struct{ Code, Message string }
	if err := json.Unmarshal(op.Error, &cause); err != nil {
		return fmt.Errorf("read why operation %s failed: %w", op.ID, err)
	}
	if op.Kind != string(operation.Wake) || cause.Code == "not_found" || cause.Code == "broken" {
		return nil
	}
	return refusal.New(refusal.SandboxUnreachable, "The machine did not start (%s). %s Its disk is untouched.", cause.Code, cause.Message).RetryAfter(10 * time.Second)
}

// Share brings what a machine sees of this host's directories, such as the runtimes' installations, up to date.
func (s *Service) Share(ctx context.Context, up *Up) error {
	return s.o.Machines.Share(ctx, up.Provider)
}

// up connects to a machine that is ready and reads what a conversation on it starts with.
func (s *Service) up(ctx context.Context, tenantID uuid.UUID, row record) (*Up, error) {
	var client *guest.Client
	var env environment.Environment
	var secrets map[string]secret.Value
	var masks []secret.Value
	// Side by side: every prompt waits for this.
	var all errgroup.Group
	all.Go(func() (err error) {
		client, err = s.o.Machines.ConnectTo(ctx, row.m)
		if _, ok := refusal.As(err); err == nil || ok || errors.Is(err, context.Canceled) {
			return err
		}
		return fmt.Errorf("%w (%w)", machine.Unreachable(err), err)
	})
	all.Go(func() (err error) {
		env, err = readEnvironment(ctx, s.db.Tenant(tenantID), row.w.EnvironmentID)
		return err
	})
	all.Go(func() (err error) {
		secrets, err = s.secrets(ctx, tenantID, row.w.EnvironmentID, row.w.VaultID)
		return err
	})
	all.Go(func() (err error) {
		masks, err = s.masks(ctx, tenantID, row.w.EnvironmentID, row.w.VaultID)
		return err
	})
	if err := all.Wait(); err != nil {
		return nil, err
	}
	up := &Up{
		WorkspaceID: row.w.ID, Implicit: row.w.Implicit, MachineID: row.m.ID, Provider: row.m.Provider, Guest: client, Env: &env, Vars: maps.Clone(env.EnvVars),
		Trust: TrustEnv(), Registries: s.registries(), Secrets: secrets, Masks: masks, Policy: policyOf(env), Repositories: []string{},
	}
	for _, v := range secrets { // one that was put between the two reads
		up.Masks = append(up.Masks, v)
	}
	if row.m.ReadyAt != nil {
		up.ReadyAt = *row.m.ReadyAt
	}
	for _, repo := range env.Repositories {
		up.Repositories = append(up.Repositories, repo.MountPath)
	}
	return up, nil
}

// Gone tells whether a machine has ended for good, or is about to: after it could not be reached, and its provider was asked.
func (s *Service) Gone(ctx context.Context, tenantID, machineID uuid.UUID) (bool, error) {
	if err := s.o.Machines.Found(ctx, tenantID, machineID); err != nil {
		s.log.Warn("ask for a machine that does not answer", "machine", machineID, "error", err)
	}
	m, err := s.db.Tenant(tenantID).Machine(ctx, machineID)
	if err != nil {
		return false, fmt.Errorf("read the machine: %w", err)
	}
	status := machine.Status(m.Status)
	return status == machine.Lost || status == machine.Terminated || status == machine.Failed || m.Transition == "destroying", nil
}

// Trouble says what keeps a machine from answering, in a sentence; "" when nothing is known.
func (s *Service) Trouble(ctx context.Context, tenantID, machineID uuid.UUID) string {
	return s.o.Machines.Trouble(ctx, tenantID, machineID)
}

// OfMachine names the workspace whose current machine it is.
func (s *Service) OfMachine(ctx context.Context, tenantID, machineID uuid.UUID) (uuid.UUID, error) {
	id, err := s.db.Tenant(tenantID).WorkspaceOfMachine(ctx, machineID)
	if db.NotFound(err) {
		return uuid.Nil, refusal.NotFoundError()
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("look for the machine's workspace: %w", err)
	}
	return id, nil
}
