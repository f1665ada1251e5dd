// Package shim is the last step before a command: it runs as root of the command's own user namespace, takes
// away everything the command must not have, and becomes the command.
package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest"
	"managoat/sandbox/userns"
)

// Name is argv[0] of the guest's binary in this mode.
const Name = "managoat-shim"

// Identities of a machine, in its user namespace.
const (
	GuestUID   = 65535 // the guest's own; not mapped where commands run, so that nothing can become it
	SpriteUID  = 1000
	SpriteHome = "/home/sprite"
	RootHome   = "/root"
)

// Descriptors the guest starts the shim with, besides standard input, output and error.
const (
	reportFD = 3 // why the command could not be started; closed by its start
	sudoFD   = 4 // passed on to the command as SudoFD
	cwdFD    = 5 // the working directory
	gateFD   = 6 // where a nested shim waits for its namespace
)

// SudoFD is where a command that may use sudo finds the guest. It is high because scripts use the low ones
// and shells those from 255 down.
const SudoFD = 240

// SudoVariable tells it to the sudo program.
const SudoVariable = "MANAGOAT_SUDO_FD"

// Exit codes of a command that could not be started, as shells use them.
const (
	notExecutable = 126
	notFound      = 127
)

// oomScore makes the kernel prefer a command to the guest when memory is short.
const oomScore = "500"

// Order is what the shim is told, in JSON, as its first argument.
type Order struct {
	User   string `json:"user"` // root or sprite
	Dir    string `json:"dir"`
	TTY    bool   `json:"tty,omitempty"`
	Sudo   bool   `json:"sudo,omitempty"`
	Cwd    bool   `json:"cwd,omitempty"` // work in the directory of cwdFD instead of Dir
	Nested bool   `json:"nested,omitempty"`
	Group  int    `json:"group,omitempty"` // a group more, by which the command's processes are known; 0: none
}

// rootCaps are what machine root keeps: enough for dpkg, nothing that reaches the kernel.
var rootCaps = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETUID, unix.CAP_SETGID,
	unix.CAP_SETFCAP, unix.CAP_KILL, unix.CAP_SYS_CHROOT,
}

// Main becomes the command or exits with the status that says why not.
func Main(args []string) {
	// Credentials, capabilities and filters belong to this thread; executing makes it the process.
	runtime.LockOSThread()
	code, err := prepare(args)
	report := os.NewFile(reportFD, "report")
	fmt.Fprint(report, err)
	os.Exit(code)
}

func prepare(args []string) (int, error) {
	if len(args) < 2 {
		return notExecutable, errors.New("nothing to run")
	}
	var o Order
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return notExecutable, fmt.Errorf("order: %w", err)
	}
	argv := args[1:]
	if err := confine(o); err != nil {
		return notExecutable, err
	}
	program, err := Lookup(argv[0])
	if err != nil {
		return notFound, err
	}
	if err := Filter(); err != nil {
		return notExecutable, fmt.Errorf("seccomp: %w", err)
	}
	err = unix.Exec(program, argv, environ(o))
	return notExecutable, fmt.Errorf("%s: %w", argv[0], err)
}

// environ drops from the environment what is not this command's to have.
func environ(o Order) []string {
	env := os.Environ()
	kept := env[:0]
	for _, kv := range env {
		if !strings.HasPrefix(kv, SudoVariable+"=") {
			kept = append(kept, kv)
		}
	}
	if o.Sudo {
		kept = append(kept, fmt.Sprintf("%s=%d", SudoVariable, SudoFD))
	}
	return kept
}

func confine(o Order) error {
	if o.Nested {
		if err := userns.Enter(gateFD); err != nil {
			return err
		}
		if err := setIDs(0, 0); err != nil {
			return err
		}
		// No user namespaces below this one, whatever the filter says.
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			return fmt.Errorf("forbid user namespaces: %w", err)
		}
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0); err != nil {
		return fmt.Errorf("oom score: %w", err)
	}
	// What the server's parent ignored must not be ignored here: handlers become defaults when executing.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("core limit: %w", err)
	}
	if err := descriptors(o); err != nil {
		return err
	}
	if o.TTY {
		if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
			return fmt.Errorf("terminal: %w", err)
		}
	}
	uid, caps := SpriteUID, []int(nil)
	if o.User == "root" {
		uid, caps = 0, rootCaps
	}
	if err := Become(uid, o.Group, caps); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	unix.Umask(0o022)
	if o.Cwd {
		if err := unix.Fchdir(cwdFD); err != nil {
			return fmt.Errorf("working directory: %w", err)
		}
		return nil
	}
	if err := unix.Chdir(o.Dir); err != nil {
		return fmt.Errorf("working directory %s: %w", o.Dir, err)
	}
	return nil
}

// descriptors leaves nothing open but the standard three and what the order grants.
func descriptors(o Order) error {
	if o.Sudo {
		if err := unix.Dup3(sudoFD, SudoFD, 0); err != nil {
			return fmt.Errorf("sudo descriptor: %w", err)
		}
		return errors.Join(closeRange(reportFD, SudoFD-1), closeRange(SudoFD+1, math.MaxInt32))
	}
	return closeRange(reportFD, math.MaxInt32)
}

// closeRange closes descriptors as the command is executed. gVisor knows the system call, but not this use of it.
func closeRange(first, last uint) error {
	err := unix.CloseRange(first, last, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("close descriptors: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && uint(fd) >= first && uint(fd) <= last {
			unix.CloseOnExec(int(fd))
		}
	}
	return nil
}

// SearchPath is the default PATH: what the machine's owner installed goes before our node.
func SearchPath() string {
	if _, err := os.Stat(guest.NodePath); err == nil {
		return guest.SearchPath + ":" + guest.NodePath
	}
	return guest.SearchPath
}

// Lookup finds a program on PATH as the user that will run it.
func Lookup(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range strings.Split(os.Getenv("PATH"), ":") {
		if !path.IsAbs(dir) {
			continue // "." on a PATH is a trap
		}
		p := path.Join(dir, name)
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("executable not found: %s", name)
}

// Become changes this thread's identity to uid, with the group of the same number and, unless it is 0, one more, and leaves it
// of caps those that it has, also across an execve. It is not the first one, though other commands could not look
// into the command's processes then: it has no name, and scripts ask for that of their group.
func Become(uid, group int, caps []int) error {
	caps, err := permitted(caps)
	if err != nil {
		return err
	}
	if err := bound(caps); err != nil {
		return err
	}
	if len(caps) > 0 {
		if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("keep capabilities: %w", err)
		}
	}
	if unix.Getuid() != uid || unix.Getgid() != uid || group != 0 {
		if err := setIDs(uid, group); err != nil {
			return err
		}
	}
	return setCaps(caps)
}

// setIDs changes this thread only: the standard library would change all of them, and they are about to end.
func setIDs(uid, group int) error {
	groups := []uint32{uint32(uid)}
	if group != 0 {
		groups = append(groups, uint32(group))
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return fmt.Errorf("setgroups: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return fmt.Errorf("setresgid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return fmt.Errorf("setresuid: %w", e)
	}
	return nil
}

// permitted are those of caps that this thread has: in a container some are nobody's.
func permitted(caps []int) ([]int, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return nil, fmt.Errorf("capget: %w", err)
	}
	var kept []int
	for _, c := range caps {
		if data[c/32].Permitted&(1<<(c%32)) != 0 {
			kept = append(kept, c)
		}
	}
	return kept, nil
}

// bound drops from the bounding set everything that is not in keep.
func bound(keep []int) error {
	kept := make(map[int]bool, len(keep))
	for _, c := range keep {
		kept[c] = true
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if kept[c] {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // this kernel knows fewer capabilities
		}
		if has == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

func setCaps(caps []int) error {
	var set [2]uint32
	for _, c := range caps {
		set[c/32] |= 1 << (c % 32)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i, bits := range set {
		data[i] = unix.CapUserData{Effective: bits, Permitted: bits, Inheritable: bits}
	}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil // gVisor has none: then only root keeps any across an execve, and those within its bounds
	}
	if err != nil {
		return fmt.Errorf("ambient capabilities: %w", err)
	}
	for _, c := range caps {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("ambient capability %d: %w", c, err)
		}
	}
	return nil
}
