// Package userns starts programs in user namespaces of their own at the price of any other start.
//
// The standard library lets such a child wait, before it executes, until its ids are mapped. Its parent goes on
// meanwhile, so the child needs a copy of the parent's memory, and each thread of the parent then faults on every page
// it writes. Here the child shares the parent's memory until it executes, as others do, with ids that are not mapped
// yet but every capability in its namespace; its program waits in Enter.
package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long, and how often, the files of a child that has just executed are tried.
const (
	openPatience = time.Second
	openPause    = 20 * time.Microsecond
)

// Start executes a program whose main calls Enter with the number of the descriptor that follows attr.Files, unless it
// never does anything. attr.Sys needs to be there; it is changed. Whoever reaps children must not do so before Start
// returns.
func Start(path string, argv []string, attr *syscall.ProcAttr, ids []syscall.SysProcIDMap) (pid int, err error) {
	gate, open, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer gate.Close()
	defer open.Close()
	if attr.Sys.AmbientCaps, err = capabilities(); err != nil {
		return 0, err
	}
	attr.Files = append(attr.Files, gate.Fd())
	program, err := openBeyond(path, attr.Files)
	if err != nil {
		return 0, err
	}
	defer program.Close()
	attr.Sys.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_VM | unix.CLONE_VFORK
	if pid, err = syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), argv, attr); err != nil {
		return 0, err
	}
	err = errors.Join(writeMap(pid, "uid_map", ids), writeMap(pid, "gid_map", ids))
	if err == nil {
		_, err = open.Write([]byte{1})
	}
	if err != nil {
		unix.Kill(pid, unix.SIGKILL)
		syscall.Wait4(pid, nil, 0, nil)
		return 0, fmt.Errorf("map a child's ids: %w", err)
	}
	return pid, nil
}

// openBeyond opens the program that a child executes: the child has no power over the directories that lead there, unless
// they are its starter's. Its number is beyond those to which the child's descriptors are moved on their way to their
// places, which begin after the largest of them.
func openBeyond(path string, files []uintptr) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	moved := len(files) + 2 // each of them, and the pipe that tells whether it executes
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, max(int(slices.Max(files)), len(files))+moved)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Enter waits until the ids of this process are mapped. It still has none of them then, and every capability: it has
// to take an identity.
func Enter(fd int) error {
	gate := os.NewFile(uintptr(fd), "gate")
	defer gate.Close()
	if _, err := gate.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for ids: %w", err)
	}
	return nil
}

func writeMap(pid int, file string, ids []syscall.SysProcIDMap) error {
	var b strings.Builder
	for _, m := range ids {
		fmt.Fprintln(&b, m.ContainerID, m.HostID, m.Size)
	}
	name := "/proc/" + strconv.Itoa(pid) + "/" + file
	err := os.WriteFile(name, []byte(b.String()), 0)
	// A child of a process that is not dumpable becomes so a moment after its descriptors are closed, which is what tells
	// that it executes.
	for deadline := time.Now().Add(openPatience); errors.Is(err, fs.ErrPermission) && time.Now().Before(deadline); {
		time.Sleep(openPause)
		err = os.WriteFile(name, []byte(b.String()), 0)
	}
	return err
}

// capabilities are all that this kernel has.
var capabilities = sync.OnceValues(func() ([]uintptr, error) {
	var all []uintptr
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil {
			break // a kernel older than this list
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("the kernel tells no capability")
	}
	return all, nil
})
