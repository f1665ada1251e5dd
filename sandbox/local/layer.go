package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// layerFormat changes when what a snapshot holds changes: layers of another format are not used.
const layerFormat = 1

// layer is a directory of layers/ with a copy of what a machine had written over its base, in layerRoot, layerUsr and
// layerLocal, and its description in layer.json, the time of which is that of its last use. It got its name when it was
// whole and on disk, and nothing writes to it after that.
type layer struct {
	sandbox.Layer
	Format int    `json:"format"`
	Digest string `json:"digest"` // of what lies in it: see survey

	dir string
}

// layerInside are the labels that a layer and the machines on it must have in common.
var layerInside = []string{sandbox.LabelInstance, sandbox.LabelTenant}

// inLayer is what packages bring, of what a machine writes in its root: a list of what may, because the rest is people's.
var inLayer = []string{"etc", "opt", "srv", "usr", "var"}

// notInLayer is what of that is a machine's own, written anew in each, or not worth keeping.
var notInLayer = []string{
	"etc/hosts", "etc/hostname", "etc/machine-id", "etc/resolv.conf", "var/lib/dbus/machine-id",
	strings.TrimPrefix(guest.CABundle, "/"), strings.TrimPrefix(publicRoots[0], "/"),
	"var/tmp", "var/cache/apt",
}

// layered tells whether a path of a machine's writable directory belongs into a layer.
func layered(part, name string) bool {
	if part != layerRoot {
		return true
	}
	top, _, _ := strings.Cut(name, "/")
	return slices.Contains(inLayer, top) && !slices.Contains(notInLayer, name)
}

func (p *Provider) layerDir(id string) string { return filepath.Join(p.dir, "layers", id) }

// loadLayer reads a layer. One without a description is broken, and has no more than its id.
func (p *Provider) loadLayer(id string) (*layer, error) {
	l := &layer{dir: p.layerDir(id)}
	name := filepath.Join(l.dir, "layer.json")
	err := readJSON(name, l)
	l.ID = id
	if err != nil {
		return l, fmt.Errorf("layer %s: %w", id, err)
	}
	st, err := os.Stat(name)
	if err != nil {
		return l, fmt.Errorf("layer %s: %w", id, err)
	}
	l.UsedAt = st.ModTime()
	return l, nil
}

// allLayers reads every layer, the newest first. Broken ones are among them, without a name.
func (p *Provider) allLayers() ([]*layer, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "layers"))
	if err != nil {
		return nil, err
	}
	all := make([]*layer, len(entries))
	for i, e := range entries {
		if all[i], err = p.loadLayer(e.Name()); err != nil {
			p.log.Warn("local provider: a layer cannot be read", "error", err)
			all[i] = &layer{Layer: sandbox.Layer{ID: e.Name()}, dir: p.layerDir(e.Name())}
		}
	}
	slices.SortFunc(all, func(a, b *layer) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all, nil
}

// same tells whether one of two layers takes the other's place.
func (l *layer) same(other *layer) bool {
	return l.Name == other.Name && maps.Equal(l.Labels, other.Labels)
}

// fits tells whether a machine that is made now on a base could stand on the layer.
func (l *layer) fits(fingerprint string, age time.Duration) bool {
	return l.Format == layerFormat && l.Base.Fingerprint == fingerprint && time.Since(l.CreatedAt) < age
}

// use notes that a machine is made on the layer; false when it was dropped meanwhile.
func (l *layer) use() bool {
	now := time.Now()
	return os.Chtimes(filepath.Join(l.dir, "layer.json"), now, now) == nil
}

// findLayer finds the layer that a new machine asks for: the newest of its name that it may have, when that is whole.
func (p *Provider) findLayer(ctx context.Context, spec sandbox.Spec) (*layer, error) {
	if spec.Layer == "" || p.opts.LayerBytes < 0 {
		return nil, nil
	}
	fingerprint, err := p.base.fingerprint()
	if err != nil {
		return nil, err
	}
	all, err := p.allLayers()
	if err != nil {
		return nil, err
	}
	wanted := &layer{Layer: sandbox.Layer{Name: spec.Layer, Labels: insideOf(spec.Labels)}}
	i := slices.IndexFunc(all, wanted.same)
	if i < 0 || !all[i].fits(fingerprint, p.opts.LayerAge) {
		return nil, nil
	}
	digest, _, err := survey(ctx, all[i].dir)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil || digest != all[i].Digest {
		p.log.Warn("local provider: a layer is not as it was made, so it is not used", "layer", all[i].ID, "error", err)
		return nil, nil
	}
	return all[i], nil
}

func insideOf(labels map[string]string) map[string]string {
	inside := make(map[string]string)
	for _, k := range layerInside {
		inside[k] = labels[k]
	}
	return inside
}

// survey sums up what lies in a layer: a digest of every file's place, owner, mode, size and time, which changes with
// whatever is lost or written, and the bytes on disk.
func survey(ctx context.Context, dir string) (digest string, bytes int64, err error) {
	h, seen := sha256.New(), make(map[uint64]bool)
	for _, part := range writable {
		err := filepath.WalkDir(filepath.Join(dir, part), func(name string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			size := st.Size
			if d.IsDir() {
				size = 0 // the file system's business
			}
			fmt.Fprintf(h, "%q %o %d %d %d %d\n", strings.TrimPrefix(name, dir), st.Mode, st.Uid, st.Gid, size, info.ModTime().UnixNano())
			if !seen[st.Ino] {
				seen[st.Ino] = true
				bytes += st.Blocks * 512
			}
			return nil
		})
		if err != nil {
			return "", 0, err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), bytes, nil
}

// snapshot is a copy in making/, which this process holds a lock on.
type snapshot struct {
	p    *Provider
	l    *layer
	lock *os.File
}

// held tells whether a process holds a directory of making/.
func held(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Snapshot copies what was installed in a machine. Where the file system can, the copy shares its blocks.
func (p *Provider) Snapshot(ctx context.Context, id string) (sandbox.Snapshot, error) {
	const op = "snapshot"
	m, err := p.load(op, id)
	if err != nil {
		return nil, err
	}
	if caps, err := p.Capabilities(ctx); err != nil {
		return nil, err
	} else if !caps.Layers {
		return nil, fail(sandbox.Invalid, op, "no layers are kept here", nil)
	}
	if m.Layer != "" {
		return nil, fail(sandbox.Invalid, op, "the machine stands on a layer itself", nil)
	}
	s, err := p.snapshot(ctx, m)
	if err != nil {
		return nil, failed(op, "what is installed could not be copied", err)
	}
	return s, nil
}

func (p *Provider) snapshot(ctx context.Context, m *machine) (_ *snapshot, err error) {
	s := &snapshot{p: p, l: &layer{Format: layerFormat, Layer: sandbox.Layer{
		Labels: insideOf(m.Labels), Base: m.Base, CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}}}
	err = p.exclusive(ctx, func() (err error) { // or a sweep could come between the directory and its lock
		if s.l.dir, err = os.MkdirTemp(filepath.Join(p.dir, "making"), "layer-"); err != nil {
			return err
		}
		if s.lock, err = os.Open(s.l.dir); err != nil {
			return err
		}
		return unix.Flock(int(s.lock.Fd()), unix.LOCK_EX)
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Discard())
		}
	}()
	if err != nil {
		return s, err
	}
	c := copying{ctx: ctx, room: p.opts.LayerBytes}
	for _, part := range writable {
		if err := c.tree(m.path(part, "upper"), filepath.Join(s.l.dir, part), func(name string) bool { return layered(part, name) }); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Keep makes the copy a layer, and drops what has to make room for it.
func (s *snapshot) Keep(ctx context.Context, name string) error {
	const op = "keep"
	if !validName.MatchString(name) {
		return fail(sandbox.Invalid, op, "a layer's name is 1 to 63 of a-z, 0-9 and -", nil)
	}
	if err := s.keep(ctx, name); err != nil {
		return failed(op, "the layer could not be kept", errors.Join(err, s.Discard()))
	}
	if err := s.p.sweepLayers(ctx); err != nil {
		return failed(op, "older layers could not be dropped", err)
	}
	return nil
}

func (s *snapshot) keep(ctx context.Context, name string) (err error) {
	if s.l.Digest, s.l.Bytes, err = survey(ctx, s.l.dir); err != nil {
		return err
	}
	var suffix [6]byte
	rand.Read(suffix[:])
	s.l.Name, s.l.ID = name, name+"."+hex.EncodeToString(suffix[:])
	if err := writeJSON(filepath.Join(s.l.dir, "layer.json"), s.l); err != nil {
		return err
	}
	// Others will trust that it is whole for weeks, so it must be whole after a power failure too.
	if err := unix.Syncfs(int(s.lock.Fd())); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return s.p.exclusive(ctx, func() error {
		if err := os.Rename(s.l.dir, s.p.layerDir(s.l.ID)); err != nil {
			return err
		}
		s.l.dir = ""
		return s.lock.Close()
	})
}

// Discard removes the copy, unless it was kept.
func (s *snapshot) Discard() error {
	if s.l.dir == "" {
		return nil
	}
	err := removeAll(s.l.dir)
	if s.lock != nil {
		s.lock.Close()
	}
	s.l.dir = ""
	return err
}

// standing counts the machines on each layer. A machine that cannot be read could stand on any: that is an error.
func (p *Provider) standing() (map[string]int, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "machines"))
	if err != nil {
		return nil, err
	}
	on := make(map[string]int)
	for _, e := range entries {
		m, err := p.load("list", e.Name())
		switch {
		case err == nil:
			on[m.Layer]++
		case !sandbox.Lost(err):
			return nil, err
		}
	}
	delete(on, "")
	return on, nil
}

// ListLayers lists the layers that carry all of labels.
func (p *Provider) ListLayers(ctx context.Context, labels map[string]string) ([]sandbox.Layer, error) {
	all, err := p.allLayers()
	if err != nil {
		return nil, failed("layers", "the layers cannot be listed", err)
	}
	on, err := p.standing()
	if err != nil {
		return nil, failed("layers", "the machines on the layers cannot be counted", err)
	}
	var found []sandbox.Layer
next:
	for _, l := range all {
		for k, v := range labels {
			if have, ok := l.Labels[k]; !ok || have != v {
				continue next
			}
		}
		l.Machines = on[l.ID]
		found = append(found, l.Layer)
	}
	return found, nil
}

// RemoveLayer removes a layer that no machine stands on.
func (p *Provider) RemoveLayer(ctx context.Context, id string) error {
	const op = "remove layer"
	if name, _, _ := strings.Cut(id, "."); !validName.MatchString(name) || filepath.Base(id) != id {
		return nil
	}
	err := p.dropping(ctx, func(on map[string]int) ([]drop, error) {
		if on[id] > 0 {
			return nil, fail(sandbox.Unavailable, op, "machines stand on the layer", nil)
		}
		return []drop{{id, "asked"}}, nil
	})
	if err != nil {
		return failed(op, "the layer could not be removed", err)
	}
	return nil
}

// drop is a layer to remove, and why.
type drop struct{ id, why string }

// sweepLayers drops layers that no machine stands on: those that none will be made on any more, and then, while all
// together are too large, those that were not used for longest.
func (p *Provider) sweepLayers(ctx context.Context) error {
	return p.dropping(ctx, func(on map[string]int) ([]drop, error) {
		all, err := p.allLayers()
		if err != nil {
			return nil, err
		}
		fingerprint, err := p.base.fingerprint()
		if err != nil {
			return nil, err
		}
		var drops []drop
		var kept []*layer
		var total int64
		for _, l := range all {
			why := ""
			switch {
			case l.Name == "":
				why = "broken"
			case slices.ContainsFunc(kept, l.same):
				why = "replaced"
			case l.Base.Fingerprint != fingerprint || l.Format != layerFormat:
				why = "its base is not made any more"
			case !l.fits(fingerprint, p.opts.LayerAge):
				why = "age"
			}
			if why != "" && on[l.ID] == 0 {
				drops = append(drops, drop{l.ID, why})
				continue
			}
			kept, total = append(kept, l), total+l.Bytes
		}
		slices.SortFunc(kept, func(a, b *layer) int { return a.UsedAt.Compare(b.UsedAt) })
		for _, l := range kept {
			if total > p.opts.LayerBytes && on[l.ID] == 0 {
				drops, total = append(drops, drop{l.ID, "room"}), total-l.Bytes
			}
		}
		return drops, nil
	})
}

// dropping removes the layers that choose names, while no machine can be made on them.
func (p *Provider) dropping(ctx context.Context, choose func(on map[string]int) ([]drop, error)) error {
	var trash []string
	err := p.exclusive(ctx, func() error {
		on, err := p.standing()
		if err != nil {
			return err
		}
		drops, err := choose(on)
		if err != nil {
			return err
		}
		for _, d := range drops {
			name := filepath.Join(p.dir, "trash", "layer-"+d.id)
			if err := os.Rename(p.layerDir(d.id), name); errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			p.log.Info("local provider: a layer was dropped", "layer", d.id, "reason", d.why)
			trash = append(trash, name)
		}
		return nil
	})
	for _, name := range trash {
		err = errors.Join(err, removeAll(name))
	}
	return err
}
