package story

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"managoat/internal/client"
	"managoat/internal/testworld"
)

func TestAStreamThatBreaksAgainAndAgainLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	a.credential(world)
	repo := world.Git.Add("cuts", testworld.Shop)
	story := strings.SplitAfter("Every word of this tale is a chunk of its own, and some fall together when they come at once. ", " ")
	for len(story) < 150 {
		story = append(story, story...)
	}
	world.Model.Script("mend it while the line breaks", testworld.RepairShop(shop)...)
	world.Model.Script("tell a tale", testworld.Reply{testworld.SayPaced(5*time.Millisecond, story...)})
	w := a.workspace(a.environment(body{"repositories": []body{{"url": repo.URL, "mount_path": shop}}}))
	id := a.launch(a.claude(nil), body{"workspace_id": w.ID, "cwd": shop, "prompt": "Please mend it while the line breaks."}).ID

	// Connections break after more and more bytes: in headers, in frames, between them.
	size := int64(300)
	broken := newProxy(t, s, func() int64 { size += 431; return size % 9000 })
	follower := &client.Client{Base: broken.url, Key: a.Key, HTTP: oneEach()}
	var mu sync.Mutex
	var got []Event
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- follower.Follow(ctx, "/api/conversations/"+id+"/stream", "", func(f client.Frame) error {
			if f.Event == client.Opened {
				return nil
			}
			var e Event
			if err := json.Unmarshal(f.Data, &e); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e)
			return nil
		})
	}()
	a.completed(id, 1)
	a.prompt(id, "Now tell a tale.")
	a.completed(id, 2)
	a.do("POST", "/api/conversations/"+id+"/terminate", nil)
	select {
	case err := <-ended: // the stream says that it is over
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the stream of an ended conversation goes on")
	}
	mu.Lock()
	defer mu.Unlock()
	sameRows(t, "the broken stream", got, a.events(id, 500))
	if n := broken.broken(); n < 10 {
		t.Errorf("the line broke %d times only", n)
	}
	if tale := a.said(id); !strings.HasSuffix(tale, strings.Join(story, "")) {
		t.Errorf("the tale: %q", tale)
	}
	checkRepair(t, a, id, 1)
}

func TestConversationsWaitForTheirWorkspaceAndThenRunSideBySide(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	a.credential(world)
	repo := world.Git.Add("sides", testworld.Shop)
	gate := testworld.NewGate()
	defer gate.Open()
	world.Model.Script("the slow one of two", testworld.Reply{testworld.Say("Slowly "), testworld.Wait(gate), testworld.Say("but surely.")})
	write := func(name string) []testworld.Reply {
		return []testworld.Reply{
			{testworld.Call("Bash", testworld.Input{"command": "echo " + name + " | tee /home/sprite/" + name + "; pwd; echo $MANAGOAT_CONVERSATION_ID", "description": "leave a mark"})},
			{testworld.ToolSaid(name), testworld.Say(name + " is done.")},
		}
	}
	world.Model.Script("the quick one of two", write("quick")...)
	env := a.environment(body{"repositories": []body{{"url": repo.URL, "mount_path": shop}}, "setup_script": "echo waiting\n" + waitForBranch("go")})
	w := a.workspace(env)
	agent := a.claude(nil)
	slow := a.launch(agent, body{"workspace_id": w.ID, "prompt": "You are the slow one of two."}).ID
	quick := a.launch(agent, body{"workspace_id": w.ID, "cwd": shop, "prompt": "You are the quick one of two."}).ID
	for _, id := range []string{slow, quick} {
		until(t, "the turn to wait for the setup", func() bool {
			f := a.turn(id, 1).WaitingFor
			return f != nil && f.Reason == "setup" && f.Detail == "setup_script"
		})
	}
	repo.Commit("go", "Go on", nil)
	select {
	case <-gate.Reached():
	case <-time.After(patience):
		t.Fatal("the slow one did not begin")
	}
	// While one is in the middle of its answer, the other one works to its end.
	a.completed(quick, 1)
	if now := a.turn(slow, 1); now.Status != "running" {
		t.Errorf("meanwhile the slow one is %s", now.Status)
	}
	if no := a.refused("POST", "/api/conversations/"+slow+"/prompts", body{"prompt": "More."}); no.Status != 400 || no.Code != "conversation_busy" {
		t.Errorf("a prompt to a busy conversation: %+v", no)
	}
	until(t, "the slow one's first words", func() bool { return a.said(slow) == "Slowly " })
	gate.Open()
	a.completed(slow, 1)
	if said := a.said(slow); said != "Slowly but surely." {
		t.Errorf("the slow one said %q", said)
	}
	if said := a.said(quick); said != "quick is done." {
		t.Errorf("the quick one said %q", said)
	}
	results := a.rows(quick, "tool_result")
	if len(results) != 1 || strings.TrimSpace(results[0].Body.Output) != "quick\n"+shop+"\n"+quick {
		t.Errorf("the quick one's command: %+v", results)
	}
	if got := a.file(w.ID, "quick"); got != "quick\n" {
		t.Errorf("its file: %q", got)
	}
	for id, other := range map[string]string{slow: quick, quick: slow} {
		for _, e := range a.events(id, 500) {
			if strings.Contains(e.raw, other) {
				t.Errorf("a row of %s in the transcript of %s: %s", other, id, e.raw)
			}
		}
	}
	list := get[[]Conversation](a, "/api/conversations?workspace_id="+w.ID)
	if len(list) != 2 || list[0].Status != "idle" || list[1].Status != "idle" {
		t.Errorf("the list: %+v", list)
	}
}

func TestAConversationWithoutAWorkspaceBuildsOneOfItsOwnInItsTranscript(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	a.credential(world)
	world.Model.Script("greet from your own machine", testworld.Reply{testworld.Say("Hello from here.")})
	env := a.environment(body{"name": "small", "packages": body{"apt": []string{testworld.HelloPackage.Name}}, "setup_script": "managoat-hello\necho set up"})
	a.claude(body{"name": "loner", "environment_id": env})
	stdout, stderr, code := a.cli("run", "loner", "-p", "Please greet from your own machine.")
	if code != 0 || !strings.Contains(stdout, "Hello from here.\n") {
		t.Fatalf("run: exit %d\n%s%s", code, stdout, stderr)
	}
	for _, once := range []string{"◐ machine\n", "◐ setup_script\nhello from a Debian package\nset up\n✓ setup_script\n"} {
		if strings.Count(stdout, once) != 1 {
			t.Errorf("run does not say %q once:\n%s", once, stdout)
		}
	}
	c := get[[]Conversation](a, "/api/conversations")[0]
	if stdout, _, code := a.cli("run", "loner", "--conversation", c.ID, "-p", "Please greet from your own machine once more."); code != 0 || strings.Contains(stdout, "machine\n") {
		t.Errorf("the next turn shows the setup again: exit %d\n%s", code, stdout)
	}
	var lines []string
	seen := map[string]string{}
	for _, e := range a.rows(c.ID, "stage") {
		seen[e.Body.Stage] += e.Body.State + " "
		if e.Body.Stage == "setup_script" {
			lines = append(lines, e.Body.Detail.Lines...)
		}
	}
	for _, step := range setupSteps {
		if !strings.HasPrefix(seen[step], "started ") || !strings.HasSuffix(seen[step], "done ") {
			t.Errorf("the step %s went %q", step, seen[step])
		}
	}
	if got := strings.Join(lines, ""); got != "hello from a Debian package\nset up\n" {
		t.Errorf("the script's lines: %q", got)
	}
	if list := get[[]Workspace](a, "/api/workspaces"); len(list) != 0 {
		t.Errorf("the list shows %+v", list)
	}
	list := get[[]Workspace](a, "/api/workspaces?implicit=true")
	if len(list) != 1 || !list[0].Implicit || list[0].ID != c.WorkspaceID {
		t.Fatalf("with implicit ones it shows %+v", list)
	}
	if no := a.refused("POST", "/api/workspaces/"+c.WorkspaceID+"/retry", nil); no.Status != 422 || no.Code != "implicit_workspace" {
		t.Errorf("a retry of it: %+v", no)
	}
	name := machine(*list[0].SandboxID)
	if !s.kept(t, name) {
		t.Fatal("its machine is not where the test would look for what is left of it")
	}
	a.do("DELETE", "/api/conversations/"+c.ID, nil)
	if !a.gone("/api/conversations/" + c.ID) {
		t.Error("a deleted conversation is still shown")
	}
	until(t, "its machine to be gone", func() bool { return !s.kept(t, name) })
}

func TestTurnsAreInterruptedWhereverTheyAreAndConversationsEnd(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	a.credential(world)
	gate := testworld.NewGate()
	defer gate.Open()
	world.Model.Script("sleep until you are stopped", testworld.Reply{testworld.Call("Bash", testworld.Input{"command": "echo begun | tee /home/sprite/begun; sleep 98765", "description": "sleep"})})
	world.Model.Script("talk until you are stopped", testworld.Reply{testworld.Say("I talk "), testworld.Wait(gate), testworld.Say("and talk.")})
	world.Model.Script("are you still there", testworld.Reply{testworld.Say("I am.")})
	w := a.workspace(a.environment(nil))
	id := a.launch(a.claude(nil), body{"workspace_id": w.ID}).ID
	if no := a.refused("POST", "/api/conversations/"+id+"/interrupt", nil); no.Status != 409 || no.Code != "no_turn_running" {
		t.Errorf("an interrupt of nothing: %+v", no)
	}

	// In the middle of a command.
	a.prompt(id, "Please sleep until you are stopped.")
	a.ready(w.ID)
	until(t, "the command to run", func() bool { return a.has(w.ID, "begun") })
	a.do("POST", "/api/conversations/"+id+"/interrupt", nil)
	if got := a.ended(id, 1); got.Status != "interrupted" {
		t.Errorf("the turn is %+v", got)
	}
	results := a.rows(id, "tool_result")
	if len(results) != 1 || results[0].Body.Status != "interrupted" {
		t.Errorf("the command: %+v", results)
	}
	until(t, "the command's process to be gone", func() bool {
		left := false
		processes(func(_ string, read func(string) []byte) {
			left = left || bytes.Contains(read("cmdline"), []byte("98765"))
		})
		return !left
	})

	// In the middle of a sentence.
	a.prompt(id, "Please talk until you are stopped.")
	until(t, "the first words", func() bool { return a.said(id) == "I talk " })
	a.do("POST", "/api/conversations/"+id+"/interrupt", nil)
	if got := a.ended(id, 2); got.Status != "interrupted" || a.said(id) != "I talk " {
		t.Errorf("the turn is %+v, and the agent said %q", got, a.said(id))
	}

	// The session is unharmed.
	a.prompt(id, "Are you still there? (are you still there)")
	a.completed(id, 3)
	if said := a.said(id); said != "I talk I am." {
		t.Errorf("the agent said %q", said)
	}

	// The end of a conversation ends its adapter and its home, and nothing else.
	adapters := func() (n int) {
		processes(func(_ string, read func(string) []byte) {
			if bytes.Contains(read("environ"), []byte("/.managoat/c/"+id)) {
				n++
			}
		})
		return n
	}
	if adapters() == 0 {
		t.Error("the adapter is not where the test looks for it")
	}
	home := "/api/workspaces/" + w.ID + "/files?path=.managoat/c/" + id
	if a.gone(home) {
		t.Error("the config home is not where the test looks for it")
	}
	a.do("POST", "/api/conversations/"+id+"/terminate", nil)
	until(t, "the adapter to end", func() bool { return adapters() == 0 })
	until(t, "the config home to go", func() bool { return a.gone(home) })
	if c := get[Conversation](a, "/api/conversations/"+id); c.Status != "terminated" {
		t.Errorf("the conversation is %s", c.Status)
	}
	if no := a.refused("POST", "/api/conversations/"+id+"/prompts", body{"prompt": "hello"}); no.Status != 410 {
		t.Errorf("a prompt to an ended conversation: %+v", no)
	}
	if a.file(w.ID, "begun") != "begun\n" || get[Workspace](a, "/api/workspaces/"+w.ID).Status != "ready" || len(a.events(id, 500)) == 0 {
		t.Error("the end took more than the conversation")
	}
}
