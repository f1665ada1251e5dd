package conformance

import (
	"strings"
	"sync"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

var limits = []Check{
	{Name: "memory over the limit ends the command, says so, and leaves the machine alive", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p, func(s *sandbox.Spec) { s.Limits.MemoryBytes = 128 << 20 })
		if !m.caps.MemoryLimit {
			return
		}
		r := m.exec(guest.Exec{Argv: []string{"perl", "-e", `my $x = "x" x (400 << 20); print length $x`}})
		if r.Signal != "SIGKILL" || !r.OutOfMemory {
			t.Errorf("exit: %+v", r.Exit)
		}
		if r := m.sh("true"); r.Code != 0 || r.OutOfMemory {
			t.Errorf("the next command: %+v", r.Exit)
		}
		s, err := p.Stats(t.Context(), m.id)
		if err != nil || s.OOMKills < 1 || s.MemoryLimit != 128<<20 {
			t.Errorf("stats: %+v %v", s, err)
		}
		// A child that is killed while its parent lives counts too: that is how build tools die.
		if r := m.sh(`perl -e 'my $x = "x" x (400 << 20)'; exit 0`); r.Code != 0 || !r.OutOfMemory {
			t.Errorf("a killed child: %+v", r.Exit)
		}
	}},
	{Name: "a fork bomb stays within its limit, the guest answers, and a kill ends it", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p, func(s *sandbox.Spec) { s.Limits.Pids = 128 })
		if !m.caps.PidsLimit {
			return
		}
		id := m.begin(guest.Exec{Argv: []string{"perl", "-e", "while (1) { defined fork or select undef, undef, undef, 0.001 }"}})
		eventually(t, "limit", func() bool {
			s, err := p.Stats(t.Context(), m.id)
			return err == nil && s.Pids >= 100 && s.Pids <= 128
		})
		// Whatever the guest does meanwhile, it has the threads for it.
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, _, err := m.Stat(t.Context(), []string{"/home/sprite"}, "/home/sprite"); err != nil {
					t.Errorf("stat: %v", err)
				}
			})
		}
		all.Wait()
		if s, err := m.Status(t.Context(), id); err != nil || s.Exit != nil {
			t.Errorf("status: %+v %v", s, err)
		}
		if err := m.Signal(t.Context(), id, "SIGKILL"); err != nil {
			t.Errorf("kill: %v", err)
		}
		eventually(t, "end", func() bool {
			s, err := p.Stats(t.Context(), m.id)
			return err == nil && s.Pids < 40
		})
		m.must("true")
	}},
	{Name: "a machine that spins does not get more than its share", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p, func(s *sandbox.Spec) { s.Limits.CPUs = 0.25 })
		if !m.caps.CPULimit {
			return
		}
		r := m.exec(guest.Exec{Argv: []string{"bash", "-c", "x=0; while (( x < 2000000000 )); do (( x++ )); done"}, Timeout: 2 * time.Second})
		s, err := p.Stats(t.Context(), m.id)
		if err != nil || !r.TimedOut || s.CPUTime <= 0 || s.CPUTime > r.Duration/2 {
			t.Errorf("%s of CPU in %s: %v", s.CPUTime, r.Duration, err)
		}
	}},
	{Name: "a full disk freezes the machine and is named, and it can be freed", Run: func(t T, p sandbox.Provider) {
		const limit = 50 << 20
		m := start(t, p, func(s *sandbox.Spec) { s.Limits.DiskBytes = limit })
		if !m.caps.DiskLimit {
			return
		}
		m.begin(guest.Exec{Argv: []string{"sh", "-c", "head -c 150000000 /dev/zero > ~/big; sync ~/big; sleep 9995"}})
		eventually(t, "disk full", func() bool {
			s, err := p.Stats(t.Context(), m.id)
			return err == nil && s.DiskFull && s.DiskLimit == limit
		})
		if err := p.Stop(t.Context(), m.id); err != nil {
			t.Fatalf("stop of a full machine: %v", err)
		}
		again := wake(t, p, m.id)
		again.must("rm -f ~/big")
		eventually(t, "room", func() bool {
			s, err := p.Stats(t.Context(), m.id)
			return err == nil && !s.DiskFull && s.DiskBytes < limit
		})
		if got := again.must("echo works"); strings.TrimSpace(got) != "works" {
			t.Errorf("after making room: %q", got)
		}
	}},
}
