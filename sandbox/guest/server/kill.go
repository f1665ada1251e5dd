package server

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tree is every process that descends from one command, however it detached itself. Where commands have a
// user namespace of their own, that is exact: no process can leave it. It is as exact for the sandbox's user where commands
// have a group of their own, which only machine root can leave. Besides that it is the command's session and process group,
// whoever carries its mark in the environment, and all their descendants.
type tree struct {
	spaces []*os.File // the command's user namespace, and those of what it ran through sudo
	groups []int      // likewise
	leader int
	mark   string // NAME=value in the environment
}

func (t *tree) add(c child) {
	if c.space != nil {
		t.spaces = append(t.spaces, c.space)
	}
	if c.group != 0 {
		t.groups = append(t.groups, c.group)
	}
}

// Times of killing.
const (
	killPeriod  = 10 * time.Second     // after it a tree with processes left is reported
	killPause   = 2 * time.Millisecond // between looks at what is left
	stopPasses  = 20                   // of stopping a tree that forks faster than it is read
	maxEnvBytes = 1 << 20              // read of one process's environment
)

// members lists the processes alive now.
func (t tree) members() ([]int, error) {
	procs, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	names, err := procs.Readdirnames(-1)
	procs.Close()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	if len(t.spaces) > 0 {
		return t.inSpaces(pids), nil
	}
	return t.descend(pids), nil
}

func (t tree) inSpaces(pids []int) []int {
	var in []int
	for _, pid := range pids {
		if t.owns(pid) {
			in = append(in, pid)
		}
	}
	return in
}

// owns tells whether a process lives in one of the tree's namespaces.
func (t tree) owns(pid int) bool {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/ns/user", pid), &st) != nil {
		return false
	}
	for _, space := range t.spaces {
		var own unix.Stat_t
		if unix.Fstat(int(space.Fd()), &own) == nil && own.Ino == st.Ino && own.Dev == st.Dev {
			return true
		}
	}
	return false
}

func (t tree) descend(pids []int) []int {
	type proc struct{ parent, group, session int }
	all := make(map[int]proc, len(pids))
	in := make(map[int]bool)
	for _, pid := range pids {
		// pid (comm) state ppid pgrp session …; comm may hold anything, so count from its last ')'.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 4 || f[0] == "Z" {
			continue
		}
		var p proc
		p.parent, _ = strconv.Atoi(f[1])
		p.group, _ = strconv.Atoi(f[2])
		p.session, _ = strconv.Atoi(f[3])
		all[pid] = p
		in[pid] = pid == t.leader || p.group == t.leader || p.session == t.leader || t.grouped(pid) || t.marked(pid)
	}
	var members []int
	for pid := range all {
		seen := 0
		for up := pid; up > 1 && seen <= len(all); up, seen = all[up].parent, seen+1 {
			if in[up] {
				members = append(members, pid)
				break
			}
		}
	}
	return members
}

// grouped tells whether a process is in one of the tree's groups.
func (t tree) grouped(pid int) bool {
	if len(t.groups) == 0 {
		return false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, line, _ := strings.Cut(string(status), "\nGroups:")
	line, _, _ = strings.Cut(line, "\n")
	for _, f := range strings.Fields(line) {
		if g, err := strconv.Atoi(f); err == nil && slices.Contains(t.groups, g) {
			return true
		}
	}
	return false
}

func (t tree) marked(pid int) bool {
	if t.mark == "" {
		return false
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	buf := make([]byte, maxEnvBytes)
	n, _ := f.Read(buf)
	for _, kv := range bytes.Split(buf[:n], []byte{0}) {
		if string(kv) == t.mark {
			return true
		}
	}
	return false
}

// signal sends sig once to every member.
func (t tree) signal(sig syscall.Signal) error {
	pids, err := t.members()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		t.send(pid, sig)
	}
	return nil
}

// send signals a process through a descriptor, so that a pid that was reused meanwhile is not hit.
func (t tree) send(pid int, sig syscall.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) { // gVisor: the number has to do
		unix.Kill(pid, unix.Signal(sig))
		return
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if len(t.spaces) > 0 && !t.owns(pid) {
		return
	}
	unix.PidfdSendSignal(fd, unix.Signal(sig), nil, 0)
}

// kill ends the whole tree: first everything is stopped, so that nothing forks away, then killed.
func (t tree) kill() error {
	stopped := make(map[int]bool)
	for range stopPasses {
		pids, err := t.members()
		if err != nil {
			return err
		}
		fresh := false
		for _, pid := range pids {
			if !stopped[pid] {
				stopped[pid], fresh = true, true
				t.send(pid, syscall.SIGSTOP)
			}
		}
		if !fresh {
			break
		}
	}
	for deadline := time.Now().Add(killPeriod); ; time.Sleep(killPause) {
		pids, err := t.members()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			t.send(pid, syscall.SIGKILL)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes are still there %s after they were killed", len(pids), killPeriod)
		}
	}
}
