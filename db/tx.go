package db

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"managoat/queries"
)

// Tx is an open transaction and the generated queries on it.
//
// A statement that answers nothing (sqlc's :exec) is not sent by itself: it travels with the next one that does, or with the
// commit, in one round trip and in the order of the calls. Its error comes back there, and rolls everything back. One whose
// error the caller must tell apart at once is therefore not an :exec but an :execrows; one that only must hold calls fence,
// and Fenced tells its error from others. Refused turns such an error into what people are told.
type Tx struct {
	*queries.Queries
	t *transaction
}

// Exec runs a statement that sqlc cannot generate (settings, advisory locks), at once. Queries belong in queries/.
func (t Tx) Exec(ctx context.Context, sql string, args ...any) error {
	_, err := t.t.piped.Exec(ctx, sql, args...)
	return err
}

// Refused says what the transaction ends with when the fence of this name refuses it: the error that fn makes once
// everything is rolled back.
func (t Tx) Refused(what string, fn func(context.Context, *queries.Queries) error) {
	t.t.refused = append(t.t.refused, refused{what, fn})
}

// OnCommit runs fn once the transaction is committed.
func (t Tx) OnCommit(fn func()) { t.t.committed = append(t.t.committed, fn) }

type refused struct {
	what string
	fn   func(context.Context, *queries.Queries) error
}

// transaction sends what runs in it. It takes a connection, and begins, with the first statement that is sent.
type transaction struct {
	piped
	pool      *pgxpool.Pool
	tenant    uuid.UUID // uuid.Nil: of none
	conn      *pgxpool.Conn
	waiting   []statement
	refused   []refused
	committed []func()
}

type statement struct {
	sql  string
	args []any
}

// transact runs fn in one transaction; of an account, unless tenant is uuid.Nil. fn's error rolls back; a panic does too.
func transact(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID, fn func(Tx) error) error {
	t := &transaction{pool: pool, tenant: tenant}
	t.piped = piped{t.sendAll}
	err := t.run(ctx, fn)
	if err == nil {
		for _, fn := range t.committed {
			fn()
		}
	}
	for _, r := range t.refused {
		if Fenced(err, r.what) {
			return r.fn(ctx, queries.New(statements(pool, tenant)))
		}
	}
	return err
}

func (t *transaction) run(ctx context.Context, fn func(Tx) error) error {
	committed := false
	defer func() {
		if t.conn == nil {
			return
		}
		if !committed {
			t.conn.Exec(ctx, "rollback") // where this fails the connection is of no use any more, and Release closes it
		}
		t.conn.Release()
	}()
	if err := fn(Tx{queries.New(t), t}); err != nil {
		return err
	}
	if t.conn == nil && len(t.waiting) == 0 {
		return nil
	}
	tag, err := t.piped.Exec(ctx, "commit")
	if err != nil {
		return err
	}
	if committed = true; tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// Exec sends a statement whose count of rows is asked for, and lets others wait.
func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if first, _, _ := strings.Cut(sql, "\n"); strings.HasSuffix(first, " :exec") {
		t.waiting = append(t.waiting, statement{sql, args})
		return pgconn.CommandTag{}, nil
	}
	return t.piped.Exec(ctx, sql, args...)
}

func (t *transaction) sendAll(ctx context.Context, sql string, args []any) (results, error) {
	waited := t.waiting
	t.waiting = nil
	var results *attended
	if t.conn == nil {
		if t.tenant != uuid.Nil {
			waited = append([]statement{{setTenant, []any{t.tenant.String()}}}, waited...)
		}
		all := append(append([]statement{{sql: "begin"}}, waited...), statement{sql, args})
		var err error
		if t.conn, results, err = begun(ctx, t.pool, all); err != nil {
			return nil, err
		}
	} else {
		var b pgx.Batch
		for _, s := range waited {
			b.Queue(s.sql, s.args...)
		}
		b.Queue(sql, args...)
		results = attend(ctx, t.conn, &b)
	}
	for _, s := range waited {
		if _, err := results.Exec(); err != nil {
			results.Close()
			return nil, fmt.Errorf("%s: %w", s.name(), results.explain(err))
		}
	}
	return results, nil
}

// name is what the statement is called in queries/.
func (s statement) name() string {
	first, _, _ := strings.Cut(s.sql, "\n")
	if name, ok := strings.CutPrefix(first, "-- name: "); ok {
		return strings.TrimSuffix(name, " :exec")
	}
	return first
}
