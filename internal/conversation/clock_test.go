package conversation_test

import (
	"context"
	"testing"
	"time"

	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/machine"
	"managoat/internal/secret"
	"managoat/internal/workspace"
)

// A server whose clock is off works by the database's: what it owns stays its own, what is idle parks in time, and what
// people see of a turn is how long it took.
func TestAServerWhoseClockIsTenMinutesOffWorksByTheDatabases(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"behind": 10 * time.Minute, "ahead": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := parking{conversationtest.New(t, conversationtest.Options{Postgres: true, Ahead: ahead, Lives: workspace.Lifetimes{Idle: 5 * time.Minute, Ceiling: time.Hour}}), t}
			var now time.Time
			if err := p.Instance.Owner(t).QueryRow(t.Context(), "select now()").Scan(&now); err != nil {
				t.Fatal(err)
			}
			if off := time.Until(now) - ahead; off.Abs() > time.Minute {
				t.Fatalf("the database's clock is %s off, not %s", time.Until(now), ahead)
			}
			ws := p.ready()
			c := p.launch(ws)

			// A turn goes on across a restart, as its server's own; its times are of one clock.
			p.Prompt(c, "say a|", "wait /home/sprite/go", "say b")
			p.Until("the agent to speak", func() bool { return p.Said(c) == "hi a|" })
			p.Restart()
			p.InMachine(*ws, "touch /home/sprite/go")
			turn := p.Ended(c, 2)
			must(t, turn, conversation.Completed, "")
			if p.Said(c) != "hi a|b" || turn.Attempts != 1 {
				t.Errorf("said %q in %d attempts", p.Said(c), turn.Attempts)
			}
			if took := turn.EndedAt.Sub(*turn.StartedAt); took < 0 || took > time.Minute || turn.FirstTokenAt.Before(*turn.StartedAt) || turn.EndedAt.Before(*turn.FirstTokenAt) {
				t.Errorf("the turn of %s to %s said its first words at %s", turn.StartedAt, turn.EndedAt, turn.FirstTokenAt)
			}

			// Idle for four minutes is not five, and six are.
			p.pass(ws, 4*time.Minute)
			p.sweep()
			if s := p.show(ws); s.MachineStatus != machine.Ready || s.Transition != "" || s.ParksAt == nil || s.ParksAt.Before(now) || s.ParksAt.After(now.Add(5*time.Minute)) {
				t.Errorf("idle for 4 minutes of 5: %s %s, parks at %v; the database's time was %s", s.MachineStatus, s.Transition, s.ParksAt, now)
			}
			p.pass(ws, 2*time.Minute)
			p.sweep()
			p.parked(ws)
			must(t, p.Ask(c, "say  again"), conversation.Completed, "")

			session, err := p.People.SignIn(context.Background(), p.Owner.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.People.AuthenticateSession(t.Context(), session.Token.Reveal()); err != nil {
				t.Errorf("the session that was just begun: %v", err)
			}
		})
	}
}
