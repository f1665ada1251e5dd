package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
)

// ErrClosed is returned by calls on a peer whose agent has ended.
var ErrClosed = errors.New("the agent has ended")

// Send writes one line, its end included, to an agent. Calls do not overlap.
type Send func(ctx context.Context, line []byte) error

// Peer is our side of the connection with one agent. What the agent writes is read by its owner, who hands the answers
// to Deliver. Safe for concurrent use.
type Peer struct {
	send Send
	// writing is a lock that a caller whose context ends does not wait for.
	writing chan struct{}

	mu    sync.Mutex
	next  int64
	calls map[int64]chan Message
	err   error
}

// NewPeer makes a peer whose requests are numbered from first on. A peer that takes over a running agent begins above
// every number of the one before.
func NewPeer(first int64, send Send) *Peer {
	return &Peer{send: send, writing: make(chan struct{}, 1), next: first, calls: map[int64]chan Message{}}
}

// NextID reserves the id of a request that is sent with SendRequest and whose answer its owner recognises itself.
func (p *Peer) NextID() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return p.next
}

// SendRequest sends a request and does not wait for its answer.
func (p *Peer) SendRequest(ctx context.Context, id int64, method string, params any) error {
	return p.write(ctx, map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

// Call sends a request and waits for its answer, which is decoded into result unless that is nil. An agent's error
// answer comes back as *Error.
func (p *Peer) Call(ctx context.Context, method string, params, result any) error {
	id := p.NextID()
	answer := make(chan Message, 1)
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return fmt.Errorf("%s: %w", method, p.err)
	}
	p.calls[id] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.calls, id)
		p.mu.Unlock()
	}()
	if err := p.SendRequest(ctx, id, method, params); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, context.Cause(ctx))
	case m, ok := <-answer:
		switch {
		case !ok:
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Errorf("%s: %w", method, p.err)
		case m.Error != nil:
			return fmt.Errorf("%s: %w", method, m.Error)
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("%s: answer: %w", method, err)
		}
		return nil
	}
}

// Notify sends a notification.
func (p *Peer) Notify(ctx context.Context, method string, params any) error {
	return p.write(ctx, map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
}

// Reply answers a request of the agent.
func (p *Peer) Reply(ctx context.Context, id json.RawMessage, result any) error {
	return p.write(ctx, map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

// Refuse answers a request of the agent with an error.
func (p *Peer) Refuse(ctx context.Context, id json.RawMessage, code int, message string) error {
	return p.write(ctx, map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": message}})
}

// Deliver hands an answer of the agent to the call that waits for it; false when none does.
func (p *Peer) Deliver(m Message) bool {
	id, ok := IDOf(m)
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answer, ok := p.calls[id]
	if ok {
		delete(p.calls, id)
		answer <- m
	}
	return ok
}

// IDOf is the number of the request of ours that a message answers.
func IDOf(m Message) (int64, bool) {
	id, err := strconv.ParseInt(string(m.ID), 10, 64)
	return id, err == nil
}

// Close ends the peer: calls that wait return err, which wraps ErrClosed unless it says more.
func (p *Peer) Close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	if err == nil {
		err = ErrClosed
	}
	p.err = err
	for id, answer := range p.calls {
		delete(p.calls, id)
		close(answer)
	}
}

func (p *Peer) write(ctx context.Context, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return p.send(ctx, append(line, '\n'))
}
