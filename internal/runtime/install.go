package runtime

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

//go:embed locks
var locks embed.FS

// Node is the name under which node and npm are installed: what adapters run on, since a host or a machine may have an
// older node or none.
const Node = "node"

// MountPoint is where the runtimes' directory lies inside every machine, read-only.
const MountPoint = "/opt/managoat/runtimes"

// Times and sizes of an installation.
const (
	installTimeout = 20 * time.Minute       // one npm ci: several hundred megabytes over a slow line
	lockPoll       = 200 * time.Millisecond // between looks at the lock that another installation holds
	progressPace   = 2 * time.Second        // between two progress lines while npm fetches
	npmTail        = 40                     // last lines of npm's output that an error carries
	digestLength   = 8                      // hex digits of the lock's digest in a directory's name
)

// Pinned is one thing we install: an exact version with the lock of all it depends on.
type Pinned struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Digest  string   `json:"digest"` // of the lock file and of what we add: what differs is another installation
	Package string   `json:"-"`      // the npm package that the runtime starts
	Entry   string   `json:"-"`      // the file of it, below node_modules
	After   string   `json:"-"`      // what must be installed first
	files   []string // must be there after an installation, below its directory
}

// packages are what can be installed, in order.
var packages = []Pinned{
	pin(Node, "npm", "npm/bin/npm-cli.js", "", "node_modules/"+nodePackage()+"/bin/node"),
	pin(Claude, "@agentclientprotocol/claude-agent-acp", "@agentclientprotocol/claude-agent-acp/dist/index.js", Node,
		"node_modules/@anthropic-ai/claude-agent-sdk-linux-"+nodeArch()+"/claude"),
}

func pin(name, pkg, entry, after string, files ...string) Pinned {
	manifest, err := locks.ReadFile(path.Join("locks", name, "package.json"))
	if err != nil {
		panic(err) // embedded
	}
	lock, err := locks.ReadFile(path.Join("locks", name, "package-lock.json"))
	if err != nil {
		panic(err)
	}
	var m struct{ Version string }
	if err := json.Unmarshal(manifest, &m); err != nil {
		panic(err)
	}
	if after == Node {
		lock = append(lock, compileCacheScript...)
	} else {
		lock = append(lock, npmrc...)
	}
	sum := sha256.Sum256(lock)
	return Pinned{Name: name, Version: m.Version, Digest: hex.EncodeToString(sum[:])[:digestLength], Package: pkg, Entry: entry, After: after,
		files: append(files, "node_modules/"+entry)}
}

// Dir is where this version lies below the runtimes' directory.
func (p Pinned) Dir() string { return path.Join(p.Name, p.Version+"-"+p.Digest) }

// inMachine is a file of the package as a machine sees it.
func (p Pinned) inMachine(file string) string { return path.Join(MountPoint, p.Dir(), file) }

// complete tells whether the version is installed below dir. Installations appear by a rename, so what is there is whole.
func (p Pinned) complete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, p.Dir()))
	return err == nil
}

// Installable names what Install takes.
func Installable() []string {
	names := make([]string, len(packages))
	for i, p := range packages {
		names[i] = p.Name
	}
	return names
}

func pinned(name string) (Pinned, bool) {
	i := slices.IndexFunc(packages, func(p Pinned) bool { return p.Name == name })
	if i < 0 {
		return Pinned{}, false
	}
	return packages[i], true
}

// Prepare makes the runtimes' directory, so that it can be mounted before anything is installed in it.
func Prepare(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, Node)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("runtimes directory: %w", err)
		}
	}
	return nil
}

// Mounts are the read-only mounts that every machine gets, whatever is installed: what is installed later appears in the
// machines that run already. dir is an absolute path that Prepare made.
func Mounts(dir string) []sandbox.Mount {
	return []sandbox.Mount{
		{Source: dir, Target: MountPoint},
		{Source: filepath.Join(dir, Node), Target: path.Dir(guest.NodePath)},
	}
}

// Installed tells whether the pinned version of what a runtime installs is there; "", nothing, always is.
func Installed(name, dir string) bool {
	p, ok := pinned(name)
	return name == "" || ok && p.complete(dir) && (p.After == "" || Installed(p.After, dir))
}

// Found is one installation in the runtimes' directory.
type Found struct {
	Name        string    `json:"name"`
	Version     string    `json:"version"`
	Path        string    `json:"path"`
	Current     bool      `json:"current"` // the version this server starts
	InstalledAt time.Time `json:"installed_at"`
}

// List shows what is installed below dir, by name and version.
func List(dir string) ([]Found, error) {
	found := []Found{}
	for _, p := range packages {
		entries, err := os.ReadDir(filepath.Join(dir, p.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list runtimes: %w", err)
		}
		for _, e := range entries {
			version, _, ok := strings.Cut(e.Name(), "-")
			if !e.IsDir() || !ok || version == "" {
				continue
			}
			info, err := e.Info()
			if err != nil {
				return nil, fmt.Errorf("list runtimes: %w", err)
			}
			found = append(found, Found{Name: p.Name, Version: version, Path: filepath.Join(dir, p.Name, e.Name()),
				Current: e.Name() == path.Base(p.Dir()), InstalledAt: info.ModTime().UTC()})
		}
	}
	return found, nil
}

// Install installs the pinned version of a runtime below dir, with what it needs, exactly as its lock says. One
// installation of a name runs at a time on a host; the others wait and find it done. progress gets lines for people.
func Install(ctx context.Context, name, dir string, progress func(string)) error {
	p, ok := pinned(name)
	if !ok {
		return fmt.Errorf("there is nothing to install for %q: %s are installed", name, strings.Join(Installable(), ", "))
	}
	if p.After != "" {
		if err := Install(ctx, p.After, dir, progress); err != nil {
			return err
		}
	}
	if err := Prepare(dir); err != nil {
		return err
	}
	unlock, err := lockName(ctx, dir, name, progress)
	if err != nil {
		return err
	}
	defer unlock()
	if p.complete(dir) {
		progress(fmt.Sprintf("%s %s is installed", p.Name, p.Version))
		return nil
	}
	start := time.Now()
	progress(fmt.Sprintf("installing %s %s (%s)", p.Name, p.Version, p.Package))
	if err := p.install(ctx, dir, progress); err != nil {
		return fmt.Errorf("install %s %s: %w", p.Name, p.Version, err)
	}
	progress(fmt.Sprintf("installed %s %s in %.1f s", p.Name, p.Version, time.Since(start).Seconds()))
	return nil
}

func (p Pinned) install(ctx context.Context, dir string, progress func(string)) error {
	final := filepath.Join(dir, p.Dir())
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return err
	}
	// Beside its last place, so that the rename cannot cross file systems; named so that List takes it for nothing.
	staging, err := os.MkdirTemp(filepath.Dir(final), ".installing")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	for _, file := range []string{"package.json", "package-lock.json"} {
		b, err := locks.ReadFile(path.Join("locks", p.Name, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(staging, file), b, 0o644); err != nil {
			return err
		}
	}
	npm, err := npmCommand(dir)
	if err != nil {
		return err
	}
	if err := runNPM(ctx, npm, staging, progress); err != nil {
		return err
	}
	if p.Name == Node {
		if err := errors.Join(linkPrograms(staging), os.WriteFile(filepath.Join(staging, "node_modules/npm/npmrc"), []byte(npmrc), 0o644)); err != nil {
			return err
		}
	}
	for _, file := range p.files {
		if _, err := os.Stat(filepath.Join(staging, file)); err != nil {
			return fmt.Errorf("npm ended well and %s is not there: the package does not fit this host (%s)", file, nodeArch())
		}
	}
	if err := p.addCompileCache(ctx, dir, staging, progress); err != nil {
		return err
	}
	// A umask of ours must not keep the machines' users out.
	if err := openTree(staging); err != nil {
		return err
	}
	if err := os.Rename(staging, final); err != nil {
		return err
	}
	if p.Name == Node {
		return pointNode(dir, final)
	}
	return nil
}

// npmrc is npm's own configuration: what is installed globally in a machine goes where its programs are looked for. Beside our
// node nothing can be written.
const npmrc = "prefix=/usr/local\n"

// linkPrograms makes the bin directory of node, npm and npx.
func linkPrograms(dir string) error {
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"node": "../node_modules/" + nodePackage() + "/bin/node",
		"npm":  "../node_modules/npm/bin/npm-cli.js",
		"npx":  "../node_modules/npm/bin/npx-cli.js",
	} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// pointNode makes <dir>/node/bin lead to the newest installation, by a rename: machines have it on their PATH.
func pointNode(dir, final string) error {
	link := filepath.Join(dir, Node, "bin")
	tmp := link + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(path.Join(filepath.Base(final), "bin"), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, link)
}

// npmCommand is our own npm where it is installed, else the host's: the first installation must come from somewhere.
func npmCommand(dir string) ([]string, error) {
	// What is installed is for machines, which are Linux; a server elsewhere cannot run it.
	if node, ok := pinned(Node); ok && node.complete(dir) && goruntime.GOOS == "linux" {
		root := filepath.Join(dir, node.Dir())
		return []string{filepath.Join(root, "bin", "node"), filepath.Join(root, "node_modules", node.Entry)}, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil, errors.New("npm is not installed on this host, and is needed once: apt-get install npm")
	}
	return []string{npm}, nil
}

func runNPM(ctx context.Context, npm []string, dir string, progress func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	// No package of the locks has an install script that it needs, so none may run.
	argv := append(slices.Clone(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--include=optional", "--loglevel=http",
		"--os=linux", "--cpu="+nodeArch(), "--libc=glibc")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = npmEnv(dir, filepath.Dir(npm[0]))
	// Its own group, ended whole: npm's children outlive it otherwise.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var fetched atomic.Int64
	told := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(progressPace)
		defer tick.Stop()
		start := time.Now()
		for {
			select {
			case <-tick.C:
				progress(fmt.Sprintf("%d packages fetched, %.0f s", fetched.Load(), time.Since(start).Seconds()))
			case <-stop:
				return
			}
		}
	}()
	tail := readNPM(out, &fetched)
	err = cmd.Wait()
	close(stop)
	<-told
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("npm ci: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("npm ci: %w\n%s", err, strings.Join(tail, "\n"))
	}
	return nil
}

// readNPM counts what npm says it fetched and keeps the last lines of all else.
func readNPM(r io.Reader, fetched *atomic.Int64) []string {
	var tail []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "npm http ") {
			if strings.Contains(line, ".tgz") {
				fetched.Add(1)
			}
			continue
		}
		if len(tail) == npmTail {
			tail = tail[1:]
		}
		tail = append(tail, line)
	}
	io.Copy(io.Discard, r) // a line too long for the scanner must not block npm
	return tail
}

// npmEnv is the server's own environment, so that a proxy or a registry set there holds, without what npm would take
// for settings of another project.
func npmEnv(dir, node string) []string {
	env := []string{}
	path := os.Getenv("PATH")
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name == "PATH" || name == "NODE_OPTIONS" || name == "NODE_ENV" || strings.HasPrefix(name, "npm_package_") || strings.HasPrefix(name, "npm_lifecycle_") {
			continue
		}
		env = append(env, v)
	}
	env = append(env, "PATH="+node+":"+path, "npm_config_update_notifier=false")
	if home, err := os.UserHomeDir(); err != nil || home == "" {
		env = append(env, "HOME="+dir) // a service without a home: the cache goes with the staging directory
	}
	return env
}

// openTree lets everybody read what was installed.
func openTree(dir string) error {
	return filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if e.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		if mode == info.Mode().Perm() {
			return nil
		}
		return os.Chmod(p, mode)
	})
}

// lockName takes the lock of one name below dir. The kernel frees it when the process ends, however it ends.
func lockName(ctx context.Context, dir, name string, progress func(string)) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for told := false; ; told = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !told {
			progress("waiting for another installation of " + name)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
}

// Version is the pinned version of what a runtime installs; "" for one that installs nothing, or cannot be installed yet.
func Version(name string) string {
	p, _ := pinned(name)
	return p.Version
}
