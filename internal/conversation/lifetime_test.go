package conversation_test

import (
	"strings"
	"testing"
	"time"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/testworld"
	"managoat/internal/transcript"
	"managoat/sandbox"
)

func TestAHomeLeftOnAParkedMachineGoesWhenTheNextPromptWakesIt(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	ended := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	other := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	must(t, w.Ask(ended, "say hi"), conversation.Completed, "")
	must(t, w.Ask(other, "say hi "), conversation.Completed, "")
	w.Pause(func() { w.StopMachine(*ws) }) // the next server finds it parked
	w.Until("the machine to be seen parked", func() bool {
		got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, *ws)
		return err == nil && got.MachineStatus == "suspended"
	})
	if _, err := w.Conversations.Terminate(t.Context(), w.Owner.Actor, ended); err != nil {
		t.Fatal(err)
	}
	must(t, w.Ask(other, "say awake"), conversation.Completed, "")
	if exists(t, w, *ws, "/home/sprite/.managoat/c/"+ended.String()) {
		t.Error("the ended conversation's home is still there")
	}
	if !exists(t, w, *ws, "/home/sprite/.managoat/c/"+other.String()) || w.Said(other) != "hi awake" {
		t.Errorf("the other conversation said %q", w.Said(other))
	}
	if got := stages(w, other); !strings.Contains(got, "turn done, wake done, adapter done, session done, turn done") {
		t.Errorf("stages: %s", got)
	}
}

func TestALostMachineIsBuiltAgainUnderTheTurnAndSaidSo(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	must(t, w.Ask(c, "say old ", "touch /home/sprite/work"), conversation.Completed, "")
	w.DestroyMachine(*ws)
	turn := w.Ask(c, "say new")
	must(t, turn, conversation.Completed, "")
	if turn.TurnNumber != 2 || w.Said(c) != "old new" || notices(w, c) != "new_machine" || exists(t, w, *ws, "/home/sprite/work") {
		t.Errorf("turn %d, said %q, notices %s", turn.TurnNumber, w.Said(c), notices(w, c))
	}
	sessions := conversationtest.Bodies[transcript.StageBody](w, c, transcript.Stage)
	if got := sessions[len(sessions)-2]; got.Stage != "session" || got.Detail["session"] != "new" {
		t.Errorf("the session's stage: %+v", got)
	}
}

func TestARuntimeThatAnswersNothingIsInterruptedAtOnce(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent("-mute"), WorkspaceID: ws}).ID
	w.Prompt(c, "say nothing")
	w.Until("the turn to wait for the runtime", func() bool {
		f := w.Turn(c, 1).WaitingFor
		return f != nil && f.Reason == conversation.ForAdapter
	})
	if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, nil); err != nil {
		t.Fatal(err)
	}
	must(t, w.Ended(c, 1), conversation.Interrupted, "")
	if got := w.InMachine(*ws, "pgrep -cf '[a]gent -mute' || true"); got != "0" {
		t.Errorf("%s processes of the runtime are left", got)
	}
}

func TestRunningOutOfMemoryIsNamed(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t, conversationtest.Options{Limits: sandbox.Limits{MemoryBytes: 192 << 20}})
	caps, err := w.Provider.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ws := w.Workspace(w.Environment(nil))
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID}).ID
	if !caps.MemoryLimit {
		t.Log("this host cannot limit memory: nothing can run out of it")
		must(t, w.Ask(c, "say fine"), conversation.Completed, "")
		return
	}
	must(t, w.Ask(c, "say eating", "eat"), conversation.Failed, conversation.CodeOutOfMemory)
	must(t, w.Ask(c, "say fine"), conversation.Completed, "")
}

func TestClaudeRemembersAcrossASleepOfItsMachine(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	w.Outside.Model.Script("remember the number 4711", testworld.Reply{testworld.Say("I will.")})
	w.Outside.Model.Script("which number", testworld.Reply{testworld.Say("4711.")})
	ws := w.Workspace(w.Environment(nil))
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	must(t, w.Ask(c, "remember the number 4711"), conversation.Completed, "")
	before := time.Now()
	w.Pause(func() { w.StopMachine(ws.ID) })
	must(t, w.Ask(c, "which number?"), conversation.Completed, "")
	calls := w.Outside.Model.Calls()
	if last := calls[len(calls)-1]; last.Marker != "which number" || !strings.Contains(string(last.Body), "4711") {
		t.Errorf("the last call since %s did not hold what was said before", before)
	}
	if got := stages(w, c); !strings.Contains(got, "wake done, adapter done, session done, turn done") || strings.Count(got, "home done") != 1 {
		t.Errorf("stages: %s", got)
	}
}
