package server

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/shim"
)

// processes starts and reaps. As pid 1 the guest inherits every orphan of the machine, so one loop waits for
// all children and hands on the status of those that somebody here started.
type processes struct {
	mu      sync.Mutex // held over a fork, so that no child is reaped before it is known
	waiting map[int]chan<- ended
}

// ended is how a child ended, and when.
type ended struct {
	status syscall.WaitStatus
	at     time.Time
}

// reap runs until done is closed.
func (p *processes) reap(done <-chan struct{}) {
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	defer signal.Stop(child)
	for {
		p.collect()
		select {
		case <-child:
		case <-done:
			return
		}
	}
}

func (p *processes) collect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ch, ok := p.waiting[pid]; ok {
			delete(p.waiting, pid)
			ch <- ended{status, time.Now()}
		}
	}
}

// launch is what start needs to know beyond the shim's order.
type launch struct {
	argv  []string
	env   []string
	files [3]int // standard input, output and error
	sudo  int    // the descriptor that makes sudo work, with Order.Sudo
	cwd   int    // the working directory, with Order.Cwd
	shim.Order
}

// child is a process that runs.
type child struct {
	pid  int
	done <-chan ended
	// space identifies the user namespace that all descendants of this child share and none can leave; nil
	// where commands have none of their own.
	space *os.File
}

// start forks the shim, which becomes the command. failure is why the command could not be started; the shim
// then ended with the status that says so.
func (p *processes) start(l launch, nested bool) (c child, failure string, err error) {
	report, reportEnd, err := os.Pipe()
	if err != nil {
		return child{}, "", fmt.Errorf("start: %w", err)
	}
	defer report.Close()
	defer reportEnd.Close()
	order, err := json.Marshal(l.Order)
	if err != nil {
		return child{}, "", fmt.Errorf("start: %w", err)
	}
	attr := &syscall.ProcAttr{
		Env: l.env,
		Files: []uintptr{
			uintptr(l.files[0]), uintptr(l.files[1]), uintptr(l.files[2]), reportEnd.Fd(),
			granted(l.Order.Sudo, l.sudo), granted(l.Order.Cwd, l.cwd),
		},
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if nested {
		maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: shim.GuestUID}} // the guest's own uid is left out
		attr.Sys.Cloneflags = syscall.CLONE_NEWUSER
		attr.Sys.UidMappings, attr.Sys.GidMappings = maps, maps
		attr.Sys.GidMappingsEnableSetgroups = true
		attr.Sys.Credential = &syscall.Credential{Uid: 0, Gid: 0}
	}
	argv := append([]string{shim.Name, string(order)}, l.argv...)
	done := make(chan ended, 1)

	p.mu.Lock()
	if nested {
		// The map of a child that is not dumpable cannot be written. No process of the machine has a uid
		// from which it could make use of this moment.
		identity.Lock()
		unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
	pid, err := syscall.ForkExec("/proc/self/exe", argv, attr)
	if nested {
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		identity.Unlock()
	}
	if err == nil {
		p.waiting[pid] = done
	}
	p.mu.Unlock()
	if err != nil {
		return child{}, "", fmt.Errorf("start: %w", err)
	}
	reportEnd.Close()
	c = child{pid: pid, done: done}
	if nested {
		c.space, _ = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid)) // fails only when it is gone already
	}
	return c, readReport(report), nil
}

func granted(yes bool, fd int) uintptr {
	if !yes {
		return ^uintptr(0) // closed in the child
	}
	return uintptr(fd)
}

// readReport reads until the shim executed the command (the pipe closes) or said why it could not.
func readReport(r *os.File) string {
	buf := make([]byte, 4096)
	n := 0
	for n < len(buf) {
		m, err := r.Read(buf[n:])
		n += m
		if err != nil {
			break
		}
	}
	return string(buf[:n])
}
