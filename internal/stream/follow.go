package stream

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/queries"
)

// Heartbeat is how often a quiet stream says that it is alive.
const Heartbeat = 15 * time.Second

// Kind of what a stream says.
type Kind int

// Kinds.
const (
	Row   Kind = iota // a row, with its number
	Alive             // nothing new: a heartbeat
	Reset             // the cursor is not of this stream, or rows behind it are gone: what follows starts anew
	End               // nothing more will come
	Open              // the stream stands: what comes from here on is not missed
)

// Item is one thing a stream says.
type Item struct {
	Kind    Kind
	Event   transcript.Stored // of a transcript
	Account AccountEvent      // of an account's stream
	More    bool              // another one is there already: no need to hurry this one out
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

// stored is a row of a transcript.
type stored transcript.Stored

func (s stored) number() int64 { return s.Seq }
func (s stored) size() int     { return len(s.Body) + len(s.Raw) + rowSize }

// closing: a conversation's last row is a stage.
func (s stored) closing() bool { return s.Type == transcript.Stage }

// rowSize is about what a row takes beside its body and line, in bytes.
const rowSize = 200

// conversation is the source of a transcript.
type conversation struct {
	db *db.DB
	t  topic
}

func (c conversation) after(ctx context.Context, number int64) ([]row, bool, error) {
	got, err := c.db.Tenant(c.t.tenantID).EventsAfter(ctx, queries.EventsAfterParams{ConversationID: c.t.conversationID, After: number, AtMost: pageRows, MaxBytes: pageBytes})
	rows := make([]row, len(got))
	for i, g := range got {
		rows[i] = stored{ConversationID: g.ConversationID, Seq: g.Seq, TurnID: g.TurnID, TurnNumber: int(g.TurnNumber), Type: g.Type, Body: g.Body, Raw: g.Raw, CreatedAt: g.CreatedAt}
	}
	return rows, len(got) > 0 && got[len(got)-1].More, err
}

func (c conversation) state(ctx context.Context) (queries.StreamStateRow, error) {
	st, err := c.db.Tenant(c.t.tenantID).StreamState(ctx, c.t.conversationID)
	if db.NotFound(err) {
		return st, refusal.NotFoundError()
	}
	return st, err
}

func (c conversation) head(ctx context.Context) (int64, bool, error) {
	st, err := c.state(ctx)
	return st.Seq, ended(st), err
}

func ended(st queries.StreamStateRow) bool { return st.Status == "terminated" || st.Status == "failed" }

// List reads at most limit rows that the query wants. more tells that there are others behind them.
func (r *Reader) List(ctx context.Context, q Query, limit int) (rows []transcript.Stored, more bool, err error) {
	src := conversation{r.db, topic{q.TenantID, q.ConversationID}}
	if _, err := src.state(ctx); err != nil {
		return nil, false, err
	}
	for after, again := q.After, true; again; {
		var page []row
		if page, again, err = src.after(ctx, after); err != nil {
			return nil, false, err
		}
		for _, rw := range page {
			s := transcript.Stored(rw.(stored))
			if after = s.Seq; !q.wants(s) {
				continue
			}
			if len(rows) == limit {
				return rows, true, nil
			}
			rows = append(rows, s)
		}
	}
	return rows, false, nil
}

// Newest reads the last rows before a number (0: from the end), oldest first: how a long conversation opens.
func (r *Reader) Newest(ctx context.Context, tenantID, conversationID uuid.UUID, before int64, limit int) ([]transcript.Stored, error) {
	if before <= 0 {
		before = 1 << 62
	}
	got, err := r.db.Tenant(tenantID).EventsBefore(ctx, queries.EventsBeforeParams{ConversationID: conversationID, Before: before, AtMost: int32(limit)})
	rows := make([]transcript.Stored, len(got))
	for i, g := range got {
		rows[i] = transcript.Stored{ConversationID: g.ConversationID, Seq: g.Seq, TurnID: g.TurnID, TurnNumber: int(g.TurnNumber), Type: g.Type, Body: g.Body, Raw: g.Raw, CreatedAt: g.CreatedAt}
	}
	return rows, err
}

// Follow replays the rows after the cursor and goes on with new ones as they are committed, each once and in order.
// It ends when the conversation has ended and everything was said, when ctx ends, when the server stops, or with an error.
func (r *Reader) Follow(ctx context.Context, q Query) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		t := topic{q.TenantID, q.ConversationID}
		src := conversation{r.db, t}
		st, err := src.state(ctx)
		if err != nil {
			yield(Item{}, err)
			return
		}
		// first is 0 when every row is gone.
		gone := q.After > 0 && q.After < st.Seq && (st.First == 0 || q.After < st.First-1)
		if q.After > st.Seq || gone {
			if !yield(Item{Kind: Reset}, nil) {
				return
			}
			q.After = 0
		}
		f := follower{hub: r.hub, src: src, at: q.After, yield: yield, item: func(rw row) (Item, bool) {
			s := transcript.Stored(rw.(stored))
			return Item{Kind: Row, Event: s}, q.wants(s)
		}}
		f.follow(ctx, t, st.Seq, ended(st), q.Wait)
	}
}

// follower is one reader of one stream.
type follower struct {
	hub   *Hub
	src   source
	at    int64 // everything up to here was said
	item  func(row) (Item, bool)
	yield func(Item, error) bool
}

// follow is replay and live of any stream. The follower joins first and replays second, so that nothing falls between the
// two.
func (f *follower) follow(ctx context.Context, t topic, head int64, ended, wait bool) {
	if !wait {
		if f.yield(Item{Kind: Open}, nil) && f.replay(ctx, head) {
			f.yield(Item{Kind: End}, nil)
		}
		return
	}
	r, leave, err := f.hub.join(t, f.src, head, ended)
	if err != nil {
		f.yield(Item{}, err)
		return
	}
	defer leave()
	if !f.yield(Item{Kind: Open}, nil) {
		return
	}
	beat := time.NewTicker(f.hub.heartbeat)
	defer beat.Stop()
	for {
		rows, from, ended, changed := r.since(f.at)
		switch {
		case f.at < from:
			if !f.replay(ctx, from) {
				return
			}
			continue
		case len(rows) > 0:
			if !f.say(rows) {
				return
			}
			continue
		case ended:
			f.yield(Item{Kind: End}, nil)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-f.hub.closed:
			return
		case <-changed:
		case <-beat.C:
			if !f.yield(Item{Kind: Alive}, nil) {
				return
			}
		}
	}
}

// replay reads for itself, at its own pace, up to a number at least. false: the stream is over.
func (f *follower) replay(ctx context.Context, upto int64) bool {
	for f.at < upto {
		rows, more, err := f.src.after(ctx, f.at)
		if err != nil {
			if ctx.Err() == nil {
				f.yield(Item{}, err)
			}
			return false
		}
		if !f.say(rows) {
			return false
		}
		if !more {
			f.at = max(f.at, upto) // the rows between are gone
		}
	}
	return true
}

func (f *follower) say(rows []row) bool {
	if len(rows) == 0 {
		return true
	}
	f.at = rows[len(rows)-1].number()
	var next Item
	some := false
	for _, rw := range rows {
		it, ok := f.item(rw)
		if !ok {
			continue
		}
		if some {
			next.More = true
			if !f.yield(next, nil) {
				return false
			}
		}
		next, some = it, true
	}
	return !some || f.yield(next, nil)
}

// AccountEvent is a row of the account's stream.
type AccountEvent struct {
	Seq       int64           `json:"seq"`
	Name      string          `json:"name"`
	Body      json.RawMessage `json:"body"`
	CreatedAt time.Time       `json:"created_at"`
}

func (e AccountEvent) number() int64 { return e.Seq }
func (e AccountEvent) size() int     { return len(e.Body) + rowSize }
func (e AccountEvent) closing() bool { return false }

// account is the source of an account's stream.
type account struct {
	db       *db.DB
	tenantID uuid.UUID
}

func (a account) after(ctx context.Context, number int64) ([]row, bool, error) {
	got, err := a.db.Tenant(a.tenantID).TenantEventsAfter(ctx, number, pageRows)
	rows := make([]row, len(got))
	for i, g := range got {
		rows[i] = AccountEvent{Seq: g.Seq, Name: g.Name, Body: g.Body, CreatedAt: g.CreatedAt}
	}
	return rows, len(got) == pageRows, err
}

func (a account) head(ctx context.Context) (int64, bool, error) {
	n, err := a.db.Tenant(a.tenantID).TenantHead(ctx)
	return n, false, err
}

// FromNow is the cursor of a follower that wants only what comes.
const FromNow = -1

// FollowAccount follows the account's own stream, from a cursor or from now. A cursor of another stream goes on from now.
func (r *Reader) FollowAccount(ctx context.Context, tenantID uuid.UUID, after int64, wait bool) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		src := account{r.db, tenantID}
		head, _, err := src.head(ctx)
		if err != nil {
			yield(Item{}, err)
			return
		}
		if after > head && !yield(Item{Kind: Reset}, nil) {
			return
		}
		if after == FromNow || after > head {
			after = head
		}
		f := follower{hub: r.hub, src: src, at: after, yield: yield, item: func(rw row) (Item, bool) {
			return Item{Kind: Row, Account: rw.(AccountEvent)}, true
		}}
		f.follow(ctx, topic{tenantID, uuid.Nil}, head, false, wait)
	}
}
