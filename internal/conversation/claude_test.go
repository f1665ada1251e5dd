package conversation_test

import (
	"bytes"
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
	"managoat/internal/mcp"
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

// How homes are made of templates is TestConfigHomes's; this one is that claude takes its home for what it is.
func TestClaudeRunsTheHooksOfTheTemplate(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	w.Outside.Model.Script("hello", testworld.Reply{testworld.Say("Hello.")})
	ws := w.Workspace(w.Environment(func(in *environment.Input) {
		in.SetupScript = `cd "$MANAGOAT_RUNTIME_TEMPLATE/claude"
			echo '{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "$CLAUDE_CONFIG_DIR/hook.sh"}]}]}}' > settings.json
			printf '#!/bin/sh\ntouch "$CLAUDE_CONFIG_DIR/hooked"\n' > hook.sh && chmod 750 hook.sh
			echo 'template memory' > CLAUDE.md
			mkdir ~/.claude ~/shop; echo 'memory of the home' > ~/.claude/CLAUDE.md; echo 'memory of the shop' > ~/shop/CLAUDE.md; echo 'memory of the folder' > ~/CLAUDE.md
			echo '{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "touch ~/hooked"}]}]}}' > ~/.claude/settings.json`
	}))
	for cwd, folder := range map[string]string{"/home/sprite/shop": "memory of the shop", "": "memory of the folder"} {
		asked := len(w.Outside.Model.Calls())
		c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID, Cwd: cwd}).ID
		must(t, w.Ask(c, "hello"), conversation.Completed, "")
		var heard []byte
		for _, call := range w.Outside.Model.Calls()[asked:] {
			heard = append(heard, call.Body...)
		}
		for _, said := range []string{"template memory", folder} {
			if !bytes.Contains(heard, []byte(said)) {
				t.Errorf("in %q the model did not hear the %s", cwd, said)
			}
		}
		if bytes.Contains(heard, []byte("memory of the home")) {
			t.Errorf("in %q the model heard the home's own instructions", cwd)
		}
		w.InMachine(ws.ID, "test -f ~/.managoat/c/"+c.String()+"/hooked && test ! -e ~/hooked")
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
		ticks, err := strconv.Atoi(w.InMachine(ws.ID, `set -- $(cat /proc/$(pgrep -f '[n]ode_modules/.*claude-agent-acp')/stat) && echo $((${16} + ${17}))`))
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

// An agent's server is started in the machine by the CLI itself, from the file that is written, and its tool can be called; one
// that the agent drops is gone at the next wake. A skill is found by its front matter.
func TestClaudeUsesItsAgentsMCPServersAndSkills(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	env := w.Environment(func(in *environment.Input) {
		in.SetupScript = "cat > ~/shelf.js <<'END'\n" + testworld.MCPServer + "END\n"
		in.EnvVars = map[string]string{"PLACE": "row 3"}
	})
	if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env, environment.SecretInput{Key: "SHELF_KEY", Value: secret.New("the-key-of-${PLACE}")}); err != nil {
		t.Fatal(err)
	}
	ws := w.Workspace(env)
	a := w.Claude(func(c *agent.Config) {
		c.MCPServers = mcp.Servers{"shelf": {Command: "node", Args: []string{"/home/sprite/shelf.js", "${PLACE}", "$${PLACE} $PLACE"}, Env: map[string]string{"SHELF": "${SHELF_KEY}"}}}
		c.Skills = []agent.Skill{{Name: "shelving", Content: "---\nname: shelving\ndescription: How a book is put back where it was.\n---\nGently.\n"}}
	})
	const tool = "mcp__shelf__look_up"
	w.Outside.Model.Script("look it up",
		testworld.Reply{testworld.Call("ToolSearch", testworld.Input{"query": "select:" + tool, "max_results": 5})}, // offered when it is looked for
		testworld.Reply{testworld.Call(tool, testworld.Input{"title": "Emil"})},
		testworld.Reply{testworld.ToolSaid("found Emil row 3 ${PLACE} $PLACE the-key-of-${PLACE}"), testworld.Say("Found.")})
	// What the CLI still says of a tool that it had is out of its session; there is nobody who would answer.
	w.Outside.Model.Script("and now",
		testworld.Reply{testworld.Call(tool, testworld.Input{"title": "Emil"})},
		testworld.Reply{testworld.ToolSaid("No such tool available"), testworld.Say("Gone.")})
	id := w.Launch(conversation.CreateInput{AgentID: a, WorkspaceID: &ws.ID}).ID
	must(t, w.Ask(id, "look it up"), conversation.Completed, "")
	if said := w.Said(id); said != "Found." {
		t.Errorf("the agent said %q", said)
	}
	if results := conversationtest.Bodies[transcript.ToolResultBody](w, id, transcript.ToolResult); len(results) != 2 || !strings.Contains(results[1].Output, "found Emil") || strings.Contains(results[1].Output, "the-key-of") {
		t.Errorf("the call: %+v", results)
	}
	if !w.Outside.Model.Heard("- shelving") {
		t.Error("the model did not hear of the skill")
	}
	if _, err := w.Agents.Update(t.Context(), w.Owner.Actor, a, 0, func(c *agent.Config) error { c.MCPServers = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	w.StopMachine(ws.ID)
	must(t, w.Ask(id, "and now"), conversation.Completed, "")
	if said := w.Said(id); !strings.HasSuffix(said, "Gone.") {
		t.Errorf("the agent said %q", said)
	}
	if got := w.InMachine(ws.ID, "pgrep -cf '[s]helf.js' || true"); got != "0" {
		t.Errorf("%s processes of the dropped server run", got)
	}
}
