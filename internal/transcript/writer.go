package transcript

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"managoat/db"
)

// Sizes and times of the writers.
const (
	writers      = 4
	batchBytes   = 4 << 20                // of the rows of one transaction
	backlogBytes = 1 << 20                // that wait for one conversation; then its producers wait
	rowOverhead  = 256                    // bytes that a row takes besides its text
	chunkPause   = 25 * time.Millisecond  // between two rows of one text
	chunkBytes   = 8 << 10                // after which a row of a text does not wait for more
	maxTexts     = 256                    // texts of one conversation whose pace is remembered
	firstPause   = 2 * time.Millisecond   // before a conversation that was locked is tried again; then twice that …
	lockPause    = 250 * time.Millisecond // … up to this when it is locked,
	awayPause    = 2 * time.Second        // and to this when PostgreSQL is away
	lockPatience = "50ms"                 // for locks of what rows write beside themselves
	writeTimeout = 30 * time.Second       // for one transaction, whatever happens
	keepIdle     = time.Minute            // what is remembered of a conversation that is not written to
)

// ErrClosed is returned for rows that come after Close.
var ErrClosed = errors.New("the transcript's writer is closed")

// Notifier is told which conversations have new rows, after their commit.
type Notifier interface {
	Conversation(tenantID, conversationID uuid.UUID)
}

// Writer appends rows to transcripts. Rows of one conversation keep their order. A conversation whose counter is locked is
// left out until it is free, and a row that PostgreSQL refuses is refused alone: neither holds up anybody else. While
// PostgreSQL is away rows wait, up to a bound for each conversation. Safe for concurrent use.
type Writer struct {
	db     *db.DB
	notify Notifier
	log    *slog.Logger
	shards [writers]*shard

	ctx    context.Context // ends with Close, at the latest
	stop   context.CancelFunc
	closed chan struct{} // no more rows are taken
	wg     sync.WaitGroup

	open  atomic.Int64  // entries that are neither written nor refused
	empty chan struct{} // there are none, after Close

	mu       sync.Mutex
	backlogs map[transcriptRef]*backlog
	sweep    time.Time
}

// transcriptRef names a conversation of an account. Both count: a row for another account's conversation finds none.
type transcriptRef struct{ tenantID, conversationID uuid.UUID }

// NewWriter starts the writers. Close ends them.
func NewWriter(d *db.DB, notify Notifier, log *slog.Logger) *Writer {
	w := &Writer{db: d, notify: notify, log: log, closed: make(chan struct{}), empty: make(chan struct{}, 1), backlogs: map[transcriptRef]*backlog{}, sweep: time.Now()}
	w.ctx, w.stop = context.WithCancel(context.Background())
	for i := range w.shards {
		w.shards[i] = &shard{w: w, kick: make(chan struct{}, 1)}
		w.wg.Go(w.shards[i].run)
	}
	return w
}

// Append appends rows, all or none, and returns when they are committed, with the number of the last. Chunks that were
// queued before are written before. When ctx ends first the rows are written all the same.
func (w *Writer) Append(ctx context.Context, tenantID, conversationID uuid.UUID, rows ...Row) (lastSeq int64, err error) {
	c, err := encode(conversationID, rows)
	if err != nil {
		return 0, err
	}
	return w.await(ctx, tenantID, conversationID, &entry{rows: rows, columns: &c}, c.size())
}

// Queue appends a row and does not wait for its commit: a chunk of a message, a thought or a tool's output goes out at
// once when it is the first of its text, and later ones are joined for a moment; any other row goes out at once. It waits
// only when the conversation's rows are far behind. What went wrong with a row is told by the next Queue or Sync.
func (w *Writer) Queue(ctx context.Context, tenantID, conversationID uuid.UUID, row Row) error {
	b, err := w.backlog(tenantID, conversationID)
	if err != nil {
		return err
	}
	if err := b.trouble(false); err != nil {
		return err
	}
	key, text, ok := chunk(row)
	if !ok {
		c, err := encode(conversationID, []Row{row})
		if err != nil {
			return err
		}
		room, err := b.enter(ctx, c.size())
		if err == nil {
			b.add(&entry{rows: []Row{row}, columns: &c, room: room})
		}
		return err
	}
	room, err := b.enter(ctx, len(text)+len(row.Raw)+rowOverhead)
	if err == nil {
		b.addChunk(row, key, room)
	}
	return err
}

// Sync waits until every row that was queued for the conversation is committed or refused, and returns what went wrong
// with one.
func (w *Writer) Sync(ctx context.Context, tenantID, conversationID uuid.UUID) error {
	w.mu.Lock()
	b := w.backlogs[transcriptRef{tenantID, conversationID}]
	w.mu.Unlock()
	if b == nil {
		return nil
	}
	if _, err := w.await(ctx, tenantID, conversationID, &entry{}, 0); err != nil {
		return err
	}
	return b.trouble(true)
}

// await adds an entry and waits until it is settled.
func (w *Writer) await(ctx context.Context, tenantID, conversationID uuid.UUID, e *entry, size int) (int64, error) {
	b, err := w.backlog(tenantID, conversationID)
	if err != nil {
		return 0, err
	}
	type result struct {
		seq int64
		err error
	}
	settled := make(chan result, 1)
	e.done = func(seq int64, err error) { settled <- result{seq, err} }
	if e.room, err = b.enter(ctx, size); err != nil {
		return 0, err
	}
	b.add(e)
	select {
	case r := <-settled:
		return r.seq, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-w.ctx.Done():
		select {
		case r := <-settled:
			return r.seq, r.err
		default:
			return 0, ErrClosed
		}
	}
}

// Forget drops what is remembered of a conversation that has ended.
func (w *Writer) Forget(conversationID uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref, b := range w.backlogs {
		if ref.conversationID == conversationID && b.unused(time.Now()) {
			delete(w.backlogs, ref)
		}
	}
}

// Close writes what waits and ends the writers. When ctx ends first what still waits is lost, and that is the error.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	select {
	case <-w.closed:
	default:
		close(w.closed)
	}
	w.mu.Unlock()
	var err error
	for w.open.Load() > 0 && err == nil {
		select {
		case <-w.empty:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	w.stop()
	w.wg.Wait()
	return err
}

// settled counts an entry out.
func (w *Writer) settled() {
	if w.open.Add(-1) > 0 {
		return
	}
	select {
	case w.empty <- struct{}{}:
	default:
	}
}

func (w *Writer) backlog(tenantID, conversationID uuid.UUID) (*backlog, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
		return nil, ErrClosed
	default:
	}
	now := time.Now()
	if now.Sub(w.sweep) > keepIdle {
		w.sweep = now
		for ref, b := range w.backlogs {
			if b.unused(now.Add(-keepIdle)) {
				delete(w.backlogs, ref)
			}
		}
	}
	ref := transcriptRef{tenantID, conversationID}
	b := w.backlogs[ref]
	if b == nil {
		h := fnv.New32a()
		h.Write(conversationID[:])
		b = &backlog{tenantID: tenantID, id: conversationID, shard: w.shards[h.Sum32()%writers],
			room: semaphore.NewWeighted(backlogBytes), next: map[chunkKey]time.Time{}}
		w.backlogs[ref] = b
	}
	b.mu.Lock()
	b.used = now
	b.mu.Unlock()
	return b, nil
}
