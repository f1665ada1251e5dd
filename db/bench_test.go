package db_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/queries"
)

// Sizes of the benchmark of isolation: rows in the table, and reads of each kind.
const (
	benchAccounts = 20
	benchRows     = 100_000
	benchReads    = 30_000
)

// BenchmarkIsolation reads one row by its key under row-level security, the way the server does, and by the same statement
// from a copy of the table that has no policy, on a connection that knows the account already. The two take turns, so that
// whatever else the machine does meets both; x-bare is the ratio of their medians.
func BenchmarkIsolation(b *testing.B) {
	ctx := context.Background()
	d := dbtest.NewWith(b, db.Options{MaxConns: 1})
	owner := d.Owner(b)
	for _, sql := range []string{
		// The rows' conversations are of no interest here.
		"set session_replication_role = replica",
		fmt.Sprintf(`insert into conversation_heads (tenant_id, conversation_id, seq)
			select md5('account ' || i %% %d)::uuid, md5('conversation ' || i)::uuid, i from generate_series(1, %d) i`, benchAccounts, benchRows),
		"create schema plain",
		"create table plain.conversation_heads (like conversation_heads including all)",
		"insert into plain.conversation_heads select * from conversation_heads",
		"grant usage on schema plain to managoat_app",
		"grant select on plain.conversation_heads to managoat_app",
		"vacuum analyze conversation_heads",
		"vacuum analyze plain.conversation_heads",
	} {
		if _, err := owner.Exec(ctx, sql); err != nil {
			b.Fatal(err)
		}
	}
	rows, err := owner.Query(ctx, "select tenant_id, conversation_id from conversation_heads where tenant_id = md5('account 7')::uuid")
	if err != nil {
		b.Fatal(err)
	}
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[db.Ref])
	if err != nil || len(refs) != benchRows/benchAccounts {
		b.Fatalf("%d rows, %v", len(refs), err)
	}
	account := refs[0].TenantID
	plain, err := pgxpool.ParseConfig(d.URLs.App)
	if err != nil {
		b.Fatal(err)
	}
	plain.MaxConns = 1
	plain.ConnConfig.RuntimeParams["search_path"] = "plain,public"
	plain.ConnConfig.RuntimeParams["app.tenant_id"] = account.String()
	pool, err := pgxpool.NewWithConfig(ctx, plain)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()

	read := func(q *queries.Queries, id uuid.UUID) time.Duration {
		began := time.Now()
		there, err := q.TranscriptExists(ctx, id)
		took := time.Since(began)
		if err != nil || !there {
			b.Fatalf("row %s: %v, %v", id, there, err)
		}
		return took
	}
	isolated, bare := d.Tenant(account), queries.New(pool)
	for b.Loop() {
		var with, without []time.Duration
		for i := range benchReads + 200 {
			id := refs[rand.IntN(len(refs))].ID
			x, y := time.Duration(0), time.Duration(0)
			if i%2 == 0 {
				x, y = read(isolated, id), read(bare, id)
			} else {
				y, x = read(bare, id), read(isolated, id)
			}
			if i >= 200 { // the first warm both
				with, without = append(with, x), append(without, y)
			}
		}
		a, c := median(with), median(without)
		b.ReportMetric(float64(a.Nanoseconds())/1000, "isolated-µs")
		b.ReportMetric(float64(c.Nanoseconds())/1000, "bare-µs")
		b.ReportMetric(float64(a)/float64(c), "x-bare")
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
