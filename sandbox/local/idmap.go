package local

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/boot"
	"managoat/sandbox/userns"
)

// maxIDMaps is how many namespaces are kept for machines that may start again: each costs a descriptor.
const maxIDMaps = 256

// idMaps keeps, per uid range, the user namespace that says how ids on disk become a machine's. Making one takes
// a process; it is begun when a machine is made, so that its start need not wait.
type idMaps struct {
	mu      sync.Mutex
	by      map[int]*idMapping
	closed  bool
	pending sync.WaitGroup
}

// idMapping is a namespace, when done is closed.
type idMapping struct {
	done chan struct{}
	file *os.File
	err  error
}

// prepare begins to make the namespace of a range.
func (ms *idMaps) prepare(program string, n int) *idMapping {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m := ms.by[n]; m != nil {
		return m
	}
	m := &idMapping{done: make(chan struct{})}
	ms.pending.Add(1)
	go func() {
		defer ms.pending.Done()
		defer close(m.done)
		m.file, m.err = makeIDMapping(program, firstUID+n*rangeSize)
	}()
	if !ms.closed && len(ms.by) < maxIDMaps {
		if ms.by == nil {
			ms.by = make(map[int]*idMapping)
		}
		ms.by[n] = m
	}
	return m
}

// get returns a descriptor of a range's namespace for the caller to close.
func (ms *idMaps) get(program string, n int) (*os.File, error) {
	m := ms.prepare(program, n)
	<-m.done
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m.err != nil {
		if ms.by[n] == m {
			delete(ms.by, n) // the next start tries again
		}
		return nil, m.err
	}
	if ms.by[n] != m {
		return m.file, nil // not kept: it is the caller's
	}
	fd, err := unix.FcntlInt(m.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), m.file.Name()), nil
}

// drop forgets a range's namespace.
func (ms *idMaps) drop(n int) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m := ms.by[n]; m != nil {
		delete(ms.by, n)
		<-m.done
		if m.file != nil {
			m.file.Close()
		}
	}
}

// close forgets all of them and waits for those that are being made.
func (ms *idMaps) close() {
	ms.mu.Lock()
	ms.closed = true
	kept := ms.by
	ms.by = nil
	ms.mu.Unlock()
	ms.pending.Wait()
	for _, m := range kept {
		if m.file != nil {
			m.file.Close()
		}
	}
}

// makeIDMapping makes a user namespace that maps a machine's ids, and the host's root: without that one,
// overlay could not make its work directory and would be read-only without a word.
func makeIDMapping(program string, first int) (*os.File, error) {
	maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: rangeSize}, {ContainerID: rangeSize, HostID: 0, Size: 1}}
	// A namespace needs a process to be made. This one never gets to do anything.
	holder, err := userns.Start(program, []string{boot.HoldName}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{}}, maps)
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", holder))
	unix.Kill(holder, unix.SIGKILL)
	syscall.Wait4(holder, nil, 0, nil)
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	return ns, nil
}
