package shim

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allowed are the system calls that every architecture's commands may make whatever their arguments; archAllowed
// adds one architecture's own. They are those that Docker's default profile allows to a container without
// capabilities (github.com/moby/profiles/seccomp v0.3.0), plus chroot, which machine root's packages use, less
// what lists mounts, opens files by handle and sets clocks. Everything else fails with EPERM: mounts, namespaces,
// the kernel's keys, modules and tracing, io_uring and bpf.
var allowed = []uint32{
	unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_BIND, unix.SYS_BRK, unix.SYS_CACHESTAT, unix.SYS_CAPGET, unix.SYS_CAPSET,
	unix.SYS_CHDIR, unix.SYS_CHROOT, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_NANOSLEEP,
	unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_CONNECT, unix.SYS_COPY_FILE_RANGE, unix.SYS_DUP, unix.SYS_DUP3,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_EVENTFD2,
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
	unix.SYS_FADVISE64, unix.SYS_FALLOCATE, unix.SYS_FANOTIFY_MARK, unix.SYS_FCHDIR, unix.SYS_FCHMOD, unix.SYS_FCHMODAT,
	unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_FCNTL, unix.SYS_FDATASYNC, unix.SYS_FGETXATTR,
	unix.SYS_FLISTXATTR, unix.SYS_FLOCK, unix.SYS_FREMOVEXATTR, unix.SYS_FSETXATTR, unix.SYS_FSTAT, unix.SYS_FSTATFS,
	unix.SYS_FSYNC, unix.SYS_FTRUNCATE, unix.SYS_FUTEX, unix.SYS_FUTEX_REQUEUE, unix.SYS_FUTEX_WAIT,
	unix.SYS_FUTEX_WAITV, unix.SYS_FUTEX_WAKE, unix.SYS_GET_ROBUST_LIST, unix.SYS_GETCPU, unix.SYS_GETCWD,
	unix.SYS_GETDENTS64, unix.SYS_GETEGID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETGROUPS, unix.SYS_GETITIMER,
	unix.SYS_GETPEERNAME, unix.SYS_GETPGID, unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETPRIORITY, unix.SYS_GETRANDOM,
	unix.SYS_GETRESGID, unix.SYS_GETRESUID, unix.SYS_GETRLIMIT, unix.SYS_GETRUSAGE, unix.SYS_GETSID,
	unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_GETTID, unix.SYS_GETTIMEOFDAY, unix.SYS_GETUID,
	unix.SYS_GETXATTR, unix.SYS_GETXATTRAT, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_INIT1,
	unix.SYS_INOTIFY_RM_WATCH, unix.SYS_IO_CANCEL, unix.SYS_IO_DESTROY, unix.SYS_IO_GETEVENTS, unix.SYS_IO_PGETEVENTS,
	unix.SYS_IO_SETUP, unix.SYS_IO_SUBMIT, unix.SYS_IOPRIO_GET, unix.SYS_IOPRIO_SET, unix.SYS_KILL,
	unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_RESTRICT_SELF, unix.SYS_LGETXATTR,
	unix.SYS_LINKAT, unix.SYS_LISTEN, unix.SYS_LISTXATTR, unix.SYS_LISTXATTRAT, unix.SYS_LLISTXATTR,
	unix.SYS_LREMOVEXATTR, unix.SYS_LSEEK, unix.SYS_LSETXATTR, unix.SYS_MADVISE, unix.SYS_MAP_SHADOW_STACK,
	unix.SYS_MEMBARRIER, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_MINCORE, unix.SYS_MKDIRAT,
	unix.SYS_MKNODAT, unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MLOCKALL, unix.SYS_MMAP, unix.SYS_MPROTECT,
	unix.SYS_MQ_GETSETATTR, unix.SYS_MQ_NOTIFY, unix.SYS_MQ_OPEN, unix.SYS_MQ_TIMEDRECEIVE, unix.SYS_MQ_TIMEDSEND,
	unix.SYS_MQ_UNLINK, unix.SYS_MREMAP, unix.SYS_MSEAL, unix.SYS_MSGCTL, unix.SYS_MSGGET, unix.SYS_MSGRCV,
	unix.SYS_MSGSND, unix.SYS_MSYNC, unix.SYS_MUNLOCK, unix.SYS_MUNLOCKALL, unix.SYS_MUNMAP, unix.SYS_NANOSLEEP,
	unix.SYS_NEWFSTATAT, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_PIPE2, unix.SYS_PKEY_ALLOC, unix.SYS_PKEY_FREE, unix.SYS_PKEY_MPROTECT, unix.SYS_PPOLL, unix.SYS_PRCTL,
	unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_PREADV2, unix.SYS_PRLIMIT64, unix.SYS_PROCESS_MRELEASE,
	unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PSELECT6, unix.SYS_PTRACE, unix.SYS_PWRITE64,
	unix.SYS_PWRITEV, unix.SYS_PWRITEV2, unix.SYS_READ, unix.SYS_READAHEAD, unix.SYS_READLINKAT, unix.SYS_READV,
	unix.SYS_RECVFROM, unix.SYS_RECVMMSG, unix.SYS_RECVMSG, unix.SYS_REMAP_FILE_PAGES, unix.SYS_REMOVEXATTR,
	unix.SYS_REMOVEXATTRAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_RESTART_SYSCALL, unix.SYS_RSEQ,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGQUEUEINFO,
	unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGSUSPEND, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_TGSIGQUEUEINFO,
	unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_GETATTR,
	unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_RR_GET_INTERVAL, unix.SYS_SCHED_SETAFFINITY,
	unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_YIELD, unix.SYS_SECCOMP,
	unix.SYS_SEMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SENDFILE, unix.SYS_SENDMMSG,
	unix.SYS_SENDMSG, unix.SYS_SENDTO, unix.SYS_SET_ROBUST_LIST, unix.SYS_SET_TID_ADDRESS, unix.SYS_SETFSGID,
	unix.SYS_SETFSUID, unix.SYS_SETGID, unix.SYS_SETGROUPS, unix.SYS_SETITIMER, unix.SYS_SETPGID, unix.SYS_SETPRIORITY,
	unix.SYS_SETREGID, unix.SYS_SETRESGID, unix.SYS_SETRESUID, unix.SYS_SETREUID, unix.SYS_SETRLIMIT, unix.SYS_SETSID,
	unix.SYS_SETSOCKOPT, unix.SYS_SETUID, unix.SYS_SETXATTR, unix.SYS_SETXATTRAT, unix.SYS_SHMAT, unix.SYS_SHMCTL,
	unix.SYS_SHMDT, unix.SYS_SHMGET, unix.SYS_SHUTDOWN, unix.SYS_SIGALTSTACK, unix.SYS_SIGNALFD4, unix.SYS_SOCKETPAIR,
	unix.SYS_SPLICE, unix.SYS_STATFS, unix.SYS_STATX, unix.SYS_SYMLINKAT, unix.SYS_SYNC, unix.SYS_SYNC_FILE_RANGE,
	unix.SYS_SYNCFS, unix.SYS_SYSINFO, unix.SYS_TEE, unix.SYS_TGKILL, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_DELETE,
	unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_SETTIME, unix.SYS_TIMERFD_CREATE,
	unix.SYS_TIMERFD_GETTIME, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMES, unix.SYS_TKILL, unix.SYS_TRUNCATE,
	unix.SYS_UMASK, unix.SYS_UNAME, unix.SYS_UNLINKAT, unix.SYS_UTIMENSAT, unix.SYS_VMSPLICE, unix.SYS_WAIT4,
	unix.SYS_WAITID, unix.SYS_WRITE, unix.SYS_WRITEV,
}

// newest is the highest number known when the list was made. Younger calls fail as on a kernel that does not
// have them, so that programs fall back.
const newest = 471

// personalities that change nothing that matters: Linux, with or without its uname of 2.6, and asking.
var personalities = []uint32{0x0, 0x8, 0x20000, 0x20008, 0xffffffff}

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
	p.jump(unix.BPF_JGT, newest, 1)
	p.ret(fail(unix.ENOSYS))
	for _, list := range [2][]uint32{allowed, archAllowed} {
		for _, nr := range list {
			p.jump(unix.BPF_JEQ, nr, 1)
			p.ret(unix.SECCOMP_RET_ALLOW)
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

	p.oneOf(unix.SYS_SOCKET, dataArg0, families, unix.EAFNOSUPPORT)
	p.oneOf(unix.SYS_PERSONALITY, dataArg0, personalities, unix.EPERM)

	p.jump(unix.BPF_JEQ, unix.SYS_IOCTL, 6)
	p.load(dataArg1)
	for _, request := range []uint32{unix.TIOCSTI, tioclinux} {
		p.jump(unix.BPF_JEQ, request, 1)
		p.ret(fail(unix.EPERM))
	}
	p.ret(unix.SECCOMP_RET_ALLOW)
	p.ret(fail(unix.EPERM))
	return p
}

// oneOf allows a call whose argument is one of values.
func (p *program) oneOf(nr, argument uint32, values []uint32, otherwise unix.Errno) {
	p.jump(unix.BPF_JEQ, nr, uint8(2+2*len(values)))
	p.load(argument)
	for _, v := range values {
		p.jump(unix.BPF_JEQ, v, 1)
		p.ret(unix.SECCOMP_RET_ALLOW)
	}
	p.ret(fail(otherwise))
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
