package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"managoat/db"
	"managoat/internal/machine/operation"
	"managoat/internal/stream"
	"managoat/internal/transcript"
	"managoat/queries"
	"managoat/sandbox/guest"
)

// Sizes and times of what a step prints.
const (
	keptOutput  = 64 << 10               // bytes of a step's output that are kept: its last
	maxBatch    = stream.MaxLines        // bytes of one workspace.setup event
	batchEvery  = 100 * time.Millisecond // between writes; the first comes at once
	maxPending  = 64 << 10               // bytes that wait for a write; what is older is dropped from the stream, and counted
	fullStream  = 4 << 20                // bytes of a step's output that the stream carries at this pace
	slowEvery   = time.Second            // between writes after that
	slowPending = maxBatch               // and what waits for one
	tailLines   = 40                     // of a failed step, in the workspace's error
	tailBytes   = 4 << 10
)

// printer carries what one step prints: through the text gate, onto the account's stream (or into a conversation's
// transcript) in batches, and into the setup's log. It never makes the step wait: what comes faster than it can be
// written is dropped from the stream, and counted; the log keeps the last of it in any case.
type printer struct {
	s    *setup
	step string
	gate *transcript.Gate

	texts map[guest.Stream]*transcript.Text // by stream; used by the step's goroutine alone

	mu      sync.Mutex
	kept    []byte // the end of all output
	cut     int64  // bytes that were printed before kept
	pending []byte // not written yet
	dropped int64  // bytes before pending that never will be
	sent    int64

	wake    chan struct{} // something waits
	closing chan struct{}
	done    chan struct{} // the writer has returned
}

// ours is the stream of lines that we say ourselves.
const ours guest.Stream = "managoat"

func (s *setup) print(ctx context.Context, step string) *printer {
	p := &printer{
		s: s, step: step, gate: transcript.NewGate(s.redactor), texts: map[guest.Stream]*transcript.Text{},
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	go p.write(ctx)
	return p
}

func (p *printer) text(of guest.Stream) *transcript.Text {
	t := p.texts[of]
	if t == nil {
		t = p.gate.Stream()
		p.texts[of] = t
	}
	return t
}

// chunk takes a piece of a command's output.
func (p *printer) chunk(c guest.Chunk) {
	if c.Dropped > 0 {
		p.add(p.text(c.Stream).Flush())
		p.add(fmt.Sprintf("\n… %d bytes were printed too fast to be kept …\n", c.Dropped))
	}
	p.add(p.text(c.Stream).Write(c.Data))
}

// say prints a line of ours.
func (p *printer) say(format string, args ...any) {
	p.add(p.text(ours).Write(fmt.Appendf(nil, format+"\n", args...)))
	p.add(p.text(ours).Flush())
}

// flush shows what the gate still held back: at the end of a command.
func (p *printer) flush() {
	for _, t := range p.texts {
		p.add(t.Flush())
	}
}

func (p *printer) add(text string) {
	if text == "" {
		return
	}
	p.mu.Lock()
	p.kept = append(p.kept, text...)
	if over := len(p.kept) - keptOutput; over > 0 {
		over = lineStart(p.kept, over)
		p.cut += int64(over)
		p.kept = append(p.kept[:0], p.kept[over:]...)
	}
	p.pending = append(p.pending, text...)
	limit := maxPending
	if p.sent > fullStream {
		limit = slowPending
	}
	if over := len(p.pending) - limit; over > 0 {
		over = lineStart(p.pending, over)
		p.dropped += int64(over)
		p.pending = append(p.pending[:0], p.pending[over:]...)
	}
	p.mu.Unlock()
	p.arm()
}

func (p *printer) arm() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// lineStart moves a cut forward to the start of a line, or at least of a character.
func lineStart(b []byte, at int) int {
	for i := at; i < len(b) && i < at+maxBatch; i++ {
		if i > 0 && b[i-1] == '\n' {
			return i
		}
	}
	for at < len(b) && b[at]&0xC0 == 0x80 {
		at++
	}
	return at
}

// write writes batches until the printer is closed.
func (p *printer) write(ctx context.Context) {
	defer close(p.done)
	for {
		select {
		case <-p.wake:
		case <-p.closing:
			return
		}
		pause := batchEvery
		if err := p.batch(ctx); err != nil {
			if !errors.Is(err, operation.ErrLost) && ctx.Err() == nil {
				p.s.s.log.Warn("a setup's output waits to be written", "workspace", p.s.w.ID, "error", err)
			}
			p.arm()
			pause = slowEvery
		} else if p.over() {
			pause = slowEvery
		}
		select {
		case <-time.After(pause):
		case <-p.closing:
			return
		}
	}
}

func (p *printer) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent > fullStream
}

// batch writes what waits in one transaction.
func (p *printer) batch(ctx context.Context) error {
	p.mu.Lock()
	pending, dropped := string(p.pending), p.dropped
	kept, cut := string(p.kept), p.cut
	p.pending, p.dropped = nil, 0
	p.mu.Unlock()
	if pending == "" && dropped == 0 {
		return nil
	}
	var announce stream.Pending
	err := p.s.held.Write(ctx, func(tx db.Tx) error {
		err := tx.PrintSetupStep(ctx, queries.PrintSetupStepParams{WorkspaceID: p.s.w.ID, Step: p.step, Output: kept, DroppedBytes: cut})
		if err != nil || p.s.w.Implicit {
			return err
		}
		var events []stream.Event
		before := dropped
		for rest := pending; rest != "" || before > 0; before = 0 {
			var part string
			part, rest = splitBatch(rest)
			events = append(events, stream.Event{
				Name: stream.WorkspaceSetup, WorkspaceID: &p.s.w.ID, SetupID: &p.s.held.ID,
				Body: stream.SetupBody{WorkspaceID: p.s.w.ID, SetupID: p.s.held.ID, Step: p.step, Lines: lines(part), Dropped: before},
			})
		}
		announce, err = p.s.s.o.Stream.AppendTx(ctx, tx, p.s.w.TenantID, events...)
		return err
	})
	if err != nil {
		p.mu.Lock() // it goes before what came meanwhile
		p.pending, p.dropped = append([]byte(pending), p.pending...), p.dropped+dropped
		p.mu.Unlock()
		return err
	}
	announce.Announce()
	p.s.tell(ctx, StageEvent{Step: p.step, State: StagePrinted, Lines: lines(pending), Dropped: dropped})
	p.mu.Lock()
	p.sent += int64(len(pending))
	p.mu.Unlock()
	return nil
}

// close writes the rest and ends the writer.
func (p *printer) close(ctx context.Context) error {
	p.flush()
	close(p.closing)
	<-p.done
	return p.batch(ctx)
}

// tail is the end of the output, for the workspace's error.
func (p *printer) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.kept
	if over := len(b) - tailBytes; over > 0 {
		b = b[lineStart(b, over):]
	}
	all := strings.SplitAfter(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-tailLines):], "")
}

// splitBatch takes at most maxBatch bytes off the front, at the end of a line where there is one.
func splitBatch(text string) (part, rest string) {
	if len(text) <= maxBatch {
		return text, ""
	}
	at := strings.LastIndexByte(text[:maxBatch], '\n') + 1
	if at == 0 {
		at = maxBatch
		for at > 0 && text[at]&0xC0 == 0x80 {
			at--
		}
	}
	return text[:at], text[at:]
}

// lines splits text after each newline, which stays: a line without one goes on with the next event.
func lines(text string) []string {
	if text == "" {
		return []string{}
	}
	all := strings.SplitAfter(text, "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}
