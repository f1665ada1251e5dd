package db_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/queries"
)

func names(t *testing.T, d *dbtest.Database, tenant uuid.UUID) []string {
	t.Helper()
	tn, err := d.Tenant(tenant).Tenant(context.Background())
	if err != nil {
		if db.NotFound(err) {
			return nil
		}
		t.Fatal(err)
	}
	return []string{tn.Name}
}

func TestATenantSeesItselfAndNobodyElse(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b := d.Account(t), d.Account(t)
	for _, id := range []uuid.UUID{a, b} {
		if got := names(t, d, id); len(got) != 1 || got[0] != "test "+id.String() {
			t.Fatalf("account %s sees %v", id, got)
		}
	}
	if got := names(t, d, uuid.New()); got != nil {
		t.Fatalf("an account that does not exist sees %v", got)
	}
	if _, err := d.Lookup().Tenant(context.Background()); !db.NotFound(err) {
		t.Fatalf("with no account set: %v, want no rows", err)
	}
}

func TestAnErrorRollsBackAndTheConnectionForgetsTheAccount(t *testing.T) {
	t.Parallel()
	d := dbtest.NewWith(t, db.Options{MaxConns: 1})
	a := d.Account(t)
	ctx := context.Background()
	boom := errors.New("boom")
	err := d.InTenant(ctx, a, func(tx db.Tx) error {
		if err := tx.Exec(ctx, "update tenants set name = 'changed'"); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if got := names(t, d, a); got[0] != "test "+a.String() {
		t.Fatalf("the failed transaction left %v", got)
	}
	if _, err := d.Lookup().Tenant(ctx); !db.NotFound(err) {
		t.Fatalf("the pool's only connection still knows an account: %v", err)
	}
}

// A statement that answers nothing waits for the next one: it comes before it, and its error comes back there.
func TestWhatAnswersNothingIsDoneBeforeTheNextStatementAndFailsWithIt(t *testing.T) {
	t.Parallel()
	d := dbtest.NewWith(t, db.Options{MaxConns: 1})
	a, b := d.Account(t), d.Account(t)
	ctx := context.Background()
	row := func(tenantID uuid.UUID) queries.InsertAuditEventParams {
		return queries.InsertAuditEventParams{TenantID: tenantID, ID: uuid.Must(uuid.NewV7()), ActorKind: "system", ActorID: "test", Action: "test",
			ResourceType: "test", ResourceID: "test", Changed: []string{}}
	}
	count := func() (n int) {
		t.Helper()
		if err := d.Owner(t).QueryRow(ctx, "select count(*) from audit_events").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	written := row(a)
	err := d.InTenant(ctx, a, func(tx db.Tx) error {
		if err := tx.InsertAuditEvent(ctx, written); err != nil {
			return err
		}
		seen, err := tx.AuditEvents(ctx, queries.AuditEventsParams{AtMost: 10})
		if err != nil || len(seen) != 1 || seen[0].ID != written.ID {
			t.Errorf("the next statement saw %v, %v", seen, err)
		}
		return tx.InsertAuditEvent(ctx, row(a)) // goes with the commit
	})
	if err != nil || count() != 2 {
		t.Fatalf("%v, and %d rows", err, count())
	}
	for name, then := range map[string]func(db.Tx) error{
		"the commit":     func(db.Tx) error { return nil },
		"a next one":     func(tx db.Tx) error { _, err := tx.Tenant(ctx); return err },
		"one not looked": func(tx db.Tx) error { tx.Tenant(ctx); return nil },
	} {
		err := d.InTenant(ctx, a, func(tx db.Tx) error {
			if err := tx.InsertAuditEvent(ctx, row(a)); err != nil {
				return err
			}
			if err := tx.InsertAuditEvent(ctx, row(b)); err != nil { // another account's
				return err
			}
			return then(tx)
		})
		if err == nil || count() != 2 {
			t.Errorf("%s: %v, and %d rows", name, err, count())
		}
		if name != "one not looked" && !strings.Contains(err.Error(), "InsertAuditEvent: ") {
			t.Errorf("%s does not name what failed: %v", name, err)
		}
	}
	// A transaction without statements needs no connection, even while the only one is taken.
	err = d.InTenant(ctx, a, func(tx db.Tx) error {
		if _, err := tx.Tenant(ctx); err != nil {
			return err
		}
		return d.InTenant(ctx, a, func(db.Tx) error { return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Two hundred requests of five accounts over four connections never see another's row.
func TestWhatIsToBeDoneAfterACommitIsDoneAfterNoOtherEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := dbtest.New(t)
	a := d.Account(t)
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		fn   func(tx db.Tx) error
		want error
		done int
	}{
		"commit":         {func(db.Tx) error { return nil }, nil, 2},
		"error":          {func(db.Tx) error { return boom }, boom, 0},
		"refused commit": {func(tx db.Tx) error { return tx.TakePrompt(ctx, 0) }, boom, 0},
	} {
		done, rolledBack := 0, false
		err := d.InTenant(ctx, a, func(tx db.Tx) error {
			tx.OnCommit(func() { done++ })
			tx.OnCommit(func() { done++ })
			tx.Refused("another fence", func(context.Context, *queries.Queries) error { return nil })
			tx.Refused("prompts", func(ctx context.Context, q *queries.Queries) error {
				_, err := q.QuotaUse(ctx) // not in the transaction that was refused: it answers
				rolledBack = err == nil
				return boom
			})
			return c.fn(tx)
		})
		if !errors.Is(err, c.want) || done != c.done || rolledBack != (name == "refused commit") {
			t.Errorf("%s: %v, %d done, told after the rollback: %v", name, err, done, rolledBack)
		}
	}
}

// PostgreSQL was restarted while connections lay in the pool: nobody's request fails for it.
func TestConnectionsThatEndedInThePoolArePassedOver(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	ctx := t.Context()
	owner := d.Owner(t)
	for range 5 {
		var busy sync.WaitGroup
		for range 4 { // so that there are several
			busy.Go(func() {
				if err := d.InTenant(ctx, a, func(tx db.Tx) error { return tx.Exec(ctx, "select pg_sleep(0.02)") }); err != nil {
					t.Error(err)
				}
			})
		}
		busy.Wait()
		if _, err := owner.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Tenant(a).Tenant(ctx); err != nil {
			t.Errorf("a statement: %v", err)
		}
		if err := d.InTenant(ctx, a, func(tx db.Tx) error { return tx.TakePrompt(ctx, 1000) }); err != nil {
			t.Errorf("a transaction: %v", err)
		}
	}
}

func TestConcurrentAccountsOnFewConnectionsNeverCross(t *testing.T) {
	t.Parallel()
	d := dbtest.NewWith(t, db.Options{MaxConns: 4})
	var accounts []uuid.UUID
	for range 5 {
		accounts = append(accounts, d.Account(t))
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			id := accounts[i%len(accounts)]
			var got queries.Tenant
			var err error
			if i%2 == 0 {
				got, err = d.Tenant(id).Tenant(context.Background())
			} else {
				err = d.InTenant(context.Background(), id, func(tx db.Tx) (err error) {
					got, err = tx.Tenant(context.Background())
					return err
				})
			}
			if err != nil || got.TenantID != id {
				t.Errorf("account %s got %s, %v", id, got.TenantID, err)
			}
		})
	}
	wg.Wait()
}

func TestThePlatformWritesItsAccessRowFirst(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	ctx := context.Background()
	err := d.AsPlatform(ctx, "ada", "look at the account", func(tx db.Tx) error {
		return tx.Exec(ctx, "update tenants set name = 'seen' where tenant_id = $1", a)
	})
	if err != nil {
		t.Fatal(err)
	}
	var operator, reason string
	if err := d.Owner(t).QueryRow(ctx, "select operator, reason from platform_access").Scan(&operator, &reason); err != nil {
		t.Fatal(err)
	}
	if operator != "ada" || reason != "look at the account" {
		t.Fatalf("access row says %q, %q", operator, reason)
	}
	if err := d.AsPlatform(ctx, "", "no name", func(db.Tx) error { t.Error("ran without an operator"); return nil }); err == nil {
		t.Fatal("a look without an operator was allowed")
	}
}

// Roles are the cluster's: servers of other databases, with locks of their own, make and change the same ones.
func TestServersOfSeveralDatabasesOfOneClusterStartTogether(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 4 {
		url := dbtest.Empty(t)
		wg.Go(func() {
			for range 8 {
				if _, err := db.Migrate(context.Background(), url, db.URLs{}, []byte("the tests' login key")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestThreeServersMigrateAnEmptyDatabaseTogether(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := db.Migrate(context.Background(), url, db.URLs{}, []byte("the tests' login key")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
