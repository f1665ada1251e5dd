package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
)

// Host uids of machines. 1,879,048,192 to 2,147,483,647 is assigned to nobody (systemd's documentation of uid
// ranges calls it unused; users' own ranges in /etc/subuid start at 100,000).
const (
	firstUID  = 0x7000_0000
	rangeSize = 1 << 16
	ranges    = 0x1000_0000 / rangeSize // 4,096 machines
)

// machine is what the provider knows about one: machine.json in its directory, written once.
type machine struct {
	Name     string            `json:"name"`
	Labels   map[string]string `json:"labels"`
	Hostname string            `json:"hostname"`
	Limits   sandbox.Limits    `json:"limits"`
	Mounts   []sandbox.Mount   `json:"mounts"`
	Base     sandbox.Base      `json:"base"`
	Layer    string            `json:"layer,omitempty"` // id of the layer over its base
	Range    int               `json:"range"`           // its uids are firstUID + Range*rangeSize and up
	Created  time.Time         `json:"created"`

	dir string
}

func (m *machine) uid() int { return firstUID + m.Range*rangeSize }
func (m *machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

// life is one run of a machine: run.json in its directory, so that another server can end it.
type life struct {
	Group string `json:"group"` // name of its cgroups
	Pid   int    `json:"pid"`   // of its first process; 0: not known yet
	Born  uint64 `json:"born"`  // start time of that process, in ticks since the host booted
}

// writeFile writes a file through a temporary name, so that it is there whole or not at all.
func writeFile(name string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// flush brings a file to the disk: a machine whose description was lost with the host's power would be taken for a broken
// one, and be built anew.
func flush(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func writeJSON(name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(name, raw, 0o600)
}

func readJSON(name string, v any) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, v)
}

var validName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// load reads a machine. Its directory being gone is the one meaning of NotFound.
func (p *Provider) load(op, id string) (*machine, error) {
	if !validName.MatchString(id) {
		return nil, fail(sandbox.NotFound, op, "there is no machine of that name", nil)
	}
	m := &machine{dir: filepath.Join(p.dir, "machines", id)}
	if _, err := os.Lstat(m.dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fail(sandbox.NotFound, op, "the machine's directory does not exist", nil)
	}
	err := readJSON(m.path("machine.json"), m)
	var syntax *json.SyntaxError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &syntax) {
		return nil, fail(sandbox.Broken, op, "the machine's directory has lost its description", err)
	}
	if err != nil {
		return nil, failed(op, "the machine's description cannot be read", err)
	}
	return m, nil
}

// exclusive runs f while no other process changes the set of machines in this directory.
func (p *Provider) exclusive(ctx context.Context, f func() error) error {
	unlock, err := p.locks.lock(ctx, "/") // no machine has that name
	if err != nil {
		return err
	}
	defer unlock()
	lock, err := os.OpenFile(filepath.Join(p.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return f()
}

// Create makes a machine's directory. It appears under its name whole or not at all.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Created, error) {
	const op = "create"
	if err := p.check(spec); err != nil {
		return sandbox.Created{}, err
	}
	if err := p.ready(ctx); err != nil {
		return sandbox.Created{}, err
	}
	on, err := p.findLayer(ctx, spec)
	if err != nil {
		return sandbox.Created{}, failed(op, "the layers cannot be read", err)
	}
	var created sandbox.Created
	err = p.exclusive(ctx, func() error {
		m, err := p.load(op, spec.Name)
		switch {
		case err == nil && !maps.Equal(m.Labels, spec.Labels):
			return fail(sandbox.Invalid, op, "a machine of that name exists with other labels", nil)
		case err == nil:
			created = p.created(m)
			created.Adopted = true
			return nil
		case sandbox.ClassOf(err) != sandbox.NotFound:
			return err
		}
		if m, err = p.make(spec, on); err != nil {
			return err
		}
		created = p.created(m)
		return nil
	})
	if err != nil {
		return sandbox.Created{}, failed(op, "the machine could not be made", err)
	}
	return created, nil
}

func (p *Provider) created(m *machine) sandbox.Created {
	c := sandbox.Created{ID: m.Name, Base: m.Base}
	if m.Layer != "" {
		l, err := p.loadLayer(m.Layer)
		if err != nil {
			p.log.Warn("local provider: a layer cannot be read", "error", err)
		}
		c.Layer = &l.Layer
	}
	return c
}

func (p *Provider) check(spec sandbox.Spec) error {
	const op = "create"
	if !validName.MatchString(spec.Name) {
		return fail(sandbox.Invalid, op, "a machine's name is 1 to 63 of a-z, 0-9 and -", nil)
	}
	if !validName.MatchString(spec.Hostname) {
		return fail(sandbox.Invalid, op, "a host name is 1 to 63 of a-z, 0-9 and -", nil)
	}
	if spec.Layer != "" && !validName.MatchString(spec.Layer) {
		return fail(sandbox.Invalid, op, "a layer's name is 1 to 63 of a-z, 0-9 and -", nil)
	}
	l := spec.Limits
	if l.MemoryBytes < 0 || l.CPUs < 0 || l.Pids < 0 || l.DiskBytes < 0 {
		return fail(sandbox.Invalid, op, "a limit is negative", nil)
	}
	for _, m := range spec.Mounts {
		if err := p.checkMount(m); err != nil {
			return err
		}
	}
	return nil
}

// checkMount refuses what lies, links resolved, outside the allowed roots, and targets that would cover the
// machine itself.
func (p *Provider) checkMount(m sandbox.Mount) error {
	const op = "create"
	if t := filepath.Clean(m.Target); t != m.Target || !strings.HasPrefix(t, "/opt/") {
		return fail(sandbox.Invalid, op, "a mount's target must lie below /opt", nil)
	}
	source, err := filepath.EvalSymlinks(m.Source)
	if err != nil {
		return fail(sandbox.Invalid, op, "a mount's source does not exist", err)
	}
	for _, root := range p.opts.MountRoots {
		if root, err := filepath.EvalSymlinks(root); err == nil && within(root, source) {
			return nil
		}
	}
	return fail(sandbox.Denied, op, "a mount's source lies outside the directories that may be mounted", nil)
}

func within(root, path string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// make makes a new machine, on a layer when that fits still; the caller holds the directory's lock.
func (p *Provider) make(spec sandbox.Spec, on *layer) (_ *machine, err error) {
	base, err := p.base.current()
	if err != nil {
		return nil, err
	}
	var suffix [6]byte
	rand.Read(suffix[:])
	m := &machine{
		Name: spec.Name, Labels: maps.Clone(spec.Labels), Hostname: spec.Hostname, Limits: p.limits(spec.Limits),
		Mounts: spec.Mounts, Base: base, Created: time.Now().UTC().Truncate(time.Millisecond),
		dir: filepath.Join(p.dir, "making", spec.Name+"-"+hex.EncodeToString(suffix[:])),
	}
	if on != nil && on.Base == base && on.use() {
		m.Layer = on.ID
	}
	defer func() {
		if err != nil {
			os.RemoveAll(m.dir)
		}
	}()
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.engine.prepare(m.dir, m); err != nil {
		return nil, err
	}
	if m.Range, err = p.takeRange(m.Name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.releaseRange(m.Range, m.Name)
		}
	}()
	if err := errors.Join(writeJSON(m.path("machine.json"), m), flush(m.path("machine.json"))); err != nil {
		return nil, err
	}
	final := filepath.Join(p.dir, "machines", m.Name)
	if err := os.Rename(m.dir, final); err != nil {
		return nil, err
	}
	m.dir = final
	p.engine.made(m)
	return m, nil
}

func (p *Provider) rangeLink(n int) string { return filepath.Join(p.dir, "ranges", strconv.Itoa(n)) }

// takeRange takes a free uid range for a machine. The search starts at a place that depends on the directory,
// so that two servers of one host rarely share a range.
func (p *Provider) takeRange(name string) (int, error) {
	taken, err := subordinate()
	if err != nil {
		return 0, err
	}
	h := fnv.New32a()
	h.Write([]byte(p.dir))
	start := int(h.Sum32() % ranges)
	for i := range ranges {
		n := (start + i) % ranges
		if first := firstUID + n*rangeSize; taken.overlap(first, first+rangeSize) {
			continue
		}
		err := os.Symlink(name, p.rangeLink(n))
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return 0, err
		}
	}
	return 0, fail(sandbox.Capacity, "create", "all uid ranges of this host are taken", nil)
}

func (p *Provider) releaseRange(n int, name string) {
	if owner, err := os.Readlink(p.rangeLink(n)); err == nil && owner == name {
		os.Remove(p.rangeLink(n))
	}
}

// spans are half-open ranges of ids.
type spans [][2]int

func (s spans) overlap(from, to int) bool {
	for _, r := range s {
		if from < r[1] && r[0] < to {
			return true
		}
	}
	return false
}

// subordinate reads the ids that belong to users of this host.
func subordinate() (spans, error) {
	var all spans
	for _, name := range []string{"/etc/subuid", "/etc/subgid"} {
		raw, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(string(raw), "\n") {
			f := strings.Split(strings.TrimSpace(line), ":")
			if len(f) != 3 {
				continue
			}
			first, err1 := strconv.Atoi(f[1])
			count, err2 := strconv.Atoi(f[2])
			if err1 == nil && err2 == nil {
				all = append(all, [2]int{first, first + count})
			}
		}
	}
	return all, nil
}

// sweep removes what an earlier process left half done: machines and layers that never got their name, those that
// were being removed, ranges without a machine, bases and layers nobody needs.
func (p *Provider) sweep() error {
	err := p.exclusive(context.Background(), func() error {
		for _, d := range []string{"making", "trash"} {
			entries, err := os.ReadDir(filepath.Join(p.dir, d))
			if err != nil {
				return err
			}
			for _, e := range entries {
				name := filepath.Join(p.dir, d, e.Name())
				if held(name) {
					continue // another process copies into it
				}
				if err := removeAll(name); err != nil {
					p.log.Warn("local provider: leftover cannot be removed", "error", err)
				}
			}
		}
		links, err := os.ReadDir(filepath.Join(p.dir, "ranges"))
		if err != nil {
			return err
		}
		for _, l := range links {
			name := filepath.Join(p.dir, "ranges", l.Name())
			owner, err := os.Readlink(name)
			if err != nil {
				continue
			}
			if _, err := os.Lstat(filepath.Join(p.dir, "machines", owner)); errors.Is(err, fs.ErrNotExist) {
				os.Remove(name)
			}
		}
		used := make(map[string]bool)
		machines, err := p.all()
		if err != nil {
			return err
		}
		for _, m := range machines {
			used[m.Base.Fingerprint] = true
			if running, err := m.running(); err == nil && !running && exists(m.path("run.json")) {
				p.halted.Store(m.Name, nil) // an earlier process did not come to it
			}
		}
		return p.base.sweep(used)
	})
	if err != nil {
		return err
	}
	return p.sweepLayers(context.Background())
}

// all reads every machine. One that cannot be read does not hide the others.
func (p *Provider) all() ([]*machine, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "machines"))
	if err != nil {
		return nil, err
	}
	var ms []*machine
	for _, e := range entries {
		m, err := p.load("list", e.Name())
		if err != nil {
			if sandbox.ClassOf(err) != sandbox.NotFound {
				p.log.Warn("local provider: machine cannot be read", "machine", e.Name(), "error", err)
			}
			continue
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// Inspect tells a machine's state.
func (p *Provider) Inspect(ctx context.Context, id string) (sandbox.Info, error) {
	m, err := p.load("inspect", id)
	if err != nil {
		return sandbox.Info{}, err
	}
	info, err := p.info(m)
	if err != nil {
		return sandbox.Info{}, failed("inspect", "the machine's state cannot be read", err)
	}
	return info, nil
}

func (p *Provider) info(m *machine) (sandbox.Info, error) {
	running, err := m.running()
	if err != nil {
		return sandbox.Info{}, err
	}
	info := sandbox.Info{
		ID: m.Name, Name: m.Name, State: sandbox.Stopped, Labels: m.Labels, Base: m.Base, CreatedAt: m.Created,
	}
	if running {
		info.State = sandbox.Running
	}
	now, err := p.base.fingerprint()
	if err != nil {
		return sandbox.Info{}, err
	}
	info.StaleBase = now != m.Base.Fingerprint
	return info, nil
}

// List lists the machines that carry all of labels.
func (p *Provider) List(ctx context.Context, labels map[string]string) ([]sandbox.Info, error) {
	machines, err := p.all()
	if err != nil {
		return nil, failed("list", "the machines cannot be listed", err)
	}
	var infos []sandbox.Info
next:
	for _, m := range machines {
		for k, v := range labels {
			if have, ok := m.Labels[k]; !ok || have != v {
				continue next
			}
		}
		info, err := p.info(m)
		if errors.Is(err, fs.ErrNotExist) {
			continue // destroyed meanwhile
		}
		if err != nil {
			return nil, failed("list", "a machine's state cannot be read", err)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// A running machine's guest holds a lock on the file "lock" of its directory: on the open file that it
// inherited, so that the lock lives exactly as long as the guest, whoever started it.

func wholeFile(kind int16) *unix.Flock_t { return &unix.Flock_t{Type: kind, Whence: unix.SEEK_SET} }

// running asks for the lock without taking it.
func (m *machine) running() (bool, error) {
	f, err := os.OpenFile(m.path("lock"), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	lock := wholeFile(unix.F_WRLCK)
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, lock); err != nil {
		return false, fmt.Errorf("look at lock: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// take takes the lock. ok is false when the machine runs, or somebody is starting it.
func (m *machine) take() (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(m.path("lock"), os.O_RDWR, 0)
	if err != nil {
		return nil, false, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, wholeFile(unix.F_WRLCK))
	if err == nil {
		return f, true, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("lock: %w", err)
}
