// Package workspacetest gives tests a whole host: a database with accounts, a provider with real machines, a real
// egress process, and the services of workspaces over them, in the outside world of package testworld.
package workspacetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/environment"
	"managoat/internal/identity/identitytest"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/netguard"
	"managoat/internal/quota"
	"managoat/internal/runtime"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/testworld"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/queries"
	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/sandboxtest"
)

// Variables that make a test process one of ours instead.
const (
	egressVariable = "MANAGOAT_TEST_EGRESS" // the provider's place
	serverVariable = "MANAGOAT_TEST_SERVER" // a Host as JSON
	testsVariable  = "MANAGOAT_TEST_PID"    // of the process that runs the tests
)

// Main is what TestMain of a package that uses this one calls: it runs the tests, or is an egress process or a server
// that a test started. Its result is the exit code.
func Main(m *testing.M) int {
	if dir := os.Getenv(egressVariable); dir != "" {
		return serveEgress(dir, os.Getenv(egressVariable+"_DIR"))
	}
	if config := os.Getenv(serverVariable); config != "" {
		return serveHost(config)
	}
	os.Setenv(testsVariable, fmt.Sprint(os.Getpid())) // for what it starts
	code := m.Run()
	if err := sandboxtest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	return code
}

func serveEgress(machines, dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p, err := sandboxtest.Attach(machines)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Tests that were killed, or ran out of time, clean up nothing: the egress process does when it sees them gone.
	var watched sync.WaitGroup
	watched.Go(func() {
		if orphaned(ctx) {
			stop()
			sweep(machines, dir)
		}
	})
	defer watched.Wait()
	defer stop()
	err = broker.Serve(ctx, broker.Options{Dir: dir, Dial: func(ctx context.Context, _ broker.Settings, m broker.Machine) (net.Conn, error) {
		return p.Guest(ctx, m.Ref)
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// orphaned waits until ctx ends, or tells that the tests' process did.
func orphaned(ctx context.Context) bool {
	tests, err := strconv.Atoi(os.Getenv(testsVariable))
	if err != nil {
		return false
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if errors.Is(syscall.Kill(tests, 0), syscall.ESRCH) {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// sweep destroys the machines of a place, and removes it and the egress process's directory.
func sweep(machines, egress string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := sandboxtest.Sweep(ctx, machines); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.RemoveAll(filepath.Dir(egress))
}

// Host is what a server of a host is made from; a second process can be one from its JSON.
type Host struct {
	ID       uuid.UUID
	Instance string
	Dir      string // the egress process's
	Machines string // the provider's place
	Runtimes string // directory of the runtimes that machines see; "": none
	App      string // the database's URLs
	Platform string
	ExtraCA  []byte
	Apt      string
	NPM      string
	PIP      string
	Resolve  string
	Private  string
	Limits   sandbox.Limits
	Quota    int // machines that an account may run
	Fleet    int
	Disabled bool // the provider is not offered
	Lives    workspace.Lifetimes

	// For a server in a process of its own:
	Guest  string // file of the guest's binary
	Tenant uuid.UUID
	Try    *workspace.CreateInput // what it tries to make at its start
}

// Server is a server's services on one host.
type Server struct {
	Host         Host
	Provider     sandboxtest.Provider
	Egress       *broker.Client
	Machines     *machine.Service
	Operations   *operation.Runner
	Environments *environment.Service
	Vaults       *vault.Service
	Stream       *stream.Account
	Hub          *stream.Hub
	Workspaces   *workspace.Service

	stop func()
}

// World is one test's host and what is around it.
type World struct {
	*identitytest.Instance
	*Server
	Outside   *testworld.World
	Owner     identitytest.Account
	Occupants *Occupants
	Rows      *Rows

	tb testing.TB
}

// Option changes the host before its server starts.
type Option func(*Host)

// New makes a world with one account and a server that runs. Everything goes with the test.
func New(tb testing.TB, options ...Option) *World {
	tb.Helper()
	w := Quiet(tb, options...)
	w.Server.Run(tb)
	return w
}

// Quiet is New with a server that does no background work yet.
func Quiet(tb testing.TB, options ...Option) *World {
	tb.Helper()
	// Not the test's own directory: its name can be too long for a unix socket, and the server's user differs.
	dir, err := os.MkdirTemp("", "mgt")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	w := &World{
		Instance: identitytest.New(tb), Outside: testworld.New(tb), Occupants: &Occupants{}, Rows: &Rows{}, tb: tb,
	}
	w.Owner = w.Account(tb)
	machines, err := sandboxtest.Place()
	if err != nil {
		tb.Fatal(err)
	}
	host := Host{
		ID: uuid.New(), Instance: "test-" + uuid.NewString(), Dir: dir, Machines: machines, App: w.URLs.App, Platform: w.URLs.Platform, Apt: w.Outside.Debian.Sources(), NPM: w.Outside.NPM.URL,
		Resolve: w.Outside.Resolve(), Private: w.Outside.AllowPrivate(), Quota: 20, Fleet: 50,
	}
	if host.ExtraCA, err = os.ReadFile(w.Outside.CA.File); err != nil {
		tb.Fatal(err)
	}
	if sandboxtest.Name() == sandboxtest.Docker { // the tests' image has no npm; the local provider's machines have the host's
		host.Runtimes = os.Getenv("MANAGOAT_RUNTIMES_DIR")
	}
	for _, o := range options {
		o(&host)
	}
	w.Server = w.Start(tb, host)
	return w
}

// Start makes another server, of this host or of another one, over the same database.
func (w *World) Start(tb testing.TB, host Host) *Server {
	tb.Helper()
	s, err := start(host, w.Instance, w.Occupants, w.Rows, conformancetest.GuestBinary(tb), slog.New(slog.NewTextHandler(tb.Output(), nil)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close(tb) })
	return s
}

func start(host Host, in *identitytest.Instance, occupants workspace.Occupants, rows broker.Sink, guest []byte, log *slog.Logger) (*Server, error) {
	ctx := context.Background()
	egress := filepath.Join(host.Dir, "egress")
	s := &Server{Host: host, stop: func() {}}
	var err error
	if s.Provider, err = sandboxtest.Open(host.Machines, guest, []string{host.Runtimes}, log); err != nil {
		return nil, err
	}
	settings := broker.Settings{ExtraCA: host.ExtraCA}
	if settings.Resolve, err = netguard.ParseResolve(host.Resolve); err != nil {
		return nil, err
	}
	if settings.AllowPrivate, err = netguard.ParseAllowances(host.Private); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.Egress, err = broker.Connect(ctx, egress, broker.ClientOptions{
		Spawn: broker.Command([]string{exe}, append(os.Environ(), egressVariable+"="+host.Machines, egressVariable+"_DIR="+egress)),
		Sink:  rows, Settings: settings, Log: log,
	})
	if err != nil {
		return nil, err
	}
	s.Hub = stream.NewHub(in.DB, log)
	s.Stream = stream.NewAccount(s.Hub)
	s.Environments = environment.NewService(in.DB, in.Keys, func(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID, changed []string) error {
		return s.Workspaces.EnvironmentChanged(ctx, tx, tenantID, id, changed)
	})
	s.Vaults = vault.NewService(in.DB, in.Keys)
	s.Operations = operation.NewRunner(in.DB, host.ID, log)
	providers := map[string]sandbox.Provider{}
	if !host.Disabled {
		providers[s.Provider.Name()] = s.Provider
	}
	s.Machines = machine.New(in.DB, machine.Options{
		Host: host.ID, URL: "http://" + host.ID.String(), Instance: host.Instance, Providers: providers, Default: s.Provider.Name(),
		Egress: s.Egress, Limits: host.Limits, Quotas: quota.Defaults{RunningMachines: host.Quota, PromptsPerMinute: 100}, Fleet: host.Fleet, Log: log,
		Mounts: func(context.Context) ([]sandbox.Mount, error) {
			if host.Runtimes == "" {
				return nil, nil
			}
			return runtime.Mounts(host.Runtimes), nil
		},
	}, func(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID) error {
		return s.Workspaces.MachineChanged(ctx, tx, tenantID, id)
	})
	s.Workspaces = workspace.New(in.DB, workspace.Options{
		Machines: s.Machines, Operations: s.Operations, Environments: s.Environments, Vaults: s.Vaults, Stream: s.Stream, Occupants: occupants, Lifetimes: host.Lives,
		ExtraCA: host.ExtraCA, AptSources: host.Apt, NPMRegistry: host.NPM, PIPIndex: host.PIP, Log: log,
	})
	return s, s.Machines.Register(ctx)
}

// Run starts the server's background work.
func (s *Server) Run(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{s.Workspaces.Run, s.Machines.Run, s.Hub.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				tb.Error(err)
			}
		})
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
}

// Stop ends the background work as a graceful end of the server does: machines and egress go on.
func (s *Server) Stop() { s.stop() }

// Close ends the server and everything it started on its host.
func (s *Server) Close(tb testing.TB) {
	s.Stop()
	if err := s.shut(); err != nil {
		tb.Error(err)
	}
}

func (s *Server) shut() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.Machines.Close()
	err := errors.Join(s.Egress.Close(), broker.Stop(ctx, filepath.Join(s.Host.Dir, "egress")))
	infos, lerr := s.Provider.List(ctx, map[string]string{sandbox.LabelInstance: s.Host.Instance})
	err = errors.Join(err, lerr)
	for _, info := range infos {
		err = errors.Join(err, s.Provider.Destroy(ctx, info.ID))
	}
	return errors.Join(err, s.Provider.Close())
}

// Rows keep what the egress process reported.
type Rows struct {
	mu       sync.Mutex
	requests []broker.RequestRow
}

// Requests keeps rows of the request log.
func (r *Rows) Requests(_ context.Context, rows []broker.RequestRow) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, rows...)
	return nil
}

// Usage drops rows of usage: nothing here makes model calls.
func (r *Rows) Usage(context.Context, []broker.UsageRow) error { return nil }

// All are the rows so far.
func (r *Rows) All() []broker.RequestRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]broker.RequestRow(nil), r.requests...)
}

// Occupants stand for the conversations above: a test says what they hold, and sees what they were told.
type Occupants struct {
	mu         sync.Mutex
	Secrets    []secret.Value
	Dirs       []string
	open       []workspace.OpenTurn
	terminated []uuid.UUID
	stages     []workspace.StageEvent
}

// HoldTurns locks nothing: there are no rows.
func (o *Occupants) HoldTurns(context.Context, db.Tx, uuid.UUID) (held []uuid.UUID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.open {
		held = append(held, t.ConversationID)
	}
	return held, nil
}

// OpenTurns are those that were opened and not ended.
func (o *Occupants) OpenTurns(context.Context, *queries.Queries, uuid.UUID) ([]workspace.OpenTurn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.open), nil
}

// EndTurns ends them once the transaction is committed.
func (o *Occupants) EndTurns(_ context.Context, tx db.Tx, _ uuid.UUID, turns []workspace.OpenTurn, _ string) error {
	tx.OnCommit(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.open = slices.DeleteFunc(o.open, func(t workspace.OpenTurn) bool { return slices.Contains(turns, t) })
	})
	return nil
}

// EndingTurns is none: they have ended.
func (o *Occupants) EndingTurns(context.Context, uuid.UUID, uuid.UUID) (int, error) { return 0, nil }

// Open says which turns are open.
func (o *Occupants) Open(turns ...workspace.OpenTurn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open = turns
}

// InterruptTurns has none to interrupt.
func (o *Occupants) InterruptTurns(context.Context, uuid.UUID, uuid.UUID, string) (int, error) {
	return 0, nil
}

// TerminateAll notes the workspace.
func (o *Occupants) TerminateAll(_ context.Context, _ tenant.Actor, id uuid.UUID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.terminated = append(o.terminated, id)
	return nil
}

// LiveSecrets are Secrets.
func (o *Occupants) LiveSecrets(context.Context, uuid.UUID, uuid.UUID) ([]secret.Value, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]secret.Value(nil), o.Secrets...), nil
}

// LiveDirs are Dirs.
func (o *Occupants) LiveDirs(context.Context, uuid.UUID, uuid.UUID) ([]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.Dirs...), nil
}

// Set says what the conversations hold.
func (o *Occupants) Set(dirs []string, secrets ...secret.Value) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Dirs, o.Secrets = dirs, secrets
}

// ConversationCounts are all one.
func (o *Occupants) ConversationCounts(_ context.Context, _ uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]int, error) {
	counts := map[uuid.UUID]int{}
	for _, id := range ids {
		counts[id] = 1
	}
	return counts, nil
}

// ImplicitStage notes the event.
func (o *Occupants) ImplicitStage(_ context.Context, _, _ uuid.UUID, e workspace.StageEvent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stages = append(o.stages, e)
	return nil
}

// Terminated are the workspaces whose conversations were ended.
func (o *Occupants) Terminated() []uuid.UUID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]uuid.UUID(nil), o.terminated...)
}

// Stages are the events of implicit setups.
func (o *Occupants) Stages() []workspace.StageEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]workspace.StageEvent(nil), o.stages...)
}
