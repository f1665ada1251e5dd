// Package dockertest starts a Docker Engine for tests: a private one, with a directory, a socket and containers of its own,
// and an image made of this host's Debian packages, since there may be no registry.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// Image is the image that the engine has: what Debian calls essential, and what agents use.
const Image = "managoat-test:latest"

// packages that the image is made of, besides the essential ones; what they depend on comes along.
var packages = []string{"apt", "ca-certificates", "curl", "git", "passwd", "procps", "python3", "python3-pip", "xz-utils"}

const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// Engine is a running engine.
type Engine struct {
	Host string // its address
	Dir  string
	args []string
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
}

var shared struct {
	once   sync.Once
	engine *Engine
	err    error
}

// Open is the engine of this test binary, with Image in it. Close stops it.
func Open() (*Engine, error) {
	shared.once.Do(func() {
		shared.engine, shared.err = Start(context.Background())
		if shared.err == nil {
			shared.err = shared.engine.Import(context.Background())
		}
		if shared.err != nil {
			shared.err = fmt.Errorf("the tests' Docker Engine: %w (Debian's package docker.io has one; `make test` installs it)", shared.err)
		}
	})
	return shared.engine, shared.err
}

// Shared is Open for a test.
func Shared(tb testing.TB) *Engine {
	tb.Helper()
	e, err := Open()
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// Close stops the engine that a package's tests shared. What they left in it is a fault.
func Close() error {
	if shared.engine == nil {
		return nil
	}
	return shared.engine.Remove()
}

// Start starts an engine in a new directory. Its containers have no network, so that it needs no bridge and changes no
// rules of this host's firewall.
func Start(ctx context.Context) (*Engine, error) {
	program, err := exec.LookPath("dockerd")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dk")
	if err != nil {
		return nil, err
	}
	e := &Engine{Host: "unix://" + filepath.Join(dir, "s"), Dir: dir}
	if e.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	e.args = []string{program, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "x"), "--pidfile", filepath.Join(dir, "pid"),
		"--host", e.Host, "--bridge", "none", "--iptables=false", "--ip6tables=false"}
	return e, e.Run(ctx)
}

// Run starts the engine's process again, after Stop or Kill.
func (e *Engine) Run(ctx context.Context) error {
	e.cmd = exec.Command(e.args[0], e.args[1:]...)
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	e.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		defer close(done)
		cmd.Wait()
	}(e.cmd, e.done)
	c, err := e.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		_, err := c.Ping(ctx, client.PingOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-e.done:
			return fmt.Errorf("it ended at once:\n%s", e.lastLog())
		default:
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("it does not answer: %w\n%s", err, e.lastLog()), e.Stop())
		}
	}
}

func (e *Engine) lastLog() string {
	raw, _ := os.ReadFile(e.log.Name())
	return string(raw[max(0, len(raw)-4096):])
}

// Client speaks to the engine.
func (e *Engine) Client() (*client.Client, error) { return client.New(client.WithHost(e.Host)) }

// Stop ends the engine's process as an operator does: its containers end with it.
func (e *Engine) Stop() error { return e.end(syscall.SIGTERM) }

// Kill ends the engine's process without a word, and that of its containerd, as a host's sudden end does. Containers may go on.
func (e *Engine) Kill() error {
	err := e.end(syscall.SIGKILL)
	file := filepath.Join(e.Dir, "x", "containerd", "containerd.pid")
	raw, rerr := os.ReadFile(file)
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	if pid, perr := strconv.Atoi(strings.TrimSpace(string(raw))); perr == nil {
		syscall.Kill(pid, syscall.SIGKILL) // gone already, it may be
	}
	return errors.Join(err, os.Remove(file))
}

func (e *Engine) end(sig syscall.Signal) error {
	e.cmd.Process.Signal(sig)
	select {
	case <-e.done:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("the engine did not end:\n%s", e.lastLog())
	}
}

// Remove ends the engine, with its containers, and removes its directory.
func (e *Engine) Remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	c, err := e.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	left, err := c.ContainerList(ctx, client.ContainerListOptions{All: true})
	for _, item := range left.Items {
		_, rerr := c.ContainerRemove(ctx, item.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, rerr)
	}
	err = errors.Join(err, e.Stop(), e.sweep())
	e.log.Close()
	return errors.Join(err, os.RemoveAll(e.Dir))
}

// Sweep ends the engine at an address, whose tests were killed, and removes its directory.
func Sweep(host string) error {
	e := &Engine{Host: host, Dir: filepath.Dir(strings.TrimPrefix(host, "unix://"))}
	return errors.Join(e.sweep(), os.RemoveAll(e.Dir))
}

// sweep ends what an engine that was killed left behind: the processes that watched its containers, and their mounts.
func (e *Engine) sweep() error {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		line, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if bytes.Contains(line, []byte(e.Dir+"/")) && pid > 0 && pid != os.Getpid() {
			err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	mounts, rerr := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(mounts), "\n")
	slices.Reverse(lines) // what was mounted last goes first
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], e.Dir+"/") {
			err = errors.Join(err, syscall.Unmount(f[4], syscall.MNT_DETACH))
		}
	}
	return errors.Join(err, rerr)
}

// Import gives the engine its image.
func (e *Engine) Import(ctx context.Context) error {
	c, err := e.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := rootfs(t)
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	answer, err := c.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, Image, client.ImageImportOptions{})
	if err != nil {
		return fmt.Errorf("import the image: %w", err)
	}
	defer answer.Close()
	said, err := io.ReadAll(answer)
	if err == nil && bytes.Contains(said, []byte(`"error"`)) {
		err = fmt.Errorf("import the image: %s", said)
	}
	return err
}

// rootfs writes a root file system of the files of this host's packages.
func rootfs(w *tar.Writer) error {
	names, err := closure()
	if err != nil {
		return err
	}
	done := map[string]bool{"/etc/passwd": true, "/etc/group": true, "/etc/shadow": true, "/var/lib/dpkg/status": true}
	for _, d := range []struct {
		name string
		mode int64
	}{
		{"boot", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"opt", 0o755}, {"proc", 0o555}, {"root", 0o700}, {"run", 0o755}, {"srv", 0o755}, {"sys", 0o555},
		{"tmp", 0o1777}, {"usr", 0o755}, {"usr/bin", 0o755}, {"usr/lib", 0o755}, {"usr/lib64", 0o755}, {"usr/sbin", 0o755}, {"var", 0o755}, {"var/lib", 0o755}, {"var/lib/dpkg", 0o755}, {"var/tmp", 0o1777},
		{"var/lib/apt", 0o755}, {"var/lib/apt/lists", 0o755}, {"var/cache", 0o755}, {"var/cache/apt", 0o755}, {"var/log", 0o755},
	} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d.name + "/", Mode: d.mode}); err != nil {
			return err
		}
		done["/"+d.name] = true
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: l, Linkname: "usr/" + l, Mode: 0o777}); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := addPath(w, name, done); err != nil {
			return err
		}
	}
	users := "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	groups := "root:x:0:\ndaemon:x:1:\ntty:x:5:\nwww-data:x:33:\nshadow:x:42:\nnogroup:x:65534:\n"
	for _, f := range []struct {
		name, text string
		mode       int64
	}{{"etc/passwd", users, 0o644}, {"etc/group", groups, 0o644}, {"etc/shadow", "root:*:19000:0:99999:7:::\n", 0o640}, {"var/lib/dpkg/status", "", 0o644}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.text)), Mode: f.mode}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, f.text); err != nil {
			return err
		}
	}
	return nil
}

// skipped is what nobody reads in a test.
var skipped = []string{"/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/", "/usr/share/bash-completion/", "/usr/lib/modules/"}

func addPath(w *tar.Writer, name string, done map[string]bool) error {
	// Packages name files by directories that are links into /usr now.
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err != nil {
		return nil // the host's own administrator has removed it
	}
	name = filepath.Join(dir, filepath.Base(name))
	if done[name] || slices.ContainsFunc(skipped, func(s string) bool { return strings.HasPrefix(name+"/", s) }) {
		return nil
	}
	done[name] = true
	st, err := os.Lstat(name)
	if err != nil || name == "/" {
		return nil
	}
	if parent := filepath.Dir(name); parent != "/" && !done[parent] {
		if err := addPath(w, parent, done); err != nil {
			return err
		}
	}
	link := ""
	switch mode := st.Mode(); {
	case mode&os.ModeSymlink != 0:
		if slices.Contains([]string{"/bin", "/lib", "/lib64", "/sbin", "/lib32", "/libx32"}, name) {
			return nil
		}
		if link, err = os.Readlink(name); err != nil {
			return err
		}
	case !mode.IsRegular() && !mode.IsDir():
		return nil
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(name, "/")
	if st.IsDir() {
		h.Name += "/"
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if link != "" {
		// What a link of Debian's alternatives leads to belongs to a package, the link itself to none.
		if strings.HasPrefix(link, "/etc/alternatives/") {
			return addPath(w, link, done)
		}
		return nil
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w, f, st.Size())
	return err
}

// closure lists the files of the packages and of all they depend on.
func closure() ([]string, error) {
	raw, err := os.ReadFile("/var/lib/dpkg/status")
	if err != nil {
		return nil, fmt.Errorf("the image is made of Debian's packages: %w", err)
	}
	type pkg struct{ arch, depends string }
	all, want := map[string]pkg{}, slices.Clone(packages)
	for stanza := range strings.SplitSeq(string(raw), "\n\n") {
		fields := map[string]string{}
		for line := range strings.SplitSeq(stanza, "\n") {
			if k, v, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
				fields[k] = v
			}
		}
		if !strings.HasSuffix(fields["Status"], " installed") {
			continue
		}
		all[fields["Package"]] = pkg{fields["Architecture"], fields["Pre-Depends"] + "," + fields["Depends"]}
		if fields["Essential"] == "yes" {
			want = append(want, fields["Package"])
		}
	}
	var files []string
	seen := map[string]bool{}
	for len(want) > 0 {
		name := want[0]
		want = want[1:]
		p, ok := all[name]
		if seen[name] || !ok {
			continue
		}
		seen[name] = true
		list, err := os.ReadFile("/var/lib/dpkg/info/" + name + ".list")
		if err != nil {
			list, err = os.ReadFile("/var/lib/dpkg/info/" + name + ":" + p.arch + ".list")
		}
		if err != nil {
			return nil, err
		}
		files = append(files, strings.Split(strings.TrimSpace(string(list)), "\n")...)
		for alternatives := range strings.SplitSeq(p.depends, ",") {
			for one := range strings.SplitSeq(alternatives, "|") {
				dep, _, _ := strings.Cut(strings.TrimSpace(one), " ")
				dep, _, _ = strings.Cut(dep, ":")
				if _, ok := all[dep]; ok {
					want = append(want, dep)
					break
				}
			}
		}
	}
	return files, nil
}
