package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/peer"
	"managoat/internal/refusal"
	"managoat/queries"
)

// Machines on other hosts. A call for one goes to its host's server, which does there what it would do for a call of its
// own; whether the person may ask was decided here. What changes a machine is an operation, and never comes this way: its
// own host claims it.

// Paths of the internal routes, of an account and a machine or an operation.
const (
	GuestPath = "/internal/accounts/{account}/machines/{id}/guest"
	UsePath   = "/internal/accounts/{account}/machines/{id}/use"
	LookPath  = "/internal/accounts/{account}/operations/{id}/look"
)

func guestPath(row queries.Machine) string {
	return fmt.Sprintf("/internal/accounts/%s/machines/%s/guest", row.TenantID, row.ID)
}

func usePath(row queries.Machine) string {
	return fmt.Sprintf("/internal/accounts/%s/machines/%s/use", row.TenantID, row.ID)
}

func lookPath(ref db.Ref) string {
	return fmt.Sprintf("/internal/accounts/%s/operations/%s/look", ref.TenantID, ref.ID)
}

// Elsewhere tells whether another host has the machine.
func (s *Service) Elsewhere(row queries.Machine) bool {
	return row.HostID != nil && *row.HostID != s.o.Host
}

// server is the one of another host, which must not be away.
func (s *Service) server(ctx context.Context, host uuid.UUID) (peer.Server, error) {
	h, err := s.db.Lookup().Host(ctx, host)
	if err != nil && !db.NotFound(err) {
		return peer.Server{}, fmt.Errorf("look for the machine's host: %w", err)
	}
	if err != nil || h.Away {
		return peer.Server{}, hostAway()
	}
	return peer.Server{ID: h.ID, URL: h.Url}, nil
}

// HostAway says that the server of a machine's host is away.
const HostAway = "The server whose host runs the machine is away. The machine and its disk are kept."

// Kept tells whether a machine of this status is there, up or parked, and its host's to keep.
func Kept(s Status) bool { return s == Starting || s == Ready || s == Suspended }

func hostAway() *refusal.Refusal {
	return refusal.New(refusal.MachineHostUnreachable, "%s Try again when it is back.", HostAway).RetryAfter(awayRetry)
}

// asked is what a call of another server gave: one that does not answer is away.
func (s *Service) asked(to peer.Server, err error) error {
	if errors.Is(err, peer.ErrAway) {
		s.log.Warn("another server of this instance was not reached", "host", to.ID, "url", to.URL, "error", err)
		return hostAway()
	}
	return err
}

// remoteGuest opens a stream to the guest of a machine on another host.
func (s *Service) remoteGuest(ctx context.Context, to peer.Server, row queries.Machine) (net.Conn, error) {
	if s.o.Peers == nil {
		return nil, hostAway()
	}
	conn, err := s.o.Peers.Open(ctx, to, guestPath(row))
	return conn, s.asked(to, err)
}

// remoteUse asks the server of another host what a machine uses.
func (s *Service) remoteUse(ctx context.Context, row queries.Machine) (Use, error) {
	to, err := s.server(ctx, *row.HostID)
	if err != nil {
		return Use{}, err
	}
	if s.o.Peers == nil {
		return Use{}, hostAway()
	}
	var use Use
	err = s.o.Peers.Call(ctx, to, http.MethodGet, usePath(row), &use)
	return use, s.asked(to, err)
}

// Tell has the server that does an operation, or must, look at it now, when that is another one: something was asked of it.
// host names it where it is known. It finds it by itself too, a little later, so that it cannot be told is only logged.
func (s *Service) Tell(ctx context.Context, ref db.Ref, host *uuid.UUID) {
	var to peer.Server
	if host == nil {
		row, err := s.db.Tenant(ref.TenantID).OperationElsewhere(ctx, ref.ID, s.o.Host)
		if db.NotFound(err) || err == nil && row.Away {
			return
		}
		if err != nil {
			s.log.Warn("look for the server of an operation", "operation", ref.ID, "error", err)
			return
		}
		to = peer.Server{ID: row.ID, URL: row.Url}
	} else {
		var err error
		if to, err = s.server(ctx, *host); err != nil {
			return
		}
	}
	if s.o.Peers == nil {
		return
	}
	if err := s.o.Peers.Call(ctx, to, http.MethodPost, lookPath(ref), nil); err != nil && ctx.Err() == nil {
		s.log.Warn("another server was not told of an operation", "operation", ref.ID, "host", to.ID, "url", to.URL, "error", err)
	}
}

// GuestHere opens a stream to the guest of a machine of this host, for another server. One that does not answer is looked at
// at once, so that its row says what has become of it.
func (s *Service) GuestHere(ctx context.Context, tenantID, id uuid.UUID) (net.Conn, error) {
	row, p, err := s.here(ctx, tenantID, id)
	if err != nil {
		return nil, err
	}
	if status := Status(row.Status); status != Starting && status != Ready {
		return nil, NotReady(status)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := p.Guest(ctx, row.ProviderRef)
	if err == nil {
		return conn, nil
	}
	if found := s.Found(ctx, tenantID, id); found == nil {
		if now, err := s.db.Tenant(tenantID).Machine(ctx, id); err == nil && Status(now.Status) != Ready && Status(now.Status) != Starting {
			return nil, NotReady(Status(now.Status))
		}
	}
	return nil, Unreachable(err)
}

// UseHere is Use of a machine of this host, for another server.
func (s *Service) UseHere(ctx context.Context, tenantID, id uuid.UUID) (Use, error) {
	row, p, err := s.here(ctx, tenantID, id)
	if err != nil {
		return Use{}, err
	}
	return s.measured(ctx, p, row)
}
