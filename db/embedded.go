package db

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Embedded is a PostgreSQL of our own: real binaries, a cluster under the data directory, a unix socket only.
type Embedded struct {
	dir  string // the cluster, the socket and the log; the PostgreSQL user's, 0700
	bin  string
	proc *os.Process // nil when an already running one was adopted
	done chan struct{}
	left bool // Stop leaves it running
}

// Timeouts of the embedded PostgreSQL.
const (
	pgStartTimeout = 60 * time.Second // crash recovery of a large cluster takes its time
	pgStopTimeout  = 20 * time.Second
	lookEvery      = time.Second // between looks for one that was adopted
)

// StartEmbedded starts PostgreSQL on dir, makes the cluster when it is new, and adopts a server that is already
// running there (left by a killed server of ours). binDir is where the binaries lie; see FindBinaries. Root runs it
// as an unprivileged user, since PostgreSQL refuses to run as root. settings are further ones of the server
// ("fsync=off"), for tests.
func StartEmbedded(ctx context.Context, dir, binDir string, settings ...string) (*Embedded, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// A unix socket's path is bounded by the kernel (108 bytes).
	if len(filepath.Join(dir, ".s.PGSQL.5432")) > 100 {
		return nil, fmt.Errorf("the data directory's path is too long for a unix socket: %s", dir)
	}
	e := &Embedded{dir: dir, bin: binDir, done: make(chan struct{})}
	cred, err := e.prepare()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); errors.Is(err, os.ErrNotExist) {
		if err := e.initdb(ctx, data, cred); err != nil {
			return nil, err
		}
	}
	if adopted, err := e.adopt(ctx, data); err != nil || adopted {
		return e, err
	}
	if err := e.start(data, cred, settings); err != nil {
		return nil, err
	}
	if err := e.await(ctx); err != nil {
		e.Stop(context.WithoutCancel(ctx))
		return nil, err
	}
	return e, nil
}

// adopt takes over a PostgreSQL that runs on the directory: one that starts is waited for, one that stops is let go.
func (e *Embedded) adopt(ctx context.Context, data string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, pgStartTimeout)
	defer cancel()
	pidFile := filepath.Join(data, "postmaster.pid")
	for {
		err := e.answers(ctx)
		if err == nil {
			close(e.done)
			return true, nil
		}
		if _, runs := postmaster(pidFile, e.dir); !runs {
			break
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("the postgres that runs on %s does not answer: %w; its log says:\n%s", e.dir, err, e.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
	// PostgreSQL takes any process of its number for its holder: also one that ended and that nobody reaped, as happens in
	// containers, and a stranger. Whether a server of the cluster is still there it sees by its shared memory too.
	for _, lock := range []string{pidFile, filepath.Join(e.dir, ".s.PGSQL.5432.lock")} {
		if err := os.Remove(lock); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("remove the lock of a postgres that is gone: %w", err)
		}
	}
	return false, nil
}

// prepare makes the directory and chooses the user: nil when this process's own user will do.
func (e *Embedded) prepare() (*syscall.Credential, error) {
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the database directory: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil, nil
	}
	info, err := os.Stat(e.dir)
	if err != nil {
		return nil, err
	}
	// A directory that was used before keeps its user.
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 {
		return &syscall.Credential{Uid: st.Uid, Gid: st.Gid}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(e.dir, uid, gid); err != nil {
			return nil, err
		}
		cred := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		probe := exec.Command("/bin/sh", "-c", "cd \"$0\" && test -w .", e.dir)
		probe.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		if probe.Run() != nil {
			return nil, fmt.Errorf("the user %s cannot reach %s: every directory above it must be open to others (mode o+x); /root is not, /var/lib/managoat is a good place", name, e.dir)
		}
		return cred, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root and neither the user postgres nor nobody exists")
}

func (e *Embedded) command(cred *syscall.Credential, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(e.bin, name), args...)
	cmd.Dir = e.dir
	cmd.Env = []string{"LC_ALL=C.UTF-8", "PATH=/usr/bin:/bin", "HOME=" + e.dir, "TZ=UTC"}
	// A session of its own: Ctrl-C in the server's terminal must not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: cred}
	return cmd
}

func (e *Embedded) initdb(ctx context.Context, data string, cred *syscall.Credential) error {
	// A half-made cluster of an interrupted first start is no cluster: it is made under another name first.
	fresh := data + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	cmd := e.command(cred, "initdb", "-D", fresh, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.Rename(fresh, data)
}

func (e *Embedded) start(data string, cred *syscall.Credential, settings []string) error {
	log, err := os.OpenFile(filepath.Join(e.dir, "postgres.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	settings = append([]string{"listen_addresses=", "port=5432", "unix_socket_permissions=0700", "max_connections=200", "shared_buffers=128MB",
		"log_min_messages=warning", "jit=off"}, settings...)
	args := []string{"-D", data, "-k", e.dir}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	cmd := e.command(cred, "postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	e.proc = cmd.Process
	go func() { cmd.Wait(); close(e.done) }()
	return nil
}

func (e *Embedded) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pgStartTimeout)
	defer cancel()
	for {
		err := e.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-e.done:
			return fmt.Errorf("postgres ended while starting; its log says:\n%s", e.logTail())
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer: %w; its log says:\n%s", err, e.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (e *Embedded) answers(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, e.adminURL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func (e *Embedded) logTail() string {
	const tail = 2000
	b, _ := os.ReadFile(filepath.Join(e.dir, "postgres.log"))
	return strings.TrimSpace(string(b[max(0, len(b)-tail):]))
}

func (e *Embedded) adminURL(database string) string {
	return "postgres://postgres@/" + database + "?host=" + e.dir + "&port=5432"
}

// OwnerURL makes sure of a database of that name and returns the owner's URL to it.
func (e *Embedded) OwnerURL(ctx context.Context, database string) (string, error) {
	conn, err := pgx.Connect(ctx, e.adminURL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select 1 from pg_database where datname = $1)", database).Scan(&exists); err != nil {
		return "", err
	}
	if !exists {
		if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{database}.Sanitize()); err != nil {
			return "", err
		}
	}
	return e.adminURL(database), nil
}

// Adopted tells whether it was running already.
func (e *Embedded) Adopted() bool { return e.proc == nil }

// Leave makes Stop leave it running: it belongs to somebody else.
func (e *Embedded) Leave() { e.left = true }

// Done is closed when a PostgreSQL that this process started has ended; at once for one that was adopted.
func (e *Embedded) Done() <-chan struct{} { return e.done }

// Ended waits until PostgreSQL has ended, or ctx. One that was adopted is nobody's child here, so it is looked for.
func (e *Embedded) Ended(ctx context.Context) error {
	if !e.Adopted() {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if _, runs := postmaster(filepath.Join(e.dir, "data", "postmaster.pid"), e.dir); !runs {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Stop ends PostgreSQL (a fast shutdown: clients are cut, nothing is lost) and waits for it.
func (e *Embedded) Stop(ctx context.Context) error {
	if e.left {
		return nil
	}
	return StopEmbedded(ctx, e.dir)
}

// StopEmbedded stops the PostgreSQL of dir, whoever started it, and waits until its process is gone: the pid file goes
// before it. None running is success.
func StopEmbedded(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, pgStopTimeout)
	defer cancel()
	pid, ok := postmaster(filepath.Join(dir, "data", "postmaster.pid"), dir)
	if !ok {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	for serves(pid, dir) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("postgres (pid %d) does not stop: %w", pid, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// postmaster reads the pid file of a cluster that runs.
func postmaster(pidFile, dir string) (int, bool) {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		return 0, false
	}
	return pid, serves(pid, dir)
}

// serves tells whether a process is a postgres of this cluster, not a stranger that got the same number.
func serves(pid int, dir string) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		// Not Linux: that the process is there is all there is to know.
		return runtime.GOOS != "linux" && syscall.Kill(pid, 0) == nil
	}
	return strings.Contains(string(cmdline), filepath.Join(dir, "data"))
}
