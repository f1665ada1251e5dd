package local

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"managoat/sandbox/diskwatch"
)

const (
	diskNoise  = 16 << 20         // a change of the host's free space that is not worth a look
	diskPeriod = 30 * time.Second // between looks when nothing changes
)

// usage is what is known of machines' disks.
type usage struct {
	diskwatch.Disks
	mu      sync.Mutex
	free    int64 // of the host's disk at the last round
	lastAll time.Time
}

// of returns what a machine uses, measured now or no longer ago than fresh, but for a disk that takes long to look at.
func (u *usage) of(m *machine, fresh time.Duration) (diskwatch.Measured, error) {
	return u.Measure(m.Name, m.Limits.DiskBytes, fresh, func() (int64, error) { return diskUse(m.dir) })
}

// diskUse adds up what the files below dir occupy. What vanishes meanwhile does not count.
func diskUse(dir string) (int64, error) {
	var total int64
	seen := make(map[uint64]bool) // files with several names
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p == dir {
				return err
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Nlink > 1 && !d.IsDir() {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		total += st.Blocks * 512
		return nil
	})
	return total, err
}

// checkDisks freezes running machines whose disk is over its limit.
func (p *Provider) checkDisks(ctx context.Context) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(p.dir, &st); err != nil {
		p.log.Error("local provider: the disk cannot be watched", "error", err)
		return
	}
	free := int64(st.Bfree) * st.Bsize
	p.usage.mu.Lock()
	quiet := max(free-p.usage.free, p.usage.free-free) < diskNoise && time.Since(p.usage.lastAll) < diskPeriod
	p.usage.mu.Unlock()
	if quiet {
		return
	}
	machines, err := p.all()
	if err != nil {
		p.log.Error("local provider: disks cannot be watched", "error", err)
		return
	}
	began, all := time.Now(), true
	for _, m := range machines {
		if ctx.Err() != nil {
			return
		}
		if running, err := m.running(); err != nil || !running {
			continue
		}
		d, err := p.usage.of(m, 0)
		switch {
		case err != nil:
		case d.Full():
			all = p.freezeFull(ctx, m) && all
		case d.At.Before(began):
			all = false // it was too early for another look, and what changed may be here
		}
	}
	if !all {
		return // and look again at the next round
	}
	p.usage.mu.Lock()
	p.usage.free, p.usage.lastAll = free, time.Now()
	p.usage.mu.Unlock()
}

// freezeFull freezes a machine whose disk was found full. It holds the machine's lock, for what was found may be
// of a run before this one: a machine that has just been started to make room would stand still before its guest
// is ready. It returns false when somebody else holds the lock for longer.
func (p *Provider) freezeFull(ctx context.Context, m *machine) bool {
	patience, cancel := context.WithTimeout(ctx, watchPeriod)
	defer cancel()
	unlock, err := p.locks.lock(patience, m.Name)
	if err != nil {
		return false
	}
	defer unlock()
	if running, err := m.running(); err != nil || !running {
		return true
	}
	d, _ := p.usage.Last(m.Name)
	if !d.Full() {
		return true // it was started again meanwhile
	}
	l, any, err := p.lastLife(ctx, m)
	if err != nil || !any {
		return true
	}
	g := p.groups.group(l.Group)
	if g.frozen() {
		return true
	}
	p.log.Warn("local provider: a machine's disk is full", "machine", m.Name, "bytes", d.Bytes, "limit", m.Limits.DiskBytes)
	if err := g.freeze(true); err == nil {
		return true
	}
	// Without a cgroup that freezes, the only way to keep the limit is to end what writes.
	if err := p.end(ctx, m, false); err != nil {
		p.log.Error("local provider: a machine whose disk is full cannot be stopped", "machine", m.Name, "error", err)
	}
	return true
}
