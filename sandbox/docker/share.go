package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"managoat/sandbox"
)

// A directory of this host that machines see is a volume of the engine. What lies in it two levels deep, an installation of a
// runtime, is copied once and never changes; the little that lies above that is copied when it has changed.

// Where the container that a volume is filled through has it, and the mark of a copy that is whole.
const (
	shareTarget = "/share"
	shareMarks  = ".managoat-copied"
	fillerPause = 20 * time.Millisecond
)

// share is one such directory.
type share struct {
	mu     sync.Mutex
	volume string
	filler string          // name of the container that files are copied through; it never runs
	copied map[string]bool // entries of the second level that are there, whole
}

// Share brings what machines see of a host directory up to date.
func (p *Provider) Share(ctx context.Context, source string) error {
	p.mu.Lock()
	for other := range p.shares {
		if within(other, source) { // a link into that one's, see mounts
			source = other
		}
	}
	p.mu.Unlock()
	_, err := p.shared(ctx, source)
	return err
}

// shared returns the volume of a host directory, with what lies in that now.
func (p *Provider) shared(ctx context.Context, source string) (volume string, err error) {
	const op = "share"
	p.mu.Lock()
	s := p.shares[source]
	if s == nil {
		sum := sha256.Sum256([]byte(source))
		name := "managoat-share-" + hex.EncodeToString(sum[:10])
		s = &share{volume: name, filler: name, copied: map[string]bool{}}
		p.shares[source] = s
	}
	p.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := p.fill(ctx, s, source); err != nil {
		// Whatever is not there: it is no machine.
		return "", fail(sandbox.Unavailable, op, "files of this host cannot be copied to the engine", err)
	}
	return s.volume, nil
}

func (p *Provider) fill(ctx context.Context, s *share, source string) error {
	installed, above, err := entries(source)
	if err != nil {
		return err
	}
	missing := installed[:0:0]
	for _, rel := range installed {
		if !s.copied[rel] {
			missing = append(missing, rel)
		}
	}
	if len(missing) == 0 && s.copied[""] {
		return nil
	}
	if err := p.filler(ctx, s); err != nil {
		return err
	}
	for _, rel := range missing {
		mark := path.Join(shareTarget, shareMarks, strings.ReplaceAll(rel, "/", "+"))
		_, err := p.engine.ContainerStatPath(ctx, s.filler, client.ContainerStatPathOptions{Path: mark})
		if errdefs.IsNotFound(err) {
			p.log.Info("docker provider: copying to the engine", "from", filepath.Join(source, rel))
			if err = p.copyShare(ctx, s, source, []string{rel}); err == nil {
				err = p.copyIn(ctx, s.filler, func(w *tar.Writer) error {
					return entry(w, tar.Header{Name: strings.TrimPrefix(mark, "/"), Mode: 0o444}, nil)
				})
			}
		}
		if err != nil {
			return err
		}
		s.copied[rel] = true
	}
	// What is there already may be in use: a copy takes it away for a moment.
	changed := above[:0:0]
	for _, rel := range above {
		same, err := p.same(ctx, s, source, rel)
		if err != nil {
			return err
		}
		if !same {
			changed = append(changed, rel)
		}
	}
	if err := p.copyShare(ctx, s, source, changed); err != nil {
		return err
	}
	s.copied[""] = true
	return nil
}

// same tells whether a link or file is in the volume as it is here.
func (p *Provider) same(ctx context.Context, s *share, source, rel string) (bool, error) {
	info, err := os.Lstat(filepath.Join(source, rel))
	if err != nil {
		return false, err
	}
	there, err := p.engine.ContainerStatPath(ctx, s.filler, client.ContainerStatPathOptions{Path: path.Join(shareTarget, filepath.ToSlash(rel))})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		apart := there.Stat.Mtime.Sub(info.ModTime()).Abs()
		return there.Stat.Mode.IsRegular() && there.Stat.Size == info.Size() && apart < time.Second, nil
	}
	to, err := os.Readlink(filepath.Join(source, rel))
	if err == nil && !path.IsAbs(to) { // the engine tells where it leads
		to = path.Join(shareTarget, path.Dir(filepath.ToSlash(rel)), to)
	}
	return there.Stat.LinkTarget == to, err
}

// filler makes the volume and the container that it is filled through, where they are not there.
func (p *Provider) filler(ctx context.Context, s *share) error {
	if _, err := p.engine.ContainerInspect(ctx, s.filler, client.ContainerInspectOptions{}); err == nil || !errdefs.IsNotFound(err) {
		return err
	}
	img, err := p.image(ctx)
	if err != nil {
		return err
	}
	if _, err := p.engine.VolumeCreate(ctx, client.VolumeCreateOptions{Name: s.volume, Labels: map[string]string{labelKind: kindShare}}); err != nil {
		return err
	}
	_, err = p.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:   s.filler,
		Config: &container.Config{Image: img.id, Labels: map[string]string{labelKind: kindShare}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: s.volume, Target: shareTarget, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
		}},
	})
	// Another server of this engine may be making it: its name is taken a moment before it is there.
	for deadline := time.Now().Add(startTimeout); errdefs.IsConflict(err) && time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(fillerPause) {
		if _, ierr := p.engine.ContainerInspect(ctx, s.filler, client.ContainerInspectOptions{}); !errdefs.IsNotFound(ierr) {
			return ierr
		}
	}
	return err
}

// entries of a shared directory: what lies on its second level, and what is above that and no directory.
func entries(source string) (second, above []string, err error) {
	first, err := os.ReadDir(source)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range first {
		if strings.HasPrefix(f.Name(), ".") { // it is being made
			continue
		}
		if !f.IsDir() {
			above = append(above, f.Name())
			continue
		}
		below, err := os.ReadDir(filepath.Join(source, f.Name()))
		if err != nil {
			return nil, nil, err
		}
		for _, b := range below {
			rel := path.Join(f.Name(), b.Name())
			switch {
			case strings.HasPrefix(b.Name(), "."):
			case b.IsDir():
				second = append(second, rel)
			default:
				above = append(above, rel)
			}
		}
	}
	return second, above, nil
}

// copyShare copies entries with all that is in them: regular files, directories and links, as root's.
func (p *Provider) copyShare(ctx context.Context, s *share, source string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return p.copyIn(ctx, s.filler, func(w *tar.Writer) error {
		for _, rel := range names {
			err := filepath.WalkDir(filepath.Join(source, rel), func(name string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				return add(w, source, name, d)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func add(w *tar.Writer, source, name string, d fs.DirEntry) error {
	rel, err := filepath.Rel(source, name)
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if link, err = os.Readlink(name); err != nil {
			return err
		}
	case !mode.IsDir() && !mode.IsRegular():
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(path.Join(shareTarget, filepath.ToSlash(rel)), "/")
	h.Uid, h.Gid, h.Uname, h.Gname, h.Format = 0, 0, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(w, f, info.Size()); err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	return nil
}

var _ sandbox.Sharer = (*Provider)(nil)
