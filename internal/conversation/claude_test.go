package conversation_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/agent"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/ledger"
	"managoat/internal/refusal"
	"managoat/internal/runtime"
	"managoat/internal/secret"
	"managoat/internal/testworld"
	"managoat/internal/transcript"
)

func TestClaudeRepairsACheckoutAndNothingItDoesIsHidden(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	repo := w.Outside.Git.Add("shop", testworld.Shop)
	const dir = "/home/sprite/shop"
	w.Outside.Model.Script("fix the cart", testworld.RepairShop(dir)...)
	w.Outside.Model.Script("and then", testworld.Reply{testworld.Say("Nothing else to do.")})
	ws := w.Workspace(w.Environment(func(in *environment.Input) {
		in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: dir}}
	}))
	prompt := "Please fix the cart."
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(func(c *agent.Config) { c.System = "You mend shops." }), WorkspaceID: &ws.ID, Cwd: dir, Prompt: &prompt})
	turn := w.Ended(c.ID, 1)
	must(t, turn, conversation.Completed, "")

	if said := w.Said(c.ID); !strings.HasSuffix(said, "multiplies the price by the quantity now.") {
		t.Errorf("the agent said %q", said)
	}
	results := conversationtest.Bodies[transcript.ToolResultBody](w, c.ID, transcript.ToolResult)
	if len(results) != 4 || turn.ToolCallCount != 4 {
		t.Fatalf("%d results, %d tool calls", len(results), turn.ToolCallCount)
	}
	read, failing, edit, passing := results[0], results[1], results[2], results[3]
	if !strings.Contains(read.Output, "line_total") || read.Status != conversation.Completed {
		t.Errorf("the read: %+v", read)
	}
	ran := transcript.Source{Output: transcript.Machine, ExitCode: transcript.Machine, Duration: transcript.Machine}
	if failing.ExitCode == nil || *failing.ExitCode != 1 || failing.Status != conversation.Failed || !strings.Contains(failing.Output, testworld.ShopFails) || failing.Source != ran {
		t.Errorf("the first test run: %+v", failing)
	}
	if passing.ExitCode == nil || *passing.ExitCode != 0 || passing.Status != conversation.Completed || !strings.Contains(passing.Output, testworld.ShopPasses) || passing.Source != ran {
		t.Errorf("the second test run: %+v", passing)
	}
	if edit.Status != conversation.Completed {
		t.Errorf("the edit: %+v", edit)
	}
	var changed []string
	for _, b := range conversationtest.Bodies[transcript.ToolCallBody](w, c.ID, transcript.ToolCallType) {
		for _, d := range b.Diffs {
			changed = append(changed, d.Path)
		}
	}
	if !slices.Contains(changed, dir+"/cart.sh") {
		t.Errorf("diffs of %v", changed)
	}
	if diff := w.InMachine(ws.ID, "cd "+dir+" && git status --porcelain && git diff --unified=0"); !strings.HasPrefix(diff, "M cart.sh\n") || !strings.Contains(diff, "+    echo $(($1 * $2))") || strings.Contains(diff, ".claude") {
		t.Errorf("the checkout: %s", diff)
	}
	if !w.Outside.Model.Heard("You mend shops.") {
		t.Error("the model did not hear the system prompt")
	}

	// The second prompt continues the same session, and every call is on the ledger.
	must(t, w.Ask(c.ID, "and then?"), conversation.Completed, "")
	calls := w.Outside.Model.Calls()
	if last := calls[len(calls)-1]; last.Marker != "and then" || !strings.Contains(string(last.Body), "fix the cart") {
		t.Errorf("the last call's marker is %q", last.Marker)
	}
	all := len(calls) + len(w.Outside.Model.SideCalls())
	w.Until("every model call to be on the ledger", func() bool {
		page, err := w.Ledger.Entries(t.Context(), w.Owner.Actor, ledger.Filter{ConversationID: &c.ID}, input.Page{})
		if err != nil {
			t.Fatal(err)
		}
		requests := 0
		for _, e := range page.Items {
			requests += e.Requests
			if e.Source != "own" || e.Provider != "anthropic" || e.FailedRequests != 0 || e.Attempt != 1 {
				t.Errorf("the entry: %+v", e)
			}
		}
		return requests == all
	})
	if u := w.Turn(c.ID, 1).Usage; u == nil || u.Requests < 5 || u.Input < 5*int64(testworld.DefaultTokens.Input) {
		t.Errorf("usage: %+v", u)
	}
	if turn.Source != "own" || turn.Model != "anthropic/claude-test-1" {
		t.Errorf("paid by %q, model %q", turn.Source, turn.Model)
	}
}

func TestClaudesConfigHomeStartsFromTheTemplate(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	w.Outside.Model.Script("hello", testworld.Reply{testworld.Say("Hello.")})
	ws := w.Workspace(w.Environment(func(in *environment.Input) {
		in.SetupScript = `cd "$MANAGOAT_RUNTIME_TEMPLATE/claude"
			echo '{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "touch $CLAUDE_CONFIG_DIR/hooked"}]}]}, "theme": "mine"}' > settings.json
			echo '{"mcpServers": {"old": {"command": "false"}}, "kept": "as it was"}' > .claude.json
			echo 'template memory' > CLAUDE.md
			mkdir -p deep/er && echo '#!/bin/sh' > deep/er/hook.sh && chmod 750 deep/er/hook.sh
			ln -s /etc/passwd link && mkfifo pipe`
	}))
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	must(t, w.Ask(c, "hello"), conversation.Completed, "")
	home := "/home/sprite/.managoat/c/" + c.String()
	var settings map[string]any
	if err := json.Unmarshal([]byte(w.InMachine(ws.ID, "cat "+home+"/settings.json")), &settings); err != nil || settings["showThinkingSummaries"] != true || settings["theme"] != "mine" || settings["hooks"] == nil {
		t.Errorf("settings %v %v", settings, err)
	}
	if got := w.InMachine(ws.ID, "cat "+home+"/.claude.json"); !strings.Contains(got, "as it was") || strings.Contains(got, `"old"`) {
		t.Errorf(".claude.json: %s", got)
	}
	if got := w.InMachine(ws.ID, "cd "+home+" && cat CLAUDE.md && stat -c %a deep/er/hook.sh . && ls -d link pipe 2>/dev/null; ls hooked"); got != "template memory\n750\n700\nhooked" {
		t.Errorf("the home: %s", got)
	}
	// The agent's own instructions win; what a later conversation finds is the template as it is then.
	w.InMachine(ws.ID, "echo later > /home/sprite/.managoat/template/claude/later")
	second := w.Launch(conversation.CreateInput{AgentID: w.Claude(func(c *agent.Config) { c.System = "agent's words" }), WorkspaceID: &ws.ID}).ID
	must(t, w.Ask(second, "hello"), conversation.Completed, "")
	if got := w.InMachine(ws.ID, "cat /home/sprite/.managoat/c/"+second.String()+"/{CLAUDE.md,later}; ! test -e "+home+"/later"); got != "agent's wordslater" {
		t.Errorf("the second home: %s", got)
	}
	for name, c := range map[string]struct{ break_, mend, reason, path string }{
		"a merged file that is no object": {"echo '[1]' > settings.json", "echo '{}' > settings.json", "not_a_json_object", "settings.json"},
		"a merged file that is no JSON":   {"echo '{' > .claude.json", "rm .claude.json", "not_a_json_object", ".claude.json"},
		"a file that cannot be read":      {"chmod 000 deep/er/hook.sh", "chmod 700 deep/er/hook.sh", "unreadable", "/home/sprite/.managoat/template/claude/deep/er/hook.sh"},
	} {
		w.InMachine(ws.ID, "cd /home/sprite/.managoat/template/claude && "+c.break_)
		id := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
		for range 2 { // the same way until it is mended
			turn := w.Ask(id, "hello")
			must(t, turn, conversation.Failed, conversation.CodeRuntimeTemplate)
			if turn.Error.Fields["reason"] != c.reason || turn.Error.Fields["path"] != c.path {
				t.Errorf("%s: %+v", name, turn.Error)
			}
		}
		w.InMachine(ws.ID, "cd /home/sprite/.managoat/template/claude && "+c.mend)
		homeMade(t, w, id)
	}
	// A template that a link leads to is not used.
	w.InMachine(ws.ID, "cd /home/sprite/.managoat && mv template real && ln -s real template")
	linked := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	homeMade(t, w, linked)
	if exists(t, w, ws.ID, "/home/sprite/.managoat/c/"+linked.String()+"/later") {
		t.Error("the linked template was copied")
	}
}

func TestNoPromptStartsASecondClaudeToLookAtItsKey(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	w.Outside.Model.Script("hello", testworld.Reply{testworld.Say("Hello.")})
	ws := w.Workspace(w.Environment(nil))
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	// spent is the CPU time of all the adapter's children that have ended, in clock ticks.
	spent := func() int {
		t.Helper()
		w.Until("what the adapter started beside its agent to end", func() bool { return w.InMachine(ws.ID, "pgrep -cf 'claude auth [s]tatus' || true") == "0" })
		ticks, err := strconv.Atoi(w.InMachine(ws.ID, `awk '{print $16 + $17}' /proc/$(pgrep -f '[n]ode_modules/.*claude-agent-acp')/stat`))
		if err != nil {
			t.Fatal(err)
		}
		return ticks
	}
	must(t, w.Ask(c, "hello"), conversation.Completed, "")
	started := spent()
	if started == 0 {
		t.Fatal("the adapter's own look at its start was not seen") // the pinned version looks once when it starts
	}
	for range 3 {
		must(t, w.Ask(c, "hello"), conversation.Completed, "")
	}
	if now := spent(); now != started {
		t.Errorf("children of the adapter used %d ticks of CPU beside three prompts", now-started)
	}
}

// homeMade prompts until the config home is made; what comes after it is not waited for.
func homeMade(t *testing.T, w *conversationtest.World, id uuid.UUID) {
	t.Helper()
	turn := w.Prompt(id, "hello")
	w.Until("the config home to be made", func() bool { return strings.Contains(stages(w, id), "home done") })
	if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, id, &turn.ID); err != nil && !refusal.Is(err, refusal.NoTurnRunning) {
		t.Fatal(err)
	}
	w.Ended(id, turn.TurnNumber)
}

func TestAnAdapterReadsWhatItsInstallationCompiled(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	ws := w.Ready(w.Workspace(w.Environment(nil)).ID)
	claude, _ := runtime.Get(runtime.Claude)
	said := w.InMachine(ws.ID, "NODE_DEBUG_NATIVE=COMPILE_CACHE "+strings.Join(claude.Argv(runtime.Launch{}), " ")+" </dev/null 2>&1 >/dev/null | grep ^.compile")
	if n := strings.Count(said, " was accepted"); n < 100 || strings.Contains(said, " was rejected") {
		t.Errorf("%d modules of the cache were taken:\n%.2000s", n, said)
	}
}

func TestClaudeIsInterruptedInACommandWhichEndsWithIt(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	ws := w.Workspace(w.Environment(nil))
	mark := "4321" + uuid.NewString()[:4]
	w.Outside.Model.Script("sleep long", testworld.Reply{testworld.Say("Sleeping."), testworld.Call("Bash", testworld.Input{"command": "echo begun; touch /home/sprite/begun; sleep 4321; : " + mark, "description": "sleep"})})
	w.Outside.Model.Script("hello", testworld.Reply{testworld.Say("Hello.")})
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	w.Prompt(c, "sleep long")
	w.Ready(ws.ID)
	w.Until("the command to run", func() bool { return exists(t, w, ws.ID, "/home/sprite/begun") })
	if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, nil); err != nil {
		t.Fatal(err)
	}
	turn := w.Ended(c, 1)
	must(t, turn, conversation.Interrupted, "")
	results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
	if len(results) != 1 || results[0].Status != conversation.Interrupted || !strings.Contains(results[0].Output, "begun") || results[0].Signal == "" {
		t.Errorf("the call: %+v", results)
	}
	if got := w.InMachine(ws.ID, "pgrep -cf '[s]leep 4321' || true"); got != "0" {
		t.Errorf("%s processes of the command are left", got)
	}
	must(t, w.Ask(c, "hello"), conversation.Completed, "")
	if got := stages(w, c); strings.Count(got, "adapter done") != 1 {
		t.Errorf("the adapter was started again: %s", got)
	}
}

func TestAKeyThatTheModelRefusesIsSaidWithTheNextStep(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	ws := w.Workspace(w.Environment(nil))
	w.Outside.Model.Script("hello", testworld.Reply{testworld.Say("Hello.")})
	agent := w.Claude()
	wrong, err := w.Inference.Create(t.Context(), w.Owner.Actor, inference.Input{Name: "wrong", Provider: inference.Anthropic, BaseURL: w.Outside.Model.URL, Key: secret.New("sk-ant-api03-a-wrong-one")})
	if err != nil {
		t.Fatal(err)
	}
	turn := w.Ask(w.Launch(conversation.CreateInput{AgentID: agent, WorkspaceID: &ws.ID, InferenceCredentialID: &wrong.ID}).ID, "hello")
	must(t, turn, conversation.Failed, conversation.CodeAgentError)
	if !strings.Contains(turn.Error.Message, "settings, under inference credentials") {
		t.Errorf("the turn says %q", turn.Error.Message)
	}
}

func TestAModelThatFailsFailsTheTurnOnceAndLoudly(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	ws := w.Workspace(w.Environment(nil))
	w.Outside.Model.Script("overload", testworld.Reply{testworld.Fail(529)})
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	turn := w.Ask(c, "overload")
	must(t, turn, conversation.Failed, conversation.CodeAgentError)
	// What the broker metered comes from another process, perhaps after the turn's end.
	w.Until("the failed request to be counted", func() bool { u := w.Turn(c, 1).Usage; return u != nil && u.FailedRequests == 1 })
	if n := len(w.Outside.Model.Calls()); n != 1 {
		t.Errorf("%d calls", n)
	}
}
