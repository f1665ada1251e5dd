// Package furniture is what every machine has besides its base: the sandbox's account, the tools that the guest's binary
// stands for, and the files that make package managers work behind the guest.
package furniture

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/shim"
)

// ToolsDir is where the guest's binary lies under the names of Tools.
const ToolsDir = "/usr/local/lib/managoat"

// Tools are the names under which the guest's binary can be called inside a machine, and the links to them in
// /usr/local/bin.
var Tools = []struct{ Name, Link string }{{"sudo", "sudo"}, {"managoat", "managoat"}, {"bash", ""}, {"sh", ""}, {"managoat-guest", ""}}

// Account of the sandbox's user. Some adapters run the shell of the user's account, whatever SHELL says.
const (
	Passwd = "sprite:x:1000:1000::" + guest.Home + ":" + guest.Shell
	Group  = "sprite:x:1000:"
)

// Files are the same in every machine.
var Files = map[string]string{
	// apt goes through the guest, waits for its lock, and lets dpkg skip a sync per file on a disk that is not the host's.
	"/etc/apt/apt.conf.d/00managoat": `Acquire::http::Proxy "http://` + guest.ProxyAddr + `";
Acquire::https::Proxy "http://` + guest.ProxyAddr + `";
DPkg::Lock::Timeout "120";
Dpkg::Options:: "--force-unsafe-io";
`,
	// A login shell's /etc/profile takes from PATH what this restores.
	"/etc/profile.d/managoat.sh": `if [ -d ` + guest.NodePath + ` ]; then PATH="$PATH:` + guest.NodePath + `"; export PATH; fi
`,
	"/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
}

// Policy, as /usr/sbin/policy-rc.d, keeps packages from starting services: there is no init that would.
const Policy = "#!/bin/sh\nexit 101\n"

// Hosts is a machine's /etc/hosts.
func Hosts(hostname string) string {
	return fmt.Sprintf("127.0.0.1 localhost\n127.0.1.1 %s.internal %[1]s\n%s %s\n%s %s\n",
		hostname, guest.ModelAddr, guest.ModelHost, guest.APIAddr, guest.APIHost)
}

// Furnish puts everything into the root file system this process runs in, as its root, where it is not there already. What
// machine root has put in the way is replaced. links are more of them, as bridge.LinksVariable has them.
func Furnish(program, links string) error {
	for _, d := range []struct {
		name string
		mode fs.FileMode
		uid  int
	}{
		{ToolsDir, 0o755, 0}, {"/usr/local/bin", 0o755, 0}, {guest.Home, 0o755, shim.SpriteUID}, {shim.RootHome, 0o700, 0},
		{"/tmp", 0o1777, 0}, {"/var/tmp", 0o1777, 0}, {"/run/lock", 0o1777, 0},
	} {
		if err := directory(d.name, d.mode, d.uid); err != nil {
			return err
		}
	}
	for _, tool := range Tools {
		if err := link(program, path.Join(ToolsDir, tool.Name)); err != nil {
			return err
		}
		if tool.Link == "" {
			continue
		}
		if err := link(path.Join(ToolsDir, tool.Name), path.Join("/usr/local/bin", tool.Link)); err != nil {
			return err
		}
	}
	for l := range strings.SplitSeq(links, ":") {
		name, to, ok := strings.Cut(l, "=")
		if !ok {
			continue
		}
		if err := errors.Join(directory(path.Dir(name), 0o755, 0), link(to, name)); err != nil {
			return err
		}
	}
	for name, text := range Files {
		if err := file(name, text, 0o644); err != nil {
			return err
		}
	}
	if err := file("/usr/sbin/policy-rc.d", Policy, 0o755); err != nil {
		return err
	}
	return errors.Join(account("/etc/passwd", Passwd), account("/etc/group", Group), account("/etc/shadow", "sprite:*:19000:0:99999:7:::"))
}

// directory makes a directory and those above it.
func directory(name string, mode fs.FileMode, uid int) error {
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		return nil
	}
	if parent := path.Dir(name); parent != "/" {
		if err := directory(parent, 0o755, 0); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(name); err != nil { // a file, or a link to nothing
		return fmt.Errorf("make %s: %w", name, err)
	}
	if err := os.Mkdir(name, mode.Perm()); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	if err := os.Lchown(name, uid, uid); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	if mode.Perm() != mode { // bits that os spells otherwise
		mode = mode.Perm() | fs.ModeSticky
	}
	return os.Chmod(name, mode)
}

func link(target, name string) error {
	if now, err := os.Readlink(name); err == nil && now == target {
		return nil
	}
	if err := os.RemoveAll(name); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := os.Symlink(target, name); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return nil
}

// maxFile is more than any file holds that is read here.
const maxFile = 1 << 20

// plain reads a file, if it is one: what machine root put in its place may never end, so it is removed unread.
func plain(name string) ([]byte, error) {
	if st, err := os.Lstat(name); err == nil && st.Mode().IsRegular() && st.Size() <= maxFile {
		return os.ReadFile(name)
	}
	return nil, os.RemoveAll(name)
}

// file writes a file whose directory is there or can be made.
func file(name, text string, mode fs.FileMode) error {
	if err := directory(path.Dir(name), 0o755, 0); err != nil {
		return err
	}
	now, err := plain(name)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if string(now) == text {
		return nil
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Chmod(name, mode)
}

// account adds a line after that of root, so that the number belongs to the sandbox's user whoever else the image gave it to.
func account(name, line string) error {
	now, err := plain(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if bytes.HasPrefix(now, []byte("sprite:")) || bytes.Contains(now, []byte("\nsprite:")) {
		return nil
	}
	mode := fs.FileMode(0o644)
	if name == "/etc/shadow" {
		mode = 0o640
	}
	if st, err := os.Stat(name); err == nil {
		mode = st.Mode().Perm()
	}
	root, rest, _ := strings.Cut(string(now), "\n")
	if root == "" {
		root = map[string]string{"/etc/passwd": "root:x:0:0:root:/root:/bin/sh", "/etc/group": "root:x:0:", "/etc/shadow": "root:*:19000:0:99999:7:::"}[name]
	}
	if err := os.WriteFile(name, []byte(root+"\n"+line+"\n"+rest), mode); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
