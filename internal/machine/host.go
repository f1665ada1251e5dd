package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"

	"managoat/db"
	"managoat/queries"
)

// Hosts: what each says of itself in its row, and what is asked of it there. A new machine is placed by these rows, in the
// transaction that plans it (see place_machine in the migrations).

// Times of hosts.
const (
	beatEvery    = 10 * time.Second // a host's sign of life
	hearPause    = 2 * time.Second  // before listening again, when the connection was lost
	leaveTimeout = 5 * time.Second  // of a server's last word

	// ForgetAfter is how long a host must have been silent before it may be given up.
	ForgetAfter = 10 * time.Minute
)

// hostChannel is where a host hears that something is asked of it: the payload is its id, or nothing: all of them.
const hostChannel = "managoat_hosts"

// places is how many machines of these limits a host holds, by its memory and its processors; one at least.
func (s *Service) places(memory int64, cpus int) int {
	n := math.Inf(1)
	if s.o.Limits.MemoryBytes > 0 {
		n = float64(memory / s.o.Limits.MemoryBytes)
	}
	if s.o.Limits.CPUs > 0 {
		n = min(n, math.Floor(float64(cpus)/s.o.Limits.CPUs))
	}
	if math.IsInf(n, 1) {
		n = float64(cpus)
	}
	return int(max(n, 1))
}

// Register says that this host is there, and what it has. Call it before anything is placed on it.
func (s *Service) Register(ctx context.Context) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this host's name: %w", err)
	}
	var system syscall.Sysinfo_t
	if err := syscall.Sysinfo(&system); err != nil {
		return fmt.Errorf("this host's memory: %w", err)
	}
	memory, cpus := int64(system.Totalram)*int64(system.Unit), runtime.NumCPU()
	places := s.o.Most
	if places == 0 {
		places = s.places(memory, cpus)
	}
	err = s.db.Lookup().PutHost(ctx, queries.PutHostParams{
		ID: s.o.Host, Url: s.o.URL, Name: name, Version: s.o.Version, Providers: append([]string{}, s.Providers()...),
		MemoryBytes: memory, Cpus: int32(cpus), Places: int32(places), Capped: s.o.Most > 0,
	})
	if err != nil {
		return fmt.Errorf("register this host: %w", err)
	}
	others, err := s.db.Lookup().HostsAt(ctx, s.o.URL, s.o.Host)
	if err != nil {
		return fmt.Errorf("look for hosts at this one's address: %w", err)
	}
	if len(others) > 0 {
		s.log.Warn("another server of this instance gives the same address: give each one its own (--host-url), so that they reach each other", "url", s.o.URL, "hosts", others)
	}
	return nil
}

// beats gives signs of life until ctx ends.
func (s *Service) beats(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.beat(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("give a sign of life", "error", err)
		}
	}
}

func (s *Service) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatEvery)
	defer cancel()
	n, err := s.db.Lookup().SeeHost(ctx, s.o.Host)
	if err == nil && n == 0 {
		return s.Register(ctx) // somebody cleared the table
	}
	return err
}

// leave says that this server stops, so that nobody waits for it.
func (s *Service) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := s.db.Lookup().LeaveHost(ctx, s.o.Host); err != nil {
		s.log.Warn("say that this server stops", "error", err) // it is found out soon enough
	}
}

// Told is closed when something is asked of this host in the database: that it is drained, that a machine of its goes, that
// another host is given up. What was asked while nobody listened is found a little later.
func (s *Service) Told() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

func (s *Service) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.news)
	s.news = make(chan struct{})
}

// hear listens to what is asked of hosts until ctx ends.
func (s *Service) hear(ctx context.Context) {
	for {
		err := s.db.Listen(ctx, hostChannel, func() {}, func(host string) {
			if host == "" || host == s.o.Host.String() {
				s.tell()
			}
		})
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("the connection that hears what is asked of this host was lost", "error", err, "again_in", hearPause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(hearPause):
		}
	}
}

// Draining tells whether this host is drained: it takes no machine, and those that are up park as soon as nothing runs there.
func (s *Service) Draining(ctx context.Context) (bool, error) {
	h, err := s.db.Lookup().Host(ctx, s.o.Host)
	if db.NotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether this host is drained: %w", err)
	}
	return h.Draining, nil
}

// HostDraining says that the host of a machine is drained.
const HostDraining = "The host of the machine is being taken out of service, so nothing new begins there. The machine and its disk are kept."

// giveUp makes the machines of hosts that were forgotten lost, and drops those hosts. Every server does it; one suffices.
func (s *Service) giveUp(ctx context.Context) error {
	hosts, err := s.db.Lookup().ForgottenHosts(ctx)
	if err != nil {
		return fmt.Errorf("look for hosts that are given up: %w", err)
	}
	for _, h := range hosts {
		for {
			refs, err := s.db.Due(ctx, db.DueForgets, h.ID)
			if err != nil {
				return err
			}
			if len(refs) == 0 {
				break
			}
			for _, ref := range refs {
				if err := s.lostWith(ctx, ref); err != nil {
					return fmt.Errorf("give up the machine %s: %w", ref.ID, err)
				}
			}
		}
		if err := s.db.Lookup().DropForgottenHost(ctx, h.ID); err != nil {
			return fmt.Errorf("drop a host that is given up: %w", err)
		}
		s.log.Warn("a host was given up, and its machines with it", "host", h.ID, "name", h.Name)
	}
	return nil
}

// lostWith marks a machine as lost with its host.
func (s *Service) lostWith(ctx context.Context, ref db.Ref) error {
	why, err := json.Marshal(map[string]string{"code": "host_forgotten", "message": "The operator of this instance has given up the host of the machine. The next prompt builds another."})
	if err != nil {
		return err
	}
	return s.db.InTenant(ctx, ref.TenantID, func(tx db.Tx) error {
		row, err := tx.Machine(ctx, ref.ID)
		if err != nil {
			return err
		}
		if _, err := tx.LockWorkspace(ctx, row.WorkspaceID); err != nil { // before its machine, as everywhere
			return err
		}
		if row, err = tx.LockMachine(ctx, ref.ID); err != nil {
			return err
		}
		if !Kept(Status(row.Status)) && row.Transition == "" {
			return nil // another server was faster
		}
		end := queries.EndMachineParams{ID: row.ID, Status: row.Status, Error: row.Error}
		if Kept(Status(row.Status)) {
			end.Status, end.Error = string(Lost), why
		}
		if err := tx.CancelOnMachine(ctx, row.WorkspaceID, row.ID); err != nil {
			return err
		}
		if err := tx.EndMachine(ctx, end); err != nil {
			return err
		}
		return s.onChange(ctx, tx, ref.TenantID, row.WorkspaceID)
	})
}
