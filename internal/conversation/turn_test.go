package conversation_test

import (
	"testing"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
)

func TestASecondPromptContinuesTheSameProcessAndSession(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	ws := w.Workspace(w.Environment(nil))
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID})
	first := w.Ask(c.ID, "say hello", "env MANAGOAT_CONVERSATION_ID", "cwd")
	if first.Status != conversation.Completed || first.StopReason == nil || *first.StopReason != "end_turn" || first.Attempts != 1 {
		t.Fatalf("the first turn: %+v", first)
	}
	if want := "hello" + "MANAGOAT_CONVERSATION_ID=" + c.ID.String() + "/home/sprite"; w.Said(c.ID) != want {
		t.Fatalf("the agent said %q, want %q", w.Said(c.ID), want)
	}
	for _, r := range w.Rows(c.ID) {
		t.Log(r.Seq, r.Type, string(r.Body))
	}
}
