package story

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"managoat/db/dbtest"
	"managoat/internal/client"
	"managoat/internal/testworld"
)

func TestMachinesAndSessionsOutliveTheirServerHoweverItEnds(t *testing.T) {
	t.Parallel()
	s, world := own(t)
	until(t, "the first start's link", func() bool { return strings.Contains(s.greeting.String(), s.url+"/setup?token=") })
	a := s.account(t)
	a.credential(world)
	w := a.workspace(a.environment(body{"setup_script": "date +%N > /home/sprite/built\n"}))
	id := a.launch(a.claude(nil), body{"workspace_id": w.ID}).ID
	turns := 0
	// turn has the agent say something, with the server away in the middle if away is given, and checks that the model
	// knows everything that was said before.
	turn := func(says string, away func(goOn func())) {
		t.Helper()
		turns++
		marker := "say it for the " + strconv.Itoa(turns) + ". time"
		gate := testworld.NewGate()
		defer gate.Open()
		world.Model.Script(marker, testworld.Reply{testworld.Say(says + " "), testworld.Wait(gate), testworld.Say("and so on.")})
		before := a.said(id)
		a.prompt(id, "Please "+marker)
		if away == nil {
			gate.Open()
		} else {
			until(t, "the first words", func() bool { return a.said(id) == before+says+" " })
			away(gate.Open)
		}
		a.completed(id, turns)
		if said := a.said(id); said != before+says+" and so on." {
			t.Errorf("turn %d: it said %q", turns, said)
		}
		calls := world.Model.Calls()
		last := slices.IndexFunc(calls, func(c testworld.ModelCall) bool { return c.Marker == marker })
		for n := range turns {
			if said := "say it for the " + strconv.Itoa(n+1) + ". time"; !bytes.Contains(calls[last].Body, []byte(said)) {
				t.Errorf("in turn %d the model does not know of %q", turns, said)
			}
		}
	}
	turn("one", nil)
	w = a.ready(w.ID)
	name := machine(*w.SandboxID)
	guest, err := s.firstProcess(name)
	if err != nil {
		t.Fatal(err)
	}
	built := a.file(w.ID, "built")
	// back starts the server again, and looks for everything.
	back := func() {
		t.Helper()
		began := time.Now()
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, http.DefaultClient, "GET", s.url+"/health", "", "", nil); got.status != http.StatusOK {
			t.Errorf("/health: %d %s", got.status, got.body)
		}
		t.Logf("a start on an existing directory answered after %d ms (aim: 2 s on a machine of its own)", time.Since(began).Milliseconds())
		if _, ok := s.greeting.Line("Make the first account"); ok {
			t.Errorf("a later start shows a link: %s", s.greeting)
		}
		a.moved()
		if now := get[Workspace](a, "/api/workspaces/"+w.ID); now.Status != "ready" || *now.SandboxID != *w.SandboxID {
			t.Fatalf("the workspace is %+v", now)
		}
	}
	sameMachine := func() {
		t.Helper()
		if pid, err := s.firstProcess(name); err != nil || pid != guest || !slices.Contains(running(name), strconv.Itoa(guest)) {
			t.Errorf("the machine's first process is %d, was %d: %v", pid, guest, err)
		}
	}

	// A second server on the directory.
	_, stderr, code := s.operator(t, "", "serve", "--listen", "127.0.0.1:0")
	if code != 1 || !strings.Contains(stderr, s.url) || !strings.Contains(stderr, "pid "+strconv.Itoa(s.cmd.Process.Pid)) || !strings.Contains(stderr, "managoat down") {
		t.Errorf("a second server: exit %d, %s", code, stderr)
	}

	// Told to end, between turns and in the middle of one.
	said := s.log.Len()
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if words := s.log.Since(said); !strings.Contains(words, "Machines keep running") || !strings.Contains(words, "managoat down --data "+s.dir) {
		t.Errorf("at its end the server said %q", words)
	}
	sameMachine()
	if pids, _ := filepath.Glob(filepath.Join(s.dir, "pg/data/postmaster.pid")); len(pids) != 0 {
		t.Error("its PostgreSQL still runs")
	}
	back()
	turn("two", nil)
	turn("three", func(goOn func()) {
		if err := s.stop(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		goOn()
		back()
	})
	sameMachine()

	// Killed, between turns and in the middle of one.
	if err := s.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	back()
	turn("four", nil)
	turn("five", func(goOn func()) {
		if err := s.stop(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		goOn()
		back()
	})
	sameMachine()

	// Killed while a command of the agent runs, which ends before the server is back: nothing of it is lost.
	turns++
	marker := "say it for the " + strconv.Itoa(turns) + ". time"
	world.Model.Script(marker,
		testworld.Reply{testworld.Call("Bash", testworld.Input{"command": "touch ~/begun; until test -e ~/go; do sleep 0.05; done; echo went on; touch ~/went; exit 3", "description": "wait"})},
		testworld.Reply{testworld.ToolSaid("went on"), testworld.Say("It went on.")})
	a.prompt(id, "Please "+marker)
	until(t, "the command to run", func() bool { return a.has(w.ID, "begun") })
	if err := s.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join("/proc", strconv.Itoa(guest), "root/home/sprite")
	if err := os.WriteFile(filepath.Join(home, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	until(t, "the command to end", func() bool { _, err := os.Stat(filepath.Join(home, "went")); return err == nil })
	back()
	a.completed(id, turns)
	results := a.rows(id, "tool_result")
	if r := results[len(results)-1].Body; len(results) != 1 || r.ExitCode == nil || *r.ExitCode != 3 || strings.TrimSpace(r.Output) != "went on" || r.Source.ExitCode != "machine" {
		t.Errorf("results of the command: %+v", results)
	}
	sameMachine()

	// PostgreSQL is killed under a turn, and the server goes on: first with one of its own, then, since it is killed itself and
	// leaves PostgreSQL running, with one that it found.
	for _, says := range []string{"five and a half", "five and more"} {
		turn(says, func(goOn func()) {
			was, err := s.postgreSQL()
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			goOn()
			until(t, "another PostgreSQL", func() bool {
				pid, err := s.postgreSQL()
				return err == nil && pid != was && ask(t, http.DefaultClient, "GET", s.url+"/health/ready", "", "", nil).status == http.StatusOK
			})
		})
		if err := s.stop(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		back()
	}
	sameMachine()

	// Killed as a service is, with everything that it started and that is in its group: PostgreSQL and the egress process
	// too, but no machine.
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.unit = newUnit(t)
	back()
	turn("six", nil)
	if err := s.unit.kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the service's processes to end", func() bool { return s.unit.members() == 0 })
	s.unit = nil
	back()
	turn("seven", nil)
	sameMachine()

	// Put down while it runs: the machine is parked, its disk is kept, and a prompt wakes it.
	if err := s.down(); err != nil {
		t.Fatal(err)
	}
	if left := running(name); len(left) > 0 {
		t.Errorf("processes of the machine are left: %v", left)
	}
	if err := s.leftovers(); err != nil {
		t.Error(err)
	}
	back()
	if now := get[Workspace](a, "/api/workspaces/"+w.ID); now.MachineStatus != "suspended" {
		t.Errorf("the machine is %s", now.MachineStatus)
	}
	if no := a.refused("GET", "/api/workspaces/"+w.ID+"/file?path=built", nil); no.Status != 409 || no.Code != "sandbox_not_ready" {
		t.Errorf("a read of a parked disk: %+v", no)
	}
	turn("eight", nil)
	if now := a.file(w.ID, "built"); now != built {
		t.Errorf("the disk was built at %q, now at %q", built, now)
	}

	// Put down without a server.
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if len(running(name)) == 0 {
		t.Error("the machine does not run without its server")
	}
	if err := s.down(); err != nil {
		t.Fatal(err)
	}
	if err := s.leftovers(); err != nil {
		t.Error(err)
	}
}

// With one connection and a PgBouncer between, which gives each transaction another one: a worse way to a database there
// is not.
func TestAServerWorksOnAPostgreSQLThatIsAlreadyThereBehindAPooler(t *testing.T) {
	t.Parallel()
	s, world := own(t, "MANAGOAT_DATABASE_URL="+dbtest.Empty(t), "MANAGOAT_DATABASE_POOLER="+dbtest.PgBouncer(t), "MANAGOAT_DATABASE_CONNECTIONS=1")
	a := s.account(t)
	a.credential(world)
	gate := testworld.NewGate()
	defer gate.Open()
	world.Model.Script("where are you", testworld.Reply{testworld.Say("Here"), testworld.Wait(gate), testworld.Say(".")})
	w := a.workspace(a.environment(body{"setup_script": "echo built > /home/sprite/built\n"}))
	id := a.launch(a.claude(nil), body{"workspace_id": w.ID, "prompt": "where are you?"}).ID
	var events []Event
	ended := make(chan error, 1)
	go func() { // which sees a word while the turn runs, and the rest
		ended <- a.Follow(t.Context(), "/api/conversations/"+id+"/stream", "", func(f client.Frame) error {
			if f.Event == client.Opened {
				return nil
			}
			var e Event
			if err := json.Unmarshal(f.Data, &e); err != nil {
				return err
			}
			events = append(events, e)
			if e.Type == "message" {
				gate.Open()
			}
			if e.Type == "stage" && e.Body.Stage == "turn" {
				return errSeen
			}
			return nil
		})
	}()
	a.completed(id, 1)
	if err := <-ended; !errors.Is(err, errSeen) {
		t.Errorf("the stream ended: %v", err)
	}
	sameRows(t, "the live stream", events, a.events(id, 500))
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	a.moved()
	if said, built := a.said(id), a.file(w.ID, "built"); said != "Here." || built != "built\n" {
		t.Errorf("after the start: said %q, built %q", said, built)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "pg")); err == nil {
		t.Error("it started a PostgreSQL of its own")
	}
}

// errSeen ends a stream of which a test has seen enough.
var errSeen = errors.New("seen")

func TestThreeServersThatStartAtOnceOnAnEmptyDatabaseAllComeUp(t *testing.T) {
	t.Parallel()
	common.open(t)
	key := make([]byte, 32)
	rand.Read(key)
	environ := []string{"MANAGOAT_DATABASE_URL=" + dbtest.Empty(t), "MANAGOAT_MASTER_KEY=" + hex.EncodeToString(key)}
	var servers []*Server
	var starting sync.WaitGroup
	for range 3 {
		dir, err := os.MkdirTemp(common.dir, "three")
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(filepath.Join(dir, "data"), environ...)
		servers = append(servers, s)
		t.Cleanup(func() {
			if err := errors.Join(s.down(), s.leftovers()); err != nil {
				t.Error(err)
			}
			os.RemoveAll(dir)
		})
		starting.Go(func() {
			if err := s.start(); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if t.Failed() {
		return
	}
	for _, s := range servers {
		until(t, "the first start's link", func() bool { return strings.Contains(s.greeting.String(), s.url+"/setup?token=") })
	}
	a := servers[0].account(t)
	for _, s := range servers {
		if got := ask(t, http.DefaultClient, "GET", s.url+"/health/ready", "", "", nil); got.status != http.StatusOK {
			t.Errorf("%s: %d %s", s.url, got.status, got.body)
		}
		a.server = s
		a.moved() // signs in there
	}
}

func TestVerbsSayWhatIsWrongAndExitByIt(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	a := s.account(t)
	nowhere := append(s.environ(), "XDG_CONFIG_HOME="+t.TempDir())
	with := func(env []string, more ...string) []string { return slices.Concat(env, more) }
	for name, c := range map[string]struct {
		env  []string
		args []string
		code int
		says string
	}{
		"no such verb":                           {nowhere, []string{"frobnicate"}, 2, "frobnicate"},
		"no such verb below another":             {nowhere, []string{"workspace", "frobnicate"}, 2, `workspace has no verb "frobnicate"`},
		"no server's address":                    {nowhere, []string{"login", "localhost:8080", "--key-stdin"}, 2, "http://"},
		"no server's address in the environment": {with(nowhere, "MANAGOAT_TOKEN=mgt_x", "MANAGOAT_BASE_URL=localhost:8080"), []string{"me"}, 2, "http://"},
		"an address that is taken":               {with(nowhere, "MANAGOAT_DATA="+t.TempDir()), []string{"serve", "--listen", strings.TrimPrefix(s.url, "http://")}, 1, "give another --listen"},
		"an owner without an address":            {nowhere, []string{"admin", "create-owner", "--email", "x", "--password-stdin"}, 1, "(validation_failed)"},
		"no such flag":                           {nowhere, []string{"serve", "--frobnicate"}, 2, "--frobnicate"},
		"a bad value":                            {with(nowhere, "MANAGOAT_RUNNING_MACHINES=many"), []string{"serve"}, 2, "MANAGOAT_RUNNING_MACHINES"},
		"not signed in":                          {nowhere, []string{"workspace", "list"}, 2, "managoat login"},
		"nobody there":                           {with(nowhere, "MANAGOAT_TOKEN=mgt_x", "MANAGOAT_BASE_URL=http://127.0.0.1:1"), []string{"workspace", "list"}, 3, "127.0.0.1:1"},
		"a wrong key":                            {with(nowhere, "MANAGOAT_TOKEN=mgt_x", "MANAGOAT_BASE_URL="+s.url), []string{"workspace", "list"}, 1, "api_key_invalid"},
		"no such environment":                    {a.environ(), []string{"workspace", "create", "x", "--environment", "none"}, 1, `no environment "none"`},
		"no such agent":                          {a.environ(), []string{"run", "none", "-p", "hello"}, 1, `no agent "none"`},
		"no prompt":                              {a.environ(), []string{"run", "none"}, 2, "-p"},
		"an owner without e-mail":                {nowhere, []string{"admin", "create-owner", "--password-stdin"}, 2, "--email"},
		"an owner that is there":                 {nowhere, []string{"admin", "create-owner", "--email", a.Email, "--password-stdin"}, 1, a.Email},
		"nothing to put down":                    {with(nowhere, "MANAGOAT_DATA="+t.TempDir()), []string{"down"}, 1, "no Managoat in"},
	} {
		stdout, stderr, code := run(t, c.env, "a long enough password\n", c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) || stdout != "" || strings.Contains(stderr, "goroutine ") {
			t.Errorf("%s: exit %d, want %d and %q; said %q, printed %q", name, code, c.code, c.says, stderr, stdout)
		}
	}
	if stdout, stderr, code := s.operator(t, "", "doctor"); code != 0 || !strings.Contains(stdout, "✓") {
		t.Errorf("doctor: exit %d\n%s%s", code, stdout, stderr)
	}
}
