// Package diskwatch is the policy of a disk limit that is kept by looking, since no quota works on every file system: a
// machine over its limit is frozen, so that nothing of it is lost, until it is stopped and started, which gives it a little
// room to delete in. How a disk is measured and a machine frozen is its provider's.
package diskwatch

import (
	"sync"
	"time"
)

// Fresh is how old a measurement may be that a provider's Stats reports.
const Fresh = 5 * time.Second

const (
	slack    = 64 << 20 // bytes that a machine which starts over its limit may still write
	patience = 10       // looking takes at most one part in this many of the time
)

// Disks is what is known of the disks of a provider's machines. Its zero value knows nothing.
type Disks struct {
	mu sync.Mutex
	by map[string]Measured
}

// Measured is one machine's disk.
type Measured struct {
	Bytes int64
	At    time.Time
	took  time.Duration
	allow int64 // bytes it may use before it is frozen
}

// Full tells that the machine has no room left.
func (m Measured) Full() bool { return m.allow > 0 && m.Bytes >= m.allow }

// Forget is for a machine that starts, which gives it its room, or is gone.
func (d *Disks) Forget(machine string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.by, machine)
}

// Last returns the last measurement since the machine's start.
func (d *Disks) Last(machine string) (Measured, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.by[machine]
	return m, ok
}

// Measure returns what a machine with a limit in bytes (0 is none) uses: as look finds it now, or as it was found no longer ago
// than fresh, but for a disk that takes long to look at.
func (d *Disks) Measure(machine string, limit int64, fresh time.Duration, look func() (int64, error)) (Measured, error) {
	if m, ok := d.Last(machine); ok && time.Since(m.At) < max(fresh, m.took*patience) {
		return m, nil
	}
	began := time.Now()
	bytes, err := look()
	if err != nil {
		return Measured{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil {
		d.by = map[string]Measured{}
	}
	m, known := d.by[machine]
	switch {
	case limit <= 0 || bytes < limit:
		m.allow = limit
	case !known:
		m.allow = bytes + slack
	}
	m.Bytes, m.At, m.took = bytes, time.Now(), time.Since(began)
	d.by[machine] = m
	return m, nil
}
