// Package local runs machines on this host without any daemon: namespaces, id-mapped overlays and cgroups made
// directly, or bubblewrap where the server is not root.
//
// As root, every machine has a range of 65,536 host uids of its own, a root file system that is the host's
// (or an unpacked image's) under an overlay of its own, no network but loopback, and two nested user
// namespaces, so that nothing that runs in it can become, kill or trace its guest. Machines outlive the server:
// what is needed to find them again lies in the provider's directory.
package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"managoat/sandbox"
)

// Defaults and periods of the provider.
const (
	defaultLayerAge   = 30 * 24 * time.Hour
	defaultLayerBytes = 20 << 30

	startTimeout = time.Minute      // from nothing to a guest that answers, on a host that is short of CPU and disk
	stopTimeout  = 30 * time.Second // for the kernel to end what was killed
	watchPeriod  = 2 * time.Second  // between looks at children and disks
	layerPeriod  = time.Hour        // between looks for layers that are too old
)

// Options of a provider.
type Options struct {
	// Dir holds everything: machines, bases, the guest's binary. It is made 0700.
	Dir string
	// GuestBinary is cmd/managoat-guest, built for this host without cgo.
	GuestBinary []byte
	// MountRoots are the directories below which Spec.Mounts may lie.
	MountRoots []string
	// Rootfs is an unpacked root file system to make machines from; "" uses the host's /usr.
	Rootfs string
	// AptSources replaces the host's package sources inside machines (deb822 or one-line, by its content).
	AptSources []byte
	// ExtraCA is a PEM bundle that machines trust besides the public roots, in guest.CABundle.
	ExtraCA []byte
	// Defaults replace zero limits of a Spec. What is zero here too is sandbox.DefaultLimits.
	Defaults sandbox.Limits
	// LayerAge is for how long machines are made on a layer; 0 is this package's default.
	LayerAge time.Duration
	// LayerBytes is what all layers together may occupy; 0 is this package's default, less keeps none.
	LayerBytes int64
	// Log gets what nobody waits for; nil discards.
	Log *slog.Logger
}

// Provider is the local provider. Close it when the server ends; machines go on.
type Provider struct {
	opts    Options
	log     *slog.Logger
	dir     string
	guest   string // path of the guest's binary
	groups  *hierarchy
	base    *baseStore
	engine  engine
	probed  atomic.Pointer[sandbox.Capabilities]
	locks   keyed
	kids    children
	usage   usage
	halted  sync.Map // names of machines that settle has to clean up after
	stop    context.CancelFunc
	watched sync.WaitGroup
}

// engine starts machines one way or the other.
type engine interface {
	// probe finds out what works here. An error means that no machine can start.
	probe(ctx context.Context, caps *sandbox.Capabilities) error
	// prepare lays out what a new machine needs on disk, in dir.
	prepare(dir string, m *machine) error
	// boot starts the machine's first process and returns its pid.
	boot(ctx context.Context, m *machine, b bootFiles) (pid int, err error)
	// made is told of a machine that was made, released of one that is gone, close of the provider's end.
	made(m *machine)
	released(m *machine)
	close()
	// guestUID is the uid on this host that the machine's guest runs as.
	guestUID(m *machine) int
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Layers   = (*Provider)(nil)
)

// New prepares the provider in opts.Dir and clears away what an earlier one left half done.
func New(opts Options) (*Provider, error) {
	if len(opts.GuestBinary) == 0 {
		return nil, errors.New("local provider: no guest binary: build the server with `make build`")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("local provider: %w", err)
	}
	p := &Provider{opts: opts, dir: dir, log: opts.Log}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.opts.LayerAge == 0 {
		p.opts.LayerAge = defaultLayerAge
	}
	if p.opts.LayerBytes == 0 {
		p.opts.LayerBytes = defaultLayerBytes
	}
	for _, d := range []string{"", "bin", "machines", "making", "trash", "ranges", "base", "layers"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("local provider: %w", err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("local provider: %w", err)
	}
	if p.guest, err = installGuest(filepath.Join(dir, "bin"), opts.GuestBinary); err != nil {
		return nil, fmt.Errorf("local provider: %w", err)
	}
	p.base = &baseStore{dir: filepath.Join(dir, "base"), rootfs: opts.Rootfs, sources: opts.AptSources, ca: opts.ExtraCA}
	p.groups = findHierarchy()
	if os.Geteuid() == 0 {
		p.engine = &namespaces{p: p}
	} else {
		p.engine = &bubblewrap{p: p}
	}
	if err := p.sweep(); err != nil {
		return nil, fmt.Errorf("local provider: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.watched.Add(1)
	go func() {
		defer p.watched.Done()
		p.watch(ctx)
	}()
	return p, nil
}

// Close ends the provider's own work and waits for it. Machines go on; of those that stopped nothing is left.
func (p *Provider) Close() error {
	p.stop()
	p.watched.Wait()
	p.settle(context.Background(), stopTimeout)
	p.engine.close()
	return nil
}

// installGuest writes the guest's binary under a name that changes with its content: a machine that runs keeps
// the one it was started with.
func installGuest(dir string, binary []byte) (string, error) {
	sum := sha256.Sum256(binary)
	name := filepath.Join(dir, "managoat-guest-"+hex.EncodeToString(sum[:6]))
	if have, err := os.ReadFile(name); err == nil && sha256.Sum256(have) == sum {
		return name, nil
	}
	return name, writeFile(name, binary, 0o755)
}

// Name is "local".
func (p *Provider) Name() string { return "local" }

func (p *Provider) limits(l sandbox.Limits) sandbox.Limits {
	return l.Or(p.opts.Defaults).Or(sandbox.DefaultLimits())
}

// watch looks after machines until ctx ends: it reaps those that were this process's children and holds
// their disks to their limits.
func (p *Provider) watch(ctx context.Context) {
	tick, hour := time.NewTicker(watchPeriod), time.NewTicker(layerPeriod)
	defer tick.Stop()
	defer hour.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hour.C:
			if err := p.sweepLayers(ctx); err != nil && ctx.Err() == nil {
				p.log.Error("local provider: old layers are not dropped", "error", err)
			}
		case <-tick.C:
			p.kids.reap()
			p.settle(ctx, watchPeriod)
			p.checkDisks(ctx)
		}
	}
}

// children are machines whose first process this process started. Somebody must wait for them or they stay
// as zombies; they may live longer than this process, so nobody blocks on it.
type children struct {
	mu   sync.Mutex
	pids map[int]bool
}

func (c *children) add(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pids == nil {
		c.pids = make(map[int]bool)
	}
	c.pids[pid] = true
}

func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid := range c.pids {
		if got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); got == pid || errors.Is(err, syscall.ECHILD) {
			delete(c.pids, pid)
		}
	}
}

// keyed is one lock per name.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*entry
}

type entry struct {
	held  chan struct{}
	users int
}

// lock waits for name and returns what releases it.
func (k *keyed) lock(ctx context.Context, name string) (unlock func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[string]*entry)
	}
	e := k.locks[name]
	if e == nil {
		e = &entry{held: make(chan struct{}, 1)}
		k.locks[name] = e
	}
	e.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(k.locks, name)
		}
	}
	select {
	case e.held <- struct{}{}:
		return func() { <-e.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

func fail(class sandbox.Class, op, reason string, err error) error {
	return &sandbox.Error{Class: class, Op: op, Reason: reason, Err: err}
}

// failed classes an error that is not a *sandbox.Error yet. Unknown is never lost.
func failed(op, reason string, err error) error {
	var known *sandbox.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fail(sandbox.Capacity, op, "the host's disk is full", err)
	case errors.Is(err, fs.ErrPermission):
		return fail(sandbox.Denied, op, reason, err)
	}
	return fail(sandbox.Unavailable, op, reason, err)
}
