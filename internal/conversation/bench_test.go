package conversation_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
)

// BenchmarkEvents is how many events a second go the whole way: printed by agents in their machine, through the guest,
// the text gate and the database, until the turns that print them have ended. Beside them another conversation prints as
// much while a transaction keeps its counter locked, so that not one of its rows can be written.
func BenchmarkEvents(b *testing.B) {
	const (
		conversations = 8
		tools         = 1500 // each is two events: it starts, and it ends
	)
	w := conversationtest.New(b)
	ws := w.Workspace(w.Environment(nil)).ID
	w.Ready(ws)
	agent := w.Agent("")
	all := make([]uuid.UUID, conversations+1)
	for i := range all {
		all[i] = w.Launch(conversation.CreateInput{AgentID: agent, WorkspaceID: &ws}).ID
		must(b, w.Ask(all[i], "say ready"), conversation.Completed, "")
	}
	stuck := all[conversations]
	prompt := fmt.Sprintf("looks %d", tools)
	for b.Loop() {
		tx, err := w.Database.Owner(b).Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		turn := w.Prompt(stuck, "wait /home/sprite/go", prompt).TurnNumber
		w.Until("the stuck turn to run", func() bool { return w.Turn(stuck, turn).StartedAt != nil })
		if _, err := tx.Exec(b.Context(), "select 1 from conversation_heads where conversation_id = $1 for update", stuck); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		numbers := make([]int, conversations)
		for i, c := range all[:conversations] {
			numbers[i] = w.Prompt(c, "touch /home/sprite/go", prompt).TurnNumber
		}
		for i, c := range all[:conversations] {
			must(b, w.Ended(c, numbers[i]), conversation.Completed, "")
		}
		rate := 2 * tools * conversations / time.Since(began).Seconds()
		b.ReportMetric(rate, "events/s")
		b.ReportMetric(1e6/rate, "us/event")
		if held := w.Turn(stuck, turn); held.Status != conversation.Running {
			b.Errorf("the turn that was to be stuck is %s", held.Status)
		}
		if err := tx.Rollback(b.Context()); err != nil {
			b.Fatal(err)
		}
		must(b, w.Ended(stuck, turn), conversation.Completed, "")
	}
}
