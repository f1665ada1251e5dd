// Package db is the one door to PostgreSQL: migrations, the pools, and the four ways in.
//
//   - InTenant and Tenant: everything about one account, under row-level security.
//   - AsPlatform: across accounts, with an access row written first.
//   - Due: what background work finds to do: ids or a count, nothing else.
//   - Lookup: what must be found before the account is known (a session, a key), one row for one hash.
//
// No pool is exported, so no statement can run without saying whose it is.
package db

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"managoat/queries"
)

// DB holds the app's pool and the small pool of the platform's login.
type DB struct {
	app      *pgxpool.Pool
	platform *pgxpool.Pool
	appURL   string
}

// URLs are the connection strings of the two logins the server runs with. The owner's is used by Migrate only.
type URLs struct {
	App      string
	Platform string
}

// Sizes of the pools. Statements are short and one round trip, so a few connections carry a lot.
const (
	appConns      = 16
	platformConns = 2
)

// Options that an operator may set.
type Options struct {
	MaxConns int32 // of the app's pool; 0: the default

	// Pooler is where statements go instead of to the URLs' server: the host:port of a pooler before it, or the directory of
	// its socket and the port. It may give every transaction another connection of its own. Migrations and notifications need
	// the same one all along, and go directly.
	Pooler string
}

// Open connects both pools and checks that they answer.
func Open(ctx context.Context, urls URLs, opts Options) (*DB, error) {
	if opts.MaxConns == 0 {
		opts.MaxConns = appConns
	}
	app, err := pool(ctx, urls.App, opts.MaxConns, opts.Pooler)
	if err != nil {
		return nil, fmt.Errorf("connect as the app: %w", err)
	}
	platform, err := pool(ctx, urls.Platform, min(opts.MaxConns, platformConns), opts.Pooler)
	if err != nil {
		app.Close()
		return nil, fmt.Errorf("connect as the platform: %w", err)
	}
	return &DB{app: app, platform: platform, appURL: urls.App}, nil
}

func pool(ctx context.Context, url string, conns int32, pooler string) (*pgxpool.Pool, error) {
	if pooler != "" {
		var err error
		if url, err = through(url, pooler); err != nil {
			return nil, err
		}
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// ParseConfig's error can repeat the connection string.
		return nil, errors.New("the connection string cannot be read")
	}
	cfg.MaxConns = conns
	if pooler != "" {
		// The next transaction may be on another connection, which knows nothing of statements that were prepared on this one.
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	p, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := p.Ping(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// through is a URL with another server.
func through(raw, pooler string) (string, error) {
	host, port, err := net.SplitHostPort(pooler)
	if err != nil {
		return "", fmt.Errorf("the pooler's address: %w", err)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" {
		return "", errors.New("a database URL must be of the form postgres://user:password@host:port/name")
	}
	q := u.Query()
	q.Del("hostaddr")
	q.Set("host", host)
	q.Set("port", port)
	u.Host, u.RawQuery = "", q.Encode()
	return u.String(), nil
}

// Close ends both pools and waits for their connections.
func (d *DB) Close() {
	d.app.Close()
	d.platform.Close()
}

// Ping tells whether PostgreSQL answers.
func (d *DB) Ping(ctx context.Context) error { return d.app.Ping(ctx) }

// InTenant runs fn in one transaction that sees and writes one account only. fn's error rolls back; a panic does too.
func (d *DB) InTenant(ctx context.Context, tenantID uuid.UUID, fn func(Tx) error) error {
	if tenantID == uuid.Nil {
		return errors.New("db: InTenant without an account")
	}
	return transact(ctx, d.app, tenantID, fn)
}

// Tenant returns the queries of one account for single statements: each runs as a transaction of its own, in
// one round trip with the setting of the account.
func (d *DB) Tenant(tenantID uuid.UUID) *queries.Queries {
	return queries.New(statements(d.app, tenantID))
}

// AsPlatform runs fn across accounts, as the platform's login. The access row (who and why) is written first,
// in the same transaction.
func (d *DB) AsPlatform(ctx context.Context, operator, reason string, fn func(Tx) error) error {
	return transact(ctx, d.platform, uuid.Nil, func(tx Tx) error {
		if err := tx.Exec(ctx, "insert into platform_access (operator, reason) values ($1, $2)", operator, reason); err != nil {
			return fmt.Errorf("write the access row: %w", err)
		}
		return fn(tx)
	})
}

// Ref names a row of one account.
type Ref struct {
	TenantID uuid.UUID
	ID       uuid.UUID
}

// Kind of due work. Each is a SECURITY DEFINER function of the migrations, named in dueSQL.
type Kind string

// Kinds of due work.
const (
	DueOperations Kind = "operations" // turns, and ends of conversations, that nobody does now (arg: the id of the host that would)
	DueDeletes    Kind = "deletes"    // workspaces whose delete has begun
	DueMachines   Kind = "machines"   // machines of one host (arg: the host's id)
	DueTurns      Kind = "turns"      // turns that say running (arg: none)
	DueClosed     Kind = "closed"     // accounts that were closed (arg: none)
	DueParks      Kind = "parks"      // workspaces whose machine on a host is idle or up for too long (args: the host's id, seconds idle, seconds up)
	DueForgets    Kind = "forgets"    // machines that a host may have still (arg: the host's id)
	DueDisposals  Kind = "disposals"  // workspaces of one conversation whose machine on a host is up or parked for too long (args: the host's id, seconds up, seconds parked)
)

var dueSQL = map[Kind]string{
	DueOperations: "select tenant_id, id from due_operations($2, $1)",
	DueDeletes:    "select tenant_id, id from due_deletes($1)",
	DueMachines:   "select tenant_id, id from due_machines($2, $1)",
	DueClosed:     "select tenant_id, id from due_closed($1)",
	DueParks:      "select tenant_id, id from due_parks($2, $3, $4, $1)",
	DueForgets:    "select tenant_id, id from due_forgets($2, $1)",
	DueDisposals:  "select tenant_id, id from due_disposals($2, $3, $4, $1)",
}

// dueLimit bounds one look for due work; the next look finds the rest.
const dueLimit = 1000

// Due finds work across accounts. It returns ids only; each row is then handled in its own InTenant.
func (d *DB) Due(ctx context.Context, kind Kind, args ...any) ([]Ref, error) {
	sql, ok := dueSQL[kind]
	if !ok {
		return nil, fmt.Errorf("db: no due work of kind %q", kind)
	}
	rows, err := statements(d.app, uuid.Nil).Query(ctx, sql, append([]any{dueLimit}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("look for due %s: %w", kind, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Ref])
}

// RunningMachines counts the machines that run on the whole instance.
func (d *DB) RunningMachines(ctx context.Context) (n int64, err error) {
	return n, statements(d.app, uuid.Nil).QueryRow(ctx, "select running_machines()").Scan(&n)
}

// Lookup returns the queries that run before the account is known. With no account set every table answers zero
// rows; only the narrow lookup functions and the global hosts table say anything.
func (d *DB) Lookup() *queries.Queries { return queries.New(statements(d.app, uuid.Nil)) }

// IsUnique tells whether err is a violation of the named unique constraint or index ("" for any).
func IsUnique(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505" && (constraint == "" || pg.ConstraintName == constraint)
}

// IsReferenced tells whether err says that other rows still refer to the one being deleted, or that a row refers to
// one that is not there.
func IsReferenced(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23503"
}

// Fenced tells whether a statement refused the transaction because its owner does not hold what it writes for any more: see the queries that call fence.
func Fenced(err error, what string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "MG001" && pg.ConstraintName == what
}

// NotFound tells whether err says that a single row was not there.
func NotFound(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// SafeText makes a string storable: PostgreSQL's text cannot hold NUL, jsonb neither NUL nor lone surrogates. Input of people
// passes here; output of machines passes the transcript gate, which does more.
func SafeText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\u2400")
}

// Notify tells every listener of a channel, in all server processes. The payload holds ids only: any login can listen.
func (d *DB) Notify(ctx context.Context, channel, payload string) error {
	_, err := statements(d.app, uuid.Nil).Exec(ctx, "select pg_notify($1, $2)", channel, payload)
	return err
}

// Listen hears a channel on a connection of its own until ctx ends or the connection does. ready is called once it
// hears: what happened before may have been missed.
func (d *DB) Listen(ctx context.Context, channel string, ready func(), hear func(payload string)) error {
	conn, err := pgx.Connect(ctx, d.appURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	ready()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		hear(n.Payload)
	}
}
