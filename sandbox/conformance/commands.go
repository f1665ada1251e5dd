package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// running counts the processes of a machine whose command line holds mark.
func (m *machine) running(mark string) int {
	m.t.Helper()
	// The pattern must not match the shell that looks.
	out := m.must(fmt.Sprintf("ps ax -o args | grep -c '[%c]%s' || true", mark[0], mark[1:]))
	var n int
	fmt.Sscan(out, &n)
	return n
}

var commands = []Check{
	{Name: "an exit code or a signal is always told, and never both", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		for _, code := range []int{0, 1, 7, 255} {
			r := m.sh(fmt.Sprintf("exit %d", code))
			if r.Code != code || r.Signal != "" || r.StartError != "" || r.TimedOut {
				t.Errorf("exit %d: %+v", code, r.Exit)
			}
		}
		for _, signal := range []string{"KILL", "TERM", "SEGV"} {
			if r := m.sh("kill -" + signal + " $$"); r.Code != -1 || r.Signal != "SIG"+signal {
				t.Errorf("kill -%s: %+v", signal, r.Exit)
			}
		}
	}},
	{Name: "a command that cannot start says why", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("echo x > /tmp/plain; mkdir /tmp/closed; chmod 0 /tmp/closed")
		for _, c := range []struct {
			e    guest.Exec
			code int
			says string
		}{
			{guest.Exec{Argv: []string{"no-such-program"}}, 127, "executable not found: no-such-program"},
			{guest.Exec{Argv: []string{"/tmp/plain"}}, 126, "permission denied"},
			{guest.Exec{Argv: []string{"true"}, Dir: "/no/such/dir"}, 126, "working directory /no/such/dir"},
			{guest.Exec{Argv: []string{"true"}, Dir: "/tmp/closed"}, 126, "permission denied"},
		} {
			r := m.exec(c.e)
			if r.Code != c.code || !strings.Contains(r.StartError, c.says) {
				t.Errorf("%v: %+v, want %d and %q", c.e.Argv, r.Exit, c.code, c.says)
			}
		}
	}},
	{Name: "joined output keeps the order of its writing", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		r := m.exec(guest.Exec{Argv: []string{"sh", "-c", "for i in $(seq 500); do echo out $i; echo err $i >&2; done; exit 3"}, Joined: true})
		var want strings.Builder
		for i := range 500 {
			fmt.Fprintf(&want, "out %d\nerr %d\n", i+1, i+1)
		}
		if r.Code != 3 || r.out != want.String() || r.err != "" {
			t.Errorf("%+v, in order: %v, %d bytes on standard error", r.Exit, r.out == want.String(), len(r.err))
		}
	}},
	{Name: "a command gets the environment it was given and nothing of the host's", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		r := m.exec(guest.Exec{Argv: []string{"env"}, Env: map[string]string{"GREETING": "a b\nc", "LANG": "de_DE"}})
		env := make(map[string]string)
		for _, kv := range strings.Split(strings.TrimSpace(strings.ReplaceAll(r.out, "b\nc", "b|c")), "\n") {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		for k, want := range map[string]string{"GREETING": "a b|c", "LANG": "de_DE", "HOME": guest.Home, "USER": "sprite", "PATH": guest.SearchPath} {
			equal(t, k, env[k], want)
			delete(env, k)
		}
		delete(env, "LOGNAME")
		delete(env, "MANAGOAT_COMMAND")
		delete(env, "PWD")
		delete(env, "_")
		delete(env, "SHLVL")
		if len(env) > 0 {
			t.Errorf("the environment holds more: %v", env)
		}
		equal(t, "directory", m.must("pwd"), guest.Home+"\n")
	}},
	{Name: "standard input is empty unless asked for, and then takes what is written", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if r := m.sh("read x; echo \"$? $x\"; cat"); r.out != "1 \n" {
			t.Errorf("a script that reads got %q", r.out)
		}
		id := m.begin(guest.Exec{Argv: []string{"cat"}, Stdin: true, Spool: guest.SpoolProtocol})
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // more than any pipe takes
		sent := make(chan error, 1)
		go func() {
			err := m.Stdin(t.Context(), id, big)
			if err == nil {
				err = m.CloseStdin(t.Context(), id)
			}
			sent <- err
		}()
		var got bytes.Buffer
		exit, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			got.Write(c.Data)
			return nil
		})
		if err != nil || exit.Code != 0 || !bytes.Equal(got.Bytes(), big) {
			t.Errorf("cat gave back %d of %d bytes, %+v, %v", got.Len(), len(big), exit, err)
		}
		if err := <-sent; err != nil {
			t.Errorf("stdin: %v", err)
		}
		if err := m.Stdin(t.Context(), id, []byte("x")); err == nil {
			t.Errorf("input for a command that has ended was taken")
		}
	}},
	{Name: "a deadline kills the whole tree, wherever it hid", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		began := time.Now()
		r := m.exec(guest.Exec{Timeout: 500 * time.Millisecond, Argv: []string{"sh", "-c",
			"setsid sh -c 'setsid sleep 8881 & sleep 8882' & (trap '' TERM HUP; sleep 8883) & sleep 8884"}})
		if !r.TimedOut || r.Signal != "SIGKILL" || r.Code != -1 {
			t.Errorf("exit: %+v", r.Exit)
		}
		if d := time.Since(began); d > 20*time.Second {
			t.Errorf("the deadline took %s", d)
		}
		equal(t, "processes left", m.running("sleep 888"), 0)
	}},
	{Name: "killing an adapter leaves none of its children, not even one that forgot where it came from", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		script := "(setsid sleep 7771 &); setsid sh -c 'sleep 7772' & sleep 7773"
		if m.caps.Root {
			// Where all are one user, a command that also clears its environment is nobody's child.
			script = "(env -i setsid sleep 7771 &); setsid sh -c 'sleep 7772' & sleep 7773"
		}
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", script}, Spool: guest.SpoolProtocol})
		eventually(t, "children", func() bool { return m.running("sleep 777") >= 3 })
		other := m.begin(guest.Exec{Argv: []string{"sleep", "6661"}})
		if err := m.Signal(t.Context(), id, "SIGKILL"); err != nil {
			t.Fatalf("signal: %v", err)
		}
		equal(t, "processes left", m.running("sleep 777"), 0)
		exit, err := m.Follow(t.Context(), id, guest.Offsets{}, func(guest.Chunk) error { return nil })
		if err != nil || exit.Signal != "SIGKILL" {
			t.Errorf("exit: %+v %v", exit, err)
		}
		equal(t, "the neighbour's processes", m.running("sleep 6661"), 1)
		if err := m.Signal(t.Context(), other, "SIGTERM"); err != nil {
			t.Errorf("signal: %v", err)
		}
		if exit, err := m.Follow(t.Context(), other, guest.Offsets{}, func(guest.Chunk) error { return nil }); err != nil || exit.Signal != "SIGTERM" {
			t.Errorf("SIGTERM: %+v %v", exit, err)
		}
	}},
	{Name: "a daemon holds neither the step nor its output, and lives on", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		r := m.sh("(trap '' HUP; while :; do echo still here; sleep 0.05; done) & echo done")
		if r.Code != 0 || !strings.Contains(r.out, "done\n") {
			t.Errorf("%+v %q", r.Exit, r.out)
		}
		if r.Duration > 5*time.Second {
			t.Errorf("the step took %s", r.Duration)
		}
		m.must("nohup sleep 5551 > /dev/null 2>&1 & exit 0")
		equal(t, "the daemon", m.running("sleep 5551"), 1)
		// Its writes go nowhere, but they do not end it.
		if m.running("echo still here") == 0 {
			t.Errorf("the writer has ended")
		}
	}},
	{Name: "an end of the caller's patience ends the command", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, _, _, err := m.Run(ctx, guest.Exec{ID: ids(), Argv: []string{"sh", "-c", "sleep 4441 & sleep 4442"}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("run: %v", err)
		}
		eventually(t, "end of the command", func() bool { return m.running("sleep 444") == 0 })
	}},
	{Name: "a start that its caller gives up either runs, and is the caller's to end, or never began", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		for i := range 20 { // from before it is asked for to after its answer
			ctx, cancel := context.WithCancel(t.Context())
			stop := time.AfterFunc(time.Duration(i)*500*time.Microsecond, cancel)
			id := ids()
			err := m.Start(ctx, guest.Exec{ID: id, Argv: []string{"sleep", "4443"}})
			stop.Stop()
			cancel()
			if err == nil {
				if err := m.Signal(t.Context(), id, "SIGKILL"); err != nil {
					t.Errorf("end what was started: %v", err)
				}
			}
		}
		eventually(t, "the end of all that was started", func() bool { return m.running("sleep 4443") == 0 })
	}},
	{Name: "commands outlive the connection that started them", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "echo before; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo after; exit 5"}, Spool: guest.SpoolProtocol})
		var at int64
		stop := errors.New("stop")
		_, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			at = c.Offset + int64(len(c.Data))
			return stop
		})
		if !errors.Is(err, stop) {
			t.Fatalf("follow: %v", err)
		}
		m.Close()
		<-m.Done()
		if _, err := m.Status(t.Context(), id); !errors.Is(err, guest.ErrGone) {
			t.Errorf("a call on a closed connection: %v, want ErrGone", err)
		}
		again := wake(t, p, m.id)
		if s, err := again.Status(t.Context(), id); err != nil || s.Exit != nil {
			t.Errorf("status: %+v %v", s, err)
		}
		again.must("touch /tmp/go")
		var rest strings.Builder
		exit, err := again.Follow(t.Context(), id, guest.Offsets{Stdout: at}, func(c guest.Chunk) error {
			rest.Write(c.Data)
			return nil
		})
		if err != nil || exit.Code != 5 || rest.String() != "after\n" {
			t.Errorf("after reconnecting: %q %+v %v", rest.String(), exit, err)
		}
	}},
	{Name: "an id is used once until it is forgotten", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		id := m.begin(guest.Exec{Argv: []string{"sleep", "9998"}})
		err := m.Start(t.Context(), guest.Exec{ID: id, Argv: []string{"true"}})
		var r *guest.Refused
		if !errors.As(err, &r) || r.Code != "command_exists" {
			t.Errorf("second start: %v", err)
		}
		if err := m.Forget(t.Context(), id); err == nil {
			t.Errorf("a running command was forgotten")
		}
		if err := m.Signal(t.Context(), id, "SIGKILL"); err != nil {
			t.Errorf("signal: %v", err)
		}
		eventually(t, "exit", func() bool {
			s, err := m.Status(t.Context(), id)
			return err == nil && s.Exit != nil
		})
		for range 2 {
			if err := m.Forget(t.Context(), id); err != nil {
				t.Errorf("forget: %v", err)
			}
		}
		_, err = m.Status(t.Context(), id)
		refused(t, "status of a forgotten command", err, guest.ErrNotFound)
	}},
	{Name: "thousands of quick commands lose no exit code and no output", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		const workers = 8
		each := 250
		if !m.caps.UIDRange {
			each = 50 // the guest is the same one, and these take their time
		}
		var wg sync.WaitGroup
		failures := make(chan string, workers*each)
		for w := range workers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range each {
					out, _, exit, err := m.Run(t.Context(), guest.Exec{ID: fmt.Sprintf("quick-%d-%d", w, i), Argv: []string{"sh", "-c", "echo X; exit 3"}})
					if err != nil || exit.Code != 3 || string(out) != "X\n" {
						failures <- fmt.Sprintf("%d/%d: %q %+v %v", w, i, out, exit, err)
					}
				}
			}()
		}
		wg.Wait()
		close(failures)
		for f := range failures {
			t.Errorf("%s", f)
		}
	}},
	{Name: "a terminal is there when asked for and only then", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		script := "test -t 0 && test -t 1 && test -t 2 && ps -o tty= -p $$ | grep -q pts && stty size >/dev/null && echo terminal"
		if r := m.exec(guest.Exec{Argv: []string{"sh", "-c", script}, TTY: true}); strings.TrimSpace(r.out) != "terminal" || r.Code != 0 {
			t.Errorf("with a terminal: %q %q %+v", r.out, r.err, r.Exit)
		}
		if r := m.sh(script); r.Code == 0 {
			t.Errorf("without: %q", r.out)
		}
		id := m.begin(guest.Exec{Argv: []string{"sh", "-c", "read x; echo got $x"}, TTY: true, Stdin: true})
		if err := m.Stdin(t.Context(), id, []byte("hello\n")); err != nil {
			t.Fatalf("stdin: %v", err)
		}
		var out strings.Builder
		exit, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error { out.Write(c.Data); return nil })
		if err != nil || exit.Code != 0 || !strings.Contains(out.String(), "got hello") {
			t.Errorf("reading from a terminal: %q %+v %v", out.String(), exit, err)
		}
	}},
}
