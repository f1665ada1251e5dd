package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"

	"managoat/internal/acp"
	"managoat/internal/refusal"
	"managoat/internal/runtime"
	"managoat/internal/transcript"
	"managoat/queries"
	"managoat/sandbox/guest"
)

// Sizes and times of a live adapter.
const (
	spoolBytes     = 2 * acp.MaxLine        // what the guest keeps until it is stored; the longest line fits twice
	inputQueue     = 32                     // chunks that were read and wait for the pump
	outputQueue    = 64                     // lines that wait for the agent to read them
	eventQueue     = 64                     // what terminals and records have to tell the pump
	stderrTail     = 8 << 10                // bytes of standard error that are kept for the case of a crash
	ackEvery       = 256 << 10              // bytes that are stored before the guest is told, which costs a round trip
	ackTimeout     = 5 * time.Second        //
	reconnectFor   = 30 * time.Second       // a guest connection that broke is made again for so long
	reconnectEvery = 250 * time.Millisecond //
	signalTimeout  = 5 * time.Second        // for the guest to deliver a signal
	exitPoll       = 20 * time.Millisecond  // between looks for the end of what was killed
)

// process is a conversation's adapter while this server holds it. What it says is handled by one goroutine, the pump; the
// fields below its line are the pump's.
type process struct {
	s         *Service
	tenant    uuid.UUID
	id        uuid.UUID // of the conversation
	workspace uuid.UUID
	cwd       string
	runtime   runtime.Runtime
	launch    runtime.Launch
	gate      *transcript.Gate
	redactor  *transcript.Redactor
	env       map[string]string // of the process, for the terminals it asks for
	exec      uuid.UUID         // of its command in the guest
	execID    string
	machine   uuid.UUID
	boot      string                 // of the machine: another start of it is the end of the process
	session   string                 // of the protocol; "" until it stands
	caps      sdk.PromptCapabilities // of the agent

	ctx      context.Context
	cancel   context.CancelCauseFunc
	peer     *acp.Peer
	out      chan []byte // lines to the agent
	in       chan arrival
	recorded chan guest.Record
	calls    chan func()   // what others do in the pump's place
	gone     chan struct{} // closed when the pump has ended
	closing  atomic.Bool   // it takes no more prompts
	owned    sync.WaitGroup

	mu    sync.Mutex
	guest *guest.Client

	// The pump's.
	pump
}

// arrival is something that came from the guest.
type arrival struct {
	chunk *guest.Chunk
	exit  *guest.Exit
	lost  error // the connection is gone for good
}

// errDetached ends a process's goroutines and leaves the adapter alone.
var errDetached = errors.New("the server lets go of the adapter")

// hold begins to follow an adapter that runs, or has just been started, from where its row says. t is the turn that what
// it says belongs to; nil between turns.
func (s *Service) hold(p *process, a adapter, g *guest.Client, t *turn, open []queries.ToolCall) {
	p.s, p.guest, p.exec, p.execID, p.machine, p.boot = s, g, a.ExecID, a.ExecID.String(), a.MachineID, a.BootID
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.out, p.in, p.calls, p.gone = make(chan []byte, outputQueue), make(chan arrival, inputQueue), make(chan func(), eventQueue), make(chan struct{})
	p.recorded = make(chan guest.Record, eventQueue)
	// Above every number that an earlier server used with the same process.
	p.peer = acp.NewPeer(time.Now().UnixMilli(), p.enqueue)
	p.pump.init(a)
	if t != nil {
		p.begin(t)
		p.restore(open)
	}
	s.mu.Lock()
	s.processes[p.id] = p
	s.mu.Unlock()
	at := guest.Offsets{Stdout: a.Stdout, Stderr: a.Stderr}
	p.owned.Go(func() { p.follow(at) })
	p.owned.Go(p.write)
	if p.env[guest.RecordTag] != "" {
		p.owned.Go(func() { p.followRecords(a.Records) })
	}
	p.owned.Go(p.run)
}

// held is the conversation's adapter, if this server holds one.
func (s *Service) held(id uuid.UUID) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[id]
}

// ready is the conversation's adapter, if this server holds one that takes prompts.
func (s *Service) ready(id uuid.UUID) *process {
	if p := s.held(id); p != nil && !p.closing.Load() && p.ctx.Err() == nil {
		return p
	}
	return nil
}

// detach lets go of the adapter, which goes on in its machine.
func (p *process) detach() {
	p.cancel(errDetached)
	p.owned.Wait()
}

// letGo forgets a process whose pump has ended.
func (s *Service) letGo(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[p.id] == p {
		delete(s.processes, p.id)
	}
}

// detachAll lets go of every adapter, when the server stops.
func (s *Service) detachAll() {
	s.mu.Lock()
	all := make([]*process, 0, len(s.processes))
	for _, p := range s.processes {
		all = append(all, p)
	}
	s.mu.Unlock()
	for _, p := range all {
		p.detach()
	}
}

// client is the connection to the guest as it is now.
func (p *process) client() *guest.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.guest
}

// do runs fn in the pump's place and waits for it; false when the pump has ended.
func (p *process) do(ctx context.Context, fn func()) bool {
	done := make(chan struct{})
	select {
	case p.calls <- func() { defer close(done); fn() }:
	case <-p.gone:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case <-done:
		return true
	case <-p.gone:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// tell runs fn in the pump's place, some time soon: for goroutines that belong to the process.
func (p *process) tell(fn func()) {
	select {
	case p.calls <- fn:
	case <-p.gone:
	case <-p.ctx.Done():
	}
}

// enqueue hands a line to the writer. An agent that reads nothing must not stop the pump.
func (p *process) enqueue(_ context.Context, line []byte) error {
	select {
	case p.out <- line:
		return nil
	case <-p.gone:
		return acp.ErrClosed
	default:
		return fmt.Errorf("%w: it reads nothing of what it is sent", acp.ErrClosed)
	}
}

// write writes lines to the agent's standard input. A write that breaks off is never repeated: nobody knows how much of
// it was read.
func (p *process) write() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case line := <-p.out:
			err := p.client().Stdin(p.ctx, p.execID, line)
			if err == nil || p.ctx.Err() != nil {
				continue
			}
			p.s.log.Warn("a line was not written to an agent", "conversation", p.id, "error", err)
			if errors.Is(err, guest.ErrGone) {
				p.tell(func() { p.broken = err })
			}
			// Else the process has ended, or is about to: its exit says more.
		}
	}
}

// follow reads the adapter's output into the pump, over as many connections as it takes.
func (p *process) follow(at guest.Offsets) {
	send := func(in arrival) {
		select {
		case p.in <- in:
		case <-p.ctx.Done():
		}
	}
	for {
		exit, err := p.client().Follow(p.ctx, p.execID, at, func(c guest.Chunk) error {
			end := c.Offset + int64(len(c.Data))
			if c.Stream == guest.Stdout {
				at.Stdout = end
			} else {
				at.Stderr = end
			}
			send(arrival{chunk: &c})
			return p.ctx.Err()
		})
		switch {
		case p.ctx.Err() != nil:
			return
		case err == nil:
			send(arrival{exit: exit})
			return
		case !errors.Is(err, guest.ErrGone):
			send(arrival{lost: err})
			return
		}
		if err := p.reconnect(); err != nil {
			send(arrival{lost: err})
			return
		}
	}
}

// reconnect makes the connection to the guest again, as long as it is the same start of the same machine.
func (p *process) reconnect() error {
	ctx, cancel := context.WithTimeout(p.ctx, reconnectFor)
	defer cancel()
	tick := time.NewTicker(reconnectEvery)
	defer tick.Stop()
	for {
		up, err := p.s.o.Workspaces.Peek(ctx, p.tenant, p.workspace)
		switch {
		case err == nil && up.MachineID != p.machine:
			return errMachineGone
		case err == nil && up.Guest.Hello().BootID != p.boot:
			return errMachineRestarted
		case err == nil:
			p.mu.Lock()
			p.guest = up.Guest
			p.mu.Unlock()
			return nil
		case refusal.Is(err, refusal.SandboxNotReady):
			gone, err := p.s.o.Workspaces.Gone(ctx, p.tenant, p.machine)
			if err == nil && gone {
				return errMachineGone
			}
			if err == nil {
				return errMachineRestarted
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(guest.ErrGone, err)
		case <-tick.C:
		}
	}
}

// What became of the machine, and of the adapter with it.
var (
	errMachineRestarted = errors.New("the machine was stopped")
	errMachineGone      = errors.New("the machine is gone")
)

// killAdapter ends an adapter's whole tree and forgets its command. What the guest does not know is gone already.
func killAdapter(ctx context.Context, g *guest.Client, execID string) error {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if err := g.Signal(ctx, execID, "SIGKILL"); err != nil && !notFound(err) {
		return fmt.Errorf("end the adapter: %w", err)
	}
	tick := time.NewTicker(exitPoll)
	defer tick.Stop()
	for { // its last output is drained for a moment before it counts as ended
		status, err := g.Status(ctx, execID)
		if notFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("see the adapter's end: %w", err)
		}
		if status.Exit != nil {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("see the adapter's end: %w", ctx.Err())
		}
	}
	if err := g.Forget(ctx, execID); err != nil {
		return fmt.Errorf("forget the adapter: %w", err)
	}
	return nil
}

// stderrLines are the last lines of what the adapter wrote to its standard error, through the gate.
func (p *process) stderrLines() string {
	text := p.gate.String(string(p.stderr))
	if i := strings.IndexByte(text, '\n'); i >= 0 && len(p.stderr) == stderrTail {
		text = text[i+1:] // the first line is cut
	}
	return text
}

// rawOf is a protocol line as the transcript keeps it: redacted, and only when it is of a size that people read.
func (p *process) rawOf(line []byte) string {
	if len(line) > maxRaw {
		return ""
	}
	return string(p.gate.JSON(json.RawMessage(line)))
}

// maxRaw bounds the protocol lines that are kept beside their rows, in bytes. The rows say the same.
const maxRaw = 64 << 10
