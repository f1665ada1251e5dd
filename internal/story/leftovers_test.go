package story

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"managoat/sandbox/sandboxtest"
)

// leftovers looks for anything that still runs, is mounted or lies around of a server that was put down.
func (s *Server) leftovers() error {
	var found []string
	processes(func(pid string, read func(string) []byte) {
		if len(read("cmdline")) == 0 {
			return // it is on its way out: its memory is gone
		}
		for _, file := range []string{"cmdline", "environ", "mountinfo"} {
			if bytes.Contains(read(file), []byte(s.dir)) {
				found = append(found, fmt.Sprintf("process %s (%s) has the data directory in its %s", pid, bytes.TrimSpace(read("comm")), file))
				return
			}
		}
		for _, link := range []string{"cwd", "root", "exe"} {
			if at, _ := os.Readlink(filepath.Join("/proc", pid, link)); strings.HasPrefix(at, s.dir) {
				found = append(found, fmt.Sprintf("process %s (%s) has its %s at %s", pid, bytes.TrimSpace(read("comm")), link, at))
				return
			}
		}
	})
	runs, _ := filepath.Glob(filepath.Join(s.dir, "machines", "machines", "*"))
	for _, dir := range runs { // parked machines: their groups are gone
		found = append(found, groups(filepath.Base(dir))...)
	}
	for _, name := range []string{"egress/*.sock", "*.sock", "pg/.s.*", "pg/data/postmaster.pid", "machines/making/*", "machines/trash/*"} {
		left, _ := filepath.Glob(filepath.Join(s.dir, name))
		found = append(found, left...)
	}
	if len(found) > 0 {
		return fmt.Errorf("left of the server on %s:\n  %s", s.dir, strings.Join(found, "\n  "))
	}
	return nil
}

// processes shows every process of this host but this one.
func processes(see func(pid string, read func(file string) []byte)) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	self := fmt.Sprint(os.Getpid())
	for _, dir := range all {
		if pid := filepath.Base(dir); pid != self {
			see(pid, func(file string) []byte {
				b, _ := os.ReadFile(filepath.Join(dir, file)) // gone meanwhile
				return b
			})
		}
	}
}

// machine is the name of a machine to its provider, and of what it has on the host.
func machine(sandboxID string) string { return "mg-" + sandboxID }

// contained tells whether the machines are containers of an engine of the tests.
func contained() bool { return len(common.provider) > 0 }

// place is where the machines of a server's host are.
func (s *Server) place() string {
	if contained() {
		engine, err := sandboxtest.Place()
		if err != nil {
			panic(err) // it was open already
		}
		return engine
	}
	return filepath.Join(s.dir, "machines")
}

// kept tells whether a machine's disk is there.
func (s *Server) kept(tb testing.TB, machine string) bool {
	tb.Helper()
	return slices.Contains(s.machines(tb), machine)
}

// groups are the control groups of a machine.
func groups(machine string) []string {
	var found []string
	name := sandboxtest.Group(context.Background(), machine)
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // gone meanwhile
		case !d.IsDir():
			return nil
		case strings.HasPrefix(d.Name(), name):
			found = append(found, path)
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// running are the processes of a machine, as host pids. One that has ended and waits for its parent's look is none.
func running(machine string) []string {
	var pids []string
	name := sandboxtest.Group(context.Background(), machine)
	processes(func(pid string, read func(string) []byte) {
		if bytes.Contains(read("cgroup"), []byte("/"+name)) && len(read("cmdline")) > 0 {
			pids = append(pids, pid)
		}
	})
	return pids
}

// firstProcess is the host pid of a running machine's guest.
func (s *Server) firstProcess(machine string) (int, error) {
	return sandboxtest.FirstProcess(context.Background(), s.place(), machine)
}
