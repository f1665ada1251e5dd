// Package conformance is the definition of sandbox.Provider: every provider passes it, in tests (conformancetest.Run) and
// on the host of a person who asks whether it works there (Report). Checks use real machines and need no network.
package conformance

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// T is what a check needs of a *testing.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Context() context.Context
	Cleanup(func())
}

// Check is one rule that every provider keeps.
type Check struct {
	Name string
	Full bool // it needs more programs in the machine than busybox has: bash, perl, procps
	Run  func(t T, p sandbox.Provider)
}

// checkTimeout bounds one check on a host that is short of CPU.
const checkTimeout = 5 * time.Minute

// checkGrace is what a check has then, or when nobody wants its result any more, to clean up.
const checkGrace = time.Minute

// Checks returns all of them.
func Checks() []Check {
	var all []Check
	for _, group := range [][]Check{lifecycle, commands, output, disk, egress, isolation, limits, sudoChecks, records, layers} {
		all = append(all, group...)
	}
	return all
}

// Result is what became of a check; Err is nil where it passed.
type Result struct {
	Name string
	Took time.Duration
	Err  error
}

// Report runs checks, some at a time, and tells each result as it comes, one after the other. It returns when all
// that were begun have ended; none is begun after the end of ctx.
func Report(ctx context.Context, p sandbox.Provider, checks []Check, atOnce int, each func(Result)) {
	results := make(chan Result)
	go func() {
		defer close(results)
		var all sync.WaitGroup
		defer all.Wait()
		slots := make(chan struct{}, max(atOnce, 1))
		for _, c := range checks {
			slots <- struct{}{}
			if ctx.Err() != nil {
				return
			}
			all.Go(func() {
				defer func() { <-slots }()
				began := time.Now()
				err := runAlone(ctx, c, p)
				results <- Result{c.Name, time.Since(began), err}
			})
		}
	}()
	for r := range results {
		each(r)
	}
}

// runAlone runs a check outside of go test.
func runAlone(ctx context.Context, c Check, p sandbox.Provider) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return give(ctx, c, p, checkGrace)
}

// give gives a check until ctx ends, and grace to clean up.
func give(ctx context.Context, c Check, p sandbox.Provider, grace time.Duration) error {
	r := &reporter{ctx: ctx}
	done := make(chan struct{})
	go func() { // Fatalf ends this goroutine, as it ends a test's
		defer close(done)
		defer r.clean()
		c.Run(r, p)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(grace):
			r.Errorf("it does not come to its end: %w", ctx.Err())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// reporter is a T that remembers the first failure.
type reporter struct {
	ctx     context.Context
	mu      sync.Mutex
	err     error
	cleanup []func()
}

func (r *reporter) Helper()                  {}
func (r *reporter) Logf(string, ...any)      {}
func (r *reporter) Context() context.Context { return r.ctx }
func (r *reporter) Errorf(f string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = fmt.Errorf(f, args...)
	}
}

func (r *reporter) Fatalf(f string, args ...any) {
	r.Errorf(f, args...)
	runtime.Goexit()
}

func (r *reporter) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanup = append(r.cleanup, f)
}

func (r *reporter) clean() {
	for i := len(r.cleanup) - 1; i >= 0; i-- {
		r.cleanup[i]()
	}
}

var serial atomic.Int64

// newName is a machine name nobody else uses.
func newName() string {
	return fmt.Sprintf("conformance-%x-%d", time.Now().UnixNano(), serial.Add(1))
}

func ids() string { return fmt.Sprintf("c%d", serial.Add(1)) }

// machine is a running machine of a check, with the server's connection to its guest.
type machine struct {
	t    T
	p    sandbox.Provider
	id   string
	caps sandbox.Capabilities
	*guest.Client
}

// create makes a machine that is destroyed at the end of the check.
func create(t T, p sandbox.Provider, change ...func(*sandbox.Spec)) string {
	t.Helper()
	spec := sandbox.Spec{Name: newName(), Hostname: "box", Labels: map[string]string{sandbox.LabelInstance: "conformance"}}
	for _, f := range change {
		f(&spec)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := p.Destroy(ctx, spec.Name); err != nil {
			t.Errorf("destroy %s: %v", spec.Name, err)
		}
	})
	created, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return created.ID
}

// start makes and starts a machine.
func start(t T, p sandbox.Provider, change ...func(*sandbox.Spec)) *machine {
	t.Helper()
	return wake(t, p, create(t, p, change...))
}

// wake starts a machine and connects to it.
func wake(t T, p sandbox.Provider, id string) *machine {
	t.Helper()
	caps, err := p.Capabilities(t.Context())
	if err != nil {
		t.Fatalf("capabilities: %v", err)
	}
	if err := p.Start(t.Context(), id); err != nil {
		t.Fatalf("start: %v", err)
	}
	return &machine{t: t, p: p, id: id, caps: caps, Client: dial(t, p, id, guest.RoleServer)}
}

func dial(t T, p sandbox.Provider, id string, role guest.Role) *guest.Client {
	t.Helper()
	conn, err := p.Guest(t.Context(), id)
	if err != nil {
		t.Fatalf("guest: %v", err)
	}
	c, err := guest.Dial(t.Context(), conn, role)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// result of a command.
type result struct {
	out, err string
	guest.Exit
}

// exec runs a command to its end.
func (m *machine) exec(e guest.Exec) result {
	m.t.Helper()
	if e.ID == "" {
		e.ID = ids()
	}
	out, errs, exit, err := m.Run(m.t.Context(), e)
	if err != nil {
		m.t.Fatalf("run %q: %v", e.Argv, err)
	}
	return result{string(out), string(errs), exit}
}

// sh runs a script as the sandbox's user, whatever it exits with.
func (m *machine) sh(script string) result {
	m.t.Helper()
	return m.exec(guest.Exec{Argv: []string{"sh", "-c", script}})
}

// must runs a script and returns its output; it has to succeed.
func (m *machine) must(script string) string {
	m.t.Helper()
	return m.mustAs(guest.Sprite, script)
}

func (m *machine) mustAs(u guest.User, script string) string {
	m.t.Helper()
	r := m.exec(guest.Exec{User: u, Argv: []string{"sh", "-c", script}})
	if r.Code != 0 {
		m.t.Fatalf("%s: exit %+v\n%s%s", script, r.Exit, r.out, r.err)
	}
	return r.out
}

// users that commands of this machine can run as.
func (m *machine) users() []guest.User {
	if m.caps.Root {
		return []guest.User{guest.Sprite, guest.Root}
	}
	return []guest.User{guest.Sprite}
}

// begin starts a command that goes on; it is killed at the end of the check at the latest.
func (m *machine) begin(e guest.Exec) string {
	m.t.Helper()
	if e.ID == "" {
		e.ID = ids()
	}
	if err := m.Start(m.t.Context(), e); err != nil {
		m.t.Fatalf("start %q: %v", e.Argv, err)
	}
	return e.ID
}

// eventually waits for a condition that another process brings about.
func eventually(t T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 30 s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: %v", what, t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func equal[V comparable](t T, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// refused checks that err is a disk operation's refusal with that code.
func refused(t T, what string, err error, code string) {
	t.Helper()
	var f *guest.FileError
	if !asError(err, &f) || f.Code != code {
		t.Errorf("%s: got %v, want %s", what, err, code)
	}
}
