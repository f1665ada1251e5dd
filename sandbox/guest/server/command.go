package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/shim"
	"managoat/sandbox/guest/wire"
)

// Limits of commands.
const (
	maxCommands  = 512  // that run at once
	maxEnded     = 4096 // ended ones nobody has forgotten; the oldest go first
	maxID        = 128  // bytes of an ID
	defaultGrace = 200 * time.Millisecond
	defaultLog   = 64 << 20 // Exec.LogBytes
	pipeRest     = 1 << 20  // the most a pipe can still hold when a command exited
)

// markName is the environment variable that marks a command's processes where nothing better tells them.
const markName = "MANAGOAT_COMMAND"

// commands is everything the guest was asked to run and has not been told to forget.
type commands struct {
	s    *Server
	mu   sync.Mutex
	byID map[string]*command
	past []string // IDs of ended commands, oldest first
}

// command is one that was started, running or ended.
type command struct {
	id      string
	started time.Time
	spool   *spool
	oom     int64 // the machine's counter at the start

	launched chan struct{} // closed when tree is known, or there will be none

	mu        sync.Mutex
	tree      tree
	child     child
	timed     bool // the deadline ended it
	unclaimed bool // whoever started it went away before it heard of that

	sudo  net.Conn // answers its sudo, nil without Exec.Sudo
	stdin *os.File // our end, nil without Exec.Stdin
	tty   bool
	write sync.Mutex // one writer of stdin at a time
}

func refuse(code, format string, args ...any) *wire.Error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (cs *commands) get(id string) (*command, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil {
		return c, nil
	}
	return nil, &wire.Error{Code: guest.ErrNotFound, Path: id}
}

// reserve takes an ID before anything is started under it.
func (cs *commands) reserve(c *command) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byID[c.id] != nil {
		return refuse(wire.CodeExists, "a command with the id %q was started before", c.id)
	}
	if running := len(cs.byID) - len(cs.past); running >= maxCommands {
		return refuse(wire.CodeInvalid, "%d commands run already", running)
	}
	cs.byID[c.id] = c
	return nil
}

func (cs *commands) forget(id string) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.byID[id]
	if c == nil {
		return nil
	}
	if c.spool.ended() == nil {
		return refuse(wire.CodeInvalid, "the command %q is running", id)
	}
	cs.drop(id)
	return nil
}

// drop removes a command that ended; cs.mu is held.
func (cs *commands) drop(id string) {
	if c := cs.byID[id]; c != nil {
		c.closeSpaces()
		delete(cs.byID, id)
	}
	if i := slices.Index(cs.past, id); i >= 0 {
		cs.past = slices.Delete(cs.past, i, i+1)
	}
}

func (cs *commands) retire(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byID[c.id] != c {
		return
	}
	c.mu.Lock()
	unclaimed := c.unclaimed
	c.mu.Unlock()
	cs.past = append(cs.past, c.id)
	if unclaimed {
		cs.drop(c.id)
	}
	if len(cs.past) > maxEnded {
		cs.drop(cs.past[0])
	}
}

func (c *command) closeSpaces() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, space := range c.tree.spaces {
		space.Close()
	}
	c.tree.spaces = nil
}

// snapshot is the tree as known now.
func (c *command) snapshot() (tree, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tree.leader == 0 {
		return tree{}, false
	}
	t := c.tree
	t.spaces, t.groups = slices.Clone(t.spaces), slices.Clone(t.groups)
	return t, true
}

// add makes what the command ran through sudo part of its tree.
func (c *command) add(ran child) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tree.add(ran)
}

// start checks and starts a command and leaves a goroutine that sees it to its end. A caller that went away
// meanwhile (ctx ended) would never hear of the command: it is ended and forgotten.
func (cs *commands) start(ctx context.Context, e guest.Exec) error {
	if err := cs.check(&e); err != nil {
		return err
	}
	c := &command{id: e.ID, spool: newSpool(e.Spool, e.SpoolBytes), started: time.Now(), oom: cs.s.oomKills(), tty: e.TTY, launched: make(chan struct{})}
	if err := cs.reserve(c); err != nil {
		return err
	}
	defer close(c.launched)
	r, err := cs.launch(c, e)
	if err != nil {
		cs.mu.Lock()
		delete(cs.byID, c.id)
		cs.mu.Unlock()
		return err
	}
	if ctx.Err() != nil {
		c.mu.Lock()
		c.unclaimed = true
		c.mu.Unlock()
	}
	go r.wait()
	if ctx.Err() == nil {
		return nil
	}
	if t, ok := c.snapshot(); ok {
		if err := t.kill(); err != nil {
			cs.s.log.Printf("command %s: %v", c.id, err)
		}
	}
	return ctx.Err()
}

func (cs *commands) check(e *guest.Exec) error {
	if e.User == "" {
		e.User = guest.Sprite
	}
	switch {
	case e.ID == "" || len(e.ID) > maxID || strings.ContainsRune(e.ID, 0):
		return refuse(wire.CodeInvalid, "a command needs an id of 1 to %d bytes", maxID)
	case len(e.Argv) == 0 || e.Argv[0] == "":
		return refuse(wire.CodeInvalid, "a command needs a program")
	case e.User != guest.Root && e.User != guest.Sprite:
		return refuse(wire.CodeInvalid, "there is no user %q", e.User)
	case e.User == guest.Root && !cs.s.cfg.Root:
		return refuse(wire.CodeUnsupported, "this machine has one user only: commands as root (packages, sudo) need a server that was started as root")
	case e.Dir != "" && !path.IsAbs(e.Dir):
		return refuse(wire.CodeInvalid, "the working directory %q is not absolute", e.Dir)
	case e.LogPath != "" && !path.IsAbs(e.LogPath):
		return refuse(wire.CodeInvalid, "the log path %q is not absolute", e.LogPath)
	case e.Timeout < 0 || e.Grace < 0:
		return refuse(wire.CodeInvalid, "a negative duration")
	}
	for _, a := range e.Argv {
		if strings.ContainsRune(a, 0) {
			return refuse(wire.CodeInvalid, "an argument holds a NUL byte")
		}
	}
	for k, v := range e.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return refuse(wire.CodeInvalid, "the environment variable %q cannot be set", k)
		}
	}
	return nil
}

// run is a command on its way.
type run struct {
	cs      *commands
	c       *command
	e       guest.Exec
	ours    [2]*os.File // where we read its output; the second is nil with a terminal
	log     *outputLog
	quit    chan struct{} // closed when a protocol spool must not hold up the end any more
	failure string
}

func (cs *commands) launch(c *command, e guest.Exec) (_ *run, err error) {
	r := &run{cs: cs, c: c, e: e, quit: make(chan struct{})}
	var theirs, opened []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			for _, f := range opened {
				f.Close()
			}
		}
	}()
	l := launch{argv: e.Argv, env: environment(e, c.id), Order: shim.Order{
		User: string(e.User), Dir: e.Dir, TTY: e.TTY, Nested: cs.s.cfg.Nested, Group: cs.s.processes.group(cs.s.cfg),
	}}
	if l.Dir == "" {
		l.Dir = home(e.User)
	}
	switch {
	case e.TTY:
		ours, slave, err := openPTY()
		if err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
		theirs, opened = append(theirs, slave), append(opened, ours)
		l.files = [3]int{int(slave.Fd()), int(slave.Fd()), int(slave.Fd())}
		r.ours[stdout] = ours
		if e.Stdin {
			c.stdin = ours
		}
	default:
		in, ours, err := standardInput(e.Stdin)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		theirs = append(theirs, in)
		l.files[0] = int(in.Fd())
		if ours != nil {
			opened = append(opened, ours)
			c.stdin = ours
		}
		for i := range r.ours {
			if i == stderr && e.Joined {
				l.files[1+i] = l.files[1+stdout]
				continue
			}
			ours, w, err := os.Pipe()
			if err != nil {
				return nil, fmt.Errorf("output: %w", err)
			}
			theirs, opened = append(theirs, w), append(opened, ours)
			l.files[1+i], r.ours[i] = int(w.Fd()), ours
		}
	}
	if e.LogPath != "" {
		if r.log, err = openLog(e.LogPath, e.LogBytes); err != nil {
			return nil, err
		}
		opened = append(opened, r.log.f)
	}
	if e.Sudo && cs.s.cfg.Root && e.User == guest.Sprite {
		end, err := cs.s.sudoFor(c)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, end)
		l.sudo, l.Order.Sudo = int(end.Fd()), true
	}
	child, failure, err := cs.s.processes.start(l)
	if err != nil {
		return nil, refuse(wire.CodeInternal, "%v", err)
	}
	c.mu.Lock()
	c.child = child
	c.tree = tree{leader: child.pid, mark: markName + "=" + c.id}
	c.tree.add(child)
	c.mu.Unlock()
	r.failure = failure
	return r, nil
}

func home(u guest.User) string {
	if u == guest.Root {
		return shim.RootHome
	}
	return shim.SpriteHome
}

func environment(e guest.Exec, id string) []string {
	env := map[string]string{
		"PATH": shim.SearchPath(), "HOME": home(e.User), "USER": string(e.User), "LOGNAME": string(e.User), "LANG": "C.UTF-8",
	}
	maps.Copy(env, e.Env)
	env[markName] = id
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// standardInput returns the command's end and, when asked for, ours.
func standardInput(wanted bool) (theirs, ours *os.File, err error) {
	if !wanted {
		theirs, err = os.Open("/dev/null")
		return theirs, nil, err
	}
	return os.Pipe()
}

// openPTY opens a terminal that belongs to the sandbox's user.
func openPTY() (master, slave *os.File, err error) {
	err = asSprite(func() error {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			unix.Close(fd)
			return err
		}
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			unix.Close(fd)
			return errno
		}
		master = os.NewFile(uintptr(fd), "ptmx")
		slave = os.NewFile(peer, "pts")
		return nil
	})
	return master, slave, err
}

// wait sees a command to its end: output, deadline, exit, what is left in the pipes, and the record of it all.
func (r *run) wait() {
	var readers sync.WaitGroup
	for i, f := range r.ours {
		if f == nil {
			continue
		}
		readers.Add(1)
		go func() {
			defer readers.Done()
			r.read(i, f)
		}()
	}
	var late <-chan time.Time
	if r.e.Timeout > 0 {
		timer := time.NewTimer(time.Until(r.c.started.Add(r.e.Timeout)))
		defer timer.Stop()
		late = timer.C
	}
	var end ended
	var killed chan struct{}
	for waiting := true; waiting; {
		select {
		case end = <-r.c.child.done:
			waiting = false
		case <-late:
			late = nil
			r.c.mu.Lock()
			r.c.timed = true
			r.c.mu.Unlock()
			killed = make(chan struct{})
			go func() { // beside the wait for the status: the leader must be reaped to be gone
				defer close(killed)
				if t, ok := r.c.snapshot(); ok {
					if err := t.kill(); err != nil {
						r.cs.s.log.Printf("command %s: %v", r.c.id, err)
					}
				}
			}()
		}
	}
	if killed != nil {
		<-killed
	}
	if r.c.stdin != nil && !r.e.TTY {
		r.c.stdin.Close()
	}
	r.drain()
	readers.Wait()
	r.finish(end)
}

// read copies one stream into the spool until it ends or drain sets its deadline.
func (r *run) read(i int, f *os.File) {
	for {
		buf := make([]byte, pieceSize)
		n, err := f.Read(buf)
		if n > 0 {
			r.take(i, buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// A forked daemon holds the pipe. What the command itself printed lies in the pipe already.
			r.rest(i, f)
			go discard(f)
			return
		}
		if err != nil {
			f.Close()
			return
		}
	}
}

func (r *run) take(i int, data []byte) {
	at := time.Now()
	if r.log != nil {
		r.log.write(data)
	}
	if len(data) < pieceSize/2 {
		data = slices.Clone(data) // do not hold 32 KiB for a line
	}
	r.c.spool.add(i, data, at, r.quit)
}

// rest takes what lies in the pipe without waiting for more.
func (r *run) rest(i int, f *os.File) {
	f.SetReadDeadline(time.Time{})
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	for left := pipeRest; left > 0; {
		buf := make([]byte, min(pieceSize, left))
		var n int
		var rerr error
		conn.Read(func(fd uintptr) bool {
			n, rerr = unix.Read(int(fd), buf)
			return true
		})
		if n <= 0 || rerr != nil {
			return
		}
		left -= n
		r.take(i, buf[:n])
	}
}

// discard keeps a daemon that outlived its command from being killed by a closed pipe. It ends with the daemon.
func discard(f *os.File) {
	io.Copy(io.Discard, f)
	f.Close()
}

// drain gives the streams their grace after the exit.
func (r *run) drain() {
	grace := r.e.Grace
	if grace == 0 {
		grace = defaultGrace
	}
	for _, f := range r.ours {
		if f != nil {
			f.SetReadDeadline(time.Now().Add(grace))
		}
	}
}

// finish records the one exit of a command.
func (r *run) finish(end ended) {
	c := r.c
	if r.log != nil {
		r.log.close()
	}
	if c.sudo != nil {
		c.sudo.Close()
	}
	exit := guest.Exit{
		Duration:    end.at.Sub(c.started),
		StartError:  r.failure,
		OutOfMemory: r.cs.s.oomKills() > c.oom,
	}
	exit.StdoutBytes, exit.StderrBytes = c.spool.printed()
	switch {
	case end.status.Signaled():
		exit.Code, exit.Signal = -1, unix.SignalName(end.status.Signal())
	default:
		exit.Code = end.status.ExitStatus()
	}
	c.mu.Lock()
	exit.TimedOut = c.timed
	c.mu.Unlock()
	if t, ok := c.snapshot(); ok && len(t.spaces) > 0 {
		if left, err := t.members(); err == nil && len(left) == 0 {
			c.closeSpaces() // nothing is left to signal, and descriptors are few
		}
	}
	c.spool.end(exit)
	r.cs.retire(c)
}

// signal signals a command's whole tree.
func (cs *commands) signal(id, name string) error {
	c, err := cs.get(id)
	if err != nil {
		return err
	}
	sig := unix.SignalNum(name)
	if sig == 0 {
		return refuse(wire.CodeInvalid, "there is no signal %q", name)
	}
	<-c.launched
	t, ok := c.snapshot()
	if !ok || (len(t.spaces) == 0 && cs.s.cfg.Nested) {
		return nil // nothing of it is left
	}
	if sig == syscall.SIGKILL {
		err = t.kill()
	} else {
		err = t.signal(sig)
	}
	if err != nil {
		return refuse(wire.CodeInternal, "%v", err)
	}
	return nil
}

// follow sends a command's output from the given positions, then its exit.
func (cs *commands) follow(ctx context.Context, w io.Writer, id string, at [2]int64) error {
	c, err := cs.get(id)
	if err != nil {
		return err
	}
	if at[stdout] < 0 || at[stderr] < 0 {
		return refuse(wire.CodeInvalid, "a negative offset")
	}
	if err := answer(w, nil); err != nil {
		return err
	}
	for {
		i, p, dropped, exit, wait := c.spool.next(&at)
		switch {
		case len(p.data) > 0:
			head := wire.Output{Stderr: i == stderr, Offset: p.off, Dropped: dropped, At: p.at}
			if err := wire.WriteFrame(w, wire.FrameOutput, head.Bytes(), p.data); err != nil {
				return err
			}
		case exit != nil:
			return writeJSONFrame(w, wire.FrameExit, exit)
		default:
			select {
			case <-wait:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// input writes size bytes of r to a command's standard input.
func (cs *commands) input(ctx context.Context, id string, r io.Reader, size int64) error {
	c, err := cs.get(id)
	if err != nil {
		return err
	}
	if c.stdin == nil {
		return refuse(wire.CodeInvalid, "the command %q was started without standard input", id)
	}
	c.write.Lock()
	defer c.write.Unlock()
	stop := context.AfterFunc(ctx, func() { c.stdin.SetWriteDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			c.stdin.SetWriteDeadline(time.Time{})
		}
	}()
	if _, err := io.CopyN(plainWriter{c.stdin}, r, size); err != nil {
		return refuse(wire.CodeInvalid, "standard input of %q: %v", id, err)
	}
	return nil
}

type plainWriter struct{ io.Writer }

func (cs *commands) closeInput(id string) error {
	c, err := cs.get(id)
	if err != nil {
		return err
	}
	switch {
	case c.stdin == nil:
		return refuse(wire.CodeInvalid, "the command %q was started without standard input", id)
	case c.tty:
		c.write.Lock()
		defer c.write.Unlock()
		c.stdin.Write([]byte{4}) // the end-of-file character
	default:
		c.stdin.Close()
	}
	return nil
}

// outputLog is the full output of a command in a file of the machine, up to a bound.
type outputLog struct {
	mu   sync.Mutex
	f    *os.File
	left int64
	over int64 // bytes that did not fit
	err  error
}

func (l *outputLog) write(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := data
	if int64(len(keep)) > l.left {
		keep = keep[:l.left]
	}
	if l.err == nil && len(keep) > 0 {
		_, l.err = l.f.Write(keep)
	}
	l.left -= int64(len(keep))
	l.over += int64(len(data) - len(keep))
}

// close says in the file what it does not hold.
func (l *outputLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over > 0 && l.err == nil {
		fmt.Fprintf(l.f, "\n[%d more bytes were not kept]\n", l.over)
	}
	l.f.Close()
}
