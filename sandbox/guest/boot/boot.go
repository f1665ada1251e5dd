// Package boot is the first thing that runs in a machine of the local provider: root of the machine's user
// namespace and pid 1, in a mount namespace where the provider has laid the root file system out. It mounts
// what every machine needs, makes that the root, and gives up everything but a few capabilities; then it is the
// guest.
package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/shim"
	"managoat/sandbox/userns"
)

// Name is argv[0] of the guest's binary in this mode.
const Name = "managoat-boot"

// NetworkName is argv[0] of the guest's binary where bubblewrap makes the machine: see Network.
const NetworkName = "managoat-network"

// HoldName is argv[0] of the guest's binary when it only has to exist: the provider takes a user namespace
// from it and kills it, which it must do within HoldPeriod.
const (
	HoldName   = "managoat-hold"
	HoldPeriod = time.Minute
)

// Descriptors a machine is started with, besides standard input, output and error. ConfigFD is boot's only;
// the others are the guest's.
const (
	ListenFD = 3 // where the guest listens
	LockFD   = 4 // held as long as the machine runs
	ReadyFD  = 5 // takes "ready", or why the machine did not start
	OOMFD    = 6 // counts kills for memory, or /dev/null
	ConfigFD = 7 // Config, once the machine is in its cgroups
	gateFD   = 8 // waits for the machine's ids
)

// Ready is what the guest writes to ReadyFD when it listens.
const Ready = "ready"

// Config tells how to make the machine's root.
type Config struct {
	Root     string `json:"root"` // the directory that becomes /
	Hostname string `json:"hostname"`
}

// guestCaps is what pid 1 keeps: to give commands user namespaces of their own and to end them.
var guestCaps = []int{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETFCAP, unix.CAP_KILL, unix.CAP_SETPCAP}

// hidden files of /proc tell about the host.
var hidden = []string{
	"cmdline", "config.gz", "kallsyms", "kcore", "keys", "latency_stats", "sched_debug", "sysrq-trigger", "timer_list", "timer_stats",
}

// hiddenDirs of /proc, likewise.
var hiddenDirs = []string{"acpi", "asound", "scsi"}

// devices a machine has.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// Boot makes the machine's root and leaves this process, all its threads, what the guest may be. On failure it
// has said why on ReadyFD. It needs the whole process for itself and no cgo.
func Boot() error {
	err := boot()
	if err != nil {
		fmt.Fprint(os.NewFile(ReadyFD, "ready"), err)
	}
	return err
}

func boot() error {
	if err := userns.Enter(gateFD); err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(0, 0, 0), syscall.Setresuid(0, 0, 0)); err != nil {
		return fmt.Errorf("become the machine's root: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(os.NewFile(ConfigFD, "config"), 1<<16))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var c Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	// What the server's own parent left open must not reach a machine.
	if err := unix.CloseRange(ConfigFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := mounts(c.Root); err != nil {
		return err
	}
	if err := pivot(c.Root); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := network(); err != nil {
		return err
	}
	// Only now: the provider has moved us, so /proc/self/cgroup shows / and nothing of the host.
	if err := allThreads(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("cgroup namespace: %w", err)
	}
	return become()
}

// allThreads makes a system call that concerns one thread on every thread of the process.
func allThreads(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := syscall.AllThreadsSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// become gives up root of the machine for the guest's uid and its few capabilities.
func become() error {
	// Nothing this process executes may gain anything.
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(shim.GuestUID, shim.GuestUID, shim.GuestUID), syscall.Setresuid(shim.GuestUID, shim.GuestUID, shim.GuestUID)); err != nil {
		return fmt.Errorf("become the guest: %w", err)
	}
	var bits uint32
	for _, c := range guestCaps {
		bits |= 1 << c
	}
	head := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := &[2]unix.CapUserData{{Effective: bits, Permitted: bits}}
	err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(data)))
	runtime.KeepAlive(head)
	runtime.KeepAlive(data)
	if err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

func mounts(root string) error {
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := unix.Mount(source, root+target, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	if err := mount(root, "", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, m := range []struct {
		kind, target string
		flags        uintptr
		data         string
	}{
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=755,size=64m"},
		{"tmpfs", "/dev", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=755,size=64k"},
	} {
		if err := mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	if err := hide(root, mount); err != nil {
		return err
	}
	for _, d := range devices {
		if err := os.WriteFile(root+"/dev/"+d, nil, 0o666); err != nil {
			return fmt.Errorf("make device: %w", err)
		}
		if err := mount("/dev/"+d, "/dev/"+d, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		kind, target string
		flags        uintptr
		data         string
	}{
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "mode=1777,size=64m"},
	} {
		if err := os.Mkdir(root+m.target, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", m.target, err)
		}
		if err := mount(m.kind, m.target, m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	links := map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		links[name] = "/proc/self/fd/" + strconv.Itoa(i)
	}
	for name, target := range links {
		if err := os.Symlink(target, root+"/dev/"+name); err != nil {
			return fmt.Errorf("make device link: %w", err)
		}
	}
	if err := os.Mkdir(root+"/run/lock", 0o755); err != nil {
		return fmt.Errorf("make /run/lock: %w", err)
	}
	return os.Chmod(root+"/run/lock", 0o1777)
}

// hide covers what tells about the host. Nobody who runs in the machine may undo it.
func hide(root string, mount func(source, target, kind string, flags uintptr, data string) error) error {
	for _, name := range hidden {
		if _, err := os.Lstat(root + "/proc/" + name); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := mount("/dev/null", "/proc/"+name, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, name := range hiddenDirs {
		if _, err := os.Lstat(root + "/proc/" + name); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := mount("tmpfs", "/proc/"+name, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=555"); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes root the root and lets go of the host's.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's root: %w", err)
	}
	return os.Chdir("/")
}

// Network prepares the network namespace it was started in and becomes the given program.
func Network(argv []string) error {
	if err := unix.CloseRange(ConfigFD+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := network(); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", argv[0], unix.Exec(argv[0], argv, os.Environ()))
}

// network brings loopback up, the only interface there is, and lets the guest, which is not root, listen on
// port 80.
func network() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil {
		return fmt.Errorf("allow low ports: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}
