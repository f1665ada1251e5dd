// Package machine runs machines: it makes, starts, stops and destroys them through their providers, keeps their rows,
// holds the connections to their guests, and tells the egress process about them. It knows nobody above it: what a
// machine is for is the workspace's business.
//
// What changes a machine runs as an operation that one server owns (package operation), and every write names its epoch.
// A machine is lost only when its provider says that it does not exist or can never start again; every other error is
// unknown and touches nothing.
package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/machine/operation"
	"managoat/internal/peer"
	"managoat/internal/quota"
	"managoat/internal/refusal"
	"managoat/queries"
	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// Status of a machine, as in the API's machine_status.
type Status string

// Statuses. People read "parked" for Suspended.
const (
	Pending    Status = "pending"
	Starting   Status = "starting"
	Ready      Status = "ready"
	Suspended  Status = "suspended"
	Terminated Status = "terminated"
	Failed     Status = "failed"
	Lost       Status = "lost"
)

// Times and limits.
const (
	createTimeout  = 2 * time.Minute  // making a machine, its base included where the provider builds it first
	startTimeout   = 2 * time.Minute  // from a start until the guest answers, the end of the last run included
	destroyTimeout = 2 * time.Minute  // of a machine with a large disk
	stopTimeout    = 30 * time.Second //
	inspectTimeout = 10 * time.Second // what only asks
	connectTimeout = 10 * time.Second // to a guest that should be there
	reachTimeout   = 15 * time.Second // until the egress process reaches a machine that just started
	fleetRetry     = time.Minute      // a client's next try when the instance is full
	awayRetry      = 10 * time.Second // a client's next try when a machine or its host does not answer
)

// Options of the service.
type Options struct {
	Host     uuid.UUID // of this server, the same after a restart
	URL      string    // at which other servers reach this one
	Version  string    // of this server
	Instance string    // name of the instance, which everything of ours carries; one database, one instance

	Providers map[string]sandbox.Provider // the enabled ones, by name
	Default   string                      // the provider of workspaces that name none

	Peers  *peer.Client // nil: other servers cannot be asked
	Egress *broker.Client
	Limits sandbox.Limits
	Mounts func(context.Context) ([]sandbox.Mount, error) // what every new machine sees of the host; nil: nothing
	Quotas quota.Defaults
	Fleet  int // machines that run on the whole instance at once
	Most   int // machines that run on this host at once; 0: no bound

	Log *slog.Logger // nil: slog.Default()
}

// OnChange is told of every change of a machine in its transaction.
type OnChange func(ctx context.Context, tx db.Tx, tenantID, workspaceID uuid.UUID) error

// Service runs the machines of one host.
type Service struct {
	db       *db.DB
	o        Options
	log      *slog.Logger
	onChange OnChange

	mu      sync.Mutex
	links   map[uuid.UUID]*link     // by machine
	samples map[uuid.UUID]cpuSample // by machine of this host
	news    chan struct{}           // closed when something is asked of this host
}

// New makes the service. onChange may be nil.
func New(d *db.DB, o Options, onChange OnChange) *Service {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Mounts == nil {
		o.Mounts = func(context.Context) ([]sandbox.Mount, error) { return nil, nil }
	}
	if onChange == nil {
		onChange = func(context.Context, db.Tx, uuid.UUID, uuid.UUID) error { return nil }
	}
	return &Service{db: d, o: o, log: o.Log, onChange: onChange, links: map[uuid.UUID]*link{}, samples: map[uuid.UUID]cpuSample{}, news: make(chan struct{})}
}

// Host is the id of this server's host.
func (s *Service) Host() uuid.UUID { return s.o.Host }

// Limits are those of new machines.
func (s *Service) Limits() sandbox.Limits { return s.o.Limits }

// Providers lists the enabled providers by name, the default one first.
func (s *Service) Providers() []string {
	names := slices.Sorted(maps.Keys(s.o.Providers))
	slices.SortStableFunc(names, func(a, b string) int {
		switch s.o.Default {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	return names
}

// DefaultProvider is the provider of workspaces that name none.
func (s *Service) DefaultProvider() string { return s.o.Default }

// Provider returns an enabled provider, or the refusal sandbox_provider_disabled.
func (s *Service) Provider(name string) (sandbox.Provider, error) {
	if p, ok := s.o.Providers[name]; ok {
		return p, nil
	}
	return nil, refusal.New(refusal.ProviderDisabled,
		"This instance does not offer the sandbox provider %q now. Ask its operator to enable it again (MANAGOAT_SANDBOX_PROVIDERS), or make a workspace on another provider.", name).
		With("provider", name).With("enabled", s.Providers())
}

// Plan adds the row of a machine to make, on the host where there is the most room for it: the preferred one where several
// have as much. The operation that makes it is that host's. It is the last check of its transaction, and holds what it counted
// to the commit.
func (s *Service) Plan(ctx context.Context, tx db.Tx, tenantID, id, workspaceID uuid.UUID, provider string, preferred *uuid.UUID) error {
	host, err := s.AdmitNew(ctx, tx, tenantID, provider, preferred)
	if err != nil {
		return err
	}
	return insert(ctx, tx, id, workspaceID, provider, host)
}

// PlanHere is Plan for a setup that this server has taken up and begins again. Its machine was counted before.
func (s *Service) PlanHere(ctx context.Context, tx db.Tx, id, workspaceID uuid.UUID, provider string) error {
	return insert(ctx, tx, id, workspaceID, provider, s.o.Host)
}

func insert(ctx context.Context, tx db.Tx, id, workspaceID uuid.UUID, provider string, host uuid.UUID) error {
	if err := tx.InsertMachine(ctx, queries.InsertMachineParams{ID: id, WorkspaceID: workspaceID, Provider: provider, HostID: host}); err != nil {
		return fmt.Errorf("plan a machine: %w", err)
	}
	return nil
}

// AdmitNew checks that another machine may be made, and tells on which host it would be: the account's quota, the instance's
// ceiling, and that there is such a host.
func (s *Service) AdmitNew(ctx context.Context, tx db.Tx, tenantID uuid.UUID, provider string, preferred *uuid.UUID) (uuid.UUID, error) {
	if preferred == nil {
		preferred = &s.o.Host
	}
	if err := s.admitFleet(ctx, tx); err != nil {
		return uuid.Nil, err
	}
	host, err := tx.PlacedOn(ctx, provider, preferred)
	if err == nil && host == uuid.Nil {
		// This server lives, whatever its last sign of life says: the database may have been away.
		if _, err = tx.SeeHost(ctx, s.o.Host); err == nil {
			host, err = tx.PlacedOn(ctx, provider, preferred)
		}
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("place a machine: %w", err)
	}
	if host == uuid.Nil {
		return uuid.Nil, refusal.New(refusal.NoHost, "No host of this instance takes another machine of the provider %q now: each is away, full or being drained. Try again later; its operator sees why with managoat host list.", provider).RetryAfter(fleetRetry)
	}
	return host, quota.CheckMachine(ctx, tx, tenantID, s.o.Quotas)
}

// AdmitWake checks that a parked machine may run again, where its disk is: the account's quota, and the ceilings of the
// instance and of that host. It is the last check of the transaction that makes the machine starting, and holds the counts
// to its commit.
func (s *Service) AdmitWake(ctx context.Context, tx db.Tx, row queries.Machine) error {
	if err := s.admitFleet(ctx, tx); err != nil {
		return err
	}
	if row.HostID != nil {
		full, err := tx.HostFull(ctx, *row.HostID)
		if err != nil {
			return fmt.Errorf("count the machines of a host: %w", err)
		}
		if full {
			return refusal.New(refusal.FleetFull, "The host that has the machine's disk runs as many machines as it may. Try again when one has parked.").RetryAfter(fleetRetry)
		}
	}
	return quota.CheckMachine(ctx, tx, row.TenantID, s.o.Quotas)
}

func (s *Service) admitFleet(ctx context.Context, tx db.Tx) error {
	if err := tx.LockFleet(ctx); err != nil {
		return fmt.Errorf("lock the fleet: %w", err)
	}
	running, err := tx.RunningMachines(ctx)
	if err != nil {
		return fmt.Errorf("count the fleet: %w", err)
	}
	if running >= int64(s.o.Fleet) {
		return refusal.New(refusal.FleetFull, "This instance runs %d machines, as many as it may. Try again when one has parked.", running).RetryAfter(fleetRetry)
	}
	return nil
}

// told makes a write that changes a machine: how is one of the operation's ways to write. Who watches is told in the same
// transaction, and woken after it.
func (s *Service) told(ctx context.Context, h *operation.Held, how func(context.Context, func(db.Tx) error) error, fn func(db.Tx) error) error {
	return how(ctx, func(tx db.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return s.onChange(ctx, tx, h.TenantID, h.WorkspaceID)
	})
}

func (s *Service) write(ctx context.Context, h *operation.Held, fn func(db.Tx) error) error {
	return s.told(ctx, h, h.Write, fn)
}

// Built is a machine that was just made and answers.
type Built struct {
	Provider     string
	Base         sandbox.Base
	Hostname     string
	Capabilities sandbox.Capabilities
	Layer        *sandbox.Layer // of packages, that it stands on; nil: none
	Guest        *guest.Client
}

// Build makes the planned machine and starts it, on the named layer of packages where there is one. hostname is a name for
// people; what a host name cannot hold is left out.
func (s *Service) Build(ctx context.Context, h *operation.Held, id uuid.UUID, hostname, layer string) (*Built, error) {
	row, err := s.db.Tenant(h.TenantID).Machine(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read the machine: %w", err)
	}
	p, err := s.Provider(row.Provider)
	if err != nil {
		return nil, err
	}
	b := &Built{Provider: row.Provider, Hostname: hostName(hostname)}
	if b.Capabilities, err = p.Capabilities(ctx); err != nil {
		return nil, err
	}
	mounts, err := s.o.Mounts(ctx)
	if err != nil {
		return nil, fmt.Errorf("what the machine sees of the host: %w", err)
	}
	limits, err := json.Marshal(s.o.Limits)
	if err != nil {
		return nil, err
	}
	err = s.write(ctx, h, func(tx db.Tx) error {
		return tx.PlaceMachine(ctx, queries.PlaceMachineParams{ID: id, HostID: s.o.Host, Epoch: h.Epoch, Limits: limits})
	})
	if err != nil {
		return nil, err
	}
	creating, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	created, err := p.Create(creating, sandbox.Spec{
		Name: "mg-" + id.String(), Hostname: b.Hostname, Limits: s.o.Limits, Mounts: mounts, Layer: layer,
		Labels: map[string]string{
			sandbox.LabelInstance: s.o.Instance, sandbox.LabelTenant: h.TenantID.String(), sandbox.LabelWorkspace: h.WorkspaceID.String(),
			sandbox.LabelMachine: id.String(), sandbox.LabelEpoch: fmt.Sprint(h.Epoch), sandbox.LabelHost: s.o.Host.String(),
		},
	})
	if err != nil {
		return nil, err
	}
	b.Base, b.Layer = created.Base, created.Layer
	base, err := json.Marshal(created.Base)
	if err != nil {
		return nil, err
	}
	err = s.write(ctx, h, func(tx db.Tx) error {
		return tx.StartMachine(ctx, queries.StartMachineParams{ID: id, ProviderRef: created.ID, Base: base})
	})
	if err != nil {
		return nil, err
	}
	row.ProviderRef = created.ID
	if b.Guest, err = s.start(ctx, p, row); err != nil {
		return nil, err
	}
	return b, nil
}

// Share brings what machines of a provider see of this host's directories up to date, where that is a copy.
func (s *Service) Share(ctx context.Context, provider string) error {
	p, err := s.Provider(provider)
	if err != nil {
		return err
	}
	sharer, ok := p.(sandbox.Sharer)
	if !ok {
		return nil
	}
	mounts, err := s.o.Mounts(ctx)
	for _, m := range mounts {
		err = errors.Join(err, sharer.Share(ctx, m.Source))
	}
	return err
}

func (s *Service) start(ctx context.Context, p sandbox.Provider, row queries.Machine) (*guest.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.unlink(row.ID)
	if err := p.Start(ctx, row.ProviderRef); err != nil {
		return nil, err
	}
	return s.dialHere(ctx, p, row)
}

// Route tells the egress process about a machine that runs, with its policy as built, and waits until it reaches it.
func (s *Service) Route(ctx context.Context, tenantID, id uuid.UUID) error {
	row, err := s.db.Tenant(tenantID).Machine(ctx, id)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if err := s.put(ctx, row); err != nil {
		return err
	}
	return s.o.Egress.Probe(ctx, id)
}

func (s *Service) put(ctx context.Context, row queries.Machine) error {
	policy, err := PolicyOf(row)
	if err != nil {
		return err
	}
	return s.o.Egress.PutMachine(ctx, broker.Machine{
		ID: row.ID, TenantID: row.TenantID, WorkspaceID: row.WorkspaceID, Provider: row.Provider, Ref: row.ProviderRef, Policy: policy,
	})
}

// PolicyOf is the networking a machine was built with. A machine whose setup has not read it yet may reach nothing.
func PolicyOf(row queries.Machine) (broker.Policy, error) {
	var p broker.Policy
	if err := json.Unmarshal(row.Policy, &p); err != nil {
		return p, fmt.Errorf("read the policy of machine %s: %w", row.ID, err)
	}
	return p, nil
}

// Wake starts a machine that was marked as waking, makes it ready for use by prepare, and ends the operation. A machine
// that its provider has lost is marked so; after any other error it is parked as before, and the error is kept.
func (s *Service) Wake(ctx context.Context, h *operation.Held, prepare func(context.Context, *guest.Client) error) error {
	row, err := s.db.Tenant(h.TenantID).Machine(ctx, h.MachineID)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	err = s.wake(ctx, h, row, prepare)
	if err == nil {
		return nil
	}
	if errors.Is(err, operation.ErrLost) || ctx.Err() != nil {
		return err // nothing is known of the machine: whoever goes on will see
	}
	if sandbox.Lost(err) {
		return s.lose(ctx, h, row, err)
	}
	ended := s.failed(ctx, h, err, func(tx db.Tx, raw json.RawMessage) error {
		_, err := tx.ParkMachine(ctx, raw, row.ID)
		return err
	})
	if ended != nil {
		return errors.Join(err, ended)
	}
	s.log.Warn("a machine did not wake", "machine", row.ID, "workspace", row.WorkspaceID, "error", err)
	return nil
}

// failed ends an operation of which a provider failed; fn writes what has become of the machine, with the cause.
func (s *Service) failed(ctx context.Context, h *operation.Held, err error, fn func(tx db.Tx, cause json.RawMessage) error) error {
	cause := map[string]string{"code": string(sandbox.ClassOf(err)), "message": Reason(err)}
	raw, merr := json.Marshal(cause)
	if merr != nil {
		return merr
	}
	fail := func(ctx context.Context, fn func(db.Tx) error) error { return h.Fail(ctx, cause, fn) }
	return s.told(ctx, h, fail, func(tx db.Tx) error { return fn(tx, raw) })
}

// lose ends an operation whose machine its provider has lost.
func (s *Service) lose(ctx context.Context, h *operation.Held, row queries.Machine, err error) error {
	s.log.Warn("a machine is lost", "machine", row.ID, "workspace", row.WorkspaceID, "error", err)
	return s.failed(ctx, h, err, func(tx db.Tx, cause json.RawMessage) error {
		return tx.EndMachine(ctx, queries.EndMachineParams{ID: row.ID, Status: string(Lost), Error: cause})
	})
}

func (s *Service) wake(ctx context.Context, h *operation.Held, row queries.Machine, prepare func(context.Context, *guest.Client) error) error {
	p, err := s.Provider(row.Provider)
	if err != nil {
		return err
	}
	g, err := s.start(ctx, p, row)
	if err != nil {
		return err
	}
	both, within := errgroup.WithContext(ctx) // side by side: a prompt waits for them
	both.Go(func() error { return prepare(within, g) })
	both.Go(func() error { return s.Route(within, h.TenantID, row.ID) })
	if err := both.Wait(); err != nil {
		// It is parked again, so it must not run.
		return errors.Join(err, s.stop(context.WithoutCancel(ctx), p, row))
	}
	return s.ready(ctx, h, p, row.ID, row.ProviderRef, nil)
}

// Ready marks a machine that was set up as ready, in the last write of its operation, with what more that write is.
func (s *Service) Ready(ctx context.Context, h *operation.Held, id uuid.UUID, more func(db.Tx) error) error {
	row, err := s.db.Tenant(h.TenantID).Machine(ctx, id)
	if err != nil {
		return fmt.Errorf("read the machine: %w", err)
	}
	p, err := s.Provider(row.Provider)
	if err != nil {
		return err
	}
	return s.ready(ctx, h, p, id, row.ProviderRef, more)
}

func (s *Service) ready(ctx context.Context, h *operation.Held, p sandbox.Provider, id uuid.UUID, ref string, more func(db.Tx) error) error {
	disk := s.use(ctx, p, ref).DiskBytes
	return s.told(ctx, h, h.End, func(tx db.Tx) error {
		if err := tx.ReadyMachine(ctx, disk, id); err != nil {
			return err
		}
		if err := tx.DropMachineWork(ctx, id); err != nil || more == nil { // from now on it changes
			return err
		}
		return more(tx)
	})
}

// use is what a machine uses; nothing when its provider cannot say now.
func (s *Service) use(ctx context.Context, p sandbox.Provider, ref string) sandbox.Stats {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	stats, err := p.Stats(ctx, ref)
	if err != nil {
		return sandbox.Stats{}
	}
	return stats
}

// Destroy removes a machine with its disk. What is gone already is success. status is what its row says from then on.
func (s *Service) Destroy(ctx context.Context, h *operation.Held, row queries.Machine, status Status) error {
	p, err := s.providerHere(ctx, row)
	if err != nil {
		return err
	}
	if err := s.write(ctx, h, func(tx db.Tx) error { return tx.DoomMachine(ctx, row.ID) }); err != nil {
		return err
	}
	if err := s.remove(ctx, p, row.ID, row.ProviderRef); err != nil {
		return err
	}
	return s.write(ctx, h, func(tx db.Tx) error {
		if err := tx.DropMachineWork(ctx, row.ID); err != nil {
			return err
		}
		return tx.EndMachine(ctx, queries.EndMachineParams{ID: row.ID, Status: string(status), Error: row.Error})
	})
}

// remove destroys what the provider has of a machine, also when a crash kept us from writing its reference down.
func (s *Service) remove(ctx context.Context, p sandbox.Provider, id uuid.UUID, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	s.unlink(id)
	if err := s.o.Egress.RemoveMachine(ctx, id); err != nil {
		return fmt.Errorf("take the machine's egress away: %w", err)
	}
	refs := []string{ref}
	if ref == "" {
		found, err := p.List(ctx, map[string]string{sandbox.LabelInstance: s.o.Instance, sandbox.LabelMachine: id.String()})
		if err != nil {
			return err
		}
		refs = refs[:0]
		for _, info := range found {
			refs = append(refs, info.ID)
		}
	}
	for _, ref := range refs {
		if err := p.Destroy(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// Park stops a machine, keeps its disk, and ends the operation. The operation's payload is why; it is kept as the machine's
// error. work is what was seen on its disk, nil: nothing was.
func (s *Service) Park(ctx context.Context, h *operation.Held, work json.RawMessage) error {
	row, p, err := s.here(ctx, h.TenantID, h.MachineID)
	if err != nil {
		return err
	}
	if err := s.stop(ctx, p, row); sandbox.Lost(err) {
		return s.lose(ctx, h, row, err)
	} else if err != nil {
		return err
	}
	return s.told(ctx, h, h.End, func(tx db.Tx) error {
		if work != nil {
			if err := tx.PutMachineWork(ctx, row.ID, work); err != nil {
				return err
			}
		}
		_, err := tx.ParkMachine(ctx, h.Payload, row.ID)
		return err
	})
}

func (s *Service) stop(ctx context.Context, p sandbox.Provider, row queries.Machine) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	s.unlink(row.ID)
	if err := s.o.Egress.RemoveMachine(ctx, row.ID); err != nil {
		return fmt.Errorf("take the machine's egress away: %w", err)
	}
	return p.Stop(ctx, row.ProviderRef)
}

// Trouble says what keeps a machine from answering, in a sentence that names its limit; "" when nothing is known. A
// machine that filled its disk is frozen by its provider and does nothing any more.
func (s *Service) Trouble(ctx context.Context, tenantID, id uuid.UUID) string {
	row, p, err := s.here(ctx, tenantID, id)
	if err != nil {
		return ""
	}
	if stats, full := s.full(ctx, p, row.ProviderRef); full {
		return diskFull(stats)
	}
	return ""
}

// full tells whether a machine is kept from answering because its disk is full. One that is over its limit and answers is
// not: it was started with some room to delete in.
func (s *Service) full(ctx context.Context, p sandbox.Provider, ref string) (sandbox.Stats, bool) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	if conn, err := p.Guest(ctx, ref); err == nil {
		conn.Close()
		return sandbox.Stats{}, false
	}
	stats := s.use(ctx, p, ref)
	return stats, stats.DiskFull
}

func diskFull(stats sandbox.Stats) string {
	return fmt.Sprintf("The machine's disk is full (disk_full): it holds %s, and its limit is %s.", Size(stats.DiskBytes), Size(stats.DiskLimit))
}

// Size writes a number of bytes for people.
func Size(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.size)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Inspect asks the provider about a machine.
func (s *Service) Inspect(ctx context.Context, tenantID, id uuid.UUID) (sandbox.Info, error) {
	row, p, err := s.here(ctx, tenantID, id)
	if err != nil {
		return sandbox.Info{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	return p.Inspect(ctx, row.ProviderRef)
}

func (s *Service) row(ctx context.Context, tenantID, id uuid.UUID) (queries.Machine, error) {
	row, err := s.db.Tenant(tenantID).Machine(ctx, id)
	if db.NotFound(err) {
		return row, refusal.NotFoundError()
	}
	if err != nil {
		return row, fmt.Errorf("read the machine: %w", err)
	}
	return row, nil
}

// here reads the row of a machine that this host runs.
func (s *Service) here(ctx context.Context, tenantID, id uuid.UUID) (queries.Machine, sandbox.Provider, error) {
	row, err := s.row(ctx, tenantID, id)
	if err != nil {
		return row, nil, err
	}
	p, err := s.providerHere(ctx, row)
	return row, p, err
}

// providerHere is the provider of a machine that this host has, or none has yet.
func (s *Service) providerHere(ctx context.Context, row queries.Machine) (sandbox.Provider, error) {
	if s.Elsewhere(row) {
		if _, err := s.server(ctx, *row.HostID); err != nil {
			return nil, err
		}
		return nil, refusal.New(refusal.MachineHostUnreachable, "Only the server of the machine's own host can do this.").RetryAfter(awayRetry)
	}
	return s.Provider(row.Provider)
}

// Reason says to a person why something failed at a provider or a guest. It repeats nothing that a host may keep to
// itself: what has no words for people is named by its class.
func Reason(err error) string {
	var e *sandbox.Error
	var refused *guest.Refused
	switch r, ok := refusal.As(err); {
	case ok:
		return r.Message
	case errors.As(err, &e) && e.Reason != "":
		return e.Reason
	case errors.As(err, &refused):
		return refused.Message
	case errors.Is(err, guest.ErrGone):
		return "The connection to the machine ended."
	case errors.Is(err, context.DeadlineExceeded):
		return "The machine did not answer in time."
	}
	return "The machine does not answer: " + string(sandbox.ClassOf(err)) + "."
}

// Unreachable is the refusal of a machine that does not answer now.
func Unreachable(err error) *refusal.Refusal {
	return refusal.New(refusal.SandboxUnreachable, "The machine cannot be reached now; its disk is untouched. %s", Reason(err)).RetryAfter(awayRetry)
}

// hostName makes a host name of a name for people: [a-z0-9-]{1,63}.
func hostName(name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && !strings.HasSuffix(s, "-") {
			b.WriteByte('-')
		}
	}
	s := b.String()
	s = strings.Trim(s[:min(len(s), 63)], "-")
	if s == "" {
		return "machine"
	}
	return s
}
