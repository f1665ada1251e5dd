package stream

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/queries"

	"managoat/db"
)

// Heartbeat is how often a quiet stream says that it is alive.
const Heartbeat = 15 * time.Second

// Kind of what a stream says.
type Kind int

// Kinds.
const (
	Row   Kind = iota // a row, with its number
	Alive             // nothing new: a heartbeat
	Reset             // the cursor is not of this stream: what follows starts anew
	End               // nothing more will come
	Open              // the stream stands: what comes from here on is not missed
)

// Item is one thing a stream says.
type Item struct {
	Kind    Kind
	Event   transcript.Stored // of a transcript
	Account AccountEvent      // of an account's stream
}

// Query asks for a part of a transcript.
type Query struct {
	TenantID       uuid.UUID
	ConversationID uuid.UUID
	After          int64    // rows with a greater number
	Types          []string // of rows; none: all
	Streams        []string // of the wire: acp, stdout, stderr, stage; none: all
	Wait           bool     // go on after what is there
}

type stored transcript.Stored

func (s stored) number() int64 { return s.Seq }

// wants is the one filter, for lists, replay and live.
func (q Query) wants(r transcript.Stored) bool {
	return (len(q.Types) == 0 || slices.Contains(q.Types, r.Type)) &&
		(len(q.Streams) == 0 || slices.Contains(q.Streams, transcript.StreamOf(r)))
}

// Reader reads and follows streams.
type Reader struct {
	db  *db.DB
	hub *Hub
}

// NewReader makes a reader.
func NewReader(d *db.DB, h *Hub) *Reader { return &Reader{d, h} }

func (r *Reader) transcript(tenantID, conversationID uuid.UUID) read {
	return func(ctx context.Context, after int64) ([]row, error) {
		got, err := r.db.Tenant(tenantID).EventsAfter(ctx, queries.EventsAfterParams{ConversationID: conversationID, After: after, AtMost: pageSize, Types: []string{}})
		rows := make([]row, len(got))
		for i, g := range got {
			rows[i] = stored(g)
		}
		return rows, err
	}
}

// List reads at most limit rows that the query wants. more tells that there are others behind them.
func (r *Reader) List(ctx context.Context, q Query, limit int) (rows []transcript.Stored, more bool, err error) {
	if _, err := r.state(ctx, q); err != nil {
		return nil, false, err
	}
	after := q.After
	rd := r.transcript(q.TenantID, q.ConversationID)
	for {
		page, err := rd(ctx, after)
		if err != nil {
			return nil, false, err
		}
		for _, p := range page {
			s := transcript.Stored(p.(stored))
			if !q.wants(s) {
				continue
			}
			if len(rows) == limit {
				return rows, true, nil
			}
			rows = append(rows, s)
		}
		if len(page) < pageSize {
			return rows, false, nil
		}
		after = page[len(page)-1].number()
	}
}

// Newest reads the last rows before a number (0: from the end), oldest first: how a long conversation opens.
func (r *Reader) Newest(ctx context.Context, tenantID, conversationID uuid.UUID, before int64, limit int) ([]transcript.Stored, error) {
	if before <= 0 {
		before = 1 << 62
	}
	got, err := r.db.Tenant(tenantID).EventsBefore(ctx, queries.EventsBeforeParams{ConversationID: conversationID, Before: before, AtMost: int32(limit)})
	rows := make([]transcript.Stored, len(got))
	for i, g := range got {
		rows[i] = transcript.Stored(g)
	}
	return rows, err
}

func (r *Reader) state(ctx context.Context, q Query) (queries.StreamStateRow, error) {
	st, err := r.db.Tenant(q.TenantID).StreamState(ctx, q.ConversationID)
	if db.NotFound(err) {
		return st, refusal.NotFoundError()
	}
	return st, err
}

// Follow replays the rows after the cursor and goes on with new ones as they are committed, each once and in order.
// It ends when the conversation has ended and everything was said, when the context ends, or with an error.
func (r *Reader) Follow(ctx context.Context, q Query) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		st, err := r.state(ctx, q)
		if err != nil {
			yield(Item{}, err)
			return
		}
		if q.After > st.Seq {
			if !yield(Item{Kind: Reset}, nil) {
				return
			}
			q.After = 0
		}
		ended := func(ctx context.Context, at int64) (bool, error) {
			st, err := r.state(ctx, q)
			return err == nil && at >= st.Seq && (st.Status == "terminated" || st.Status == "failed"), err
		}
		follow(ctx, r.hub, topic{q.TenantID, q.ConversationID}, st.Seq, q.After, q.Wait, r.transcript(q.TenantID, q.ConversationID), ended, yield, func(rw row) (Item, bool) {
			s := transcript.Stored(rw.(stored))
			return Item{Kind: Row, Event: s}, q.wants(s)
		})
	}
}

// follow is replay and live of any topic. The follower joins first and replays second, so that nothing falls between
// the two; what comes twice is dropped by its number.
func follow(ctx context.Context, h *Hub, t topic, head, after int64, wait bool, rd read, ended func(context.Context, int64) (bool, error),
	yield func(Item, error) bool, item func(row) (Item, bool)) {
	f, leave := h.join(t, head, rd)
	defer leave()
	if !yield(Item{Kind: Open}, nil) {
		return
	}
	at := after
	say := func(rows []row) bool {
		for _, rw := range rows {
			if rw.number() <= at {
				continue
			}
			at = rw.number()
			if it, ok := item(rw); ok && !yield(it, nil) {
				return false
			}
		}
		return true
	}
	// catchUp reads for itself, at its own pace.
	catchUp := func() bool {
		for {
			rows, err := rd(ctx, at)
			if err != nil {
				if ctx.Err() == nil {
					yield(Item{}, err)
				}
				return false
			}
			if !say(rows) {
				return false
			}
			if len(rows) < pageSize {
				return true
			}
		}
	}
	// over tells whether nothing more will come, and says so.
	over := func() bool {
		done, err := ended(ctx, at)
		if err != nil {
			if ctx.Err() == nil {
				yield(Item{}, err)
			}
			return true
		}
		if done {
			yield(Item{Kind: End}, nil)
		}
		return done
	}
	if !catchUp() {
		return
	}
	if !wait {
		yield(Item{Kind: End}, nil)
		return
	}
	if over() {
		return
	}
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case rows := <-f.batches:
			// A gap means that an earlier batch did not fit: read it.
			if rows[0].number() > at+1 && !catchUp() {
				return
			}
			if !say(rows) {
				return
			}
			if lastWords(rows) && over() {
				return
			}
		case <-f.late:
			if !catchUp() {
				return
			}
		case <-beat.C:
			// Also finds what a notification that was lost would have told.
			if !catchUp() || over() || !yield(Item{Kind: Alive}, nil) {
				return
			}
		}
	}
}

// lastWords tells whether a conversation may have ended with these rows: its last row is always a stage.
func lastWords(rows []row) bool {
	s, ok := rows[len(rows)-1].(stored)
	return ok && s.Type == transcript.Stage
}

// AccountEvent is a row of the account's stream.
type AccountEvent struct {
	Seq       int64           `json:"seq"`
	Name      string          `json:"name"`
	Body      json.RawMessage `json:"body"`
	CreatedAt time.Time       `json:"created_at"`
}

func (e AccountEvent) number() int64 { return e.Seq }

// FromNow is the cursor of a follower that wants only what comes.
const FromNow = -1

// FollowAccount follows the account's own stream, from a cursor or from now.
func (r *Reader) FollowAccount(ctx context.Context, tenantID uuid.UUID, after int64, wait bool) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		head, err := r.db.Tenant(tenantID).TenantHead(ctx)
		if err != nil {
			yield(Item{}, err)
			return
		}
		switch {
		case after == FromNow:
			after = head
		case after > head:
			if !yield(Item{Kind: Reset}, nil) {
				return
			}
			after = head
		}
		rd := func(ctx context.Context, after int64) ([]row, error) {
			got, err := r.db.Tenant(tenantID).TenantEventsAfter(ctx, after, pageSize)
			rows := make([]row, len(got))
			for i, g := range got {
				rows[i] = AccountEvent{Seq: g.Seq, Name: g.Name, Body: g.Body, CreatedAt: g.CreatedAt}
			}
			return rows, err
		}
		never := func(context.Context, int64) (bool, error) { return false, nil }
		follow(ctx, r.hub, topic{tenantID, uuid.Nil}, head, after, wait, rd, never, yield, func(rw row) (Item, bool) {
			return Item{Kind: Row, Account: rw.(AccountEvent)}, true
		})
	}
}
