package transcript

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"
)

// backlog is what waits to be written to one conversation, in order. A producer that is too far ahead of PostgreSQL
// waits for room here, and nobody else does.
type backlog struct {
	tenantID, id uuid.UUID
	shard        *shard
	room         *semaphore.Weighted // bytes

	mu      sync.Mutex
	entries []*entry
	taken   int // the first of them, which the writer has in hand
	state   state
	timer   *time.Timer
	pause   time.Duration          // before it is tried again; 0: nothing is in its way
	next    map[chunkKey]time.Time // when the next chunk of a text may go out
	err     error                  // of a queued row, until somebody asks
	used    time.Time
}

// state says who looks after a backlog next.
type state int

const (
	idle    state = iota // whoever adds to it
	waiting              // its timer
	ready                // its writer
)

// entry is rows that are written together or not at all. One without rows marks a place.
type entry struct {
	rows    []Row
	columns *columns // of the rows, once encoded
	room    int64    // what it holds of the backlog's
	due     time.Time
	done    func(lastSeq int64, err error) // nil: an error is the backlog's
}

// add puts an entry behind what waits; all before it may go out with it.
func (b *backlog) add(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.due = time.Now()
	b.shard.w.open.Add(1)
	b.entries = append(b.entries, e)
	b.rush()
	b.schedule()
}

// addChunk joins a chunk to what waits of its text, or puts it behind: the first of a text at once, a later one so that
// there is a pause between the two.
func (b *backlog) addChunk(r Row, key chunkKey, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	// A tool's stdout and stderr come side by side: there a chunk may pass one of the other stream.
	for i := len(b.entries) - 1; i >= b.taken; i-- {
		e := b.entries[i]
		if len(e.rows) != 1 || e.columns != nil {
			break
		}
		if both, ok := join(e.rows[0], r); ok && e.room < chunkBytes {
			e.rows[0], e.room = both, e.room+size
			if e.room >= chunkBytes {
				e.due = now
				b.rush()
				b.schedule()
			}
			return
		}
		if r.Type != ToolOutput || e.rows[0].Type != ToolOutput {
			break
		}
	}
	e := &entry{rows: []Row{r}, room: size, due: b.next[key]}
	if e.due.Before(now) || size >= chunkBytes {
		e.due = now
	}
	if len(b.next) >= maxTexts {
		clear(b.next)
	}
	b.next[key] = e.due.Add(chunkPause)
	b.shard.w.open.Add(1)
	b.entries = append(b.entries, e)
	b.rush()
	b.schedule()
}

// rush lets everything out that stands before something that may go out. The backlog is locked.
func (b *backlog) rush() {
	var first time.Time
	for i := len(b.entries) - 1; i >= b.taken; i-- {
		if e := b.entries[i]; first.IsZero() || e.due.Before(first) {
			first = e.due
		} else {
			e.due = first
		}
	}
}

// schedule sees to it that somebody looks at the backlog when its first entry is due. The backlog is locked.
func (b *backlog) schedule() {
	if b.state == ready || len(b.entries) == 0 {
		return
	}
	wait := max(time.Until(b.entries[0].due), b.pause)
	if wait <= 0 {
		if b.state == waiting {
			b.timer.Stop()
		}
		b.state = ready
		b.shard.push(b)
		return
	}
	if b.state == waiting && b.pause > 0 {
		return // a pause is not made longer by what comes meanwhile
	}
	b.state = waiting
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, b.wake)
	} else {
		b.timer.Reset(wait)
	}
}

func (b *backlog) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == waiting {
		b.state = ready
		b.shard.push(b)
	}
}

// take hands out the entries that are due, at most so many bytes but at least one, and says how long they were left alone.
func (b *backlog) take(now time.Time, bytes int64) (entries []*entry, pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.taken = 0; b.taken < len(b.entries); b.taken++ {
		e := b.entries[b.taken]
		if e.due.After(now) || b.taken > 0 && bytes < e.room {
			break
		}
		bytes -= e.room
	}
	return slices.Clone(b.entries[:b.taken]), b.pause
}

// put takes back what the writer had in hand and did not settle. pause is how long to leave the backlog alone.
func (b *backlog) put(left []*entry, pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	behind := b.entries[b.taken:]
	b.entries = nil // what is empty takes no memory
	if len(left)+len(behind) > 0 {
		b.entries = slices.Concat(left, behind)
	}
	b.taken, b.state, b.pause, b.used = 0, idle, pause, time.Now()
	b.schedule()
}

// settle ends an entry, written or refused.
func (b *backlog) settle(e *entry, lastSeq int64, err error) {
	b.room.Release(e.room)
	defer b.shard.w.settled()
	if e.done != nil {
		e.done(lastSeq, err)
		return
	}
	if err != nil {
		b.mu.Lock()
		if b.err == nil {
			b.err = err
		}
		b.mu.Unlock()
	}
}

// enter waits until the backlog has room for so many bytes, and returns how many it gave.
func (b *backlog) enter(ctx context.Context, size int) (int64, error) {
	n := min(int64(size), backlogBytes)
	if b.room.TryAcquire(n) {
		return n, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.shard.w.ctx, cancel)()
	if err := b.room.Acquire(ctx, n); err != nil {
		if b.shard.w.ctx.Err() != nil {
			err = ErrClosed
		}
		return 0, err
	}
	return n, nil
}

// trouble returns what went wrong with a queued row.
func (b *backlog) trouble(forget bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.err
	if forget {
		b.err = nil
	}
	return err
}

// unused tells whether nothing is left of it that anybody needs.
func (b *backlog) unused(since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == idle && len(b.entries) == 0 && b.err == nil && b.used.Before(since)
}
