package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Lifetimes say when machines park. They are counted on PostgreSQL's clock.
type Lifetimes struct {
	Idle      time.Duration // without a turn that runs or waits, since the last one's end, the end of the setup or the last wake; 0: for ever
	Ceiling   time.Duration // up, since the end of the setup or the last wake, whatever runs; 0: for ever
	Retention time.Duration // parked, of a conversation's own machine; 0: for ever

	// Disposable says that nothing is lost with the disk of a conversation's own machine but its files: such a machine is
	// destroyed at the ceiling, instead of parked, and after Retention, and the next prompt builds another. It must stay off
	// as long as the agent's memory is on that disk alone.
	Disposable bool
}

// Times of parking.
const (
	sweepEvery   = 5 * time.Second  // between looks for machines to park
	turnsEnd     = 45 * time.Second // for the turns on a machine at its ceiling to end: longer than their own deadline, and than the lease of a server that died
	parkTime     = time.Minute      // for a park that is under way to end, so that the machine can be woken
	drainRetry   = time.Minute      // a client's next try when a host is drained
	disabledTime = 30 * time.Second // between tries of what cannot go on: its provider is disabled, its host is away
)

// Reasons why a machine parks or is destroyed, as in the cause that is kept with it.
const (
	becauseIdle      = "idle"
	becauseDrained   = "host_drained"
	becauseCeiling   = "lifetime"
	becauseRetention = "retention"
)

// cause is why a machine parks or is destroyed: the payload of the operation, then the machine's.
type cause struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Why the turns on a machine end with it.
const (
	MachineParked    = "machine_parked"
	MachineDestroyed = "machine_destroyed"
)

// sweep parks what is due until ctx ends.
func (s *Service) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for told := s.o.Machines.Told(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-told:
			told = s.o.Machines.Told()
		}
		if err := s.ParkDue(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("look for machines to park", "error", err)
		}
	}
}

// ParkDue begins to park the machines of this host that have been idle, or up, for too long: while it is drained, those on
// which nothing runs. One bad row stops no other.
func (s *Service) ParkDue(ctx context.Context) error {
	l, host := s.o.Lifetimes, s.o.Machines.Host()
	if l.Disposable {
		refs, err := s.db.Due(ctx, db.DueDisposals, host, l.Ceiling.Seconds(), l.Retention.Seconds())
		if err != nil {
			return err
		}
		s.each(ctx, refs, s.dispose)
	}
	drained, err := s.o.Machines.Draining(ctx)
	if err != nil {
		return err
	}
	idle := cause{becauseIdle, "Nothing ran here for " + words(l.Idle) + ", so the machine parked. The next prompt wakes it."}
	if drained {
		l.Idle, idle = drainedIdle, cause{becauseDrained, "The host of the machine was taken out of service, so the machine parked. Once it is back, the next prompt wakes it."}
	}
	refs, err := s.db.Due(ctx, db.DueParks, host, l.Idle.Seconds(), l.Ceiling.Seconds())
	if err != nil {
		return err
	}
	s.each(ctx, refs, func(ctx context.Context, tx db.Tx, w queries.Workspace) (*toDo, error) {
		return s.parkOne(ctx, tx, w, l, idle)
	})
	return nil
}

func (s *Service) each(ctx context.Context, refs []db.Ref, fn func(context.Context, db.Tx, queries.Workspace) (*toDo, error)) {
	for _, ref := range refs {
		if ctx.Err() != nil {
			return
		}
		err := s.db.InTenant(ctx, ref.TenantID, func(tx db.Tx) error {
			w, err := lock(ctx, tx, ref.ID)
			if err != nil {
				return err
			}
			if _, err := s.o.Machines.Provider(w.Provider); err != nil || Status(w.Status) != Ready {
				return nil // of a provider that is disabled nothing is touched
			}
			do, err := fn(ctx, tx, w)
			if err != nil || do == nil {
				return err
			}
			op, err := operation.Insert(ctx, tx, w.TenantID, uuid.Must(uuid.NewV7()), do.kind, w.ID, *w.MachineID, do.why)
			if err != nil {
				return err
			}
			if err := audit.Write(ctx, tx, tenant.SystemActor(w.TenantID, "machine."+do.why.Code), do.action, "workspace", w.ID); err != nil {
				return err
			}
			s.wakes(tx, op)
			return s.statusEvent(ctx, tx, w.TenantID, w.ID)
		})
		if err != nil && !operation.Busy(err) && ctx.Err() == nil { // busy: something is under way with it already
			s.log.Warn("park a machine", "workspace", ref.ID, "error", err)
		}
	}
}

// toDo is what is to be done with a machine whose time is over.
type toDo struct {
	kind   operation.Kind
	action audit.Action
	why    cause
}

// drainedIdle is how long a machine must have been idle to park while its host is drained: no turn runs or waits.
const drainedIdle = time.Millisecond

// parkOne marks the machine of a locked workspace as parking, if it is due still: idle is why, where that is so.
func (s *Service) parkOne(ctx context.Context, tx db.Tx, w queries.Workspace, l Lifetimes, idle cause) (*toDo, error) {
	n, err := tx.ParkIdleMachine(ctx, *w.MachineID, l.Idle.Seconds())
	if err != nil {
		return nil, err
	}
	if n > 0 {
		return &toDo{operation.Park, audit.WorkspacePark, idle}, nil
	}
	if l.Disposable && w.Implicit {
		return nil, nil
	}
	if n, err = tx.ParkOldMachine(ctx, *w.MachineID, l.Ceiling.Seconds()); err != nil || n == 0 {
		return nil, err
	}
	return &toDo{operation.Park, audit.WorkspacePark, cause{becauseCeiling, "The machine was up for " + words(l.Ceiling) + ", as long as a machine may on this instance, so it parked. The next prompt wakes it."}}, nil
}

// dispose marks the machine of one conversation as one to destroy, if it is due still.
func (s *Service) dispose(ctx context.Context, tx db.Tx, w queries.Workspace) (*toDo, error) {
	l := s.o.Lifetimes
	m, err := tx.LockMachine(ctx, *w.MachineID)
	if err != nil {
		return nil, err
	}
	n, err := tx.DisposeMachine(ctx, queries.DisposeMachineParams{ID: m.ID, Ceiling: l.Ceiling.Seconds(), Retention: l.Retention.Seconds()})
	if err != nil || n == 0 {
		return nil, err
	}
	if machine.Status(m.Status) == machine.Suspended {
		return &toDo{operation.Destroy, audit.WorkspaceDispose, cause{becauseRetention, "The machine was parked for " + words(l.Retention) + " and was destroyed. The next prompt builds another."}}, nil
	}
	return &toDo{operation.Destroy, audit.WorkspaceDispose, cause{becauseCeiling, "The machine was up for " + words(l.Ceiling) + ", as long as a machine may on this instance, and was destroyed. The next prompt builds another."}}, nil
}

// words writes a lifetime for people.
func words(d time.Duration) string {
	n, unit := d/time.Minute, "minute"
	if d%time.Hour == 0 {
		n, unit = d/time.Hour, "hour"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}

var errStillDue = errors.New("the machine is to park still")

// park is the operation behind a park. What was so when it was asked for is read again before anything is stopped: a park
// that meets a prompt stands down.
func (s *Service) park(ctx context.Context, h *operation.Held) error {
	var why cause
	if err := json.Unmarshal(h.Payload, &why); err != nil {
		return fmt.Errorf("read why the machine parks: %w", err)
	}
	if why.Code == becauseCeiling {
		if err := s.endTurns(ctx, h, MachineParked); err != nil {
			return err
		}
	}
	var work json.RawMessage
	if why.Code != machine.DiskFull { // such a machine is frozen, and answers nothing
		work = s.lastWork(ctx, h)
	}
	if why.Code == becauseIdle || why.Code == becauseDrained { // still, after that look, which takes its time
		idle := s.o.Lifetimes.Idle
		if why.Code == becauseDrained {
			idle = drainedIdle
		}
		prompted := cause{"prompted", "A prompt came before the machine had parked."}
		spare := func(ctx context.Context, fn func(db.Tx) error) error { return h.Fail(ctx, prompted, fn) }
		err := s.told(ctx, h, spare, func(tx db.Tx) error {
			n, err := tx.SpareMachine(ctx, h.MachineID, idle.Seconds())
			if err == nil && n == 0 {
				err = errStillDue
			}
			return err
		})
		if !errors.Is(err, errStillDue) {
			return err
		}
	}
	return later(s.o.Machines.Park(ctx, h, work))
}

// surveyTime bounds how long a park looks at the disk before it stops the machine. What takes longer stays unknown.
const surveyTime = 20 * time.Second

// Survey tells what work lies on the disk of a machine that is up and nowhere else, as people may see it. Package files has
// it.
type Survey func(ctx context.Context, tenantID uuid.UUID, up *Up) (json.RawMessage, error)

// UseSurvey names who looks at a machine's disk before it parks.
func (s *Service) UseSurvey(survey Survey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.survey = survey
}

// lastWork looks at the disk of a machine that is about to park: a parked one is woken for no look. A park does not depend
// on it: nil when it cannot be told now.
func (s *Service) lastWork(ctx context.Context, h *operation.Held) json.RawMessage {
	s.mu.Lock()
	survey := s.survey
	s.mu.Unlock()
	if survey == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	work, err := func() (json.RawMessage, error) {
		row, err := s.row(ctx, s.db.Tenant(h.TenantID), h.WorkspaceID)
		if err != nil {
			return nil, err
		}
		up, err := s.up(ctx, h.TenantID, row)
		if err != nil {
			return nil, err
		}
		return survey(ctx, h.TenantID, up)
	}()
	if err != nil {
		s.log.Warn("what lies on the disk of a machine that parks is not known", "machine", h.MachineID, "error", err)
		return nil
	}
	return work
}

// LastWork is what was seen on the disk of a workspace's machine before it parked, and when; the zero time when nothing was.
func (s *Service) LastWork(ctx context.Context, actor tenant.Actor, id uuid.UUID) (json.RawMessage, time.Time, error) {
	q := s.db.Tenant(actor.TenantID)
	row, err := s.row(ctx, q, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	seen, err := q.MachineWork(ctx, row.m.ID)
	if err != nil && !db.NotFound(err) {
		return nil, time.Time{}, fmt.Errorf("read what was seen on a disk: %w", err)
	}
	return seen.Work, seen.SeenAt, nil
}

// later has an operation that is refused tried again after a while.
func later(err error) error {
	if _, refused := refusal.As(err); refused {
		return &operation.Later{Pause: disabledTime, Err: err}
	}
	return err
}

// endTurns interrupts the turns on a machine that is about to stop, and returns when they have ended, or had the time to.
func (s *Service) endTurns(ctx context.Context, h *operation.Held, reason string) error {
	return s.turnsEnd(ctx, h.WorkspaceID, func() (int, error) {
		return s.o.Occupants.InterruptTurns(ctx, h.TenantID, h.WorkspaceID, reason)
	})
}

// turnsEnd returns when no turn is left of those that end with a workspace's machine, or when they had the time to.
func (s *Service) turnsEnd(ctx context.Context, workspaceID uuid.UUID, left func() (int, error)) error {
	deadline := time.Now().Add(turnsEnd)
	for {
		changed := s.changes(workspaceID)
		n, err := left()
		if err != nil {
			return fmt.Errorf("look for turns that end: %w", err)
		}
		if n == 0 || time.Now().After(deadline) {
			return nil
		}
		if err := wait(ctx, changed); err != nil {
			return err
		}
	}
}

// discard is the operation that destroys the machine of a conversation and leaves its workspace, whose next prompt builds
// another.
func (s *Service) discard(ctx context.Context, h *operation.Held, why cause) error {
	if err := s.endTurns(ctx, h, MachineDestroyed); err != nil {
		return err
	}
	m, err := s.db.Tenant(h.TenantID).Machine(ctx, h.MachineID)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	if m.Error, err = json.Marshal(why); err != nil {
		return err
	}
	if err := s.o.Machines.Destroy(ctx, h, m, machine.Lost); err != nil {
		return later(err)
	}
	return s.told(ctx, h, h.End, func(db.Tx) error { return nil })
}

// Wake starts a parked machine without a prompt, and answers at once. A machine that is up, or starts already, is left so;
// one that parks just now is waited for.
func (s *Service) Wake(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Workspace, error) {
	patience, cancel := context.WithTimeout(ctx, parkTime)
	defer cancel()
	for {
		parking := uuid.Nil
		err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
			w, err := lock(ctx, tx, id)
			if err != nil {
				return err
			}
			if w.Implicit {
				return implicit()
			}
			m, err := tx.LockMachine(ctx, *w.MachineID)
			if err != nil {
				return fmt.Errorf("lock the machine: %w", err)
			}
			if _, err := s.o.Machines.Provider(w.Provider); err != nil {
				return err
			}
			status := machine.Status(m.Status)
			if status == machine.Suspended {
				if r, err := tx.Workspace(ctx, id); err != nil {
					return fmt.Errorf("read the workspace: %w", err)
				} else if r.Draining {
					return draining(false)
				}
			}
			switch {
			case Status(w.Status) == Deleting:
				return refusal.New(refusal.WorkspaceDeleting, "The workspace is being deleted.")
			case Status(w.Status) != Ready || status != machine.Suspended && status != machine.Starting && status != machine.Ready:
				return refusal.New(refusal.SandboxNotReady, "There is no machine to wake: the workspace is %s, its machine %s.", w.Status, m.Status).With("status", m.Status)
			}
			op, under, err := s.begun(ctx, tx, w, m)
			if err != nil {
				return err
			}
			if under == operation.Park {
				parking = op
				return nil
			}
			return audit.Write(ctx, tx, actor, audit.WorkspaceWake, "workspace", id)
		})
		if err == nil && parking != uuid.Nil {
			if err = s.join(patience, actor.TenantID, id, parking); err == nil {
				continue
			}
			if patience.Err() != nil && ctx.Err() == nil {
				err = refusal.New(refusal.SandboxUnreachable, "The machine is being parked, and that has not ended yet. Try again.").RetryAfter(disabledTime)
			}
		}
		if err != nil {
			return Workspace{}, fmt.Errorf("wake a workspace: %w", err)
		}
		return s.Get(ctx, actor, id)
	}
}
