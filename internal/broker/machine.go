package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"managoat/internal/broker/forward"
	"managoat/internal/broker/gateway"
	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/sandbox/guest"
)

// Limits and times of one machine's traffic.
const (
	maxConnections = 512              // open at once; further ones are closed
	connectTimeout = 10 * time.Second // to reach a guest through its provider
	redialFirst    = 20 * time.Millisecond
	redialMost     = 5 * time.Second
	headerTimeout  = 10 * time.Second // to send a request's header
	idleTimeout    = 2 * time.Minute  // a kept connection without a request
	maxHeader      = 64 << 10         // bytes of a request's header
	closeTimeout   = 250 * time.Millisecond
	limitedEvery   = time.Second // rows about too many connections; a machine must not flood the log with them
)

// guestConn is the side of a guest connection that the egress process uses.
type guestConn interface {
	Accept(ctx context.Context) (net.Conn, guest.EgressRequest, error)
	Close() error
}

// machine carries the traffic of one machine: it holds a connection to the guest and serves what comes out of it.
type machine struct {
	p       *process
	log     *slog.Logger
	connect func(context.Context) (guestConn, error)
	origin  journal.Origin

	mu        sync.Mutex
	spec      Machine
	policy    *rule.Compiled
	connected bool
	lastErr   error         // of the last attempt to connect
	changed   chan struct{} // closed at every change of connected and lastErr

	panicked sync.Once // so that the log holds one stack, not one an attempt

	kick    chan struct{}
	streams chan net.Conn // to the HTTP server
	open    atomic.Int64
	limited atomic.Int64 // when a row last said that there are too many, Unix nanoseconds
	proxy   *forward.Server
	server  *http.Server

	requests sync.WaitGroup // under way, tunnels included
	ended    bool           // no further ones; guarded by mu

	live   context.Context // ends with the machine, and its connections with it
	end    context.CancelFunc
	accept context.Context // ends when no new connections are taken
	stop   context.CancelFunc
	wait   sync.WaitGroup
}

func (p *process) newMachine(spec Machine) *machine {
	m := &machine{
		p: p, spec: spec, policy: rule.Compile(spec.Policy),
		log:     p.log.With("machine", spec.ID),
		connect: func(ctx context.Context) (guestConn, error) { return p.connect(ctx, spec) },
		origin:  journal.Origin{TenantID: spec.TenantID, WorkspaceID: spec.WorkspaceID, MachineID: spec.ID},
		changed: make(chan struct{}),
		kick:    make(chan struct{}, 1),
		streams: make(chan net.Conn),
	}
	m.live, m.end = context.WithCancel(p.live)
	m.accept, m.stop = context.WithCancel(m.live)
	model := gateway.New(gateway.Options{
		Origin: m.origin, Name: ModelHost, Authorize: m.gatewayGrant,
		Transport: func() http.RoundTripper { return p.network.Load().model },
		Request:   p.recordRequest, Usage: p.recordUsage,
	})
	server := &api{origin: m.origin, transport: p.api, record: p.recordRequest}
	m.proxy = forward.New(forward.Options{
		Origin: m.origin, Authorize: m.proxyGrant, Record: p.recordRequest,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return p.network.Load().guard.Dial(ctx, machinePurpose, addr)
		},
		Internal: map[string]forward.Internal{
			ModelHost: {Handler: model, Serve: func(c net.Conn) { m.serve(c, journal.Model) }},
			APIHost:   {Handler: server, Serve: func(c net.Conn) { m.serve(c, journal.API) }},
		},
	})
	handlers := map[journal.Listener]http.Handler{journal.Proxy: m.proxy, journal.Model: model, journal.API: server}
	m.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !m.begin() {
				panic(http.ErrAbortHandler)
			}
			defer m.requests.Done()
			handlers[r.Context().Value(listenerKey{}).(journal.Listener)].ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, listenerKey{}, c.(*stream).listener)
		},
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: journal.NoLog,
	}
	m.wait.Go(func() { m.server.Serve(m) })
	m.wait.Go(m.hold)
	return m
}

type listenerKey struct{}

// hold keeps a connection to the guest until the machine ends. Attempts follow each other with growing pauses; a
// kick, from whoever wants the machine now, ends a pause.
func (m *machine) hold() {
	pause := redialFirst
	for m.accept.Err() == nil {
		err := m.attach()
		if m.accept.Err() != nil {
			return
		}
		if err == nil {
			pause = redialFirst // it was connected: the next attempt is the first again
		}
		select {
		case <-time.After(pause):
		case <-m.kick:
			pause = redialFirst
		case <-m.accept.Done():
			return
		}
		pause = min(2*pause, redialMost)
	}
}

// attach connects to the guest and takes its connections until it is lost. An error means that it was not reached.
func (m *machine) attach() error {
	g, err := m.reach()
	if err != nil {
		m.note(false, err)
		return err
	}
	m.note(true, nil)
	m.log.Info("guest connected")
	for {
		c, head, err := g.Accept(m.accept)
		if err != nil {
			m.note(false, errors.New("the connection to the guest ended"))
			if m.accept.Err() != nil {
				<-m.live.Done() // what is open goes on through this connection until the machine ends
			}
			g.Close()
			m.log.Info("guest gone")
			return nil
		}
		m.serve(c, journal.Listener(head.Listener))
	}
}

// reach connects to the guest. Providers are other people's code in a process on which every machine of the host
// depends: one that panics has failed, no more.
func (m *machine) reach() (_ guestConn, err error) {
	defer func() {
		if v := recover(); v != nil {
			m.panicked.Do(func() { m.log.Error("the sandbox provider panicked", "panic", v, "stack", string(debug.Stack())) })
			err = errors.New("the sandbox provider broke; the log of the egress process says where")
		}
	}()
	ctx, cancel := context.WithTimeout(m.accept, connectTimeout)
	defer cancel()
	return m.connect(ctx)
}

func (m *machine) note(connected bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connected, m.lastErr = connected, err
	close(m.changed)
	m.changed = make(chan struct{})
}

// probe waits until the guest is connected, or ctx ends.
func (m *machine) probe(ctx context.Context) probeAnswer {
	m.nudge()
	for {
		m.mu.Lock()
		connected, err, changed := m.connected, m.lastErr, m.changed
		m.mu.Unlock()
		answer := probeAnswer{Connected: connected}
		if err != nil {
			answer.Error = err.Error()
		}
		if connected {
			return answer
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answer
		}
	}
}

// nudge makes hold try at once.
func (m *machine) nudge() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// serve hands a connection of the machine to the HTTP server.
func (m *machine) serve(c net.Conn, listener journal.Listener) {
	switch listener {
	case journal.Proxy, journal.Model, journal.API:
	default:
		c.Close() // a listener of a newer guest
		return
	}
	if m.open.Add(1) > maxConnections {
		m.open.Add(-1)
		c.Close()
		if last := m.limited.Load(); time.Since(time.Unix(0, last)) < limitedEvery || !m.limited.CompareAndSwap(last, time.Now().UnixNano()) {
			return // said already
		}
		row := journal.NewRequest(m.origin, listener, "")
		row.Decision, row.Rule, row.Error = journal.Denied, journal.RuleConnections, "too many connections at once"
		m.p.recordRequest(row)
		return
	}
	s := &stream{Conn: c, listener: listener, release: sync.OnceFunc(func() { m.open.Add(-1) })}
	select {
	case m.streams <- s:
	case <-m.accept.Done():
		s.Close()
	}
}

// begin counts a request in, unless the machine has ended.
func (m *machine) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.requests.Add(1)
	}
	return !m.ended
}

// close ends the machine and returns when all its rows are recorded. What is open may finish until ctx ends; new
// connections are not taken.
func (m *machine) close(ctx context.Context) {
	m.stop()
	m.server.Shutdown(ctx)
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		m.requests.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
	}
	m.end()
	m.wait.Wait() // the connection to the guest is closed, and every stream in it
	m.server.Close()
	<-finished
	m.proxy.Close()
}

// Accept, Close and Addr make the machine the listener of its HTTP server.
func (m *machine) Accept() (net.Conn, error) {
	select {
	case c := <-m.streams:
		return c, nil
	case <-m.accept.Done():
		return nil, net.ErrClosed
	}
}

// Close is the listener's; it ends with the machine.
func (m *machine) Close() error { return nil }

// Addr is the listener's.
func (m *machine) Addr() net.Addr { return guestAddr{} }

type guestAddr struct{}

func (guestAddr) Network() string { return "guest" }
func (guestAddr) String() string  { return "guest" }

// stream is one connection of a machine.
type stream struct {
	net.Conn
	listener journal.Listener
	release  func()
}

// CloseWrite ends our direction.
func (s *stream) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close ends the connection in order: without our direction's own end the machine would see a reset.
func (s *stream) Close() error {
	s.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	s.CloseWrite() // best effort
	return s.Reset()
}

// Reset ends the connection as it is. The guest's streams half-close only: whoever reads is told by the deadline.
func (s *stream) Reset() error {
	s.release()
	s.Conn.SetDeadline(time.Unix(1, 0))
	return s.Conn.Close()
}

// proxyGrant is what a token of this machine, or "" for none, may do as a proxy client.
func (m *machine) proxyGrant(plaintext string) (forward.Grant, bool) {
	if plaintext == "" {
		m.mu.Lock()
		policy, compiled := m.spec.Policy, m.policy
		m.mu.Unlock()
		return forward.Grant{Policy: policy, Decide: m.p.decider(compiled), Live: m.live}, true
	}
	t := m.p.token(plaintext, m.spec.ID)
	if t == nil {
		return forward.Grant{}, false
	}
	return forward.Grant{
		Token: &t.ID, Conversation: &t.ConversationID,
		Policy: t.Policy, Decide: m.p.decider(t.policy), Live: t.live,
	}, true
}

// gatewayGrant is what a token of this machine may do at the model gateway.
func (m *machine) gatewayGrant(plaintext string) (gateway.Grant, bool) {
	t := m.p.token(plaintext, m.spec.ID)
	if t == nil {
		return gateway.Grant{}, false
	}
	return gateway.Grant{Token: t.ID, Conversation: t.ConversationID, Credential: t.Model,
		AllowedModels: t.AllowedModels, Live: t.live}, true
}
