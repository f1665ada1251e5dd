package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
)

// hierarchy is how this host's cgroups are mounted: version 2 alone, version 1, or both (version 2 then
// without the controllers, good for freezing and killing only).
type hierarchy struct {
	v2   string            // where a version 2 tree is mounted, or ""
	pure bool              // version 2 has the controllers
	v1   map[string]string // controller → where it is mounted
}

const (
	cgroupRoot   = "/sys/fs/cgroup"
	cgroupParent = "managoat"
	cpuPeriod    = 100_000 // microseconds
)

// findHierarchy looks at what is mounted and makes our parent group in it.
func findHierarchy() *hierarchy {
	h := &hierarchy{v1: make(map[string]string)}
	if exists(filepath.Join(cgroupRoot, "cgroup.controllers")) {
		h.v2, h.pure = cgroupRoot, true
	} else {
		if u := filepath.Join(cgroupRoot, "unified"); exists(filepath.Join(u, "cgroup.controllers")) {
			h.v2 = u
		}
		for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "freezer"} {
			if d := filepath.Join(cgroupRoot, c); exists(filepath.Join(d, "cgroup.procs")) {
				h.v1[c] = d
			}
		}
	}
	return h
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// prepare makes the parent group and says which limits can be set.
func (h *hierarchy) prepare() (memory, cpu, pids bool, problem string) {
	if h.pure {
		parent := filepath.Join(h.v2, cgroupParent)
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return false, false, false, reasonOf(err)
		}
		for _, d := range []string{h.v2, parent} {
			for _, c := range []string{"memory", "cpu", "pids"} {
				if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil && problem == "" {
					problem = reasonOf(err)
				}
			}
		}
		raw, _ := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control"))
		has := make(map[string]bool)
		for _, c := range strings.Fields(string(raw)) {
			has[c] = true
		}
		return has["memory"], has["cpu"], has["pids"], problem
	}
	can := func(controller string) bool {
		d, ok := h.v1[controller]
		if !ok {
			return false
		}
		err := os.MkdirAll(filepath.Join(d, cgroupParent), 0o755)
		if err == nil {
			err = unix.Access(filepath.Join(d, cgroupParent), unix.W_OK)
		}
		if err != nil {
			problem = reasonOf(err)
		}
		return err == nil
	}
	if h.v2 != "" && os.MkdirAll(filepath.Join(h.v2, cgroupParent), 0o755) != nil {
		h.v2 = ""
	}
	memory, cpu, pids = can("memory"), can("cpu"), can("pids")
	for _, c := range []string{"cpuacct", "freezer"} {
		can(c)
	}
	return memory, cpu, pids, problem
}

func reasonOf(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// group is the cgroups of one run of a machine.
type group struct {
	h    *hierarchy
	name string
}

func (h *hierarchy) group(name string) group { return group{h, name} }

// dir is where a controller's files are; "" asks for version 2's own.
func (g group) dir(controller string) string {
	if g.h.pure || controller == "" {
		if g.h.v2 == "" {
			return ""
		}
		return filepath.Join(g.h.v2, cgroupParent, g.name)
	}
	if d, ok := g.h.v1[controller]; ok {
		return filepath.Join(d, cgroupParent, g.name)
	}
	return ""
}

func (g group) dirs() []string {
	var ds []string
	if d := g.dir(""); d != "" {
		ds = append(ds, d)
	}
	for c := range g.h.v1 {
		ds = append(ds, g.dir(c))
	}
	return ds
}

// create makes the groups and sets the limits. What cannot be made here was said by Capabilities.
func (g group) create(l sandbox.Limits) error {
	for _, d := range g.dirs() {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	memory := strconv.FormatInt(l.MemoryBytes, 10)
	quota := strconv.FormatInt(int64(math.Ceil(l.CPUs*cpuPeriod)), 10)
	settings := []struct{ controller, file, value string }{
		{"memory", "memory.limit_in_bytes", memory},
		{"memory", "memory.memsw.limit_in_bytes", memory}, // there only with swap accounting
		{"pids", "pids.max", strconv.FormatInt(l.Pids, 10)},
		{"cpu", "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)},
		{"cpu", "cpu.cfs_quota_us", quota},
	}
	if g.h.pure {
		settings = []struct{ controller, file, value string }{
			{"memory", "memory.max", memory},
			{"memory", "memory.swap.max", "0"},
			{"pids", "pids.max", strconv.FormatInt(l.Pids, 10)},
			{"cpu", "cpu.max", quota + " " + strconv.Itoa(cpuPeriod)},
		}
	}
	for _, s := range settings {
		d := g.dir(s.controller)
		if d == "" || !exists(filepath.Join(d, s.file)) {
			continue
		}
		if err := os.WriteFile(filepath.Join(d, s.file), []byte(s.value), 0); err != nil {
			return fmt.Errorf("set %s: %w", s.file, err)
		}
	}
	return nil
}

// add moves a process, and all it will start, into the groups.
func (g group) add(pid int) error {
	for _, d := range g.dirs() {
		if !exists(d) {
			continue
		}
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// remove removes the groups once they are empty, waiting until the kernel has let go of the dead.
func (g group) remove(deadline time.Time) error {
	for _, d := range g.dirs() {
		for {
			err := unix.Rmdir(d)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup: %w", err)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// killsAtOnce tells whether kill reaches every process of a group that exists (kernel 5.14, version 2 mounted).
func (g group) killsAtOnce() bool {
	d := g.dir("")
	return d != "" && exists(filepath.Join(d, "cgroup.kill"))
}

// kill ends every process in the groups at once, where the kernel can.
func (g group) kill() {
	if d := g.dir(""); d != "" {
		os.WriteFile(filepath.Join(d, "cgroup.kill"), []byte("1"), 0)
	}
}

// freeze stops or resumes every process.
func (g group) freeze(on bool) error {
	if d := g.dir(""); d != "" {
		if f := filepath.Join(d, "cgroup.freeze"); exists(f) {
			return os.WriteFile(f, []byte(map[bool]string{true: "1", false: "0"}[on]), 0)
		}
	}
	if d := g.dir("freezer"); d != "" && exists(d) {
		return os.WriteFile(filepath.Join(d, "freezer.state"), []byte(map[bool]string{true: "FROZEN", false: "THAWED"}[on]), 0)
	}
	return errors.New("this host has no cgroup that can freeze")
}

// frozen tells whether freeze stopped the processes.
func (g group) frozen() bool {
	if d := g.dir(""); d != "" && exists(filepath.Join(d, "cgroup.freeze")) {
		return number(d, "cgroup.freeze") == 1
	}
	raw, err := os.ReadFile(filepath.Join(g.dir("freezer"), "freezer.state"))
	return err == nil && g.dir("freezer") != "" && !bytes.HasPrefix(raw, []byte("THAWED"))
}

// oomFile counts the kernel's kills for memory.
func (g group) oomFile() string {
	d := g.dir("memory")
	switch {
	case d == "":
		return ""
	case g.h.pure:
		return filepath.Join(d, "memory.events")
	}
	return filepath.Join(d, "memory.oom_control")
}

// stats reads what the groups count.
func (g group) stats(s *sandbox.Stats) {
	memory, cpu, pids := g.dir("memory"), g.dir("cpuacct"), g.dir("pids")
	if g.h.pure {
		s.MemoryBytes = number(memory, "memory.current") - field(memory, "memory.stat", "inactive_file")
		s.CPUTime = time.Duration(field(cpu, "cpu.stat", "usage_usec")) * time.Microsecond
	} else {
		s.MemoryBytes = number(memory, "memory.usage_in_bytes") - field(memory, "memory.stat", "total_inactive_file")
		s.CPUTime = time.Duration(number(cpu, "cpuacct.usage"))
	}
	s.MemoryBytes = max(s.MemoryBytes, 0)
	s.Pids = number(pids, "pids.current")
	if f := g.oomFile(); f != "" {
		s.OOMKills = field(filepath.Dir(f), filepath.Base(f), "oom_kill")
	}
}

// number reads a file that holds one number; 0 when there is none.
func number(dir, file string) int64 {
	if dir == "" {
		return 0
	}
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 64)
	return n
}

// field reads the number after a key of a file of "key number" lines.
func field(dir, file, key string) int64 {
	if dir == "" {
		return 0
	}
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if v, ok := strings.CutPrefix(line, key+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}
