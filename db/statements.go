package db

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// setTenant names the account, until the transaction ends. So long no statement is planned anew either: they are short, by
// key, and cost more to plan than to run.
const setTenant = "select set_config('app.tenant_id', $1, true), set_config('plan_cache_mode', 'force_generic_plan', true)"

// results of a batch, of which some are taken.
type results interface {
	pgx.BatchResults
	explain(error) error
}

// piped is what generated queries run on: send sends a statement, with whatever must go before it, in one round trip. What
// it returns has the statement's own result next.
type piped struct {
	send func(ctx context.Context, sql string, args []any) (results, error)
}

// statements runs each statement under one account, or under none (uuid.Nil), as a transaction of its own, in one round
// trip: the setting and the statement travel as one batch, which PostgreSQL runs as one implicit transaction. Measured
// against no isolation at all: see docs/benchmarks.md. Works through a pooler in transaction mode, since nothing outlives the transaction.
func statements(pool *pgxpool.Pool, tenant uuid.UUID) piped {
	account := ""
	if tenant != uuid.Nil {
		account = tenant.String()
	}
	return piped{func(ctx context.Context, sql string, args []any) (results, error) {
		conn, results, err := begun(ctx, pool, []statement{{setTenant, []any{account}}, {sql, args}})
		if err != nil {
			return nil, err
		}
		return &releasing{results, conn}, nil
	}}
}

// maxDead is how many connections that PostgreSQL has ended are passed over: all of a pool's, and more.
const maxDead = 100

// begun sends statements on a connection of the pool and takes the first one's result. That PostgreSQL ended a connection
// while it lay in the pool, as when it was restarted, is noticed only now: nothing was run then, and the next connection
// takes them.
func begun(ctx context.Context, pool *pgxpool.Pool, all []statement) (*pgxpool.Conn, *attended, error) {
	for tries := 1; ; tries++ {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			if ctx.Err() == nil {
				err = &awayError{err}
			}
			return nil, nil, err
		}
		var b pgx.Batch
		for _, s := range all {
			b.Queue(s.sql, s.args...)
		}
		results := attend(ctx, conn, &b)
		if _, err = results.Exec(); err == nil {
			return conn, results, nil
		}
		results.Close()
		conn.Release()
		if !unheard(err) || tries == maxDead || ctx.Err() != nil {
			return nil, nil, results.explain(err)
		}
	}
}

// unheard tells, of the error of a batch's first statement, that PostgreSQL ran none of it: it could not be sent, or what
// came back instead of the first answer is that the connection had ended.
func unheard(err error) bool {
	var pg *pgconn.PgError
	return pgconn.SafeToRetry(err) || errors.As(err, &pg) && pg.Severity == "FATAL" && pg.Code == pgerrcode.AdminShutdown
}

// attended are results that know, once they are closed, whether their connection broke.
type attended struct {
	pgx.BatchResults
	ctx  context.Context
	conn *pgx.Conn
	dead bool
}

func attend(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch) *attended {
	return &attended{BatchResults: conn.SendBatch(ctx, b), ctx: ctx, conn: conn.Conn()}
}

func (r *attended) Close() error {
	err := r.BatchResults.Close()
	r.dead = r.conn.IsClosed()
	return err
}

// explain marks what is wrong with a batch that was closed as PostgreSQL's being away, where it is.
func (r *attended) explain(err error) error {
	if err == nil || !r.dead || r.ctx.Err() != nil {
		return err
	}
	return &awayError{err}
}

// releasing gives the connection back with the end of the batch.
type releasing struct {
	*attended
	pooled *pgxpool.Conn
}

func (r *releasing) Close() error {
	defer r.pooled.Release()
	return r.attended.Close()
}

func (p piped) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	results, err := p.send(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	if e := results.Close(); err == nil {
		err = e
	}
	return tag, results.explain(err)
}

func (p piped) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := p.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		results.Close()
		return nil, results.explain(err)
	}
	return &batchRows{Rows: rows, results: results}, nil
}

func (p piped) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...)
	return batchRow{rows, err}
}

// batchRows ends the batch when its rows end, so that its connection goes back to the pool and a late error is seen.
type batchRows struct {
	pgx.Rows
	results results
	ended   bool
	err     error
}

func (r *batchRows) end() {
	if !r.ended {
		r.ended = true
		r.err = r.results.Close()
	}
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.end()
	return false
}

func (r *batchRows) Close() { r.Rows.Close(); r.end() }

func (r *batchRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return r.results.explain(err)
	}
	return r.results.explain(r.err)
}

type batchRow struct {
	rows pgx.Rows
	err  error
}

func (r batchRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
