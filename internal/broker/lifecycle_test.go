package broker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/broker/gateway"
	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/internal/secret"
)

const realKey = "sk-ant-api03-TheRealKeyThatNeverEntersAMachine"

// modelCredential is a key for a provider that the test serves on a port.
func modelCredential(port int) *ModelCredential {
	return &ModelCredential{CredentialID: uuid.New(), Source: gateway.Own, Provider: gateway.Anthropic, Kind: gateway.APIKey,
		BaseURL: fmt.Sprintf("http://127.0.0.1:%d", port), Key: secret.New(realKey)}
}

// ticker serves an event stream that goes on when it is told to.
func ticker(t *testing.T) (port int, tick func(text string)) {
	next := make(chan string)
	port = serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(w).Flush()
		for {
			select {
			case text := <-next:
				if text == "" {
					return
				}
				fmt.Fprintf(w, "data: %s\n\n", text)
				http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	return port, func(text string) {
		t.Helper()
		select {
		case next <- text:
		case <-time.After(20 * time.Second):
			t.Fatal("nobody reads the stream")
		}
	}
}

func TestKillingTheServerBreaksNoTunnelAndNoModelStreamAndLosesNoRow(t *testing.T) {
	t.Parallel()
	echo := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	model, tick := ticker(t)
	b := newBox(t)
	plaintext, hash := NewToken()
	dir := shortDir(t)
	spawn(t, dir) // for its clean-up: the servers start the process
	run := serverRun{
		Dir: dir, Machine: b.spec, Settings: testSettings(t), Rows: filepath.Join(dir, "rows"),
		Token: tokenOnWire(Token{ID: uuid.New(), Hash: hash, MachineID: b.spec.ID, ConversationID: uuid.New(),
			Policy: Policy{Type: rule.Unrestricted}, Model: modelCredential(model)}),
	}
	kill, _ := server(t, run)

	tunnel := b.dial("proxy")
	c := &conn{tunnel, bufio.NewReader(tunnel)}
	if resp, _ := c.ask(t, fmt.Sprintf("CONNECT local.test:%d", echo), auth(plaintext)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	post := func(text string) {
		t.Helper()
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: local.test\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		if resp, body := c.answer(t, "POST"); resp.StatusCode != 200 || body != text {
			t.Fatalf("%d %q", resp.StatusCode, body)
		}
	}
	stream := b.dial("model")
	s := bufio.NewReader(stream)
	fmt.Fprintf(stream, "POST /v1/messages HTTP/1.1\r\nHost: %s\r\nX-Api-Key: %s\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}", ModelHost, plaintext)
	resp, err := http.ReadResponse(s, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	events := bufio.NewReader(resp.Body)
	hear := func(text string) {
		t.Helper()
		tick(text)
		stream.SetReadDeadline(time.Now().Add(20 * time.Second))
		if line, err := events.ReadString('\n'); err != nil || line != "data: "+text+"\n" {
			t.Fatalf("%q %v", line, err)
		}
		if _, err := events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	post("before")
	hear("before")
	kill()
	post("while the server is away")
	hear("while the server is away")
	refused := b.dial("proxy")
	for range 3 { // new requests are judged and logged all the same
		r := &conn{refused, bufio.NewReader(refused)}
		if resp, _ := r.ask(t, "CONNECT inside.test:443", auth(plaintext)); resp.StatusCode != 403 {
			t.Fatal(resp.Status)
		}
	}
	c.Close()

	// The next server dies between storing the rows and acknowledging them; the one after gets them again.
	run.Die = true
	_, ended := server(t, run)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("no row came to the second server")
	}
	hear("after the second server died")
	run.Die = false
	server(t, run)
	hear("after all")
	tick("")
	want := func(rows []RequestRow) bool { return len(rows) == 5 }
	eventually(t, "all five rows, each once", func() bool {
		rows, err := readRows(run.Rows)
		if err != nil {
			t.Fatal(err)
		}
		return want(rows)
	})
	rows, err := readRows(run.Rows)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, r := range rows {
		hosts = append(hosts, r.Method+" "+r.Host)
	}
	slices.Sort(hosts)
	if got := strings.Join(hosts, ", "); got != "CONNECT inside.test, CONNECT inside.test, CONNECT inside.test, CONNECT local.test, POST 127.0.0.1" {
		t.Errorf("rows %s", got)
	}
}

func TestAProcessThatIsKilledIsStartedAgainAndToldEverything(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	h := newHost(t, nil)
	target := fmt.Sprintf("GET http://local.test:%d/", port)
	if resp, _ := h.proxy().ask(t, target, auth(h.token)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	h.row(t, "local.test")
	old := h.process(t)
	if err := old.Kill(); err != nil {
		t.Fatal(err)
	}
	// A change that comes while the process is away waits for the next one.
	plaintext, hash := NewToken()
	if err := h.PutToken(t.Context(), Token{ID: uuid.New(), Hash: hash, MachineID: h.box.spec.ID, Policy: Policy{Type: rule.Unrestricted}}); err != nil {
		t.Fatal(err)
	}
	if err := h.Probe(t.Context(), h.box.spec.ID); err != nil {
		t.Fatal(err)
	}
	if now := h.process(t); now.Pid == old.Pid {
		t.Fatal("the killed process answers")
	}
	for _, token := range []string{h.token, plaintext} {
		if resp, body := h.proxy().ask(t, target, auth(token)); resp.StatusCode != 200 || body != "hello" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	h.await(t, "three rows", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == 3 })
}

func TestRowsThatAKilledProcessLeftAreDeliveredByTheNextOne(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	h.store.mu.Lock()
	h.store.refuse = errors.New("the database is away")
	h.store.mu.Unlock()
	for range 3 {
		if resp, _ := h.proxy().ask(t, "CONNECT inside.test:443", auth(h.token)); resp.StatusCode != 403 {
			t.Fatal(resp.Status)
		}
	}
	if err := h.process(t).Kill(); err != nil {
		t.Fatal(err)
	}
	h.store.mu.Lock()
	h.store.refuse = nil
	h.store.mu.Unlock()
	h.await(t, "all three", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == 3 })
}

func TestAServerThatStartsAgainAdoptsTheProcessAndPrunesWhatIsGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	gone := newBox(t)
	if err := h.PutMachine(t.Context(), gone.spec); err != nil {
		t.Fatal(err)
	}
	if err := h.Probe(t.Context(), gone.spec.ID); err != nil {
		t.Fatal(err)
	}
	before := h.process(t).Pid
	if err := h.Client.Close(); err != nil {
		t.Fatal(err)
	}

	next, err := Connect(t.Context(), h.dir, ClientOptions{Sink: h.store, Settings: testSettings(t), Log: quiet(), Spawn: func(context.Context, string) (<-chan error, error) {
		return nil, errors.New("a second process is started")
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	h.Client = next
	if now := h.process(t).Pid; now != before {
		t.Fatalf("process %d became %d", before, now)
	}
	// It knows nothing yet, so nothing is taken away.
	c := gone.dial("proxy")
	if resp, _ := (&conn{c, bufio.NewReader(c)}).ask(t, "CONNECT inside.test:443", ""); resp.StatusCode != 403 {
		t.Fatal(resp.Status)
	}
	if resp, _ := h.proxy().ask(t, "CONNECT inside.test:443", auth(h.token)); resp.StatusCode != 403 {
		t.Fatal(resp.Status)
	}
	if err := next.PutMachine(t.Context(), h.box.spec); err != nil {
		t.Fatal(err)
	}
	if err := next.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if resp, _ := h.proxy().ask(t, "CONNECT inside.test:443", auth(h.token)); resp.StatusCode != 407 {
		t.Errorf("a token that was not put again: %s", resp.Status)
	}
	eventually(t, "the machine that was not put again is let go", func() bool {
		gone.mu.Lock()
		defer gone.mu.Unlock()
		return gone.session.IsClosed()
	})
	if err := next.Probe(t.Context(), gone.spec.ID); err == nil {
		t.Error("a machine that is gone is connected")
	}
}

func TestEveryServerPushesItsOwnSettings(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	if resp, _ := h.proxy().ask(t, "CONNECT local.test:1", auth(h.token)); resp.StatusCode != 502 {
		t.Fatal(resp.Status)
	}
	h.Client.Close()
	next, err := Connect(t.Context(), h.dir, ClientOptions{Sink: h.store, Log: quiet(), Spawn: spawn(t, h.dir), Settings: Settings{Ports: []int{443}}})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	h.Client = next
	for target, code := range map[string]string{"local.test:1": "port_not_allowed", "local.test:443": "upstream_unreachable", "127.0.0.1:443": "address_not_allowed"} {
		if _, body := h.proxy().ask(t, "CONNECT "+target, auth(h.token)); !strings.Contains(body, code) {
			t.Errorf("%s: %s", target, body)
		}
	}
}

func TestRemovingATokenEndsWhatWasOpenedWithItAndNothingElse(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	h := newHost(t, nil)
	with, without := h.proxy(), h.proxy()
	if resp, _ := with.ask(t, fmt.Sprintf("CONNECT local.test:%d", port), auth(h.token)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if resp, _ := without.ask(t, fmt.Sprintf("CONNECT local.test:%d", port), ""); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	// A change of what the token stands for leaves open tunnels alone.
	changed := h.spec
	changed.Policy = Policy{Type: rule.Limited}
	if err := h.PutToken(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if resp, _ := h.proxy().ask(t, "CONNECT local.test:443", auth(h.token)); resp.StatusCode != 403 {
		t.Errorf("under the changed policy: %s", resp.Status)
	}
	if err := h.RemoveToken(t.Context(), h.spec.ID); err != nil {
		t.Fatal(err)
	}
	with.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := with.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the token's tunnel: %v", err)
	}
	without.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := without.r.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) && !isTimeout(err) {
		t.Errorf("the machine's own tunnel: %v", err)
	}
	if resp, _ := h.proxy().ask(t, "CONNECT local.test:443", auth(h.token)); resp.StatusCode != 407 {
		t.Errorf("the removed token: %s", resp.Status)
	}
	if err := h.RemoveMachine(t.Context(), h.box.spec.ID); err != nil {
		t.Fatal(err)
	}
	without.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := without.r.ReadByte(); err == nil || isTimeout(err) {
		t.Errorf("the removed machine's tunnel: %v", err)
	}
	rows, _ := h.await(t, "the tunnels' rows", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == 4 })
	ended := 0
	for _, r := range rows {
		if r.Error == "ended by the broker" {
			ended++
		}
	}
	if ended == 0 {
		t.Errorf("no row says that the broker ended it: %+v", rows)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestAProbeWaitsForTheGuestAndSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	missing := h.box.spec
	missing.ID, missing.Ref = uuid.New(), filepath.Join(h.dir, "no-guest")
	if err := h.PutMachine(t.Context(), missing); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := h.Probe(ctx, missing.ID)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a guest that is not there: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := h.Probe(ctx, missing.ID); err == nil || !strings.Contains(err.Error(), "no-guest") {
		t.Errorf("the reason is missing: %v", err)
	}
	if err := h.Probe(t.Context(), uuid.New()); err == nil {
		t.Error("a machine that was never put is connected")
	}
}

func TestAProviderThatPanicsTakesNobodyElseAlong(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	start := Command([]string{testBinary(t)}, append(os.Environ(), asEgress+"="+dir))
	c, err := Connect(t.Context(), dir, ClientOptions{Spawn: start, Sink: newStore(), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := Stop(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	good, bad := newBox(t), Machine{ID: uuid.New(), Provider: "broken"}
	for _, m := range []Machine{bad, good.spec} {
		if err := c.PutMachine(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Probe(t.Context(), good.spec.ID); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := c.Probe(ctx, bad.ID); err == nil || !strings.Contains(err.Error(), "provider broke") {
		t.Errorf("the broken one: %v", err)
	}
	log, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil || strings.Count(string(log), "a provider with a fault") != 1 {
		t.Errorf("the log: %s, %v", log, err)
	}
}

func TestALostGuestConnectionIsDialledAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	for range 3 {
		h.box.lose()
		if resp, _ := h.proxy().ask(t, "CONNECT inside.test:443", auth(h.token)); resp.StatusCode != 403 {
			t.Fatal(resp.Status)
		}
		if err := h.Probe(t.Context(), h.box.spec.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheProcessEndsGracefully(t *testing.T) {
	t.Parallel()
	model, tick := ticker(t)
	h := newHost(t, func(_ *Settings, _ *Machine, k *Token) { k.Model = modelCredential(model) })
	process := h.process(t)
	m := h.box.dial("model")
	fmt.Fprintf(m, "POST /v1/messages HTTP/1.1\r\nHost: %s\r\nX-Api-Key: %s\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}", ModelHost, h.token)
	resp, err := http.ReadResponse(bufio.NewReader(m), nil)
	if err != nil {
		t.Fatal(err)
	}
	tick("first")
	h.Client.Close() // so that nobody starts the next one
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	tick("after the signal")
	tick("")
	m.SetReadDeadline(time.Now().Add(20 * time.Second))
	if all, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(all), "after the signal") {
		t.Errorf("a stream that had begun: %q %v", all, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := Stop(ctx, h.dir); err != nil { // waits for its end
		t.Fatal(err)
	}
	// What it had not delivered, the next one does.
	next, err := Connect(t.Context(), h.dir, ClientOptions{Sink: h.store, Settings: testSettings(t), Log: quiet(), Spawn: spawn(t, h.dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	_, usage := h.await(t, "the usage of the last call", func(_ []RequestRow, usage []UsageRow) bool { return len(usage) == 1 })
	if u := usage[0]; u.Status != 200 || u.Error != "" {
		t.Errorf("usage %+v", u)
	}
}

func TestADirectoryIsServedOnceAndIsPrivate(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	if err := Serve(t.Context(), Options{Dir: h.dir, Dial: dialGuest, Log: quiet()}); !errors.Is(err, ErrServed) {
		t.Errorf("a second process: %v", err)
	}
	info, err := os.Stat(h.dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", info.Mode(), err)
	}
	if err := Stop(t.Context(), shortDir(t)); err != nil {
		t.Errorf("stopping nothing: %v", err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if _, err := Connect(t.Context(), long, ClientOptions{}); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a path that no socket can have: %v", err)
	}
}

// After an upgrade the process of the version before goes on with what it carries; it is replaced when that has ended.
func TestAProcessOfAnotherBuildIsReplacedWhenNothingGoesThroughIt(t *testing.T) {
	t.Parallel()
	echo := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	dir := shortDir(t)
	b := newBox(t)
	plaintext, hash := NewToken()
	token := Token{ID: uuid.New(), Hash: hash, MachineID: b.spec.ID, ConversationID: uuid.New(), Policy: Policy{Type: rule.Unrestricted}}
	connect := func(version string) *Client {
		t.Helper()
		c, err := Connect(t.Context(), dir, ClientOptions{Spawn: spawn(t, dir, build+"="+version), Sink: newStore(), Log: quiet(), Settings: testSettings(t), Build: version})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.PutMachine(t.Context(), b.spec), c.PutToken(t.Context(), token), c.Prune(t.Context()), c.Probe(t.Context(), b.spec.ID)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := connect("one")
	boot := before.Boot()
	tunnel := b.dial("proxy")
	c := &conn{tunnel, bufio.NewReader(tunnel)}
	if resp, _ := c.ask(t, fmt.Sprintf("CONNECT local.test:%d", echo), auth(plaintext)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	before.Close()
	after := connect("two")
	defer after.Close()
	<-time.After(2 * retireEvery)
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: local.test\r\nContent-Length: 2\r\n\r\nhi")
	if resp, body := c.answer(t, "POST"); resp.StatusCode != 200 || body != "hi" || after.Boot() != boot {
		t.Fatalf("%d %q, boot %s, was %s", resp.StatusCode, body, after.Boot(), boot)
	}
	c.Close()
	eventually(t, "another process", func() bool { return after.Boot() != boot && after.Boot() != "" })
	if version, runs := Running(t.Context(), dir); version != "two" || !runs {
		t.Errorf("build %q runs: %v", version, runs)
	}
	if err := after.Probe(t.Context(), b.spec.ID); err != nil {
		t.Errorf("it does not know the machine: %v", err)
	}
}

func TestAProcessThatNobodyNeedsEnds(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	start := spawn(t, dir, needless+"=1s")
	box := newBox(t)
	c, err := Connect(t.Context(), dir, ClientOptions{Spawn: start, Sink: newStore(), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PutMachine(t.Context(), box.spec); err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(t.Context(), box.spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveMachine(t.Context(), box.spec.ID); err != nil {
		t.Fatal(err)
	}
	c.Close()
	eventually(t, "the process ends", func() bool {
		lock, err := tryLockDir(dir)
		if err == nil {
			lock.Close()
		}
		return err == nil
	})
}

func TestAProcessIsNeededAsLongAsItHasAMachineOrAServer(t *testing.T) {
	t.Parallel()
	long, short := time.Now().Add(-time.Hour), time.Now()
	for name, c := range map[string]struct {
		p    *process
		want bool
	}{
		"a machine":              {&process{machines: map[uuid.UUID]*machine{{}: nil}, lastCall: long}, false},
		"a server that waits":    {&process{calls: 1, lastCall: long}, false},
		"a server that just was": {&process{lastCall: short}, false},
		"nobody":                 {&process{lastCall: long}, true},
	} {
		if got := c.p.needless(time.Minute); got != c.want {
			t.Errorf("%s: needless %v", name, got)
		}
	}
}

func TestAProcessThatDoesNotLastIsNotStartedInAHurry(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	var mu sync.Mutex
	starts := 0
	real := spawn(t, dir)
	c, err := Connect(t.Context(), dir, ClientOptions{Sink: newStore(), Log: quiet(), Spawn: func(ctx context.Context, dir string) (<-chan error, error) {
		mu.Lock()
		starts++
		mu.Unlock()
		return real(ctx, dir)
	}})
	if err != nil {
		t.Fatal(err)
	}
	const enough = 5
	began := time.Now()
	eventually(t, "it is started again and again", func() bool {
		if p, err := c.hello(t.Context()); err == nil {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
		mu.Lock()
		defer mu.Unlock()
		return starts >= enough
	})
	c.Close()
	// The first loss is made good at once, the others after 1, 2 and 4 times the first pause.
	if took, least := time.Since(began), 7*retryFirst; took < least {
		t.Errorf("%d starts in %s, want at least %s between them", enough, took, least)
	}
}

func TestServersThatStartTheProcessAtOnceShareOne(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	run := spawn(t, dir, needless+"=2s") // longer than a slow client takes to begin to follow
	var ended sync.WaitGroup
	start := func(ctx context.Context, dir string) (<-chan error, error) {
		exited, err := run(ctx, dir)
		if err != nil {
			return nil, err
		}
		told := make(chan error, 1)
		ended.Go(func() { told <- <-exited })
		return told, nil
	}
	var wg sync.WaitGroup
	clients := make([]*Client, 4)
	for i := range clients {
		wg.Go(func() {
			c, err := Connect(t.Context(), dir, ClientOptions{Spawn: start, Sink: newStore(), Log: quiet()})
			if err != nil {
				t.Error(err)
				return
			}
			clients[i] = c
		})
	}
	wg.Wait()
	boots := map[string]bool{}
	for _, c := range clients {
		if c != nil {
			c.mu.Lock()
			boots[c.boot] = true
			c.mu.Unlock()
			c.Close()
		}
	}
	if len(boots) != 1 {
		t.Errorf("%d processes", len(boots))
	}
	// Nobody needs any of them now, not even one that was so slow that it found the directory free again.
	ended.Wait()
}

func TestAProcessThatCannotStartIsAnErrorThatNamesItsLog(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]Spawn{
		"ends at once":   Command([]string{"/bin/sh", "-c", "echo no such flag >&2; exit 3"}, nil),
		"does not exist": Command([]string{"/no/such/binary"}, nil),
	} {
		dir := shortDir(t)
		_, err := Connect(t.Context(), dir, ClientOptions{Spawn: start, Sink: newStore(), Log: quiet()})
		if err == nil {
			t.Fatalf("%s: connected", name)
		}
		if name == "ends at once" {
			log, readErr := os.ReadFile(filepath.Join(dir, logName))
			if readErr != nil || !strings.Contains(string(log), "no such flag") || !strings.Contains(err.Error(), logName) || !strings.Contains(err.Error(), "exit status 3") {
				t.Errorf("%v, log %q, %v", err, log, readErr)
			}
		}
	}
}

func TestTheModelGatewayIsReachedByItsListenerAndByTheProxy(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 10)
	model := serve(t, func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("X-Api-Key")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Echo", r.Header.Get("X-Api-Key"))
		fmt.Fprintf(w, `{"model":"answered","usage":{"input_tokens":1,"output_tokens":2},"echo":%q}`, r.Header.Get("X-Api-Key"))
	})
	h := newHost(t, func(_ *Settings, _ *Machine, k *Token) {
		k.Model, k.Policy = modelCredential(model), Policy{Type: rule.Limited} // the gateway needs no entry
	})
	request := fmt.Sprintf("Host: %s\r\nX-Api-Key: %s\r\nContent-Length: 13\r\n", ModelHost, h.token)
	const body = "\r\n{\"model\":\"m\"}"
	for name, begin := range map[string]func() *conn{
		"listener": func() *conn {
			m := h.box.dial("model")
			io.WriteString(m, "POST /v1/messages HTTP/1.1\r\n"+request+body)
			return &conn{m, bufio.NewReader(m)}
		},
		"absolute form": func() *conn {
			c := h.proxy()
			io.WriteString(c, "POST http://"+ModelHost+"/v1/messages HTTP/1.1\r\n"+request+auth(h.token)+body)
			return c
		},
		"tunnel": func() *conn {
			c := h.proxy()
			if resp, _ := c.ask(t, "CONNECT "+ModelHost+":80", auth(h.token)); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			io.WriteString(c, "POST /v1/messages HTTP/1.1\r\n"+request+body)
			return c
		},
	} {
		resp, text := begin().answer(t, "POST")
		if all := text + resp.Header.Get("X-Echo"); resp.StatusCode != 200 || !strings.Contains(text, "answered") || strings.Contains(all, realKey) || !strings.Contains(resp.Header.Get("X-Echo"), secret.Mask) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, all)
		}
		if key := <-keys; key != realKey {
			t.Errorf("%s: the provider saw %q", name, key)
		}
	}
	if resp, body := h.proxy().ask(t, "CONNECT "+ModelHost+":443", auth(h.token)); resp.StatusCode != 403 || !strings.Contains(body, "port 80") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	requests, usage := h.await(t, "three calls", func(requests []RequestRow, usage []UsageRow) bool { return len(usage) == 3 && len(requests) == 4 })
	for _, u := range usage {
		if u.ConversationID != h.spec.ConversationID || u.TenantID != h.box.spec.TenantID || u.InputTokens != 1 || u.OutputTokens != 2 || u.ModelRequested != "m" || u.ModelAnswered != "answered" {
			t.Errorf("usage %+v", u)
		}
	}
	for _, r := range requests { // in any order: a row is written when its answer is out
		if r.Method == http.MethodPost && (r.Decision != journal.Injected || r.Rule != journal.RuleGateway) {
			t.Errorf("row %+v", r)
		}
	}
	// The key is nowhere on disk.
	err := filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), realKey) || strings.Contains(string(text), h.token) {
			t.Errorf("%s holds a key", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAnEditedKeyIsUsedByTheNextRequest(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 2)
	model := serve(t, func(w http.ResponseWriter, r *http.Request) { keys <- r.Header.Get("X-Api-Key") })
	h := newHost(t, func(_ *Settings, _ *Machine, k *Token) { k.Model = modelCredential(model) })
	m := h.box.dial("model")
	c := &conn{m, bufio.NewReader(m)}
	for _, key := range []string{realKey, "sk-ant-rotated"} {
		k := h.spec
		cred := *h.spec.Model
		cred.Key = secret.New(key)
		k.Model = &cred
		if err := h.PutToken(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: %s\r\nX-Api-Key: %s\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}", ModelHost, h.token)
		c.answer(t, "POST")
		if got := <-keys; got != key {
			t.Errorf("the provider saw %q, want %q", got, key)
		}
	}
}

func TestTheServersAPIIsAnsweredInsideForItsKeysOnly(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "api.sock")
	gate := make(chan struct{})
	h := newHost(t, func(s *Settings, _ *Machine, _ *Token) { s.API = socket })
	ask := func(headers string) (*http.Response, string) {
		a := h.box.dial("api")
		fmt.Fprintf(a, "GET /api/me?x=1 HTTP/1.1\r\nHost: %s\r\n%s\r\n", APIHost, headers)
		return (&conn{a, bufio.NewReader(a)}).answer(t, "GET")
	}
	const key = "Authorization: Bearer mgt_key\r\n"
	if resp, body := ask(key); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "server_unavailable") {
		t.Errorf("while the server is away: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s machine=%s auth=%s cookie=%s xff=%s\n", r.Host, r.URL, r.Header.Values(MachineHeader), r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Header.Get("X-Forwarded-For"))
		http.NewResponseController(w).Flush()
		<-gate
	})}
	var wg sync.WaitGroup
	wg.Go(func() { api.Serve(l) })
	defer wg.Wait()
	defer api.Close()

	a := h.box.dial("api")
	// The machine says it is another one, and that the header is about this connection only.
	fmt.Fprintf(a, "GET /api/me?x=1 HTTP/1.1\r\nHost: other.example\r\n%sCookie: session=1\r\nX-Forwarded-For: 8.8.8.8\r\n%s: %s\r\nConnection: keep-alive, %s\r\n\r\n", key, MachineHeader, uuid.New(), MachineHeader)
	r := bufio.NewReader(a)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n') // it streams
	if want := fmt.Sprintf("%s /api/me?x=1 machine=[%s] auth=Bearer mgt_key cookie= xff=\n", APIHost, h.box.spec.ID); err != nil || line != want {
		t.Errorf("the server saw %q, want %q, %v", line, want, err)
	}
	close(gate)
	for _, headers := range []string{"", "Authorization: Bearer sk-other\r\n", "Authorization: Basic mgt_key\r\n", "Cookie: session=1\r\n", "X-Api-Key: mgt_key\r\n"} {
		if resp, body := ask(headers); resp.StatusCode != 401 || !strings.Contains(body, "api_key_required") {
			t.Errorf("%q: %d %s", headers, resp.StatusCode, body)
		}
	}
	if resp, _ := ask(key); resp.StatusCode != 200 {
		t.Errorf("got %d", resp.StatusCode)
	}
	h.await(t, "a row of each", func(rows []RequestRow, _ []UsageRow) bool {
		return len(rows) == 8 && !slices.ContainsFunc(rows, func(r RequestRow) bool { return r.Rule != journal.RuleAPI || r.Host != APIHost })
	})
}

func TestExplainSaysWhatTheProcessDecides(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(_ *Settings, _ *Machine, k *Token) {
		k.Policy = Policy{Type: rule.Limited, AllowedHosts: []string{"inside.test", "*.inside.test:22", "bad entry"}}
	})
	c := h.proxy()
	for _, target := range []string{"inside.test:443", "inside.test:22", "a.inside.test:22", "a.inside.test:443", "other.test:443", "bad.test:443"} {
		host, port, err := net.SplitHostPort(target)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		fmt.Sscan(port, &n)
		v := testSettings(t).Explain(h.spec.Policy, host, n)
		_, body := c.ask(t, "CONNECT "+target, auth(h.token))
		if refused := strings.Contains(body, "host_not_allowed") || strings.Contains(body, "port_not_allowed"); refused == v.Allowed || !v.Allowed && !strings.Contains(body, v.Reason[:10]) {
			t.Errorf("%s: explained %+v, answered %s", target, v, body)
		}
	}
	if v := Explain(Policy{Type: rule.Unrestricted}, "example.com", 25); v.Allowed || v.Rule != rule.RulePort {
		t.Errorf("%+v", v)
	}
}

func TestAKeyIsMaskedWhereverATokenIsPrinted(t *testing.T) {
	t.Parallel()
	k := Token{Model: &ModelCredential{Key: secret.New(realKey)}}
	if text := fmt.Sprintf("%v %+v %#v %s", k, k, *k.Model, k.Model.Key); strings.Contains(text, realKey) {
		t.Error(text)
	}
	a, hash := NewToken()
	b, _ := NewToken()
	if a == b || !strings.HasPrefix(a, TokenPrefix) || HashToken(a) != hash || len(a) < 40 {
		t.Errorf("tokens %q and %q", a, b)
	}
}
