package conversation_test

import (
	"testing"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/refusal"
)

// Any server may make a machine. A turn that another one took meanwhile is given to the server of the machine's host, which
// goes on with it; no other takes it, and a host that is away is said.
func TestATurnWhoseMachineIsMadeOnAnotherHostIsHandedOver(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	p := parking{w, t}
	ws := w.Workspace(w.Environment(func(in *environment.Input) { in.SetupScript = "until test -e /home/sprite/go; do sleep 0.05; done" }))
	prompt := "say started"
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws.ID, Prompt: &prompt}).ID
	waits := func(reason string) func() bool {
		return func() bool {
			f := w.Turn(c, 1).WaitingFor
			return f != nil && f.Reason == reason
		}
	}
	w.Until("the turn to wait for the script", func() bool {
		return waits(conversation.ForSetup)() && w.Turn(c, 1).WaitingFor.Detail == "setup_script"
	})
	var here uuid.UUID
	other := uuid.New()
	if err := w.Instance.Owner(t).QueryRow(t.Context(), "select host_id from machines where id = $1", ws.SandboxID).Scan(&here); err != nil {
		t.Fatal(err)
	}
	p.exec("insert into hosts (id, url) values ($1, 'http://127.0.0.1:9')", other)
	p.exec("update machines set host_id = $2 where id = $1", ws.SandboxID, other)
	w.DuringSetup(ws.ID, "touch /home/sprite/go") // over the connection that stands
	w.Until("the turn to be let go", func() (free bool) {
		err := w.Instance.Owner(t).QueryRow(t.Context(), "select lease_until is null from operations where conversation_id = $1", c).Scan(&free)
		if err != nil {
			t.Fatal(err)
		}
		return free
	})
	if got := p.show(&ws.ID); got.Status != "ready" || got.MachineStatus != machine.Ready {
		t.Errorf("of another host's machine it was concluded: %s %s", got.Status, got.MachineStatus)
	}
	p.exec("update hosts set seen_at = now() - interval '1 minute' where id = $1", other)
	if !waits(conversation.ForHost)() {
		t.Errorf("the host is away, and the turn waits for %+v", w.Turn(c, 1).WaitingFor)
	}
	// As the server of that host.
	p.exec("update machines set host_id = $2 where id = $1", ws.SandboxID, here)
	must(t, w.Ended(c, 1), conversation.Completed, "")
	if w.Said(c) != "started" {
		t.Errorf("it said %q", w.Said(c))
	}

	// The agent is here and idle, and its host is drained: not even the short way takes a prompt.
	must(t, w.Ask(c, "say again"), conversation.Completed, "")
	p.exec("update hosts set draining_at = now() where id = $1", here)
	if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: "say more"}); !refusal.Is(err, refusal.HostDraining) {
		t.Errorf("a prompt on a host that is drained: %v", err)
	}
}
