package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"managoat/sandbox"
	"managoat/sandbox/guest"
	"managoat/sandbox/guest/boot"
	"managoat/sandbox/guest/furniture"
	"managoat/sandbox/guest/shim"
)

// bubblewrap is the engine of a server that is not root. Machines have one uid, the server's own, which they
// see as sprite; there is no machine root.
type bubblewrap struct{ p *Provider }

func (b *bubblewrap) made(*machine)     {}
func (b *bubblewrap) released(*machine) {}
func (b *bubblewrap) close()            {}

func (b *bubblewrap) guestUID(m *machine) int { return os.Geteuid() }

// copied are the parts of a base that such a machine has of its own.
var copied = []string{"etc", "var"}

func (b *bubblewrap) prepare(dir string, m *machine) error {
	base := b.p.base.path(m.Base.Fingerprint)
	for _, name := range copied {
		if err := copyTree(filepath.Join(base, layerRoot, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := copyTree(filepath.Join(base, layerLocal), filepath.Join(dir, layerLocal)); err != nil {
		return err
	}
	for name, mode := range map[string]os.FileMode{"home": 0o755, "tmp": 0o777 | os.ModeSticky, "ctl": 0o700} {
		if err := makeDir(filepath.Join(dir, name), mode, os.Geteuid()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
		return err
	}
	return identity(dir, m.Hostname)
}

// arguments of bwrap up to the program.
func (b *bubblewrap) arguments(m *machine) ([]string, error) {
	args := []string{
		"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup", "--disable-userns", "--as-pid-1", "--clearenv",
		"--uid", strconv.Itoa(shim.SpriteUID), "--gid", strconv.Itoa(shim.SpriteUID), "--hostname", m.Hostname,
		"--cap-drop", "ALL",
	}
	usr := b.p.base.from("/usr")
	args = append(args, "--ro-bind", usr, "/usr")
	for _, l := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if target, err := os.Readlink(b.p.base.from("/" + l)); err == nil {
			args = append(args, "--symlink", target, "/"+l)
		}
	}
	toolsDir, err := b.p.toolsDir()
	if err != nil {
		return nil, err
	}
	args = append(args,
		"--bind", m.path("etc"), "/etc", "--bind", m.path("var"), "/var", "--bind", m.path(layerLocal), "/usr/local",
		"--ro-bind", toolsDir, furniture.ToolsDir, "--bind", m.path("tmp"), "/tmp", "--bind", m.path("home"), guest.Home,
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--dir", "/run/lock", "--dir", "/sys", "--dir", "/opt", "--dir", "/srv", "--dir", "/mnt", "--dir", "/root",
	)
	for _, name := range hiddenFiles() {
		args = append(args, "--ro-bind", "/dev/null", "/proc/"+name)
	}
	for _, mount := range m.Mounts {
		if err := b.p.checkMount(mount); err != nil {
			return nil, err
		}
		args = append(args, "--ro-bind", mount.Source, mount.Target)
	}
	return append(args, "--chdir", "/"), nil
}

// hiddenFiles are the files of /proc that tell about the host and exist on it.
func hiddenFiles() []string {
	var names []string
	for _, name := range []string{"cmdline", "kallsyms", "keys", "timer_list", "config.gz"} {
		if exists("/proc/" + name) {
			names = append(names, name)
		}
	}
	return names
}

// command runs bwrap in a network namespace that has loopback up and lets the guest listen on port 80: bwrap's
// own cannot be given that, since it is made in a user namespace that the guest is not in.
func (b *bubblewrap) command(args []string) (*exec.Cmd, error) {
	program, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, errNoBubblewrap
	}
	ids := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	}
	return &exec.Cmd{
		Path: b.p.guest,
		Args: append([]string{boot.NetworkName, program}, args...),
		Env:  []string{"PATH=/usr/bin:/bin"},
		Dir:  "/",
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids(os.Geteuid()), GidMappings: ids(os.Getegid()),
		},
	}, nil
}

// boot starts bwrap, which stays outside as the machine's parent, and learns from it who is pid 1 inside.
func (b *bubblewrap) boot(ctx context.Context, m *machine, f bootFiles) (int, error) {
	args, err := b.arguments(m)
	if err != nil {
		return 0, err
	}
	info, infoEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer info.Close()
	// Numbers in the child: 3 and up, in order.
	files := []*os.File{f.listen, f.lock, f.ready, f.oom, infoEnd}
	args = append([]string{"--info-fd", strconv.Itoa(2 + len(files))}, append(args, filepath.Join(furniture.ToolsDir, "managoat-guest"))...)
	cmd, err := b.command(args)
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = f.log, f.log, files
	err = cmd.Start()
	infoEnd.Close()
	if err != nil {
		return 0, fmt.Errorf("start bwrap: %w", err)
	}
	b.p.kids.add(cmd.Process.Pid)
	cmd.Process.Release()
	var child struct {
		Pid int `json:"child-pid"`
	}
	raw, err := io.ReadAll(io.LimitReader(info, 4096))
	if err == nil {
		err = json.Unmarshal(raw, &child)
	}
	if err != nil || child.Pid == 0 {
		return 0, m.lastWords(nil)
	}
	return child.Pid, f.group.add(child.Pid)
}

// probe runs a program the way a machine would be run.
func (b *bubblewrap) probe(ctx context.Context, caps *sandbox.Capabilities) error {
	err := b.p.exclusive(ctx, func() error {
		base, err := b.p.base.current()
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp(filepath.Join(b.p.dir, "making"), "probe-")
		if err != nil {
			return err
		}
		defer removeAll(dir)
		m := &machine{Name: "probe", Hostname: "probe", Base: base, dir: dir}
		if err := b.prepare(dir, m); err != nil {
			return err
		}
		args, err := b.arguments(m)
		if err != nil {
			return err
		}
		cmd, err := b.command(append(args, "/usr/bin/touch", "/tmp/probe"))
		if err != nil {
			return err
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("bwrap: %w: %s", err, bytes.TrimSpace(out))
		}
		if !exists(filepath.Join(dir, "tmp", "probe")) {
			return errSilent
		}
		return nil
	})
	if err != nil {
		return err
	}
	caps.Notes = append(caps.Notes,
		"This server is not root: machines have one user. Packages cannot be installed and sudo does not work in them; run the server as root for both.",
		"Machines and this server share one uid of the host: a program that broke out of its namespaces could reach the server's files. Run the server as root to give every machine uids of its own.",
		"Commands of a machine can read each other's environment, another conversation's tokens too.",
		"Paths of this host show in the machines' lists of mounts.",
	)
	return nil
}

// copyTree copies what a machine may have a copy of, owners aside.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return copyOne(p, filepath.Join(to, strings.TrimPrefix(p, from)), d)
	})
}
