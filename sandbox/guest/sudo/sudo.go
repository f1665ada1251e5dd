// Package sudo is the machine's sudo: a program with no privilege of its own that asks the guest, over a
// descriptor that only processes of a setup inherit, to run a command as another user of the machine.
package sudo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/shim"
)

// Name is the name of the guest's binary in this mode.
const Name = "sudo"

// MaxRequest bounds a request in bytes; the kernel bounds arguments and environment lower.
const MaxRequest = 4 << 20

// Descriptors that come with every request, in this order. The request itself is a file in memory: it may be
// larger than a message.
const (
	FDReply = iota // a stream: signals to the guest, one byte each; a Reply from it
	FDStdin
	FDStdout
	FDStderr
	FDCwd
	FDRequest
	FDCount
)

// Request is what to run.
type Request struct {
	User string   `json:"user"`
	Dir  string   `json:"dir"` // "" is the caller's
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
}

// Reply is how it ended.
type Reply struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal"` // 0 when it exited by itself
	Error  string `json:"error"`  // it could not be started
}

// denied is what everybody else is told.
const denied = "sudo works in this machine's setup only (packages and setup script); programs started later have no way to become root"

// Main runs the program and exits with the command's status.
func Main(args []string) {
	code, err := run(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sudo: %v\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// options of one call.
type options struct {
	user         string
	login, shell bool
	keep, home   bool
	nothing      bool // -k, -K, -v: there is no password to forget or to ask for
	list         bool
	version      bool
	set          []string // NAME=value
	argv         []string
}

// parse reads the options people and scripts use; one that would change what runs and is not known is an error.
func parse(args []string) (options, error) {
	o := options{user: "root"}
	for len(args) > 0 {
		a := args[0]
		if a == "--" {
			args = args[1:]
			break
		}
		if len(a) < 2 || a[0] != '-' {
			break
		}
		args = args[1:]
		if strings.HasPrefix(a, "--") {
			name, value, _ := strings.Cut(a[2:], "=")
			switch name {
			case "user":
				o.user = value
			case "login":
				o.login = true
			case "shell":
				o.shell = true
			case "preserve-env":
				o.keep = true
			case "set-home":
				o.home = true
			case "non-interactive", "stdin", "askpass":
			case "reset-timestamp", "remove-timestamp", "validate":
				o.nothing = true
			case "list":
				o.list = true
			case "version":
				o.version = true
			default:
				return o, fmt.Errorf("the option %s is not supported here", a)
			}
			continue
		}
		for i := 1; i < len(a); i++ {
			switch a[i] {
			case 'n', 'S', 'A', 'P':
			case 'E':
				o.keep = true
			case 'H':
				o.home = true
			case 'i':
				o.login = true
			case 's':
				o.shell = true
			case 'k', 'K', 'v':
				o.nothing = true
			case 'l':
				o.list = true
			case 'V':
				o.version = true
			case 'u', 'p':
				value := a[i+1:]
				if value == "" {
					if len(args) == 0 {
						return o, fmt.Errorf("the option -%c needs a value", a[i])
					}
					value, args = args[0], args[1:]
				}
				if a[i] == 'u' {
					o.user = value
				}
				i = len(a)
			default:
				return o, fmt.Errorf("the option -%c is not supported here", a[i])
			}
		}
	}
	for len(args) > 0 {
		if name, _, ok := strings.Cut(args[0], "="); !ok || name == "" || strings.Contains(name, "/") {
			break
		}
		o.set, args = append(o.set, args[0]), args[1:]
	}
	o.argv = args
	switch o.user {
	case "root", "#0":
		o.user = "root"
	case "sprite", "#1000":
		o.user = "sprite"
	default:
		return o, fmt.Errorf("there is no user %s in this machine: root and sprite are", o.user)
	}
	return o, nil
}

func run(args []string) (int, error) {
	o, err := parse(args)
	switch {
	case err != nil:
		return 1, err
	case o.version:
		fmt.Println("Managoat's sudo")
		return 0, nil
	}
	conn, err := connect()
	if os.Geteuid() != 0 && err != nil {
		return 1, err
	}
	if o.list {
		fmt.Println("    (ALL) NOPASSWD: ALL")
		return 0, nil
	}
	argv := o.command()
	if len(argv) == 0 {
		if o.nothing {
			return 0, nil
		}
		return 1, errors.New("nothing to run")
	}
	r := Request{User: o.user, Argv: argv, Env: o.environment(os.Environ())}
	if o.login {
		r.Dir = o.homeDir()
	}
	if os.Geteuid() == 0 {
		return 1, become(r)
	}
	return ask(conn, r)
}

// command is the argument list to run.
func (o options) command() []string {
	if !o.login && !o.shell {
		return o.argv
	}
	argv := []string{"/bin/bash"}
	if o.login {
		argv = append(argv, "-l")
	}
	if len(o.argv) > 0 {
		quoted := make([]string, len(o.argv))
		for i, a := range o.argv {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		argv = append(argv, "-c", strings.Join(quoted, " "))
	}
	return argv
}

func (o options) homeDir() string {
	if o.user == "root" {
		return shim.RootHome
	}
	return shim.SpriteHome
}

// environment is the caller's with the identity changed. Unlike other sudos it keeps the rest: a setup's
// proxies, locale and DEBIAN_FRONTEND are meant for what it installs.
func (o options) environment(env []string) []string {
	changed := map[string]string{
		"PATH": shim.SearchPath(), "USER": o.user, "LOGNAME": o.user, "HOME": o.homeDir(),
		"SUDO_USER": "sprite", "SUDO_UID": strconv.Itoa(shim.SpriteUID), "SUDO_GID": strconv.Itoa(shim.SpriteUID),
	}
	if o.keep && !o.home && !o.login {
		delete(changed, "HOME")
	}
	for _, kv := range o.set {
		name, value, _ := strings.Cut(kv, "=")
		changed[name] = value
	}
	var kept []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if _, ok := changed[name]; !ok && name != "MAIL" && name != shim.SudoVariable {
			kept = append(kept, kv)
		}
	}
	for name, value := range changed {
		kept = append(kept, name+"="+value)
	}
	slices.Sort(kept)
	return kept
}

// become runs the command in place: root needs nobody's help.
func become(r Request) error {
	for _, kv := range r.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			os.Setenv("PATH", v)
		}
	}
	program, err := shim.Lookup(r.Argv[0])
	if err != nil {
		return err
	}
	if r.User == "sprite" {
		if err := errors.Join(syscall.Setgroups([]int{shim.SpriteUID}), syscall.Setgid(shim.SpriteUID), syscall.Setuid(shim.SpriteUID)); err != nil {
			return err
		}
	}
	if r.Dir != "" {
		if err := os.Chdir(r.Dir); err != nil {
			return err
		}
	}
	return unix.Exec(program, r.Argv, r.Env)
}

// connect finds the guest's descriptor.
func connect() (*net.UnixConn, error) {
	fd, err := strconv.Atoi(os.Getenv(shim.SudoVariable))
	if err != nil {
		return nil, errors.New(denied)
	}
	file := os.NewFile(uintptr(fd), "guest")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, errors.New(denied + " (this program's parent closed the descriptor it had inherited)")
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New(denied)
	}
	return unixConn, nil
}

// ask has the guest run the command and waits for its end.
func ask(conn *net.UnixConn, r Request) (int, error) {
	reply, theirs, err := socketPair()
	if err != nil {
		return 1, err
	}
	defer reply.Close()
	request, err := inMemory(r)
	if err != nil {
		return 1, err
	}
	cwd, err := os.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return 1, fmt.Errorf("the working directory: %w", err)
	}
	var fds [FDCount]int
	fds[FDReply], fds[FDRequest], fds[FDCwd] = int(theirs.Fd()), int(request.Fd()), int(cwd.Fd())
	fds[FDStdin], fds[FDStdout], fds[FDStderr] = 0, 1, 2
	if _, _, err := conn.WriteMsgUnix([]byte{1}, unix.UnixRights(fds[:]...), nil); err != nil {
		return 1, errors.New(denied)
	}
	theirs.Close()
	request.Close()
	cwd.Close()
	go relay(reply)
	var answer Reply
	if err := json.NewDecoder(io.LimitReader(reply, 1<<16)).Decode(&answer); err != nil {
		return 1, errors.New("the guest ended before the command did")
	}
	switch {
	case answer.Error != "":
		return max(answer.Code, 1), fmt.Errorf("%s: %s", path.Base(r.Argv[0]), answer.Error)
	case answer.Signal != 0:
		return 128 + answer.Signal, nil
	}
	return answer.Code, nil
}

// relay passes the signals this process gets on to the command, for as long as both live.
func relay(reply io.Writer) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	for s := range signals {
		if _, err := reply.Write([]byte{byte(s.(syscall.Signal))}); err != nil {
			return
		}
	}
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "reply"), os.NewFile(uintptr(fds[1]), "reply"), nil
}

// inMemory puts a request into a file that has no name.
func inMemory(r Request) (*os.File, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(raw) > MaxRequest {
		return nil, errors.New("arguments and environment are too long")
	}
	fd, err := unix.MemfdCreate("sudo", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "request")
	if _, err := f.Write(raw); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
