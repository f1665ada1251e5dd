package db_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"managoat/db"
	"managoat/db/dbtest"
)

var loginKey = []byte("the tests' login key")

// lastMigration is the newest one's number.
func lastMigration(t *testing.T) uint {
	t.Helper()
	all, err := filepath.Glob("migrations/*.up.sql")
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	number, _, _ := strings.Cut(filepath.Base(all[len(all)-1]), "_")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint(n)
}

// before is a database as the binary before the newest migration left it, and a connection of its owner.
func before(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	return at(t, lastMigration(t)-1)
}

// at is a database of an older version.
func at(t *testing.T, version uint) (url string, conn *pgx.Conn) {
	t.Helper()
	url = dbtest.Empty(t)
	if _, err := db.MigrateTo(t.Context(), url, loginKey, version); err != nil {
		t.Fatal(err)
	}
	return url, connect(t, url)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func version(t *testing.T, conn *pgx.Conn) (v uint, dirty bool) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "select version, dirty from schema_migrations").Scan(&v, &dirty); err != nil {
		t.Fatal(err)
	}
	return v, dirty
}

// A server of the version before is in the middle of a long transaction on every table. The migration does not make the
// others wait behind it: it stands back, again and again, and is done when the tables are free.
func TestAMigrationStandsBackFromTablesThatAreInUse(t *testing.T) {
	t.Parallel()
	const old = 6 // the next one alters tables that servers use all the time
	url, conn := at(t, old)
	tables, err := conn.Query(t.Context(), "select quote_ident(relname) from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relname <> 'schema_migrations'")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "begin; lock table "+strings.Join(names, ", ")+" in row exclusive mode"); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() {
		_, err := db.Migrate(t.Context(), url, db.URLs{}, loginKey)
		migrated <- err
	}()
	// The traffic of others: as much as there is time for until the migration has stood back twice.
	other := connect(t, url)
	waited := 0
	for waited < 2 {
		began := time.Now()
		for _, name := range names {
			if _, err := other.Exec(t.Context(), "begin; lock table "+name+" in row exclusive mode; commit"); err != nil {
				t.Fatal(err)
			}
		}
		took := time.Since(began)
		if took > db.LockWait/2 {
			waited++
		}
		if took > 3*db.LockWait {
			t.Errorf("others waited %s behind the migration", took)
		}
		select {
		case err := <-migrated:
			t.Fatalf("it migrated tables that were in use: %v", err)
		default:
		}
	}
	if v, dirty := version(t, other); v != old || dirty {
		t.Errorf("meanwhile the version is %d, dirty %v", v, dirty)
	}
	if _, err := conn.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	if v, dirty := version(t, other); v != lastMigration(t) || dirty {
		t.Errorf("the version is %d, dirty %v", v, dirty)
	}
}

// Whatever a binary of the version before has prepared on its connections goes on working under it: nothing that its
// statements name is taken away or means something else.
func TestStatementsOfTheVersionBeforeGoOnWorking(t *testing.T) {
	t.Parallel()
	url, conn := before(t)
	sources, err := filepath.Glob("../queries/*.sql.go")
	if err != nil {
		t.Fatal(err)
	}
	prepared, failed := map[string]int{}, 0
	for _, name := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || !strings.HasPrefix(lit.Value, "`-- name: ") {
				return true
			}
			sql := strings.Trim(lit.Value, "`")
			name := "s" + strconv.Itoa(len(prepared))
			statement, err := conn.Prepare(t.Context(), name, sql)
			if err != nil {
				failed++ // it is of the newest version
				return true
			}
			prepared[name] = len(statement.ParamOIDs)
			return true
		})
	}
	if len(prepared) < 100 || failed > len(prepared)/2 {
		t.Fatalf("%d statements were prepared, %d were not: this would show nothing", len(prepared), failed)
	}
	if _, err := db.Migrate(t.Context(), url, db.URLs{}, loginKey); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "set plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	for name, params := range prepared {
		args := ""
		if params > 0 {
			args = "(" + strings.TrimSuffix(strings.Repeat("null, ", params), ", ") + ")"
		}
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("explain execute %s%s", name, args), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestABinaryDoesNotStartOnADatabaseOfANewerOneAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	if _, err := db.Migrate(t.Context(), url, db.URLs{}, loginKey); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), "update schema_migrations set version = version + 2"); err != nil {
		t.Fatal(err)
	}
	_, err := db.Migrate(t.Context(), url, db.URLs{}, loginKey)
	var newer *db.NewerError
	if !errors.As(err, &newer) || newer.Known != lastMigration(t) || newer.Version != newer.Known+2 || !strings.Contains(err.Error(), "start the newer one") {
		t.Errorf("%v", err)
	}
	if v, dirty := version(t, conn); v != lastMigration(t)+2 || dirty {
		t.Errorf("it set the version to %d, dirty %v", v, dirty)
	}
}

// A server that dies in a migration leaves nothing of it, and the next start does it again.
func TestAMigrationThatIsCutOffIsDoneAgain(t *testing.T) {
	t.Parallel()
	url, conn := before(t)
	var cutting sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	cutting.Go(func() {
		cutter := connect(t, url)
		for ctx.Err() == nil { // the connection that migrates, as soon as it does
			tag, err := cutter.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity
				where datname = current_database() and state = 'active' and pid <> pg_backend_pid() and query like '%lock_timeout%'`)
			if err != nil || tag.RowsAffected() > 0 {
				return
			}
		}
	})
	_, err := db.Migrate(t.Context(), url, db.URLs{}, loginKey)
	stop()
	cutting.Wait()
	if v, dirty := version(t, conn); dirty || err != nil && v != lastMigration(t)-1 {
		t.Errorf("after %v the version is %d, dirty %v", err, v, dirty)
	}
	if _, err := db.Migrate(t.Context(), url, db.URLs{}, loginKey); err != nil {
		t.Fatal(err)
	}
	if v, dirty := version(t, conn); v != lastMigration(t) || dirty {
		t.Errorf("the version is %d, dirty %v", v, dirty)
	}
}
