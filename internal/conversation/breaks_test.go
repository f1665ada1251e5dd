package conversation_test

import (
	"strings"
	"testing"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/testworld"
)

// breaks runs a turn of claude whose model's stream is broken by what the test does once half of the answer came, and
// sees that the turn says so, that the model was asked once, and that the conversation goes on.
func breaks(t *testing.T, status, reason string, then func(w *conversationtest.World), rest ...testworld.Step) {
	t.Helper()
	w := conversationtest.New(t)
	conversationtest.InstallClaude(t)
	ws := w.Workspace(w.Environment(nil))
	gate := testworld.NewGate()
	t.Cleanup(gate.Open)
	w.Outside.Model.Script("break off", append(testworld.Reply{testworld.Say("Half of "), testworld.Wait(gate)}, rest...))
	w.Outside.Model.Script("hello", testworld.Reply{testworld.Say("Hello.")})
	c := w.Launch(conversation.CreateInput{AgentID: w.Claude(), WorkspaceID: &ws.ID}).ID
	w.Prompt(c, "break off")
	w.Until("half of the answer", func() bool { return strings.Contains(w.Said(c), "Half of") })
	then(w)
	gate.Open()
	turn := w.Ended(c, 1)
	if got := turn.Reason; turn.Status != status || turn.Error == nil || (got == nil) != (reason == "") || got != nil && *got != reason {
		t.Errorf("the turn is %s, %v, %+v", turn.Status, got, turn.Error)
	}
	if n := len(w.Outside.Model.Calls()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	if next := w.Ask(c, "hello"); next.Status != conversation.Completed || !strings.HasSuffix(w.Said(c), "Hello.") {
		t.Errorf("the next turn is %s, said %q", next.Status, w.Said(c))
	}
}

func TestAModelThatHangsUpInItsAnswerIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	breaks(t, conversation.Failed, "", func(*conversationtest.World) {}, testworld.HangUp())
}

func TestAnEgressProcessThatDiesUnderAnAnswerInterruptsTheTurnAndNothingIsAskedAgain(t *testing.T) {
	t.Parallel()
	breaks(t, conversation.Interrupted, conversation.ByEgressRestart, (*conversationtest.World).KillEgress, testworld.Say("an answer."))
}
