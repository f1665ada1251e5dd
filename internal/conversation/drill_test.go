package conversation_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/secret"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/sandbox/guest"
)

// outage is how long PostgreSQL is away.
const outage = 10 * time.Second

// hidden is a secret whose two halves come with something between.
const hidden = "hidden-value-of-the-first-half-and-of-the-second"

// hides makes an environment with the secret.
func hides(t *testing.T, w *conversationtest.World, edit func(*environment.Input)) uuid.UUID {
	t.Helper()
	env := w.Environment(edit)
	if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env, environment.SecretInput{Key: "HIDDEN", Value: secretOf(hidden)}); err != nil {
		t.Fatal(err)
	}
	return env
}

// PostgreSQL is killed under turns at every place and under a setup, and comes back: each goes on, and nothing is lost,
// doubled or shown that was hidden.
func TestPostgreSQLIsAwayUnderTurnsAndASetup(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t, conversationtest.Options{Postgres: true})
	env := hides(t, w, nil)
	ws := w.Workspace(env).ID
	w.Ready(ws)
	launch := func() uuid.UUID { return w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws}).ID }
	says, works, begins := launch(), launch(), launch()
	w.Prompt(says, "say one|", "wait /tmp/first", "say "+hidden[:20], "wait /tmp/second", "say "+hidden[20:], "lots 2000", "tool last", "say |end")
	w.Prompt(works, "terminal echo one; until test -e /tmp/second; do sleep 0.05; done; echo $HIDDEN; exit 3")
	w.Until("the agents to work", func() bool {
		return w.Said(says) == "one|" && len(conversationtest.Bodies[transcript.ToolOutputBody](w, works, transcript.ToolOutput)) > 0
	})
	setup := w.Workspace(w.Environment(func(in *environment.Input) {
		in.SetupScript = "echo one; until test -e /tmp/first; do sleep 0.05; done; echo two"
	}))
	script := func(id uuid.UUID) (step workspace.LogStep) {
		log, err := w.Workspaces.SetupLog(t.Context(), w.Owner.Actor, id)
		if err != nil {
			t.Fatal(err)
		}
		return log.Steps[len(log.Steps)-1]
	}
	w.Until("the setup's script to run", func() bool { return script(setup.ID).Output == "one\n" })
	waits := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &setup.ID}).ID
	w.Prompt(waits, "say waited")
	w.Until("the turn to wait for the setup", func() bool { return w.Turn(waits, 1).Status == conversation.Running })
	files := []func(file string){guestOf(t, w, ws), toucher(t, w.InSetup(setup.ID))}

	w.Prompt(begins, "say begun") // and is in the middle of its way to the agent
	w.Postgres.Kill(t)
	began := time.Now()
	for _, file := range []string{"/tmp/first", "/tmp/second"} {
		for _, in := range files {
			in(file)
		}
	}
	<-time.After(outage - time.Since(began))
	w.Postgres.Start(t)

	for id, said := range map[uuid.UUID]string{says: "", works: "", waits: "waited", begins: "begun"} {
		w.Until("the turn to end", func() bool {
			turn, err := w.Conversations.Turn(t.Context(), w.Owner.Actor, id, 1)
			return err == nil && turn.EndedAt != nil
		})
		must(t, w.Turn(id, 1), conversation.Completed, "")
		if said != "" && w.Said(id) != said {
			t.Errorf("it said %q, want %q", w.Said(id), said)
		}
		if prompts := conversationtest.Bodies[transcript.PromptBody](w, id, transcript.Prompt); len(prompts) != 1 {
			t.Errorf("%d prompts", len(prompts))
		}
	}
	var lots strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lots, "%d,", i)
	}
	if said, want := w.Said(says), "one|"+secret.Mask+lots.String()+"|end"; said != want {
		t.Errorf("it said %d bytes, want %d: %.100q", len(said), len(want), said)
	}
	if results := conversationtest.Bodies[transcript.ToolResultBody](w, says, transcript.ToolResult); len(results) != 1 || w.Turn(says, 1).Attempts != 1 {
		t.Errorf("%d results, %d attempts", len(results), w.Turn(says, 1).Attempts)
	}
	results := conversationtest.Bodies[transcript.ToolResultBody](w, works, transcript.ToolResult)
	if len(results) != 1 || results[0].ExitCode == nil || *results[0].ExitCode != 3 || results[0].Output != "one\n"+secret.Mask+"\n" {
		t.Errorf("the command's result: %+v", results)
	}
	if got := w.Ready(setup.ID); *got.SandboxID == *mustGet(t, w, setup.ID).SandboxID && script(setup.ID).Output != "one\ntwo\n" {
		t.Errorf("the setup's script printed %q", script(setup.ID).Output)
	}
	must(t, w.Ask(says, "say again"), conversation.Completed, "")
}

// What an agent was about to say is masked as one, though a server ended between its halves.
func TestASecretIsMaskedAcrossARestartOfTheServer(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	ws := w.Workspace(hides(t, w, nil)).ID
	w.Ready(ws)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws}).ID
	w.Prompt(c, "say one|", "tool first", "say two|"+hidden[:30], "wait /tmp/go", "say "+hidden[30:]+"|end")
	w.Until("the first half to be held back", func() bool { return strings.HasSuffix(w.Said(c), "two|") })
	w.Restart()
	touch(t, w, ws, "/tmp/go")
	must(t, w.Ended(c, 1), conversation.Completed, "")
	if said := w.Said(c); said != "one|two|"+secret.Mask+"|end" {
		t.Errorf("it said %q", said)
	}
}

// What a secret was lies in the machine's file of variables and in processes that were started with it: no conversation on the
// machine shows it, nor after a restart of the server.
func TestWhatASecretWasStaysMaskedInOldAndNewConversations(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	env := hides(t, w, nil)
	ws := w.Workspace(env).ID
	w.Ready(ws)
	put := func(value string) {
		t.Helper()
		if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env, environment.SecretInput{Key: "HIDDEN", Value: secretOf(value)}); err != nil {
			t.Fatal(err)
		}
	}
	launch := func() uuid.UUID { return w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &ws}).ID }
	const second, third = "the-second-value-of-the-secret", "the-third-value-of-the-secret"
	put(second)
	old := launch()
	must(t, w.Ask(old, "env HIDDEN", "writefile /home/sprite/left "+second), conversation.Completed, "")
	put(third)
	fresh := launch()
	asks := []string{"env HIDDEN", "read /home/sprite/.env", "shell cat ~/.env ~/left", "terminal cat ~/.env ~/left", "raw no message: " + hidden + " " + second}
	for _, c := range []uuid.UUID{fresh, old} {
		must(t, w.Ask(c, asks...), conversation.Completed, "")
	}
	if err := w.Environments.DeleteSecret(t.Context(), w.Owner.Actor, env, "HIDDEN"); err != nil {
		t.Fatal(err)
	}
	w.Restart()
	for _, c := range []uuid.UUID{old, fresh, launch()} {
		must(t, w.Ask(c, asks...), conversation.Completed, "")
		// What a person writes is shown as it is.
		rows, err := json.Marshal(slices.DeleteFunc(w.Rows(c), func(r transcript.Stored) bool { return r.Type == transcript.Prompt }))
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range []string{hidden, second, third} {
			if strings.Contains(string(rows), value) {
				t.Errorf("%q is shown: %s", value, rows)
			}
		}
		// By the process's own variable (but in the last), the file, the shell and the terminal.
		if n := strings.Count(string(rows), secret.Mask); n < 7 {
			t.Errorf("%d masks: %s", n, rows)
		}
	}
}

// The first process of a machine is killed, and all of the machine with it: the turn says what happened, and the next
// prompt wakes the machine and goes on in the same session.
func TestAMachineWhoseFirstProcessIsKilledEndsItsTurnAndIsParked(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	w.Prompt(c, "writefile /home/sprite/kept here", "tool first", "forget second", "say working|", "sleep 600000")
	w.Until("the agent to work", func() bool { return w.Said(c) == "working|" })
	w.KillGuest(*ws)
	turn := w.Ended(c, 1)
	must(t, turn, conversation.Failed, conversation.CodeMachineGone)
	if !strings.Contains(turn.Error.Message, "The machine was stopped while the agent worked") {
		t.Errorf("it says %q", turn.Error.Message)
	}
	results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
	if len(results) != 2 || results[1].ID != "second" || results[1].Status != conversation.Interrupted {
		t.Errorf("results: %+v", results)
	}
	if got := mustGet(t, w, *ws); got.MachineStatus != machine.Suspended || got.WaitingReason == "" {
		t.Errorf("the machine is %s: %q", got.MachineStatus, got.WaitingReason)
	}
	must(t, w.Ask(c, "say back"), conversation.Completed, "")
	if got := stages(w, c); !strings.HasSuffix(got, "wake done, adapter done, session done, turn done") || w.Said(c) != "working|back" {
		t.Errorf("stages %s, said %q", got, w.Said(c))
	}
	if got := w.InMachine(*ws, "cat kept"); got != "here" {
		t.Errorf("the file holds %q", got)
	}
}

func mustGet(t *testing.T, w *conversationtest.World, id uuid.UUID) workspace.Workspace {
	t.Helper()
	got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, id)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// guestOf makes files in a workspace's machine over a connection that is made now, and needs no database later.
func guestOf(t *testing.T, w *conversationtest.World, id uuid.UUID) func(file string) {
	t.Helper()
	up, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, id)
	if err != nil {
		t.Fatal(err)
	}
	return toucher(t, up.Guest)
}

func toucher(t *testing.T, g *guest.Client) func(file string) {
	return func(file string) {
		t.Helper()
		if _, errs, exit, err := g.Run(t.Context(), guest.Exec{ID: uuid.NewString(), Argv: []string{"touch", file}, User: guest.Sprite, Spool: guest.SpoolLog}); err != nil || exit.Code != 0 {
			t.Fatalf("touch %s: %+v %v %s", file, exit, err, errs)
		}
	}
}
