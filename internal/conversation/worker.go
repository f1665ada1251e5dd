package conversation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/workspace"
	"managoat/queries"
)

// Times of owned operations. A server that died is replaced when its lease has ended; one that restarted adopts its own
// at once.
const (
	lease      = 15 * time.Second
	renewEvery = 4 * time.Second
	sweepEvery = 2 * time.Second // between looks for operations that nobody owns
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
	lastWrites = 5 * time.Second // for what must be written after a context ended
)

// Errors of an operation that we claimed and may not go on with.
var (
	errFenced    = errors.New("the operation is owned by another server now") // somebody else acts, and we must not
	errWithdrawn = errors.New("the turn was withdrawn before it began")
)

// worker keeps track of what runs.
type worker struct {
	mu      sync.Mutex
	kicked  map[db.Ref]struct{}         // conversations with new work
	opened  []opened                    // turns that were just made
	asked   []db.Ref                    // turns that somebody asked to interrupt, and that another server may run
	active  map[uuid.UUID]chan struct{} // operations that run here: a note that something was asked of one
	signal  chan struct{}
	running sync.WaitGroup
}

func (w *worker) init() {
	w.kicked, w.active, w.signal = map[db.Ref]struct{}{}, map[uuid.UUID]chan struct{}{}, make(chan struct{}, 1)
}

// kick says that a conversation may have work to do. It never waits.
func (s *Service) kick(tenantID, conversationID uuid.UUID) {
	s.work.mu.Lock()
	s.work.kicked[db.Ref{TenantID: tenantID, ID: conversationID}] = struct{}{}
	s.work.mu.Unlock()
	s.work.wake()
}

// opened is the operation of a turn that was just made, and where its agent has the prompt already, with all that is known
// of it.
type opened struct {
	ref  db.Ref
	sent *operation
}

// open has a turn that was just made begin, or be seen to its end. It never waits.
func (s *Service) open(ref db.Ref, sent *operation) {
	s.work.mu.Lock()
	s.work.opened = append(s.work.opened, opened{ref, sent})
	s.work.mu.Unlock()
	s.work.wake()
}

// Look has an operation begin here, or, if it runs here, see what was asked of it: another server's person did.
func (s *Service) Look(ref db.Ref) { s.open(ref, nil) }

// ask has a turn end that somebody asked to interrupt, wherever it runs. It never waits.
func (s *Service) ask(tenantID, turnID uuid.UUID) {
	if s.interrupt(turnID) {
		return
	}
	s.work.mu.Lock()
	s.work.asked = append(s.work.asked, db.Ref{TenantID: tenantID, ID: turnID})
	s.work.mu.Unlock()
	s.work.wake()
}

func (w *worker) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// Run does the service's work until ctx ends: turns, and the cleaning up after conversations. When it returns nothing of
// it runs any more; adapters go on in their machines and are taken up again by the next server.
func (s *Service) Run(ctx context.Context) error {
	defer s.detachAll()
	defer s.work.running.Wait()
	if err := s.adopt(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.work.signal:
			kicked, opened, asked := s.work.take()
			for _, o := range opened {
				if o.sent != nil {
					s.start(ctx, o.ref, func() (*operation, error) { return o.sent, nil })
				} else {
					s.claim(ctx, o.ref, false)
				}
			}
			for _, ref := range kicked {
				s.startNext(ctx, ref)
			}
			for _, ref := range asked {
				s.work.running.Go(func() { s.tellOfTurn(ctx, ref) })
			}
		case <-sweep.C:
			refs, err := s.db.Due(ctx, db.DueOperations, s.o.Owner)
			if err != nil {
				if ctx.Err() == nil {
					s.log.Warn("look for due operations", "error", err)
				}
				continue
			}
			for _, ref := range refs {
				s.claim(ctx, ref, false)
			}
		}
	}
}

// adopt takes back what this server held before it restarted.
func (s *Service) adopt(ctx context.Context) error {
	held, err := s.db.Lookup().HeldOperations(ctx, s.o.Owner)
	if err != nil {
		return fmt.Errorf("look for held operations: %w", err)
	}
	for _, h := range held {
		s.claim(ctx, db.Ref{TenantID: h.TenantID, ID: h.ID}, true)
	}
	return nil
}

func (w *worker) take() (kicked []db.Ref, opened []opened, asked []db.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kicked, opened, asked = slices.Collect(maps.Keys(w.kicked)), w.opened, w.asked
	clear(w.kicked)
	w.opened, w.asked = nil, nil
	return kicked, opened, asked
}

// tellOthers tells the server of an operation that it should look at it, when that is another one. That one finds it by itself too, a
// little later.
func (s *Service) tellOthers(ctx context.Context, ref db.Ref) {
	if s.o.Tell != nil {
		s.o.Tell(ctx, ref, nil)
	}
}

func (s *Service) tellOfTurn(ctx context.Context, turn db.Ref) {
	id, err := s.db.Tenant(turn.TenantID).OperationOfTurn(ctx, turn.ID)
	if db.NotFound(err) {
		return // it has ended
	}
	if err != nil {
		s.log.Warn("look for a turn's operation", "turn", turn.ID, "error", err)
		return
	}
	s.tellOthers(ctx, db.Ref{TenantID: turn.TenantID, ID: id})
}

// startNext starts what a conversation has to do.
func (s *Service) startNext(ctx context.Context, conversation db.Ref) {
	ids, err := s.db.Tenant(conversation.TenantID).NextOperations(ctx, conversation.ID)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("look for a conversation's next operation", "conversation", conversation.ID, "error", err)
		}
		return // the sweep finds it
	}
	for _, id := range ids {
		s.claim(ctx, db.Ref{TenantID: conversation.TenantID, ID: id}, false)
	}
}

// claim claims an operation and runs it, unless it runs here already, is not of our kinds, or must wait.
func (s *Service) claim(ctx context.Context, ref db.Ref, adopt bool) {
	s.start(ctx, ref, func() (*operation, error) {
		row, err := s.db.Tenant(ref.TenantID).ClaimOperation(ctx, queries.ClaimOperationParams{ID: ref.ID, Owner: s.o.Owner, Lease: lease.Seconds(), Adopt: adopt})
		return &operation{s: s, row: row}, err
	})
}

// start runs the operation that take makes ours.
func (s *Service) start(ctx context.Context, ref db.Ref, take func() (*operation, error)) {
	s.work.mu.Lock()
	if look, ok := s.work.active[ref.ID]; ok || ctx.Err() != nil {
		s.work.mu.Unlock()
		if ok {
			select {
			case look <- struct{}{}:
			default:
			}
		}
		return
	}
	look := make(chan struct{}, 1)
	s.work.active[ref.ID] = look
	s.work.running.Add(1)
	s.work.mu.Unlock()
	go func() {
		defer s.work.running.Done()
		var conversation *uuid.UUID
		defer func() {
			s.work.mu.Lock()
			delete(s.work.active, ref.ID)
			s.work.mu.Unlock()
			if conversation != nil {
				s.kick(ref.TenantID, *conversation)
			}
		}()
		op, err := take()
		if err != nil {
			switch {
			case db.NotFound(err): // it must wait, has ended, or is another server's
				s.work.running.Go(func() { s.tellOthers(ctx, ref) })
			case ctx.Err() == nil:
				s.log.Warn("claim an operation", "operation", ref.ID, "error", err)
			}
			return
		}
		conversation, op.look = op.row.ConversationID, look
		s.run(ctx, op)
	}()
}

// operation is one that we own.
type operation struct {
	s    *Service
	row  queries.Operation
	sent *turn           // whose prompt was sent as it was made, to
	to   *process        // this agent
	look <-chan struct{} // a note that something was asked of it

	mu    sync.Mutex // held over a write: a lease is not renewed between an end's commit and our knowing of it
	ended bool
}

func (s *Service) run(ctx context.Context, op *operation) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		op.renew(ctx, cancel)
	}()
	defer func() { <-renewed }()
	defer cancel(nil)
	var err error
	switch op.row.Kind {
	case "turn":
		err = s.runTurn(ctx, op)
	case "end":
		err = s.runEnd(ctx, op)
	}
	switch {
	case err == nil:
	case errors.Is(err, errWithdrawn):
		op.release(ctx)
	case errors.Is(err, workspace.ErrElsewhere):
		op.release(ctx)
		s.tellOthers(ctx, db.Ref{TenantID: op.row.TenantID, ID: op.row.ID})
	case errors.Is(context.Cause(ctx), errFenced), errors.Is(err, errFenced):
		s.log.Warn("an operation went to another server", "operation", op.row.ID, "epoch", op.row.Epoch)
	default:
		if ctx.Err() == nil {
			s.log.Error("an operation failed", "operation", op.row.ID, "kind", op.row.Kind, "error", err)
		}
		op.release(ctx)
	}
}

// renew keeps the lease, and hands on what a person asked through another server.
func (op *operation) renew(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-op.look:
		}
		op.mu.Lock()
		if op.ended {
			op.mu.Unlock()
			return
		}
		asked, err := op.s.db.Tenant(op.row.TenantID).RenewOperation(ctx, queries.RenewOperationParams{
			ID: op.row.ID, Owner: op.s.o.Owner, Epoch: op.row.Epoch, Lease: lease.Seconds()})
		op.mu.Unlock()
		switch {
		case db.NotFound(err):
			cancel(errFenced)
			return
		case err != nil:
			if ctx.Err() == nil {
				op.s.log.Warn("renew a lease", "operation", op.row.ID, "error", err)
			}
		case asked && op.row.TurnID != nil:
			op.s.interrupt(*op.row.TurnID)
		}
	}
}

// release gives the operation back, for the next server to take at once.
func (op *operation) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrites)
	defer cancel()
	err := op.s.db.Tenant(op.row.TenantID).ReleaseOperation(ctx, queries.ReleaseOperationParams{ID: op.row.ID, Owner: op.s.o.Owner, Epoch: op.row.Epoch})
	if err != nil {
		op.s.log.Warn("release an operation", "operation", op.row.ID, "error", err)
	}
}

// write runs fn in a transaction of the operation's account that only its owner may make. The conversation is locked
// first, as people's requests do, so that the two never wait for each other.
func (op *operation) write(ctx context.Context, fn func(tx db.Tx) error) error {
	op.mu.Lock()
	defer op.mu.Unlock()
	err := op.s.persist(ctx, func() error {
		return op.s.db.InTenant(ctx, op.row.TenantID, func(tx db.Tx) error {
			if err := tx.HoldConversation(ctx, queries.HoldConversationParams{ConversationID: *op.row.ConversationID, ID: op.row.ID, Owner: op.s.o.Owner, Epoch: op.row.Epoch}); err != nil {
				return err
			}
			return fn(tx)
		})
	})
	switch {
	case db.Fenced(err, "operation"):
		err = op.lost(ctx)
	case db.Fenced(err, "turn"):
		err = errWithdrawn
	}
	op.ended = op.ended && err == nil
	return err
}

// lost is why the operation is not ours any more.
func (op *operation) lost(ctx context.Context) error {
	state, err := op.s.db.Tenant(op.row.TenantID).OperationState(ctx, op.row.ID)
	if err == nil && state == "cancelled" {
		return errWithdrawn
	}
	return errFenced
}

// endWith ends the operation in the transaction of what it did.
func (op *operation) endWith(ctx context.Context, tx db.Tx, state string) error {
	n, err := tx.EndOperation(ctx, queries.EndOperationParams{ID: op.row.ID, Owner: op.s.o.Owner, Epoch: op.row.Epoch, State: state})
	if err == nil && n == 0 {
		return errFenced
	}
	op.ended = err == nil
	return err
}

// persist repeats a write that failed because the database was away, until ctx ends.
func (s *Service) persist(ctx context.Context, write func() error) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := write()
		if err == nil || !db.Transient(err) {
			return err
		}
		s.log.Warn("the database does not take a write", "error", err, "retry_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// interrupt tells the turn that somebody asked to interrupt it, and whether it runs here.
func (s *Service) interrupt(turnID uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, ok := s.turns[turnID]
	if ok {
		select {
		case <-asked:
		default:
			close(asked)
		}
	}
	return ok
}
