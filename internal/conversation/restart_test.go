package conversation_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
)

func TestATurnGoesOnAcrossARestartOfTheServerWithNothingLostOrDoubled(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	idle := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	must(t, w.Ask(idle, "say sleeping"), conversation.Completed, "")
	flag, other := "/home/sprite/go-"+uuid.NewString(), "/home/sprite/go-"+uuid.NewString()
	w.Prompt(c, "say one|", "say two|", "tool first", "forget second", "say three|", "wait "+flag, "say four|", "lots 2000", "say |five", "wait "+other, "say |six")
	w.Until("the agent to work", func() bool { return strings.Contains(w.Said(c), "three|") })
	w.Restart()
	touch(t, w, *ws, flag)
	w.Until("the turn to be taken up", func() bool { return strings.Contains(w.Said(c), "|five") })
	w.Restart()
	touch(t, w, *ws, other)
	turn := w.Ended(c, 1)
	must(t, turn, conversation.Completed, "")
	said := w.Said(c)
	if !strings.HasPrefix(said, "one|two|three|four|0,1,2,3,") || !strings.HasSuffix(said, ",1998,1999,|five|six") || strings.Count(said, "1000,") != 1 || len(said) != len("one|two|three|four||five|six")+8890 {
		t.Errorf("said %d bytes: %.60q … %.60q", len(said), said, said[max(0, len(said)-60):])
	}
	results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult)
	if len(results) != 2 || results[0].ID != "first" || results[1].ID != "second" || results[1].Status != conversation.Interrupted {
		t.Errorf("results: %+v", results)
	}
	if prompts := conversationtest.Bodies[transcript.PromptBody](w, c, transcript.Prompt); len(prompts) != 1 || turn.Attempts != 1 {
		t.Errorf("%d prompts, %d attempts", len(prompts), turn.Attempts)
	}
	if got := stages(w, c); got != "home done, adapter done, session done, reattach done, reattach done, turn done" {
		t.Errorf("stages: %s", got)
	}
	// One that waited between turns is taken up by its next prompt, in the same process.
	must(t, w.Ask(idle, "say awake"), conversation.Completed, "")
	if got := stages(w, idle); got != "home done, adapter done, session done, turn done, turn done" || w.Said(idle) != "sleepingawake" {
		t.Errorf("the idle one: stages %s, said %q", got, w.Said(idle))
	}
}

func TestATurnThatEndedWhileTheServerWasAwayIsSettledWhenItIsBack(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	flag, done := "/home/sprite/go-"+uuid.NewString(), "/home/sprite/done-"+uuid.NewString()
	w.Prompt(c, "say before ", "wait "+flag, "say after", "touch "+done)
	w.Until("the agent to work", func() bool { return w.Said(c) == "before " })
	w.Pause(func() {
		w.InMachine(*ws, "touch "+flag+"; until test -e "+done+"; do sleep 0.02; done")
	})
	must(t, w.Ended(c, 1), conversation.Completed, "")
	if w.Said(c) != "before after" {
		t.Errorf("said %q", w.Said(c))
	}
}

func TestAnInterruptAskedWhileTheServerWasAwayEndsTheTurn(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	w.Prompt(c, "say working", "sleep 60000")
	w.Until("the agent to work", func() bool { return w.Said(c) == "working" })
	w.Pause(func() {
		// Another server takes the request; the one that holds the turn is away.
		if _, err := w.Conversations.Interrupt(t.Context(), w.Owner.Actor, c, nil); err != nil {
			t.Error(err)
		}
	})
	must(t, w.Ended(c, 1), conversation.Interrupted, "")
}

// What a person asked is in the transcript when its turn ends before it began, and nothing of it is shown twice.
func TestPromptsThatNothingCameOfStayInTheTranscript(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	launch := func() uuid.UUID { return w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID }
	queue := func(c uuid.UUID, text string) {
		t.Helper()
		if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: text, Queue: true}); err != nil {
			t.Fatal(err)
		}
	}
	ended, deleted := launch(), launch()
	w.Pause(func() { // nothing begins
		queue(ended, "say one")
		queue(ended, "say two")
		if _, err := w.Conversations.Terminate(t.Context(), w.Owner.Actor, ended); err != nil {
			t.Error(err)
		}
	})
	if got := story(w, ended); got != "1? say one, 1 interrupted conversation_terminated, 2? say two, 2 interrupted conversation_terminated, 0 done" {
		t.Errorf("ended before anything began: %s", got)
	}
	w.Prompt(deleted, "say working", "sleep 600000")
	w.Until("the agent to work", func() bool { return w.Said(deleted) == "working" })
	queue(deleted, "say never")
	if err := w.Workspaces.Delete(t.Context(), w.Owner.Actor, *ws); err != nil {
		t.Fatal(err)
	}
	w.Ended(deleted, 1)
	if got := story(w, deleted); got != "1? say working; sleep 600000, 2? say never, 2 interrupted conversation_terminated, 1 interrupted conversation_terminated" {
		t.Errorf("deleted with its workspace: %s", got)
	}
}

func TestATurnWhoseAdapterIsGoneAfterARestartEndsInterruptedAndSaysSo(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	w.Prompt(c, "say working", "sleep 60000")
	w.Until("the agent to work", func() bool { return w.Said(c) == "working" })
	w.Pause(func() { w.StopMachine(*ws) })
	turn := w.Ended(c, 1)
	must(t, turn, conversation.Interrupted, "")
	if turn.Reason == nil || *turn.Reason != conversation.ByInstanceRestart {
		t.Errorf("reason %v", turn.Reason)
	}
	if got := stages(w, c); !strings.Contains(got, "reattach failed") || !strings.HasSuffix(got, "turn interrupted instance_restarted") {
		t.Errorf("stages: %s", got)
	}
	// The next prompt wakes the machine and takes the runtime's session up again.
	must(t, w.Ask(c, "say back"), conversation.Completed, "")
	if got := conversationtest.Bodies[transcript.StageBody](w, c, transcript.Stage); got[len(got)-2].Stage != "session" || got[len(got)-2].Detail["session"] != "resumed" {
		t.Errorf("the session's stage: %+v", got[len(got)-2])
	}
	if w.Said(c) != "workingback" {
		t.Errorf("said %q", w.Said(c))
	}
}

func TestASessionThatTheRuntimeLostIsReplacedAndSaidSo(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent("-forgets"), WorkspaceID: ws}).ID
	must(t, w.Ask(c, "say one "), conversation.Completed, "")
	must(t, w.Ask(c, "exit 1"), conversation.Failed, conversation.CodeAdapterCrashed)
	must(t, w.Ask(c, "say two"), conversation.Completed, "")
	if notices(w, c) != "session_lost" || w.Said(c) != "one two" {
		t.Errorf("notices %s, said %q", notices(w, c), w.Said(c))
	}
}

func TestRestartsInTheMiddleOfAStreamLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	const n = 150000 // more than a spool holds, twice
	w.Prompt(c, fmt.Sprintf("lots %d", n))
	for i := range 3 {
		w.Until("some of it to be stored", func() bool { return len(w.Said(c)) > (i+1)*20000 })
		w.Restart()
	}
	must(t, w.Ended(c, 1), conversation.Completed, "")
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "%d,", i)
	}
	if said := w.Said(c); said != want.String() {
		at := 0
		for at < min(len(said), want.Len()) && said[at] == want.String()[at] {
			at++
		}
		t.Errorf("%d bytes, want %d; they differ from %d on: %.80q", len(said), want.Len(), at, said[at:])
	}
}

func TestConnectionsToTheDatabaseThatBreakLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	const n = 100000
	w.Prompt(c, fmt.Sprintf("lots %d", n), "tool last")
	owner := w.Instance.Database.Owner(t)
	for i := range 4 {
		w.Until("some of it to be stored", func() bool { return stored(t, owner, c) > (i+1)*20000 })
		if _, err := owner.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
	}
	w.Until("the turn to end", func() bool {
		turn, err := w.Conversations.Turn(t.Context(), w.Owner.Actor, c, 1)
		return err == nil && turn.EndedAt != nil
	})
	must(t, w.Turn(c, 1), conversation.Completed, "")
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "%d,", i)
	}
	if said := w.Said(c); said != want.String() {
		t.Errorf("%d bytes, want %d", len(said), want.Len())
	}
	if results := conversationtest.Bodies[transcript.ToolResultBody](w, c, transcript.ToolResult); len(results) != 1 || w.Turn(c, 1).Attempts != 1 {
		t.Errorf("%d results, %d attempts", len(results), w.Turn(c, 1).Attempts)
	}
}

// Whatever becomes of the commit's answer: a prompt that was taken is worked on once, and one that was not leaves nothing.
func TestPromptsWhoseConnectionsBreakAreTakenOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	must(t, w.Ask(c, "say begin."), conversation.Completed, "")
	owner := w.Instance.Database.Owner(t)
	taken := map[string]bool{}
	const prompts = 40
	for i := range prompts {
		var breaking sync.WaitGroup
		breaking.Go(func() {
			if i%4 == 3 {
				return // what the last ones broke is mended by one that nothing disturbs
			}
			time.Sleep(time.Duration(i) * 400 * time.Microsecond) // somewhere in the prompt's way, another place each time
			if _, err := owner.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"); err != nil {
				t.Error(err)
			}
		})
		text := fmt.Sprintf("say %d.", i)
		turn, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: text})
		breaking.Wait()
		if err == nil {
			taken[text] = true
			w.Until("the turn to end", func() bool {
				now, err := w.Conversations.Turn(t.Context(), w.Owner.Actor, c, turn.TurnNumber)
				return err == nil && now.EndedAt != nil
			})
		}
	}
	w.Until("every turn to end", func() bool {
		now, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c)
		return err == nil && now.CurrentTurn == nil
	})
	shown := map[string]int{}
	for _, b := range conversationtest.Bodies[transcript.PromptBody](w, c, transcript.Prompt) {
		shown[b.Text]++
	}
	said := w.Said(c)
	for text, n := range shown {
		words, _ := strings.CutPrefix(text, "say ")
		if got := strings.Count("."+said, "."+words); n != 1 || got != 1 {
			t.Errorf("%q stands %d times in the transcript, and was answered %d times", text, n, got)
		}
	}
	for text := range taken {
		if shown[text] == 0 {
			t.Errorf("%q was taken and is not in the transcript", text)
		}
	}
	if len(taken) == 0 || len(taken) == prompts {
		t.Errorf("%d of %d prompts were taken: this showed nothing", len(taken), prompts)
	}
}

// A turn of another server, of which this one has not heard, is met by the database.
func TestAnIdleAgentIsHandedNothingWhileAnotherServersTurnIsOpen(t *testing.T) {
	t.Parallel()
	w, ws := world(t)
	c := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: ws}).ID
	must(t, w.Ask(c, "say one"), conversation.Completed, "")
	owner := w.Instance.Database.Owner(t)
	for _, status := range []string{conversation.Running, conversation.Pending} {
		if _, err := owner.Exec(t.Context(), `insert into turns select (jsonb_populate_record(t, jsonb_build_object(
			'id', gen_random_uuid(), 'turn_number', 99, 'status', $2::text, 'ended_at', null))).* from turns t where conversation_id = $1 and turn_number = 1`, c, status); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, c, conversation.PromptInput{Prompt: "say two"}); !refusal.Is(err, refusal.ConversationBusy) {
			t.Errorf("while one is %s: %v", status, err)
		}
		if _, err := owner.Exec(t.Context(), "delete from turns where conversation_id = $1 and turn_number = 99", c); err != nil {
			t.Fatal(err)
		}
	}
	must(t, w.Ask(c, "say  three"), conversation.Completed, "")
	if said := w.Said(c); said != "one three" {
		t.Errorf("the agent said %q", said)
	}
}

// stored is how much of a conversation's messages is stored, read past the server's own connections.
func stored(t *testing.T, owner *pgx.Conn, c uuid.UUID) int {
	t.Helper()
	var n int
	if err := owner.QueryRow(t.Context(), "select coalesce(sum(length(body ->> 'text')), 0) from events where conversation_id = $1 and type = 'message'", c).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
