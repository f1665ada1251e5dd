package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/acp"
	"managoat/internal/agent"
	"managoat/internal/ledger"
	"managoat/internal/runtime"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/queries"
)

// Deadlines of an interrupt. Together they are the longest that a turn can go on after somebody asked for its end.
const (
	cancelGrace = 5 * time.Second // for the agent to stop by itself
	termGrace   = 3 * time.Second // after SIGTERM
	killGrace   = 4 * time.Second // after SIGKILL, for what it printed to be stored
)

// usageGrace is how long a turn's end waits for the broker's numbers to reach what the runtime says it used. What comes
// later is settled then.
const usageGrace = 300 * time.Millisecond

// crashAttempts is how often a turn's runtime is started when it ends before it read the prompt.
const crashAttempts = 2

// turn is a turn that this server drives.
type turn struct {
	s       *Service
	op      *operation
	row     queries.Turn
	c       queries.Conversation
	agent   agent.Config
	runtime runtime.Runtime
	asked   chan struct{} // closed when somebody asks to interrupt it

	begun    bool        // it runs, and the transcript has its prompt
	machine  uuid.UUID   // on which it is being made ready; uuid.Nil: it waits for one
	moved    bool        // the adapter that this server holds is not on the workspace's machine as it is now
	rebuilds bool        // it had a lost machine built again
	stopping atomic.Bool // the agent was told to stop
	spoke    bool        // the pump's: its first token came

	mu   sync.Mutex
	err  error
	done chan struct{} // closed when the turn has ended, or is not ours any more
}

// Ends of what a turn does before its prompt is sent.
var (
	errInterrupted = errors.New("somebody asked to interrupt the turn")
	errMoved       = errors.New("the workspace's machine is not up, or another one now")
)

// runTurn is the operation behind a turn.
func (s *Service) runTurn(ctx context.Context, op *operation) error {
	if op.sent != nil {
		defer s.forgetTurn(op.sent.row.ID)
		return op.sent.await(ctx, op.to)
	}
	t, err := s.loadTurn(ctx, op)
	if err != nil {
		return err
	}
	if t.row.Status != Pending && t.row.Status != Running {
		return op.write(ctx, func(tx db.Tx) error { return op.endWith(ctx, tx, "done") })
	}
	s.keepTurn(t)
	defer s.forgetTurn(t.row.ID)
	if t.row.InterruptAsked != nil {
		s.interrupt(t.row.ID)
	}
	if t.row.PromptSentAt != nil {
		return t.reattach(ctx)
	}
	return t.drive(ctx)
}

// keepTurn has interrupts find a turn.
func (s *Service) keepTurn(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns[t.row.ID] = t.asked
}

func (s *Service) forgetTurn(id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.turns, id)
}

func (s *Service) newTurn(op *operation) *turn {
	return &turn{s: s, op: op, asked: make(chan struct{}), done: make(chan struct{})}
}

// loadTurn reads the turn, its conversation and its agent.
func (s *Service) loadTurn(ctx context.Context, op *operation) (*turn, error) {
	row, err := s.db.Tenant(op.row.TenantID).TurnToRun(ctx, *op.row.TurnID)
	if err != nil {
		return nil, fmt.Errorf("read turn %s: %w", *op.row.TurnID, err)
	}
	t := s.newTurn(op)
	t.row, t.c, t.begun = row.Turn, row.Conversation, row.Turn.Status == Running
	if err := json.Unmarshal(row.Agent, &t.agent); err != nil {
		return nil, fmt.Errorf("read the agent of turn %s: %w", t.row.ID, err)
	}
	var ok bool
	if t.runtime, ok = runtime.Get(t.c.Runtime); !ok {
		return nil, fmt.Errorf("conversation %s has the runtime %q, which this server does not know", t.c.ID, t.c.Runtime)
	}
	return t, nil
}

// begin makes a turn that waited run, and shows its prompt and what it waits for now. One whose adapter is there begins with
// its prompt's way to it; any other with the first that it waits for.
func (t *turn) begin(ctx context.Context, waitingFor string) error {
	if t.begun {
		return nil
	}
	err := t.op.write(ctx, func(tx db.Tx) error {
		return t.beginTx(ctx, tx, waitingFor, false)
	})
	if err == nil {
		t.begun = true
	}
	return err
}

// beginTx is begin in a transaction of the operation; with sent, its prompt is sent once that is committed.
func (t *turn) beginTx(ctx context.Context, tx db.Tx, waitingFor string, sent bool) error {
	if err := tx.StartTurn(ctx, queries.StartTurnParams{ID: t.row.ID, WaitingFor: waitingFor, Sent: sent}); err != nil {
		return err
	}
	if err := tx.SetConversationStatus(ctx, Running, t.c.ID); err != nil {
		return err
	}
	if err := t.showTx(ctx, tx); err != nil {
		return err
	}
	return t.s.tell(ctx, tx, t.c.TenantID, t.c.ID)
}

// showTx shows the prompt of a turn that begins.
func (t *turn) showTx(ctx context.Context, tx db.Tx) error {
	row, err := promptRow(t.row)
	if err != nil {
		return err
	}
	if err := t.s.o.Writer.AppendTx(ctx, tx, t.c.TenantID, t.c.ID, row); err != nil {
		return err
	}
	return workspace.Touch(ctx, tx, t.c.WorkspaceID)
}

func promptRow(t queries.Turn) (transcript.Row, error) {
	var images []image
	err := json.Unmarshal(t.Images, &images)
	return transcript.Row{Type: transcript.Prompt, TurnID: &t.ID,
		Body: transcript.PromptBody{TurnNumber: int(t.TurnNumber), Text: t.Prompt, Images: len(images), By: t.AskedBy}}, err
}

// appendUnbegun adds the rows of a turn that ended before it began: what was asked, and why nothing came of it.
func appendUnbegun(rows []transcript.Row, t queries.Turn) ([]transcript.Row, error) {
	e := ending{status: t.Status, reason: t.Reason}
	if len(t.Error) > 0 {
		if err := json.Unmarshal(t.Error, &e.problem); err != nil {
			return nil, err
		}
	}
	prompt, err := promptRow(t)
	return append(append(rows, prompt), lastRows(t, e, ledger.Usage{})...), err
}

// write is the operation's, of a turn that has begun: whatever is shown of it comes behind its prompt.
func (t *turn) write(ctx context.Context, fn func(tx db.Tx) error) error {
	if err := t.begin(ctx, ForMachine); err != nil {
		return err
	}
	return t.op.write(ctx, fn)
}

// drive takes a turn from its start to its end.
func (t *turn) drive(ctx context.Context) error {
	p, err := t.prompted(ctx)
	switch {
	case err == nil:
		return t.await(ctx, p)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errWithdrawn), errors.Is(err, errFenced), errors.Is(err, workspace.ErrElsewhere):
		return err
	case db.Away(err):
		return err // the prompt was not sent: the turn is begun again when PostgreSQL is back
	case errors.Is(err, errInterrupted):
		return t.settle(ctx, ending{status: Interrupted, reason: t.reason(ctx)}, nil)
	}
	return t.settle(ctx, failed(failureOf(err)), nil)
}

// prompted makes the runtime ready and gives it the prompt. One that ends before it read the prompt is started once more,
// and the transcript says so. A machine that goes meanwhile takes nothing with it: the prompt goes to the next one.
func (t *turn) prompted(ctx context.Context) (*process, error) {
	for attempt := 1; ; {
		p, err := t.attached(ctx)
		if err == nil {
			t.machine = p.machine
			err = t.send(ctx, p)
		}
		if err == nil || ctx.Err() != nil {
			return p, err
		}
		if errors.Is(err, errMoved) || t.lost(ctx, err) {
			t.moved = true
			continue
		}
		f := failureOf(err)
		if f.problem.Code != CodeAdapterCrashed || attempt == crashAttempts {
			return nil, err
		}
		detail := map[string]any{"attempt": attempt}
		for k, v := range f.problem.Fields {
			detail[k] = v
		}
		t.stage(ctx, transcript.StageBody{Stage: "session", State: "failed", Reason: CodeAdapterCrashed, Detail: detail})
		t.notice(ctx, "adapter_relaunched", f.problem.Message+" It had not read the prompt, so it is started once more.")
		attempt++
	}
}

// lost tells whether the turn failed because the machine that it was made ready on is gone.
func (t *turn) lost(ctx context.Context, err error) bool {
	if t.machine == uuid.Nil || errors.Is(err, errInterrupted) || errors.Is(err, errWithdrawn) || errors.Is(err, errFenced) || db.Away(err) {
		return false
	}
	gone, err := t.s.o.Workspaces.Gone(ctx, t.c.TenantID, t.machine)
	if err != nil {
		t.s.log.Warn("look what became of a machine", "machine", t.machine, "error", err)
	}
	return gone
}

// attached is attach that ends when somebody interrupts the turn.
func (t *turn) attached(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	var watch sync.WaitGroup
	defer watch.Wait()
	defer close(stop)
	watch.Go(func() {
		select {
		case <-t.asked:
			cancel(errInterrupted)
		case <-stop:
		}
	})
	p, err := t.attach(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return p, err
}

// send gives the agent the prompt. That it does is written before, so that no server ever does it again; an adapter that was
// there already is given none when its machine is not the workspace's any more (errMoved).
func (t *turn) send(ctx context.Context, p *process) error {
	params, err := promptParams(p.session, t.row, p.caps)
	if err != nil {
		return err
	}
	select {
	case <-t.asked:
		return errInterrupted
	default:
	}
	id := p.peer.NextID()
	var remasked sync.WaitGroup
	remasked.Go(func() { p.remask(ctx) })
	ok := p.do(ctx, func() {
		err = p.checkpoint(ctx, t.op, func(a *adapter) { a.TurnID, a.Prompt, a.Egress = &t.row.ID, id, t.s.o.Broker.Boot() }, func(tx db.Tx) error {
			if !t.begun {
				if err := t.beginTx(ctx, tx, ForModel, true); err != nil {
					return err
				}
			} else if n, err := tx.PromptSent(ctx, t.row.ID); err != nil {
				return err
			} else if n == 0 {
				return errFenced
			}
			return tx.RequireMachine(ctx, t.c.WorkspaceID, p.machine) // after the workspace was touched: no park comes between
		})
		if err == nil {
			t.begun = true
			p.begin(t)
		}
	})
	remasked.Wait()
	if db.Fenced(err, "machine") {
		return errMoved
	}
	if err != nil {
		return err
	}
	if !ok {
		return p.ended()
	}
	// From here on the pump sees the turn to its end, whatever becomes of the line.
	if err := p.peer.SendRequest(ctx, id, sdk.AgentMethodSessionPrompt, params); err != nil {
		t.s.log.Warn("a prompt was not taken by an agent", "conversation", t.c.ID, "turn", t.row.ID, "error", err)
		p.do(ctx, func() { p.unread(err) })
	}
	return nil
}

// begin makes the turn the one that what the agent says belongs to.
func (p *process) begin(t *turn) {
	p.turn, p.turnID = t, &t.row.ID
	p.written, p.over = 0, false
	p.tools.init()
}

// await sees a turn whose prompt was sent to its end.
func (t *turn) await(ctx context.Context, p *process) error {
	select {
	case <-t.done:
		return t.released(p)
	case <-ctx.Done():
		p.detach()
		return context.Cause(ctx)
	case <-t.asked:
	}
	return t.stop(ctx, p)
}

// released lets go of a process whose output could not be stored; the next owner of the turn reads it again.
func (t *turn) released(p *process) error {
	err := t.outcome()
	if err != nil {
		p.detach()
	}
	return err
}

// stop interrupts the agent: first by what it understands, then by signals to its whole tree; the turn is over by the
// deadline whatever it does.
func (t *turn) stop(ctx context.Context, p *process) error {
	t.stopping.Store(true) // from here on permission requests are denied: no tool starts in between
	if err := p.peer.Notify(ctx, sdk.AgentMethodSessionCancel, map[string]any{"sessionId": p.session}); err != nil {
		t.s.log.Warn("a cancel was not taken by an agent", "conversation", t.c.ID, "error", err)
	}
	for _, step := range []struct {
		signal string
		grace  time.Duration
	}{{"", cancelGrace}, {"SIGTERM", termGrace}, {"SIGKILL", killGrace}} {
		if step.signal != "" {
			sctx, cancel := context.WithTimeout(ctx, signalTimeout)
			if err := p.client().Signal(sctx, p.execID, step.signal); err != nil && ctx.Err() == nil {
				t.s.log.Warn("signal an adapter", "conversation", t.c.ID, "signal", step.signal, "error", err)
			}
			cancel()
		}
		timer := time.NewTimer(step.grace)
		select {
		case <-t.done:
			timer.Stop()
			return t.released(p)
		case <-ctx.Done():
			timer.Stop()
			p.detach()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
	// Its machine does not answer, or its output cannot be stored: let go of it.
	p.detach()
	select {
	case <-t.done:
		return t.outcome()
	default:
	}
	return t.settle(ctx, ending{status: Interrupted, reason: t.reason(ctx), problem: &Problem{Code: CodeMachineGone, Message: "The runtime could not be stopped: the machine does not answer."}}, nil)
}

// reason is why the turn was interrupted.
func (t *turn) reason(ctx context.Context) string {
	why, err := t.s.db.Tenant(t.c.TenantID).WhyInterrupted(ctx, t.row.ID)
	switch {
	case err == nil && why.Status == Terminated:
		return ByTermination
	case err == nil && why.Reason != "":
		return why.Reason
	}
	return ByUser
}

// ending is how a turn ends.
type ending struct {
	status     string
	stopReason string
	reason     string
	problem    *Problem
	exitCode   *int
	ends       bool // the conversation fails with it, when its machine is its own
	output     int64
}

func failed(f *failure) ending {
	return ending{status: Failed, problem: &f.problem, exitCode: f.exitCode, ends: f.ends}
}

// answered reads the agent's answer to the prompt. Only an explicit end of turn is success.
func answered(m acp.Message) ending {
	if m.Error != nil {
		return failed(agentError(m.Error))
	}
	var r struct {
		StopReason string     `json:"stopReason"`
		Usage      *sdk.Usage `json:"usage"`
	}
	if json.Unmarshal(m.Result, &r) != nil || r.StopReason == "" {
		return failed(fail(CodeAdapterProtocol, "The runtime answered the prompt without saying why it stopped."))
	}
	e := ending{status: Completed, stopReason: r.StopReason}
	if r.Usage != nil {
		e.output = int64(r.Usage.OutputTokens)
	}
	if r.StopReason != string(sdk.StopReasonEndTurn) {
		e.status = Failed
		e.problem = &fail(CodeStopped, "The agent stopped before the end of its turn: %s.", stopWords(r.StopReason)).with("stop_reason", r.StopReason).problem
	}
	return e
}

func stopWords(reason string) string {
	switch sdk.StopReason(reason) {
	case sdk.StopReasonMaxTokens:
		return "the model's answer reached its limit of tokens"
	case sdk.StopReasonMaxTurnRequests:
		return "it reached its limit of model requests"
	case sdk.StopReasonRefusal:
		return "the model refused"
	case sdk.StopReasonCancelled:
		return "it was cancelled by nobody here"
	}
	return "it gave the reason " + reason
}

// cut is how a turn ends whose agent failed: where the egress process ended under it, and with that the model's answer,
// it is neither the agent's failure nor the model's.
func (p *process) cut(e ending) ending {
	if e.status != Failed || e.stopReason != "" || p.committed.Egress == "" || !p.s.o.Broker.Gone(p.ctx, p.committed.Egress) {
		return e
	}
	e.status, e.reason = Interrupted, ByEgressRestart
	return e
}

// ending is how a turn ends whose runtime has ended, or cannot be reached any more.
func (p *process) ending() ending {
	if errors.Is(p.broken, errMachineGone) {
		return ending{status: Interrupted, reason: ByDestruction}
	}
	return failed(failureOf(p.endError()))
}

// finish ends the turn that runs, with everything that was said before in one transaction.
func (p *process) finish(e ending) {
	t := p.turn
	if t.stopping.Load() {
		// What an agent answers after it was told to stop is no success, and no failure of its own.
		e = ending{status: Interrupted, reason: t.reason(p.ctx), stopReason: e.stopReason, output: e.output, exitCode: e.exitCode}
	}
	p.closeTerminals()
	p.closeTools()
	p.ownRows()
	p.flushAll()
	if e.problem != nil {
		clean := e.problem.clean(p.gate)
		e.problem = &clean
	}
	a := p.next()
	err := p.saved(p.ctx, a, t.settle(p.ctx, e, &commitOf{p: p, a: a, rows: p.rows}))
	if unstorable(err) {
		err = p.saved(p.ctx, a, t.settle(p.ctx, e, &commitOf{p: p, a: a, rows: p.instead(err)}))
	}
	t.over(err)
	if err == nil {
		p.stored(a)
		p.first = false
	}
	p.turn = nil
	if err != nil && p.ctx.Err() == nil {
		p.s.log.Error("a turn's end cannot be stored", "conversation", p.id, "turn", t.row.ID, "error", err)
	}
}

// commitOf is what a process has to store with a turn's end.
type commitOf struct {
	p    *process
	a    adapter
	rows []transcript.Row
}

// settle ends the turn in one transaction: the rows that were left, its usage, its state, its conversation's, and the
// operation.
func (t *turn) settle(ctx context.Context, e ending, with *commitOf) error {
	if e.output > 0 && t.c.InferenceCredentialID != nil {
		wait, cancel := context.WithTimeout(ctx, usageGrace)
		t.s.o.Ledger.Await(wait, t.c.TenantID, t.c.ID, e.output)
		cancel()
	}
	return t.write(ctx, func(tx db.Tx) error {
		return t.settleTx(ctx, tx, e, with)
	})
}

func (t *turn) settleTx(ctx context.Context, tx db.Tx, e ending, with *commitOf) error {
	c, err := tx.LockConversationAlways(ctx, t.c.ID)
	if err != nil {
		return err
	}
	var rows []transcript.Row
	if with != nil {
		if err := with.p.save(ctx, tx, with.a); err != nil {
			return err
		}
		if with.p.first {
			if err := tx.FirstToken(ctx, t.row.ID); err != nil {
				return err
			}
		}
		rows = with.rows
	}
	now, err := tx.Turn(ctx, t.row.ID)
	if err != nil {
		return err
	}
	use, err := ledger.Settle(ctx, tx, c.ID, t.row.ID, int(now.Attempts), since(now.StartedAt))
	if err != nil {
		return err
	}
	end := queries.EndTurnParams{ID: t.row.ID, Status: e.status, StopReason: cutBytes(e.stopReason, 100), Reason: e.reason, Usage: use.JSON()}
	if e.problem != nil {
		if end.Error, err = json.Marshal(e.problem); err != nil {
			return err
		}
	}
	if e.exitCode != nil {
		code := int32(*e.exitCode)
		end.ExitCode = &code
	}
	if e.problem != nil && e.problem.Code == CodeMachineLostAgain {
		if err := tx.ForgetRebuild(ctx, c.ID); err != nil { // the next prompt has it built again
			return err
		}
	}
	resolved, err := tx.ResolvePermissionRequests(ctx, queries.ResolvePermissionRequestsParams{TurnID: t.row.ID, Outcome: cancelled, AnsweredBy: "system"})
	if err != nil {
		return err
	}
	for _, r := range resolved {
		rows = append(rows, transcript.Row{Type: transcript.PermissionResolved, TurnID: &t.row.ID, Body: transcript.PermissionResolvedBody{RequestID: r.ID.String(), Outcome: cancelled, By: "system"}})
	}
	rows = append(rows, lastRows(now, e, use)...)
	if err := t.s.o.Writer.AppendTx(ctx, tx, c.TenantID, c.ID, rows...); err != nil {
		return err
	}
	if _, err := tx.EndTurn(ctx, end); err != nil { // after the rows: it counts the tool calls
		return err
	}
	if err := t.op.endWith(ctx, tx, "done"); err != nil {
		return err
	}
	if err := workspace.Touch(ctx, tx, c.WorkspaceID); err != nil {
		return err
	}
	if e.ends && c.Status != Terminated {
		w, err := tx.LockWorkspace(ctx, c.WorkspaceID)
		if err != nil {
			return err
		}
		if w.Implicit {
			return t.failConversation(ctx, tx, c, end.Error)
		}
	}
	if err := tx.SetConversationStatus(ctx, Idle, c.ID); err != nil {
		return err
	}
	return t.s.tell(ctx, tx, c.TenantID, c.ID)
}

// failConversation ends a conversation whose own machine can never take a turn, and the turns that wait in it.
func (t *turn) failConversation(ctx context.Context, tx db.Tx, c queries.Conversation, problem json.RawMessage) error {
	if _, err := tx.FailConversation(ctx, problem, c.ID); err != nil {
		return err
	}
	open, err := tx.OpenTurns(ctx, c.ID)
	if err != nil {
		return err
	}
	var rows []transcript.Row
	for _, other := range open {
		if _, err := tx.CancelTurnOperation(ctx, other.ID); err != nil {
			return err
		}
		if other, err = tx.EndTurn(ctx, queries.EndTurnParams{ID: other.ID, Status: Failed, Error: problem, Usage: ledger.Usage{}.JSON()}); err != nil {
			return err
		}
		if rows, err = appendUnbegun(rows, other); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		if err := t.s.o.Writer.AppendTx(ctx, tx, c.TenantID, c.ID, rows...); err != nil {
			return err
		}
	}
	return t.s.finish(ctx, tx, c)
}

// lastRows are the rows of a turn's end. The last one is always its stage.
func lastRows(t queries.Turn, e ending, use ledger.Usage) []transcript.Row {
	var rows []transcript.Row
	add := func(kind string, body any) {
		rows = append(rows, transcript.Row{Type: kind, TurnID: &t.ID, Body: body})
	}
	if use.Requests > 0 {
		add(transcript.Usage, transcript.UsageBody{Model: t.Model, InputTokens: use.Input, OutputTokens: use.Output, CacheReadTokens: use.CacheRead, CacheWriteTokens: use.CacheWrite})
	}
	stage := transcript.StageBody{Stage: "turn", State: "done", Reason: e.reason, DurationMS: since(t.StartedAt).Milliseconds(),
		Detail: map[string]any{"turn_number": t.TurnNumber, "attempts": t.Attempts}}
	if e.stopReason != "" {
		stage.Detail["stop_reason"] = cutBytes(e.stopReason, 100)
	}
	if e.exitCode != nil {
		stage.Detail["exit_code"] = *e.exitCode
	}
	if e.problem != nil {
		add(transcript.Error, transcript.ErrorBody{Code: e.problem.Code, Message: e.problem.Message, Detail: e.problem.Fields})
		stage.Reason = e.problem.Code
	}
	switch e.status {
	case Failed:
		stage.State = "failed"
	case Interrupted:
		stage.State = "interrupted"
		stage.Reason = e.reason
	}
	add(transcript.Stage, stage)
	return rows
}

func since(at *time.Time) time.Duration {
	if at == nil {
		return 0
	}
	return max(time.Since(*at), 0)
}

func cutBytes(s string, n int) string {
	if len(s) <= n {
		return db.SafeText(s)
	}
	return db.SafeText(s[:n])
}

// over says that the turn has ended, or is not ours any more.
func (t *turn) over(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.done:
	default:
		t.err = err
		close(t.done)
	}
}

func (t *turn) outcome() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// waits shows what the turn waits for.
func (t *turn) waits(ctx context.Context, reason, detail string) {
	what := reason
	if detail != "" {
		what += ":" + detail
	}
	if !t.begun {
		if err := t.begin(ctx, what); err != nil && !errors.Is(err, errWithdrawn) && ctx.Err() == nil {
			t.s.log.Warn("begin a turn", "turn", t.row.ID, "error", err)
		}
		return
	}
	err := t.op.write(ctx, func(tx db.Tx) error {
		if err := tx.TurnWaits(ctx, what, t.row.ID); err != nil {
			return err
		}
		return t.s.tell(ctx, tx, t.c.TenantID, t.c.ID)
	})
	if err != nil {
		if ctx.Err() == nil {
			t.s.log.Warn("show what a turn waits for", "turn", t.row.ID, "error", err)
		}
		return
	}
}

func splitWaiting(s string) (reason, detail string) {
	for i := range s {
		if s[i] == ':' {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// stage puts a step of ours into the transcript.
func (t *turn) stage(ctx context.Context, b transcript.StageBody) {
	t.append(ctx, transcript.Row{Type: transcript.Stage, TurnID: &t.row.ID, Body: b})
}

// notice puts what a person must know into the transcript.
func (t *turn) notice(ctx context.Context, code, text string) {
	t.append(ctx, transcript.Row{Type: transcript.Notice, TurnID: &t.row.ID, Body: transcript.NoticeBody{Code: code, Text: text}})
}

func (t *turn) append(ctx context.Context, rows ...transcript.Row) {
	err := t.write(ctx, func(tx db.Tx) error { return t.s.o.Writer.AppendTx(ctx, tx, t.c.TenantID, t.c.ID, rows...) })
	if err != nil && ctx.Err() == nil {
		t.s.log.Warn("append to a transcript", "conversation", t.c.ID, "error", err)
	}
}
