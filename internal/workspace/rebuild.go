package workspace

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/queries"
)

// A workspace gets another machine in the place of its own when somebody asks for it, when the machine was lost, and when
// its setup failed. The machine of before is destroyed by the setup of the new one, with its disk.

// OpenTurn is a turn that runs, or waits, in a workspace.
type OpenTurn struct {
	ConversationID uuid.UUID `json:"conversation_id"`
	Title          string    `json:"title" doc:"of the conversation"`
	TurnID         uuid.UUID `json:"turn_id"`
	TurnNumber     int       `json:"turn_number"`
	Status         string    `json:"status" enum:"pending,running"`
	Sent           bool      `json:"-"` // its prompt is with its agent, or on its way there
}

// TurnRunning is the status of an open turn that does not wait for its place.
const TurnRunning = "running"

// RebuildInput is what people may say to a rebuild.
type RebuildInput struct {
	Interrupt bool `json:"interrupt" doc:"end the turns that run or wait, which refuse the rebuild otherwise; their transcripts are kept"`
	Fresh     bool `json:"fresh" doc:"install the packages anew, whatever an earlier setup has left of them"`
}

// Rebuild destroys a workspace's machine with its disk and sets up another, from the environment and the vault as they are
// now. Conversations stay, with their transcripts; their agents begin anew.
func (s *Service) Rebuild(ctx context.Context, actor tenant.Actor, id uuid.UUID, in RebuildInput) (Workspace, error) {
	_, err := s.replace(ctx, actor.TenantID, id, in.Fresh, func(tx db.Tx, w queries.Workspace, _ queries.Machine, open []OpenTurn) ([]OpenTurn, error) {
		if err := s.rebuildable(w); err != nil {
			return nil, err
		}
		if len(open) > 0 && !in.Interrupt {
			return nil, turnsRunning(open)
		}
		var said []string
		if in.Interrupt {
			said = append(said, "interrupt")
		}
		if in.Fresh {
			said = append(said, "fresh")
		}
		return open, audit.Write(ctx, tx, actor, audit.WorkspaceRebuild, "workspace", id, said...)
	})
	if err != nil {
		return Workspace{}, fmt.Errorf("rebuild a workspace: %w", err)
	}
	return s.Get(ctx, actor, id)
}

// Rebuildable refuses what cannot be rebuilt now, whatever turns run in it.
func (s *Service) Rebuildable(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	row, err := s.row(ctx, s.db.Tenant(actor.TenantID), id)
	if err != nil {
		return err
	}
	return s.rebuildable(row.w)
}

func (s *Service) rebuildable(w queries.Workspace) error {
	switch {
	case w.Implicit:
		return implicit()
	case Status(w.Status) == Deleting:
		return refusal.New(refusal.WorkspaceDeleting, "The workspace is being deleted.")
	case Status(w.Status) == Provisioning:
		return refusal.New(refusal.RebuildInProgress, "The workspace's machine is being set up already. Follow that setup, and rebuild when it has ended.")
	}
	_, err := s.o.Machines.Provider(w.Provider)
	return err
}

// OpenTurns are the turns that run or wait in a workspace.
func (s *Service) OpenTurns(ctx context.Context, actor tenant.Actor, id uuid.UUID) ([]OpenTurn, error) {
	return s.o.Occupants.OpenTurns(ctx, s.db.Tenant(actor.TenantID), id)
}

func turnsRunning(open []OpenTurn) error {
	running := 0
	for _, t := range open {
		if t.Status == TurnRunning {
			running++
		}
	}
	return refusal.New(refusal.TurnsRunning, "A rebuild takes the machine from the workspace's turns: %d running, %d waiting. Wait for their end, or pass interrupt: true, which ends them and keeps their transcripts.",
		running, len(open)-running).With("running", running).With("pending", len(open)-running).With("turns", open)
}

// errLateTurn begins a replacement again: a turn began in a conversation that it has not locked.
var errLateTurn = errors.New("a turn began meanwhile")

// errFaster undoes the beginning of a replacement: somebody else was faster.
var errFaster = errors.New("somebody else has begun already")

// replace begins the setup of another machine, in one transaction: decide looks at the locked workspace, its machine and
// the turns that are open in it, and says which of them end with the machine, as MachineDestroyed.
//
// Conversations are locked before their workspace, as every turn does; a prompt holds the workspace until it is committed
// (AdmitTx), and so is seen here, or waits for the setup that begins here.
func (s *Service) replace(ctx context.Context, tenantID, id uuid.UUID, fresh bool, decide func(db.Tx, queries.Workspace, queries.Machine, []OpenTurn) ([]OpenTurn, error)) (setupID uuid.UUID, err error) {
	for {
		err = s.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
			held, err := s.o.Occupants.HoldTurns(ctx, tx, id)
			if err != nil {
				return fmt.Errorf("hold the conversations: %w", err)
			}
			w, err := lock(ctx, tx, id)
			if err != nil {
				return err
			}
			m, err := tx.LockMachine(ctx, *w.MachineID)
			if err != nil {
				return fmt.Errorf("lock the machine: %w", err)
			}
			open, err := s.o.Occupants.OpenTurns(ctx, tx.Queries, id)
			if err != nil {
				return fmt.Errorf("look for open turns: %w", err)
			}
			end, err := decide(tx, w, m, open)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(end, func(t OpenTurn) bool { return !slices.Contains(held, t.ConversationID) }) {
				return errLateTurn
			}
			if err := s.cancel(ctx, tx, w); err != nil {
				return err
			}
			if err := tx.RetireMachine(ctx, m.ID); err != nil {
				return err
			}
			if setupID, err = s.begin(ctx, tx, w, fresh); err != nil {
				return err
			}
			return s.o.Occupants.EndTurns(ctx, tx, tenantID, end, MachineDestroyed)
		})
		if !errors.Is(err, errLateTurn) {
			return setupID, err
		}
	}
}

// again starts a setup for a workspace that failed, or lost its machine, or joins the one that somebody else just started.
// Turns whose agents were on the lost machine end with it. allow is asked before a lost machine is built again; nil: it may.
func (s *Service) again(ctx context.Context, tenantID, id uuid.UUID, lost bool, allow func(context.Context, db.Tx) error) (setupID uuid.UUID, err error) {
	setupID, err = s.replace(ctx, tenantID, id, false, func(tx db.Tx, w queries.Workspace, m queries.Machine, open []OpenTurn) (end []OpenTurn, err error) {
		if !lost && Status(w.Status) == Failed {
			return nil, nil
		}
		if !lost || Status(w.Status) != Ready || machine.Status(m.Status) != machine.Lost {
			return nil, errFaster
		}
		if allow != nil {
			if err := allow(ctx, tx); err != nil {
				return nil, err
			}
		}
		return slices.DeleteFunc(open, func(t OpenTurn) bool { return !t.Sent }), nil
	})
	if errors.Is(err, errFaster) {
		return uuid.Nil, nil // the caller looks again
	}
	return setupID, err
}

// awaitTurns returns when the turns that were asked to end with the machine have, or had the time to.
func (r *setup) awaitTurns(ctx context.Context) error {
	said := false
	return r.s.turnsEnd(ctx, r.w.ID, func() (int, error) {
		left, err := r.s.o.Occupants.EndingTurns(ctx, r.w.TenantID, r.w.ID)
		if left > 0 && !said {
			said = true
			r.out.say("Waiting for the turns on the machine to end: %d.", left)
		}
		return left, err
	})
}

// cancel takes the machine of a locked workspace from whatever is under way with it.
func (s *Service) cancel(ctx context.Context, tx db.Tx, w queries.Workspace) error {
	cancelled, err := tx.CancelMachineOperations(ctx, w.ID)
	if err != nil {
		return err
	}
	tx.OnCommit(func() {
		for _, op := range cancelled {
			s.o.Operations.Interrupt(db.Ref{TenantID: w.TenantID, ID: op.ID}, op.Owner)
		}
	})
	return nil
}
