// Package sandbox is the contract between Managoat and whatever runs its machines.
//
// A Provider makes, starts, stops and destroys machines and opens byte streams to the guest, the small
// supervisor that is pid 1 of every machine. Everything else (commands, files, adapters, egress) goes
// through the guest (package guest), so that a provider stays small, boring and replaceable. The
// conformance suite in sandbox/conformance is the contract's definition.
//
// This package and all below it import nothing from internal/.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

// Provider runs machines of one kind. All methods are safe for concurrent use. Methods that name a machine
// take the ID that Create returned and answer an *Error of class NotFound when it does not exist.
type Provider interface {
	// Name is the provider's name in settings and in the API: "local", "docker".
	Name() string

	// Capabilities tells what this provider can do on this host. It is probed once, cheap to call after.
	Capabilities(ctx context.Context) (Capabilities, error)

	// Create makes a machine named spec.Name and does not start it. It is keyed by name: when a machine of
	// that name exists with the same labels it is adopted and Created.Adopted is true.
	Create(ctx context.Context, spec Spec) (Created, error)

	// Inspect tells the state the provider sees. A machine whose process is gone and whose disk is there
	// is Stopped, never lost.
	Inspect(ctx context.Context, id string) (Info, error)

	// Start starts a stopped machine and returns when its guest answers. Starting a running one is success.
	Start(ctx context.Context, id string) error

	// Stop ends every process of the machine and keeps its disk. Stopping a stopped one is success.
	Stop(ctx context.Context, id string) error

	// Destroy removes the machine with its disk. Destroying what is gone is success.
	Destroy(ctx context.Context, id string) error

	// List shows every machine that carries all the given labels.
	List(ctx context.Context, labels map[string]string) ([]Info, error)

	// Guest opens a new byte stream to the guest of a running machine. Several may be open at once: the
	// server holds one, the egress process another. A machine that is not running is Unavailable.
	Guest(ctx context.Context, id string) (net.Conn, error)

	// Stats reads what a machine uses now.
	Stats(ctx context.Context, id string) (Stats, error)
}

// Capabilities of a provider on this host. A field that is false comes with a sentence in Notes that says
// what to do about it.
type Capabilities struct {
	Root        bool     `json:"root"`         // commands may run as machine root: packages steps and sudo work
	UIDRange    bool     `json:"uid_range"`    // every machine has a range of host uids of its own
	MemoryLimit bool     `json:"memory_limit"` // Spec.Limits.MemoryBytes is enforced
	CPULimit    bool     `json:"cpu_limit"`    // Spec.Limits.CPUs is enforced
	PidsLimit   bool     `json:"pids_limit"`   // Spec.Limits.Pids is enforced
	DiskLimit   bool     `json:"disk_limit"`   // Spec.Limits.DiskBytes is enforced (by a quota or by polling)
	Layers      bool     `json:"layers"`       // the provider is a Layers: what one machine installed is there for others
	Notes       []string `json:"notes"`        // one sentence per thing that is missing, with the way to get it
}

// Spec describes a machine to make. It holds no secret.
type Spec struct {
	Name     string            // unique per provider; [a-z0-9-]{1,63}
	Labels   map[string]string // instance, tenant, workspace, machine, epoch: see the Label constants
	Hostname string            // the name inside; [a-z0-9-]{1,63}
	Limits   Limits
	Mounts   []Mount // read-only host directories; the provider refuses anything outside its allowed roots
	Layer    string  // name of the layer to stand on, where there is one that fits (see Layers); "" wants none
}

// Limits of a machine. Zero means the provider's default.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	Pids        int64   `json:"pids"`
	DiskBytes   int64   `json:"disk_bytes"`
}

// Or is these limits, with those of d where one is zero or less.
func (l Limits) Or(d Limits) Limits {
	if l.MemoryBytes <= 0 {
		l.MemoryBytes = d.MemoryBytes
	}
	if l.CPUs <= 0 {
		l.CPUs = d.CPUs
	}
	if l.Pids <= 0 {
		l.Pids = d.Pids
	}
	if l.DiskBytes <= 0 {
		l.DiskBytes = d.DiskBytes
	}
	return l
}

// DefaultLimits are those of a machine for which nobody says others.
func DefaultLimits() Limits {
	return Limits{MemoryBytes: 4 << 30, CPUs: float64(runtime.NumCPU()), Pids: 2048, DiskBytes: 20 << 30}
}

// Mount shows a host directory inside a machine, always read-only (the runtimes' adapters and node). Directories on its
// second level, such as claude/1.2.3, appear whole and never change.
type Mount struct {
	Source string // host path
	Target string // path inside, absolute
}

// Label names that everything of ours carries. The reaper lives on them and touches nothing without them.
const (
	LabelInstance  = "managoat.instance"
	LabelTenant    = "managoat.tenant"
	LabelWorkspace = "managoat.workspace"
	LabelMachine   = "managoat.machine"
	LabelEpoch     = "managoat.epoch"
	LabelHost      = "managoat.host" // the server whose it is, where several share a provider, as an engine
)

// Created is the answer to Create.
type Created struct {
	ID      string
	Adopted bool // true when a machine of that name was there already
	Base    Base
	Layer   *Layer // what it stands on; nil: nothing but its base
}

// Sharer is the part of a provider whose machines see a copy of a host directory that is mounted, not the directory itself.
type Sharer interface {
	// Share brings what machines see of a Mount's Source, those that run included, up to date with what lies there.
	Share(ctx context.Context, source string) error
}

// Layers is the part of a provider that keeps what was installed in one machine, so that machines made later need not
// install it. A provider may lack it: Capabilities.Layers tells.
//
// A layer lies between a machine's base and what the machine writes. It is for machines of the same instance and account
// (their labels) and of the same base, whatever its name; it never changes, and is never taken from under a machine,
// running or stopped. The provider may drop one that no machine stands on, by age and for its room: a caller that asks for
// a layer must be ready to get a machine without.
type Layers interface {
	// Snapshot copies what was installed in a machine: its system directories, without home directories, temporary files,
	// caches of package managers, and what tells machines apart. The machine may run; nothing should be installed in it
	// meanwhile. A machine that stands on a layer itself is Invalid.
	Snapshot(ctx context.Context, id string) (Snapshot, error)

	// ListLayers shows every layer that carries all the given labels.
	ListLayers(ctx context.Context, labels map[string]string) ([]Layer, error)

	// RemoveLayer removes a layer. Removing what is gone is success; one that a machine stands on is Unavailable.
	RemoveLayer(ctx context.Context, id string) error
}

// Snapshot is the copy of what was installed in a machine, which is no layer yet. It ends with Keep or Discard; what an
// ended process left is removed at the provider's next start.
type Snapshot interface {
	// Keep makes it the layer of that name ([a-z0-9-]{1,63}), in the place of an older one. When it returns the layer is
	// on disk, whole.
	Keep(ctx context.Context, name string) error
	// Discard removes it. After Keep it does nothing.
	Discard() error
}

// Layer describes a layer.
type Layer struct {
	ID        string
	Name      string
	Labels    map[string]string // instance and tenant of the machine it was taken from
	Base      Base
	Bytes     int64 // on disk
	Machines  int   // that stand on it
	CreatedAt time.Time
	UsedAt    time.Time // when a machine was last made on it
}

// Base names what a machine's root file system was made from.
type Base struct {
	Name        string `json:"name"`        // "host" for the host's own /usr, else the rootfs's or image's name
	Fingerprint string `json:"fingerprint"` // digest that changes when the base changes
}

// State of a machine as the provider sees it.
type State string

// States. A machine that does not exist has none: the provider answers NotFound.
const (
	Stopped State = "stopped"
	Running State = "running"
)

// Info describes one machine.
type Info struct {
	ID     string
	Name   string
	State  State
	Labels map[string]string
	Base   Base
	// StaleBase is true when the base's fingerprint is no longer the one this machine was made from.
	StaleBase bool
	CreatedAt time.Time
}

// Stats is what a machine uses at the moment of the call.
type Stats struct {
	MemoryBytes    int64         `json:"memory_bytes"`
	MemoryLimit    int64         `json:"memory_limit_bytes"` // 0: none
	CPUTime        time.Duration `json:"-"`                  // since start
	Pids           int64         `json:"pids"`
	DiskBytes      int64         `json:"disk_bytes"` // what the machine wrote, not its base or layer
	DiskLimit      int64         `json:"disk_limit_bytes"`
	OOMKills       int64         `json:"oom_kills"` // since start
	DiskFull       bool          `json:"disk_full"`
	MeasuredAt     time.Time     `json:"measured_at"`
	DiskMeasuredAt time.Time     `json:"disk_measured_at"` // disk is measured less often than the rest
}

// Class sorts a provider's errors by what the caller may conclude.
type Class string

// Classes of errors. Only NotFound and Broken mean that a machine is lost.
const (
	NotFound    Class = "not_found"   // the provider says it does not exist
	Broken      Class = "broken"      // it exists and can never start again
	Unavailable Class = "unavailable" // unknown, or not now: try later, touch nothing
	Denied      Class = "denied"      // the provider refuses us
	Invalid     Class = "invalid"     // the request can never work
	Capacity    Class = "capacity"    // no room now
)

// Error is what every Provider method returns when it fails.
type Error struct {
	Class  Class
	Op     string // "create", "start", …
	Reason string // a sentence a person can act on, without host secrets
	Err    error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("sandbox %s: %s: %s: %v", e.Op, e.Class, e.Reason, e.Err)
	}
	return fmt.Sprintf("sandbox %s: %s: %s", e.Op, e.Class, e.Reason)
}

func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of err. An error that is not a provider's is Unavailable: unknown is never lost.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Unavailable
}

// Lost tells whether err means that the machine is gone for good.
func Lost(err error) bool {
	c := ClassOf(err)
	return err != nil && (c == NotFound || c == Broken)
}
