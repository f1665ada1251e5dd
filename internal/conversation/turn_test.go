package conversation_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/agent"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
)

// world is a host with one workspace that is set up, for tests of what happens in it.
func world(t *testing.T) (*conversationtest.World, *uuid.UUID) {
	t.Helper()
	w := conversationtest.New(t)
	id := w.Workspace(w.Environment(nil)).ID
	w.Ready(id)
	return w, &id
}

// stages are "stage state reason" of a transcript, in order.
func stages(w *conversationtest.World, id uuid.UUID) string {
	var out []string
	for _, b := range conversationtest.Bodies[transcript.StageBody](w, id, transcript.Stage) {
		out = append(out, strings.TrimSpace(b.Stage+" "+b.State+" "+b.Reason))
	}
	return strings.Join(out, ", ")
}

// story is what was asked and how it ended: "turn text" of prompts, and the ends of turns and of the conversation.
func story(w *conversationtest.World, id uuid.UUID) string {
	var out []string
	for _, row := range w.Rows(id) {
		var b struct {
			Text, Stage, State, Reason, Code string
		}
		if err := json.Unmarshal(row.Body, &b); err != nil {
			panic(err)
		}
		number := row.TurnNumber
		switch {
		case row.Type == transcript.Prompt:
			out = append(out, fmt.Sprintf("%d? %s", number, strings.ReplaceAll(b.Text, "\n", "; ")))
		case row.Type == transcript.Stage && (b.Stage == "turn" || b.Stage == "terminate"):
			out = append(out, strings.TrimSpace(fmt.Sprintf("%d %s %s", number, b.State, b.Reason)))
		case row.Type == transcript.Error:
			out = append(out, fmt.Sprintf("%d! %s", number, b.Code))
		}
	}
	return strings.Join(out, ", ")
}

func notices(w *conversationtest.World, id uuid.UUID) string {
	var out []string
	for _, b := range conversationtest.Bodies[transcript.NoticeBody](w, id, transcript.Notice) {
		out = append(out, b.Code)
	}
	return strings.Join(out, ", ")
}

func must(t testing.TB, turn conversation.Turn, status, code string) {
	t.Helper()
	got := ""
	if turn.Error != nil {
		got = turn.Error.Code
	}
	if turn.Status != status || got != code {
		t.Fatalf("the turn is %s %q, want %s %q: %+v", turn.Status, got, status, code, turn.Error)
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	launch := func(t *testing.T, flags string, edits ...func(*agent.Config)) uuid.UUID {
		t.Helper()
		return w.Launch(conversation.CreateInput{AgentID: w.Agent(flags, edits...), WorkspaceID: ws}).ID
	}

	t.Run("a second prompt continues the same process and session", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		first := w.Ask(c, "say hello ", "env MANAGOAT_CONVERSATION_ID", "say  in ", "cwd")
		must(t, first, conversation.Completed, "")
		if first.StopReason == nil || *first.StopReason != "end_turn" || first.Attempts != 1 || first.FirstTokenAt == nil {
			t.Fatalf("the first turn: %+v", first)
		}
		if want := "hello MANAGOAT_CONVERSATION_ID=" + c.String() + " in /home/sprite"; w.Said(c) != want {
			t.Fatalf("the agent said %q, want %q", w.Said(c), want)
		}
		must(t, w.Ask(c, "say again"), conversation.Completed, "")
		if got, want := stages(w, c), "home done, adapter done, session done, turn done, turn done"; got != want {
			t.Errorf("stages: %s, want %s", got, want)
		}
		if v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c); err != nil || v.Status != conversation.Idle || v.TurnCount != 2 || v.Title != "say hello" || v.CurrentTurn != nil {
			t.Errorf("the conversation: %+v %v", v, err)
		}
	})

	t.Run("a runtime that ends before it read the prompt is started once more, visibly", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "-crash-once /home/sprite/crashed-"+uuid.NewString())
		turn := w.Ask(c, "say survived")
		must(t, turn, conversation.Completed, "")
		if turn.Attempts != 2 || w.Said(c) != "survived" {
			t.Errorf("attempts %d, said %q", turn.Attempts, w.Said(c))
		}
		if got, want := stages(w, c), "home done, session failed adapter_crashed, adapter done, session done, turn done"; got != want {
			t.Errorf("stages: %s, want %s", got, want)
		}
		if notices(w, c) != "adapter_relaunched" {
			t.Errorf("notices: %s", notices(w, c))
		}
	})

	t.Run("a runtime that never starts fails its turn with exit code and last lines", func(t *testing.T) {
		t.Parallel()
		turn := w.Ask(launch(t, "-crash-start"), "say nothing")
		must(t, turn, conversation.Failed, conversation.CodeAdapterCrashed)
		if turn.ExitCode == nil || *turn.ExitCode != 3 || turn.Attempts != 2 || turn.Error.Fields["stderr"] != "agent: cannot start: the license expired" {
			t.Errorf("exit %v, attempts %d, error %+v", turn.ExitCode, turn.Attempts, turn.Error)
		}
	})

	t.Run("a command that the machine does not know says so", func(t *testing.T) {
		t.Parallel()
		turn := w.Ask(launch(t, "", func(c *agent.Config) { c.RuntimeCommand = "no-such-agent --acp" }), "say nothing")
		must(t, turn, conversation.Failed, conversation.CodeNotInstalled)
		if !strings.Contains(turn.Error.Message, "no-such-agent --acp") || turn.Attempts != 1 {
			t.Errorf("attempts %d, error %+v", turn.Attempts, turn.Error)
		}
	})

	t.Run("a crash after the prompt fails the turn, and the prompt is not sent again", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		turn := w.Ask(c, "say before", "forget job", "exit 5")
		must(t, turn, conversation.Failed, conversation.CodeAdapterCrashed)
		if turn.ExitCode == nil || *turn.ExitCode != 5 || turn.Attempts != 1 || w.Said(c) != "before" {
			t.Errorf("exit %v, attempts %d, said %q", turn.ExitCode, turn.Attempts, w.Said(c))
		}
		if got := turn.Error.Fields["stderr"]; got != "agent: hello\nagent: giving up" {
			t.Errorf("standard error: %q", got)
		}
		results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
		if len(results) != 1 || results[0].Status != conversation.Interrupted {
			t.Errorf("the open tool call: %+v", results)
		}
		must(t, w.Ask(c, "say after"), conversation.Completed, "")
		if !strings.HasSuffix(w.Said(c), "after") {
			t.Errorf("said %q", w.Said(c))
		}
	})

	t.Run("a signal that ended the runtime is named", func(t *testing.T) {
		t.Parallel()
		turn := w.Ask(launch(t, ""), "kill")
		must(t, turn, conversation.Failed, conversation.CodeAdapterCrashed)
		if turn.Error.Fields["signal"] != "SIGKILL" || turn.ExitCode != nil {
			t.Errorf("%+v", turn.Error)
		}
	})

	t.Run("only an explicit end of turn is success", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		for reason, code := range map[string]string{"max_tokens": conversation.CodeStopped, "refusal": conversation.CodeStopped, "cancelled": conversation.CodeStopped,
			"something_new": conversation.CodeStopped, "none": conversation.CodeAdapterProtocol} {
			turn := w.Ask(c, "say so far", "stop "+reason)
			must(t, turn, conversation.Failed, code)
			if reason != "none" && (turn.StopReason == nil || *turn.StopReason != reason) {
				t.Errorf("%s: stop reason %v", reason, turn.StopReason)
			}
		}
		must(t, w.Ask(c, "fail the model is busy"), conversation.Failed, conversation.CodeAgentError)
		must(t, w.Ask(c, "say well"), conversation.Completed, "")
	})

	t.Run("an interrupt ends a turn by what the agent understands", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		turn := w.Prompt(c, "say working", "forget job", "sleep 60000")
		w.Until("the agent to work", func() bool { return w.Said(c) == "working" })
		asked, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, &turn.ID)
		if err != nil || asked.Status != conversation.Running {
			t.Fatalf("%+v %v", asked, err)
		}
		ended := w.Ended(c, 1)
		must(t, ended, conversation.Interrupted, "")
		if ended.Reason == nil || *ended.Reason != conversation.ByUser {
			t.Errorf("reason %v", ended.Reason)
		}
		if results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult); len(results) != 1 || results[0].Status != conversation.Interrupted {
			t.Errorf("the open tool call: %+v", results)
		}
		if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, &turn.ID); !refusal.Is(err, refusal.NoTurnRunning) {
			t.Errorf("interrupting an ended turn: %v", err)
		}
		if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, nil); !refusal.Is(err, refusal.NoTurnRunning) {
			t.Errorf("interrupting an idle conversation: %v", err)
		}
		must(t, w.Ask(c, "say alive"), conversation.Completed, "")
		if got := stages(w, c); !strings.HasSuffix(got, "turn interrupted user, turn done") {
			t.Errorf("stages: %s", got)
		}
	})

	t.Run("an agent that is deaf to cancel and SIGTERM is ended with everything it started", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		w.Prompt(c, "deaf", "child", "say working", "wait /nowhere")
		w.Until("the agent to work", func() bool { return w.Said(c) == "working" })
		if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, nil); err != nil {
			t.Fatal(err)
		}
		must(t, w.Ended(c, 1), conversation.Interrupted, "")
		must(t, w.Ask(c, "say another one"), conversation.Completed, "")
	})

	t.Run("a queued prompt shows its place, runs in order, and can be withdrawn", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		flag := "/home/sprite/go-" + uuid.NewString()
		w.Prompt(c, "say one", "wait "+flag)
		in := conversation.PromptInput{Prompt: "say two"}
		if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, in); !refusal.Is(err, refusal.ConversationBusy) {
			t.Fatalf("a second prompt: %v", err)
		}
		in.Queue = true
		second, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, in)
		if err != nil || second.QueuePosition != 1 || second.Status != conversation.Pending {
			t.Fatalf("the queued prompt: %+v %v", second, err)
		}
		in.Prompt = "say three"
		third, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, in)
		if err != nil || third.QueuePosition != 2 {
			t.Fatalf("the second queued prompt: %+v %v", third, err)
		}
		if withdrawn, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, &second.ID); err != nil || withdrawn.Status != conversation.Interrupted || *withdrawn.Reason != conversation.ByWithdrawal {
			t.Fatalf("withdrawing: %+v %v", withdrawn, err)
		}
		if got := w.Turn(c, 3); got.QueuePosition != 1 || got.WaitingFor == nil || got.WaitingFor.Reason != conversation.ForQueue {
			t.Errorf("the third turn waits: %+v", got)
		}
		touch(t, w, *ws, flag)
		must(t, w.Ended(c, 3), conversation.Completed, "")
		if w.Said(c) != "onethree" {
			t.Errorf("said %q", w.Said(c))
		}
		if prompts := conversationtest.Bodies[transcript.PromptBody](w, c, transcript.Prompt); len(prompts) != 2 || prompts[1].TurnNumber != 3 {
			t.Errorf("prompts shown: %+v", prompts)
		}
	})

	t.Run("twenty prompts at once open one turn", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		errs := make(chan error)
		for range 20 {
			go func() {
				_, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: "say one\nsleep 60000"})
				errs <- err
			}()
		}
		taken := 0
		for range 20 {
			switch err := <-errs; {
			case err == nil:
				taken++
			case !refusal.Is(err, refusal.ConversationBusy):
				t.Error(err)
			}
		}
		if taken != 1 {
			t.Errorf("%d prompts were taken", taken)
		}
		if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, nil); err != nil {
			t.Error(err)
		}
		must(t, w.Ended(c, 1), conversation.Interrupted, "")
	})

	t.Run("a terminated conversation stops its agent, loses its home, and takes no prompt", func(t *testing.T) {
		t.Parallel()
		c := launch(t, "")
		w.Prompt(c, "say working", "sleep 60000")
		w.Until("the agent to work", func() bool { return w.Said(c) == "working" })
		for _, text := range []string{"say withdrawn", "say later"} {
			queued, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: text, Queue: true})
			if err != nil {
				t.Fatal(err)
			}
			if text != "say later" {
				if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, &queued.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		v, err := w.Conversations.Terminate(t.Context(), w.Owner.Actor, c)
		if err != nil || v.Status != conversation.Terminated {
			t.Fatalf("%+v %v", v, err)
		}
		first, second := w.Ended(c, 1), w.Ended(c, 3)
		if first.Status != conversation.Interrupted || *first.Reason != conversation.ByTermination || second.Status != conversation.Interrupted {
			t.Errorf("the turns: %+v %+v", first, second)
		}
		// What was asked and not begun is kept, and not behind the end of what ran; what its person took back is not.
		if got := story(w, c); got != "1? say working; sleep 60000, 3? say later, 3 interrupted conversation_terminated, 1 interrupted conversation_terminated" {
			t.Errorf("the transcript: %s", got)
		}
		w.Until("the config home to go", func() bool { return !exists(t, w, *ws, "/home/sprite/.managoat/c/"+c.String()) })
		if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: "say more"}); !refusal.Is(err, refusal.ConversationTerminated) {
			t.Errorf("a prompt into it: %v", err)
		}
		if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, *ws); err != nil || got.Status != workspace.Ready {
			t.Errorf("the workspace: %+v %v", got, err)
		}
	})
}
