package conversation_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
)

// Without its provider a machine is not reached, even though it runs on: turns say so and what to do, and nothing is lost.
func TestADisabledProviderIsSaidInTheTranscriptWithItsAdvice(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	ws := w.Ready(w.Workspace(w.Environment(nil)).ID)
	w.InMachine(ws.ID, "echo kept > ~/kept")
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID})
	idle := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID})
	must(t, w.Ask(idle.ID, "say here"), conversation.Completed, "")
	w.Prompt(c.ID, "say working", "sleep 600000")
	w.Until("the agent to work", func() bool { return strings.Contains(w.Said(c.ID), "working") })

	w.Offer(false)
	said := func(id uuid.UUID, stage string) {
		t.Helper()
		for _, s := range conversationtest.Bodies[transcript.StageBody](w, id, transcript.Stage) {
			if s.Stage == stage && s.State == "failed" {
				if s.Reason != string(refusal.ProviderDisabled) || !strings.Contains(s.Advice, "another provider") {
					t.Errorf("stage %s: %+v", stage, s)
				}
				return
			}
		}
		t.Errorf("no stage %s has failed", stage)
	}
	must(t, w.Ended(c.ID, 1), conversation.Failed, string(refusal.ProviderDisabled))
	said(c.ID, "reattach")
	must(t, w.Ask(c.ID, "say again"), conversation.Failed, string(refusal.ProviderDisabled))
	said(c.ID, "wake")
	// An agent that waited for a prompt is not reached either, and runs on.
	must(t, w.Ask(idle.ID, "say again"), conversation.Failed, string(refusal.ProviderDisabled))
	said(idle.ID, "reattach")

	w.Offer(true)
	must(t, w.Ask(c.ID, "say back"), conversation.Completed, "")
	must(t, w.Ask(idle.ID, "say back"), conversation.Completed, "")
	if got := w.InMachine(ws.ID, "cat ~/kept"); got != "kept" {
		t.Errorf("the disk has %q", got)
	}
	if now, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID); err != nil || now.Status != workspace.Ready || *now.SandboxID != *ws.SandboxID {
		t.Errorf("%+v %v", now, err)
	}
}
