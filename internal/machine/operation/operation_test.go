package operation_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/machine/operation"
	"managoat/queries"
)

const patience = 30 * time.Second

// site is an account with one workspace, and operations on its machine.
type site struct {
	*dbtest.Database
	tenant, workspace, machine uuid.UUID
	log                        said
}

// said is what the runners logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Database: dbtest.New(t), workspace: uuid.New(), machine: uuid.New()}
	s.tenant = s.Account(t)
	s.exec(t, "insert into workspaces (tenant_id, id, name, implicit, provider, status) values ($1, $2, 'w', true, 'local', 'ready')", s.tenant, s.workspace)
	s.exec(t, "insert into machines (tenant_id, id, workspace_id, provider, status) values ($1, $2, $3, 'local', 'ready')", s.tenant, s.machine, s.workspace)
	return s
}

func (s *site) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.Owner(t).Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// add adds an operation.
func (s *site) add(t *testing.T, kind operation.Kind) db.Ref {
	t.Helper()
	var ref db.Ref
	err := s.InTenant(t.Context(), s.tenant, func(tx db.Tx) (err error) {
		ref, err = operation.Insert(t.Context(), tx, s.tenant, uuid.New(), kind, s.workspace, s.machine, map[string]string{"for": "a test"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (s *site) state(t *testing.T, ref db.Ref) string {
	t.Helper()
	op, err := s.Tenant(s.tenant).Operation(t.Context(), ref.ID)
	if err != nil {
		t.Fatal(err)
	}
	return op.State
}

// runner makes a runner of a host; it runs until the test ends or stop is called.
func (s *site) runner(t *testing.T, host uuid.UUID, handle operation.Handler) (r *operation.Runner, stop func()) {
	t.Helper()
	r = operation.NewRunner(s.DB, host, slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &s.log), nil)))
	for _, kind := range []operation.Kind{operation.Setup, operation.Wake, operation.Destroy} {
		r.Handle(kind, handle)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return r, stop
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited in vain")
		}
	}
}

func done(ctx context.Context, h *operation.Held) error {
	return h.End(ctx, func(db.Tx) error { return nil })
}

// The owner whose lease ended finds its write refused; whoever took over is not disturbed.
func TestALateWriteOfAnOldOwnerChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	held := make(chan *operation.Held)
	first := make(chan error)
	second := make(chan error)
	s.runner(t, uuid.New(), func(ctx context.Context, h *operation.Held) error {
		held <- h
		<-ctx.Done() // it learns of its loss by the refusal of a renewal
		ctx = context.WithoutCancel(ctx)
		err := h.Write(ctx, func(tx db.Tx) error { // as package machine writes
			return errors.Join(tx.SetWorkspaceStep(ctx, "late", s.workspace), tx.EndMachine(ctx, queries.EndMachineParams{ID: s.machine, Status: "terminated"}))
		})
		first <- err
		return err
	})
	ref := s.add(t, operation.Setup)
	receive(t, held)
	// Another server: the first one's lease is over on the database's clock, whatever its own says.
	s.exec(t, "update operations set lease_until = now() - interval '1 second'")
	s.runner(t, uuid.New(), func(ctx context.Context, h *operation.Held) error {
		held <- h
		err := h.End(ctx, func(tx db.Tx) error { return tx.SetWorkspaceStep(ctx, "taken over", s.workspace) })
		second <- err
		return err
	})
	if h := receive(t, held); h.Epoch != 2 {
		t.Errorf("taken over with epoch %d", h.Epoch)
	}
	if err := receive(t, second); err != nil {
		t.Error(err)
	}
	if err := receive(t, first); !errors.Is(err, operation.ErrLost) {
		t.Errorf("the late write: %v", err)
	}
	if got := s.state(t, ref); got != "done" {
		t.Errorf("the operation is %s", got)
	}
	var step, machine string
	err := s.Owner(t).QueryRow(t.Context(), "select w.setup_step, m.status from workspaces w join machines m on m.workspace_id = w.id").Scan(&step, &machine)
	if err != nil || step != "taken over" || machine != "ready" {
		t.Errorf("the rows say %q and %s, %v", step, machine, err)
	}
	if !s.log.has("a late write was refused: the operation has another owner") || !s.log.has("operation="+ref.ID.String()+" kind=setup workspace="+s.workspace.String()+" epoch=1") {
		t.Error("the log does not say so")
	}
}

func TestTwoServersRunAnOperationOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var runs atomic.Int32
	handle := func(ctx context.Context, h *operation.Held) error {
		runs.Add(1)
		return done(ctx, h)
	}
	a, _ := s.runner(t, uuid.New(), handle)
	b, _ := s.runner(t, uuid.New(), handle)
	for range 20 {
		ref := s.add(t, operation.Setup)
		a.Wake(ref)
		b.Wake(ref)
		eventually(t, func() bool { return s.state(t, ref) == "done" })
	}
	if n := runs.Load(); n != 20 {
		t.Errorf("20 operations ran %d times", n)
	}
}

func TestOnlyOneOperationIsOpenOnAMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.add(t, operation.Setup)
	err := s.InTenant(t.Context(), s.tenant, func(tx db.Tx) error {
		_, err := operation.Insert(t.Context(), tx, s.tenant, uuid.New(), operation.Wake, s.workspace, s.machine, nil)
		return err
	})
	if !operation.Busy(err) {
		t.Errorf("a second one: %v", err)
	}
}

// A server that starts again takes back what it held, without waiting for its lease to end.
func TestARestartedServerAdoptsItsOwnAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	host := uuid.New()
	ref := s.add(t, operation.Wake)
	s.exec(t, "update operations set state = 'running', owner = $1, epoch = 4, step = 'half way', lease_until = now() + interval '1 hour'", host)
	held := make(chan operation.Held, 1)
	s.runner(t, uuid.New(), func(context.Context, *operation.Held) error {
		t.Error("another server took it")
		return nil
	})
	s.runner(t, host, func(ctx context.Context, h *operation.Held) error {
		held <- *h
		return done(ctx, h)
	})
	if h := receive(t, held); h.Epoch != 5 || h.Step != "half way" || h.WorkspaceID != s.workspace || h.MachineID != s.machine {
		t.Errorf("adopted as %+v", h)
	}
	eventually(t, func() bool { return s.state(t, ref) == "done" })
}

func TestAMachinesHostAloneWorksOnIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	host, other := uuid.New(), uuid.New()
	s.exec(t, "insert into hosts (id, url) values ($1, 'http://a'), ($2, 'http://b')", host, other)
	s.exec(t, "update machines set host_id = $1", host)
	by := make(chan uuid.UUID, 8)
	handler := func(id uuid.UUID) operation.Handler {
		return func(ctx context.Context, h *operation.Held) error {
			by <- id
			return done(ctx, h)
		}
	}
	b, _ := s.runner(t, other, handler(other))
	ref := s.add(t, operation.Destroy)
	b.Wake(ref)
	s.runner(t, host, handler(host))
	if got := receive(t, by); got != host {
		t.Error("another host's server destroyed the machine")
	}
	eventually(t, func() bool { return s.state(t, ref) == "done" })
}

func TestWhatIsNotEndedIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tries := make(chan int64, 16)
	r, stop := s.runner(t, uuid.New(), func(ctx context.Context, h *operation.Held) error {
		tries <- h.Epoch
		switch h.Epoch {
		case 1:
			return &operation.Later{Pause: 300 * time.Millisecond, Err: errors.New("the provider is disabled")}
		case 2:
			return errors.New("nobody foresaw this")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	ref := s.add(t, operation.Setup)
	r.Wake(ref)
	receive(t, tries)
	began := time.Now()
	receive(t, tries)
	if waited := time.Since(began); waited < 300*time.Millisecond {
		t.Errorf("tried again after %s", waited)
	}
	eventually(t, func() bool {
		op, err := s.Tenant(s.tenant).Operation(t.Context(), ref.ID)
		return err == nil && op.State == "pending" && string(op.Error) == `{"message": "nobody foresaw this"}` && op.Owner == nil
	})
	receive(t, tries)
	stop()
	// A graceful end leaves it free for the next server, at once.
	op, err := s.Tenant(s.tenant).Operation(t.Context(), ref.ID)
	if err != nil || op.State != "pending" || op.Owner != nil || op.LeaseUntil == nil || op.LeaseUntil.After(time.Now().Add(time.Second)) {
		t.Errorf("left as %+v, %v", op, err)
	}
}

// A handler that was cancelled may need a moment; what comes next on the same machine waits for it.
func TestTheNextHandlerOfAWorkspaceWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	started, release := make(chan struct{}), make(chan struct{})
	var inside atomic.Int32
	ended := make(chan struct{})
	r, _ := s.runner(t, uuid.New(), func(ctx context.Context, h *operation.Held) error {
		if inside.Add(1) > 1 {
			t.Error("two handlers at once on one machine")
		}
		defer inside.Add(-1)
		if h.Kind == operation.Destroy {
			defer close(ended)
			return done(ctx, h)
		}
		close(started)
		<-ctx.Done()
		<-release
		return ctx.Err()
	})
	r.Wake(s.add(t, operation.Setup))
	receive(t, started)
	var cancelled []queries.CancelMachineOperationsRow
	err := s.InTenant(t.Context(), s.tenant, func(tx db.Tx) (err error) {
		cancelled, err = tx.CancelMachineOperations(t.Context(), s.workspace)
		return err
	})
	if err != nil || len(cancelled) != 1 || cancelled[0].Owner == nil {
		t.Fatal(cancelled, err)
	}
	ref := s.add(t, operation.Destroy)
	first := db.Ref{TenantID: s.tenant, ID: cancelled[0].ID}
	r.Interrupt(first, cancelled[0].Owner)
	r.Wake(ref)
	eventually(t, func() bool { return s.state(t, ref) == "running" })
	close(release)
	receive(t, ended)
	if got := s.state(t, first); got != "cancelled" {
		t.Errorf("the first one is %s", got)
	}
}

// A connection that PostgreSQL ends under a write, as when it is restarted, costs the write nothing.
func TestAWriteOutlivesARestartOfPostgreSQL(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	tries := 0
	ended := make(chan error, 1)
	r, _ := s.runner(t, uuid.New(), func(ctx context.Context, h *operation.Held) error {
		err := h.Write(ctx, func(tx db.Tx) error {
			if tries++; tries == 1 {
				s.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
			}
			return tx.SetWorkspaceStep(ctx, "written", s.workspace)
		})
		ended <- err
		return errors.Join(err, done(ctx, h))
	})
	ref := s.add(t, operation.Setup)
	r.Wake(ref)
	if err := receive(t, ended); err != nil || tries != 2 {
		t.Errorf("after %d tries: %v", tries, err)
	}
	eventually(t, func() bool { return s.state(t, ref) == "done" })
}

// What another host's machine needs waits for that host's server, in nobody's way, and it is told at once.
func TestAnOperationOnAMachineIsItsHostsAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	near, far := uuid.New(), uuid.New()
	for _, host := range []uuid.UUID{near, far} {
		s.exec(t, "insert into hosts (id, url) values ($1, 'http://a.test')", host)
	}
	s.exec(t, "update machines set host_id = $1", far)
	told := make(chan db.Ref, 1)
	a := operation.NewRunner(s.DB, near, slog.New(slog.NewTextHandler(t.Output(), nil)))
	for _, kind := range []operation.Kind{operation.Wake, operation.Park, operation.Destroy} {
		a.Handle(kind, func(context.Context, *operation.Held) error {
			t.Error("it ran on another host")
			return nil
		})
	}
	a.Tell(func(_ context.Context, ref db.Ref, host *uuid.UUID) {
		if host != nil {
			t.Errorf("the host %s was known", host)
		}
		told <- ref
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, kind := range []operation.Kind{operation.Wake, operation.Park, operation.Destroy} {
		ref := s.add(t, kind)
		a.Wake(ref)
		if got := receive(t, told); got != ref {
			t.Fatalf("told of %v", got)
		}
		if due, err := s.Lookup().DueMachineOperations(t.Context(), near, 10); err != nil || len(due) != 0 {
			t.Errorf("a %s is offered to the other host: %v %v", kind, due, err)
		}
		if due, err := s.Lookup().DueMachineOperations(t.Context(), far, 10); err != nil || len(due) != 1 {
			t.Errorf("a %s is not offered to its own host: %v %v", kind, due, err)
		}
		if got, err := s.Tenant(s.tenant).OperationElsewhere(t.Context(), ref.ID, near); err != nil || got.ID != far || got.Away {
			t.Errorf("a %s is %v's, %v", kind, got, err)
		}
		s.exec(t, "update operations set state = 'done'")
	}
}
