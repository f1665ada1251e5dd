package db_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"managoat/db"
)

func openDir(t *testing.T) string {
	t.Helper()
	// t.TempDir lies below directories that another user may not pass.
	dir, err := os.MkdirTemp("", "mgembed")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "pg")
}

func start(t *testing.T, dir string) *db.Embedded {
	t.Helper()
	bin, err := db.FindBinaries(dir, "", "")
	if err != nil {
		t.Fatal(err)
	}
	e, err := db.StartEmbedded(context.Background(), dir, bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop(context.Background()) })
	return e
}

func TestASecondStartFindsWhatTheFirstWrote(t *testing.T) {
	t.Parallel()
	ctx, dir := context.Background(), openDir(t)
	for i, sql := range []string{"create table kept (n int); insert into kept values (7)", "select n from kept"} {
		e := start(t, dir)
		url, err := e.OwnerURL(ctx, "managoat")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err = conn.Exec(ctx, sql)
		} else {
			var n int
			if err = conn.QueryRow(ctx, sql).Scan(&n); n != 7 {
				t.Fatalf("found %d", n)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		conn.Close(ctx)
		if err := e.Stop(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that was killed leaves its PostgreSQL running: the next start uses it instead of failing on its lock.
func TestAPostgresLeftByAKilledServerIsAdopted(t *testing.T) {
	t.Parallel()
	ctx, dir := context.Background(), openDir(t)
	start(t, dir)
	second := start(t, dir)
	if _, err := second.OwnerURL(ctx, "managoat"); err != nil {
		t.Fatal(err)
	}
	if err := second.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := second.OwnerURL(ctx, "managoat"); err == nil {
		t.Fatal("it still answers after Stop")
	}
}

func TestAHalfMadeClusterOfAnInterruptedFirstStartIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := start(t, dir)
	if _, err := e.OwnerURL(context.Background(), "managoat"); err != nil {
		t.Fatal(err)
	}
}

func TestAClusterOfAnotherMajorVersionNamesTheBinariesItNeeds(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("11\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := db.FindBinaries(dir, "", ""); err == nil || !strings.Contains(err.Error(), "postgresql-11") {
		t.Fatalf("%v", err)
	}
	if _, err := db.FindBinaries(dir, "/nowhere", ""); err == nil || !strings.Contains(err.Error(), "MANAGOAT_PG_BIN") {
		t.Fatalf("%v", err)
	}
}
