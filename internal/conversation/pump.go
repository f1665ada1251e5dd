package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"managoat/db"
	"managoat/internal/acp"
	"managoat/internal/transcript"
	"managoat/queries"
	"managoat/sandbox/guest"
)

// Pace of the pump.
const (
	chunkPause  = 25 * time.Millisecond // a later chunk of a text waits so long for more
	chunkBytes  = 8 << 10               // or until so much is there
	quietFlush  = 10 * time.Second      // what is held back as the start of a secret is shown when a text is silent so long
	maxNotices  = 20                    // notices about lines that are no protocol, of one process
	maxNotice   = 2 << 10               // characters of such a line
	maxTurnText = 50 << 20              // bytes of text of one turn; past them the transcript keeps no more
)

// pump is the state of what an adapter says. It belongs to the process's pump goroutine.
type pump struct {
	lines     *acp.Lines
	committed adapter // as the row has it
	pos       int64   // of stdout: the end of the last line that was handled
	errPos    int64   // of stderr
	acked     guest.Offsets
	skip      skip // rows of lines that are read again, which are stored already

	rows  []transcript.Row
	ahead skip // what rows of lines after committed.Stdout have stored, or are about to
	texts map[string]*textStream
	held  *textStream // whose later chunks wait for more

	turn    *turn // that runs now; nil between turns
	turnID  *uuid.UUID
	first   bool // the turn's first token is to be noted
	written int64
	over    bool // the turn's budget is used up, and that was said
	notices int
	stderr  []byte
	tools   tools
	records records
	terms   terminals
	exit    *guest.Exit
	broken  error // the connection to the guest broke off in a write, or for good
}

// textStream is one message, thought, or output of a tool.
type textStream struct {
	key    string
	kind   string
	text   *transcript.Text
	body   func(text string) any // nil: nothing is to be shown of it
	begun  bool
	wait   string    // shown text that waits for more
	since  time.Time // when wait began
	active time.Time // when something last came
	lines  bool      // it comes out of protocol lines, so a replay brings it again
}

func (u *pump) init(a adapter) {
	u.turnID = a.TurnID
	u.committed, u.pos, u.errPos, u.acked = a, a.Stdout, a.Stderr, guest.Offsets{Stdout: a.Stdout, Stderr: a.Stderr}
	u.lines = acp.NewLines(a.Stdout)
	u.skip, u.ahead = a.Skip.clone(), a.Skip.clone()
	u.texts = map[string]*textStream{}
	u.tools.init()
	u.terms.init()
	u.records.seen = a.Records
}

// run handles all that the adapter says until it ends or is let go.
func (p *process) run() {
	defer p.s.letGo(p)
	defer close(p.gone)
	defer p.peer.Close(nil)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for p.ctx.Err() == nil {
		timer.Reset(p.pause())
		select {
		case <-p.ctx.Done():
			return
		case in := <-p.in:
			p.take(in)
			p.drain()
		case fn := <-p.calls:
			fn()
		case r := <-p.recorded:
			p.record(r)
		case <-timer.C:
			p.flushDue(time.Now())
		}
		if err := p.commit(); err != nil {
			p.stopped(err)
			return
		}
		if p.exit != nil || p.broken != nil {
			p.end()
			return
		}
	}
}

// drain takes what else is there, so that one transaction stores it.
func (p *process) drain() {
	for range inputQueue {
		select {
		case in := <-p.in:
			p.take(in)
		default:
			return
		}
		if p.exit != nil || p.broken != nil {
			return
		}
	}
}

func (p *process) take(in arrival) {
	switch {
	case in.exit != nil:
		if line, ok := p.lines.Rest(); ok {
			p.line(line)
		}
		p.exit = in.exit
	case in.lost != nil:
		p.broken = in.lost
	case in.chunk.Stream == guest.Stderr:
		p.errPos = in.chunk.Offset + int64(len(in.chunk.Data))
		p.stderr = append(p.stderr, in.chunk.Data...)
		if over := len(p.stderr) - stderrTail; over > 0 {
			p.stderr = append(p.stderr[:0], p.stderr[over:]...)
		}
	default:
		for _, line := range p.lines.Write(in.chunk.Data) {
			p.line(line)
		}
		if at, ok := p.lines.Dropping(); ok {
			p.pos = at
			p.flushAll() // held text would keep the spool from being freed
		}
	}
}

// line handles one line of the adapter's standard output.
func (p *process) line(l acp.Line) {
	defer func() { p.pos = l.End }()
	if l.Long {
		p.tooLong(l)
		return
	}
	m, err := acp.Parse(l.Data)
	switch {
	case err != nil:
		p.stray(l.Data)
	case m.Response():
		p.answer(m, l.End)
	case m.Request():
		p.request(m, l.Data)
	case m.Method == sdk.ClientMethodSessionUpdate:
		p.update(m, l.Data)
	}
}

// stray shows a line that is no protocol message: something in the agent prints where it must not.
func (p *process) stray(line []byte) {
	if len(line) == 0 {
		return
	}
	p.notices++
	if p.notices > maxNotices {
		return
	}
	text := p.gate.OneLine(string(line[:min(len(line), 4*maxNotice)]), maxNotice)
	if p.notices == maxNotices {
		text += " (more such lines are not shown)"
	}
	p.add(transcript.Row{Type: transcript.Notice, Body: transcript.NoticeBody{Code: "stray_output", Text: "The runtime printed a line that is no message: " + text}}, true)
}

func (p *process) tooLong(l acp.Line) {
	m := acp.Truncated(l.Data)
	if m.Request() {
		p.refuse(m.ID, acp.CodeInvalidRequest, "the message is too long")
	}
	what := m.Method
	if what == "" {
		what = "an answer"
	}
	p.add(transcript.Row{Type: transcript.Notice, Body: transcript.NoticeBody{Code: "line_too_long",
		Text: fmt.Sprintf("The runtime sent %s in one line of %d bytes; at most %d are read, so it was dropped.", p.gate.OneLine(what, 100), l.End-l.Start, acp.MaxLine)}}, true)
}

// answer takes the agent's answer to a request of ours. That to the prompt ends the turn, with what was said before it in
// the same transaction, so that a crash can lose neither.
func (p *process) answer(m acp.Message, end int64) {
	id, ok := acp.IDOf(m)
	if ok && p.turn != nil && id == p.committed.Prompt {
		p.pos = end
		p.finish(p.cut(answered(m)))
		return
	}
	p.peer.Deliver(m)
}

// add puts a row behind all that came before it. fromLine tells that reading its line again would bring it again.
func (p *process) add(r transcript.Row, fromLine bool) {
	if fromLine && p.skip.Rows > 0 {
		p.skip.Rows--
		return
	}
	p.showHeld()
	p.push(r, fromLine)
}

func (p *process) push(r transcript.Row, fromLine bool) {
	if r.TurnID == nil {
		r.TurnID = p.turnID
	}
	if fromLine {
		p.ahead.Rows++
	}
	p.rows = append(p.rows, r)
}

// say passes a piece of text to its stream. The first that may be shown is shown at once; later ones wait a moment.
func (p *process) say(key, kind string, fromLine bool, body func(text string) any, text string) {
	t := p.texts[key]
	if t == nil {
		t = &textStream{key: key, kind: kind, text: p.gate.Stream(), body: body, lines: fromLine}
		p.texts[key] = t
	}
	t.active = time.Now()
	p.show(t, t.text.WriteString(text))
}

func (p *process) show(t *textStream, shown string) {
	if t.lines {
		if n := min(p.skip.Text[t.key], len(shown)); n > 0 {
			p.skip.Text[t.key] -= n
			shown = shown[n:]
		}
	}
	if shown == "" || !p.budget(len(shown)) {
		return
	}
	if p.held != nil && p.held != t {
		p.showHeld()
	}
	if !t.begun {
		t.begun = true
		p.pushText(t, shown)
		return
	}
	if t.wait == "" {
		t.since = time.Now()
	}
	t.wait += shown
	p.held = t
	if len(t.wait) >= chunkBytes {
		p.showHeld()
	}
}

func (p *process) showHeld() {
	t := p.held
	if t == nil {
		return
	}
	p.held = nil
	text := t.wait
	t.wait = ""
	p.pushText(t, text)
}

func (p *process) pushText(t *textStream, text string) {
	if body := t.body(text); body != nil {
		p.push(transcript.Row{Type: t.kind, Body: body}, false)
	}
	if t.lines {
		if p.ahead.Text == nil {
			p.ahead.Text = map[string]int{}
		}
		p.ahead.Text[t.key] += len(text)
	}
}

// endText shows what a stream held back, because it has ended.
func (p *process) endText(key string) {
	t := p.texts[key]
	if t == nil {
		return
	}
	p.show(t, t.text.Flush())
	if p.held == t {
		p.showHeld()
	}
	delete(p.texts, key)
}

// endTexts ends every stream of these kinds but one.
func (p *process) endTexts(except string, kinds ...string) {
	for key, t := range p.texts {
		for _, kind := range kinds {
			if t.kind == kind && key != except {
				p.endText(key)
			}
		}
	}
}

// budget counts text against the turn's; past it the pipe is drained and nothing more is kept.
func (p *process) budget(n int) bool {
	p.written += int64(n)
	if p.written <= maxTurnText {
		return true
	}
	if !p.over {
		p.over = true
		p.add(transcript.Row{Type: transcript.Notice, Body: transcript.NoticeBody{Code: "turn_budget",
			Text: fmt.Sprintf("This turn has said more than %d MB. What comes is not kept, but the agent goes on; full logs lie on the machine.", maxTurnText>>20)}}, false)
	}
	return false
}

// pause is how long the pump may wait for something to come.
func (p *process) pause() time.Duration {
	if len(p.rows) > 0 {
		return 0 // stored showed them, to free a spool that stops the agent: nothing else may come before they are stored
	}
	now := time.Now()
	wait := time.Hour
	if p.held != nil {
		wait = p.held.since.Add(chunkPause).Sub(now)
	}
	for _, t := range p.texts {
		if !t.text.Clean() {
			wait = min(wait, t.active.Add(quietFlush).Sub(now))
		}
	}
	return max(wait, 0)
}

func (p *process) flushDue(now time.Time) {
	if p.held != nil && now.Sub(p.held.since) >= chunkPause {
		p.showHeld()
	}
	for _, t := range p.texts {
		if !t.text.Clean() && now.Sub(t.active) >= quietFlush {
			p.show(t, t.text.Flush())
		}
	}
}

// clean tells whether nothing of the lines that were handled is still held back.
func (p *process) clean() bool {
	if p.held != nil && p.held.lines {
		return false
	}
	for _, t := range p.texts {
		if t.lines && !t.text.Clean() {
			return false
		}
	}
	return true
}

// next is the row of the adapter after what was handled so far.
func (p *process) next() adapter {
	a := p.committed
	a.Rev++
	a.Stderr = p.errPos
	a.Records = p.settledRecords()
	a.Skip = p.ahead.clone()
	if p.clean() {
		// Of the lines that are still to be read again, what is stored stays stored.
		a.Stdout, a.Skip = p.pos, p.skip.clone()
	}
	return a
}

// stored notes that a transaction with next's answer is committed.
func (p *process) stored(a adapter) {
	if a.Stdout != p.committed.Stdout {
		p.ahead = a.Skip.clone()
	}
	p.committed = a
	p.rows = nil
	if a.Stdout-p.acked.Stdout >= ackEvery || a.Stderr-p.acked.Stderr >= ackEvery {
		ctx, cancel := context.WithTimeout(p.ctx, ackTimeout)
		defer cancel()
		if err := p.client().Ack(ctx, p.execID, guest.Offsets{Stdout: a.Stdout, Stderr: a.Stderr}); err != nil && p.ctx.Err() == nil && !errors.Is(err, guest.ErrGone) {
			p.s.log.Warn("free an adapter's spool", "conversation", p.id, "error", err)
		}
		p.acked = guest.Offsets{Stdout: a.Stdout, Stderr: a.Stderr}
	}
	// A spool that fills while text is held back would stop the agent.
	if p.pos-a.Stdout > spoolBytes/2 {
		for _, t := range p.texts {
			p.show(t, t.text.Flush())
		}
		p.showHeld()
	}
}

// commit stores the rows that wait, with the place up to which the output was read.
func (p *process) commit() error {
	if len(p.rows) == 0 && p.pos-p.committed.Stdout < ackEvery && p.errPos-p.committed.Stderr < ackEvery {
		return nil // nothing to see; the place can wait
	}
	a := p.next()
	err := p.store(a, p.rows)
	if unstorable(err) {
		err = p.store(a, p.instead(err))
	}
	if err != nil {
		return err
	}
	p.first = false
	p.stored(a)
	return nil
}

func (p *process) store(a adapter, rows []transcript.Row) error {
	err := p.s.persist(p.ctx, func() error {
		return p.s.db.InTenant(p.ctx, p.tenant, func(tx db.Tx) error {
			if err := p.save(p.ctx, tx, a); err != nil {
				return err
			}
			if p.first {
				if err := tx.FirstToken(p.ctx, *p.turnID); err != nil {
					return err
				}
			}
			if len(rows) == 0 {
				return nil
			}
			return p.s.o.Writer.AppendTx(p.ctx, tx, p.tenant, p.id, rows...)
		})
	})
	return p.saved(p.ctx, a, err)
}

// unstorable tells that PostgreSQL refuses the data themselves, so that trying again cannot help.
func unstorable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code[:2] == "22" || pg.Code[:2] == "23")
}

// instead stands for rows that cannot be stored: one fault of ours must not stop a conversation for good.
func (p *process) instead(err error) []transcript.Row {
	p.s.log.Error("rows cannot be stored", "conversation", p.id, "rows", len(p.rows), "error", err)
	return []transcript.Row{{Type: transcript.Notice, TurnID: p.turnID, Body: transcript.NoticeBody{Code: "rows_lost",
		Text: fmt.Sprintf("%d rows could not be stored here. The server's log has the cause.", len(p.rows))}}}
}

// checkpoint writes the adapter's row with a change, in one transaction with what belongs to it. The pump calls it.
func (p *process) checkpoint(ctx context.Context, op *operation, change func(*adapter), also func(db.Tx) error) error {
	if err := p.commit(); err != nil {
		return err
	}
	a := p.next()
	change(&a)
	err := p.saved(ctx, a, op.write(ctx, func(tx db.Tx) error {
		if err := p.save(ctx, tx, a); err != nil {
			return err
		}
		return also(tx)
	}))
	switch {
	case err == nil:
		p.stored(a)
	case errors.Is(err, errFenced):
		p.stopped(err) // what it knows of the adapter is not what is so: whoever goes on reads it anew
	}
	return err
}

// save writes the adapter's row, if this server still acts for the conversation. See saved.
func (p *process) save(ctx context.Context, tx db.Tx, a adapter) error {
	q := queries.SaveProgressParams{Adapter: a.json(), ID: p.id, ExecID: p.execID, Before: p.committed.Rev}
	if p.turn != nil {
		q.Operation, q.Owner, q.Epoch = &p.turn.op.row.ID, p.s.o.Owner, p.turn.op.row.Epoch
	}
	return tx.SaveProgress(ctx, q)
}

// saved is what became of a transaction with save in it. One that was refused may have been made before: a commit whose
// answer was lost.
func (p *process) saved(ctx context.Context, a adapter, err error) error {
	if !db.Fenced(err, "adapter") {
		return err
	}
	raw, err := p.s.db.Tenant(p.tenant).AdapterState(ctx, p.id)
	if err != nil {
		return err
	}
	now, err := readAdapter(raw)
	if err != nil {
		return err
	}
	if now == nil || now.ExecID != a.ExecID || now.Rev != a.Rev {
		return errFenced
	}
	p.s.o.Writer.Announce(p.tenant, p.id)
	return nil
}

// stopped ends a pump that may not write any more.
func (p *process) stopped(err error) {
	if p.ctx.Err() == nil && !errors.Is(err, errFenced) {
		p.s.log.Error("an adapter's output cannot be stored", "conversation", p.id, "error", err)
	}
	if p.turn != nil {
		p.turn.over(err)
	}
	p.cancel(errDetached)
}

// end handles the end of the adapter, or of the way to it.
func (p *process) end() {
	p.closing.Store(true) // before anybody hears of the turn's end, and sends the next prompt
	t := p.turn
	if t != nil {
		p.finish(p.ending())
	} else {
		p.flushAll()
		if err := p.commit(); err != nil && p.ctx.Err() == nil {
			p.s.log.Warn("store an adapter's last output", "conversation", p.id, "error", err)
		}
	}
	if p.exit != nil || errors.Is(p.broken, errMachineRestarted) || errors.Is(p.broken, errMachineGone) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), lastWrites)
		defer cancel()
		if err := p.s.dropAdapter(ctx, p.tenant, p.id, p.committed); err != nil {
			p.s.log.Warn("forget an adapter that ended", "conversation", p.id, "error", err)
		}
		if p.exit != nil {
			// What it left running goes with it.
			if err := killAdapter(ctx, p.client(), p.execID); err != nil {
				p.s.log.Warn("end what an adapter left", "conversation", p.id, "error", err)
			}
		}
	}
	p.peer.Close(p.endError())
	p.cancel(errDetached)
}

// endError is what calls that wait for the adapter's answer are told.
func (p *process) endError() error {
	switch {
	case p.exit != nil:
		return p.exitFailure()
	case errors.Is(p.broken, errMachineRestarted):
		return fail(CodeMachineGone, "The machine was stopped while the agent worked. Send the prompt again: it wakes the machine.").because(p.broken)
	case errors.Is(p.broken, errMachineGone):
		return fail(CodeMachineGone, "The machine is gone, with its disk. Send the prompt again: it goes to a new machine.").because(p.broken)
	case p.broken != nil:
		return fail(CodeMachineGone, "The connection to the machine was lost. Its disk is untouched: send the prompt again.").because(p.broken)
	}
	return nil
}

func (p *process) exitFailure() *failure {
	stderr := p.stderrLines()
	f := exited(*p.exit, stderr)
	if p.exit.Code == exitNotFound || p.exit.Code == exitNotExecutable {
		if p.launch.CommandLine != "" && !p.committed.Session {
			f.problem.Code = CodeNotInstalled
			f.problem.Message = fmt.Sprintf("The machine does not find the agent's command %q. Install it in the environment's setup, or mend runtime_command.", p.launch.CommandLine)
		}
	}
	return f
}

// ended is why a process whose pump has ended did.
func (p *process) ended() error {
	<-p.gone
	if err := p.endError(); err != nil {
		return err
	}
	return errDetached
}

// flushAll shows everything that is held back.
func (p *process) flushAll() {
	for key := range p.texts {
		p.endText(key)
	}
	p.showHeld()
}

// reply answers a request of the agent.
func (p *process) reply(id json.RawMessage, result any) {
	if err := p.peer.Reply(p.ctx, id, result); err != nil {
		p.unread(err)
	}
}

func (p *process) refuse(id json.RawMessage, code int, message string) {
	if err := p.peer.Refuse(p.ctx, id, code, message); err != nil {
		p.unread(err)
	}
}

// unread ends an agent that reads nothing of what it is sent: it would wait for ever for what it asked.
func (p *process) unread(err error) {
	if p.broken == nil && p.exit == nil {
		p.s.log.Warn("an answer was not taken by an agent", "conversation", p.id, "error", err)
		ctx, cancel := context.WithTimeout(p.ctx, signalTimeout)
		defer cancel()
		if err := p.client().Signal(ctx, p.execID, "SIGKILL"); err != nil {
			p.s.log.Warn("end an agent that reads nothing", "conversation", p.id, "error", err)
		}
	}
}

// retitle takes over the title that the agent gives its session, unless a person gave one.
func (p *process) retitle(title string) {
	if title == "" {
		return
	}
	err := p.s.db.InTenant(p.ctx, p.tenant, func(tx db.Tx) error {
		n, err := tx.TitleByAgent(p.ctx, title, p.id)
		if err != nil || n == 0 {
			return err
		}
		return p.s.tell(p.ctx, tx, p.tenant, p.id)
	})
	if err != nil {
		p.s.log.Warn("take over an agent's title", "conversation", p.id, "error", err)
		return
	}
}
