package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// SkeletonImage is the name of the image that ImportSkeleton makes.
const SkeletonImage = "managoat-skeleton:latest"

// HasImage tells whether the engine has the image that machines are made from.
func (p *Provider) HasImage(ctx context.Context) (bool, error) {
	_, err := p.engine.ImageInspect(ctx, p.opts.Image)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, failed("image", "the image cannot be looked at", err)
	}
	return true, nil
}

// ImportSkeleton gives an engine that has no image, and perhaps no registry, the least that machines can be made from: a static
// busybox under the names of its applets.
func (p *Provider) ImportSkeleton(ctx context.Context, busybox []byte, applets []string) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(skeleton(w, busybox, applets)) }()
	defer r.Close()
	said, err := p.engine.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, SkeletonImage, client.ImageImportOptions{})
	if err != nil {
		return failed("image", "the skeleton cannot be imported", err)
	}
	defer said.Close()
	answer, err := io.ReadAll(io.LimitReader(said, 1<<20))
	if err == nil && bytes.Contains(answer, []byte(`"error"`)) {
		err = fmt.Errorf("import the skeleton: %s", answer)
	}
	return err
}

func skeleton(out io.Writer, busybox []byte, applets []string) error {
	w := tar.NewWriter(out)
	for _, d := range []struct {
		name string
		mode int64
	}{{"bin", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"opt", 0o755}, {"proc", 0o555}, {"root", 0o700}, {"run", 0o755}, {"sbin", 0o755}, {"srv", 0o755},
		{"sys", 0o555}, {"tmp", 0o1777}, {"usr", 0o755}, {"usr/bin", 0o755}, {"usr/sbin", 0o755}, {"var", 0o755}, {"var/tmp", 0o1777}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d.name + "/", Mode: d.mode}); err != nil {
			return err
		}
	}
	if err := entry(w, tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox); err != nil {
		return err
	}
	for _, a := range applets {
		if a == "busybox" || a == "" || strings.Contains(a, "/") {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + a, Linkname: "busybox", Mode: 0o777}); err != nil {
			return err
		}
	}
	return w.Close()
}

// RemoveImages removes the image that machines are made from, with the guest's in it: for who imported it to try something.
func (p *Provider) RemoveImages(ctx context.Context) error {
	img, err := p.image(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{img.id, p.opts.Image} {
		if _, err := p.engine.ImageRemove(ctx, name, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil && !errdefs.IsNotFound(err) {
			return failed("image", "an image cannot be removed", err)
		}
	}
	return nil
}
