package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// keepLayer makes a layer of what is installed in a machine.
func keepLayer(t testing.TB, p *Provider, machine, name string) {
	t.Helper()
	s, err := p.Snapshot(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// onLayer is the spec of a machine on a layer.
func onLayer(name, layer string) sandbox.Spec {
	s := spec(name)
	s.Layer = layer
	return s
}

// layerNames are those of the layers that are there, in order.
func layerNames(t testing.TB, p *Provider) []string {
	t.Helper()
	all, err := p.ListLayers(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range all {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

func TestLayersAreDroppedByRoomAndAgeButNeverFromUnderAMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reopen := func(change func(*Options)) *Provider {
		return open(t, func(o *Options) { o.Dir = dir; change(o) })
	}
	p := reopen(func(o *Options) { o.LayerBytes = 7 << 20 })
	makeMachine(t, p, spec("maker"))
	c := connect(t, p, "maker")
	for _, name := range []string{"a", "b", "c"} {
		sh(t, c, guest.Root, "rm -f /usr/share/part-*; head -c 3000000 /dev/urandom > /usr/share/part-"+name)
		keepLayer(t, p, "maker", name)
		if name == "a" {
			makeMachine(t, p, onLayer("user", "a"))
		}
	}
	if got := layerNames(t, p); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("layers after the third: %v, want a under its machine, and the newest", got)
	}
	sh(t, c, guest.Root, "head -c 8000000 /dev/urandom > /usr/share/part-d")
	if _, err := p.Snapshot(t.Context(), "maker"); sandbox.ClassOf(err) != sandbox.Capacity {
		t.Errorf("a snapshot larger than all room: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "making")); err != nil || len(left) != 0 {
		t.Errorf("it left %v %v", left, err)
	}

	// The next start finds them too old.
	p = reopen(func(o *Options) { o.LayerAge = time.Nanosecond })
	if got := layerNames(t, p); !slices.Equal(got, []string{"a"}) {
		t.Errorf("layers of a day ago: %v, want a alone", got)
	}
	makeMachine(t, p, onLayer("late", "a"))
	if sh(t, connect(t, p, "late"), guest.Sprite, "ls /usr/share | grep -c part- || true") != "0\n" {
		t.Error("a machine was made on a layer that is too old")
	}
	if sh(t, connect(t, p, "user"), guest.Sprite, "stat -c %s /usr/share/part-a") != "3000000\n" {
		t.Error("the machine on the old layer lost it")
	}
	if err := p.Destroy(t.Context(), "user"); err != nil {
		t.Fatal(err)
	}
	if err := p.sweepLayers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := layerNames(t, p); len(got) != 0 {
		t.Errorf("layers after their last machine: %v", got)
	}
}

func TestAHalfMadeLayerIsRemovedAtTheNextStartUnlessSomebodyMakesIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := open(t, func(o *Options) { o.Dir = dir })
	makeMachine(t, p, spec("maker"))
	c := connect(t, p, "maker")
	sh(t, c, guest.Root, "echo kit > /usr/share/kit; ln -s /etc/shadow /usr/share/link")
	// A program that may do more than its user: the attribute is the kernel's own form of that.
	capability := append([]byte{1, 0, 0, 2, 0, 0x20}, make([]byte, 14)...)
	if err := unix.Setxattr(filepath.Join(dir, "machines/maker/usr/upper/share/kit"), "security.capability", capability, 0); err != nil {
		t.Fatal(err)
	}
	alive, err := p.Snapshot(t.Context(), "maker")
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(dir, "making", "layer-1")
	if err := os.MkdirAll(filepath.Join(dead, "usr", "share"), 0o755); err != nil {
		t.Fatal(err)
	}
	other := open(t, func(o *Options) { o.Dir = dir })
	left, err := os.ReadDir(filepath.Join(dir, "making"))
	if err != nil || len(left) != 1 || left[0].Name() == "layer-1" {
		t.Errorf("after a start are left: %v %v", left, err)
	}
	if err := alive.Keep(t.Context(), "kit"); err != nil {
		t.Fatal(err)
	}
	all, err := other.ListLayers(t.Context(), nil)
	if err != nil || len(all) != 1 {
		t.Fatalf("layers: %+v %v", all, err)
	}
	got := make([]byte, 64)
	n, err := unix.Getxattr(filepath.Join(other.layerDir(all[0].ID), "usr/share/kit"), "security.capability", got)
	if err != nil || !bytes.Equal(got[:n], capability) {
		t.Errorf("the capability came over as %x: %v", got[:max(n, 0)], err)
	}
	if target, err := os.Readlink(filepath.Join(other.layerDir(all[0].ID), "usr/share/link")); target != "/etc/shadow" {
		t.Errorf("a link came over as %q: %v", target, err)
	}

	makeMachine(t, other, onLayer("user", "kit"))
	if sh(t, connect(t, other, "user"), guest.Sprite, "cat /usr/share/kit") != "kit\n" {
		t.Error("the layer is not under the machine")
	}
	if err := other.Stop(t.Context(), "user"); err != nil {
		t.Fatal(err)
	}
	// One that lost something is not used; a machine that lost all of its layer can never start again.
	if err := os.Remove(filepath.Join(other.layerDir(all[0].ID), "usr/share/kit")); err != nil {
		t.Fatal(err)
	}
	created, err := other.Create(t.Context(), onLayer("late", "kit"))
	t.Cleanup(func() { other.Destroy(context.Background(), "late") })
	if err != nil || created.Layer != nil {
		t.Errorf("a machine on a broken layer: %+v %v", created, err)
	}
	if err := os.RemoveAll(other.layerDir(all[0].ID)); err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context(), "user"); sandbox.ClassOf(err) != sandbox.Broken {
		t.Errorf("start without its layer: %v", err)
	}
}

// BenchmarkLayer tells what a layer costs the setup that makes it (the copy) and those that use it (the look at it), and
// what nobody waits for (until it is on disk).
func BenchmarkLayer(b *testing.B) {
	const files, size = 5000, 20 << 10
	p := open(b)
	makeMachine(b, p, spec("maker"))
	c := connect(b, p, "maker")
	sh(b, c, guest.Root, fmt.Sprintf("mkdir /usr/share/kit && head -c %d /dev/urandom | split -a 4 -b %d - /usr/share/kit/", files*size, size))
	n := 0
	for b.Loop() {
		n++
		began := time.Now()
		s, err := p.Snapshot(b.Context(), "maker")
		if err != nil {
			b.Fatal(err)
		}
		copied := time.Now()
		if err := s.Keep(b.Context(), "kit"); err != nil {
			b.Fatal(err)
		}
		kept := time.Now()
		name := fmt.Sprint("user-", n)
		makeMachine(b, p, onLayer(name, "kit"))
		on := time.Now()
		makeMachine(b, p, spec(name+"-bare"))
		bare := time.Since(on)
		b.ReportMetric(float64(copied.Sub(began).Milliseconds()), "ms/copy")
		b.ReportMetric(float64(kept.Sub(copied).Milliseconds()), "ms/keep")
		b.ReportMetric(float64((on.Sub(kept)-bare).Microseconds())/1000, "ms/use")
		b.ReportMetric(files*size/1e6/copied.Sub(began).Seconds(), "MB/s")
	}
}
