// Package dbtest gives every test a migrated PostgreSQL database of its own.
//
// The first test of a process starts a real PostgreSQL under a temporary directory (or uses the one that
// MANAGOAT_TEST_PG names, which `make test` starts once for all packages), migrates a template, and each test
// gets a copy of it.
package dbtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"managoat/db"
)

// serverVariable names the variable with the owner's URL of a running PostgreSQL ("postgres" database).
const serverVariable = "MANAGOAT_TEST_PG"

// wayVariable names the variable with how databases are reached, where that is not as usual, comma separated: the same tests
// run again so.
const (
	wayVariable      = "MANAGOAT_TEST_DATABASE"
	oneConnection    = "one"       // by a pool of one connection
	throughPgBouncer = "pgbouncer" // in transaction mode
)

var loginKey = []byte("the tests' login key")

var server struct {
	once     sync.Once
	url      string // owner's URL of the database "postgres"
	template string
	urls     db.URLs // of the template
	err      error
}

// Database is one test's database.
type Database struct {
	*db.DB
	OwnerURL string  // a superuser: for looking at what the app must not see
	URLs     db.URLs // the logins the server would use
}

// New returns a fresh, migrated database that goes with the test.
func New(tb testing.TB) *Database { return NewWith(tb, db.Options{}) }

// NewWith is New with options of the pool.
func NewWith(tb testing.TB, opts db.Options) *Database {
	tb.Helper()
	server.once.Do(start)
	if server.err != nil {
		tb.Fatalf("PostgreSQL for tests: %v", server.err)
	}
	ctx := context.Background()
	name := "t_" + hex.EncodeToString(newID(tb))
	admin, err := pgx.Connect(ctx, server.url)
	if err != nil {
		tb.Fatal(err)
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "create database "+name+" template "+server.template); err != nil {
		tb.Fatal(err)
	}
	d := &Database{OwnerURL: onDatabase(server.url, name), URLs: db.URLs{
		App: onDatabase(server.urls.App, name), Platform: onDatabase(server.urls.Platform, name)}}
	for way := range strings.FieldsFuncSeq(os.Getenv(wayVariable), func(r rune) bool { return r == ',' }) {
		switch way {
		case oneConnection:
			opts.MaxConns = 1
		case throughPgBouncer:
			opts.Pooler = PgBouncer(tb)
		default:
			tb.Fatalf("%s names %q", wayVariable, way)
		}
	}
	if d.DB, err = db.Open(ctx, d.URLs, opts); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		d.Close()
		admin, err := pgx.Connect(ctx, server.url)
		if err != nil {
			return // the server went first
		}
		defer admin.Close(ctx)
		admin.Exec(ctx, "drop database if exists "+name+" with (force)")
	})
	return d
}

// Postgres is a PostgreSQL of one test's own.
type Postgres struct {
	dir     string
	ahead   time.Duration
	running *db.Embedded
}

// Own returns a fresh, migrated database on a PostgreSQL that the test may take away, and whose clock is ahead of
// everybody else's (or behind them). Both go with the test.
func Own(tb testing.TB, ahead time.Duration) (*Database, *Postgres) {
	tb.Helper()
	ctx := context.Background()
	dir, err := Directory()
	if err != nil {
		tb.Fatal(err)
	}
	p := &Postgres{dir: dir, ahead: ahead}
	tb.Cleanup(func() {
		if err := errors.Join(db.StopEmbedded(ctx, filepath.Join(dir, "pg")), os.RemoveAll(dir)); err != nil {
			tb.Error(err)
		}
	})
	p.Start(tb)
	d := new(Database)
	if d.OwnerURL, err = p.running.OwnerURL(ctx, "test"); err != nil {
		tb.Fatal(err)
	}
	if d.URLs, err = db.Migrate(ctx, d.OwnerURL, db.URLs{}, loginKey); err != nil {
		tb.Fatal(err)
	}
	if d.DB, err = db.Open(ctx, d.URLs, db.Options{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.Close)
	return d, p
}

// Kill ends the server as a crash does, and returns when it is gone.
func (p *Postgres) Kill(tb testing.TB) {
	tb.Helper()
	lock, err := os.ReadFile(filepath.Join(p.dir, "pg", "data", "postmaster.pid"))
	if err != nil {
		tb.Fatal(err)
	}
	first, _, _ := strings.Cut(string(lock), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		tb.Fatal(err)
	}
	<-p.running.Done()
}

// Start starts the server again on what it has on disk.
func (p *Postgres) Start(tb testing.TB) {
	tb.Helper()
	var err error
	if p.running, err = serve(context.Background(), p.dir, p.ahead, "synchronous_commit=on"); err != nil {
		tb.Fatal(err)
	}
}

// withClock makes a directory of PostgreSQL's programs under dir, with a server that reads another time.
func withClock(dir, bin string, ahead time.Duration) (string, error) {
	libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(libraries) == 0 {
		return "", errors.New("libfaketime is not installed")
	}
	to := filepath.Join(dir, "bin")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	programs, err := os.ReadDir(bin)
	if err != nil {
		return "", err
	}
	for _, p := range programs {
		if err := os.Symlink(filepath.Join(bin, p.Name()), filepath.Join(to, p.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD=%s FAKETIME=%+.0fs DONT_FAKE_MONOTONIC=1 exec %s \"$@\"\n", libraries[0], ahead.Seconds(), filepath.Join(bin, "postgres"))
	if err := os.Remove(filepath.Join(to, "postgres")); err != nil {
		return "", err
	}
	return to, os.WriteFile(filepath.Join(to, "postgres"), []byte(script), 0o755)
}

// Empty returns the owner's URL of a new database that nothing was migrated into.
func Empty(tb testing.TB) string {
	tb.Helper()
	server.once.Do(start)
	if server.err != nil {
		tb.Fatalf("PostgreSQL for tests: %v", server.err)
	}
	ctx := context.Background()
	name := "e_" + hex.EncodeToString(newID(tb))
	admin, err := pgx.Connect(ctx, server.url)
	if err != nil {
		tb.Fatal(err)
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		tb.Fatal(err)
	}
	return onDatabase(server.url, name)
}

// Account makes an account with an owner and returns its id. The data key is a dummy: packages that seal secrets
// make accounts through identity.
func (d *Database) Account(tb testing.TB) uuid.UUID {
	tb.Helper()
	id := uuid.Must(uuid.NewV7())
	ctx := context.Background()
	conn := d.Owner(tb)
	for _, sql := range []string{
		"insert into tenants (tenant_id, name, data_key) values ($1::uuid, 'test ' || $1::uuid::text, '\\x00')",
		"insert into tenant_heads (tenant_id) values ($1)",
		"insert into quotas (tenant_id) values ($1)",
	} {
		if _, err := conn.Exec(ctx, sql, id); err != nil {
			tb.Fatal(err)
		}
	}
	return id
}

// Owner opens a superuser connection that goes with the test.
func (d *Database) Owner(tb testing.TB) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(context.Background(), d.OwnerURL)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func newID(tb testing.TB) []byte {
	id, err := uuid.NewRandom()
	if err != nil {
		tb.Fatal(err)
	}
	return id[:8]
}

func start() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	server.url = os.Getenv(serverVariable)
	if server.url == "" {
		if server.url, server.err = ownServer(ctx); server.err != nil {
			return
		}
	}
	server.template, server.urls, server.err = template(ctx)
}

// Directory makes a directory for a server of Serve, which PostgreSQL's user passes through.
func Directory() (string, error) {
	dir, err := os.MkdirTemp("", "mgpg")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// Serve starts a PostgreSQL under dir that is fast rather than safe: it would not survive a crash of its host, and after one
// of its own it could lack what was committed last, unless settings say otherwise.
func Serve(ctx context.Context, dir string) (*db.Embedded, error) { return serve(ctx, dir, 0) }

func serve(ctx context.Context, dir string, ahead time.Duration, settings ...string) (*db.Embedded, error) {
	pgDir := filepath.Join(dir, "pg")
	bin, err := db.FindBinaries(pgDir, os.Getenv("MANAGOAT_PG_BIN"), "")
	if err != nil {
		return nil, err
	}
	if ahead != 0 {
		if bin, err = withClock(dir, bin, ahead); err != nil {
			return nil, err
		}
	}
	return db.StartEmbedded(ctx, pgDir, bin, append([]string{"fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "max_connections=1000"}, settings...)...)
}

// ownServer starts PostgreSQL for this process. A shell that waits for this process's end stops it, since a test
// process has no hook of its own at exit.
func ownServer(ctx context.Context) (string, error) {
	dir, err := Directory()
	if err != nil {
		return "", err
	}
	pg, err := Serve(ctx, dir)
	if err != nil {
		return "", err
	}
	watch := exec.Command("/bin/sh", "-c", `while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
		pid=$(head -n 1 "$2/data/postmaster.pid" 2>/dev/null) && kill -INT "$pid"
		for i in $(seq 100); do [ -e "$2/data/postmaster.pid" ] || break; sleep 0.1; done
		rm -rf "$3"`, "watch", fmt.Sprint(os.Getpid()), filepath.Join(dir, "pg"), dir)
	watch.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watch.Start(); err != nil {
		return "", err
	}
	return pg.OwnerURL(ctx, "postgres")
}

// template migrates a database once for each state of the migrations and returns its name.
func template(ctx context.Context) (string, db.URLs, error) {
	sum, err := db.MigrationsDigest()
	if err != nil {
		return "", db.URLs{}, err
	}
	name := "template_" + sum[:16]
	admin, err := pgx.Connect(ctx, server.url)
	if err != nil {
		return "", db.URLs{}, err
	}
	defer admin.Close(ctx)
	// Packages run side by side on one server: one makes the template, the others wait for it.
	h := sha256.Sum256([]byte(name))
	lock := int64(h[0])<<16 | int64(h[1])<<8 | int64(h[2])
	if _, err := admin.Exec(ctx, "select pg_advisory_lock($1)", lock); err != nil {
		return "", db.URLs{}, err
	}
	defer admin.Exec(ctx, "select pg_advisory_unlock($1)", lock)
	var exists bool
	if err := admin.QueryRow(ctx, "select exists (select 1 from pg_database where datname = $1 and datistemplate)", name).Scan(&exists); err != nil {
		return "", db.URLs{}, err
	}
	if exists {
		urls, err := db.LoginURLs(onDatabase(server.url, name), loginKey)
		return name, urls, err
	}
	for _, sql := range []string{"drop database if exists " + name + " with (force)", "create database " + name} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return "", db.URLs{}, err
		}
	}
	urls, err := db.Migrate(ctx, onDatabase(server.url, name), db.URLs{}, loginKey)
	if err != nil {
		return "", db.URLs{}, err
	}
	_, err = admin.Exec(ctx, "alter database "+name+" is_template true")
	return name, urls, err
}

func onDatabase(raw, name string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err) // our own URL
	}
	u.Path = "/" + name
	return u.String()
}
