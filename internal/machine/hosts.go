package machine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/refusal"
)

// Host is a host of the instance, as its operator sees it.
type Host struct {
	ID            uuid.UUID  `json:"id"`
	Name          string     `json:"name"`
	URL           string     `json:"url"` // where other servers reach it
	Version       string     `json:"version"`
	Providers     []string   `json:"providers"`
	StartedAt     time.Time  `json:"started_at"`
	SeenAt        time.Time  `json:"seen_at"` // its last sign of life
	Away          bool       `json:"away"`    // none for too long: its machines wait for it
	Places        int        `json:"places"`  // machines that it holds
	Capped        bool       `json:"capped"`  // it runs no more than that
	MemoryBytes   int64      `json:"memory_bytes"`
	CPUs          int        `json:"cpus"`
	Running       int        `json:"machines_running"`
	Parked        int        `json:"machines_parked"`
	DrainingSince *time.Time `json:"draining_since"` // null: it takes machines
	Drained       bool       `json:"drained"`        // it is drained, and nothing runs there any more
	Forgotten     bool       `json:"forgotten"`      // it is given up; its row goes when its machines are marked as lost
}

// Hosts is what operators do with the hosts of an instance. It works on the database alone: servers obey what stands there.
type Hosts struct {
	db       *db.DB
	operator string
}

// NewHosts makes it; operator is who acts, for the record.
func NewHosts(d *db.DB, operator string) *Hosts { return &Hosts{d, operator} }

// List lists the hosts by name.
func (h *Hosts) List(ctx context.Context) (all []Host, err error) {
	err = h.db.AsPlatform(ctx, h.operator, "list the hosts", func(tx db.Tx) error {
		all, err = list(ctx, tx)
		return err
	})
	return all, err
}

func list(ctx context.Context, tx db.Tx) ([]Host, error) {
	rows, err := tx.Hosts(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the hosts: %w", err)
	}
	all := make([]Host, len(rows))
	for i, r := range rows {
		all[i] = Host{
			ID: r.Host.ID, Name: r.Host.Name, URL: r.Host.Url, Version: r.Host.Version, Providers: r.Host.Providers,
			StartedAt: r.Host.StartedAt, SeenAt: r.Host.SeenAt, Away: r.Away, Places: int(r.Host.Places), Capped: r.Host.Capped,
			MemoryBytes: r.Host.MemoryBytes, CPUs: int(r.Host.Cpus), Running: int(r.Running), Parked: int(r.Parked),
			DrainingSince: r.Host.DrainingAt, Drained: r.Host.DrainingAt != nil && r.Running == 0, Forgotten: r.Host.ForgottenAt != nil,
		}
	}
	return all, nil
}

// Drain takes a host out of service, or back into it. Its server obeys at once, or when it starts: no machine is made there,
// no prompt begins there, and what is up parks when the turns that run or wait there have ended.
func (h *Hosts) Drain(ctx context.Context, name string, drain bool) (Host, error) {
	why := "drain a host"
	if !drain {
		why = "take a drained host back"
	}
	return h.change(ctx, name, why, func(tx db.Tx, host Host) error {
		if _, err := tx.DrainHost(ctx, drain, host.ID); err != nil {
			return err
		}
		return tx.NotifyHost(ctx, host.ID.String())
	})
}

// Forget gives up a host that has been silent for ForgetAfter: a server that lives marks its machines as lost, so that the
// next prompts build others, and drops it.
func (h *Hosts) Forget(ctx context.Context, name string) (Host, error) {
	return h.change(ctx, name, "give up a host", func(tx db.Tx, host Host) error {
		n, err := tx.ForgetHost(ctx, host.ID, ForgetAfter.Seconds())
		if err != nil {
			return err
		}
		if n == 0 {
			return refusal.New(refusal.Unavailable, "The host %s gave a sign of life at %s. Only one that has been silent for %d minutes can be given up: stop its server, and wait. To take it out of service with its machines kept, drain it.",
				host.Name, host.SeenAt.Local().Format(time.TimeOnly), int(ForgetAfter.Minutes()))
		}
		return tx.NotifyHost(ctx, "") // any server does it
	})
}

// Find is the one host of an id, of the beginning of one, or of a name.
func (h *Hosts) Find(ctx context.Context, name string) (Host, error) {
	return h.change(ctx, name, "look at a host", func(db.Tx, Host) error { return nil })
}

// change finds a host, changes it, and returns it as it is then.
func (h *Hosts) change(ctx context.Context, name, why string, fn func(db.Tx, Host) error) (host Host, err error) {
	err = h.db.AsPlatform(ctx, h.operator, why+" ("+name+")", func(tx db.Tx) error {
		all, err := list(ctx, tx)
		if err != nil {
			return err
		}
		if host, err = find(all, name); err != nil {
			return err
		}
		if err := fn(tx, host); err != nil {
			return err
		}
		if all, err = list(ctx, tx); err != nil {
			return err
		}
		host, err = find(all, host.ID.String())
		return err
	})
	return host, err
}

func find(all []Host, name string) (Host, error) {
	var found []Host
	for _, h := range all {
		if h.ID.String() == name {
			return h, nil
		}
		if h.Name == name || name != "" && strings.HasPrefix(h.ID.String(), name) {
			found = append(found, h)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Host{}, refusal.New(refusal.NotFound, "There is no host %q. See: managoat host list", name)
	}
	return Host{}, refusal.New(refusal.BadRequest, "%d hosts are called %q: give the id of one. See: managoat host list", len(found), name)
}
