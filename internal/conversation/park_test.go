package conversation_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
)

// lives are the lifetimes of these tests, in which the time passes by moving what is stored.
var lives = workspace.Lifetimes{Idle: time.Hour, Ceiling: 24 * time.Hour}

// parking is a world whose machines park, and what its tests do in it.
type parking struct {
	*conversationtest.World
	t *testing.T
}

// ready makes a workspace that is set up.
func (p parking) ready() *uuid.UUID {
	p.t.Helper()
	id := p.Workspace(p.Environment(nil)).ID
	p.Ready(id)
	return &id
}

// launch starts a conversation that has had a turn.
func (p parking) launch(ws *uuid.UUID) uuid.UUID {
	p.t.Helper()
	c := p.Launch(conversation.CreateInput{AgentID: p.World.Agent(""), WorkspaceID: ws}).ID
	must(p.t, p.Ask(c, "say hi "), conversation.Completed, "")
	return c
}

// exec changes rows of the world's database past everything.
func (p parking) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.Instance.Owner(p.t).Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

// pass lets a time pass for a workspace: its machine came up earlier, its turns ended earlier.
func (p parking) pass(ws *uuid.UUID, d time.Duration) {
	p.t.Helper()
	p.exec("update machines set woken_at = woken_at - make_interval(secs => $2) where workspace_id = $1", ws, d.Seconds())
	p.exec(`update turns set ended_at = ended_at - make_interval(secs => $2)
		where ended_at is not null and conversation_id in (select id from conversations where workspace_id = $1)`, ws, d.Seconds())
}

// sweep looks for what is due.
func (p parking) sweep() {
	p.t.Helper()
	if err := p.Workspaces.ParkDue(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// show reads a workspace.
func (p parking) show(ws *uuid.UUID) workspace.Workspace {
	p.t.Helper()
	got, err := p.Workspaces.Get(p.t.Context(), p.Owner.Actor, *ws)
	if err != nil {
		p.t.Fatal(err)
	}
	return got
}

// parked waits until a machine has parked.
func (p parking) parked(ws *uuid.UUID) workspace.Workspace {
	p.t.Helper()
	p.Until("the machine to park", func() bool { return p.show(ws).MachineStatus == machine.Suspended })
	return p.show(ws)
}

// operations counts what was done with a workspace's machine.
func (p parking) operations(ws *uuid.UUID, kind, state string) (n int) {
	p.t.Helper()
	err := p.Instance.Owner(p.t).QueryRow(p.t.Context(), "select count(*) from operations where workspace_id = $1 and kind = $2 and state = $3", ws, kind, state).Scan(&n)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// agents counts the adapters that run in a workspace's machine.
func (p parking) agents(ws *uuid.UUID) string { return p.InMachine(*ws, "pgrep -xc agent || true") }

func TestMachinesPark(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t, conversationtest.Options{Lives: lives})
	in := func(name string, fn func(p parking)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(parking{w, t})
		})
	}

	in("after the last turn's end, and the next prompt wakes only what it needs", func(p parking) {
		ws := p.ready()
		one, two := p.launch(ws), p.launch(ws)
		last := p.Turn(two, 1)
		if got := p.show(ws); got.IdleSince == nil || !got.IdleSince.Equal(*last.EndedAt) || got.ParksAt == nil || !got.ParksAt.Equal(last.EndedAt.Add(time.Hour)) {
			p.t.Errorf("idle since %v, parks at %v; the last turn ended at %v", got.IdleSince, got.ParksAt, last.EndedAt)
		}
		p.pass(ws, 50*time.Minute)
		p.sweep()
		if got := p.show(ws); got.MachineStatus != machine.Ready || got.Transition != "" {
			p.t.Errorf("after 50 minutes it is %s %s", got.MachineStatus, got.Transition)
		}
		p.pass(ws, 10*time.Minute)
		p.sweep()
		if got := p.parked(ws); got.IdleSince != nil || got.ParksAt != nil || !strings.Contains(got.WaitingReason, "1 hour") || got.Transition != "" {
			p.t.Errorf("parked: %+v", got)
		}
		rows := len(p.Rows(one))
		must(p.t, p.Ask(one, "say again"), conversation.Completed, "")
		if n := p.agents(ws); n != "1" || p.operations(ws, "wake", "done") != 1 {
			p.t.Errorf("%s agents run after one prompt, %d wakes", n, p.operations(ws, "wake", "done"))
		}
		if got := stages(p.World, one); !strings.HasSuffix(got, "turn done, wake done, adapter done, session done, turn done") || rows == 0 {
			p.t.Errorf("stages: %s", got)
		}
		// It has only just come up.
		if got := p.show(ws); got.IdleSince == nil || time.Since(*got.IdleSince) > 10*time.Minute {
			p.t.Errorf("idle since %v", got.IdleSince)
		}
		// Two prompts wake once.
		p.pass(ws, time.Hour)
		p.sweep()
		p.parked(ws)
		var asked sync.WaitGroup
		for _, c := range []uuid.UUID{one, two} {
			turn := p.Prompt(c, "say together").TurnNumber
			asked.Go(func() { p.Ended(c, turn) })
		}
		asked.Wait()
		if p.Said(one) != "hi againtogether" || p.Said(two) != "hi together" || p.operations(ws, "wake", "done") != 2 || p.agents(ws) != "2" {
			p.t.Errorf("said %q and %q, %d wakes, %s agents", p.Said(one), p.Said(two), p.operations(ws, "wake", "done"), p.agents(ws))
		}
		// A person wakes it, and nothing runs on it.
		p.pass(ws, time.Hour)
		p.sweep()
		p.parked(ws)
		got, err := p.Workspaces.Wake(p.t.Context(), p.Owner.Actor, *ws)
		if err != nil || got.MachineStatus != machine.Starting && got.MachineStatus != machine.Ready {
			p.t.Errorf("woken: %+v %v", got, err)
		}
		p.Until("the machine to be up", func() bool { return p.show(ws).MachineStatus == machine.Ready })
		if n := p.agents(ws); n != "0" {
			p.t.Errorf("%s agents run after a wake", n)
		}
	})

	in("also when it was never used", func(p parking) {
		ws := p.ready()
		p.pass(ws, time.Hour)
		// Never means never.
		if refs, err := p.DB.Due(p.t.Context(), db.DueParks, p.Machines.Host(), 0.0, 0.0); err != nil || len(refs) != 0 {
			p.t.Errorf("without a timeout %v are due, %v", refs, err)
		}
		p.sweep()
		p.parked(ws)
	})

	in("not while a turn runs that prints nothing", func(p parking) {
		ws := p.ready()
		c, other := p.launch(ws), p.launch(ws)
		flag := "/home/sprite/go-" + uuid.NewString()
		turn := p.Prompt(c, "wait "+flag, "say done").TurnNumber
		p.pass(ws, 3*time.Hour)
		p.sweep()
		if got := p.show(ws); got.MachineStatus != machine.Ready || got.Transition != "" || got.IdleSince != nil || got.ParksAt != nil {
			p.t.Errorf("while the turn runs: %+v", got)
		}
		touch(p.t, p.World, *ws, flag)
		must(p.t, p.Ended(c, turn), conversation.Completed, "")
		p.sweep()
		must(p.t, p.Ask(other, "say still here"), conversation.Completed, "")
		if n := p.operations(ws, "park", "done"); n != 0 {
			p.t.Errorf("%d parks", n)
		}
	})

	in("at the end of its lifetime, which ends the turns on it", func(p parking) {
		ws := p.ready()
		c := p.launch(ws)
		turn := p.Prompt(c, "say working", "sleep 600000").TurnNumber
		p.Until("the agent to work", func() bool { return strings.HasSuffix(p.Said(c), "working") })
		p.pass(ws, 24*time.Hour)
		p.sweep()
		ended := p.Ended(c, turn)
		must(p.t, ended, conversation.Interrupted, "")
		if ended.Reason == nil || *ended.Reason != conversation.ByParking {
			p.t.Errorf("reason %v", ended.Reason)
		}
		if got := p.parked(ws); !strings.Contains(got.WaitingReason, "24 hours") {
			p.t.Errorf("parked: %q", got.WaitingReason)
		}
		if got := stages(p.World, c); !strings.HasSuffix(got, "turn interrupted machine_parked") {
			p.t.Errorf("stages: %s", got)
		}
		must(p.t, p.Ask(c, "say back"), conversation.Completed, "")
		p.sweep() // the clock began again with the wake
		if got := p.show(ws); got.MachineStatus != machine.Ready || got.Transition != "" {
			p.t.Errorf("after the wake it is %s %s", got.MachineStatus, got.Transition)
		}
	})

	in("one bad row beside", func(p parking) {
		bad, good := p.ready(), p.ready()
		p.exec(`update machines set base = '"not a base"' where workspace_id = $1`, bad)
		p.pass(bad, 2*time.Hour)
		p.pass(good, time.Hour)
		p.sweep()
		p.parked(good)
		var status string
		if err := p.Instance.Owner(p.t).QueryRow(p.t.Context(), "select status || transition from machines where workspace_id = $1", bad).Scan(&status); err != nil || status != "ready" {
			p.t.Errorf("the bad one is %s, %v", status, err)
		}
		p.exec(`update machines set base = '{}' where workspace_id = $1`, bad)
	})

	in("and stay parked when the provider does not start them", func(p parking) {
		ws := p.ready()
		c := p.launch(ws)
		p.InMachine(*ws, "echo kept > ~/file")
		p.pass(ws, time.Hour)
		p.sweep()
		p.parked(ws)
		mend := p.BreakMachine(*ws)
		must(p.t, p.Ask(c, "say no"), conversation.Failed, string(refusal.SandboxUnreachable))
		if got := p.show(ws); got.MachineStatus != machine.Suspended || got.Transition != "" || got.WaitingReason == "" {
			p.t.Errorf("after the refusal: %+v", got)
		}
		if got := stages(p.World, c); !strings.HasSuffix(got, "wake failed sandbox_unreachable, turn failed sandbox_unreachable") {
			p.t.Errorf("stages: %s", got)
		}
		mend()
		must(p.t, p.Ask(c, "say yes"), conversation.Completed, "")
		if got := p.InMachine(*ws, "cat ~/file"); got != "kept" {
			p.t.Errorf("the disk has %q", got)
		}
	})
}

func TestAParkAndAPromptThatMeet(t *testing.T) {
	t.Parallel()
	p := parking{conversationtest.New(t, conversationtest.Options{Lives: lives}), t}
	first, late := p.ready(), p.ready()
	before, after := p.launch(first), p.launch(late)
	agent := p.InMachine(*first, "pgrep -x agent")
	p.Pause(func() {
		// Nobody works on what is decided now.
		p.pass(first, time.Hour)
		p.pass(late, time.Hour)
		p.sweep()
		for _, ws := range []*uuid.UUID{first, late} {
			if got := p.show(ws); got.MachineStatus != machine.Ready || got.Transition != "parking" || got.ParksAt != nil {
				p.t.Errorf("decided: %+v", got)
			}
		}
		p.Prompt(before, "say first")
		p.Prompt(after, "say late")
		// This park has read its conditions again, before the prompt came.
		p.exec(`update operations set payload = '{"code": "", "message": "decided"}' where workspace_id = $1 and kind = 'park'`, late)
	})
	must(t, p.Ended(before, 2), conversation.Completed, "")
	must(t, p.Ended(after, 2), conversation.Completed, "")
	if got := p.InMachine(*first, "pgrep -x agent"); got != agent {
		t.Errorf("the agent %s is %s now", agent, got)
	}
	if p.operations(first, "park", "failed") != 1 || p.operations(first, "wake", "done") != 0 || strings.Contains(stages(p.World, before), "wake") {
		t.Errorf("a park that met a prompt: %d stood down, %d wakes, stages %s", p.operations(first, "park", "failed"), p.operations(first, "wake", "done"), stages(p.World, before))
	}
	if p.operations(late, "park", "done") != 1 || p.operations(late, "wake", "done") != 1 {
		t.Errorf("a prompt that met a park: %d parks, %d wakes", p.operations(late, "park", "done"), p.operations(late, "wake", "done"))
	}
	if got := stages(p.World, after); !strings.HasSuffix(got, "turn done, wake done, adapter done, session done, turn done") {
		t.Errorf("stages: %s", got)
	}
	if prompts := conversationtest.Bodies[transcript.PromptBody](p.World, after, transcript.Prompt); len(prompts) != 2 {
		t.Errorf("%d prompts", len(prompts))
	}
	// A prompt whose machine may not start is refused as it is sent: nothing of it is shown, and the machine stays parked.
	p.pass(first, 2*time.Hour)
	p.sweep()
	p.parked(first)
	p.exec("update quotas set running_machines = 1 where tenant_id = $1", p.Owner.TenantID) // and one runs
	_, err := p.Conversations.Prompt(t.Context(), p.Owner.Actor, before, conversation.PromptInput{Prompt: "say too much"})
	if r, _ := refusal.As(err); !refusal.Is(err, refusal.SandboxQuotaExceeded) || r.RetryAfterSeconds() == 0 {
		t.Errorf("over the account's cap: %v", err)
	}
	if c, err := p.Conversations.Get(t.Context(), p.Owner.Actor, before); err != nil || c.TurnCount != 2 || c.CurrentTurn != nil {
		t.Errorf("after it: %+v %v", c, err)
	}
	if got := p.show(first); got.MachineStatus != machine.Suspended || got.Transition != "" || p.operations(first, "wake", "done") != 0 {
		t.Errorf("its machine is %s %s", got.MachineStatus, got.Transition)
	}
	p.exec("update quotas set running_machines = null where tenant_id = $1", p.Owner.TenantID)
	must(t, p.Ask(before, "say again"), conversation.Completed, "")
}
