package conversation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/acp"
	"managoat/internal/agent"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/transcript"
)

func TestWhatAgentsPrint(t *testing.T) {
	t.Parallel()
	const secretValue = "correct-horse-battery"
	w := conversationtest.New(t)
	ws := w.Workspace(w.Environment(nil))
	w.Ready(ws.ID)
	launch := func(t *testing.T) uuid.UUID {
		t.Helper()
		return w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID}).ID
	}

	t.Run("lines that are no protocol become notices and harm nothing", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		turn := w.Ask(c, "raw npm notice New version!", `raw {"jsonrpc":"2.0","method":`, `raw [1,2]`, `raw binary \0 \x \e[31m`, `raw {"jsonrpc":"2.0","id":77,"result":{}}`,
			`raw {"jsonrpc":"2.0","method":"_vendor/status","params":{}}`, `raw {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"from_the_future"}}}`, "say well")
		must(t, turn, conversation.Completed, "")
		if got := notices(w, c); got != "stray_output, stray_output, stray_output, stray_output" {
			t.Errorf("notices: %s", got)
		}
		last := conversationtest.Bodies[transcript.NoticeBody](w, c, transcript.Notice)[3].Text
		if !strings.HasSuffix(last, "binary \u2400 \uFFFD") || w.Said(c) != "well" {
			t.Errorf("the binary line: %q; said %q", last, w.Said(c))
		}
	})

	t.Run("NUL, lone surrogates and a split character survive as text", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		must(t, w.Ask(c, "nul", "split"), conversation.Completed, "")
		if got, want := w.Said(c), "a\u2400b\uFFFDc😀d"+"one — dash"; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	})

	t.Run("a line that is too long is dropped, with a notice, and the turn goes on", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		must(t, w.Ask(c, "say before", fmt.Sprintf("huge %d", 3*acp.MaxLine), "say after"), conversation.Completed, "")
		if notices(w, c) != "line_too_long" || w.Said(c) != "beforeafter" {
			t.Errorf("notices %s, said %d bytes", notices(w, c), len(w.Said(c)))
		}
	})

	t.Run("thousands of chunks arrive in order, joined into few rows", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		const n = 20000
		must(t, w.Ask(c, fmt.Sprintf("lots %d", n)), conversation.Completed, "")
		var want strings.Builder
		for i := range n {
			fmt.Fprintf(&want, "%d,", i)
		}
		if w.Said(c) != want.String() {
			t.Errorf("said %d bytes, want %d", len(w.Said(c)), want.Len())
		}
		if rows := len(w.Rows(c)); rows > n/10 {
			t.Errorf("%d chunks became %d rows", n, rows)
		}
	})

	t.Run("a large output keeps its head and its tail, and counts what is missing", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		must(t, w.Ask(c, "toolout 3000000"), conversation.Completed, "")
		results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
		if len(results) != 1 {
			t.Fatalf("%d results", len(results))
		}
		r := results[0]
		if !r.Truncated || r.OutputBytes != 3000000+3 || len(r.Output) > 70<<10 || !strings.HasPrefix(r.Output, "0123") || !strings.HasSuffix(r.Output, "END") || !strings.Contains(r.Output, "bytes are not shown") {
			t.Errorf("truncated %v, %d bytes, output of %d", r.Truncated, r.OutputBytes, len(r.Output))
		}
	})

	t.Run("what the runtime says of a tool call is kept, with its source", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		turn := w.Ask(c, "tool build", "forget lint")
		must(t, turn, conversation.Completed, "")
		if turn.ToolCallCount != 2 {
			t.Errorf("%d tool calls", turn.ToolCallCount)
		}
		results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
		if len(results) != 2 || results[0].ID != "build" || results[0].Output != "out of build" || results[0].ExitCode == nil || *results[0].ExitCode != 3 ||
			results[0].Source != (transcript.Source{Output: transcript.Protocol, ExitCode: transcript.Protocol, Duration: transcript.Protocol}) {
			t.Fatalf("%+v", results)
		}
		if results[1].ID != "lint" || results[1].Status != conversation.Interrupted || results[1].ExitCode != nil {
			t.Errorf("the call that was never closed: %+v", results[1])
		}
	})

	t.Run("a command of the agent's runs under our guest, which sees its output, exit code and time", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		must(t, w.Ask(c, "terminal echo out; echo err >&2; sleep 0.2; exit 3"), conversation.Completed, "")
		results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
		if len(results) != 1 {
			t.Fatalf("%+v", results)
		}
		r := results[0]
		if r.ExitCode == nil || *r.ExitCode != 3 || r.Status != conversation.Failed || !strings.Contains(r.Output, "out\n") || !strings.Contains(r.Output, "err\n") || r.DurationMS < 200 ||
			r.Source != (transcript.Source{Output: transcript.Machine, ExitCode: transcript.Machine, Duration: transcript.Machine}) {
			t.Errorf("%+v", r)
		}
		if live := conversationtest.Bodies[transcript.ToolOutputBody](w, c, transcript.ToolOutput); len(live) == 0 {
			t.Error("no live output")
		}
		if got := run(t, w, ws.ID, "cat "+r.FullLogPath); !strings.Contains(got, "out") {
			t.Errorf("the full log: %q", got)
		}
		if !strings.Contains(w.Said(c), `"exitCode":3`) || !strings.Contains(w.Said(c), "out") {
			t.Errorf("the agent was told %q", w.Said(c))
		}
	})

	t.Run("a command that no tool call shows is a row of its own", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		turn := w.Ask(c, "hidden echo psst; exit 4")
		must(t, turn, conversation.Completed, "")
		results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
		if turn.ToolCallCount != 1 || len(results) != 1 || results[0].Output != "psst\n" || *results[0].ExitCode != 4 || results[0].Source.Output != transcript.Machine {
			t.Errorf("%d calls, %+v", turn.ToolCallCount, results)
		}
	})

	t.Run("commands in the machine's own shell are recorded, whether a tool call shows them or not", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		turn := w.Ask(c, "shell echo out; echo err >&2; exit 6", "quietly echo psst; kill -9 $$", "shell yes | head -c 100000; echo END")
		must(t, turn, conversation.Completed, "")
		results := map[string]transcript.ToolResultBody{}
		for _, r := range conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult) {
			results[strings.TrimSpace(strings.SplitN(r.ID, "-", 2)[0])] = r
		}
		machine := transcript.Source{Output: transcript.Machine, ExitCode: transcript.Machine, Duration: transcript.Machine}
		if r := results["echo out; echo err >&2; exit 6"]; r.ExitCode == nil || *r.ExitCode != 6 || !strings.Contains(r.Output, "out\n") || !strings.Contains(r.Output, "err\n") || r.Source != machine {
			t.Errorf("the command that failed: %+v", r)
		}
		if r := results["yes | head"]; !r.Truncated || r.OutputBytes != 100004 || !strings.HasSuffix(r.Output, "END\n") || !strings.Contains(r.Output, "bytes are not shown") || *r.ExitCode != 0 {
			t.Errorf("the long output: truncated %v, %d bytes, %q", r.Truncated, r.OutputBytes, r.Output[max(0, len(r.Output)-30):])
		}
		if r := results["command"]; r.Signal != "SIGKILL" || r.ExitCode != nil || r.Output != "psst\n" || r.Status != conversation.Failed || r.Source != machine || turn.ToolCallCount != 3 {
			t.Errorf("the hidden one: %+v; %d calls", r, turn.ToolCallCount)
		}
	})

	t.Run("files are read and written as the agent's user", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		file := "/home/sprite/notes-" + uuid.NewString()
		must(t, w.Ask(c, "writefile "+file+" dear diary", "read "+file, "read /etc/shadow"), conversation.Completed, "")
		if got := run(t, w, ws.ID, "cat "+file); got != "dear diary" || w.Said(c) != `{"content":"dear diary"}` {
			t.Errorf("the file holds %q, the agent read %q", got, w.Said(c))
		}
	})

	t.Run("a permission request is answered by the policy once, and shown", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		must(t, w.Ask(c, "ask deploy"), conversation.Completed, "")
		if w.Said(c) != `{"outcome":{"optionId":"once","outcome":"selected"}}` {
			t.Errorf("the agent was answered %s", w.Said(c))
		}
		asked := conversationtest.Bodies[transcript.PermissionRequestBody](w, c, transcript.PermissionRequest)
		answered := conversationtest.Bodies[transcript.PermissionResolvedBody](w, c, transcript.PermissionResolved)
		if len(asked) != 1 || len(answered) != 1 || asked[0].RequestID != answered[0].RequestID || asked[0].Title != "Run deploy" || len(asked[0].Options) != 3 ||
			answered[0].Outcome != "auto_allow" || answered[0].OptionID != "once" || string(asked[0].Input) != `{"command": "deploy"}` {
			t.Fatalf("%+v %+v", asked, answered)
		}
		if _, err := w.Conversations.Answer(t.Context(), w.Owner.Actor, c, uuid.MustParse(asked[0].RequestID), "no"); err == nil {
			t.Error("an answered request took another answer")
		}
	})

	t.Run("titles, thoughts, plans and images", func(t *testing.T) {
		t.Parallel()
		c := launch(t)
		png := "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
		turn, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: "think hmm\nplan one step\nimages\ntitle A better\x1b[1m title",
			Images: []conversation.ImageInput{{Data: png, MediaType: "image/png"}}, ClientRequestID: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		ended := w.Ended(c, turn.TurnNumber)
		must(t, ended, conversation.Completed, "")
		if w.Said(c) != "1" || ended.ImageCount != 1 || ended.ClientRequestID == nil || *ended.ClientRequestID != "mine" {
			t.Errorf("said %q, %+v", w.Said(c), ended)
		}
		if plans := conversationtest.Bodies[transcript.PlanBody](w, c, transcript.Plan); len(plans) != 1 || plans[0].Entries[0].Content != "one step" {
			t.Errorf("plans %+v", plans)
		}
		v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c)
		if err != nil || v.Title != "A better title" {
			t.Errorf("title %q %v", v.Title, err)
		}
	})

	t.Run("a secret of the environment is masked, also when it comes in pieces", func(t *testing.T) {
		t.Parallel()
		env := w.Environment(nil)
		if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env, environment.SecretInput{Key: "API_SECRET", Value: secretOf(secretValue)}); err != nil {
			t.Fatal(err)
		}
		mine := w.Workspace(env)
		c := w.Launch(conversation.CreateInput{AgentID: w.Agent("", func(c *agent.Config) { c.Name = "keeper " + uuid.NewString() }), WorkspaceID: &mine.ID}).ID
		must(t, w.Ask(c, "say the env: ", "env API_SECRET", "message two", "sayin a correct-ho|rse-bat|tery b", "tool "+secretValue, "raw "+secretValue), conversation.Completed, "")
		if got, want := w.Said(c), "the env: API_SECRET=[REDACTED]a [REDACTED] b"; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
		for _, r := range w.Rows(c) {
			if r.Type != transcript.Prompt && strings.Contains(string(r.Body)+r.Raw, secretValue) {
				t.Errorf("row %d shows the secret: %s %s", r.Seq, r.Body, r.Raw)
			}
		}
		must(t, w.Ask(c, "env MANAGOAT_TOKEN", "env HTTPS_PROXY", "env MANAGOAT_BASE_URL"), conversation.Completed, "")
		if strings.Contains(w.Said(c), "mgt_") || strings.Contains(w.Said(c), "mgw_") {
			t.Errorf("the conversation's own keys are shown: %q", w.Said(c))
		}
		if !strings.HasSuffix(w.Said(c), "MANAGOAT_BASE_URL=http://api.managoat.internal") {
			t.Errorf("said %q", w.Said(c))
		}
	})

	t.Run("a runtime with a model gets the gateway's address and a token for the key", func(t *testing.T) {
		t.Parallel()
		w.Claude() // makes the account's key
		model := "anthropic/some-model"
		c := w.Launch(conversation.CreateInput{AgentID: w.Agent("", func(c *agent.Config) { c.Model = &model }), WorkspaceID: &ws.ID, SandboxAPIAccess: "owner"}).ID
		must(t, w.Ask(c, "env ANTHROPIC_BASE_URL", "message 2", "say |", "env ANTHROPIC_MODEL", "message 3", "say |", "env ANTHROPIC_API_KEY"), conversation.Completed, "")
		if got, want := w.Said(c), "ANTHROPIC_BASE_URL=http://model.managoat.internal|ANTHROPIC_MODEL=some-model|ANTHROPIC_API_KEY=[REDACTED]"; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	})

	t.Run("a conversation without API access holds no key of ours", func(t *testing.T) {
		t.Parallel()
		c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), SandboxAPIAccess: "none"}).ID
		must(t, w.Ask(c, "env MANAGOAT_TOKEN", "say |", "env MANAGOAT_BASE_URL"), conversation.Completed, "")
		if got, want := w.Said(c), "MANAGOAT_TOKEN=|MANAGOAT_BASE_URL="; got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	})
}

// An agent names the terminal in a tool call only after the command began: what it printed until then is not kept back
// until it prints more, which may be never.
func TestWhatACommandPrintsBeforeItsToolCallIsShownWhileItRuns(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	w.Prompt(c, "late echo early; until test -e /tmp/go; do sleep 0.02; done; echo done")
	w.Until("the first words", func() bool {
		outputs := conversationtest.Bodies[transcript.ToolOutputBody](w, c, transcript.ToolOutput)
		return len(outputs) == 1 && outputs[0].Text == "early\n"
	})
	touch(t, w, *ws, "/tmp/go")
	must(t, w.Ended(c, 1), conversation.Completed, "")
	if r := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult); len(r) != 1 || r[0].Output != "early\ndone\n" || r[0].ExitCode == nil || *r[0].ExitCode != 0 {
		t.Errorf("result %+v", r)
	}
}
