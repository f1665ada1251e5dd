package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/yamux"

	"managoat/internal/netguard"
	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
	"managoat/sandbox/local"
)

// The test binary runs again as the processes that a host has: the egress process, and servers that are killed.
const (
	asEgress = "MANAGOAT_TEST_EGRESS"   // directory
	asServer = "MANAGOAT_TEST_SERVER"   // JSON of serverRun
	machines = "MANAGOAT_TEST_MACHINES" // directory of the local provider, for the egress process
	build    = "MANAGOAT_TEST_BUILD"    // of the egress process
	needless = "MANAGOAT_TEST_NEEDLESS" // after which an egress process without machine and server ends
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asEgress); dir != "" {
		os.Exit(egressMain(dir))
	}
	if run := os.Getenv(asServer); run != "" {
		os.Exit(serverMain(run))
	}
	os.Exit(m.Run())
}

func egressMain(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o := Options{Dir: dir, Dial: dialGuest, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	o.Build = os.Getenv(build)
	if text := os.Getenv(needless); text != "" {
		o.needless, _ = time.ParseDuration(text)
	}
	err := Serve(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// dialGuest reaches a machine of the local provider, or one whose reference is the path of a unix socket.
func dialGuest(ctx context.Context, _ Settings, m Machine) (net.Conn, error) {
	provider, ref := m.Provider, m.Ref
	if provider == "broken" {
		panic("a provider with a fault")
	}
	if provider == "local" {
		guests, err := local.Attach(os.Getenv(machines))
		if err != nil {
			return nil, err
		}
		return guests.Guest(ctx, ref)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", ref)
}

// spawn starts the egress process of a directory as a second process and ends it with the test.
func spawn(t testing.TB, dir string, env ...string) Spawn {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := Stop(ctx, dir); err != nil {
			t.Errorf("stop the egress process: %v", err)
		}
		log, err := os.ReadFile(filepath.Join(dir, logName))
		if err != nil {
			t.Error(err)
		}
		for _, bad := range []string{"DATA RACE", "panic", "level=ERROR"} {
			if strings.Contains(string(log), bad) {
				t.Errorf("the egress process says %s", bad)
			}
		}
		if t.Failed() {
			t.Logf("log of the egress process:\n%s", log)
		}
	})
	return Command([]string{testBinary(t)}, append(append(os.Environ(), asEgress+"="+dir), env...))
}

func testBinary(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shortDir is a directory whose path leaves room for the name of a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// box is a machine seen from its provider: a socket behind which a guest answers, and the programs inside.
type box struct {
	t    testing.TB
	spec Machine

	mu      sync.Mutex
	session *yamux.Session // of the newest egress process
	changed chan struct{}
}

// newBox starts a machine. Its guest speaks the guest's protocol over the guest's own framing; only its listeners are
// functions of the test instead of ports of a network namespace.
func newBox(t testing.TB) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "box")
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, changed: make(chan struct{}), spec: Machine{
		ID: uuid.New(), TenantID: uuid.New(), WorkspaceID: uuid.New(), Provider: "box", Ref: filepath.Join(dir, "guest"),
		Policy: Policy{Type: "unrestricted"},
	}}
	l, err := net.Listen("unix", b.spec.Ref)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { b.caller(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.lose()
		wg.Wait()
		os.RemoveAll(dir)
	})
	return b
}

func (b *box) caller(c net.Conn) {
	session, err := wire.Serve(c)
	if err != nil {
		c.Close()
		return
	}
	defer session.Close()
	stream, err := session.AcceptStream()
	if err != nil {
		return
	}
	var hello wire.Request
	if err := wire.ReadMessage(stream, &hello); err != nil {
		return // it went again, as an egress process does that ends
	}
	if hello.Op != wire.OpHello {
		b.t.Errorf("the first stream of a caller: %+v", hello)
		return
	}
	body, err := json.Marshal(guest.Hello{Version: guest.Version})
	if err != nil {
		b.t.Error(err)
		return
	}
	if err := wire.WriteMessage(stream, wire.Answer{Body: body}); err != nil {
		return
	}
	b.set(session)
	<-session.CloseChan()
}

func (b *box) set(session *yamux.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session = session
	close(b.changed)
	b.changed = make(chan struct{})
}

// lose breaks the connection to the egress process.
func (b *box) lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session != nil {
		b.session.Close()
	}
}

// dial is a program inside that connects to one of the guest's listeners.
func (b *box) dial(listener string) net.Conn {
	b.t.Helper()
	c, err := b.tryDial(listener)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

func (b *box) tryDial(listener string) (net.Conn, error) {
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		b.mu.Lock()
		session, changed := b.session, b.changed
		b.mu.Unlock()
		if session != nil && !session.IsClosed() {
			stream, err := session.OpenStream()
			if err == nil {
				if err = wire.WriteMessage(stream, guest.EgressRequest{Listener: listener}); err == nil {
					return wire.NewPipe(stream), nil
				}
			}
		}
		select {
		case <-changed:
		case <-deadline.C:
			return nil, fmt.Errorf("no egress process at the %s listener", listener)
		}
	}
}

// port is a TCP port that leads to one of the guest's listeners, for programs like curl and git.
func (b *box) port(listener string) netip.AddrPort {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				stream, err := b.tryDial(listener)
				if err != nil {
					c.Close()
					return
				}
				wire.Join(c.(*net.TCPConn), stream.(*wire.Pipe))
			})
		}
	})
	b.t.Cleanup(func() {
		l.Close()
		b.lose()
		wg.Wait()
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// store is a Sink that keeps rows as a database would: by their ID, once.
type store struct {
	mu       sync.Mutex
	requests []RequestRow
	usage    []UsageRow
	twice    int
	refuse   error
	changed  chan struct{}
}

func newStore() *store { return &store{changed: make(chan struct{})} }

func (s *store) Requests(_ context.Context, rows []RequestRow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	for _, r := range rows {
		if slices.ContainsFunc(s.requests, func(have RequestRow) bool { return have.ID == r.ID }) {
			s.twice++
			continue
		}
		s.requests = append(s.requests, r)
	}
	s.tell()
	return nil
}

func (s *store) Usage(_ context.Context, rows []UsageRow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	s.usage = append(s.usage, rows...)
	s.tell()
	return nil
}

func (s *store) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until the rows are as wanted and returns them.
func (s *store) await(t testing.TB, what string, want func(requests []RequestRow, usage []UsageRow) bool) ([]RequestRow, []UsageRow) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		requests, usage, changed := slices.Clone(s.requests), slices.Clone(s.usage), s.changed
		s.mu.Unlock()
		if want(requests, usage) {
			return requests, usage
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("rows never showed %s: %+v %+v", what, requests, usage)
		}
	}
}

// row waits for the only row to a host and returns it.
func (s *store) row(t testing.TB, host string) RequestRow {
	t.Helper()
	var found RequestRow
	s.await(t, "one to "+host, func(requests []RequestRow, _ []UsageRow) bool {
		i := slices.IndexFunc(requests, func(r RequestRow) bool { return r.Host == host })
		if i >= 0 {
			found = requests[i]
		}
		return i >= 0
	})
	return found
}

// host is a host with one egress process, one machine and one conversation in it.
type host struct {
	*Client
	*store
	box   *box
	dir   string
	token string // plaintext
	spec  Token
}

// newHost starts one. change may alter the settings, the machine and the token before they are told.
func newHost(t testing.TB, change func(*Settings, *Machine, *Token)) *host {
	t.Helper()
	h := &host{store: newStore(), box: newBox(t), dir: shortDir(t)}
	settings := testSettings(t)
	plaintext, hash := NewToken()
	h.token = plaintext
	h.spec = Token{ID: uuid.New(), Hash: hash, MachineID: h.box.spec.ID, ConversationID: uuid.New(), Policy: Policy{Type: "unrestricted"}}
	if change != nil {
		change(&settings, &h.box.spec, &h.spec)
	}
	var err error
	h.Client, err = Connect(t.Context(), h.dir, ClientOptions{Spawn: spawn(t, h.dir), Sink: h.store, Settings: settings, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Client.Close() })
	if err := h.PutMachine(t.Context(), h.box.spec); err != nil {
		t.Fatal(err)
	}
	if err := h.PutToken(t.Context(), h.spec); err != nil {
		t.Fatal(err)
	}
	if err := h.Probe(t.Context(), h.box.spec.ID); err != nil {
		t.Fatal(err)
	}
	return h
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// testSettings open what tests serve on loopback under *.test names.
func testSettings(t testing.TB) Settings {
	t.Helper()
	var s Settings
	var err error
	if s.AllowPrivate, err = netguard.ParseAllowances("machine=local.test:*,machine=127.0.0.1:*,model=127.0.0.1:*,machine=other.test:*"); err != nil {
		t.Fatal(err)
	}
	if s.Resolve, err = netguard.ParseResolve("local.test=127.0.0.1,other.test=127.0.0.1,inside.test=10.0.0.1,meta.test=169.254.169.254,mixed.test=192.0.2.1,mixed.test=10.0.0.1"); err != nil {
		t.Fatal(err)
	}
	return s
}

// process finds the egress process of a host.
func (h *host) process(t *testing.T) *os.Process {
	t.Helper()
	hello, err := h.Client.hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(hello.PID)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serverRun is what a server that will be killed does.
type serverRun struct {
	Dir      string
	Machine  Machine
	Token    tokenWire
	Settings Settings
	Rows     string // file that it keeps rows in, as a database would
	Die      bool   // by kill -9, between storing its first rows and acknowledging them
}

// serverMain is a server: it says "ready" when traffic flows and lives until it is killed.
func serverMain(text string) int {
	var run serverRun
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.Unmarshal([]byte(text), &run); err != nil {
		return fail(err)
	}
	token, err := run.Token.token()
	if err != nil {
		return fail(err)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, asServer+"=") })
	self, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	ctx := context.Background()
	c, err := Connect(ctx, run.Dir, ClientOptions{
		Log:   quiet(),
		Spawn: Command([]string{self}, append(env, asEgress+"="+run.Dir)),
		Sink:  &fileSink{path: run.Rows, die: run.Die}, Settings: run.Settings,
	})
	if err != nil {
		return fail(err)
	}
	for _, err := range []error{c.PutMachine(ctx, run.Machine), c.PutToken(ctx, token), c.Prune(ctx), c.Probe(ctx, run.Machine.ID)} {
		if err != nil {
			return fail(err)
		}
	}
	fmt.Println("ready")
	select {}
}

// fileSink keeps request rows in a file, each ID once.
type fileSink struct {
	path string
	die  bool
}

func (s *fileSink) Requests(_ context.Context, rows []RequestRow) error {
	have, err := readRows(s.path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, r := range rows {
		if slices.ContainsFunc(have, func(h RequestRow) bool { return h.ID == r.ID }) {
			continue
		}
		if err := json.NewEncoder(f).Encode(r); err != nil {
			return err
		}
	}
	if s.die {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return nil
}

func (s *fileSink) Usage(context.Context, []UsageRow) error { return nil }

func readRows(path string) ([]RequestRow, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rows []RequestRow
	for line := range strings.Lines(string(text)) {
		var r RequestRow
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// server starts a server in a process of its own and waits until traffic flows. kill ends it by kill -9; ended is
// closed when it is gone.
func server(t *testing.T, run serverRun) (kill func(), ended <-chan struct{}) {
	t.Helper()
	text, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testBinary(t))
	cmd.Env = append(os.Environ(), asServer+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		cmd.Wait()
		close(gone)
	}()
	kill = func() {
		cmd.Process.Kill()
		<-gone
	}
	t.Cleanup(kill)
	if line != "ready\n" && !run.Die {
		t.Fatalf("the server says %q, %v", line, err)
	}
	return kill, gone
}
