// Package conversationtest gives tests a whole host with conversations: a database, a provider with real machines that
// see the runtimes' directory, a real egress process whose rows go into the ledger, and the services of workspaces and
// conversations, in the outside world of package testworld.
package conversationtest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/agent"
	"managoat/internal/broker"
	"managoat/internal/conversation"
	"managoat/internal/environment"
	"managoat/internal/identity/identitytest"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/ledger"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/netguard"
	"managoat/internal/quota"
	"managoat/internal/runtime"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/testworld"
	"managoat/internal/transcript"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/sandboxtest"
)

// egressVariable makes a test process the egress process of a test: the provider's place.
const egressVariable = "MANAGOAT_CONVERSATION_TEST_EGRESS"

// AgentCommand runs the tests' own agent in a machine.
const AgentCommand = agentMount + "/agent"

const agentMount = "/opt/agent"

// Main is what TestMain calls: it runs the tests, or is an egress process that a test started. Its result is the exit code.
func Main(m *testing.M) int {
	if dir := os.Getenv(egressVariable); dir != "" {
		return serveEgress(dir, os.Getenv(egressVariable+"_DIR"))
	}
	code := m.Run()
	shared.close()
	if err := sandboxtest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	return code
}

// shared is what all tests of a process use: the provider's place, and the test agent.
var shared ground

type ground struct {
	once     sync.Once
	machines string
	agent    string
	runtimes string
	err      error
}

func (g *ground) open(tb testing.TB) {
	tb.Helper()
	g.once.Do(func() { g.err = g.lay() })
	if g.err != nil {
		tb.Fatal(g.err)
	}
}

func (g *ground) lay() (err error) {
	if g.machines, err = sandboxtest.Place(); err != nil {
		return err
	}
	if g.agent, err = os.MkdirTemp("", "mga"); err != nil {
		return err
	}
	if err := os.Chmod(g.agent, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(g.agent, "agent"), "managoat/internal/conversation/testdata/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the test agent: %w\n%s", err, out)
	}
	g.runtimes = os.Getenv("MANAGOAT_RUNTIMES_DIR")
	if g.runtimes == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		g.runtimes = filepath.Join(cache, "managoat-tests", "runtimes")
	}
	if g.runtimes, err = filepath.Abs(g.runtimes); err != nil {
		return err
	}
	return runtime.Prepare(g.runtimes)
}

func (g *ground) close() {
	if g.agent != "" {
		os.RemoveAll(g.agent)
	}
}

func serveEgress(machines, dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := func() error {
		p, err := sandboxtest.Attach(machines)
		if err != nil {
			return err
		}
		return broker.Serve(ctx, broker.Options{Dir: dir, Dial: func(ctx context.Context, _ broker.Settings, m broker.Machine) (net.Conn, error) {
			return p.Guest(ctx, m.Ref)
		}})
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// World is one test's host and what is around it.
type World struct {
	*identitytest.Instance
	*Server
	Outside  *testworld.World
	Owner    identitytest.Account
	Postgres *dbtest.Postgres // with Options.Postgres

	tb   testing.TB
	host uuid.UUID
	dir  string
	name string
	opts Options

	disabled bool // the server offers no sandbox provider
}

// Options of a world.
type Options struct {
	Limits  sandbox.Limits
	Prompts int // a minute; 0: 1000
	Lives   workspace.Lifetimes

	Postgres bool          // the world has a PostgreSQL of its own, which the test may take away
	Ahead    time.Duration // and whose clock is this far ahead of the server's
}

// Server is a server's services on the world's host.
type Server struct {
	Provider      sandboxtest.Provider
	Egress        *broker.Client
	Machines      *machine.Service
	Environments  *environment.Service
	Vaults        *vault.Service
	Agents        *agent.Service
	Inference     *inference.Service
	Ledger        *ledger.Service
	Hub           *stream.Hub
	Reader        *stream.Reader
	Writer        *transcript.Writer
	Workspaces    *workspace.Service
	Conversations *conversation.Service

	stop func()
}

// New makes a world with one account and a server that runs. Everything goes with the test.
func New(tb testing.TB, options ...Options) *World {
	tb.Helper()
	shared.open(tb)
	// Not the test's own directory: its name can be too long for a unix socket, and the server's user differs.
	dir, err := os.MkdirTemp("", "mgt")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	w := &World{Outside: testworld.New(tb), tb: tb, host: uuid.New(), dir: dir, name: "test-" + uuid.NewString()}
	if len(options) > 0 {
		w.opts = options[0]
	}
	if w.opts.Postgres {
		var d *dbtest.Database
		d, w.Postgres = dbtest.Own(tb, w.opts.Ahead)
		w.Instance = identitytest.On(tb, slog.New(slog.DiscardHandler), d)
	} else {
		w.Instance = identitytest.New(tb)
	}
	w.Owner = w.Account(tb)
	tb.Cleanup(w.close)
	w.Server = w.start()
	w.Server.run(tb)
	return w
}

// Restart ends the server as a graceful end does, and starts another on the same host: machines, adapters and the egress
// process go on meanwhile.
func (w *World) Restart() {
	w.tb.Helper()
	w.Pause(func() {})
}

// Offer is Restart of a server that offers the sandbox provider, or does not any more.
func (w *World) Offer(provider bool) {
	w.tb.Helper()
	w.disabled = !provider
	w.Restart()
}

// Pause is Restart with something that happens while no server does any work.
func (w *World) Pause(meanwhile func()) {
	w.tb.Helper()
	w.Server.stop()
	meanwhile()
	w.Server.end(w.tb)
	w.Server = w.start()
	if err := w.Conversations.Restore(w.tb.Context(), w.Owner.TenantID); err != nil {
		w.tb.Fatal(err)
	}
	w.Server.run(w.tb)
}

func (w *World) start() *Server {
	w.tb.Helper()
	s, err := w.services()
	if err != nil {
		w.tb.Fatal(err)
	}
	return s
}

func (w *World) services() (*Server, error) {
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(w.tb.Output(), nil))
	s := &Server{stop: func() {}}
	var err error
	if s.Provider, err = sandboxtest.Open(shared.machines, conformancetest.GuestBinary(w.tb), []string{shared.runtimes, shared.agent}, log); err != nil {
		return nil, err
	}
	var settings broker.Settings
	if settings.ExtraCA, err = os.ReadFile(w.Outside.CA.File); err != nil {
		return nil, err
	}
	if settings.Resolve, err = netguard.ParseResolve(w.Outside.Resolve()); err != nil {
		return nil, err
	}
	if settings.AllowPrivate, err = netguard.ParseAllowances(w.Outside.AllowPrivate()); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.Ledger = ledger.New(w.DB, log)
	egress := filepath.Join(w.dir, "egress")
	s.Egress, err = broker.Connect(ctx, egress, broker.ClientOptions{
		Spawn: broker.Command([]string{exe}, append(os.Environ(), egressVariable+"="+shared.machines, egressVariable+"_DIR="+egress)),
		Sink:  s.Ledger, Settings: settings, Log: log,
	})
	if err != nil {
		return nil, err
	}
	s.Hub = stream.NewHub(w.DB, log)
	s.Reader = stream.NewReader(w.DB, s.Hub)
	account := stream.NewAccount(s.Hub)
	s.Writer = transcript.NewWriter(w.DB, s.Hub)
	s.Environments = environment.NewService(w.DB, w.Keys, func(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID, changed []string) error {
		return s.Workspaces.EnvironmentChanged(ctx, tx, tenantID, id, changed)
	})
	s.Vaults = vault.NewService(w.DB, w.Keys)
	s.Agents = agent.NewService(w.DB, []string{s.Provider.Name()})
	s.Inference = inference.NewService(w.DB, w.Keys, settings.AllowPrivate)
	prompts := w.opts.Prompts
	if prompts == 0 {
		prompts = 1000
	}
	quotas := quota.Defaults{RunningMachines: 20, PromptsPerMinute: prompts}
	s.Conversations = conversation.New(w.DB, conversation.Options{Owner: w.host, RuntimesDir: shared.runtimes, Agents: s.Agents, Inference: s.Inference,
		Keys: w.Keys, Broker: s.Egress, Ledger: s.Ledger, Writer: s.Writer, Account: account, Quotas: quotas, Log: log})
	runner := operation.NewRunner(w.DB, w.host, log)
	providers := map[string]sandbox.Provider{s.Provider.Name(): s.Provider}
	if w.disabled {
		clear(providers)
	}
	s.Machines = machine.New(w.DB, machine.Options{Host: w.host, URL: "http://" + w.host.String(), Instance: w.name,
		Providers: providers, Default: s.Provider.Name(), Egress: s.Egress, Limits: w.opts.Limits, Quotas: quotas, Fleet: 50, Log: log,
		Mounts: func(context.Context) ([]sandbox.Mount, error) {
			return append(runtime.Mounts(shared.runtimes), sandbox.Mount{Source: shared.agent, Target: agentMount}), nil
		},
	}, func(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID) error {
		return s.Workspaces.MachineChanged(ctx, tx, tenantID, id)
	})
	s.Workspaces = workspace.New(w.DB, workspace.Options{Machines: s.Machines, Operations: runner, Environments: s.Environments, Vaults: s.Vaults,
		Stream: account, Occupants: s.Conversations, Lifetimes: w.opts.Lives, ExtraCA: settings.ExtraCA, AptSources: w.Outside.Debian.Sources(), NPMRegistry: w.Outside.NPM.URL, Log: log})
	s.Conversations.UseWorkspaces(s.Workspaces)
	return s, s.Machines.Register(ctx)
}

func (s *Server) run(tb testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{s.Workspaces.Run, s.Machines.Run, s.Hub.Run, s.Conversations.Run} {
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

// end stops the server and leaves its host as it is.
func (s *Server) end(tb testing.TB) {
	s.stop()
	s.Machines.Close()
	s.Egress.Close()
	s.Provider.Close()
}

func (w *World) close() {
	s := w.Server
	if s == nil {
		return
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.Machines.Close()
	s.Egress.Close()
	if err := broker.Stop(ctx, filepath.Join(w.dir, "egress")); err != nil {
		w.tb.Errorf("stop the egress process: %v", err)
	}
	infos, err := s.Provider.List(ctx, map[string]string{sandbox.LabelInstance: w.name})
	if err != nil {
		w.tb.Errorf("list the machines: %v", err)
	}
	for _, info := range infos {
		if err := s.Provider.Destroy(ctx, info.ID); err != nil {
			w.tb.Errorf("destroy %s: %v", info.ID, err)
		}
	}
	s.Provider.Close()
}

// InstallClaude installs the pinned claude adapter, once for all runs of the tests.
func InstallClaude(tb testing.TB) {
	tb.Helper()
	shared.open(tb)
	if err := runtime.Install(tb.Context(), runtime.Claude, shared.runtimes, func(line string) { tb.Log(line) }); err != nil {
		tb.Fatal(err)
	}
}

// Environment makes an environment.
func (w *World) Environment(edit func(*environment.Input)) uuid.UUID {
	w.tb.Helper()
	in := environment.New()
	in.Name = "environment " + uuid.NewString()
	if edit != nil {
		edit(&in)
	}
	e, err := w.Environments.Create(w.tb.Context(), w.Owner.Actor, in)
	if err != nil {
		w.tb.Fatal(err)
	}
	return e.ID
}

// Workspace makes a workspace, which may not be ready yet.
func (w *World) Workspace(environmentID uuid.UUID) workspace.Workspace {
	w.tb.Helper()
	ws, err := w.Workspaces.Create(w.tb.Context(), w.Owner.Actor, workspace.CreateInput{Name: "workspace " + uuid.NewString(), EnvironmentID: environmentID})
	if err != nil {
		w.tb.Fatal(err)
	}
	return ws
}

// Agent makes an agent of the runtime acp that runs the tests' own agent with some flags.
func (w *World) Agent(flags string, edits ...func(*agent.Config)) uuid.UUID {
	w.tb.Helper()
	c := agent.New()
	c.Name, c.Runtime, c.RuntimeCommand = "agent "+uuid.NewString(), agent.ACP, AgentCommand+" "+flags
	for _, edit := range edits {
		edit(&c)
	}
	a, err := w.Agents.Create(w.tb.Context(), w.Owner.Actor, c)
	if err != nil {
		w.tb.Fatal(err)
	}
	return a.ID
}

// Claude makes an agent of the runtime claude, and a key for the scripted model.
func (w *World) Claude(edits ...func(*agent.Config)) uuid.UUID {
	w.tb.Helper()
	return w.Of(agent.Claude, edits...)
}

// providers of the models of runtimes.
var providers = map[string]string{agent.Claude: inference.Anthropic, agent.Codex: inference.OpenAI, agent.Gemini: inference.Google}

// Of makes an agent of a runtime that runs models of one provider, and a key for the scripted model.
func (w *World) Of(runtime string, edits ...func(*agent.Config)) uuid.UUID {
	w.tb.Helper()
	const key = "sk-ant-api03-the-real-key"
	provider := providers[runtime]
	w.Outside.Model.RequireKey(key)
	page, err := w.Inference.List(w.tb.Context(), w.Owner.Actor, input.Page{})
	if err != nil {
		w.tb.Fatal(err)
	}
	if !slices.ContainsFunc(page.Items, func(c inference.Credential) bool { return c.Provider == provider }) {
		if _, err := w.Inference.Create(w.tb.Context(), w.Owner.Actor, inference.Input{Name: "key for " + provider, Provider: provider, BaseURL: w.Outside.Model.URL, Key: secret.New(key), Default: true}); err != nil {
			w.tb.Fatal(err)
		}
	}
	c := agent.New()
	model := provider + "/" + runtime + "-test-1"
	c.Name, c.Runtime, c.Model = runtime+" "+uuid.NewString(), runtime, &model
	for _, edit := range edits {
		edit(&c)
	}
	a, err := w.Agents.Create(w.tb.Context(), w.Owner.Actor, c)
	if err != nil {
		w.tb.Fatal(err)
	}
	return a.ID
}
