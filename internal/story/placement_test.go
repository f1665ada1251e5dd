package story

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"managoat/db/dbtest"
	"managoat/internal/testworld"
	"managoat/sandbox/sandboxtest"
)

// hostRow is a host as `managoat host … --json` shows it.
type hostRow struct {
	ID, Name, URL, Version string
	Providers              []string
	SeenAt                 time.Time `json:"seen_at"`
	Away, Capped, Drained  bool
	Places                 int
	MemoryBytes            int64      `json:"memory_bytes"`
	CPUs                   int        `json:"cpus"`
	Running                int        `json:"machines_running"`
	Parked                 int        `json:"machines_parked"`
	DrainingSince          *time.Time `json:"draining_since"`
}

// hosts runs a verb of `managoat host` with the settings of a server, and reads the JSON it prints.
func hosts[T any](tb testing.TB, s *Server, args ...string) (out T) {
	tb.Helper()
	stdout, stderr, code := s.operator(tb, "", append(append([]string{"host"}, args...), "--json")...)
	if code != 0 {
		tb.Fatalf("host %s: %d %s", strings.Join(args, " "), code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		tb.Fatalf("host %s: %v\n%s", strings.Join(args, " "), err, stdout)
	}
	return out
}

// host is a server's host as another server's operator sees it.
func (s *Server) host(tb testing.TB, asked *Server) hostRow {
	tb.Helper()
	id := s.hostID(tb)
	for _, h := range hosts[[]hostRow](tb, asked, "list") {
		if h.ID == id {
			return h
		}
	}
	return hostRow{}
}

// Two servers on one database: a machine is made where there is the most room, a drained host takes none, parks what it has
// as its turns end and is obeyed after a restart, and a host that is gone for good is given up with its machines.
func TestMachinesAreMadeWhereThereIsRoomAndAHostCanBeTakenOutOfService(t *testing.T) {
	t.Parallel()
	database := "MANAGOAT_DATABASE_URL=" + dbtest.Empty(t)
	small, world := own(t, database, "MANAGOAT_HOST_MACHINES=3")
	a := small.account(t)
	a.credential(world)
	env := a.environment(body{"setup_script": "echo built > /home/sprite/built\n"})
	large := beside(t, small, world, database, "MANAGOAT_HOST_MACHINES=4")
	b := a.at(large)
	on := func(s *Server, w Workspace) bool {
		return strings.Contains(strings.Join(s.machines(t), " "), machine(*w.SandboxID))
	}

	// Whoever is asked: on the large host there is more room, then on both as much.
	first := a.ready(a.workspace(env).ID)
	second := a.ready(a.workspace(env).ID)
	if !on(large, first) || !on(small, second) {
		t.Fatalf("the first of two is on %v, the second on %v", large.machines(t), small.machines(t))
	}
	if h := large.host(t, small); h.Name == "" || h.URL != large.url || h.Version == "" || strings.Join(h.Providers, " ") != sandboxtest.Name() || h.Away || !h.Capped ||
		h.Places != 4 || h.MemoryBytes == 0 || h.CPUs == 0 || h.Running != 1 || h.Parked != 0 || h.DrainingSince != nil || h.Drained || time.Since(h.SeenAt) > time.Minute {
		t.Errorf("the large host: %+v", h)
	}

	// It is drained while a turn runs there, asked by the other server's operator.
	gate := testworld.NewGate()
	defer gate.Open()
	world.Model.Script("work until the end", testworld.Reply{testworld.Say("To the "), testworld.Wait(gate), testworld.Say("end.")})
	world.Model.Script("work again", testworld.Reply{testworld.Say("Again.")})
	world.Model.Script("work for ever", testworld.Reply{testworld.Say("For "), testworld.Wait(testworld.NewGate())})
	world.Model.Script("work elsewhere", testworld.Reply{testworld.Say("Elsewhere.")})
	id := a.launch(a.claude(nil), body{"workspace_id": first.ID, "prompt": "Please work until the end."}).ID
	until(t, "the turn to be at work", func() bool { return a.said(id) == "To the " })
	if h := hosts[hostRow](t, small, "drain", large.hostID(t)); h.DrainingSince == nil || h.Drained || h.Running != 1 {
		t.Errorf("as it is drained: %+v", h)
	}
	third := b.ready(b.workspace(env).ID)
	if !on(small, third) {
		t.Error("a drained host got a machine")
	}
	drained := func(method, path string, in any) {
		t.Helper()
		if no := b.refused(method, path, in); no.Status != 503 || no.Code != "host_draining" || !strings.Contains(no.Message, "rebuild the workspace") {
			t.Errorf("%s: %+v", path, no)
		}
	}
	prompts, again := "/api/conversations/"+id+"/prompts", body{"prompt": "Please work again.", "queue": true}
	drained("POST", prompts, again)
	gate.Open()
	b.completed(id, 1)
	ended := time.Now()
	until(t, "the host to be drained", func() bool { return large.host(t, small).Drained })
	if took := time.Since(ended); took > 30*time.Second {
		t.Errorf("it was drained %s after its last turn", took)
	}
	now := get[struct {
		MachineStatus string `json:"machine_status"`
		WaitingReason string `json:"waiting_reason"`
	}](a, "/api/workspaces/"+first.ID)
	if now.MachineStatus != "suspended" || !strings.Contains(now.WaitingReason, "out of service") {
		t.Errorf("its machine: %+v", now)
	}

	// Its server starts again, and leaves it drained.
	if err := large.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if h := large.host(t, small); !h.Away || !h.Drained || h.Parked != 1 {
		t.Errorf("with its server stopped: %+v", h)
	}
	if err := large.start(); err != nil {
		t.Fatal(err)
	}
	b = a.at(large)
	drained("POST", prompts, again)
	drained("POST", "/api/workspaces/"+first.ID+"/wake", nil)
	if said, _, code := small.operator(t, "", "host", "list"); code != 0 || !strings.Contains(said, "drained") || !strings.Contains(said, "4 at most   0 running, 1 parked") {
		t.Errorf("the list: %d\n%s", code, said)
	}
	fourth := b.ready(b.workspace(env).ID)
	if no := b.refused("POST", "/api/workspaces", body{"name": "one too many", "environment_id": env}); no.Status != 503 || no.Code != "no_host_available" {
		t.Errorf("with one host full and the other drained: %+v", no)
	}
	if h := hosts[hostRow](t, large, "drain", large.hostID(t), "--undo"); h.DrainingSince != nil || h.Drained {
		t.Errorf("as it is taken back: %+v", h)
	}
	b.prompt(id, "Please work again.")
	b.completed(id, 2)

	// What is refused: a verb on a host that is not there, giving up one that lives, and doing so without a word.
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"drain", "nowhere"}, 1, "There is no host"},
		{[]string{"drain"}, 2, "Usage"},
		{[]string{"forget", large.hostID(t)}, 2, "--yes"},
		{[]string{"forget", large.hostID(t), "--yes"}, 1, "drain it"},
	} {
		if _, said, code := small.operator(t, "", append([]string{"host"}, c.args...)...); code != c.code || !strings.Contains(said, c.says) {
			t.Errorf("host %v: %d %s", c.args, code, said)
		}
	}

	// A rebuild moves to the freer host, and the machine of before goes soon.
	b.do("DELETE", "/api/workspaces/"+third.ID, nil)
	b.do("DELETE", "/api/workspaces/"+fourth.ID, nil)
	until(t, "what was deleted to be gone", func() bool { return len(small.machines(t)) == 1 })
	hosts[hostRow](t, small, "drain", small.hostID(t))
	until(t, "the small host to be drained", func() bool { return small.host(t, small).Drained })
	moving := time.Now()
	a.do("POST", "/api/workspaces/"+second.ID+"/rebuild", nil)
	if moved := a.ready(second.ID); !on(large, moved) {
		t.Errorf("the rebuilt machine is on %v", small.machines(t))
	}
	until(t, "the machine of before to go", func() bool { return len(small.machines(t)) == 0 })
	if took := time.Since(moving); took > 40*time.Second { // a look for what nobody needs is made each minute
		t.Errorf("the machine of before went after %s", took)
	}
	hosts[hostRow](t, small, "drain", small.hostID(t), "--undo")

	// It dies with a turn at work: no machine is made there, and after a while it can be given up.
	b.prompt(id, "Please work for ever.")
	until(t, "the turn to be at work", func() bool { return strings.HasSuffix(a.said(id), "For ") })
	if err := large.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), strings.TrimPrefix(database, "MANAGOAT_DATABASE_URL="))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	silent := func(since string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), "update hosts set seen_at = now() - $2::interval where id = $1", large.hostID(t), since); err != nil {
			t.Fatal(err)
		}
	}
	silent("1 minute")
	if made := a.ready(a.workspace(env).ID); !on(small, made) {
		t.Error("a machine was made on a host that is away")
	}
	if _, said, code := small.operator(t, "", "host", "forget", large.hostID(t), "--yes"); code != 1 || !strings.Contains(said, "10 minutes") {
		t.Errorf("a host that was there a minute ago: %d %s", code, said)
	}
	if said, _, _ := small.operator(t, "", "host", "list"); !strings.Contains(said, "away: its machines wait for it") {
		t.Errorf("the list does not say whose machines wait:\n%s", said)
	}
	silent("11 minutes")
	hosts[hostRow](t, small, "forget", large.hostID(t), "--yes")
	until(t, "the host to be forgotten", func() bool { return large.host(t, small).ID == "" })
	if turn := a.ended(id, 3); turn.Status != "interrupted" {
		t.Errorf("the turn that was at work there: %+v", turn)
	}
	a.prompt(id, "Please work elsewhere.")
	a.completed(id, 4)
	if w := a.ready(first.ID); !on(small, w) || *w.SandboxID == *first.SandboxID {
		t.Errorf("after all its machine is %s on %v", *w.SandboxID, small.machines(t))
	}
	if said := a.said(id); said != "To the end.Again.For Elsewhere." {
		t.Errorf("it said %q", said)
	}

	// It comes back after all, as a new host, and what it had that has another in its place is removed.
	if err := large.start(); err != nil {
		t.Fatal(err)
	}
	if h := large.host(t, small); h.Away || h.DrainingSince != nil || h.Running != 0 {
		t.Errorf("the host that is back: %+v", h)
	}
}
