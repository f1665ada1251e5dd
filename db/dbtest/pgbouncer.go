package dbtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// poolerTimeout is how long PgBouncer may take to start.
const poolerTimeout = 20 * time.Second

var pooler struct {
	once    sync.Once
	address string
	err     error
}

// PgBouncer is the address of a PgBouncer in transaction mode before the tests' server, of which each test process has one.
func PgBouncer(tb testing.TB) string {
	tb.Helper()
	server.once.Do(start)
	if server.err != nil {
		tb.Fatalf("PostgreSQL for tests: %v", server.err)
	}
	pooler.once.Do(func() { pooler.address, pooler.err = startPgBouncer() })
	if pooler.err != nil {
		tb.Fatalf("PgBouncer for tests: %v", pooler.err)
	}
	return pooler.address
}

func startPgBouncer() (string, error) {
	dir, err := Directory()
	if err != nil {
		return "", err
	}
	app, err := url.Parse(server.urls.App)
	if err != nil {
		return "", err
	}
	platform, err := url.Parse(server.urls.Platform)
	if err != nil {
		return "", err
	}
	q := app.Query()
	// Two connections a database carry everything, in turns, so that nobody finds again what it left on one.
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
pool_mode = transaction
default_pool_size = 2
min_pool_size = 2
server_round_robin = 1
server_idle_timeout = 5
max_client_conn = 1000
listen_addr =
unix_socket_dir = %[3]s
listen_port = 6432
auth_type = trust
auth_file = %[3]s/users
logfile = %[3]s/log
`, q.Get("host"), q.Get("port"), dir)
	users := fmt.Sprintf("%q \"\"\n%q \"\"\n", app.User.Username(), platform.User.Username())
	for name, text := range map[string]string{"config": config, "users": users} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	info, err := os.Stat(q.Get("host")) // it must reach PostgreSQL's socket, and not run as root
	if err != nil {
		return "", err
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		return "", err
	}
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer" // where Debian has it, which is not on everybody's path
	}
	cmd := exec.Command(path, "-q", filepath.Join(dir, "config"))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	watch := exec.Command("/bin/sh", "-c", `while kill -0 "$1" 2>/dev/null; do sleep 0.3; done; kill "$2"; rm -rf "$3"`,
		"watch", fmt.Sprint(os.Getpid()), fmt.Sprint(cmd.Process.Pid), dir)
	watch.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watch.Start(); err != nil {
		return "", err
	}
	q.Set("host", dir)
	q.Set("port", "6432")
	app.RawQuery, app.Path = q.Encode(), "/postgres" // the template is copied only while nobody is connected to it
	ctx, cancel := context.WithTimeout(context.Background(), poolerTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, app.String())
		if err == nil {
			return dir + ":6432", conn.Close(ctx)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			return "", fmt.Errorf("it does not answer: %w\n%s", err, log)
		}
	}
}
