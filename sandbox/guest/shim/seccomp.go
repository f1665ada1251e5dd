package shim

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are system calls no command of a machine needs: they reach for mounts, namespaces, the kernel's keys,
// modules, clocks and tracing, or are young and large (io_uring, bpf). archDenied adds one architecture's own.
var denied = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
	unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT, unix.SYS_SYSLOG, unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_NFSSERVCTL, unix.SYS_VHANGUP, unix.SYS_KCMP,
	unix.SYS_MOVE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_SET_MEMPOLICY_HOME_NODE, unix.SYS_MIGRATE_PAGES,
}

// families are the sockets a machine may open. AF_VSOCK is why this is a list of what may: it is not
// namespaced and reaches the hypervisor from any network namespace.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// newNamespaces are the flags of clone that make namespaces. (CLONE_NEWTIME exists for clone3 and unshare only.)
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// tioclinux injects into a console, like TIOCSTI into any terminal.
const tioclinux = 0x541C

// Offsets in struct seccomp_data; arguments are 64 bits wide and little-endian.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16
	dataArg1   = 24
)

// program assembles a classic BPF program.
type program []unix.SockFilter

func (p *program) load(offset uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

// jump goes on with the next instruction when test (JEQ, JGE, JSET) holds for k, else skips some.
func (p *program) jump(test uint16, k uint32, skip uint8) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jf: skip, K: k})
}

func (p *program) ret(action uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action})
}

func fail(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

func filter() program {
	var p program
	p.load(dataArch)
	p = append(p, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: auditArch})
	p.ret(unix.SECCOMP_RET_KILL_PROCESS) // 32-bit calls have other numbers
	p.load(dataNumber)
	if x32Bit != 0 {
		p.jump(unix.BPF_JGE, x32Bit, 1)
		p.ret(fail(unix.ENOSYS))
	}
	for _, list := range [2][]uint32{denied, archDenied} {
		for _, nr := range list {
			p.jump(unix.BPF_JEQ, nr, 1)
			p.ret(fail(unix.EPERM))
		}
	}
	// The flags of clone3 lie in memory where a filter cannot see them: without it libc uses clone.
	p.jump(unix.BPF_JEQ, unix.SYS_CLONE3, 1)
	p.ret(fail(unix.ENOSYS))

	p.jump(unix.BPF_JEQ, unix.SYS_CLONE, 4)
	p.load(dataArg0)
	p.jump(unix.BPF_JSET, newNamespaces, 1)
	p.ret(fail(unix.EPERM))
	p.ret(unix.SECCOMP_RET_ALLOW)

	p.jump(unix.BPF_JEQ, unix.SYS_SOCKET, uint8(2+2*len(families)))
	p.load(dataArg0)
	for _, f := range families {
		p.jump(unix.BPF_JEQ, f, 1)
		p.ret(unix.SECCOMP_RET_ALLOW)
	}
	p.ret(fail(unix.EAFNOSUPPORT))

	p.jump(unix.BPF_JEQ, unix.SYS_IOCTL, 5)
	p.load(dataArg1)
	for _, request := range []uint32{unix.TIOCSTI, tioclinux} {
		p.jump(unix.BPF_JEQ, request, 1)
		p.ret(fail(unix.EPERM))
	}
	p.ret(unix.SECCOMP_RET_ALLOW)
	return p
}

// Filter puts the filter on this thread. no_new_privs must be set.
func Filter() error {
	p := filter()
	if len(p) > unix.BPF_MAXINSNS {
		return errors.New("the program is too long")
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}
