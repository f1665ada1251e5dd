package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

func asError[E error](err error, target *E) bool { return errors.As(err, target) }

func class(t T, what string, err error, want sandbox.Class) {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Class != want {
		t.Errorf("%s: got %v, want an error of class %s", what, err, want)
	}
}

var lifecycle = []Check{
	{Name: "a second create of the same name adopts and never makes two", Run: func(t T, p sandbox.Provider) {
		name := newName()
		labels := map[string]string{sandbox.LabelMachine: name}
		id := create(t, p, func(s *sandbox.Spec) { s.Name, s.Labels = name, labels })
		again, err := p.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "box", Labels: labels})
		if err != nil || !again.Adopted || again.ID != id {
			t.Errorf("second create: %+v %v, want %s adopted", again, err, id)
		}
		if again.Base.Name == "" || again.Base.Fingerprint == "" {
			t.Errorf("the base has no name or fingerprint: %+v", again.Base)
		}
		_, err = p.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "box", Labels: map[string]string{sandbox.LabelMachine: "other"}})
		class(t, "create with other labels", err, sandbox.Invalid)
		list, err := p.List(t.Context(), labels)
		if err != nil || len(list) != 1 {
			t.Errorf("list: %v %v, want one", list, err)
		}
	}},
	{Name: "names that could reach outside are refused", Run: func(t T, p sandbox.Provider) {
		for _, name := range []string{"", "..", "a/b", "A", "a b", strings.Repeat("a", 64)} {
			_, err := p.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "box"})
			class(t, fmt.Sprintf("create %q", name), err, sandbox.Invalid)
			if name != "" {
				_, err = p.Create(t.Context(), sandbox.Spec{Name: newName(), Hostname: name})
				class(t, fmt.Sprintf("host name %q", name), err, sandbox.Invalid)
			}
		}
	}},
	{Name: "what does not exist is not_found, and destroying it is success", Run: func(t T, p sandbox.Provider) {
		id := newName()
		_, err := p.Inspect(t.Context(), id)
		class(t, "inspect", err, sandbox.NotFound)
		class(t, "start", p.Start(t.Context(), id), sandbox.NotFound)
		class(t, "stop", p.Stop(t.Context(), id), sandbox.NotFound)
		_, err = p.Guest(t.Context(), id)
		class(t, "guest", err, sandbox.NotFound)
		_, err = p.Stats(t.Context(), id)
		class(t, "stats", err, sandbox.NotFound)
		if err := p.Destroy(t.Context(), id); err != nil {
			t.Errorf("destroy of what is gone: %v", err)
		}
		gone := create(t, p)
		for range 2 {
			if err := p.Destroy(t.Context(), gone); err != nil {
				t.Errorf("destroy: %v", err)
			}
		}
		_, err = p.Inspect(t.Context(), gone)
		class(t, "inspect after destroy", err, sandbox.NotFound)
	}},
	{Name: "state is what the provider sees, start and stop are idempotent", Run: func(t T, p sandbox.Provider) {
		id := create(t, p)
		state := func(want sandbox.State) {
			t.Helper()
			info, err := p.Inspect(t.Context(), id)
			if err != nil || info.State != want || info.ID != id || info.CreatedAt.IsZero() || info.StaleBase {
				t.Errorf("inspect: %+v %v, want %s", info, err, want)
			}
		}
		state(sandbox.Stopped)
		_, err := p.Guest(t.Context(), id)
		class(t, "guest of a stopped machine", err, sandbox.Unavailable)
		if err := p.Stop(t.Context(), id); err != nil {
			t.Errorf("stop of a stopped machine: %v", err)
		}
		boot := wake(t, p, id).Hello().BootID
		state(sandbox.Running)
		if again := wake(t, p, id).Hello().BootID; again != boot {
			t.Errorf("a second start began the machine anew")
		}
		for range 2 {
			if err := p.Stop(t.Context(), id); err != nil {
				t.Errorf("stop: %v", err)
			}
		}
		state(sandbox.Stopped)
		if again := wake(t, p, id).Hello().BootID; again == boot {
			t.Errorf("the guest of a new start says it is the old one")
		}
	}},
	{Name: "two starts at once make one machine", Run: func(t T, p sandbox.Provider) {
		id := create(t, p)
		errs := make(chan error)
		for range 4 {
			go func() { errs <- p.Start(t.Context(), id) }()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Errorf("start: %v", err)
			}
		}
		m := wake(t, p, id)
		equal(t, "processes", strings.TrimSpace(m.must("echo alive")), "alive")
	}},
	{Name: "list finds by label and nothing else", Run: func(t T, p sandbox.Provider) {
		tenant, other := newName(), newName()
		labels := func(tenant, epoch string) func(*sandbox.Spec) {
			return func(s *sandbox.Spec) {
				s.Labels = map[string]string{sandbox.LabelTenant: tenant, sandbox.LabelEpoch: epoch}
			}
		}
		a, b, c := create(t, p, labels(tenant, "1")), create(t, p, labels(tenant, "2")), create(t, p, labels(other, "1"))
		ids := func(want map[string]string) []string {
			list, err := p.List(t.Context(), want)
			if err != nil {
				t.Fatalf("list: %v", err)
			}
			var ids []string
			for _, i := range list {
				ids = append(ids, i.ID)
			}
			slices.Sort(ids)
			return ids
		}
		want := []string{a, b}
		slices.Sort(want)
		if got := ids(map[string]string{sandbox.LabelTenant: tenant}); !slices.Equal(got, want) {
			t.Errorf("list by tenant: %v, want %v", got, want)
		}
		if got := ids(map[string]string{sandbox.LabelTenant: tenant, sandbox.LabelEpoch: "2"}); !slices.Equal(got, []string{b}) {
			t.Errorf("list by tenant and epoch: %v, want %v", got, b)
		}
		if all := ids(nil); !slices.Contains(all, a) || !slices.Contains(all, c) {
			t.Errorf("list of everything lacks some: %v", all)
		}
	}},
	{Name: "files survive five stops, wherever a runtime keeps them", Run: func(t T, p sandbox.Provider) {
		id := create(t, p)
		places := []string{"/home/sprite/kept", "/tmp/gemini-workspace/kept", "/var/tmp/kept"}
		for i := range 5 {
			m := wake(t, p, id)
			for _, f := range places {
				if i > 0 {
					want := strings.Repeat("x\n", i)
					if got := m.must("cat " + f); got != want {
						t.Errorf("after %d stops %s holds %q, want %q", i, f, got, want)
					}
				}
				m.must("mkdir -p $(dirname " + f + ") && echo x >> " + f)
			}
			if err := p.Stop(t.Context(), id); err != nil {
				t.Fatalf("stop: %v", err)
			}
		}
	}},
	{Name: "stop ends every process, detached ones too", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("setsid sleep 9999 >/dev/null 2>&1 & sleep 0.1; touch /tmp/mark")
		m.begin(guest.Exec{Argv: []string{"sleep", "9999"}})
		if err := p.Stop(t.Context(), m.id); err != nil {
			t.Fatalf("stop: %v", err)
		}
		<-m.Done()
		again := wake(t, p, m.id)
		if out := again.must("ps ax -o args | grep -c '[s]leep 9999' || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("processes outlived the stop: %s", out)
		}
	}},
	{Name: "stats tell what is used", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		m.must("head -c 3000000 /dev/zero > ~/three")
		eventually(t, "stats", func() bool {
			s, err := p.Stats(t.Context(), m.id)
			if err != nil {
				t.Fatalf("stats: %v", err)
			}
			return s.DiskBytes >= 3000000 && (!m.caps.PidsLimit || s.Pids > 0) && (!m.caps.MemoryLimit || (s.MemoryBytes > 0 && s.MemoryLimit > 0)) &&
				!s.MeasuredAt.IsZero() && !s.DiskMeasuredAt.IsZero()
		})
	}},
}
