package conversation

import (
	"context"
	"errors"
	"sync"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/db"
	"managoat/internal/quota"
	"managoat/internal/tenant"
	"managoat/queries"
)

// handTime bounds the transaction of a prompt that is handed over, which goes on when whoever sent it has gone.
const handTime = 15 * time.Second

// errNotIdle sends a prompt the way of every other: something is not as handing it over takes for granted.
var errNotIdle = errors.New("the agent is not idle, or not where it was")

// fences of a handed prompt; which one refused it is found out, and told, on the way of every other.
var handFences = []string{"idle", "credential", "machine", "adapter"}

// hand gives a prompt to the agent that is here and idle, which is how most prompts of a conversation find it. The turn is
// made, begins and is on its way in one transaction of few round trips: what is nearly always so is not looked up but
// required. Where it is not so (errNotIdle), nothing has happened. The pump waits meanwhile; an idle agent says little.
func (p *process) hand(ctx context.Context, actor tenant.Actor, in PromptInput) (queries.Turn, error) {
	// It is made as a whole, and its line to the agent is written, whether whoever asked stays or not.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handTime)
	defer cancel()
	t := p.s.newTurn(&operation{s: p.s, to: p})
	t.op.sent = t
	err := errNotIdle
	p.do(ctx, func() { err = p.handTurn(ctx, actor, in, t) })
	for _, fence := range handFences {
		if db.Fenced(err, fence) {
			return queries.Turn{}, errNotIdle
		}
	}
	return t.row, err
}

// handTurn is hand in the pump's place.
func (p *process) handTurn(ctx context.Context, actor tenant.Actor, in PromptInput, t *turn) error {
	if ctx.Err() != nil || p.closing.Load() || p.turn != nil || p.exit != nil || p.broken != nil || !p.committed.Session || len(in.Images) > 0 && !p.caps.Image {
		return errNotIdle
	}
	if p.commit() != nil { // what it said between turns; the pump says what is wrong, and stops
		return errNotIdle
	}
	// A machine that has just gone takes no prompt with it.
	there := make(chan bool, 1)
	go func() { there <- p.client().Answers() }()
	// What its masks must know by the time the agent reads the prompt is read beside the transaction.
	var remasked sync.WaitGroup
	remasked.Go(func() { p.remask(ctx) })
	defer remasked.Wait()
	a := p.next()
	a.TurnID, a.Prompt, a.Egress = nil, p.peer.NextID(), p.s.o.Broker.Boot()
	var params map[string]any
	err := p.s.db.InTenant(ctx, p.tenant, func(tx db.Tx) (err error) {
		if err := p.handTx(ctx, tx, actor, in, t, &a); err != nil {
			return err
		}
		if !<-there {
			return errNotIdle
		}
		params, err = promptParams(p.session, t.row, p.caps)
		return err
	})
	if err != nil && a.TurnID != nil {
		err = p.handed(a, err)
	}
	if err != nil {
		p.s.forgetTurn(t.row.ID)
		return err
	}
	p.stored(a)
	t.begun = true
	p.begin(t)
	remasked.Wait()
	if err := p.peer.SendRequest(ctx, a.Prompt, sdk.AgentMethodSessionPrompt, params); err != nil {
		p.s.log.Warn("a prompt was not taken by an agent", "conversation", p.id, "turn", t.row.ID, "error", err)
		p.unread(err)
	}
	p.s.open(db.Ref{TenantID: p.tenant, ID: t.op.row.ID}, t.op)
	return nil
}

// handed is what became of a transaction that failed: one whose commit was not answered may have been made. Where that
// cannot be found out this server lets go of the agent; whoever claims the turn then, if there is one, sees it to its end.
func (p *process) handed(a adapter, failed error) error {
	if !db.Transient(failed) && !errors.Is(failed, context.DeadlineExceeded) {
		return failed
	}
	ctx, cancel := context.WithTimeout(p.ctx, lastWrites)
	defer cancel()
	var raw []byte
	err := p.s.persist(ctx, func() (err error) {
		raw, err = p.s.db.Tenant(p.tenant).AdapterState(ctx, p.id)
		return err
	})
	if err != nil {
		p.stopped(err)
		return failed
	}
	now, err := readAdapter(raw)
	if err == nil && now != nil && now.TurnID != nil && *now.TurnID == *a.TurnID {
		p.s.o.Writer.Announce(p.tenant, p.id) // as the commit would have
		return nil
	}
	return failed
}

func (p *process) handTx(ctx context.Context, tx db.Tx, actor tenant.Actor, in PromptInput, t *turn, a *adapter) (err error) {
	if t.row, t.op.row, err = p.s.insert(ctx, tx, actor, p.id, p.workspace, in, true); err != nil {
		if db.NotFound(err) || db.IsUnique(err, "turns_one_running") { // it has ended; another turn runs, of another server
			return errNotIdle
		}
		return err
	}
	// As much of the conversation as a turn needs whose prompt is sent.
	t.c = queries.Conversation{TenantID: p.tenant, ID: p.id, WorkspaceID: p.workspace, Runtime: p.runtime.Name(), Model: t.row.Model, InferenceCredentialID: t.row.CredentialID}
	t.runtime = p.runtime
	a.TurnID = &t.row.ID
	p.s.keepTurn(t)
	return errors.Join( // none of them answers: they travel with the commit, in this order
		tx.RequireOnlyTurn(ctx, p.id, t.row.ID),
		tx.RequireBound(ctx, p.id),
		p.save(ctx, tx, *a),
		t.showTx(ctx, tx),
		tx.RequireMachine(ctx, p.workspace, p.machine),    // after the workspace was touched: no park comes between
		quota.TakePrompt(ctx, tx, p.tenant, p.s.o.Quotas), // and the account's counter: last, as everywhere
		p.s.tell(ctx, tx, p.tenant, p.id),
	)
}
