package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/shim"
	"managoat/sandbox/guest/sudo"
)

// maxSudo is how many commands of one setup step may run through sudo at once.
const maxSudo = 64

// sudoFor makes the descriptor that lets a command's processes ask for machine root, and serves it until the
// command has ended: a daemon it leaves behind keeps a descriptor that nobody answers.
func (s *Server) sudoFor(c *command) (theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("sudo: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "sudo")
	theirs = os.NewFile(uintptr(fds[1]), "sudo")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("sudo: %w", err)
	}
	c.sudo = conn
	go func() {
		defer conn.Close()
		slots := make(chan struct{}, maxSudo)
		for {
			fds, err := receive(conn.(*net.UnixConn))
			if err != nil {
				return
			}
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				s.serveSudo(c, fds)
			}()
		}
	}()
	return theirs, nil
}

// receive takes one request's descriptors. A message without them is skipped.
func receive(conn *net.UnixConn) ([]int, error) {
	body := make([]byte, 1)
	control := make([]byte, unix.CmsgSpace(4*sudo.FDCount))
	for {
		n, cn, flags, _, err := conn.ReadMsgUnix(body, control)
		if err != nil {
			return nil, err
		}
		if n == 0 && cn == 0 {
			return nil, io.EOF
		}
		var all []int
		messages, err := unix.ParseSocketControlMessage(control[:cn])
		if err == nil {
			for _, m := range messages {
				fds, err := unix.ParseUnixRights(&m)
				if err != nil {
					continue
				}
				all = append(all, fds...)
			}
		}
		if len(all) == sudo.FDCount && flags&unix.MSG_CTRUNC == 0 {
			return all, nil
		}
		closeAll(all)
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// serveSudo runs one command for a setup. It is part of the tree of the command that asked.
func (s *Server) serveSudo(c *command, fds []int) {
	// Standard input, output and error stay plain numbers: an os.File would change the caller's own modes.
	defer closeAll(fds[sudo.FDStdin:sudo.FDRequest])
	request := os.NewFile(uintptr(fds[sudo.FDRequest]), "request")
	defer request.Close()
	file := os.NewFile(uintptr(fds[sudo.FDReply]), "reply")
	reply, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return
	}
	defer reply.Close()
	answer := func(r sudo.Reply) { json.NewEncoder(reply).Encode(r) }
	r, err := readSudo(request)
	if err != nil {
		answer(sudo.Reply{Code: 1, Error: err.Error()})
		return
	}
	child, failure, err := s.processes.start(launch{
		argv: r.Argv, env: sudoEnvironment(r.Env, c.id),
		files: [3]int(fds[sudo.FDStdin : sudo.FDStderr+1]),
		cwd:   fds[sudo.FDCwd],
		Order: shim.Order{User: r.User, Dir: r.Dir, Cwd: r.Dir == "", Nested: s.cfg.Nested, Group: s.processes.group(s.cfg)},
	})
	if err != nil {
		answer(sudo.Reply{Code: 1, Error: "it could not be started"})
		s.log.Printf("command %s: sudo: %v", c.id, err)
		return
	}
	c.add(child)
	own := tree{leader: child.pid}
	own.add(child)
	gone := make(chan struct{})
	go func() { // ends with reply, which is closed when the command has ended
		defer close(gone)
		passSignals(reply, own)
	}()
	var end ended
	select {
	case end = <-child.done:
	case <-gone: // whoever asked was killed
		if err := own.kill(); err != nil {
			s.log.Printf("command %s: sudo: %v", c.id, err)
		}
		end = <-child.done
	}
	result := sudo.Reply{Code: end.status.ExitStatus(), Error: failure}
	if end.status.Signaled() {
		result = sudo.Reply{Code: 1, Signal: int(end.status.Signal())}
	}
	answer(result)
}

// readSudo reads a request out of the memory file it came in.
func readSudo(f *os.File) (sudo.Request, error) {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > sudo.MaxRequest {
		return sudo.Request{}, errors.New("the request cannot be read")
	}
	raw, err := io.ReadAll(io.NewSectionReader(f, 0, sudo.MaxRequest))
	if err != nil {
		return sudo.Request{}, errors.New("the request cannot be read")
	}
	var r sudo.Request
	if err := json.Unmarshal(raw, &r); err != nil || len(r.Argv) == 0 || (r.User != "root" && r.User != "sprite") {
		return sudo.Request{}, errors.New("the request cannot be understood")
	}
	return r, nil
}

func sudoEnvironment(env []string, id string) []string {
	kept := []string{markName + "=" + id}
	for _, kv := range env {
		if !strings.HasPrefix(kv, markName+"=") {
			kept = append(kept, kv)
		}
	}
	return kept
}

// passSignals passes on what the sudo program got, until it is gone.
func passSignals(r io.Reader, t tree) {
	var b [1]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return
		}
		switch sig := syscall.Signal(b[0]); sig {
		case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2:
			t.signal(sig)
		}
	}
}
