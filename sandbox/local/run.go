package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
	"managoat/sandbox/diskwatch"
	"managoat/sandbox/guest/boot"
)

// bootFiles are what an engine gives to a machine's first process.
type bootFiles struct {
	listen, lock, ready, oom, log *os.File
	group                         group
}

const (
	socketName  = "guest.sock" // in ctl/, which nobody but the server can enter
	maxGuestLog = 1 << 20      // bytes of guest.log after which a start begins it anew

	lockPause    = 2 * time.Millisecond // between looks at a machine's lock
	lockPatience = 5 * time.Second
)

// Start starts a machine. Only one start at a time gets the machine's lock; the others wait for its guest.
func (p *Provider) Start(ctx context.Context, id string) error {
	const op = "start"
	m, err := p.load(op, id)
	if err != nil {
		return err
	}
	if m.Layer != "" {
		if _, err := os.Lstat(p.layerDir(m.Layer)); errors.Is(err, fs.ErrNotExist) {
			return fail(sandbox.Broken, op, "the layer of packages that the machine stands on is gone", nil)
		}
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	unlock, err := p.locks.lock(ctx, id)
	if err != nil {
		return failed(op, "another start or stop of the machine goes on", err)
	}
	defer unlock()
	finding, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	lock, err := p.takeOrFind(finding, m)
	if err != nil {
		return failed(op, "the machine runs but its guest does not answer", err)
	}
	if lock == nil {
		return nil
	}
	err = p.start(ctx, m, lock)
	lock.Close() // the machine holds it now, or nobody
	if err != nil {
		// Whoever called may be gone; what was begun is ended all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if cerr := p.end(ctx, m, false); cerr != nil {
			p.log.Error("local provider: a failed start left something", "machine", m.Name, "error", cerr)
		}
		return failed(op, "the machine did not start", err)
	}
	return nil
}

// takeOrFind takes the machine's lock, or returns nil when the machine runs and its guest accepts connections.
// In between, another process may be starting it, with success or not.
func (p *Provider) takeOrFind(ctx context.Context, m *machine) (*os.File, error) {
	for {
		lock, ok, err := m.take()
		if err != nil || ok {
			return lock, err
		}
		conn, err := p.dial(ctx, m)
		if err == nil {
			return nil, conn.Close()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(lockPause):
		}
	}
}

func (p *Provider) start(ctx context.Context, m *machine, lock *os.File) error {
	// What the last run left must be gone entirely: two mounts of one upper layer would destroy it. The kernel writes
	// everything that is dirty on the host's disk out first, which is the caller's time and not the new run's.
	if err := p.end(ctx, m, true); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	listener, err := m.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	log, err := m.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	var suffix [4]byte
	rand.Read(suffix[:])
	l := life{Group: m.Name + "." + hex.EncodeToString(suffix[:])}
	if err := writeJSON(m.path("run.json"), l); err != nil {
		return err
	}
	g := p.groups.group(l.Group)
	if err := g.create(m.Limits); err != nil {
		return err
	}
	oom, err := openOr(g.oomFile(), os.DevNull)
	if err != nil {
		return err
	}
	defer oom.Close()
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer readyEnd.Close()
	pid, err := p.engine.boot(ctx, m, bootFiles{listen: listener, lock: lock, ready: readyEnd, oom: oom, log: log, group: g})
	if err != nil {
		return err
	}
	readyEnd.Close()
	l.Pid = pid
	if l.Born, err = bornAt(pid); err != nil {
		return fmt.Errorf("the machine ended at once: %w", m.lastWords(ready))
	}
	if err := writeJSON(m.path("run.json"), l); err != nil {
		return err
	}
	return m.awaitReady(ctx, ready)
}

func openOr(name, otherwise string) (*os.File, error) {
	if name != "" {
		if f, err := os.Open(name); err == nil {
			return f, nil
		}
	}
	return os.Open(otherwise)
}

// listen binds the guest's socket. The path may be longer than an address can be, so it goes through the
// directory's descriptor.
func (m *machine) listen() (*os.File, error) {
	if err := os.Remove(m.path("ctl", socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "guest listener")
	// The guest itself listens: the kernel then names it to those who connect, and refuses them before.
	err = m.withSocket(func(addr string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: addr}) })
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("guest socket: %w", err)
	}
	return f, nil
}

func (m *machine) withSocket(f func(addr string) error) error {
	dir, err := os.OpenFile(m.path("ctl"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
}

func (m *machine) openLog() (*os.File, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if st, err := os.Stat(m.path("guest.log")); err == nil && st.Size() > maxGuestLog {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(m.path("guest.log"), flags, 0o600)
}

// awaitReady waits for the guest's word, or for the end of everybody who could have said it.
func (m *machine) awaitReady(ctx context.Context, ready *os.File) error {
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	word := make([]byte, 0, 4096)
	for len(word) < cap(word) {
		n, err := ready.Read(word[len(word):cap(word)])
		word = word[:len(word)+n]
		switch {
		case string(word) == boot.Ready:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("the guest was not ready in time: %w", ctx.Err())
		case err != nil && len(word) == 0:
			return m.lastWords(nil)
		case err != nil:
			return errors.New(string(word))
		}
	}
	return errors.New(string(word))
}

// lastWords explains the end of a machine that said nothing on its ready pipe.
func (m *machine) lastWords(ready *os.File) error {
	if ready != nil {
		if word, _ := io.ReadAll(io.LimitReader(ready, 4096)); len(word) > 0 {
			return errors.New(string(word))
		}
	}
	raw, _ := os.ReadFile(m.path("guest.log"))
	if i := bytes.LastIndexByte(bytes.TrimSpace(raw), '\n'); i >= 0 {
		raw = raw[i+1:]
	}
	return fmt.Errorf("its first process ended: %s", bytes.TrimSpace(raw))
}

// bornAt reads when a process started, in ticks since the host booted: with it, a pid names one process.
func bornAt(pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(f) < 20 {
		return 0, errors.New("the process's state cannot be read")
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// process opens the first process of a run. It returns -1 when that is over.
func (l life) process() (pidfd int, err error) {
	if l.Pid == 0 {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(l.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("the machine's first process: %w", err)
	}
	// Asked after opening: whatever has the number now has it for as long as we look.
	if born, err := bornAt(l.Pid); err != nil || born != l.Born {
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// lastLife reads what is known of the run that goes on or was the last. When its first process was never
// written down (the server was killed in that moment), the guest's socket names it.
func (p *Provider) lastLife(ctx context.Context, m *machine) (life, bool, error) {
	var l life
	err := readJSON(m.path("run.json"), &l)
	if errors.Is(err, fs.ErrNotExist) {
		return life{}, false, nil
	}
	if err != nil {
		return life{}, false, err
	}
	if l.Pid == 0 {
		if running, err := m.running(); err != nil || !running {
			return l, true, err
		}
		if pid, err := p.peer(ctx, m); err == nil {
			if born, err := bornAt(pid); err == nil {
				l.Pid, l.Born = pid, born
				return l, true, writeJSON(m.path("run.json"), l)
			}
		}
	}
	return l, true, nil
}

// halt kills everything of a machine's run and returns when nothing of it can run any more. The kernel may still
// be writing its disk out, which takes as long as all that is dirty on the host's: whoever starts or destroys
// the machine next waits for that, and watch cleans up.
func (p *Provider) halt(ctx context.Context, m *machine) error {
	l, any, err := p.lastLife(ctx, m)
	if err != nil || !any {
		return err
	}
	g := p.groups.group(l.Group)
	fd, err := l.process()
	if err != nil {
		return err
	}
	if fd < 0 || !g.killsAtOnce() {
		if fd >= 0 {
			unix.Close(fd)
		}
		return p.end(ctx, m, false)
	}
	defer unix.Close(fd)
	if err := kill(fd, g); err != nil {
		return err
	}
	if err := m.awaitFree(ctx, true); err != nil {
		return err
	}
	p.halted.Store(m.Name, nil)
	return nil
}

// settle finishes what halt left to the kernel, with patience for each machine.
func (p *Provider) settle(ctx context.Context, patience time.Duration) {
	p.halted.Range(func(name, _ any) bool {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		unlock, err := p.locks.lock(ctx, name.(string))
		if err != nil {
			return true // somebody is at it
		}
		defer unlock()
		m, err := p.load("stop", name.(string))
		if err == nil {
			var running bool
			if running, err = m.running(); err == nil && !running {
				err = p.end(ctx, m, false)
			}
		}
		if err == nil || sandbox.ClassOf(err) == sandbox.NotFound {
			p.halted.Delete(name)
		}
		return true
	})
}

// end kills everything of a machine's run and returns when the kernel is done with it, mounts and all. locked
// says that the caller holds the machine's lock.
func (p *Provider) end(ctx context.Context, m *machine, locked bool) error {
	l, any, err := p.lastLife(ctx, m)
	if err != nil || !any {
		return err
	}
	g := p.groups.group(l.Group)
	fd, err := l.process()
	if err != nil {
		return err
	}
	if fd >= 0 {
		defer unix.Close(fd)
		if err := kill(fd, g); err != nil {
			return err
		}
		if err := awaitEnd(ctx, fd); err != nil {
			return err
		}
	}
	p.kids.reap()
	if !locked {
		if err := m.awaitFree(ctx, fd >= 0); err != nil {
			return err
		}
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(stopTimeout)
	}
	if err := g.remove(deadline); err != nil {
		return err
	}
	p.usage.Forget(m.Name)
	for _, name := range []string{m.path("run.json"), m.path("ctl", socketName)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// kill ends a machine's first process, and with it all others.
func kill(pidfd int, g group) error {
	g.kill()
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill: %w", err)
	}
	if g.frozen() { // version 1 does not even kill what is frozen
		if err := g.freeze(false); err != nil {
			return fmt.Errorf("resume a frozen machine to end it: %w", err)
		}
	}
	return nil
}

// awaitEnd waits for a process to end.
func awaitEnd(ctx context.Context, pidfd int) error {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 50) // milliseconds, to look at ctx between
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the machine's end: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the machine's end takes long: %w", ctx.Err())
		}
	}
}

// awaitFree waits until nobody holds the machine's lock. bwrap ends a moment after what it started, and any
// child of this process holds what was open here until it executes its program. Without a process that was
// ended it does not wait for long: then something runs that we know nothing of.
func (m *machine) awaitFree(ctx context.Context, ended bool) error {
	if !ended {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lockPatience)
		defer cancel()
	}
	for {
		running, err := m.running()
		if err != nil || !running {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the machine's lock is held by a process that is not known: %w", ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

// Stop ends every process of a machine.
func (p *Provider) Stop(ctx context.Context, id string) error {
	const op = "stop"
	m, err := p.load(op, id)
	if err != nil {
		return err
	}
	unlock, err := p.locks.lock(ctx, id)
	if err != nil {
		return failed(op, "another start or stop of the machine goes on", err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := p.halt(ctx, m); err != nil {
		return failed(op, "the machine did not stop", err)
	}
	return nil
}

// Destroy removes a machine. Its name is free again before its files are all gone.
func (p *Provider) Destroy(ctx context.Context, id string) error {
	const op = "destroy"
	m, err := p.load(op, id)
	switch sandbox.ClassOf(err) {
	case sandbox.NotFound:
		return nil
	case sandbox.Broken:
		m = &machine{Name: id, Range: -1, dir: filepath.Join(p.dir, "machines", id)}
	default:
		if err != nil {
			return err
		}
	}
	unlock, err := p.locks.lock(ctx, id)
	if err != nil {
		return failed(op, "another start or stop of the machine goes on", err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := p.end(ctx, m, false); err != nil {
		return failed(op, "the machine did not stop", err)
	}
	var suffix [6]byte
	rand.Read(suffix[:])
	trash := filepath.Join(p.dir, "trash", m.Name+"-"+hex.EncodeToString(suffix[:]))
	err = p.exclusive(ctx, func() error {
		if err := os.Rename(m.dir, trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if m.Range >= 0 {
			p.releaseRange(m.Range, m.Name)
			p.engine.released(m)
		}
		return nil
	})
	if err == nil {
		err = removeAll(trash)
	}
	if err != nil {
		return failed(op, "the machine's files could not be removed", err)
	}
	return nil
}

// removeAll removes a tree whatever its directories' modes are.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if errors.Is(err, fs.ErrPermission) {
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
		err = os.RemoveAll(dir)
	}
	return err
}

// Guest opens a stream to a machine's guest.
func (p *Provider) Guest(ctx context.Context, id string) (net.Conn, error) {
	const op = "guest"
	m, err := p.load(op, id)
	if err != nil {
		return nil, err
	}
	running, err := m.running()
	if err != nil {
		return nil, failed(op, "the machine's state cannot be read", err)
	}
	if !running {
		return nil, fail(sandbox.Unavailable, op, "the machine is stopped", nil)
	}
	if p.frozen(m) {
		return nil, fail(sandbox.Unavailable, op, "the machine is frozen because its disk is full: stop and start it, then delete files", nil)
	}
	conn, err := p.dial(ctx, m)
	if err != nil {
		return nil, failed(op, "the machine's guest does not answer", err)
	}
	return conn, nil
}

func (p *Provider) frozen(m *machine) bool {
	var l life
	return readJSON(m.path("run.json"), &l) == nil && p.groups.group(l.Group).frozen()
}

// dial connects to the guest's socket and makes sure that the machine's own guest is at the other end.
func (p *Provider) dial(ctx context.Context, m *machine) (net.Conn, error) {
	var conn net.Conn
	err := m.withSocket(func(addr string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	cred, err := peerOf(conn.(*net.UnixConn))
	if err == nil && int(cred.Uid) != p.engine.guestUID(m) {
		err = fmt.Errorf("uid %d answers instead of the machine's guest", cred.Uid)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// peer is the pid of a machine's guest.
func (p *Provider) peer(ctx context.Context, m *machine) (int, error) {
	conn, err := p.dial(ctx, m)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := peerOf(conn.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return nil, cerr
	}
	return cred, err
}

// Stats reads what a machine uses.
func (p *Provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	m, err := p.load("stats", id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	s := sandbox.Stats{DiskLimit: m.Limits.DiskBytes, MeasuredAt: time.Now()}
	if caps := p.probed.Load(); caps != nil && caps.MemoryLimit {
		s.MemoryLimit = m.Limits.MemoryBytes
	}
	running, err := m.running()
	if err != nil {
		return sandbox.Stats{}, failed("stats", "the machine's state cannot be read", err)
	}
	var l life
	if running && readJSON(m.path("run.json"), &l) == nil {
		p.groups.group(l.Group).stats(&s)
	}
	d, err := p.usage.of(m, diskwatch.Fresh)
	if err != nil {
		return sandbox.Stats{}, failed("stats", "the machine's disk cannot be measured", err)
	}
	s.DiskBytes, s.DiskFull, s.DiskMeasuredAt = d.Bytes, d.Bytes >= m.Limits.DiskBytes, d.At
	return s, nil
}
