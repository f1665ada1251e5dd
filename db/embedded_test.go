package db_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

// The lock of a postgres that was killed names a process that ended and that nobody reaped, as happens in containers, or one
// that got its number since. PostgreSQL takes both for its holder.
func TestALockThatNoPostgresHoldsIsNoHindrance(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	lock := filepath.Join(dir, "data", "postmaster.pid")
	for name, argv := range map[string][]string{"unreaped": {"true"}, "a stranger": {"sleep", "600"}} {
		e := start(t, dir)
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t) // PostgreSQL looks at processes of its own user only
		holder := exec.Command(argv[0], argv[1:]...)
		holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { holder.Process.Kill(); holder.Wait() }()
		raw, err := os.ReadFile(lock)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(raw), "\n")
		if err := os.WriteFile(lock, []byte(strconv.Itoa(holder.Process.Pid)+"\n"+rest), 0o600); err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(dir, ".s.PGSQL.5432.lock")
		if err := os.WriteFile(socket, []byte(strconv.Itoa(holder.Process.Pid)+"\n"+rest), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{lock, socket} {
			if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
				t.Fatal(err)
			}
		}
		again := start(t, dir)
		if _, err := again.OwnerURL(t.Context(), "managoat"); err != nil || again.Adopted() {
			t.Errorf("%s: %v, adopted %v", name, err, again.Adopted())
		}
		if err := again.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
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
