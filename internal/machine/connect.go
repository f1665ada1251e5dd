package machine

import (
	"context"

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
	row, _, err := s.here(ctx, tenantID, id)
	if err != nil {
		return nil, err
	}
	return s.ConnectTo(ctx, row)
}

// ConnectTo is Connect for a caller that has just read the machine's row.
func (s *Service) ConnectTo(ctx context.Context, row queries.Machine) (*guest.Client, error) {
	p, err := s.providerHere(ctx, row)
	if err != nil {
		return nil, err
	}
	switch Status(row.Status) {
	case Starting, Ready:
		return s.dial(ctx, p, row)
	default:
		return nil, NotReady(Status(row.Status))
	}
}

// NotReady is the refusal of what needs a machine that is up.
func NotReady(status Status) *refusal.Refusal {
	word := map[Status]string{Suspended: "parked", Pending: "not made yet", Starting: "starting", Lost: "lost", Failed: "not set up", Terminated: "gone"}[status]
	if word == "" {
		word = string(status)
	}
	return refusal.New(refusal.SandboxNotReady, "The machine is %s. A read never wakes it; a prompt does.", word).With("status", string(status))
}

func (s *Service) dial(ctx context.Context, p sandbox.Provider, row queries.Machine) (*guest.Client, error) {
	s.mu.Lock()
	l := s.links[row.ID]
	if l == nil {
		l = &link{turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		s.links[row.ID] = l
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
	conn, err := p.Guest(ctx, row.ProviderRef)
	if err != nil {
		return nil, err
	}
	client, err := guest.Dial(ctx, conn, guest.RoleServer)
	if err != nil {
		return nil, err
	}
	l.client = client
	s.mu.Lock()
	current := s.links[row.ID] == l
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
