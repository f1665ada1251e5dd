package server

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"managoat/sandbox/guest/shim"
	"managoat/sandbox/userns"
)

// processes starts and reaps. As pid 1 the guest inherits every orphan of the machine, so one loop waits for
// all children and hands on the status of those that somebody here started.
type processes struct {
	mu      sync.Mutex // held over a fork, so that no child is reaped before it is known
	waiting map[int]chan<- ended
	groups  atomic.Int64 // given out
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

// commandIDs are the ids of a command's namespace: the guest's own is left out.
var commandIDs = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: shim.GuestUID}}

// child is a process that runs.
type child struct {
	pid  int
	done <-chan ended
	// space identifies the user namespace that all descendants of this child share and none can leave; nil
	// where commands have none of their own.
	space *os.File
	group int // see Order.Group
}

// Groups for commands lie above every number that an image gives to a group: as many as there can be, or the upper half of what
// an engine leaves its containers (userns-remap), but for the last few.
const (
	firstGroup = 1 << 20
	manyGroups = 1 << 30
)

// group is a new command's own, where it has no namespace by which its processes are known.
func (p *processes) group(c Config) int {
	if !c.Root || c.Nested {
		return 0
	}
	first, many := firstGroup, manyGroups
	if end := mappedGroups(); end < first+many {
		first, many = end/2, end/2-ownGroups
	}
	return first + int(p.groups.Add(1)-1)%many
}

// ownGroups are the last numbers of what an engine leaves its containers: nogroup is one of them.
const ownGroups = 16

// mappedGroups is the end of the groups' numbers that exist here.
var mappedGroups = sync.OnceValue(func() (end int) {
	raw, _ := os.ReadFile("/proc/self/gid_map")
	for line := range strings.Lines(string(raw)) {
		var inside, outside, many int
		if n, _ := fmt.Sscan(line, &inside, &outside, &many); n == 3 {
			end = max(end, inside+many)
		}
	}
	return end
})

// start forks the shim, which becomes the command. failure is why the command could not be started; the shim
// then ended with the status that says so.
func (p *processes) start(l launch) (c child, failure string, err error) {
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
	argv := append([]string{shim.Name, string(order)}, l.argv...)
	done := make(chan ended, 1)

	const self = "/proc/self/exe"
	var pid int
	p.mu.Lock()
	if l.Nested {
		// Until the shim takes an identity it is dumpable and has the guest's, from which no process of the machine could
		// make use of that.
		pid, err = userns.Start(self, argv, attr, commandIDs)
	} else {
		pid, err = syscall.ForkExec(self, argv, attr)
	}
	if err == nil {
		p.waiting[pid] = done
	}
	p.mu.Unlock()
	if err != nil {
		return child{}, "", fmt.Errorf("start: %w", err)
	}
	reportEnd.Close()
	c = child{pid: pid, done: done, group: l.Group}
	if l.Nested {
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
