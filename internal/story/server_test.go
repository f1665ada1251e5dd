package story

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"managoat/internal/testworld"
)

// Times that pass only when something is broken.
const (
	patience     = 2 * time.Minute // for one condition
	startTimeout = time.Minute     // from nothing to a server that greets
	stopTimeout  = time.Minute
)

// Server is one `managoat serve` on a data directory. It can end and start again.
type Server struct {
	dir    string
	url    string // of the running or last process
	env    []string
	unit   *unit   // the service it runs as, if any
	binary string  // that it runs
	log    *output // what every process of it wrote to standard error

	greeting *output // what the last one wrote to standard output
	cmd      *exec.Cmd
	exit     chan error
}

func newServer(dir string, environ ...string) *Server {
	return &Server{dir: dir, binary: common.binary, env: environ, log: new(output)}
}

// own starts a server for one test, in a world of its own, and ends it without leaving anything.
func own(tb testing.TB, environ ...string) (*Server, *testworld.World) {
	tb.Helper()
	return ownOf(tb, "", environ...)
}

// ownOf is own of another binary than the tested one, unless it is "".
func ownOf(tb testing.TB, binary string, environ ...string) (*Server, *testworld.World) {
	tb.Helper()
	common.open(tb)
	dir, err := os.MkdirTemp(common.dir, "own")
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	world := testworld.New(tb)
	s := newServer(filepath.Join(dir, "data"), append(world.Environ(), environ...)...)
	if binary != "" {
		s.binary = binary
	}
	tb.Cleanup(func() {
		if err := errors.Join(s.down(), s.leftovers()); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("the server:\n%s", s.log.Notable(0))
		}
		os.RemoveAll(dir)
	})
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
	return s, world
}

// environ is the environment of every process of the product: nothing of the tests' own settings leaks in.
func (s *Server) environ() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MANAGOAT_") })
	env = append(env, runtimesVariable+"="+common.runtimes, "MANAGOAT_DATA="+s.dir, "MANAGOAT_LISTEN=127.0.0.1:0")
	return append(append(env, common.provider...), s.env...)
}

// start runs the server and returns when it has greeted.
func (s *Server) start(flags ...string) error {
	s.cmd = exec.Command(s.binary, append([]string{"serve"}, flags...)...)
	s.cmd.Env = s.environ()
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C of the tests is not the server's
	if s.unit != nil {
		s.cmd.SysProcAttr.UseCgroupFD, s.cmd.SysProcAttr.CgroupFD = true, int(s.unit.Fd())
	}
	s.greeting = new(output)
	s.cmd.Stderr, s.cmd.Stdout = s.log, s.greeting
	s.cmd.WaitDelay = stopTimeout
	if err := s.cmd.Start(); err != nil {
		return err
	}
	exit := make(chan error, 1)
	go func(cmd *exec.Cmd) { exit <- cmd.Wait() }(s.cmd)
	s.exit = exit
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	for {
		if line, ok := s.greeting.Line("Managoat runs at "); ok {
			s.url = line
			return nil
		}
		select {
		case <-s.greeting.Grown():
		case err := <-exit:
			exit <- err
			return fmt.Errorf("the server ended before it greeted: %v\n%s", err, s.log)
		case <-deadline.C:
			return errors.Join(fmt.Errorf("no greeting in %s\n%s", startTimeout, s.log), s.stop(syscall.SIGKILL))
		}
	}
}

// unit is a control group such as a supervisor gives to a service: what the server starts is born in it.
type unit struct{ *os.File }

func newUnit(tb testing.TB) *unit {
	tb.Helper()
	root := "/sys/fs/cgroup"
	if mixed := filepath.Join(root, "unified"); exists(mixed) { // beside version 1
		root = mixed
	}
	dir, err := os.MkdirTemp(root, "managoat-story-")
	if err != nil {
		tb.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { // before the last processes have ended it cannot be removed
		f.Close()
		until(tb, "the service's control group to be empty", func() bool { return os.Remove(dir) == nil })
	})
	return &unit{f}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// kill ends everything in the group at once, as a supervisor does whose patience is over.
func (u *unit) kill() error {
	return os.WriteFile(filepath.Join(u.Name(), "cgroup.kill"), []byte("1"), 0)
}

// members are the processes in the group.
func (u *unit) members() int {
	raw, _ := os.ReadFile(filepath.Join(u.Name(), "cgroup.procs"))
	return len(strings.Fields(string(raw)))
}

// stop sends a signal and waits for the process's end. An exit code other than 0 is an error, unless it was killed.
func (s *Server) stop(signal syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	deadline := time.NewTimer(stopTimeout)
	defer deadline.Stop()
	select {
	case err := <-s.exit:
		s.cmd = nil
		if signal == syscall.SIGKILL {
			return nil
		}
		return err
	case <-deadline.C:
		return errors.Join(fmt.Errorf("the server did not end in %s after %s", stopTimeout, signal), s.stop(syscall.SIGKILL))
	}
}

// postgreSQL is the process of the server's own PostgreSQL.
func (s *Server) postgreSQL() (int, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, "pg/data/postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strconv.Atoi(first)
}

// down is `managoat down`, which ends the server if it runs.
func (s *Server) down() error {
	if !exists(filepath.Join(s.dir, "master.key")) && !exists(filepath.Join(s.dir, "host-id")) {
		return nil // it never got that far
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, common.binary, "down")
	cmd.Env = s.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("managoat down: %w\n%s\n%s", err, out, s.log)
	}
	if s.cmd == nil {
		return nil
	}
	err := <-s.exit
	s.cmd = nil
	return err
}

// operator runs a verb on the server's data directory.
func (s *Server) operator(tb testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	return run(tb, s.environ(), stdin, args...)
}

// run runs the binary to its end.
func run(tb testing.TB, env []string, stdin string, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, common.binary, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && (!errors.As(err, &exited) || ctx.Err() != nil) {
		tb.Fatalf("managoat %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// lookEvery is the pause between two looks at the API, which takes 600 requests a minute from one key.
const lookEvery = 150 * time.Millisecond

// until waits for a condition. It looks again and again, since what it waits for happens in other processes.
func until(tb testing.TB, what string, met func() bool) {
	tb.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for !met() {
		select {
		case <-again.C:
		case <-tb.Context().Done():
			tb.Fatalf("waited for %s: the test is over", what)
		case <-deadline.C:
			tb.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// output keeps what a process writes, for readers that wait for it.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown != nil {
		close(o.grown)
		o.grown = nil
	}
	return o.text.Write(p)
}

// Grown is closed at the next write.
func (o *output) Grown() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown == nil {
		o.grown = make(chan struct{})
	}
	return o.grown
}

func (o *output) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Len()
}

func (o *output) String() string { return o.Since(0) }

// Since is what came after the first n bytes.
func (o *output) Since(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text.Bytes()[n:])
}

// Notable is what a server logged after the first n bytes, without the requests that it answered well.
func (o *output) Notable(n int) string {
	var kept strings.Builder
	for line := range strings.Lines(o.Since(n)) {
		if !strings.Contains(line, "level=INFO msg=request ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// Line is the rest of the first whole line that begins with a prefix.
func (o *output) Line(prefix string) (string, bool) {
	text := o.String()
	lines := bufio.NewScanner(strings.NewReader(text[:strings.LastIndexByte(text, '\n')+1]))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), prefix); ok {
			return rest, true
		}
	}
	return "", false
}
