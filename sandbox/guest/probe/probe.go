//go:build linux

package probe

import (
	"encoding/json"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/shim"
)

// Main prints one JSON object: attempt → result.
func Main() {
	runtime.LockOSThread()
	results := make(map[string]string)
	for _, a := range attempts {
		results[a.name] = name(a.try())
	}
	json.NewEncoder(os.Stdout).Encode(results)
}

func name(err error) string {
	if err == nil {
		return OK
	}
	if e, ok := err.(unix.Errno); ok {
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// call makes a system call whose arguments matter only if nothing stops it before they are looked at.
func call(nr uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}
}

func socket(family, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// clone tries to make a process with new namespaces. A child that comes to be ends at once.
func clone(flags uintptr) func() error {
	return func() error {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			return e
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	}
}

func setuid(uid int) func() error {
	return call(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
}

func open(path string) func() error {
	return func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

var attempts = []struct {
	name string
	try  func() error
}{
	{"socket vsock", socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	{"socket packet", socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
	{"socket alg", socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
	{"socket raw", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
	{"socket inet", socket(unix.AF_INET, unix.SOCK_STREAM, 0)},
	{"socket unix", socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)},
	{"unshare user", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"unshare mount", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"clone user", clone(unix.CLONE_NEWUSER)},
	{"clone mount", clone(unix.CLONE_NEWNS)},
	{"clone3", call(unix.SYS_CLONE3)},
	{"setns", call(unix.SYS_SETNS, ^uintptr(0))},
	{"mount", func() error { return unix.Mount("t", "/tmp", "tmpfs", 0, "") }},
	{"umount proc", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }},
	{"umount hidden", func() error { return unix.Unmount("/proc/cmdline", unix.MNT_DETACH) }},
	{"pivot_root", call(unix.SYS_PIVOT_ROOT)},
	{"fsopen", call(unix.SYS_FSOPEN)},
	{"open_tree", call(unix.SYS_OPEN_TREE, ^uintptr(0))},
	{"move_mount", call(unix.SYS_MOVE_MOUNT, ^uintptr(0))},
	{"kill guest", func() error { return unix.Kill(1, unix.SIGKILL) }},
	{"terminate guest", func() error { return unix.Kill(1, unix.SIGTERM) }},
	{"trace guest", func() error { return unix.PtraceAttach(1) }},
	{"guest memory", open("/proc/1/mem")},
	{"guest environment", open("/proc/1/environ")},
	{"guest descriptors", func() error {
		_, err := unix.Readlink("/proc/1/fd/3", make([]byte, 256))
		return err
	}},
	{"guest program", func() error {
		_, err := unix.Readlink("/proc/1/exe", make([]byte, 256))
		return err
	}},
	{"guest descriptor", func() error {
		fd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.PidfdGetfd(fd, 3, 0)
		return err
	}},
	{"become guest", setuid(shim.GuestUID)},
	{"keyctl", call(unix.SYS_KEYCTL)},
	{"add_key", call(unix.SYS_ADD_KEY)},
	{"bpf", call(unix.SYS_BPF)},
	{"perf_event_open", call(unix.SYS_PERF_EVENT_OPEN)},
	{"userfaultfd", call(unix.SYS_USERFAULTFD)},
	{"io_uring", call(unix.SYS_IO_URING_SETUP, 1)},
	{"open_by_handle_at", call(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(0))},
	{"init_module", call(unix.SYS_INIT_MODULE)},
	{"kexec", call(unix.SYS_KEXEC_LOAD)},
	{"reboot", call(unix.SYS_REBOOT)},
	{"set clock", call(unix.SYS_CLOCK_SETTIME)},
	{"syslog", call(unix.SYS_SYSLOG, 10)},
	{"mknod", func() error { return unix.Mknod("/tmp/.managoat-probe", unix.S_IFBLK|0o600, 254<<8) }},
	{"chroot", func() error { return unix.Chroot("/") }},
	{"inject input", func() error {
		b := byte('x')
		_, _, e := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&b)))
		if e != 0 {
			return e
		}
		return nil
	}},
}
