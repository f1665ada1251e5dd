package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/boot"
	"managoat/sandbox/guest/furniture"
	"managoat/sandbox/guest/shim"
	"managoat/sandbox/userns"
)

// namespaces is the engine of a server that is root (kernel 5.19 or newer).
type namespaces struct {
	p    *Provider
	maps idMaps
}

func (n *namespaces) guestUID(m *machine) int { return m.uid() + shim.GuestUID }

// scratch is where a machine's root is laid out, in a mount namespace of its own: what a machine can read of
// its mounts names this directory and nothing else of the host.
const scratch = "/run/managoat"

// Overlay options with which a lower layer may change while no machine uses it, and attributes from inside
// mean nothing.
const overlayOptions = ",index=off,metacopy=off,redirect_dir=off,xino=off"

// Layers of a machine that it writes to.
var writable = []string{layerRoot, layerUsr, layerLocal}

func (n *namespaces) prepare(dir string, m *machine) error {
	for _, layer := range writable {
		// Files of a machine lie on disk with the uids it sees: the mount translates them.
		if err := makeDir(filepath.Join(dir, layer, "upper"), 0o755, 0); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(dir, layer, "work"), 0o700); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "ctl"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
		return err
	}
	return identity(filepath.Join(dir, layerRoot, "upper"), m.Hostname)
}

// made prepares the start that usually follows.
func (n *namespaces) made(m *machine) { n.maps.prepare(n.p.guest, m.Range) }

// released forgets what was prepared.
func (n *namespaces) released(m *machine) { n.maps.drop(m.Range) }

func (n *namespaces) close() { n.maps.close() }

// boot lays the machine's root out and starts its first process in it. It does so in a mount namespace of its own, of
// which only what the machine holds stays.
func (n *namespaces) boot(ctx context.Context, m *machine, b bootFiles) (pid int, err error) {
	onMountThread(func() { pid, err = n.bootHere(m, b) })
	return pid, err
}

func (n *namespaces) bootHere(m *machine, b bootFiles) (int, error) {
	if err := n.layOut(m); err != nil {
		return 0, err
	}
	config, configEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer config.Close()
	defer configEnd.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Env:   []string{},
		Dir:   "/",
		Files: []uintptr{null.Fd(), b.log.Fd(), b.log.Fd(), b.listen.Fd(), b.lock.Fd(), b.ready.Fd(), b.oom.Fd(), config.Fd()},
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
			Setsid:     true,
		},
	}
	pid, err := userns.Start(n.p.guest, []string{boot.Name}, attr,
		[]syscall.SysProcIDMap{{ContainerID: 0, HostID: m.uid(), Size: rangeSize}})
	if err != nil {
		return 0, fmt.Errorf("start the machine's first process: %w", err)
	}
	n.p.kids.add(pid)
	// It waits for its configuration, so that it is within its limits before it does anything.
	if err := b.group.add(pid); err != nil {
		return pid, err
	}
	raw, err := json.Marshal(boot.Config{Root: scratch + "/root", Hostname: m.Hostname})
	if err != nil {
		return pid, err
	}
	if _, err := configEnd.Write(raw); err != nil {
		return pid, fmt.Errorf("configure the machine: %w", err)
	}
	return pid, nil
}

// source is a directory of the host as a machine will see it: a mount that is not attached yet.
type source struct {
	fd   int
	name string // below scratch
}

// layOut makes a new mount namespace for this thread and in it the machine's root at scratch/root.
func (n *namespaces) layOut(m *machine) error {
	ids, err := n.maps.get(n.p.guest, m.Range)
	if err != nil {
		return err
	}
	defer ids.Close()
	if err := os.Mkdir(scratch, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	base := n.p.base
	layers := base.path(m.Base.Fingerprint)
	toolsDir, err := n.p.toolsDir()
	if err != nil {
		return err
	}
	// Everything is opened before the scratch directory covers what may lie below it.
	var sources []source
	defer func() {
		for _, s := range sources {
			unix.Close(s.fd)
		}
	}()
	add := func(name, dir string, flags uint64) error {
		fd, err := idMapped(dir, ids, flags)
		if err != nil {
			return err
		}
		sources = append(sources, source{fd, name})
		return nil
	}
	wanted := map[string]string{
		"base": filepath.Join(layers, layerRoot), "local": filepath.Join(layers, layerLocal), "tools": toolsDir,
	}
	if base.rootfs == "" {
		wanted["usr"], wanted["host"] = filepath.Join(layers, layerUsr), "/usr"
	} else {
		wanted["host"] = base.rootfs
	}
	for i, mount := range m.Mounts {
		if err := n.p.checkMount(mount); err != nil {
			return err
		}
		wanted[fmt.Sprintf("mount%d", i)] = mount.Source
	}
	for name, dir := range wanted {
		if err := add(name, dir, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	if m.Layer != "" {
		if err := add("layer", n.p.layerDir(m.Layer), unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	if err := add("disk", m.dir, 0); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m"); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	for _, s := range sources {
		if err := s.attach(); err != nil {
			return err
		}
	}
	for _, d := range []string{"empty", "root"} {
		if err := os.Mkdir(path.Join(scratch, d), 0o755); err != nil {
			return err
		}
	}
	return n.overlays(m)
}

func (s source) attach() error {
	target := path.Join(scratch, s.name)
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	if err := unix.MoveMount(s.fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s: %w", s.name, err)
	}
	return nil
}

func (n *namespaces) overlays(m *machine) error {
	// What lies under each of the machine's own directories: its layer, where it has one, before its base.
	under := func(layer string, lowers ...string) []string {
		if m.Layer == "" {
			return lowers
		}
		return append([]string{"layer/" + layer}, lowers...)
	}
	if err := overlay(scratch+"/root", layerRoot, under(layerRoot, n.rootLayers()...)...); err != nil {
		return err
	}
	root, err := unix.Open(scratch+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if n.p.base.rootfs == "" {
		if err := n.over(root, "/usr", func(target string) error { return overlay(target, layerUsr, under(layerUsr, "usr", "host")...) }, m); err != nil {
			return err
		}
	}
	if err := n.over(root, "/usr/local", func(target string) error { return overlay(target, layerLocal, under(layerLocal, "local")...) }, m); err != nil {
		return err
	}
	if err := n.over(root, furniture.ToolsDir, func(target string) error { return readOnly(target, "tools") }, m); err != nil {
		return err
	}
	for i, mount := range m.Mounts {
		name := fmt.Sprintf("mount%d", i)
		if err := n.over(root, mount.Target, func(target string) error { return readOnly(target, name) }, m); err != nil {
			return err
		}
	}
	return nil
}

func (n *namespaces) rootLayers() []string {
	if n.p.base.rootfs == "" {
		return []string{"base"}
	}
	return []string{"base", "host"}
}

func inScratch(names []string) string {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = path.Join(scratch, name)
	}
	return strings.Join(paths, ":")
}

// overlay mounts a layer of the machine's disk over lower ones.
func overlay(target, layer string, lowers ...string) error {
	disk := path.Join(scratch, "disk", layer)
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work%s", inScratch(lowers), disk, overlayOptions)
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NODEV|unix.MS_NOSUID, data); err != nil {
		return fmt.Errorf("overlay of %s: %w", layer, err)
	}
	return nil
}

// readOnly shows a directory as an overlay of it and nothing: unlike a bind mount it does not tell inside
// where on the host it lies.
func readOnly(target, name string) error {
	data := "lowerdir=" + inScratch([]string{name, "empty"}) + overlayOptions
	if err := unix.Mount("overlay", target, "overlay", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, data); err != nil {
		return fmt.Errorf("mount of %s: %w", name, err)
	}
	return nil
}

// over mounts something on a directory inside the machine's root, which the machine's own root may have
// rearranged: no link of it is followed, what is no directory is replaced by one.
func (n *namespaces) over(root int, target string, mount func(target string) error, m *machine) error {
	dir, err := unix.Dup(root)
	if err != nil {
		return err
	}
	defer func() { unix.Close(dir) }()
	for _, step := range strings.Split(strings.Trim(target, "/"), "/") {
		next, err := enter(dir, step, m.uid())
		if err != nil {
			return fmt.Errorf("make %s: %w", target, err)
		}
		unix.Close(dir)
		dir = next
	}
	return mount(fmt.Sprintf("/proc/self/fd/%d", dir))
}

func enter(dir int, step string, uid int) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(dir, step, how)
	if err == nil {
		return fd, nil
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if err := unix.Unlinkat(dir, step, 0); err != nil {
			return -1, err
		}
	} else if !errors.Is(err, unix.ENOENT) {
		return -1, err
	}
	if err := unix.Mkdirat(dir, step, 0o755); err != nil {
		return -1, err
	}
	if err := unix.Fchownat(dir, step, uid, uid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, err
	}
	return unix.Openat2(dir, step, how)
}

// idMapped opens a directory of the host as a mount in which file owners are translated to the machine's uids.
func idMapped(dir string, ids *os.File, flags uint64) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open tree: %w", err)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | flags, Userns_fd: uint64(ids.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%w: %w", errIDMap, err)
	}
	return fd, nil
}

// toolsDir is the directory of tools that goes with the guest's binary.
func (p *Provider) toolsDir() (string, error) {
	dir := p.guest + ".tools"
	if exists(dir) {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	for _, t := range furniture.Tools {
		if err := os.Link(p.guest, filepath.Join(tmp, t.Name)); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, dir); err != nil && !exists(dir) {
		return "", err
	}
	return dir, nil
}
