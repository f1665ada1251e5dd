package workspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	lineWait    = 50 * time.Millisecond  // for the rest of a line, before its start is shown alone
	maxLine     = maxBatch               // bytes of a line that are waited for
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
	open    map[guest.Stream]openLine
	kept    []byte // the end of all output
	cut     int64  // bytes that were printed before kept
	pending []byte // not written yet
	dropped int64  // bytes before pending that never will be
	sent    int64

	wake    chan struct{} // something waits
	closing chan struct{}
	done    chan struct{} // the writer has returned
}

// openLine is the start of a line whose end has not come. It waits a moment, so that what another stream prints meanwhile
// does not come into the middle of it: programs write "E" and ": no such package" apart.
type openLine struct {
	text  string
	since time.Time
}

// ours is the stream of lines that we say ourselves.
const ours guest.Stream = "managoat"

// streams is the order in which open lines are shown at the end.
var streams = []guest.Stream{guest.Stdout, guest.Stderr, ours}

func (s *setup) print(ctx context.Context, step string) *printer {
	p := &printer{
		s: s, step: step, gate: transcript.NewGate(s.redactor), texts: map[guest.Stream]*transcript.Text{}, open: map[guest.Stream]openLine{},
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
		p.skip(c.Stream, c.Dropped)
	}
	p.put(c.Stream, p.text(c.Stream).Write(c.Data))
}

// skip notes that the machine could not keep bytes of a stream, which was printed too fast. What came before them goes
// the same way, so that what is shown has no gap in it.
func (p *printer) skip(of guest.Stream, n int64) {
	p.put(of, p.text(of).Flush())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.showOpen(0)
	p.cut, p.kept = p.cut+int64(len(p.kept))+n, p.kept[:0]
	p.dropped, p.pending = p.dropped+int64(len(p.pending))+n, p.pending[:0]
}

// say prints a line of ours.
func (p *printer) say(format string, args ...any) {
	p.put(ours, p.text(ours).Write(fmt.Appendf(nil, format+"\n", args...))+p.text(ours).Flush())
}

// flush shows what the gate still held back, and lines without an end: at the end of a command.
func (p *printer) flush() {
	for _, of := range streams {
		if t := p.texts[of]; t != nil {
			p.put(of, t.Flush())
		}
	}
	p.mu.Lock()
	p.showOpen(0)
	p.mu.Unlock()
	p.arm()
}

// put takes text of a stream: whole lines are shown at once, the start of one waits for its rest.
func (p *printer) put(of guest.Stream, text string) {
	if text == "" {
		return
	}
	p.mu.Lock()
	line := p.open[of]
	if line.text == "" {
		line.since = time.Now()
	}
	line.text += text
	if end := strings.LastIndexByte(line.text, '\n') + 1; end > 0 {
		p.show(line.text[:end])
		line = openLine{line.text[end:], time.Now()}
	}
	if len(line.text) > maxLine {
		p.show(line.text)
		line.text = ""
	}
	p.open[of] = line
	p.mu.Unlock()
	p.arm()
}

// showOpen shows the open lines that have waited for at least that long. p.mu is held.
func (p *printer) showOpen(waited time.Duration) {
	for _, of := range streams {
		if line := p.open[of]; line.text != "" && time.Since(line.since) >= waited {
			p.show(line.text)
			p.open[of] = openLine{}
		}
	}
}

// show adds text to what is kept and to what waits to be written. p.mu is held.
func (p *printer) show(text string) {
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
		if !p.due() && p.pause(lineWait) {
			return
		}
		err := p.batch(ctx)
		if err != nil && !errors.Is(err, operation.ErrLost) && ctx.Err() == nil {
			p.s.s.log.Warn("a setup's output waits to be written", "workspace", p.s.w.ID, "error", err)
		}
		wait := batchEvery
		p.mu.Lock()
		if err != nil || p.sent > fullStream {
			wait = slowEvery
		}
		rest := err != nil || slices.ContainsFunc(streams, func(of guest.Stream) bool { return p.open[of].text != "" })
		p.mu.Unlock()
		if rest {
			p.arm()
		}
		if p.pause(wait) {
			return
		}
	}
}

// due tells whether something waits that need not wait for the end of a line.
func (p *printer) due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0
}

// pause waits, and tells whether the printer was closed meanwhile.
func (p *printer) pause(d time.Duration) (closed bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-p.closing:
		return true
	}
}

// batch writes what waits in one transaction.
func (p *printer) batch(ctx context.Context) error {
	p.mu.Lock()
	p.showOpen(lineWait)
	pending, dropped := string(p.pending), p.dropped
	kept, cut := string(p.kept), p.cut
	p.pending, p.dropped = nil, 0
	p.mu.Unlock()
	if pending == "" && dropped == 0 {
		return nil
	}
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
		return p.s.s.o.Stream.AppendTx(ctx, tx, p.s.w.TenantID, events...)
	})
	if err != nil {
		p.mu.Lock() // it goes before what came meanwhile
		p.pending, p.dropped = append([]byte(pending), p.pending...), p.dropped+dropped
		p.mu.Unlock()
		return err
	}
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
