package web

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/conversation"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/views"
)

// How much of a transcript a page opens with. It begins at a prompt where it can, so that no message and no tool call is
// cut in two.
const (
	windowRows = 600  // newest rows that are read
	enoughRows = 60   // rows that must be left when the first, cut turn is dropped
	longTurn   = 4000 // rows to go back at most for the start of a turn
)

// window reads the rows before a number (0: the newest) that a page shows.
func (w *Console) window(ctx context.Context, a tenant.Actor, at uuid.UUID, before int64) ([]transcript.Stored, error) {
	rows, err := w.Reader.Newest(ctx, a.TenantID, at, before, windowRows)
	if err != nil || len(rows) < windowRows {
		return rows, err
	}
	cut := func() int {
		for i, r := range rows {
			if r.Type == transcript.Prompt {
				return i
			}
		}
		return -1
	}
	if i := cut(); i >= 0 && len(rows)-i >= enoughRows {
		return rows[i:], nil
	}
	if rows, err = w.Reader.Newest(ctx, a.TenantID, at, before, longTurn); err != nil {
		return nil, err
	}
	if i := cut(); i >= 0 {
		return rows[i:], nil
	}
	return rows, nil
}

// fold begins a transcript as one person sees it.
func (w *Console) fold(a tenant.Actor, t conversation.Conversation) (*views.Transcript, rowViews) {
	base := "/conversations/" + t.ID.String()
	v := rowViews{you: a.Email, answers: base + "/requests"}
	if !t.Workspace.Implicit {
		v.files = "/workspaces/" + t.WorkspaceID.String() + "/files"
	}
	fold := views.NewTranscript(orElse(t.AgentName, t.Runtime), base+"/diagnostics")
	fold.Now = time.Now()
	return fold, v
}

// ShowConversation answers GET /conversations/{id}: the newest rows, those before ?before=, or those around ?at=.
func (w *Console) ShowConversation(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	t, err := w.Conversations.Get(ctx, a, at)
	if err != nil {
		return err
	}
	before := number(c.QueryParam("before"))
	if around := number(c.QueryParam("at")); around > 0 {
		before = around + enoughRows
	}
	if before == 0 && !inPlace(c) {
		if err := w.Conversations.MarkRead(ctx, a, at); err != nil {
			return err
		}
	}
	return w.conversation(c, http.StatusOK, t, before, func(*views.ConversationPage) {})
}

// conversation shows a conversation, with what edit changes on the page.
func (w *Console) conversation(c echo.Context, status int, t conversation.Conversation, before int64, edit func(*views.ConversationPage)) error {
	ctx, a := c.Request().Context(), actor(c)
	rows, err := w.window(ctx, a, t.ID, before)
	if err != nil {
		return err
	}
	fold, v := w.fold(a, t)
	fold.Append(v.of(rows))
	base := "/conversations/" + t.ID.String()
	earlier := ""
	if len(rows) > 0 && rows[0].Seq > 1 {
		earlier = base + "?before=" + strconv.FormatInt(rows[0].Seq, 10)
	}
	if inPlace(c) { // the script asks for what was before
		return fragments(c, http.StatusOK, views.EarlierRows(fold, earlier)...)
	}
	p := views.ConversationPage{Page: w.page(c, titleOf(t), "conversations"), URL: base, Agent: agentOf(t), Runtime: runtimeOf(t), Workspace: workspaceOf(t), Cwd: short(t.Cwd),
		EarlierURL: earlier, Transcript: fold, Manage: views.Manage{RenameURL: base + "/rename", DeleteURL: base + "/delete"}}
	if t.EndedAt == nil {
		p.Manage.TerminateURL = base + "/terminate"
	}
	if before > 0 {
		p.NewestURL = base + "#end"
	} else {
		first, last := int64(1), int64(0)
		if len(rows) > 0 {
			first, last = rows[0].Seq, rows[len(rows)-1].Seq
		}
		p.Page.Stream = fmt.Sprintf("%s/stream?from=%d&after=%d", base, first, last)
	}
	state, err := w.state(ctx, a, t, fold)
	if err != nil {
		return err
	}
	p.Head, p.Working, p.Queue, p.Composer, p.Facts = state.head, state.working, state.queue, state.composer, state.facts
	edit(&p)
	return html(c, status, views.Conversation(p))
}

func runtimeOf(t conversation.Conversation) string {
	if t.Model == "" {
		return t.Runtime
	}
	return t.Runtime + " · " + t.Model
}

// talkState is everything of the page but the transcript.
type talkState struct {
	head     views.TurnState
	working  views.Working
	queue    []views.Queued
	composer views.Composer
	facts    views.Facts
}

func (s talkState) fragments(now time.Time) []views.Fragment {
	f := []views.Fragment{
		{Target: views.IDTurnState, Swap: views.SwapMorph, Content: views.TurnHead(s.head, now)},
		{Target: views.IDWorking, Swap: views.SwapMorph, Content: views.WorkingLine(s.working, now)},
		{Target: views.IDQueue, Swap: views.SwapMorph, Content: views.Queue(s.queue)},
		{Target: views.IDSend, Swap: views.SwapMorph, Content: views.SendButton(s.composer.Busy)},
		{Target: views.IDFacts, Swap: views.SwapMorph, Content: views.FactsRegion(s.facts)},
	}
	if s.composer.Closed != "" { // else it is the person's, who may be typing
		f = append(f, views.Fragment{Target: views.IDComposer, Swap: views.SwapReplace, Content: views.ComposerRegion(s.composer)})
	}
	return f
}

func (w *Console) state(ctx context.Context, a tenant.Actor, t conversation.Conversation, fold *views.Transcript) (s talkState, err error) {
	base := "/conversations/" + t.ID.String()
	s.head = views.TurnState{Name: titleOf(t), State: conversationBadge(t)}
	s.composer = views.Composer{Action: base + "/prompts", Placeholder: "Message"}
	switch t.Status {
	case conversation.Terminated:
		s.composer.Closed = "This conversation has ended. Its transcript stays."
	case conversation.Failed:
		s.composer.Closed = "This conversation has failed and takes no more prompts."
		if t.Error != nil {
			s.composer.Closed = "This conversation has failed: " + t.Error.Message
		}
	}
	s.queue, s.composer.Busy = queueOf(t), t.CurrentTurn != nil
	if turn := t.CurrentTurn; turn != nil {
		s.head.Turn, s.head.InterruptURL = turn.TurnNumber, base+"/interrupt"
		s.working = views.Working{Text: "Working"}
		if !fold.Asked(turn.TurnNumber) {
			s.working.Asked = turn.Prompt
		}
		if wait := turn.WaitingFor; wait != nil {
			s.working.Text, s.working.Since = waitingText(*wait), wait.Since
			if wait.Reason == conversation.ForSetup && !t.Workspace.Implicit {
				s.working.Link = workspaceOf(t)
			}
		}
	}
	s.facts, err = w.facts(ctx, a, t, fold)
	return s, err
}

// facts are those of the turn that runs, else of the last one.
func (w *Console) facts(ctx context.Context, a tenant.Actor, t conversation.Conversation, fold *views.Transcript) (f views.Facts, err error) {
	add := func(name, value string) {
		if value != "" {
			f.Items = append(f.Items, views.Fact{Name: name, Value: views.Link{Name: value}})
		}
	}
	last := t.CurrentTurn
	if last == nil && t.TurnCount > 0 {
		turn, err := w.Conversations.Turn(ctx, a, t.ID, t.TurnCount)
		if err != nil {
			return f, err
		}
		last = &turn
	}
	if last != nil {
		f.Turn = last.TurnNumber
		add("Model", orElse(last.Model, t.Model))
		switch last.Source {
		case "own":
			f.Items = append(f.Items, views.Fact{Name: "Paid by", Value: views.Link{Name: "own key", URL: "/settings/credentials"}})
		case "pool":
			add("Paid by", "public pool")
		}
		if u := last.Usage; u != nil && u.Requests > 0 {
			add("Tokens", views.Count(u.Input)+" in · "+views.Count(u.Output)+" out")
			if u.CacheRead+u.CacheWrite > 0 {
				add("Cache", views.Count(u.CacheRead)+" read · "+views.Count(u.CacheWrite)+" written")
			}
			if u.CostMicros > 0 {
				add("Cost", dollars(u.CostMicros))
			}
			requests := views.Count(u.Requests)
			if u.FailedRequests > 0 {
				requests += fmt.Sprintf(", %d failed", u.FailedRequests)
			}
			add("Model calls", requests)
		}
		if last.Attempts > 0 {
			add("Attempts", views.Count(last.Attempts))
		}
		if last.StartedAt != nil && last.FirstTokenAt != nil {
			add("First token", views.Took(last.FirstTokenAt.Sub(*last.StartedAt)))
		}
		if last.StartedAt != nil && last.EndedAt != nil {
			add("Duration", views.Took(last.EndedAt.Sub(*last.StartedAt)))
		}
		if last.ToolCallCount > 0 {
			add("Tool calls", views.Count(last.ToolCallCount))
		}
		if last.StopReason != nil {
			add("Stop reason", views.Words(*last.StopReason))
		}
		if last.ExitCode != nil {
			add("Runtime's exit", strconv.Itoa(*last.ExitCode))
		}
		f.Files = fold.Changes(last.TurnNumber)
		for i := range f.Files {
			f.Files[i].File.Name = short(f.Files[i].File.Name)
		}
	}
	if f.Egress, err = w.egressFacts(ctx, a, t.ID); err != nil {
		return f, err
	}
	if !t.Workspace.Implicit && t.Workspace.Status != "deleted" {
		space := "/workspaces/" + t.WorkspaceID.String()
		f.Links = []views.Link{{Name: "Diff", URL: address(space+"/diff", "path", t.Cwd)}, {Name: "Files", URL: address(space+"/files", "path", t.Cwd)},
			{Name: "Download patch", URL: address(space+"/patch", "path", t.Cwd)}}
	}
	return f, nil
}

// egressFacts count what left the machine for a conversation, by host, in the order hosts were last reached.
func (w *Console) egressFacts(ctx context.Context, a tenant.Actor, at uuid.UUID) (facts []views.Fact, err error) {
	rows, err := w.Ledger.EgressOfConversation(ctx, a, at, input.Page{Limit: choices})
	type count struct{ ok, denied int }
	counts := map[string]*count{}
	var hosts []string
	for _, r := range rows.Items {
		host := strings.TrimSuffix(hostOf(r), ":443")
		if counts[host] == nil {
			counts[host] = &count{}
			hosts = append(hosts, host)
		}
		if r.Decision == "denied" || r.Decision == "failed" {
			counts[host].denied++
		} else {
			counts[host].ok++
		}
	}
	for _, host := range hosts {
		n := counts[host]
		switch {
		case n.denied == 0:
			facts = append(facts, views.Fact{Name: host, Value: views.Link{Name: views.Count(n.ok) + " allowed"}})
		case n.ok == 0:
			facts = append(facts, views.Fact{Name: host, Value: views.Link{Name: views.Count(n.denied) + " denied"}, Bad: true})
		default:
			facts = append(facts, views.Fact{Name: host, Value: views.Link{Name: fmt.Sprintf("%d allowed, %d denied", n.ok, n.denied)}, Bad: true})
		}
	}
	return facts, err
}

// ConversationStream keeps the page of a conversation true: GET /conversations/{id}/stream?from=&after=.
//
// from is the first row the page shows: the fold begins there, as the page's did, silently up to the cursor, so that a
// later row changes the element that the page made. The state around the transcript is read again whenever the account's
// stream or a row says that it changed.
func (w *Console) ConversationStream(c echo.Context) error {
	a := actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	t, err := w.Conversations.Get(c.Request().Context(), a, at)
	if err != nil {
		return err
	}
	leave, err := w.streams.take(a)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(c.Request().Context())
	from, after := number(c.QueryParam("from")), stream.Cursor(c.Request(), 0)
	states := follow(ctx, w.Reader.FollowAccount(ctx, a.TenantID, stream.FromNow, true))
	defer states.drain()
	rows := follow(ctx, w.Reader.Follow(ctx, stream.Query{TenantID: a.TenantID, ConversationID: at, After: max(from-1, 0), Wait: true}))
	defer rows.drain()
	defer cancel()
	if first, ok := <-states.items; !ok || first.Kind != stream.Open {
		return orGone(ctx, states.err)
	}

	fold, v := w.fold(a, t)
	talk := &talkStream{w: w, a: a, id: at, fold: fold, rows: v, seen: max(from-1, 0), after: after}
	if talk.out, err = start(c); err != nil {
		return nil
	}
	beat := time.NewTicker(views.BeatEvery)
	defer beat.Stop()
	look := time.NewTimer(0) // the state, first of all
	defer look.Stop()
	for {
		select {
		case item, ok := <-rows.items:
			if !ok {
				return nil // the page connects again
			}
			changed, over, err := talk.show(rows.more([]stream.Item{item}))
			if err != nil {
				return nil
			}
			if changed {
				look.Reset(0)
			}
			if over {
				if talk.look(ctx) == nil {
					_ = talk.out.send(views.End) // nothing follows, whether it arrives or not
				}
				return nil
			}
		case item, ok := <-states.items:
			if !ok {
				return nil
			}
			if item.Kind == stream.Row && ofConversation(item.Account, at) {
				look.Reset(0)
			}
		case <-look.C:
			if !talk.caughtUp() {
				continue // show says when
			}
			if talk.look(ctx) != nil {
				return nil
			}
		case <-beat.C:
			if talk.out.send(views.Beat) != nil {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func ofConversation(e stream.AccountEvent, at uuid.UUID) bool {
	var body struct {
		ConversationID uuid.UUID `json:"conversation_id"`
	}
	return (e.Name == stream.ConversationStatus || e.Name == stream.PermissionRequested) && unmarshal(e.Body, &body) && body.ConversationID == at
}

// talkStream is one page of a conversation being kept true.
type talkStream struct {
	w     *Console
	a     tenant.Actor
	id    uuid.UUID
	fold  *views.Transcript
	rows  rowViews
	seen  int64 // the last row in the fold
	after int64 // the last row the page shows
	out   *out
}

// caughtUp tells whether the fold holds what the page shows. Before, it misses prompts and changes of files that the page
// has, and the state made from it would put them there twice or take them away.
func (t *talkStream) caughtUp() bool { return t.seen >= t.after }

// show folds rows and sends what they change on the page. changed tells that the state around them may have changed too,
// over that nothing will follow.
func (t *talkStream) show(items []stream.Item) (changed, over bool, err error) {
	var known, fresh []transcript.Stored
	behind := !t.caughtUp()
	for _, item := range items {
		switch item.Kind {
		case stream.Reset: // the rows begin anew: so must the page
			return false, false, errGone
		case stream.End:
			over = true
		case stream.Row:
			t.seen = item.Event.Seq
			if item.Event.Seq <= t.after {
				known = append(known, item.Event)
				continue
			}
			fresh = append(fresh, item.Event)
		}
	}
	t.fold.Append(t.rows.of(known))
	changed = behind && t.caughtUp()
	if len(fresh) == 0 {
		return changed, over, nil
	}
	t.fold.Now = time.Now()
	f := t.fold.Append(t.rows.of(fresh))
	for _, r := range fresh {
		switch r.Type {
		case transcript.Message, transcript.Thought, transcript.ToolOutput:
			continue
		case transcript.Prompt: // it is in the transcript now, and no longer below it
			f = append(f, views.Fragment{Target: views.IDWorking, Swap: views.SwapMorph, Content: views.WorkingLine(views.Working{Text: "Working"}, t.fold.Now)})
		case transcript.Error, transcript.PermissionRequest:
			f = append(f, announcement(r))
		case transcript.Stage:
			if n := announcement(r); n.Target != "" {
				f = append(f, n)
			}
		}
		changed = true
	}
	t.after = fresh[len(fresh)-1].Seq
	return changed, over, t.out.say(strconv.FormatInt(t.after, 10), f)
}

// announcement is what somebody who does not see the page must hear of a row; without a target it is nothing.
func announcement(r transcript.Stored) views.Fragment {
	switch r.Type {
	case transcript.Error:
		var b transcript.ErrorBody
		if unmarshal(r.Body, &b) {
			return views.Announce(b.Message)
		}
	case transcript.PermissionRequest:
		return views.Announce("A permission is asked for.")
	case transcript.Stage:
		var b transcript.StageBody
		if unmarshal(r.Body, &b) && b.Stage == "turn" && b.State != "started" {
			return views.Announce(fmt.Sprintf("Turn %d: %s.", r.TurnNumber, b.State))
		}
	}
	return views.Fragment{}
}

// look reads the state again and sends it.
func (t *talkStream) look(ctx context.Context) error {
	now, err := t.w.Conversations.Get(ctx, t.a, t.id)
	if err != nil {
		return err
	}
	s, err := t.w.state(ctx, t.a, now, t.fold)
	if err != nil {
		return err
	}
	return t.out.say("", s.fragments(time.Now()))
}

// SendPrompt takes a message: POST /conversations/{id}/prompts.
func (w *Console) SendPrompt(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	prompt := input.Lines(c.FormValue("prompt"))
	// A turn that began since the page was drawn is no reason to refuse: the page shows what waits, and can take it back.
	_, err = w.Conversations.Prompt(ctx, a, at, conversation.PromptInput{Prompt: prompt, Queue: true})
	return w.answer(c, at, err, func(p *views.ConversationPage) { p.Composer.Text = prompt })
}

// answer ends an action on a conversation: the page again, or what changed on it. A refusal stands over the composer.
func (w *Console) answer(c echo.Context, at uuid.UUID, err error, keep func(*views.ConversationPage)) error {
	ctx, a := c.Request().Context(), actor(c)
	status, note := http.StatusOK, problem(err)
	if r, ok := refusal.As(err); ok && r.Code != refusal.NotFound {
		status = r.Status()
	} else if err != nil {
		return err
	}
	if !inPlace(c) && note == nil {
		return see(c, "/conversations/"+at.String()+"#end", "")
	}
	t, err := w.Conversations.Get(ctx, a, at)
	if err != nil {
		return err
	}
	if !inPlace(c) {
		return w.conversation(c, status, t, 0, func(p *views.ConversationPage) {
			p.Composer.Note = note
			keep(p)
		})
	}
	return fragments(c, status,
		views.Fragment{Target: views.IDComposerNote, Swap: views.SwapMorph, Content: views.ComposerNote(note)},
		views.Fragment{Target: views.IDTurnState, Swap: views.SwapMorph, Content: views.TurnHead(headOf(t), time.Now())},
		views.Fragment{Target: views.IDQueue, Swap: views.SwapMorph, Content: views.Queue(queueOf(t))},
		views.Fragment{Target: views.IDSend, Swap: views.SwapMorph, Content: views.SendButton(t.CurrentTurn != nil)})
}

func queueOf(t conversation.Conversation) (queue []views.Queued) {
	before := t.CurrentTurn
	for _, turn := range t.Queue {
		queue = append(queue, views.Queued{Turn: turn.TurnNumber, Behind: before.TurnNumber, Text: turn.Prompt, WithdrawURL: "/conversations/" + t.ID.String() + "/interrupt"})
		before = &turn
	}
	return queue
}

func headOf(t conversation.Conversation) views.TurnState {
	h := views.TurnState{Name: titleOf(t), State: conversationBadge(t)}
	if t.CurrentTurn != nil {
		h.Turn, h.InterruptURL = t.CurrentTurn.TurnNumber, "/conversations/"+t.ID.String()+"/interrupt"
	}
	return h
}

// InterruptTurn stops the turn that the form names, never a later one: POST /conversations/{id}/interrupt.
func (w *Console) InterruptTurn(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	turn, err := w.Conversations.Turn(ctx, a, at, int(number(c.FormValue("turn"))))
	if err != nil {
		return err
	}
	_, err = w.Conversations.Interrupt(ctx, a, at, &turn.ID)
	return w.answer(c, at, err, func(*views.ConversationPage) {})
}

// AnswerRequest answers a permission request: POST /conversations/{id}/requests/{request}.
func (w *Console) AnswerRequest(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	request, err := id(c, "request")
	if err != nil {
		return err
	}
	_, err = w.Conversations.Answer(c.Request().Context(), actor(c), at, request, c.FormValue("option_id"))
	return w.answer(c, at, err, func(*views.ConversationPage) {})
}

// RenameConversation changes the title: POST /conversations/{id}/rename.
func (w *Console) RenameConversation(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	title := c.FormValue("title")
	if _, err = w.Conversations.Patch(ctx, a, at, conversation.PatchInput{Title: &title}); err == nil {
		return see(c, "/conversations/"+at.String()+"#end", "")
	}
	errs, status, err := formErrors(err, "title")
	if err != nil {
		return err
	}
	t, err := w.Conversations.Get(ctx, a, at)
	if err != nil {
		return err
	}
	return w.conversation(c, status, t, 0, func(p *views.ConversationPage) { p.Manage.Title, p.Manage.Errors = title, errs })
}

// EndConversation ends a conversation, keeping its transcript: POST /conversations/{id}/terminate.
func (w *Console) EndConversation(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	_, err = w.Conversations.Terminate(c.Request().Context(), actor(c), at)
	return w.answer(c, at, err, func(*views.ConversationPage) {})
}

// DeleteConversation ends a conversation and hides it: POST /conversations/{id}/delete.
func (w *Console) DeleteConversation(c echo.Context) error {
	at, err := id(c, "id")
	if err == nil {
		err = w.Conversations.Delete(c.Request().Context(), actor(c), at)
	}
	if err != nil {
		return err
	}
	return see(c, "/conversations", "Deleted the conversation.")
}

// DiagnoseConversation gives the facts of a conversation and its last turns, redacted as they are kept:
// GET /conversations/{id}/diagnostics.
func (w *Console) DiagnoseConversation(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	t, err := w.Conversations.Get(ctx, a, at)
	if err != nil {
		return err
	}
	var turn *conversation.Turn
	if t.TurnCount > 0 {
		last, err := w.Conversations.Turn(ctx, a, at, t.TurnCount)
		if err != nil {
			return err
		}
		last.Prompt = "" // what was asked is nobody's business who helps with a failure
		turn = &last
	}
	t.FirstPrompt, t.CurrentTurn, t.Title = "", nil, ""
	stages, err := w.lastStages(ctx, a, at)
	if err != nil {
		return err
	}
	return c.JSONPretty(http.StatusOK, map[string]any{"version": w.Version, "at": time.Now().UTC(), "request_id": requestID(c), "conversation": t, "turn": turn, "events": stages}, "  ")
}

// lastStages are the newest rows that tell what the server did, without what people and agents said.
func (w *Console) lastStages(ctx context.Context, a tenant.Actor, at uuid.UUID) (events []transcript.Event, err error) {
	rows, err := w.Reader.Newest(ctx, a.TenantID, at, 0, windowRows)
	for _, r := range rows {
		switch r.Type {
		case transcript.Stage, transcript.Error, transcript.Notice, transcript.Usage:
			events = append(events, transcript.Wire(r, transcript.View{}))
		}
	}
	return events, err
}
