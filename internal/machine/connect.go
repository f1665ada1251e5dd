package machine

import (
	"context"
	"net"

	"github.com/google/uuid"

	"managoat/internal/refusal"
	"managoat/queries"
	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// link is the connection to one machine's guest, dialled again when it has ended.
type link struct {
	turn   chan struct{} // holds one token: who has it may dial
	client *guest.Client
}

// Connect returns the connection to a machine's guest. It never starts a machine.
func (s *Service) Connect(ctx context.Context, tenantID, id uuid.UUID) (*guest.Client, error) {
	row, err := s.row(ctx, tenantID, id)
	if err != nil {
		return nil, err
	}
	return s.ConnectTo(ctx, row)
}

// ConnectTo is Connect for a caller that has just read the machine's row. A machine on another host is reached through that
// one's server.
func (s *Service) ConnectTo(ctx context.Context, row queries.Machine) (*guest.Client, error) {
	if status := Status(row.Status); status != Starting && status != Ready {
		return nil, NotReady(status)
	}
	if s.Elsewhere(row) {
		to, err := s.server(ctx, *row.HostID) // also where a connection stands: a server that hangs ends none
		if err != nil {
			return nil, err
		}
		return s.dial(ctx, row.ID, func(ctx context.Context) (net.Conn, error) { return s.remoteGuest(ctx, to, row) })
	}
	p, err := s.Provider(row.Provider)
	if err != nil {
		return nil, err
	}
	return s.dialHere(ctx, p, row)
}

func (s *Service) dialHere(ctx context.Context, p sandbox.Provider, row queries.Machine) (*guest.Client, error) {
	return s.dial(ctx, row.ID, func(ctx context.Context) (net.Conn, error) { return p.Guest(ctx, row.ProviderRef) })
}

// NotReady is the refusal of what needs a machine that is up.
func NotReady(status Status) *refusal.Refusal {
	word := map[Status]string{Suspended: "parked", Pending: "not made yet", Starting: "starting", Lost: "lost", Failed: "not set up", Terminated: "gone"}[status]
	if word == "" {
		word = string(status)
	}
	return refusal.New(refusal.SandboxNotReady, "The machine is %s. A read never wakes it; a prompt does.", word).With("status", string(status))
}

func (s *Service) dial(ctx context.Context, id uuid.UUID, open func(context.Context) (net.Conn, error)) (*guest.Client, error) {
	s.mu.Lock()
	l := s.links[id]
	if l == nil {
		l = &link{turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		s.links[id] = l
	}
	s.mu.Unlock()
	select {
	case <-l.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { l.turn <- struct{}{} }()
	if l.client != nil {
		select {
		case <-l.client.Done():
		default:
			return l.client, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := open(ctx)
	if err != nil {
		return nil, err
	}
	client, err := guest.Dial(ctx, conn, guest.RoleServer)
	if err != nil {
		return nil, err
	}
	l.client = client
	s.mu.Lock()
	current := s.links[id] == l
	s.mu.Unlock()
	if !current {
		client.Close() // the machine was stopped meanwhile
		return nil, guest.ErrGone
	}
	return client, nil
}

// unlink ends the connection to a machine's guest.
func (s *Service) unlink(id uuid.UUID) {
	s.mu.Lock()
	l := s.links[id]
	delete(s.links, id)
	delete(s.samples, id)
	s.mu.Unlock()
	if l == nil {
		return
	}
	<-l.turn // bounded by connectTimeout
	defer func() { l.turn <- struct{}{} }()
	if l.client != nil {
		l.client.Close()
	}
}

// forget drops the connections that have ended: a machine on another host is stopped there.
func (s *Service) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.links {
		select {
		case <-l.turn:
		default:
			continue // somebody dials
		}
		if l.client != nil {
			select {
			case <-l.client.Done():
				delete(s.links, id)
			default:
			}
		}
		l.turn <- struct{}{}
	}
}

// Close ends the connections to all guests. The machines go on.
func (s *Service) Close() {
	s.mu.Lock()
	links := s.links
	s.links = map[uuid.UUID]*link{}
	s.mu.Unlock()
	for _, l := range links {
		<-l.turn
		if l.client != nil {
			l.client.Close()
		}
		l.turn <- struct{}{}
	}
}
