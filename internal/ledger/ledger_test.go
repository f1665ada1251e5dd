package ledger_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/broker"
	"managoat/internal/broker/journal"
	"managoat/internal/input"
	"managoat/internal/ledger"
	"managoat/internal/tenant"
)

// account is a database with one conversation whose turns a test opens.
type account struct {
	*ledger.Service
	db           *dbtest.Database
	actor        tenant.Actor
	conversation uuid.UUID
	t            *testing.T
}

func newAccount(t *testing.T) *account {
	t.Helper()
	d := dbtest.New(t)
	a := &account{Service: ledger.New(d.DB, slog.New(slog.NewTextHandler(t.Output(), nil))), db: d, actor: tenant.SystemActor(d.Account(t), "test"), conversation: uuid.New(), t: t}
	agent, workspace := uuid.New(), uuid.New()
	owner := d.Owner(t)
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"insert into agent_versions (tenant_id, agent_id, version, config) values ($1, $2, 1, '{}')", []any{a.actor.TenantID, agent}},
		{"insert into workspaces (tenant_id, id, name, implicit, provider, status) values ($1, $2, 'w', true, 'local', 'ready')", []any{a.actor.TenantID, workspace}},
		{"insert into conversations (tenant_id, id, agent_id, agent_version, workspace_id, runtime, cwd) values ($1, $2, $3, 1, $4, 'claude', '/')", []any{a.actor.TenantID, a.conversation, agent, workspace}},
	} {
		if _, err := owner.Exec(t.Context(), s.sql, s.args...); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// turn opens a turn that runs, whose prompt was sent.
func (a *account) turn(number int) uuid.UUID {
	a.t.Helper()
	id := uuid.Must(uuid.NewV7())
	_, err := a.db.Owner(a.t).Exec(a.t.Context(), `insert into turns (tenant_id, id, conversation_id, turn_number, prompt, asked_by, status, attempts, started_at, prompt_sent_at)
		values ($1, $2, $3, $4, 'hi', 'owner@example.test', 'running', 1, now(), now())`, a.actor.TenantID, id, a.conversation, number)
	if err != nil {
		a.t.Fatal(err)
	}
	return id
}

// end ends a turn as package conversation does.
func (a *account) end(turn uuid.UUID) ledger.Usage {
	a.t.Helper()
	var use ledger.Usage
	err := a.db.InTenant(a.t.Context(), a.actor.TenantID, func(tx db.Tx) error {
		if _, err := tx.LockForSettling(a.t.Context(), a.conversation); err != nil {
			return err
		}
		var err error
		if use, err = ledger.Settle(a.t.Context(), tx, a.conversation, turn, 1, 1500*time.Millisecond); err != nil {
			return err
		}
		return tx.SetTurnUsage(a.t.Context(), use.JSON(), turn)
	})
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.db.Owner(a.t).Exec(a.t.Context(), "update turns set status = 'completed', ended_at = now() where id = $1", turn); err != nil {
		a.t.Fatal(err)
	}
	return use
}

func (a *account) usage(edit func(*broker.UsageRow)) broker.UsageRow {
	r := broker.UsageRow{ID: uuid.Must(uuid.NewV7()), At: time.Now(), TenantID: a.actor.TenantID, ConversationID: a.conversation, CredentialID: uuid.New(), Source: "own",
		Provider: "anthropic", ModelRequested: "m", ModelAnswered: "m-1", Status: 200, InputTokens: 10, OutputTokens: 5, CacheReadTokens: 3, CacheWriteTokens: 2, Completeness: journal.Complete}
	if edit != nil {
		edit(&r)
	}
	return r
}

func (a *account) store(rows ...broker.UsageRow) {
	a.t.Helper()
	if err := a.Usage(a.t.Context(), rows); err != nil {
		a.t.Fatal(err)
	}
}

func (a *account) entries(f ledger.Filter) []ledger.Entry {
	a.t.Helper()
	page, err := a.Entries(a.t.Context(), a.actor, f, input.Page{})
	if err != nil {
		a.t.Fatal(err)
	}
	return page.Items
}

func TestATurnIsChargedOncePerAttemptAndModel(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	turn := a.turn(1)
	key := uuid.New()
	mine := func(r *broker.UsageRow) { r.CredentialID = key }
	first := a.usage(mine)
	a.store(first, a.usage(mine), a.usage(func(r *broker.UsageRow) { mine(r); r.ModelAnswered, r.OutputTokens = "m-2", 100 }),
		a.usage(func(r *broker.UsageRow) {
			mine(r)
			r.Status, r.ModelAnswered, r.ModelRequested, r.InputTokens, r.OutputTokens, r.Completeness = 529, "", "m-1", 0, 0, journal.None
		}))
	a.store(first) // delivered again after a crash
	use := a.end(turn)
	if use.Input != 30 || use.Output != 110 || use.CacheRead != 12 || use.CacheWrite != 8 || use.Requests != 4 || use.FailedRequests != 1 || use.Accounting.Completeness != "reported" {
		t.Errorf("usage %+v", use)
	}
	got := a.entries(ledger.Filter{TurnID: &turn})
	if len(got) != 2 || got[0].Model != "m-1" || got[0].Requests != 3 || got[0].FailedRequests != 1 || got[0].MachineMS != 1500 || got[1].Model != "m-2" || got[1].OutputTokens != 100 || got[1].MachineMS != 0 {
		t.Errorf("entries %+v", got)
	}
	cut := a.turn(2)
	a.store(a.usage(func(r *broker.UsageRow) { r.Completeness = journal.Partial }))
	if use := a.end(cut); use.Accounting.Completeness != "partial" {
		t.Errorf("a stream that broke off: %+v", use)
	}
	if again := a.end(turn); again != use || len(a.entries(ledger.Filter{})) != 3 {
		t.Errorf("settled twice: %+v", again)
	}
}

func TestACallThatIsToldOfLateIsSettledOnItsOwnTurn(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	first := a.turn(1)
	a.store(a.usage(nil))
	a.end(first)
	a.store(a.usage(nil)) // nobody runs: it was the first one's
	second := a.turn(2)
	a.store(a.usage(nil)) // somebody runs: it waits for that one's end
	if got := a.entries(ledger.Filter{TurnID: &first}); len(got) != 2 {
		t.Fatalf("the first turn's entries %+v", got)
	}
	if got := a.entries(ledger.Filter{TurnID: &second}); len(got) != 0 {
		t.Errorf("the second turn's entries before its end %+v", got)
	}
	a.end(second)
	if got := a.entries(ledger.Filter{TurnID: &second}); len(got) != 1 {
		t.Errorf("the second turn's entries %+v", got)
	}
	var output int64
	err := a.db.Owner(t).QueryRow(t.Context(), "select (usage ->> 'output')::bigint from turns where id = $1", first).Scan(&output)
	if err != nil || output != 10 {
		t.Errorf("the first turn says it used %d: %v", output, err)
	}
}

func TestAwaitEndsWithTheNumbersOrWithPatience(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	a.turn(1)
	done := make(chan struct{})
	go func() {
		a.Await(context.Background(), a.actor.TenantID, a.conversation, 10)
		close(done)
	}()
	a.store(a.usage(nil))
	select {
	case <-done:
		t.Error("half of it was enough")
	default:
	}
	a.store(a.usage(nil))
	<-done
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Await(ctx, a.actor.TenantID, a.conversation, 1000)
}

func TestOneBadRowHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	good := func() broker.RequestRow {
		return broker.RequestRow{ID: uuid.Must(uuid.NewV7()), At: time.Now(), TenantID: a.actor.TenantID, WorkspaceID: uuid.New(), MachineID: uuid.New(), ConversationID: &a.conversation,
			Listener: "proxy", Method: "CONNECT", Host: "example.com", Port: 443, Decision: journal.Allowed, Rule: "unrestricted", Status: 200, LatencyMS: 1.6}
	}
	one, bad, gone, nobody, two := good(), good(), good(), good(), good()
	bad.Decision = "shrugged"
	gone.TenantID, nobody.TenantID = uuid.New(), uuid.Nil
	two.Host, two.Decision = "bad\x00host", journal.Denied
	for range 2 {
		if err := a.Requests(t.Context(), []broker.RequestRow{one, bad, gone, nobody, two}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := a.EgressOfConversation(t.Context(), a.actor, a.conversation, input.Page{})
	if err != nil || len(page.Items) != 2 || page.Items[0].ID != two.ID || page.Items[0].Host != "bad\u2400host" || page.Items[1].LatencyMS != 2 {
		t.Errorf("%+v %v", page.Items, err)
	}
	byWorkspace, err := a.EgressOfWorkspace(t.Context(), a.actor, one.WorkspaceID, input.Page{})
	if err != nil || len(byWorkspace.Items) != 1 {
		t.Errorf("%+v %v", byWorkspace.Items, err)
	}
	other := tenant.SystemActor(a.db.Account(t), "test")
	if page, err := a.EgressOfConversation(t.Context(), other, a.conversation, input.Page{}); err != nil || len(page.Items) != 0 {
		t.Errorf("another account sees %+v %v", page.Items, err)
	}
	if got, err := a.Entries(t.Context(), other, ledger.Filter{}, input.Page{}); err != nil || len(got.Items) != 0 {
		t.Errorf("another account sees %+v %v", got.Items, err)
	}
}
