package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/internal/netguard"
	"managoat/sandbox/guest"
)

// Limits and times of the process.
const (
	requestSpool = 64 << 20        // bytes of request rows kept while the server is away
	usageSpool   = 64 << 20        // bytes of usage rows; apart, so that chatter cannot push out what is billed
	drainTime    = 5 * time.Second // what is open may finish for so long after the process is asked to end
	needlessTime = time.Minute     // without a machine and without a server for so long, the process ends
)

const machinePurpose = netguard.Machine

// Options of Serve.
type Options struct {
	Dir string // private to this process and the server; made when it is not there
	// Dial opens a byte stream to the guest of a machine: sandbox.Provider.Guest of its provider.
	Dial func(ctx context.Context, s Settings, m Machine) (net.Conn, error)
	Log  *slog.Logger // nil: slog.Default()
	// Build is the version of this binary.
	Build string

	needless time.Duration // 0: needlessTime
}

// process is the egress process.
type process struct {
	o     Options
	log   *slog.Logger
	hello hello

	requests, usage *journal.Spool
	network         atomic.Pointer[network]
	api             *http.Transport
	live            context.Context // ends when draining is over

	mu       sync.RWMutex
	closing  bool
	calls    int       // of the server, under way
	lastCall time.Time // when one ended last
	machines map[uuid.UUID]*machine
	byHash   map[[32]byte]*liveToken
	byID     map[uuid.UUID]*liveToken
	ending   sync.WaitGroup // machines that were removed
}

// network is everything that depends on the settings.
type network struct {
	settings Settings
	guard    *netguard.Guard
	model    *http.Transport
}

// liveToken is a token in use.
type liveToken struct {
	Token
	policy *rule.Compiled
	live   context.Context
	end    context.CancelFunc
}

// Serve is the egress process: it serves the directory until ctx ends or the server stops it, then lets what is
// open finish for a short while. It returns ErrServed when another process serves the directory. It knows nothing at
// its start; the server tells it everything over the control socket.
func Serve(ctx context.Context, o Options) (err error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if err := prepareDir(o.Dir); err != nil {
		return fmt.Errorf("egress directory: %w", err)
	}
	lock, err := tryLockDir(o.Dir)
	if err != nil {
		return fmt.Errorf("egress directory: %w", err)
	}
	defer lock.Close()

	live, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	p := &process{
		o: o, log: o.Log, live: live,
		hello:    hello{Version: ControlVersion, Boot: uuid.New(), PID: os.Getpid(), StartedAt: time.Now(), Build: o.Build},
		machines: map[uuid.UUID]*machine{}, byHash: map[[32]byte]*liveToken{}, byID: map[uuid.UUID]*liveToken{},
	}
	p.lastCall = p.hello.StartedAt
	p.api = apiTransport(func() string { return p.network.Load().settings.API })
	defer p.api.CloseIdleConnections()
	if err := p.apply(Settings{}); err != nil {
		return err
	}
	if p.requests, err = journal.OpenSpool(filepath.Join(o.Dir, spoolName, "requests"), requestSpool, o.Log); err != nil {
		return err
	}
	defer p.requests.Close()
	if p.usage, err = journal.OpenSpool(filepath.Join(o.Dir, spoolName, "usage"), usageSpool, o.Log); err != nil {
		return err
	}
	defer p.usage.Close()

	listener, err := listenControl(o.Dir)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	waiting, endWaiting := context.WithCancel(context.WithoutCancel(ctx)) // long polls of the server
	defer endWaiting()
	control := &http.Server{
		Handler:           p.control(stop),
		ReadHeaderTimeout: controlTimeout,
		BaseContext:       func(net.Listener) context.Context { return waiting },
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- control.Serve(listener) }()
	o.Log.Info("egress process serves", "dir", o.Dir, "boot", p.hello.Boot)
	if o.needless == 0 {
		o.needless = needlessTime
	}
	look := time.NewTicker(o.needless / 4)
	defer look.Stop()
	for ctx.Err() == nil && err == nil {
		select {
		case <-ctx.Done():
		case err = <-served:
			served <- http.ErrServerClosed
		case <-look.C:
			if p.needless(o.needless) {
				o.Log.Info("no machine and no server")
				stop()
			}
		}
	}
	o.Log.Info("egress process ends")

	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	p.close(drain)
	endWaiting()
	control.Shutdown(drain)
	control.Close()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	<-served
	return err
}

// listenControl opens the control socket. The lock is ours, so a socket that lies there is a dead process's.
func listenControl(dir string) (net.Listener, error) {
	path, err := socketPath(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return sameUser{l}, nil
}

// sameUser accepts connections of our own user and of root only. The directory keeps others out too; this holds
// when somebody loosens its mode.
type sameUser struct{ *net.UnixListener }

func (l sameUser) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUID(c); err == nil && (uid == 0 || uid == os.Geteuid()) {
			return c, nil
		}
		c.Close()
	}
}

// peerUID is who is at the other end of a connection.
func peerUID(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	asked := raw.Control(func(fd uintptr) { uid, err = ownerOf(int(fd)) })
	return uid, errors.Join(asked, err)
}

// connect reaches a machine's guest through its provider.
func (p *process) connect(ctx context.Context, m Machine) (guestConn, error) {
	conn, err := p.o.Dial(ctx, p.network.Load().settings, m)
	if err != nil {
		return nil, err
	}
	return guest.Dial(ctx, conn, guest.RoleEgress)
}

// needless tells that nothing depends on the process: it has no machine, and no server spoke to it for a while. One that
// started it in vain, or was taken away for good, leaves nothing behind.
func (p *process) needless(since time.Duration) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.machines) == 0 && p.calls == 0 && time.Since(p.lastCall) > since
}

// quiet tells that no connection of any machine is open.
func (p *process) quiet() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, m := range p.machines {
		if m.open.Load() > 0 {
			return false
		}
	}
	return true
}

// close ends everything; what is open may finish until ctx ends.
func (p *process) close(ctx context.Context) {
	p.mu.Lock()
	p.closing = true
	for _, m := range p.machines {
		p.ending.Go(func() { m.close(ctx) })
	}
	p.mu.Unlock()
	p.ending.Wait()
}

// apply takes new settings on. What is open goes on under the old ones.
func (p *process) apply(s Settings) error {
	old := p.network.Load()
	if old != nil && reflect.DeepEqual(old.settings, s) {
		return nil
	}
	n := &network{settings: s, guard: netguard.New(netguard.Options{Resolve: s.Resolve, AllowPrivate: s.AllowPrivate, ExtraCA: s.ExtraCA})}
	var err error
	if n.model, err = n.guard.Transport(netguard.Model); err != nil {
		return err
	}
	p.network.Store(n)
	if old != nil {
		old.model.CloseIdleConnections()
	}
	return nil
}

func (p *process) decider(policy *rule.Compiled) func(host string, port int) rule.Verdict {
	return func(host string, port int) rule.Verdict { return p.network.Load().settings.decide(policy, host, port) }
}

// token finds a token of a machine by its plaintext.
func (p *process) token(plaintext string, machine uuid.UUID) *liveToken {
	hash := HashToken(plaintext)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.byHash[hash]; t != nil && t.MachineID == machine {
		return t
	}
	return nil // also a token that was carried to another machine
}

func (p *process) putMachine(m Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return
	}
	if running := p.machines[m.ID]; running != nil {
		if running.update(m) {
			running.nudge()
			return
		}
		p.endMachine(running)
	}
	p.machines[m.ID] = p.newMachine(m)
}

// update takes a machine's new policy on; false when it is another machine under the same ID.
func (m *machine) update(spec Machine) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	same := m.spec
	same.Policy = spec.Policy
	if !reflect.DeepEqual(same, spec) {
		return false
	}
	m.spec, m.policy = spec, rule.Compile(spec.Policy)
	return true
}

func (p *process) removeMachine(id uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.machines[id]; m != nil && !p.closing {
		p.endMachine(m)
	}
}

// endMachine ends a machine at once. The caller holds mu.
func (p *process) endMachine(m *machine) {
	delete(p.machines, m.spec.ID)
	ended, cancel := context.WithCancel(p.live)
	cancel()
	p.ending.Go(func() { m.close(ended) })
}

func (p *process) putToken(t Token) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &liveToken{Token: t, policy: rule.Compile(t.Policy)}
	if old := p.byID[t.ID]; old != nil {
		delete(p.byHash, old.Hash)
		next.live, next.end = old.live, old.end // what is open stays
	} else {
		next.live, next.end = context.WithCancel(p.live)
	}
	p.byID[t.ID], p.byHash[t.Hash] = next, next
}

func (p *process) removeToken(id uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.byID[id]; t != nil {
		delete(p.byID, id)
		delete(p.byHash, t.Hash)
		t.end()
	}
}

func (p *process) putState(s state) error {
	if err := p.apply(s.Settings); err != nil {
		return err
	}
	known := map[uuid.UUID]bool{}
	for _, m := range s.Machines {
		known[m.ID] = true
		p.putMachine(m)
	}
	for _, t := range s.Tokens {
		known[t.ID] = true
		p.putToken(t)
	}
	if !s.Complete {
		return nil
	}
	p.mu.RLock()
	var machines, tokens []uuid.UUID
	for id := range p.machines {
		if !known[id] {
			machines = append(machines, id)
		}
	}
	for id := range p.byID {
		if !known[id] {
			tokens = append(tokens, id)
		}
	}
	p.mu.RUnlock()
	for _, id := range machines {
		p.removeMachine(id)
	}
	for _, id := range tokens {
		p.removeToken(id)
	}
	return nil
}

func (p *process) recordRequest(row journal.Request) {
	row.Clean()
	err := p.requests.Append(func(dropped int64) ([]byte, error) {
		row.Dropped = dropped
		return json.Marshal(row)
	})
	if err != nil {
		p.log.Error("request row lost", "row", row.ID, "error", err)
	}
}

func (p *process) recordUsage(row journal.Usage) {
	row.Clean()
	err := p.usage.Append(func(dropped int64) ([]byte, error) {
		row.Dropped = dropped
		return json.Marshal(row)
	})
	if err != nil {
		p.log.Error("usage row lost", "row", row.ID, "error", err)
	}
}

// control answers the server.
func (p *process) control(stop context.CancelFunc) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) { reply(w, p.hello) })
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{})
		stop()
	})
	// mine lets through what is meant for this process.
	mine := func(pattern string, handle func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(bootHeader) != p.hello.Boot.String() {
				http.Error(w, "this is another process", http.StatusPreconditionFailed)
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxControlBody)
			if err := handle(w, r); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	mine("POST /state", func(w http.ResponseWriter, r *http.Request) error {
		var wire stateWire
		if err := json.NewDecoder(r.Body).Decode(&wire); err != nil {
			return err
		}
		s, err := wire.state()
		if err != nil {
			return err
		}
		return p.putState(s)
	})
	mine("PUT /machines/{id}", func(w http.ResponseWriter, r *http.Request) error {
		var m Machine
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			return err
		}
		p.putMachine(m)
		return nil
	})
	mine("DELETE /machines/{id}", func(w http.ResponseWriter, r *http.Request) error {
		id, err := uuid.Parse(r.PathValue("id"))
		if err != nil {
			return err
		}
		p.removeMachine(id)
		return nil
	})
	mine("GET /machines/{id}/probe", func(w http.ResponseWriter, r *http.Request) error {
		id, err := uuid.Parse(r.PathValue("id"))
		if err != nil {
			return err
		}
		p.mu.RLock()
		m := p.machines[id]
		p.mu.RUnlock()
		if m == nil {
			return fmt.Errorf("machine %s was not put", id)
		}
		ctx, cancel := context.WithTimeout(r.Context(), probeWait)
		defer cancel()
		reply(w, m.probe(ctx))
		return nil
	})
	mine("PUT /tokens/{id}", func(w http.ResponseWriter, r *http.Request) error {
		var wire tokenWire
		if err := json.NewDecoder(r.Body).Decode(&wire); err != nil {
			return err
		}
		t, err := wire.token()
		if err != nil {
			return err
		}
		p.putToken(t)
		return nil
	})
	mine("DELETE /tokens/{id}", func(w http.ResponseWriter, r *http.Request) error {
		id, err := uuid.Parse(r.PathValue("id"))
		if err != nil {
			return err
		}
		p.removeToken(id)
		return nil
	})
	mine("POST /retire", func(w http.ResponseWriter, r *http.Request) error {
		ends := p.quiet()
		reply(w, retired{ends})
		if ends {
			stop() // what comes in this moment may still finish
		}
		return nil
	})
	mine("GET /rows/requests", rows(p.requests))
	mine("GET /rows/usage", rows(p.usage))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.calls++
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			p.calls, p.lastCall = p.calls-1, time.Now()
			p.mu.Unlock()
		}()
		mux.ServeHTTP(w, r)
	})
}

// rows answers with the rows after the one the server has stored, when there are some.
func rows(spool *journal.Spool) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		after, err := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
		if err != nil {
			return err
		}
		if err := spool.Ack(after); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(r.Context(), rowsWait)
		defer cancel()
		found, last, err := spool.Next(ctx, after)
		if err != nil && ctx.Err() == nil {
			return err
		}
		batch := rowBatch{Rows: make([]json.RawMessage, len(found)), Last: last}
		for i, row := range found {
			batch.Rows[i] = row
		}
		reply(w, batch)
		return nil
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v) // a server that hangs up asks again
}
