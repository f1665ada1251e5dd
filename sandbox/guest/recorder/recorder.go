// Package recorder is the recording shell: it stands in for the shell that an adapter starts, runs the real one
// with the same arguments, passes everything through as it is, and tells the guest what was run and how it
// ended. The model is told exactly what it would be told without it.
package recorder

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
)

// Names of the guest's binary in this mode, and of the process that goes on copying for a background job.
const (
	Bash     = "bash"
	Sh       = "sh"
	CopyName = "managoat-copy"
)

// Address is where the guest takes records: an abstract socket of the machine's network namespace, which has
// no file that could be replaced.
const Address = "@managoat-records"

// Environment variables.
const (
	activeVariable = "MANAGOAT_REC_ACTIVE" // set for what a recorded shell runs: shells below it are part of it
)

// Limits of a record.
const (
	MaxRecord = 1 << 20  // bytes of one message to the guest
	maxArgv   = 64 << 10 // bytes of arguments; the rest is cut
	keepHalf  = 16 << 10 // bytes of each stream's beginning, and of its end
)

// drainPeriod is how long output is waited for after the shell ended while a background job holds the pipe.
const drainPeriod = 50 * time.Millisecond

// Begin announces a shell; End says how it ended. Without an End, its recorder was killed.
type Begin struct {
	Tag   string    `json:"tag"`
	Argv  []string  `json:"argv"`
	Dir   string    `json:"dir"`
	Start time.Time `json:"start"`
}

// End of a shell.
type End struct {
	Code     int            `json:"code"`
	Signal   string         `json:"signal"`
	Duration time.Duration  `json:"duration"`
	Output   string         `json:"output"` // pipe, file or terminal
	Stdout   guest.Recorded `json:"stdout"`
	Stderr   guest.Recorded `json:"stderr"`
}

// Main runs a shell and ends as it ended.
func Main(argv []string) {
	name := path.Base(argv[0])
	shell := realShell(strings.TrimPrefix(name, "-"))
	tag := os.Getenv(guest.RecordTag)
	if tag == "" || os.Getenv(activeVariable) != "" {
		exec(shell, argv)
	}
	conn, err := net.Dial("unix", Address)
	if err != nil {
		exec(shell, argv) // nobody to tell: the command matters more than its record
	}
	dir, _ := os.Getwd()
	begin := Begin{Tag: tag, Argv: cut(argv), Dir: dir, Start: time.Now()}
	if err := wire.WriteMessage(conn, begin); err != nil {
		exec(shell, argv)
	}
	os.Setenv(activeVariable, "1")
	// The shell must not outlive its recorder, and the kernel watches this thread, not the process.
	runtime.LockOSThread()
	r := &recording{shell: shell, argv: argv}
	status, err := r.run()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(126)
	}
	end := End{Code: status.ExitStatus(), Duration: time.Since(begin.Start), Output: r.kind, Stdout: r.kept[0].recorded(), Stderr: r.kept[1].recorded()}
	if status.Signaled() {
		end.Code, end.Signal = -1, unix.SignalName(status.Signal())
	}
	wire.WriteMessage(conn, end)
	conn.Close()
	if status.Signaled() {
		signal.Reset(status.Signal())
		unix.Kill(os.Getpid(), status.Signal())
		<-time.After(time.Second) // the signal is on its way
	}
	os.Exit(status.ExitStatus())
}

// realShell is the shell that a name stands for.
func realShell(name string) string {
	for _, dir := range []string{"/usr/bin/", "/bin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	return "/bin/sh"
}

func exec(shell string, argv []string) {
	err := unix.Exec(shell, argv, os.Environ())
	fmt.Fprintf(os.Stderr, "%s: %v\n", shell, err)
	os.Exit(127)
}

// cut bounds arguments.
func cut(argv []string) []string {
	left := maxArgv
	kept := make([]string, 0, len(argv))
	for _, a := range argv {
		a = a[:min(len(a), left)]
		left -= len(a)
		if kept = append(kept, strings.ToValidUTF8(a, "�")); left == 0 {
			break
		}
	}
	return kept
}

// recording is one shell that runs.
type recording struct {
	shell string
	argv  []string
	kind  string
	kept  [2]kept
}

// Kinds of output.
const (
	kindPipe     = "pipe"
	kindFile     = "file"
	kindTerminal = "terminal"
)

func (r *recording) run() (syscall.WaitStatus, error) {
	if isTerminal(1) {
		r.kind = kindTerminal
		return r.runTerminal()
	}
	return r.runPlain()
}

// start starts the real shell with these descriptors.
func (r *recording) start(files [3]uintptr, attr *syscall.SysProcAttr) (int, error) {
	attr.Pdeathsig = syscall.SIGKILL
	return syscall.ForkExec(r.shell, r.argv, &syscall.ProcAttr{Env: os.Environ(), Files: files[:], Sys: attr})
}

// wait waits for the shell's end and passes on the signals that came to us instead.
func wait(pid int) (syscall.WaitStatus, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	done := make(chan struct{})
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for {
			select {
			case s := <-signals:
				unix.Kill(pid, s.(syscall.Signal))
			case <-done:
				return
			}
		}
	}()
	defer func() { close(done); <-passed }()
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		return status, err
	}
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// kept is the beginning and the end of a stream.
type kept struct {
	head, tail []byte
	total      int64
}

func (k *kept) Write(b []byte) (int, error) {
	n := len(b)
	k.total += int64(n)
	if room := keepHalf - len(k.head); room > 0 {
		take := min(room, len(b))
		k.head = append(k.head, b[:take]...)
		b = b[take:]
	}
	if len(b) > keepHalf {
		b = b[len(b)-keepHalf:]
	}
	k.tail = append(k.tail, b...)
	if over := len(k.tail) - keepHalf; over > 0 {
		k.tail = append(k.tail[:0], k.tail[over:]...)
	}
	return n, nil
}

func (k *kept) recorded() guest.Recorded {
	return guest.Recorded{Head: k.head, Tail: k.tail, Bytes: k.total}
}
