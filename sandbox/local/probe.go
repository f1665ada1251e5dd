package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
)

// ready finds out, once, what this host can do. An error is a reason a person can act on; it is asked again,
// since a person may have.
func (p *Provider) ready(ctx context.Context) error {
	unlock, err := p.locks.lock(ctx, "probe/")
	if err != nil {
		return err
	}
	defer unlock()
	if p.probed.Load() != nil {
		return nil
	}
	caps := sandbox.Capabilities{DiskLimit: true}
	if err := p.engine.probe(ctx, &caps); err != nil {
		return fail(sandbox.Unavailable, "probe", advice(err), err)
	}
	p.probeGroups(&caps)
	p.probed.Store(&caps)
	return nil
}

// Capabilities tells what works on this host.
func (p *Provider) Capabilities(ctx context.Context) (sandbox.Capabilities, error) {
	if err := p.ready(ctx); err != nil {
		return sandbox.Capabilities{}, err
	}
	return *p.probed.Load(), nil
}

func (p *Provider) probeGroups(caps *sandbox.Capabilities) {
	var problem string
	caps.MemoryLimit, caps.CPULimit, caps.PidsLimit, problem = p.groups.prepare()
	if problem == "" {
		problem = "it is not mounted"
	}
	for _, l := range []struct {
		ok   bool
		what string
	}{{caps.MemoryLimit, "the memory"}, {caps.CPULimit, "the CPU time"}, {caps.PidsLimit, "the number of processes"}} {
		if !l.ok {
			caps.Notes = append(caps.Notes, fmt.Sprintf("Nothing limits %s of a machine: the cgroup at %s cannot be used (%s). Run the server as root, with cgroups (v1 or v2) mounted for writing.", l.what, cgroupRoot, problem))
		}
	}
	caps.Notes = append(caps.Notes, "A machine's disk limit is kept by looking every few seconds; a machine over it is frozen.")
}

// advice turns a failed probe into what to do.
func advice(err error) string {
	var u unix.Utsname
	var release string
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	switch {
	case os.Geteuid() == 0 && (major < 5 || major == 5 && minor < 19):
		return fmt.Sprintf("this host's kernel is %s; machines of the local provider need 5.19 or newer", release)
	case restricted("kernel/apparmor_restrict_unprivileged_userns", "1"):
		return "AppArmor keeps programs without root from making user namespaces (Ubuntu 24.04 and newer do): run the server as root, or allow it with `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
	case restricted("kernel/unprivileged_userns_clone", "0"), restricted("user/max_user_namespaces", "0"):
		return "this host forbids user namespaces: set kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0, or run the server as root"
	case errors.Is(err, errNoBubblewrap):
		return "a server without root needs bubblewrap: install it (apt-get install bubblewrap), or run the server as root"
	case os.Geteuid() == 0 && errors.Is(err, unix.EPERM):
		return "root of this host may not make namespaces and mounts, as in a container with default settings: run the server on the host, or its container with --privileged"
	case errors.Is(err, errIDMap):
		return "the file system of /usr or of the data directory cannot translate file owners (ext4, xfs, btrfs and tmpfs can; network file systems, and overlay inside a container, cannot): move the data directory, or use an unpacked root file system"
	case errors.Is(err, errSilent):
		return "an overlay of this host is mounted but cannot be written: move the data directory to a local file system (ext4, xfs, btrfs)"
	}
	return "machines cannot be started on this host"
}

func restricted(sysctl, value string) bool {
	raw, err := os.ReadFile("/proc/sys/" + sysctl)
	return err == nil && os.Geteuid() != 0 && strings.TrimSpace(string(raw)) == value
}

var (
	errIDMap        = errors.New("file owners cannot be translated")
	errSilent       = errors.New("a file written to an overlay is not there")
	errNoBubblewrap = errors.New("bwrap is not installed")
)

// probe lays out the root of a machine that is never started, and writes to it.
func (n *namespaces) probe(ctx context.Context, caps *sandbox.Capabilities) error {
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	err := n.p.exclusive(ctx, func() error {
		base, err := n.p.base.current()
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp(filepath.Join(n.p.dir, "making"), "probe-")
		if err != nil {
			return err
		}
		defer removeAll(dir)
		m := &machine{Name: "probe", Hostname: "probe", Base: base, dir: dir, Range: ranges - 1}
		if err := n.prepare(dir, m); err != nil {
			return err
		}
		onMountThread(func() { err = n.tryLayout(m) })
		return err
	})
	if err != nil {
		return err
	}
	caps.Root, caps.UIDRange, caps.Layers = true, true, n.p.opts.LayerBytes > 0
	if n.p.base.rootfs == "" {
		caps.Notes = append(caps.Notes, "Machines share this host's /usr: after its packages are upgraded, machines made before are stale. A root file system of their own avoids that.")
		if !exists("/var/lib/dpkg/status") {
			caps.Notes = append(caps.Notes, "This host has no dpkg: packages cannot be installed in machines. Use an unpacked Debian root file system.")
		}
	}
	return nil
}

// tryLayout catches the overlay that is mounted read-only without a word: a file has to arrive on disk, owned
// as machine root owns it.
func (n *namespaces) tryLayout(m *machine) error {
	if err := n.layOut(m); err != nil {
		return err
	}
	disk, err := os.OpenFile(filepath.Join(scratch, "disk", layerRoot, "upper"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer disk.Close()
	unix.SetfsgidRetGid(m.uid())
	unix.SetfsuidRetUid(m.uid())
	err = os.WriteFile(filepath.Join(scratch, "root", "etc", "probe"), []byte("x"), 0o600)
	unix.SetfsuidRetUid(0)
	unix.SetfsgidRetGid(0)
	if err != nil {
		return errors.Join(errSilent, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(disk.Fd()), "etc/probe", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || int(st.Uid) != m.uid() {
		return errors.Join(errSilent, err)
	}
	return nil
}
