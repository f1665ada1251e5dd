package transcript

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"managoat/db"
	"managoat/queries"
)

// Sizes and times of the writers.
const (
	writers      = 4
	queueLength  = 512                   // requests that wait for one writer; then producers wait
	chunkPause   = 25 * time.Millisecond // a later chunk of a stream waits at most this long for more
	chunkBytes   = 8 << 10               // or until this much is there
	lockPatience = "100ms"               // a conversation whose counter is locked longer is written by itself
	slowPatience = "60s"                 // and then waits this long
	writeTimeout = 90 * time.Second      // for one transaction, whatever happens
	maxBatch     = 512                   // rows in one transaction
)

// ErrClosed is returned for rows that come after Close.
var ErrClosed = errors.New("the transcript's writer is closed")

// Notifier is told which conversations have new rows, after their commit.
type Notifier interface {
	Conversation(tenantID, conversationID uuid.UUID)
}

// Writer appends rows to transcripts. Rows of one conversation keep their order. A conversation that is locked or
// refused holds up nobody else. Safe for concurrent use.
type Writer struct {
	db     *db.DB
	notify Notifier
	log    *slog.Logger
	shards [writers]chan request
	wg     sync.WaitGroup
	ctx    context.Context
	stop   context.CancelFunc

	mu     sync.Mutex
	tails  map[uuid.UUID]*tail
	closed bool
}

// request is some rows of one conversation, in order.
type request struct {
	tenantID, conversationID uuid.UUID
	rows                     []Row
	done                     func(lastSeq int64, err error)
}

// tail is what a conversation's chunks wait in.
type tail struct {
	mu       sync.Mutex
	tenantID uuid.UUID
	pending  *Row
	bytes    int
	timer    *time.Timer
	last     time.Time // when a chunk was last sent on
	open     sync.WaitGroup
	err      error // of a queued row, until somebody asks
}

// NewWriter starts the writers.
func NewWriter(d *db.DB, notify Notifier, log *slog.Logger) *Writer {
	w := &Writer{db: d, notify: notify, log: log, tails: map[uuid.UUID]*tail{}}
	w.ctx, w.stop = context.WithCancel(context.Background())
	for i := range w.shards {
		w.shards[i] = make(chan request, queueLength)
		s := &shard{w: w, in: w.shards[i], slow: map[uuid.UUID]*slowLane{}}
		w.wg.Go(s.run)
	}
	return w
}

// Append appends rows and returns when they are committed, with the number of the last. Chunks that were queued before
// are written before.
func (w *Writer) Append(ctx context.Context, tenantID, conversationID uuid.UUID, rows ...Row) (int64, error) {
	t := w.tail(tenantID, conversationID)
	type result struct {
		seq int64
		err error
	}
	answer := make(chan result, 1)
	t.mu.Lock()
	w.flush(t, conversationID)
	err := w.send(ctx, request{tenantID, conversationID, rows, func(seq int64, err error) { answer <- result{seq, err} }})
	t.mu.Unlock()
	if err != nil {
		return 0, err
	}
	select {
	case r := <-answer:
		return r.seq, r.err
	case <-ctx.Done():
		return 0, ctx.Err() // the rows are written all the same
	}
}

// Queue appends a chunk of a message, a thought or a tool's output without waiting: the first of a stream at once,
// later ones joined for a short while. It waits only when the writer is far behind. What goes wrong is told by Sync.
func (w *Writer) Queue(ctx context.Context, tenantID, conversationID uuid.UUID, row Row) error {
	t := w.tail(tenantID, conversationID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.err; err != nil {
		return err
	}
	n := 0
	if s, ok := text(row); ok {
		n = len(s)
	}
	if t.pending != nil {
		if both, ok := join(*t.pending, row); ok {
			t.pending, t.bytes = &both, t.bytes+n
			if t.bytes >= chunkBytes {
				w.flush(t, conversationID)
			}
			return nil
		}
		w.flush(t, conversationID)
	}
	t.pending, t.bytes = &row, n
	if wait := chunkPause - time.Since(t.last); wait <= 0 || n >= chunkBytes || n == 0 {
		w.flush(t, conversationID)
	} else if t.timer == nil {
		t.timer = time.AfterFunc(wait, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			w.flush(t, conversationID)
		})
	} else {
		t.timer.Reset(wait)
	}
	return nil
}

// Sync waits until every queued chunk of the conversation is committed and returns what went wrong with one.
func (w *Writer) Sync(ctx context.Context, conversationID uuid.UUID) error {
	w.mu.Lock()
	t := w.tails[conversationID]
	w.mu.Unlock()
	if t == nil {
		return nil
	}
	t.mu.Lock()
	w.flush(t, conversationID)
	t.mu.Unlock()
	done := make(chan struct{})
	go func() { t.open.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.err
	t.err = nil
	return err
}

// Forget drops what is kept of a conversation that has ended.
func (w *Writer) Forget(conversationID uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.tails, conversationID)
}

// Close writes what is queued and ends the writers. No call may follow.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	ids := make([]uuid.UUID, 0, len(w.tails))
	for id := range w.tails {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, w.Sync(ctx, id))
	}
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		for _, s := range w.shards {
			close(s)
		}
	}
	w.mu.Unlock()
	w.wg.Wait()
	w.stop()
	return errors.Join(errs...)
}

func (w *Writer) tail(tenantID, conversationID uuid.UUID) *tail {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tails[conversationID]
	if t == nil {
		t = &tail{tenantID: tenantID}
		w.tails[conversationID] = t
	}
	return t
}

// flush sends on the chunk that waits. The tail is locked.
func (w *Writer) flush(t *tail, conversationID uuid.UUID) {
	if t.pending == nil {
		return
	}
	row := *t.pending
	t.pending, t.bytes, t.last = nil, 0, time.Now()
	t.open.Add(1)
	done := func(_ int64, err error) {
		if err != nil {
			go func() { // the tail may be locked by whoever waits for room in the queue
				t.mu.Lock()
				defer t.mu.Unlock()
				t.err = cmp.Or(t.err, err)
				t.open.Done()
			}()
			return
		}
		t.open.Done()
	}
	if err := w.send(w.ctx, request{t.tenantID, conversationID, []Row{row}, done}); err != nil {
		t.err = cmp.Or(t.err, err)
		t.open.Done()
	}
}

func (w *Writer) send(ctx context.Context, r request) error {
	h := fnv.New32a()
	h.Write(r.conversationID[:])
	w.mu.Lock()
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return ErrClosed
	}
	select {
	case w.shards[h.Sum32()%writers] <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shard is one writer.
type shard struct {
	w    *Writer
	in   chan request
	mu   sync.Mutex
	slow map[uuid.UUID]*slowLane
	wg   sync.WaitGroup
}

// slowLane holds the requests of a conversation that is written by itself, because its counter is locked.
type slowLane struct{ waiting []request }

// run writes what is there while the last commit ran: no window, no timer.
func (s *shard) run() {
	defer s.wg.Wait()
	for first := range s.in {
		batch := []request{first}
		rows := len(first.rows)
	drain:
		for rows < maxBatch {
			select {
			case r, ok := <-s.in:
				if !ok {
					break drain
				}
				batch = append(batch, r)
				rows += len(r.rows)
			default:
				break drain
			}
		}
		s.write(batch)
	}
}

// group is the requests of one conversation in a batch.
type group struct {
	tenantID, conversationID uuid.UUID
	requests                 []request
	seqs                     []int64 // last of each request, once written
}

func (s *shard) write(batch []request) {
	byTenant := map[uuid.UUID][]*group{}
	index := map[uuid.UUID]*group{}
	for _, r := range batch {
		if s.toSlowLane(r) {
			continue
		}
		g := index[r.conversationID]
		if g == nil {
			g = &group{tenantID: r.tenantID, conversationID: r.conversationID}
			index[r.conversationID] = g
			byTenant[r.tenantID] = append(byTenant[r.tenantID], g)
		}
		g.requests = append(g.requests, r)
	}
	for tenantID, groups := range byTenant {
		// In one order everywhere, so that two servers never wait for each other.
		slices.SortFunc(groups, func(a, b *group) int {
			return bytes.Compare(a.conversationID[:], b.conversationID[:])
		})
		err := s.w.commit(tenantID, groups, lockPatience)
		if err == nil {
			s.finish(groups...)
			continue
		}
		for _, g := range groups {
			if len(groups) > 1 {
				err = s.w.commit(tenantID, []*group{g}, lockPatience)
			}
			s.settle(g, err)
		}
	}
}

// settle ends one group that was written alone: done, to the slow lane, or request by request, so that one bad row
// refuses no other.
func (s *shard) settle(g *group, err error) {
	switch {
	case err == nil:
		s.finish(g)
	case lockTimeout(err):
		s.startSlowLane(g)
	case len(g.requests) == 1:
		g.requests[0].done(0, err)
	default:
		for _, r := range g.requests {
			one := &group{tenantID: g.tenantID, conversationID: g.conversationID, requests: []request{r}}
			s.settle(one, s.w.commit(g.tenantID, []*group{one}, slowPatience))
		}
	}
}

func (s *shard) finish(groups ...*group) {
	for _, g := range groups {
		for i, r := range g.requests {
			r.done(g.seqs[i], nil)
		}
		s.w.notify.Conversation(g.tenantID, g.conversationID)
	}
}

func (s *shard) toSlowLane(r request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	lane, ok := s.slow[r.conversationID]
	if ok {
		lane.waiting = append(lane.waiting, r)
	}
	return ok
}

func (s *shard) startSlowLane(g *group) {
	s.mu.Lock()
	s.slow[g.conversationID] = &slowLane{waiting: g.requests}
	s.mu.Unlock()
	s.wg.Go(func() {
		for {
			s.mu.Lock()
			lane := s.slow[g.conversationID]
			if len(lane.waiting) == 0 {
				delete(s.slow, g.conversationID)
				s.mu.Unlock()
				return
			}
			r := lane.waiting[0]
			lane.waiting = lane.waiting[1:]
			s.mu.Unlock()
			one := &group{tenantID: g.tenantID, conversationID: g.conversationID, requests: []request{r}}
			if err := s.w.commit(g.tenantID, []*group{one}, slowPatience); err != nil {
				r.done(0, err)
				continue
			}
			s.finish(one)
		}
	})
}

func lockTimeout(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// commit writes some groups of one account in one transaction.
func (w *Writer) commit(tenantID uuid.UUID, groups []*group, patience string) error {
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	return w.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
		if err := tx.Exec(ctx, "set local lock_timeout = '"+patience+"'"); err != nil {
			return err
		}
		for _, g := range groups {
			var rows []Row
			for _, r := range g.requests {
				rows = append(rows, r.rows...)
			}
			first, err := insert(ctx, tx, g.conversationID, rows)
			if err != nil {
				return err
			}
			g.seqs = g.seqs[:0]
			at := first - 1
			for _, r := range g.requests {
				at += int64(len(r.rows))
				g.seqs = append(g.seqs, at)
			}
		}
		return nil
	})
}

// insert appends rows in an open transaction and returns the number of the first.
func insert(ctx context.Context, tx db.Tx, conversationID uuid.UUID, rows []Row) (int64, error) {
	p := queries.AppendEventsParams{ConversationID: conversationID, N: int32(len(rows))}
	for _, r := range rows {
		if r.Within != nil {
			if err := r.Within(ctx, tx); err != nil {
				return 0, err
			}
		}
		body, err := json.Marshal(r.Body)
		if err != nil {
			return 0, fmt.Errorf("a %s row cannot be written: %w", r.Type, err)
		}
		var turn uuid.UUID
		if r.TurnID != nil {
			turn = *r.TurnID
		}
		p.TurnIds, p.Types = append(p.TurnIds, turn), append(p.Types, r.Type)
		p.Bodies, p.Raws = append(p.Bodies, storable(body)), append(p.Raws, clean(r.Raw))
	}
	got, err := tx.AppendEvents(ctx, p)
	if err != nil {
		return 0, fmt.Errorf("append to conversation %s: %w", conversationID, err)
	}
	if len(got) != len(rows) {
		return 0, fmt.Errorf("conversation %s is not there", conversationID)
	}
	for i, r := range rows {
		if r.Tool == nil {
			continue
		}
		if err := upsert(ctx, tx, conversationID, *r.Tool, got[i].Seq); err != nil {
			return 0, err
		}
	}
	return got[0].Seq, nil
}

// storable keeps what jsonb cannot hold out of a body that did not pass the gate: it refuses an escaped NUL. A
// backslash that is itself escaped begins no escape.
func storable(body []byte) json.RawMessage {
	const null, picture = `u0000`, `u2400`
	if !bytes.Contains(body, []byte(`\`+null)) {
		return body
	}
	out := bytes.Clone(body)
	for i := 0; i < len(out); i++ {
		if out[i] != '\\' {
			continue
		}
		i++
		if bytes.HasPrefix(out[i:], []byte(null)) {
			copy(out[i:], picture)
		}
	}
	return out
}

func upsert(ctx context.Context, tx db.Tx, conversationID uuid.UUID, t ToolCall, seq int64) error {
	source, err := json.Marshal(t.Source)
	if err != nil {
		return err
	}
	var exit *int32
	if t.ExitCode != nil {
		n := int32(*t.ExitCode)
		exit = &n
	}
	var in json.RawMessage
	if t.Input != nil {
		in = storable(t.Input)
	}
	err = tx.UpsertToolCall(ctx, queries.UpsertToolCallParams{
		ConversationID: conversationID, TurnID: t.TurnID, ID: t.ID, Title: t.Title, Kind: t.Kind, Status: t.Status, Input: in,
		ExitCode: exit, Signal: t.Signal, DurationMs: t.DurationMS, OutputBytes: t.OutputBytes, Truncated: t.Truncated,
		FullLogPath: t.FullLogPath, Source: source, Seq: seq,
	})
	if err != nil {
		return fmt.Errorf("keep tool call %s: %w", t.ID, err)
	}
	return nil
}

// Pending are rows that a caller wrote in a transaction of its own.
type Pending struct {
	notify                   Notifier
	tenantID, conversationID uuid.UUID
	LastSeq                  int64
}

// AppendTx appends rows in the caller's transaction. Call Announce once it is committed. Chunks that the caller queued
// must be synced before: their order is the order of commits.
func (w *Writer) AppendTx(ctx context.Context, tx db.Tx, tenantID, conversationID uuid.UUID, rows ...Row) (Pending, error) {
	first, err := insert(ctx, tx, conversationID, rows)
	return Pending{w.notify, tenantID, conversationID, first + int64(len(rows)) - 1}, err
}

// Announce tells followers.
func (p Pending) Announce() {
	if p.notify != nil {
		p.notify.Conversation(p.tenantID, p.conversationID)
	}
}
