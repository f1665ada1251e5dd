// Package operation runs work that exactly one server owns: setting a machine up, waking it, destroying it.
//
// Each piece of work is one row. A server claims it by a guarded update that raises the row's epoch and holds it by a
// lease on PostgreSQL's clock, which it renews. When the server dies the lease ends and another one adopts the
// operation; whatever the first still writes names the old epoch and is refused. An operation is woken directly after
// the commit that made it, so that nobody waits for the poll that finds what a dead server left.
package operation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/queries"
)

// Kind of an operation on a machine. At most one is open for a workspace, by a unique index.
type Kind string

// Kinds.
const (
	Setup   Kind = "setup"
	Wake    Kind = "wake"
	Park    Kind = "park"
	Destroy Kind = "destroy"
)

// Times of leases. A dead server's work is adopted after Lease; a living one loses its work only when PostgreSQL did not
// take a renewal for that long.
const (
	Lease        = 20 * time.Second
	renewEvery   = 5 * time.Second
	renewTimeout = 4 * time.Second
	pollEvery    = time.Second            // for work that nobody owns
	failurePause = 5 * time.Second        // before an operation that failed in a way nobody foresaw is tried again
	writeTimeout = 10 * time.Second       // of the last writes of an operation whose context has ended
	outagePause  = 500 * time.Millisecond // between tries of a write while PostgreSQL is away
	atMost       = 1000                   // operations of one poll; the next finds the rest
)

// ErrLost is returned by writes of an owner that lost its operation: the lease ended and another server took it, or a
// person cancelled it. Nothing was written.
var ErrLost = errors.New("the operation has another owner now")

// errStopping ends the operations of a server that stops. Each is given back at once.
var errStopping = errors.New("the server is stopping")

// Later says that an operation cannot go on now and should be tried again after a pause.
type Later struct {
	Pause time.Duration
	Err   error // why
}

func (l *Later) Error() string { return fmt.Sprintf("try again in %s: %v", l.Pause, l.Err) }
func (l *Later) Unwrap() error { return l.Err }

// Insert adds an operation in the caller's transaction, and returns its reference for Runner.Wake after the commit.
// payload is what its handler needs beside the row (nil: nothing).
func Insert(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID, kind Kind, workspaceID, machineID uuid.UUID, payload any) (db.Ref, error) {
	if payload == nil {
		payload = struct{}{}
	}
	raw, err := json.Marshal(payload)
	if err != nil {
		return db.Ref{}, err
	}
	_, err = tx.InsertMachineOperation(ctx, queries.InsertMachineOperationParams{
		ID: id, Kind: string(kind), WorkspaceID: workspaceID, MachineID: machineID, Payload: raw,
	})
	if err != nil {
		return db.Ref{}, fmt.Errorf("add the %s operation: %w", kind, err)
	}
	return db.Ref{TenantID: tenantID, ID: id}, nil
}

// Busy tells whether err says that another operation on the workspace's machine is open.
func Busy(err error) bool { return db.IsUnique(err, "operations_machine") }

// Held is an operation that this server owns, as it was claimed.
type Held struct {
	ID          uuid.UUID
	TenantID    uuid.UUID
	WorkspaceID uuid.UUID
	MachineID   uuid.UUID
	Kind        Kind
	Epoch       int64
	Step        string // where the owner before stopped; "" for the first
	Payload     json.RawMessage

	r      *Runner
	cancel context.CancelCauseFunc
	look   chan struct{} // a note that somebody else may have taken it
	ended  bool
}

// Guard locks the operation to the end of the transaction, or fails with ErrLost. It is the first statement of every
// write that belongs to an operation.
func (h *Held) Guard(ctx context.Context, tx db.Tx) error {
	_, err := tx.GuardMachineOperation(ctx, queries.GuardMachineOperationParams{WorkspaceID: h.WorkspaceID, ID: h.ID, Owner: h.r.owner, Epoch: h.Epoch})
	if db.NotFound(err) {
		h.lost()
		return ErrLost
	}
	return err
}

func (h *Held) lost() {
	h.r.log.Warn("a late write was refused: the operation has another owner", "operation", h.ID, "kind", h.Kind, "workspace", h.WorkspaceID, "epoch", h.Epoch)
	h.cancel(ErrLost)
}

// Write runs fn in a transaction of the operation's account that this server still owns the operation in. While PostgreSQL
// is away it tries again, as long as the lease may last: fn may run more than once.
func (h *Held) Write(ctx context.Context, fn func(db.Tx) error) error {
	deadline := time.Now().Add(Lease)
	for {
		err := h.r.db.InTenant(ctx, h.TenantID, func(tx db.Tx) error {
			if err := h.Guard(ctx, tx); err != nil {
				return err
			}
			return fn(tx)
		})
		if err == nil || !db.NotTaken(err) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(outagePause):
		case <-ctx.Done():
			return err
		}
	}
}

// End finishes the operation in the transaction of its last write. It must be the handler's last word.
func (h *Held) End(ctx context.Context, fn func(db.Tx) error) error {
	return h.end(ctx, "done", nil, fn)
}

// Fail is End for an operation that did not do what it was for. cause is kept with the row.
func (h *Held) Fail(ctx context.Context, cause any, fn func(db.Tx) error) error {
	raw, err := json.Marshal(cause)
	if err != nil {
		return err
	}
	return h.end(ctx, "failed", raw, fn)
}

func (h *Held) end(ctx context.Context, state string, cause json.RawMessage, fn func(db.Tx) error) error {
	// What is known at the end is written even when the caller's time is over: a setup that failed has failed.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer stop()
	err := h.Write(ctx, func(tx db.Tx) error {
		if err := tx.EndMachineOperation(ctx, queries.EndMachineOperationParams{ID: h.ID, State: state, Error: cause}); err != nil {
			return err
		}
		return fn(tx)
	})
	if err == nil {
		h.ended = true
	}
	return err
}

// Handler does the work of one kind. It ends the operation with End or Fail; any other return gives the operation back:
// *Later after its pause, another error after a short one. Its context ends when the operation is lost, cancelled, or the
// server stops.
type Handler func(context.Context, *Held) error

// Runner claims operations and runs their handlers.
type Runner struct {
	db       *db.DB
	owner    uuid.UUID
	log      *slog.Logger
	handlers map[Kind]Handler
	woken    chan db.Ref
	passed   chan passed
	tell     func(ctx context.Context, ref db.Ref, host *uuid.UUID)

	mu      sync.Mutex
	running map[uuid.UUID]*Held         // by operation
	busy    map[uuid.UUID]chan struct{} // by workspace: closed when its handler has returned
}

// passed is an operation that is another server's, and whose that is where it is known.
type passed struct {
	ref  db.Ref
	host *uuid.UUID
}

// maxWoken is how many wake-ups wait while the runner is busy claiming. One that finds no room is found by the poll.
const maxWoken = 1024

// NewRunner makes a runner for a server. owner is its host's id, which survives a restart of the server.
func NewRunner(d *db.DB, owner uuid.UUID, log *slog.Logger) *Runner {
	if log == nil {
		log = slog.Default()
	}
	return &Runner{
		db: d, owner: owner, log: log, handlers: map[Kind]Handler{}, woken: make(chan db.Ref, maxWoken), passed: make(chan passed, maxWoken),
		running: map[uuid.UUID]*Held{}, busy: map[uuid.UUID]chan struct{}{},
	}
}

// Handle names the handler of a kind. Call it before Run.
func (r *Runner) Handle(kind Kind, h Handler) { r.handlers[kind] = h }

// Tell names who tells another server of an operation that it does, or must: host is that server's where it is known. Call it
// before Run.
func (r *Runner) Tell(tell func(ctx context.Context, ref db.Ref, host *uuid.UUID)) { r.tell = tell }

// Wake makes the runner look at an operation now instead of at the next poll: at a new one, and at one that runs here and
// may have been taken from it. One that is another server's is passed on. Call it after the commit.
func (r *Runner) Wake(ref db.Ref) {
	select {
	case r.woken <- ref:
	default:
	}
}

// Interrupt ends the handler of an operation that was cancelled in the database and was owner's before, wherever it runs.
func (r *Runner) Interrupt(ref db.Ref, owner *uuid.UUID) {
	r.mu.Lock()
	h := r.running[ref.ID]
	r.mu.Unlock()
	if h != nil {
		h.cancel(ErrLost)
	} else if owner != nil && *owner != r.owner {
		r.pass(passed{ref, owner})
	}
}

// pass leaves it to Run to tell another server. That one finds it by itself too, a little later.
func (r *Runner) pass(p passed) {
	select {
	case r.passed <- p:
	default:
	}
}

// Run claims and runs operations until ctx ends, beginning with those this server held before it was restarted. It
// returns when every handler has returned; what they had not ended is given back.
func (r *Runner) Run(ctx context.Context) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer stop(errStopping)

	for adopted := false; ; {
		if !adopted {
			adopted = r.adopt(ctx, work, &handlers)
		}
		r.poll(ctx, work, &handlers)
		timer := time.NewTimer(pollEvery)
	waiting:
		for {
			select {
			case ref := <-r.woken:
				if !r.claim(ctx, work, &handlers, ref, false) {
					r.pass(passed{ref: ref})
				}
			case p := <-r.passed:
				if r.tell != nil {
					handlers.Go(func() { r.tell(work, p.ref, p.host) })
				}
			case <-timer.C:
				break waiting
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
		}
	}
}

func (r *Runner) adopt(ctx, work context.Context, handlers *sync.WaitGroup) bool {
	held, err := r.db.Lookup().HeldOperations(ctx, r.owner)
	if err != nil {
		r.complain(ctx, "look for operations held before the restart", err)
		return false
	}
	for _, h := range held {
		r.claim(ctx, work, handlers, db.Ref{TenantID: h.TenantID, ID: h.ID}, true)
	}
	return true
}

func (r *Runner) poll(ctx, work context.Context, handlers *sync.WaitGroup) {
	due, err := r.db.Lookup().DueMachineOperations(ctx, r.owner, atMost)
	if err != nil {
		r.complain(ctx, "look for operations that nobody owns", err)
		return
	}
	for _, d := range due {
		r.claim(ctx, work, handlers, db.Ref{TenantID: d.TenantID, ID: d.ID}, false)
	}
}

func (r *Runner) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		r.log.Error(what, "error", err)
	}
}

// claim takes the operation if it is free and leaves a goroutine that runs its handler. One that runs here already looks
// whether it is still ours. Neither is so of false.
func (r *Runner) claim(ctx, work context.Context, handlers *sync.WaitGroup, ref db.Ref, adopt bool) bool {
	asked := time.Now()
	row, err := r.db.Tenant(ref.TenantID).ClaimMachineOperation(ctx, queries.ClaimMachineOperationParams{
		ID: ref.ID, Owner: r.owner, Lease: Lease.Seconds(), Adopt: adopt})
	if db.NotFound(err) { // it is another kind's, another's, or has ended
		r.mu.Lock()
		defer r.mu.Unlock()
		h := r.running[ref.ID]
		if h != nil {
			select {
			case h.look <- struct{}{}:
			default:
			}
		}
		return h != nil
	}
	if err != nil {
		r.complain(ctx, "claim an operation", err)
		return true
	}
	h := &Held{
		ID: row.ID, TenantID: row.TenantID, WorkspaceID: *row.WorkspaceID, MachineID: *row.MachineID, Kind: Kind(row.Kind),
		Epoch: row.Epoch, Step: row.Step, Payload: row.Payload, r: r, look: make(chan struct{}, 1),
	}
	opCtx, cancel := context.WithCancelCause(work)
	h.cancel = cancel

	// One handler at a time for a workspace: the one before may still be on its way out after it was cancelled.
	r.mu.Lock()
	before := r.busy[h.WorkspaceID]
	done := make(chan struct{})
	r.busy[h.WorkspaceID] = done
	r.running[h.ID] = h
	r.mu.Unlock()

	handlers.Go(func() {
		defer func() {
			cancel(nil)
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.running, h.ID)
			if r.busy[h.WorkspaceID] == done {
				delete(r.busy, h.WorkspaceID)
			}
			close(done)
		}()
		renewed := make(chan struct{})
		go func() {
			defer close(renewed)
			r.renew(opCtx, h, asked)
		}()
		if before != nil {
			<-before
		}
		r.handle(opCtx, h)
		cancel(nil)
		<-renewed
	})
	return true
}

// renew keeps the lease. It stops the handler before the lease can have ended on PostgreSQL's clock: the time is
// counted from before the last renewal was asked for.
func (r *Runner) renew(ctx context.Context, h *Held, since time.Time) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		deadline := time.NewTimer(time.Until(since.Add(Lease)))
		select {
		case <-ctx.Done():
			deadline.Stop()
			return
		case <-deadline.C:
			r.log.Error("a lease could not be renewed in time", "operation", h.ID, "kind", h.Kind, "workspace", h.WorkspaceID)
			h.cancel(ErrLost)
			return
		case <-tick.C:
			deadline.Stop()
		case <-h.look:
			deadline.Stop()
		}
		asked := time.Now()
		call, cancel := context.WithTimeout(ctx, renewTimeout)
		n, err := r.db.Tenant(h.TenantID).RenewMachineOperation(call, queries.RenewMachineOperationParams{
			ID: h.ID, Owner: r.owner, Epoch: h.Epoch, Lease: Lease.Seconds()})
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.log.Warn("a lease was not renewed", "operation", h.ID, "error", err)
		case n == 0:
			h.cancel(ErrLost)
			return
		default:
			since = asked
		}
	}
}

// handle runs the handler and gives back what it did not end.
func (r *Runner) handle(ctx context.Context, h *Held) {
	handler := r.handlers[h.Kind]
	var err error
	if handler == nil {
		err = fmt.Errorf("no handler of %s operations", h.Kind)
	} else if err = context.Cause(ctx); err == nil {
		err = handler(ctx, h)
	}
	if h.ended {
		return
	}
	cause := context.Cause(ctx)
	if errors.Is(err, ErrLost) || errors.Is(cause, ErrLost) {
		return // it is somebody else's
	}
	pause := failurePause
	var later *Later
	switch {
	case errors.Is(cause, errStopping):
		pause = 0
	case errors.As(err, &later):
		pause = later.Pause
		r.log.Warn("an operation waits", "operation", h.ID, "kind", h.Kind, "workspace", h.WorkspaceID, "error", err)
	case err == nil:
		err = errors.New("its handler did not end it")
		fallthrough
	default:
		r.log.Error("an operation failed", "operation", h.ID, "kind", h.Kind, "workspace", h.WorkspaceID, "error", err)
	}
	raw, _ := json.Marshal(map[string]string{"message": err.Error()})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	_, err = r.db.Tenant(h.TenantID).ReleaseMachineOperation(ctx, queries.ReleaseMachineOperationParams{
		ID: h.ID, Owner: r.owner, Epoch: h.Epoch, Pause: pause.Seconds(), Error: raw})
	if err != nil {
		// Its lease ends by itself.
		r.log.Error("give an operation back", "operation", h.ID, "error", err)
	}
}
