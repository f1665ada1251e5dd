package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/guest/bridge"
)

// imageFresh is for how long the image's name is taken to mean what it meant.
const imageFresh = 10 * time.Second

// preparedRepository names the images that have the guest in them.
const preparedRepository = "managoat-prepared"

// prepared is an image that machines are made from: the configured one and the guest.
type prepared struct {
	id   string
	base sandbox.Base
}

// images remembers the last one.
type images struct {
	mu   sync.Mutex
	last prepared
	at   time.Time
}

// image makes, once for each image and guest, the image with the guest in it: a container that is made of it starts without
// a copy.
func (p *Provider) image(ctx context.Context) (prepared, error) {
	const op = "create"
	i := &p.images
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.at) < imageFresh {
		return i.last, nil
	}
	from, err := p.engine.ImageInspect(ctx, p.opts.Image)
	if errdefs.IsNotFound(err) {
		return prepared{}, fail(sandbox.Unavailable, op, fmt.Sprintf("the engine has no image %s: build it with `make image`, or name another in the setting docker-image", p.opts.Image), err)
	}
	if err != nil {
		return prepared{}, failed(op, "the image cannot be looked at", err)
	}
	if from.Architecture != runtime.GOARCH { // the guest and the runtimes that machines get are this server's
		return prepared{}, fail(sandbox.Unavailable, op, fmt.Sprintf("the image %s is for %s, and this server's machines are %s: build it with `make image` on an engine of that processor", p.opts.Image, from.Architecture, runtime.GOARCH), nil)
	}
	sum := sha256.Sum256([]byte(from.ID + "\n" + p.guest + "\n" + string(p.opts.AptSources)))
	tag := preparedRepository + ":" + hex.EncodeToString(sum[:12])
	ours, err := p.engine.ImageInspect(ctx, tag)
	if errdefs.IsNotFound(err) {
		if err = p.prepare(ctx, from.ID, tag); err == nil {
			ours, err = p.engine.ImageInspect(ctx, tag)
		}
	}
	if err != nil {
		return prepared{}, failed(op, "the image cannot be prepared", err)
	}
	// What a machine was made from is the image and the package sources, not the guest, which is renewed at its starts.
	of := sha256.Sum256([]byte(from.ID + "\n" + string(p.opts.AptSources)))
	i.last, i.at = prepared{id: ours.ID, base: sandbox.Base{Name: p.opts.Image, Fingerprint: hex.EncodeToString(of[:16])}}, time.Now()
	return i.last, nil
}

func (p *Provider) prepare(ctx context.Context, image, tag string) error {
	c, err := p.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Entrypoint: []string{bridge.Program}, Labels: map[string]string{labelKind: "preparing"}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if _, err := p.engine.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			p.log.Warn("docker provider: a container that an image was made of stays", "container", c.ID, "error", err)
		}
	}()
	if err := p.copyGuest(ctx, c.ID); err != nil {
		return err
	}
	if len(p.opts.AptSources) > 0 {
		name := "etc/apt/sources.list.d/managoat.list"
		if bytes.Contains(p.opts.AptSources, []byte("Types:")) {
			name = "etc/apt/sources.list.d/managoat.sources"
		}
		files := map[string][]byte{name: p.opts.AptSources, "etc/apt/sources.list": nil, "etc/apt/sources.list.d/debian.sources": nil}
		if err := p.copyIn(ctx, c.ID, func(w *tar.Writer) error {
			for name, data := range files {
				if err := entry(w, tar.Header{Name: name, Mode: 0o644}, data); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	repository, version, _ := strings.Cut(tag, ":")
	_, err = p.engine.ContainerCommit(ctx, c.ID, client.ContainerCommitOptions{Reference: repository + ":" + version, Comment: "the guest of Managoat"})
	return err
}

// accounts are read by the engine as it starts anything in a container. It waits for ever for one that is a FIFO, and neither
// tells of that container nor removes it meanwhile.
var accounts = map[string]string{"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/group": "root:x:0:\n"}

// maxAccounts is more than any of them holds.
const maxAccounts = 1 << 20

// mend gives a container that does not run what its start needs and machine root can spoil: the guest's binary, which another
// version of this server may have put there too, and accounts that are files.
func (p *Provider) mend(ctx context.Context, id string) error {
	now, err := p.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: bridge.Program})
	if err != nil || now.Stat.Mode != 0o755 || now.Stat.Size != int64(len(p.opts.GuestBinary)) || !now.Stat.Mtime.Equal(p.stamp) {
		if err := p.copyGuest(ctx, id); err != nil {
			return err
		}
	}
	for name, text := range accounts {
		now, err := p.engine.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: name})
		if errdefs.IsNotFound(err) || err == nil && now.Stat.Mode.IsRegular() && now.Stat.Size <= maxAccounts {
			continue
		}
		p.log.Warn("docker provider: a machine's accounts were no file and are made anew", "machine", id, "file", name)
		if err := p.copyIn(ctx, id, func(w *tar.Writer) error { return entry(w, tar.Header{Name: name[1:], Mode: 0o644}, []byte(text)) }); err != nil {
			return err
		}
	}
	return nil
}

// copyGuest puts the guest's binary into a container that does not run.
func (p *Provider) copyGuest(ctx context.Context, id string) error {
	return p.copyIn(ctx, id, func(w *tar.Writer) error {
		name := strings.TrimPrefix(bridge.Program, "/")
		dir, _, _ := strings.Cut(name, "/")
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return err
		}
		return entry(w, tar.Header{Name: name, Mode: 0o755, ModTime: p.stamp}, p.opts.GuestBinary)
	})
}

// copyIn unpacks an archive at a container's root.
func (p *Provider) copyIn(ctx context.Context, id string, write func(*tar.Writer) error) error {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := write(t)
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	defer r.Close()
	_, err := p.engine.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: r, AllowOverwriteDirWithFile: true})
	return err
}

// entry writes a file into an archive.
func entry(w *tar.Writer, head tar.Header, data []byte) error {
	head.Typeflag, head.Size = tar.TypeReg, int64(len(data))
	if err := w.WriteHeader(&head); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
