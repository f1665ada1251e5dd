package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/machine/operation"
	"managoat/queries"
	"managoat/sandbox"
)

// Periods of what runs beside the operations.
const (
	watchEvery = 15 * time.Second // a look at what the provider says of this host's machines
	reapEvery  = time.Minute      // a look at their disks, and for machines of ours that nobody needs
)

// Restore looks at every machine of this host after a start of the server: those that run are told to the egress
// process, those that stopped (the host was started again) are parked, those that the provider does not have are lost.
//
// Call it before the egress process is pruned and before work begins.
func (s *Service) Restore(ctx context.Context) error {
	for name, p := range s.o.Providers {
		// Asked once, so that no request waits for it. What fails here is said again by whatever needs the provider.
		if _, err := p.Capabilities(ctx); err != nil {
			s.log.Error("a sandbox provider cannot run machines", "provider", name, "error", err)
		}
	}
	return s.watch(ctx, look{tell: true, measure: true})
}

// Run gives signs of life, watches the machines of this host, and removes what nobody needs, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	// On its own: however long a look at machines takes, this server lives.
	var beats sync.WaitGroup
	defer s.leave(ctx)
	defer beats.Wait()
	beats.Go(func() { s.beats(ctx) })
	beats.Go(func() { s.hear(ctx) })
	state, slow := time.NewTicker(watchEvery), time.NewTicker(reapEvery)
	defer state.Stop()
	defer slow.Stop()
	for told := s.Told(); ; {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-state.C:
			s.forget()
			err = s.watch(ctx, look{})
		case <-slow.C:
			err = errors.Join(s.watch(ctx, look{measure: true}), s.Reap(ctx), s.giveUp(ctx))
		case <-told:
			told = s.Told()
			err = errors.Join(s.Reap(ctx), s.giveUp(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.log.Error("watch over the machines", "error", err)
		}
	}
}

// watch compares the rows of this host's machines with what their provider says. A machine that something is under way
// with is left alone; one bad row does not stop the others.
func (s *Service) watch(ctx context.Context, what look) error {
	refs, err := s.db.Due(ctx, db.DueMachines, s.o.Host)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.look(ctx, ref, what); err != nil {
			s.log.Warn("look at a machine", "machine", ref.ID, "error", err)
		}
	}
	return nil
}

// look is what a look at a machine is for, beside its state.
type look struct {
	tell    bool // the egress process of it
	measure bool // its disk, which takes the longer the more it holds
}

func (s *Service) look(ctx context.Context, ref db.Ref, what look) error {
	row, err := s.db.Tenant(ref.TenantID).Machine(ctx, ref.ID)
	if err != nil {
		return err
	}
	p, ok := s.o.Providers[row.Provider]
	status := Status(row.Status)
	if s.Elsewhere(row) {
		return nil // this host's provider does not have it, and that says nothing: its own host's server looks
	}
	if !ok || status != Ready && status != Suspended {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	info, err := p.Inspect(asking, row.ProviderRef)
	switch {
	case sandbox.Lost(err):
		return s.found(ctx, row, Lost, Reason(err))
	case err != nil:
		return err // unknown: nothing is concluded
	case info.State == sandbox.Stopped && status == Ready:
		reason := "The machine stopped by itself: its host was started again, or its processes were ended from outside. Its disk is kept."
		if stats := s.use(ctx, p, row.ProviderRef); stats.DiskFull {
			reason = diskFull(stats)
		}
		return s.found(ctx, row, Suspended, reason)
	case info.State == sandbox.Running && status == Ready:
		if what.tell {
			if err := s.put(ctx, row); err != nil {
				return err
			}
		}
		if stats, full := s.full(ctx, p, row.ProviderRef); full {
			return s.parkFull(ctx, row, stats)
		}
		if what.measure {
			stats := s.use(ctx, p, row.ProviderRef)
			s.sample(row.ID, stats)
			if n := stats.DiskBytes; n > 0 {
				return s.db.Tenant(ref.TenantID).MeasureMachine(ctx, n, row.ID)
			}
		}
	}
	return nil
}

// DiskFull is the code of why such a machine parks.
const DiskFull = "disk_full"

// parkFull parks a machine whose disk is full. Its provider has frozen it, so everything on it waits for ever; stopped, it
// says why, and the next prompt starts it with a little room to delete in.
func (s *Service) parkFull(ctx context.Context, row queries.Machine, stats sandbox.Stats) error {
	s.log.Warn("a machine's disk is full", "machine", row.ID, "workspace", row.WorkspaceID, "bytes", stats.DiskBytes, "limit", stats.DiskLimit)
	err := s.db.InTenant(ctx, row.TenantID, func(tx db.Tx) error {
		if _, err := tx.LockWorkspace(ctx, row.WorkspaceID); err != nil {
			return err
		}
		n, err := tx.ParkingMachine(ctx, row.ID)
		if err != nil || n == 0 {
			return err
		}
		cause := map[string]string{"code": DiskFull, "message": diskFull(stats)}
		_, err = operation.Insert(ctx, tx, row.TenantID, uuid.Must(uuid.NewV7()), operation.Park, row.WorkspaceID, row.ID, cause)
		return err
	})
	if operation.Busy(err) {
		return nil // something is under way with it already
	}
	return err
}

// found writes down what the provider says, unless something is under way with the machine.
func (s *Service) found(ctx context.Context, row queries.Machine, status Status, reason string) error {
	raw, err := json.Marshal(map[string]string{"message": reason})
	if err != nil {
		return err
	}
	changed := false
	err = s.db.InTenant(ctx, row.TenantID, func(tx db.Tx) error {
		_, err := tx.MachineFoundAs(ctx, queries.MachineFoundAsParams{ID: row.ID, Status: string(status), Error: raw})
		if db.NotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		changed = true
		return s.onChange(ctx, tx, row.TenantID, row.WorkspaceID)
	})
	if err != nil || !changed {
		return err
	}
	s.log.Warn("a machine was not as it was left", "machine", row.ID, "workspace", row.WorkspaceID, "was", row.Status, "is", status)
	s.unlink(row.ID)
	return s.o.Egress.RemoveMachine(ctx, row.ID)
}

// Found asks the provider about a machine at once and writes down what it says: for a caller that could not reach it. Of a
// machine on another host nothing is concluded here.
func (s *Service) Found(ctx context.Context, tenantID, id uuid.UUID) error {
	return s.look(ctx, db.Ref{TenantID: tenantID, ID: id}, look{})
}

// Reap destroys the machines on this host that carry our labels and that nobody needs: their row is gone, or says that
// they have ended. What does not carry our labels is never touched.
func (s *Service) Reap(ctx context.Context) error {
	for name, p := range s.o.Providers {
		infos, err := s.listed(ctx, p)
		if err != nil {
			s.log.Warn("list the machines", "provider", name, "error", err)
			continue
		}
		for _, info := range infos {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := s.reap(ctx, p, info); err != nil {
				s.log.Warn("remove a machine that nobody needs", "machine", info.Name, "error", err)
			}
		}
		if err := s.reapLayers(ctx, p); err != nil {
			s.log.Warn("remove the layers of accounts that are gone", "provider", name, "error", err)
		}
	}
	return nil
}

// listed are the machines that a provider keeps for this server. Another server of the instance may use the same engine; a
// machine that names no server was made before they did.
func (s *Service) listed(ctx context.Context, p sandbox.Provider) ([]sandbox.Info, error) {
	all, err := p.List(ctx, map[string]string{sandbox.LabelInstance: s.o.Instance})
	return slices.DeleteFunc(all, func(i sandbox.Info) bool {
		host, ok := i.Labels[sandbox.LabelHost]
		return ok && host != s.o.Host.String()
	}), err
}

func (s *Service) reap(ctx context.Context, p sandbox.Provider, info sandbox.Info) error {
	tenantID, err := uuid.Parse(info.Labels[sandbox.LabelTenant])
	if err != nil {
		return fmt.Errorf("its label %s: %w", sandbox.LabelTenant, err)
	}
	id, err := uuid.Parse(info.Labels[sandbox.LabelMachine])
	if err != nil {
		return fmt.Errorf("its label %s: %w", sandbox.LabelMachine, err)
	}
	row, err := s.db.Tenant(tenantID).Machine(ctx, id)
	switch {
	case db.NotFound(err): // a row is written before its machine is made: this one's account is gone
	case err != nil:
		return err
	case Status(row.Status) == Lost && row.HostID == nil && info.State == sandbox.Running:
		// Its host was given up, and is back. Nothing runs on it any more; its disk goes when another takes its place.
		return p.Stop(ctx, info.ID)
	case Status(row.Status) != Terminated && Status(row.Status) != Failed:
		return nil
	case row.Transition == "destroying":
		// The setup of the one in its place removes it, when the turns on it have ended.
		if _, err := s.db.Tenant(tenantID).OpenMachineOperation(ctx, row.WorkspaceID); !db.NotFound(err) {
			return err
		}
	}
	s.log.Info("a machine that nobody needs is removed", "machine", id, "workspace", info.Labels[sandbox.LabelWorkspace])
	return s.remove(ctx, p, id, info.ID)
}

// Down parks every machine of this instance on this host, with or without a server that runs. Operations that were under
// way go on with the next start.
func (s *Service) Down(ctx context.Context) (parked int, err error) {
	var problems []error
	for name, p := range s.o.Providers {
		infos, err := s.listed(ctx, p)
		if err != nil {
			problems = append(problems, fmt.Errorf("list the machines of %s: %w", name, err))
			continue
		}
		for _, info := range infos {
			if info.State != sandbox.Running {
				continue
			}
			if err := s.down(ctx, p, info); err != nil {
				problems = append(problems, fmt.Errorf("park %s: %w", info.Name, err))
				continue
			}
			parked++
		}
	}
	return parked, errors.Join(problems...)
}

func (s *Service) down(ctx context.Context, p sandbox.Provider, info sandbox.Info) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := p.Stop(ctx, info.ID); err != nil {
		return err
	}
	tenantID, err := uuid.Parse(info.Labels[sandbox.LabelTenant])
	if err != nil {
		return nil // it is stopped; whose it is nobody can say
	}
	id, err := uuid.Parse(info.Labels[sandbox.LabelMachine])
	if err != nil {
		return nil
	}
	s.unlink(id)
	return s.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
		row, err := tx.Machine(ctx, id)
		if db.NotFound(err) || err == nil && Status(row.Status) != Ready {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := tx.ParkMachine(ctx, nil, id); err != nil {
			return err
		}
		return s.onChange(ctx, tx, tenantID, row.WorkspaceID)
	})
}
