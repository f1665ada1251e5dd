package story

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"managoat/db/dbtest"
	"managoat/internal/client"
	"managoat/internal/peer"
	"managoat/internal/secret"
	"managoat/internal/testworld"
	"managoat/sandbox/sandboxtest"
)

// beside starts another server of the instance of one that own has started on a database that was there, in the same world.
func beside(tb testing.TB, first *Server, world *testworld.World, environ ...string) *Server {
	tb.Helper()
	dir, err := os.MkdirTemp(common.dir, "beside")
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	s := newServer(filepath.Join(dir, "data"), append(world.Environ(), environ...)...)
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "master.key"), must(os.ReadFile(filepath.Join(first.dir, "master.key"))), 0o600); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(s.down(), s.leftovers()); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("the other server:\n%s", s.log.Notable(0))
		}
		os.RemoveAll(dir)
	})
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
	return s
}

// at is the account as another server of the instance serves it.
func (a *Account) at(s *Server) *Account {
	other := *a
	other.server, other.Client = s, &client.Client{Base: s.url, Key: a.Key}
	return &other
}

// machines are the machines on a server's host.
func (s *Server) machines(tb testing.TB) []string {
	tb.Helper()
	host := ""
	if contained() { // servers share the engine
		host = s.hostID(tb)
	}
	names, err := sandboxtest.Machines(tb.Context(), s.place(), host)
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

func (s *Server) hostID(tb testing.TB) string {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join(s.dir, "host-id"))
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// Two servers on one database, each with its own host: whichever is asked, the server of a machine's host does it, and when
// that one is away nothing is concluded from it.
func TestWhateverServerIsAskedTheOneOfTheMachinesHostDoesIt(t *testing.T) {
	t.Parallel()
	database := dbtest.Empty(t)
	environ := "MANAGOAT_DATABASE_URL=" + database
	far, world := own(t, environ)
	a := far.account(t)
	a.credential(world)
	env := a.environment(body{"setup_script": "echo built > /home/sprite/built\n"})
	w := a.ready(a.workspace(env).ID)
	name := machine(*w.SandboxID)
	near := beside(t, far, world, environ)
	b := a.at(near)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())

	// What only looks.
	if got := b.file(w.ID, "built"); got != "built\n" {
		t.Errorf("its file: %q", got)
	}
	type used struct {
		Use *struct {
			MemoryBytes int64   `json:"memory_bytes"`
			CPUSeconds  float64 `json:"cpu_seconds"`
			DiskBytes   int64   `json:"disk_bytes"`
			DiskLimit   int64   `json:"disk_limit_bytes"`
		}
		WaitingReason string `json:"waiting_reason"`
	}
	if got := get[used](b, "/api/workspaces/"+w.ID).Use; got == nil || got.MemoryBytes == 0 || got.CPUSeconds == 0 || got.DiskBytes == 0 || got.DiskLimit == 0 {
		t.Errorf("what it uses: %+v", got)
	}
	page := b.session()
	for path, want := range map[string]string{"": "memory", "/files?path=/home/sprite": "built"} {
		if got := ask(t, page, "GET", near.url+"/workspaces/"+w.ID+path, "", "", nil); got.status != http.StatusOK || !strings.Contains(string(got.body), want) {
			t.Errorf("the page %s: %d, without %q", path, got.status, want)
		}
	}

	// A conversation, live and interrupted.
	gate := testworld.NewGate()
	defer gate.Open()
	world.Model.Script("speak from afar", testworld.Reply{testworld.Say("One "), testworld.Wait(gate), testworld.Say("and two.")})
	world.Model.Script("speak for ever", testworld.Reply{testworld.Say("Well, "), testworld.Wait(testworld.NewGate())})
	world.Model.Script("speak again", testworld.Reply{testworld.Say("Again.")})
	world.Model.Script("speak later", testworld.Reply{testworld.Say("Later.")})
	id := b.launch(b.claude(nil), body{"workspace_id": w.ID}).ID
	var mu sync.Mutex
	var live strings.Builder
	var following sync.WaitGroup
	following.Go(func() {
		_ = b.Follow(t.Context(), "/api/conversations/"+id+"/stream", "", func(f client.Frame) error {
			mu.Lock()
			defer mu.Unlock()
			live.Write(f.Data)
			return nil
		})
	})
	heard := func(text string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(live.String(), text)
		}
	}
	b.prompt(id, "Please speak from afar.")
	until(t, "the first words", heard("One "))
	gate.Open()
	b.completed(id, 1)
	until(t, "the last words", heard("and two."))
	b.prompt(id, "Please speak for ever.")
	until(t, "words without end", heard("Well, "))
	asked := time.Now()
	b.do("POST", "/api/conversations/"+id+"/interrupt", nil)
	if turn := b.ended(id, 2); turn.Status != "interrupted" || turn.EndedAt.Sub(asked) > 3*time.Second {
		t.Errorf("it was interrupted after %s, and is %s", turn.EndedAt.Sub(asked), turn.Status)
	}
	b.prompt(id, "Please speak again.")
	b.completed(id, 3)
	if on := near.machines(t); len(on) > 0 {
		t.Fatalf("the near host has machines: %v", on)
	}

	// New ones, asked of both at once, are made once each.
	var made [6]Workspace
	for i := range made {
		made[i] = []*Account{a, b}[i%2].workspace(env)
	}
	for _, m := range made {
		m = b.ready(m.ID)
		on := strings.Join(append(far.machines(t), near.machines(t)...), " ")
		if strings.Count(on, machine(*m.SandboxID)) != 1 {
			t.Errorf("the machine %s is not once among %s", *m.SandboxID, on)
		}
	}
	if n := len(far.machines(t)) + len(near.machines(t)); n != 1+len(made) {
		t.Errorf("%d machines of %d workspaces", n, 1+len(made))
	}
	for _, m := range made { // whose machine is on either host
		b.do("DELETE", "/api/workspaces/"+m.ID, nil)
	}
	until(t, "what was deleted to be gone", func() bool { return len(far.machines(t))+len(near.machines(t)) == 1 })

	strangers(t, near, far, a, *w.SandboxID)

	// The far server hangs: whoever asks waits for it a little, and not at all once its host is away.
	silent := func() {
		t.Helper()
		if _, err := conn.Exec(t.Context(), "update hosts set seen_at = now() - interval '1 minute' where id = $1", far.hostID(t)); err != nil {
			t.Fatal(err)
		}
	}
	unreachable := func() {
		t.Helper()
		got := ask(t, http.DefaultClient, "GET", near.url+"/api/workspaces/"+w.ID+"/files", a.Key, "", nil)
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || !strings.Contains(string(got.body), `"machine_host_unreachable"`) {
			t.Errorf("a read: %d %v %s", got.status, got.header, got.body)
		}
	}
	b.file(w.ID, "built") // a connection stands
	if err := far.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	asked = time.Now()
	if got := get[used](b, "/api/workspaces/"+w.ID); got.Use != nil {
		t.Errorf("a server that hangs says what a machine uses: %+v", got)
	}
	silent()
	unreachable()
	if took := time.Since(asked); took > 20*time.Second {
		t.Errorf("a server that hangs was waited for %s", took)
	}
	if err := far.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the far server to say that it lives", func() bool {
		return ask(t, http.DefaultClient, "GET", near.url+"/api/workspaces/"+w.ID+"/files", a.Key, "", nil).status == http.StatusOK
	})

	// It is killed.
	if err := far.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	unreachable() // it does not answer
	silent()
	unreachable() // and has not said anything for long
	b.prompt(id, "Please speak later.")
	until(t, "the turn to say what it waits for", func() bool {
		turn := b.turn(id, 4)
		return turn.Status == "pending" && turn.WaitingFor != nil && turn.WaitingFor.Reason == "host"
	})
	if got := get[used](b, "/api/workspaces/"+w.ID); !strings.Contains(got.WaitingReason, "is away") || got.Use != nil {
		t.Errorf("the workspace says %+v", got)
	}
	if got := ask(t, page, "GET", near.url+"/workspaces/"+w.ID, "", "", nil); !strings.Contains(string(got.body), "whose host runs the machine is away") {
		t.Error("its page does not say so")
	}
	if now := get[Workspace](b, "/api/workspaces/"+w.ID); now.Status != "ready" || now.MachineStatus != "ready" || *now.SandboxID != *w.SandboxID {
		t.Errorf("meanwhile it is %+v", now)
	}

	// It comes back.
	if err := far.start(); err != nil {
		t.Fatal(err)
	}
	b.completed(id, 4)
	if said, built := b.said(id), b.file(w.ID, "built"); said != "One and two.Well, Again.Later." || built != "built\n" {
		t.Errorf("after all it said %q, and its file is %q", said, built)
	}
	if on := far.machines(t); len(on) != 1 || on[0] != name {
		t.Errorf("the far host has %v", on)
	}

	// Parked, and woken from here.
	if err := far.down(); err != nil {
		t.Fatal(err)
	}
	if err := far.start(); err != nil {
		t.Fatal(err)
	}
	if now := get[Workspace](b, "/api/workspaces/"+w.ID); now.MachineStatus != "suspended" {
		t.Errorf("it is %+v", now)
	}
	b.do("POST", "/api/workspaces/"+w.ID+"/wake", nil)
	until(t, "the machine to be up", func() bool { return get[Workspace](b, "/api/workspaces/"+w.ID).MachineStatus == "ready" })
	b.do("DELETE", "/api/workspaces/"+w.ID, nil)
	until(t, "its machine to be gone", func() bool { return len(far.machines(t)) == 0 })
	b.do("POST", "/api/conversations/"+id+"/terminate", nil)
	following.Wait()
}

// strangers call the internal routes of a server in every way but the right one, and learn nothing.
func strangers(t *testing.T, near, far *Server, a *Account, machineID string) {
	t.Helper()
	me := get[struct {
		AccountID string `json:"account_id"`
	}](a, "/api/auth/me")
	path := func(account, id string) string { return "/internal/accounts/" + account + "/machines/" + id + "/use" }
	right := path(me.AccountID, machineID)
	from, to := uuid.MustParse(near.hostID(t)), uuid.MustParse(far.hostID(t))
	key, now := peer.NewKey(must(secret.MasterKeyFile(filepath.Join(far.dir, "master.key")))), time.Now()
	call := func(path, authorization string) answer {
		t.Helper()
		req, err := http.NewRequest("GET", far.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return answer{status: res.StatusCode, header: res.Header}
	}
	for _, apart := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} { // the clocks of the two
		if got := call(right, key.Sign("GET", right, from, to, now.Add(apart))); got.status != http.StatusOK {
			t.Errorf("a server whose clock is %s apart: %d", apart, got.status)
		}
	}
	for who, authorization := range map[string]string{
		"nobody":                "",
		"a person's key":        "Bearer " + a.Key,
		"another instance":      peer.NewKey([]byte("another")).Sign("GET", right, from, to, now),
		"an old signature":      key.Sign("GET", right, from, to, now.Add(-time.Hour)),
		"one of tomorrow":       key.Sign("GET", right, from, to, now.Add(24*time.Hour)),
		"one for another path":  key.Sign("GET", path(me.AccountID, uuid.NewString()), from, to, now),
		"one for a query":       key.Sign("GET", right+"?x=y", from, to, now),
		"one to change things":  key.Sign("POST", right, from, to, now),
		"one for the other way": key.Sign("GET", right, to, from, now),
		"half of one":           strings.TrimRight(key.Sign("GET", right, from, to, now), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"),
		"one without end":       key.Sign("GET", right, from, to, now) + strings.Repeat("A", 8<<10),
		"one that is no number": "Managoat-Server a.b.c",
	} {
		if got := call(right, authorization); got.status != http.StatusUnauthorized {
			t.Errorf("%s: %d", who, got.status)
		}
	}
	// Not even whether there is such a machine.
	session := a.session()
	for _, path := range []string{right, path(me.AccountID, uuid.NewString()), path("x", "y"), strings.Replace(right, "/use", "/guest", 1)} {
		got := ask(t, session, "GET", far.url+path, "", "", nil)
		if got.status != http.StatusUnauthorized || strings.Contains(string(got.body), machineID) {
			t.Errorf("a signed-in person at %s: %d %s", path, got.status, got.body)
		}
	}
	if got := ask(t, http.DefaultClient, "GET", far.url+"/api/openapi.json", a.Key, "", nil); strings.Contains(string(got.body), "/internal/") {
		t.Error("the document shows the internal routes")
	}
}
