package local

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
	"managoat/sandbox/guest/furniture"
)

// baseVersion changes when what this file writes changes.
const baseVersion = "2"

// baseStore makes the read-only layers that machines are made from: for the host's own /usr a curated root
// around it, for an unpacked root file system the few files of ours on top.
type baseStore struct {
	dir     string
	rootfs  string // "" for the host
	sources []byte
	ca      []byte

	mu    sync.Mutex
	known string   // fingerprint …
	seen  [2]stamp // … of these states of what it is made from
}

// stamp is enough of a file's state to see that it changed.
type stamp struct {
	size  int64
	mtime time.Time
}

func stampOf(name string) stamp {
	st, err := os.Stat(name)
	if err != nil {
		return stamp{}
	}
	return stamp{st.Size(), st.ModTime()}
}

// layers of a base, as directories below it.
const (
	layerRoot  = "root"  // / without /usr
	layerUsr   = "usr"   // over the host's /usr
	layerLocal = "local" // /usr/local: empty, whatever the host has there
)

func (b *baseStore) from(name string) string { return filepath.Join("/", b.rootfs, name) }

func (b *baseStore) name() string {
	if b.rootfs == "" {
		return "host"
	}
	return filepath.Base(b.rootfs)
}

// fingerprint names the base as it would be made now: it changes when the host's packages do.
func (b *baseStore) fingerprint() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sources := [2]string{b.from("/var/lib/dpkg/status"), b.from("/usr/lib/os-release")}
	now := [2]stamp{stampOf(sources[0]), stampOf(sources[1])}
	if b.known != "" && now == b.seen {
		return b.known, nil
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%d\n%s\n%d\n%s\n", baseVersion, b.rootfs, len(b.sources), b.sources, len(b.ca), b.ca)
	for _, name := range sources {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // not every system has dpkg
		}
		if err != nil {
			return "", fmt.Errorf("fingerprint of the base: %w", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("fingerprint of the base: %w", err)
		}
	}
	b.known, b.seen = hex.EncodeToString(h.Sum(nil)[:16]), now
	return b.known, nil
}

func (b *baseStore) path(fingerprint string) string { return filepath.Join(b.dir, fingerprint) }

// current returns the base of now and makes it when it is not there yet. The caller holds the provider's lock.
func (b *baseStore) current() (sandbox.Base, error) {
	fp, err := b.fingerprint()
	if err != nil {
		return sandbox.Base{}, err
	}
	base := sandbox.Base{Name: b.name(), Fingerprint: fp}
	if exists(b.path(fp)) {
		return base, nil
	}
	tmp := filepath.Join(b.dir, ".making")
	if err := removeAll(tmp); err != nil {
		return sandbox.Base{}, err
	}
	if err := b.make(tmp); err != nil {
		return sandbox.Base{}, fmt.Errorf("make base: %w", err)
	}
	return base, os.Rename(tmp, b.path(fp))
}

// sweep removes bases that no machine uses and that would not be made now.
func (b *baseStore) sweep(used map[string]bool) error {
	now, err := b.fingerprint()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !used[e.Name()] && e.Name() != now {
			if err := removeAll(filepath.Join(b.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// hostEtc is what a machine gets of the host's /etc. It is a list of what may, because administrators keep
// secrets there; files that not everybody may read are left out even so.
var hostEtc = strings.Fields(`
adduser.conf alternatives bash.bashrc bash_completion.d ca-certificates ca-certificates.conf cron.d cron.daily cron.weekly
dbus-1 debconf.conf debian_version default deluser.conf dpkg emacs fonts gai.conf groff host.conf init.d inputrc
issue issue.net java-17-openjdk java-21-openjdk ld.so.cache ld.so.conf ld.so.conf.d libaudit.conf locale.alias locale.gen
localtime logcheck login.defs logrotate.d magic magic.mime mailcap mime.types mke2fs.conf mysql nanorc networks nsswitch.conf
os-release pam.conf pam.d perl profile protocols python3 python3.11 python3.12 python3.13 rc0.d rc1.d rc2.d rc3.d
rc4.d rc5.d rc6.d rcS.d rmt rpc security selinux services sgml shells skel ssl subgid subuid sysctl.d systemd
terminfo timezone tmpfiles.d ucf.conf udev update-motd.d vim xattr.conf xdg xml
apt/keyrings apt/preferences.d apt/sources.list apt/sources.list.d apt/trusted.gpg apt/trusted.gpg.d`)

// hostVar is the state of packages, without which apt and dpkg could not go on from what is installed.
var hostVar = strings.Fields(`lib/dpkg lib/apt/extended_states lib/ucf lib/pam lib/python lib/shells.state cache/debconf/config.dat cache/debconf/templates.dat`)

// secret paths below what is copied, and locks that belong to the host's own processes.
var leftOut = []string{"etc/ssl/private", "var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend", "var/lib/dpkg/triggers/Lock"}

func (b *baseStore) make(dir string) error {
	root := filepath.Join(dir, layerRoot)
	for _, d := range []struct {
		name string
		mode fs.FileMode
		uid  int
	}{
		{".", 0o755, 0}, {"boot", 0o755, 0}, {"dev", 0o755, 0}, {"etc", 0o755, 0}, {"home", 0o755, 0}, {"home/sprite", 0o755, 1000},
		{"media", 0o755, 0}, {"mnt", 0o755, 0}, {"opt", 0o755, 0}, {"proc", 0o555, 0}, {"root", 0o700, 0}, {"run", 0o755, 0},
		{"srv", 0o755, 0}, {"sys", 0o555, 0}, {"tmp", 0o777 | fs.ModeSticky, 0}, {"usr", 0o755, 0}, {"var", 0o755, 0},
	} {
		if err := makeDir(filepath.Join(root, d.name), d.mode, d.uid); err != nil {
			return err
		}
	}
	for _, d := range []string{"bin", "etc", "include", "lib", "libexec", "sbin", "share", "share/man", "src"} {
		if err := makeDir(filepath.Join(dir, layerLocal, d), 0o755, 0); err != nil {
			return err
		}
	}
	for _, tool := range furniture.Tools {
		if tool.Link != "" {
			if err := os.Symlink("../lib/managoat/"+tool.Name, filepath.Join(dir, layerLocal, "bin", tool.Link)); err != nil {
				return err
			}
		}
	}
	if err := makeDir(filepath.Join(dir, layerUsr, "sbin"), 0o755, 0); err != nil {
		return err
	}
	if b.rootfs == "" {
		if err := b.hostLayer(root); err != nil {
			return err
		}
	}
	if err := b.accounts(root); err != nil {
		return err
	}
	return b.ourFiles(dir)
}

func makeDir(name string, mode fs.FileMode, uid int) error {
	if err := os.MkdirAll(name, 0o755); err != nil {
		return err
	}
	if err := chown(name, uid); err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

// chown gives a file to a uid of the machine; a server that is not root has one uid only.
func chown(name string, uid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(name, uid, uid)
}

// hostLayer copies what a machine needs of the host besides /usr.
func (b *baseStore) hostLayer(root string) error {
	for _, l := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		target, err := os.Readlink("/" + l)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("/%s is not a link into /usr: this host cannot lend its /usr to machines, use an unpacked root file system", l)
		}
		if err := os.Symlink(target, filepath.Join(root, l)); err != nil {
			return err
		}
	}
	for _, name := range hostEtc {
		if err := copyHost(root, path.Join("etc", name)); err != nil {
			return err
		}
	}
	for _, d := range []string{"backups", "cache/apt/archives/partial", "lib/apt/lists/partial", "lib/misc", "lib/systemd", "local", "log/apt", "mail", "opt", "spool"} {
		if err := os.MkdirAll(filepath.Join(root, "var", d), 0o755); err != nil {
			return err
		}
	}
	if os.Geteuid() == 0 { // without machine root nothing is installed
		for _, name := range hostVar {
			if err := copyHost(root, path.Join("var", name)); err != nil {
				return err
			}
		}
		if err := packageDirs(root); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "/proc/mounts"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	return makeDir(filepath.Join(root, "var/tmp"), 0o777|fs.ModeSticky, 0)
}

// packageDirs makes the directories below /var that the host's packages brought: their maintainer scripts and
// programs expect them. Nothing in them is copied.
func packageDirs(root string) error {
	lists, err := filepath.Glob("/var/lib/dpkg/info/*.list")
	if err != nil {
		return err
	}
	var dirs []string
	for _, l := range lists {
		raw, err := os.ReadFile(l)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(raw), "\n") {
			if strings.HasPrefix(line, "/var/") {
				dirs = append(dirs, line)
			}
		}
	}
	slices.Sort(dirs)
	for _, d := range slices.Compact(dirs) {
		st, err := os.Lstat(d)
		if err != nil || !st.IsDir() || exists(filepath.Join(root, d)) {
			continue
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(d)), 0o755); err != nil {
			return err
		}
		if err := copyDir(d, filepath.Join(root, d), st); err != nil {
			return err
		}
	}
	return nil
}

// copyHost copies a file or tree of the host to the same place below root. What is not there is left out.
func copyHost(root, name string) error {
	err := filepath.WalkDir("/"+name, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		if slices.Contains(leftOut, strings.TrimPrefix(p, "/")) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return copyOne(p, filepath.Join(root, p), d)
	})
	if err != nil {
		return fmt.Errorf("copy /%s: %w", name, err)
	}
	return nil
}

func copyOne(from, to string, d fs.DirEntry) error {
	st, err := d.Info()
	if err != nil {
		return nil // gone meanwhile
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	switch mode := st.Mode(); {
	case mode.IsDir():
		return copyDir(from, to, st)
	case mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !mode.IsRegular() || mode.Perm()&0o004 == 0:
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		return err
	}
	return likeness(to, st)
}

func copyDir(from, to string, st fs.FileInfo) error {
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return likeness(to, st)
}

// likeness gives a copy the owner, mode and time of its original.
func likeness(name string, st fs.FileInfo) error {
	if os.Geteuid() == 0 {
		uid, gid := owner(st)
		if err := os.Lchown(name, uid, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(name, st.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)); err != nil {
		return err
	}
	return os.Chtimes(name, st.ModTime(), st.ModTime())
}

func owner(st fs.FileInfo) (uid, gid int) {
	s := st.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}

// accounts writes the users and groups of a machine: the base's system accounts, and sprite.
func (b *baseStore) accounts(root string) error {
	system := func(name string) ([]string, error) {
		raw, err := os.ReadFile(b.from("/etc/" + name))
		if errors.Is(err, fs.ErrNotExist) {
			return []string{map[string]string{"passwd": "root:x:0:0:root:/root:/bin/bash", "group": "root:x:0:"}[name]}, nil
		}
		if err != nil {
			return nil, err
		}
		var lines []string
		for _, line := range strings.Split(string(raw), "\n") {
			f := strings.Split(line, ":")
			if len(f) < 4 || f[0] == "sprite" || (len(f[2]) > 3 && f[2] != "65534") {
				continue // ids of people have four digits and more
			}
			if name == "group" {
				f[3] = "" // members are people of the host
			}
			lines = append(lines, strings.Join(f, ":"))
		}
		return lines, nil
	}
	users, err := system("passwd")
	if err != nil {
		return err
	}
	groups, err := system("group")
	if err != nil {
		return err
	}
	users = append(users, furniture.Passwd)
	groups = append(groups, furniture.Group)
	locked := func(lines []string, format string) []byte {
		var out bytes.Buffer
		for _, l := range lines {
			name, _, _ := strings.Cut(l, ":")
			fmt.Fprintf(&out, format, name)
		}
		return out.Bytes()
	}
	shadow := 0
	for _, g := range groups {
		if f := strings.Split(g, ":"); f[0] == "shadow" {
			fmt.Sscan(f[2], &shadow)
		}
	}
	for _, f := range []struct {
		name string
		data []byte
		mode fs.FileMode
		gid  int
	}{
		{"passwd", []byte(strings.Join(users, "\n") + "\n"), 0o644, 0},
		{"group", []byte(strings.Join(groups, "\n") + "\n"), 0o644, 0},
		{"shadow", locked(users, "%s:*:19000:0:99999:7:::\n"), 0o640, shadow},
		{"gshadow", locked(groups, "%s:*::\n"), 0o640, shadow},
	} {
		name := filepath.Join(root, "etc", f.name)
		if err := os.WriteFile(name, f.data, f.mode); err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(name, 0, f.gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(name, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// publicRoots is where systems keep the bundle of public certificate authorities.
var publicRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

func (b *baseStore) ourFiles(dir string) error {
	root := filepath.Join(dir, layerRoot)
	files := map[string][]byte{"etc/machine-id": nil, "etc/environment": nil, "etc/fstab": nil}
	for name, text := range furniture.Files {
		files[strings.TrimPrefix(name, "/")] = []byte(text)
	}
	if len(b.sources) > 0 {
		if err := removeAll(filepath.Join(root, "etc/apt/sources.list.d")); err != nil {
			return err
		}
		name := "etc/apt/sources.list.d/managoat.list"
		if bytes.Contains(b.sources, []byte("Types:")) {
			name = "etc/apt/sources.list.d/managoat.sources"
		}
		files[name] = b.sources
		files["etc/apt/sources.list"] = nil
	}
	if len(b.ca) > 0 {
		bundle := slices.Clone(b.ca)
		for _, name := range publicRoots {
			if raw, err := os.ReadFile(b.from(name)); err == nil {
				bundle = append(append(raw, '\n'), b.ca...)
				break
			}
		}
		files[strings.TrimPrefix(guest.CABundle, "/")] = bundle
	}
	for name, data := range files {
		if err := writeLayer(root, name, data, 0o644); err != nil {
			return err
		}
	}
	where, name := filepath.Join(dir, layerUsr), "sbin/policy-rc.d"
	if b.rootfs != "" {
		where, name = root, "usr/sbin/policy-rc.d"
	}
	return writeLayer(where, name, []byte(furniture.Policy), 0o755)
}

func writeLayer(root, name string, data []byte, mode fs.FileMode) error {
	name = filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(name, data, mode); err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

// identity writes what is a machine's own in /etc, into dir (the machine's upper layer).
func identity(dir, hostname string) error {
	for name, data := range map[string]string{"hosts": furniture.Hosts(hostname), "hostname": hostname + "\n"} {
		if err := writeLayer(dir, "etc/"+name, []byte(data), 0o644); err != nil {
			return err
		}
	}
	return nil
}
