package stream

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"managoat/internal/refusal"
)

// row is what streams are made of: a transcript's or an account's.
type row interface {
	number() int64
	size() int
	closing() bool // the stream may end with it
}

// source reads one stream.
type source interface {
	// after reads the rows behind a number, at most a page. more: there may be others behind them.
	after(ctx context.Context, number int64) (rows []row, more bool, err error)
	// head reads the number of the last row, and whether no other will come.
	head(ctx context.Context) (number int64, ended bool, err error)
}

// room is where the followers of one stream meet. One goroutine reads what is new, once for all of them, and keeps the
// newest rows for those who are a little behind.
type room struct {
	source source
	log    *slog.Logger
	dirty  chan struct{} // something is new
	stop   context.CancelFunc

	mu        sync.Mutex
	followers int // under the hub's lock
	recent    []row
	bytes     int           // of recent
	from      int64         // recent has every row behind this number
	upto      int64         // up to this one
	ended     bool          // and no other will come
	changed   chan struct{} // closed when something of this changes
}

// join enters the room of a stream, which is made with its first follower: head and ended are what that one read. It
// refuses an account that follows as much as it may.
func (h *Hub) join(t topic, src source, head int64, ended bool) (r *room, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of[t.tenantID] >= maxFollowers {
		return nil, nil, refusal.New(refusal.TooManyStreams, "This account follows %d streams already. Close some and try again.", maxFollowers).RetryAfter(mostPause)
	}
	h.of[t.tenantID]++
	r = h.rooms[t]
	if r == nil {
		ctx, stop := context.WithCancel(context.Background())
		r = &room{source: src, log: h.log, dirty: make(chan struct{}, 1), stop: stop, from: head, upto: head, ended: ended, changed: make(chan struct{})}
		signal(r.dirty) // whatever was committed before the room was there to be told
		h.rooms[t] = r
		select {
		case <-h.closed: // its followers leave at once
		default:
			h.wg.Go(func() { r.run(ctx, h.look, h.closed) })
		}
	}
	r.followers++
	return r, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if r.followers--; r.followers == 0 {
			delete(h.rooms, t)
			r.stop()
		}
		if h.of[t.tenantID]--; h.of[t.tenantID] == 0 {
			delete(h.of, t.tenantID)
		}
	}, nil
}

func (r *room) run(ctx context.Context, every time.Duration, closed <-chan struct{}) {
	look := time.NewTicker(every)
	defer look.Stop()
	wait := firstPause
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-closed:
			return
		case <-r.dirty:
			err = r.read(ctx)
		case <-look.C:
			err = r.look(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.log.Warn("new events could not be read", "error", err, "again_in", wait)
			pause(ctx, wait)
			wait = min(2*wait, mostPause)
			signal(r.dirty)
		default:
			wait = firstPause
		}
	}
}

// read takes in what is new.
func (r *room) read(ctx context.Context) error {
	last := true
	for more := true; more; {
		rows, again, err := r.source.after(ctx, r.upto) // upto is changed here only
		if err != nil {
			return err
		}
		r.take(rows)
		more = again
		if len(rows) > 0 {
			last = rows[len(rows)-1].closing()
		}
	}
	if !last {
		return nil
	}
	_, ended, err := r.source.head(ctx)
	if err == nil && ended {
		r.end()
	}
	return err
}

// look finds what nobody told, and lets go of rows that everybody had time to take.
func (r *room) look(ctx context.Context) error {
	head, ended, err := r.source.head(ctx)
	if err != nil {
		return err
	}
	if head > r.upto || ended && !r.ended {
		return r.read(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent, r.bytes, r.from = nil, 0, r.upto
	return nil
}

func (r *room) take(rows []row) {
	if len(rows) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent = append(r.recent, rows...)
	for _, rw := range rows {
		r.bytes += rw.size()
	}
	drop := 0
	for ; r.bytes > recentBytes && drop < len(r.recent)-1; drop++ {
		r.bytes -= r.recent[drop].size()
		r.from = r.recent[drop].number()
	}
	if drop > 0 {
		r.recent = append([]row(nil), r.recent[drop:]...) // the old ones' memory goes
	}
	r.upto = rows[len(rows)-1].number()
	r.tell()
}

func (r *room) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.tell()
}

func (r *room) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// since gives the rows behind a number, or from when they are too old to be kept here. changed is closed when there is
// more to say.
func (r *room) since(number int64) (rows []row, from int64, ended bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.recent)
	for i > 0 && r.recent[i-1].number() > number {
		i--
	}
	return r.recent[i:len(r.recent):len(r.recent)], r.from, r.ended, r.changed
}
