package conversation_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/testworld"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/sandbox"
)

// rebuild asks for another machine.
func (p parking) rebuild(ws *uuid.UUID, in workspace.RebuildInput) (workspace.Workspace, error) {
	p.t.Helper()
	return p.Workspaces.Rebuild(p.t.Context(), p.Owner.Actor, *ws, in)
}

// lose has a workspace's machine be lost, as its provider says.
func (p parking) lose(ws *uuid.UUID) {
	p.t.Helper()
	p.exec("update machines set status = 'lost', ended_at = now() where id = (select machine_id from workspaces where id = $1)", ws)
	p.DestroyMachine(*ws)
}

// interrupted checks the end of a turn whose machine went away.
func (p parking) interrupted(c uuid.UUID, number int) {
	p.t.Helper()
	turn := p.Ended(c, number)
	must(p.t, turn, conversation.Interrupted, "")
	if turn.Reason == nil || *turn.Reason != conversation.ByDestruction {
		p.t.Errorf("turn %d ended for the reason %v", number, turn.Reason)
	}
}

// machines are those that the provider has of a workspace.
func (p parking) machines(ws *uuid.UUID) []sandbox.Info {
	p.t.Helper()
	infos, err := p.Provider.List(p.t.Context(), map[string]string{sandbox.LabelWorkspace: ws.String()})
	if err != nil {
		p.t.Fatal(err)
	}
	return infos
}

func TestARebuild(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t, conversationtest.Options{Lives: lives})
	outlivesItsServer(parking{w, t})
	in := func(name string, fn func(p parking)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(parking{w, t})
		})
	}

	in("ends the turns that run and wait when it is told to, and keeps every conversation", func(p parking) {
		ws := p.ready()
		c, idle := p.launch(ws), p.launch(ws)
		first := p.show(ws)
		p.InMachine(*ws, "echo lost > ~/work")
		p.Prompt(c, "say working", "sleep 600000")
		queued, err := p.Conversations.Prompt(p.t.Context(), p.Owner.Actor, c, conversation.PromptInput{Prompt: "say never", Queue: true})
		if err != nil {
			p.t.Fatal(err)
		}
		p.Until("the agent to work", func() bool { return strings.HasSuffix(p.Said(c), "working") })
		_, err = p.rebuild(ws, workspace.RebuildInput{})
		r, _ := refusal.As(err)
		if !refusal.Is(err, refusal.TurnsRunning) || r.Fields["running"] != 1 || r.Fields["pending"] != 1 {
			p.t.Fatalf("without interrupt: %v", err)
		}
		open := r.Fields["turns"].([]workspace.OpenTurn)
		if len(open) != 2 || open[0].ConversationID != c || open[0].TurnNumber != 2 || open[0].Status != conversation.Running || open[0].Title != "say hi" || open[1].TurnID != queued.ID {
			p.t.Errorf("it names %+v", open)
		}
		if got := p.show(ws); *got.SandboxID != *first.SandboxID || got.Status != workspace.Ready || p.Turn(c, 2).Status != conversation.Running || p.Turn(c, 3).Status != conversation.Pending {
			p.t.Errorf("what was refused changed something: %+v", got)
		}
		got, err := p.rebuild(ws, workspace.RebuildInput{Interrupt: true})
		if err != nil || got.Status != workspace.Provisioning || *got.SandboxID == *first.SandboxID || got.SetupID == first.SetupID {
			p.t.Fatalf("%+v %v", got, err)
		}
		if _, err := p.rebuild(ws, workspace.RebuildInput{Interrupt: true}); !refusal.Is(err, refusal.RebuildInProgress) {
			p.t.Errorf("a second one: %v", err)
		}
		late := p.Prompt(idle, "say back").TurnNumber // waits for the setup
		p.interrupted(c, 2)
		p.interrupted(c, 3)
		must(p.t, p.Ended(idle, late), conversation.Completed, "")
		must(p.t, p.Ask(c, "say again"), conversation.Completed, "")
		if p.Said(c) != "hi workingagain" || p.Said(idle) != "hi back" || notices(p.World, c) != "new_machine" || notices(p.World, idle) != "new_machine" {
			p.t.Errorf("said %q and %q, notices %s and %s", p.Said(c), p.Said(idle), notices(p.World, c), notices(p.World, idle))
		}
		if got := story(p.World, c); !strings.HasSuffix(got, "2? say working; sleep 600000, 3? say never, 3 interrupted machine_destroyed, 2 interrupted machine_destroyed, 4? say again, 4 done") {
			p.t.Errorf("the transcript: %s", got)
		}
		if got := stages(p.World, c); !strings.HasSuffix(got, "turn interrupted machine_destroyed, turn interrupted machine_destroyed, home done, adapter done, session done, turn done") {
			p.t.Errorf("stages: %s", got)
		}
		kinds := []string{}
		for _, row := range p.Rows(idle) {
			if row.Type == transcript.Notice || row.Type == transcript.Message {
				kinds = append(kinds, row.Type)
			}
		}
		if !slices.Equal(kinds, []string{transcript.Message, transcript.Notice, transcript.Message}) {
			p.t.Errorf("the notice must come before the next answer: %v", kinds)
		}
		if exists(p.t, p.World, *ws, "/home/sprite/work") || len(p.machines(ws)) != 1 || p.agents(ws) != "2" {
			p.t.Errorf("the old disk: %v, %d machines, %s agents", exists(p.t, p.World, *ws, "/home/sprite/work"), len(p.machines(ws)), p.agents(ws))
		}
		var log strings.Builder
		steps, err := p.Workspaces.SetupLog(p.t.Context(), p.Owner.Actor, *ws)
		for _, s := range steps.Steps {
			log.WriteString(s.Output)
		}
		if err != nil || !strings.Contains(log.String(), "Removing the machine that was there before.") {
			p.t.Errorf("the setup's log: %s %v", log.String(), err)
		}
		var trail string
		if err := p.Instance.Owner(p.t).QueryRow(p.t.Context(), "select count(*) || ' ' || min(actor_kind) from audit_events where resource_id = $1 and action = 'workspace.rebuild'", ws.String()).Scan(&trail); err != nil || trail != "1 key" {
			p.t.Errorf("the trail says %q, %v", trail, err)
		}
	})

	in("and a prompt that meet have one outcome", func(p parking) {
		ws := p.ready()
		c, fresh := p.launch(ws), p.World.Agent("")
		rebuilt := 0
		for i := range 4 {
			before := *p.show(ws).SandboxID
			var err error
			var meet sync.WaitGroup
			var turn conversation.Turn
			other := uuid.Nil
			meet.Go(func() { _, err = p.rebuild(ws, workspace.RebuildInput{Interrupt: i == 3}) })
			meet.Go(func() { turn = p.Prompt(c, "say .") })
			if i%2 == 1 {
				meet.Go(func() {
					prompt := "say ."
					other = p.Launch(conversation.CreateInput{AgentID: fresh, WorkspaceID: ws, Prompt: &prompt}).ID
				})
			}
			meet.Wait()
			end := p.Ended(c, turn.TurnNumber)
			ends := []conversation.Turn{end}
			if other != uuid.Nil {
				ends = append(ends, p.Ended(other, 1))
			}
			if err == nil {
				rebuilt++
			}
			for _, end := range ends {
				switch {
				case end.Status == conversation.Completed: // before a rebuild that was refused, or after one
				case i == 3 && end.Status == conversation.Interrupted && *end.Reason == conversation.ByDestruction:
				default:
					p.t.Errorf("the turn ended %s %+v", end.Status, end.Error)
				}
			}
			if err != nil && !refusal.Is(err, refusal.TurnsRunning) {
				p.t.Error(err)
			}
			if now := *p.Ready(*ws).SandboxID; (now != before) != (err == nil) {
				p.t.Errorf("rebuild answered %v, and the machine was %s and is %s", err, before, now)
			}
		}
		p.t.Logf("%d of 4 came first", rebuilt)
	})

	in("works whatever the old machine is in", func(p parking) {
		ws := p.ready()
		c := p.launch(ws)
		for what, with := range map[string]func(){
			"parked": func() {
				p.pass(ws, time.Hour)
				p.sweep()
				p.parked(ws)
			},
			"dead": func() { p.KillGuest(*ws) },
			"lost": func() { p.lose(ws) },
		} {
			before := *p.show(ws).SandboxID
			with()
			if _, err := p.rebuild(ws, workspace.RebuildInput{}); err != nil {
				p.t.Errorf("%s: %v", what, err)
			}
			if got := p.Ready(*ws); *got.SandboxID == before || got.MachineStatus != machine.Ready || len(p.machines(ws)) != 1 {
				p.t.Errorf("%s: %+v, %d machines", what, got, len(p.machines(ws)))
			}
			must(p.t, p.Ask(c, "say ."), conversation.Completed, "")
		}
		if got := p.Said(c); got != "hi ..." {
			p.t.Errorf("said %q", got)
		}
	})

	in("is not for a conversation's own machine, nor for what is deleted", func(p parking) {
		own := p.Launch(conversation.CreateInput{AgentID: p.World.Agent("")}).WorkspaceID
		if _, err := p.rebuild(&own, workspace.RebuildInput{Interrupt: true}); !refusal.Is(err, refusal.ImplicitWorkspace) {
			p.t.Errorf("of a conversation's own: %v", err)
		}
		made := p.Workspace(p.Environment(func(in *environment.Input) { in.SetupScript = "sleep 600" }))
		if _, err := p.rebuild(&made.ID, workspace.RebuildInput{}); !refusal.Is(err, refusal.RebuildInProgress) {
			p.t.Errorf("during the first setup: %v", err)
		}
		if err := p.Workspaces.Delete(p.t.Context(), p.Owner.Actor, made.ID); err != nil {
			p.t.Fatal(err)
		}
		if _, err := p.rebuild(&made.ID, workspace.RebuildInput{}); !refusal.Is(err, refusal.WorkspaceDeleting) && !refusal.Is(err, refusal.NotFound) {
			p.t.Errorf("of a deleted one: %v", err)
		}
	})
}

// outlivesItsServer has a rebuild be accepted and its server end before anything of it is done: the next one ends the turn, and
// builds the machine.
func outlivesItsServer(p parking) {
	p.t.Helper()
	ws := p.ready()
	c := p.launch(ws)
	turn := p.Prompt(c, "say working", "sleep 600000").TurnNumber
	p.Until("the agent to work", func() bool { return strings.HasSuffix(p.Said(c), "working") })
	before := *p.show(ws).SandboxID
	p.Pause(func() {
		if _, err := p.rebuild(ws, workspace.RebuildInput{Interrupt: true}); err != nil {
			p.t.Fatal(err)
		}
	})
	p.interrupted(c, turn)
	if got := p.Ready(*ws); *got.SandboxID == before || len(p.machines(ws)) != 1 {
		p.t.Errorf("%+v, %d machines", got, len(p.machines(ws)))
	}
	must(p.t, p.Ask(c, "say there"), conversation.Completed, "")
	if p.Said(c) != "hi workingthere" || notices(p.World, c) != "new_machine" {
		p.t.Errorf("said %q, notices %s", p.Said(c), notices(p.World, c))
	}
}

// A conversation that starts, or is woken, after an edit has the environment's variables and network as they are then; one that
// runs keeps its own, and the machine its file.
func TestAnEditOfTheEnvironmentReachesConversationsAsTheyStart(t *testing.T) {
	t.Parallel()
	p := parking{conversationtest.New(t, conversationtest.Options{Lives: lives}), t}
	repo := p.Outside.Git.Add("repo", testworld.Files{"README": "x\n"})
	env := p.Environment(func(in *environment.Input) { in.EnvVars = map[string]string{"EDITION": "first"} })
	made := p.Workspace(env)
	ws := &made.ID
	p.Ready(*ws)
	runs := p.launch(ws)
	// edition is the variable as a conversation's agent has it, and whether a command of it reaches the repository.
	edition := func(c uuid.UUID) (variable string, reached bool) {
		t.Helper()
		before := len(p.Said(c))
		must(t, p.Ask(c, "env EDITION", "terminal git ls-remote "+repo.URL), conversation.Completed, "")
		results := conversationtest.Bodies[transcript.ToolResultBody](p.World, c, transcript.ToolResult)
		code := results[len(results)-1].ExitCode
		return p.Said(c)[before:], code != nil && *code == 0
	}
	check := func(what string, c uuid.UUID, variable string, reached bool) {
		t.Helper()
		if v, r := edition(c); !strings.HasPrefix(v, "EDITION="+variable+"{") || r != reached {
			t.Errorf("%s: has %q, reaches the repository %v; want %q, %v", what, v, r, variable, reached)
		}
	}
	check("before", runs, "first", true)
	if _, err := p.Environments.Update(t.Context(), p.Owner.Actor, env, func(in *environment.Input) error {
		in.EnvVars, in.NetworkingType = map[string]string{"EDITION": "second"}, "limited"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := p.show(ws); !slices.Equal(got.ChangedFields, []string{"env_vars", "networking_type"}) {
		t.Errorf("changed fields %v", got.ChangedFields)
	}
	check("one that runs", runs, "first", true)
	check("one that starts", p.Launch(conversation.CreateInput{AgentID: p.World.Agent(""), WorkspaceID: ws}).ID, "second", false)
	p.pass(ws, time.Hour)
	p.sweep()
	p.parked(ws)
	check("one that is woken", runs, "second", false)
	if got := p.InMachine(*ws, "grep EDITION ~/.env"); !strings.Contains(got, "first") || strings.Contains(got, "second") {
		t.Errorf("the machine's file says %q", got)
	}
	if _, err := p.rebuild(ws, workspace.RebuildInput{}); err != nil {
		t.Fatal(err)
	}
	if got := p.Ready(*ws); got.Stale {
		t.Errorf("after a rebuild: %v", got.ChangedFields)
	}
	if got := p.InMachine(*ws, "grep EDITION ~/.env"); !strings.Contains(got, "second") {
		t.Errorf("after a rebuild the machine's file says %q", got)
	}
}

func TestALostMachine(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	in := func(name string, fn func(p parking)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(parking{w, t})
		})
	}

	in("is built again once for two prompts, and takes the turns on it with it", func(p parking) {
		ws := p.ready()
		one, two, works := p.launch(ws), p.launch(ws), p.launch(ws)
		turn := p.Prompt(works, "say working", "sleep 600000").TurnNumber
		p.Until("the agent to work", func() bool { return strings.HasSuffix(p.Said(works), "working") })
		p.lose(ws)
		numbers := map[uuid.UUID]int{}
		for _, c := range []uuid.UUID{one, two} {
			numbers[c] = p.Prompt(c, "say there").TurnNumber
		}
		for c, n := range numbers {
			must(p.t, p.Ended(c, n), conversation.Completed, "")
			if n != 2 || p.Said(c) != "hi there" || notices(p.World, c) != "new_machine" {
				p.t.Errorf("turn %d, said %q, notices %s", n, p.Said(c), notices(p.World, c))
			}
		}
		p.interrupted(works, turn)
		if n := p.operations(ws, "setup", "done"); n != 2 {
			p.t.Errorf("%d setups", n)
		}
		rebuilds := strings.Count(stages(p.World, one)+stages(p.World, two), "rebuild done machine_lost")
		if rebuilds != 1 {
			p.t.Errorf("%d of them say that they had it built: %s; %s", rebuilds, stages(p.World, one), stages(p.World, two))
		}
	})

	in("is built again for a conversation once in ten minutes", func(p parking) {
		ws := p.ready()
		c := p.launch(ws)
		p.lose(ws)
		must(p.t, p.Ask(c, "say one "), conversation.Completed, "")
		p.lose(ws)
		turn := p.Ask(c, "say no")
		must(p.t, turn, conversation.Failed, conversation.CodeMachineLostAgain)
		if !strings.Contains(turn.Error.Message, "The next prompt builds another") || !strings.HasSuffix(stages(p.World, c), "rebuild failed machine_lost_again, turn failed machine_lost_again") {
			p.t.Errorf("%q; %s", turn.Error.Message, stages(p.World, c))
		}
		if got := p.show(ws); got.MachineStatus != machine.Lost || got.Status != workspace.Ready {
			p.t.Errorf("after it: %+v", got)
		}
		must(p.t, p.Ask(c, "say two "), conversation.Completed, "")
		// Ten minutes later it is built again at once.
		p.exec("update conversations set rebuilt_at = rebuilt_at - interval '10 minutes' where id = $1", c)
		p.lose(ws)
		must(p.t, p.Ask(c, "say three"), conversation.Completed, "")
		if got := p.Said(c); got != "hi one two three" || p.operations(ws, "setup", "done") != 4 {
			p.t.Errorf("said %q after %d setups", got, p.operations(ws, "setup", "done"))
		}
	})

	in("that goes while the agent is made ready takes no prompt with it", func(p parking) {
		ws := p.ready()
		c := p.Launch(conversation.CreateInput{AgentID: p.World.Agent("-mute"), WorkspaceID: ws}).ID
		turn := p.Prompt(c, "say nothing").TurnNumber
		p.Until("the agent to start", func() bool { return p.agents(ws) == "1" })
		before := *p.show(ws).SandboxID
		p.lose(ws)
		p.Until("the next agent to start", func() bool {
			got := p.show(ws)
			return *got.SandboxID != before && got.Status == workspace.Ready && p.agents(ws) == "1"
		})
		if got := p.Turn(c, turn); got.Status != conversation.Running || got.TurnNumber != 1 {
			p.t.Errorf("the turn: %+v", got)
		}
		if _, err := p.Conversations.Interrupt(p.t.Context(), p.Owner.Actor, c, nil); err != nil {
			p.t.Fatal(err)
		}
		must(p.t, p.Ended(c, turn), conversation.Interrupted, "")
	})
}
