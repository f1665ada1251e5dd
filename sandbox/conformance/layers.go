package conformance

import (
	"context"
	"errors"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// layersOf is the part of a provider that keeps layers, nil for one that says it keeps none, and an account of the check's
// own. What is kept of it is removed after the check and its machines.
func layersOf(t T, p sandbox.Provider) (l sandbox.Layers, tenant string) {
	t.Helper()
	caps, err := p.Capabilities(t.Context())
	if err != nil {
		t.Fatalf("capabilities: %v", err)
	}
	if !caps.Layers {
		return nil, ""
	}
	l, ok := p.(sandbox.Layers)
	if !ok {
		t.Fatalf("the provider says that it keeps layers, and does not")
	}
	tenant = newName()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		all, err := l.ListLayers(ctx, map[string]string{sandbox.LabelTenant: tenant})
		for _, layer := range all {
			err = errors.Join(err, l.RemoveLayer(ctx, layer.ID))
		}
		if err != nil {
			t.Errorf("remove the layers: %v", err)
		}
	})
	return l, tenant
}

// of makes a machine an account's, on a layer.
func of(tenant, layer string) func(*sandbox.Spec) {
	return func(s *sandbox.Spec) {
		s.Labels[sandbox.LabelTenant] = tenant
		s.Layer = layer
	}
}

// keep makes a layer of what is installed in a machine.
func keep(t T, l sandbox.Layers, machine, name string) {
	t.Helper()
	s, err := l.Snapshot(t.Context(), machine)
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	if err := s.Keep(t.Context(), name); err != nil {
		t.Fatalf("keep: %v", err)
	}
	if err := s.Discard(); err != nil {
		t.Errorf("discard after keep: %v", err)
	}
}

// on makes and starts a machine and tells whether it stands on a layer.
func on(t T, p sandbox.Provider, tenant, layer string) (*machine, *sandbox.Layer) {
	t.Helper()
	spec := sandbox.Spec{Name: newName(), Hostname: "box", Labels: map[string]string{sandbox.LabelInstance: "conformance"}}
	of(tenant, layer)(&spec)
	id := create(t, p, func(s *sandbox.Spec) { *s = spec })
	again, err := p.Create(t.Context(), spec)
	if err != nil || !again.Adopted {
		t.Fatalf("second create: %+v %v", again, err)
	}
	return wake(t, p, id), again.Layer
}

// install makes files of every kind where packages do, changes and deletes what the base has, and leaves other things
// where people do.
const install = `set -e
mkdir -p /opt/kit/deep /var/lib/kit
printf '#!/bin/sh\necho kit\n' > /usr/local/bin/kit; chmod 4755 /usr/local/bin/kit
echo shared > /usr/share/kit; ln /usr/share/kit /usr/share/kit-too; ln -s kit /usr/share/kit-link
chown sprite:sprite /var/lib/kit; chmod 2750 /var/lib/kit; echo x > /var/lib/kit/data; touch -d 2001-02-03 /var/lib/kit/data
mkfifo /opt/kit/deep/pipe
echo '# kit' >> /etc/profile; rm /etc/debian_version 2>/dev/null || rm /etc/os-release
rm -rf /etc/skel; mkdir /etc/skel; echo new > /etc/skel/.new
echo secret | tee /home/sprite/.env /root/.env /tmp/left /var/tmp/left /run/left >/dev/null`

// look prints what is there of it.
const look = `kit; stat -c '%n %a %U %G %F' /usr/local/bin/kit /var/lib/kit /opt/kit/deep/pipe
stat -c '%h %Y' /usr/share/kit /var/lib/kit/data; readlink /usr/share/kit-link; tail -n 1 /etc/profile
ls -A /etc/skel; ls /etc/debian_version /etc/os-release 2>/dev/null | wc -l`

// left prints what people's things are there.
const left = `ls /home/sprite/.env /root/.env /tmp/left /var/tmp/left /run/left 2>/dev/null || true`

var layers = []Check{
	{Name: "what was installed in one machine is there in the next, and nothing else of it", Run: func(t T, p sandbox.Provider) {
		l, tenant := layersOf(t, p)
		if l == nil {
			return
		}
		name := newName()
		first := start(t, p, of(tenant, name))
		first.mustAs(guest.Root, install)
		before := first.mustAs(guest.Root, look)
		keep(t, l, first.id, name)

		second, layer := on(t, p, tenant, name)
		if layer == nil || layer.Name != name || layer.Bytes <= 0 || layer.CreatedAt.IsZero() {
			t.Fatalf("the second machine's layer is %+v", layer)
		}
		equal(t, "the second machine", second.mustAs(guest.Root, look), before)
		equal(t, "what else came along", second.mustAs(guest.Root, left), "")
		stats, err := p.Stats(t.Context(), second.id)
		if err != nil || stats.DiskBytes >= layer.Bytes+(1<<20) {
			t.Errorf("a machine on a layer of %d bytes uses %d: %v", layer.Bytes, stats.DiskBytes, err)
		}

		// What one writes over it, no other sees, and a stop keeps.
		second.mustAs(guest.Root, "echo mine > /usr/share/kit; rm /usr/local/bin/kit; rm -rf /opt/kit")
		third, _ := on(t, p, tenant, name)
		equal(t, "another machine on the layer", third.mustAs(guest.Root, look), before)
		if err := p.Stop(t.Context(), second.id); err != nil {
			t.Fatalf("stop: %v", err)
		}
		equal(t, "after a stop", wake(t, p, second.id).must("cat /usr/share/kit; ls /opt/kit /usr/local/bin/kit 2>/dev/null | wc -l"), "mine\n0\n")

		_, err = l.Snapshot(t.Context(), second.id)
		class(t, "snapshot of a machine on a layer", err, sandbox.Invalid)
	}},
	{Name: "a layer is for its account alone, and stays while a machine stands on it", Run: func(t T, p sandbox.Provider) {
		l, tenant := layersOf(t, p)
		if l == nil {
			return
		}
		name := newName()
		first := start(t, p, of(tenant, ""))
		first.mustAs(guest.Root, "echo one > /usr/share/kit")
		dropped, err := l.Snapshot(t.Context(), first.id)
		if err != nil {
			t.Fatalf("snapshot: %v", err)
		}
		if err := dropped.Discard(); err != nil {
			t.Errorf("discard: %v", err)
		}
		list := func() []sandbox.Layer {
			all, err := l.ListLayers(t.Context(), map[string]string{sandbox.LabelTenant: tenant})
			if err != nil {
				t.Fatalf("list: %v", err)
			}
			return all
		}
		equal(t, "layers after a discard", len(list()), 0)
		keep(t, l, first.id, name)
		for what, ask := range map[string][2]string{"another account": {newName(), name}, "another name": {tenant, newName()}, "no name": {tenant, ""}} {
			if m, layer := on(t, p, ask[0], ask[1]); layer != nil || m.sh("cat /usr/share/kit").Code == 0 {
				t.Errorf("%s got the layer %+v", what, layer)
			}
		}
		second, _ := on(t, p, tenant, name)
		if err := p.Stop(t.Context(), second.id); err != nil {
			t.Fatalf("stop: %v", err)
		}
		all := list()
		if len(all) != 1 || all[0].Machines != 1 {
			t.Fatalf("layers: %+v, want one with one machine", all)
		}
		class(t, "removal from under a stopped machine", l.RemoveLayer(t.Context(), all[0].ID), sandbox.Unavailable)
		first.mustAs(guest.Root, "echo two > /usr/share/kit")
		keep(t, l, first.id, name)
		newer, _ := on(t, p, tenant, name)
		equal(t, "a machine on the newer layer", newer.must("cat /usr/share/kit"), "two\n")
		equal(t, "the machine on the older one", wake(t, p, second.id).must("cat /usr/share/kit"), "one\n")
		for _, m := range []*machine{second, newer} {
			if err := p.Destroy(t.Context(), m.id); err != nil {
				t.Fatalf("destroy: %v", err)
			}
		}
		for _, layer := range list() {
			for range 2 {
				if err := l.RemoveLayer(t.Context(), layer.ID); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
		}
		equal(t, "layers after their removal", len(list()), 0)
		_, err = l.Snapshot(t.Context(), newName())
		class(t, "snapshot of what does not exist", err, sandbox.NotFound)
	}},
}
