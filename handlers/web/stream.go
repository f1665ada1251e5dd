package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/views"
)

// Limits of the HTML streams.
const (
	frameTimeout = 30 * time.Second       // for one message to leave
	quick        = 50 * time.Millisecond  // at least between the first looks at a state that changes
	pace         = 250 * time.Millisecond // and between those at one that keeps changing
	maxStreams   = 12                     // open at once in one browser session
	buffered     = 256                    // items read ahead of a client
)

// streams counts what each browser session holds open: a page that leaks streams must not take the server along.
type streams struct {
	mu   sync.Mutex
	open map[caller]int
}

// caller is a browser session, or a key.
type caller struct {
	tenant, session uuid.UUID
	id              string
}

func (s *streams) take(a tenant.Actor) (leave func(), err error) {
	session := caller{a.TenantID, a.SessionID, a.ID}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[session] >= maxStreams {
		return nil, refusal.New(refusal.TooManyStreams, "This browser holds %d live pages open already. Close some; this page works without being live.", maxStreams).RetryAfter(frameTimeout)
	}
	s.open[session]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[session]--; s.open[session] == 0 {
			delete(s.open, session)
		}
	}, nil
}

// out writes one client's stream of fragments.
type out struct {
	ctx     context.Context
	w       http.ResponseWriter
	control *http.ResponseController
}

// errGone says that the client left: nobody is to be told.
var errGone = errors.New("the client is gone")

func start(c echo.Context) (*out, error) {
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, "text/event-stream; charset=utf-8")
	h.Set(echo.HeaderCacheControl, "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	c.Response().WriteHeader(http.StatusOK)
	o := &out{c.Request().Context(), c.Response(), http.NewResponseController(c.Response())}
	return o, o.send(views.Beat)
}

func (o *out) send(frame string) error {
	if err := o.control.SetWriteDeadline(time.Now().Add(frameTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errGone
	}
	if _, err := io.WriteString(o.w, frame); err != nil {
		return errGone
	}
	if err := o.control.Flush(); err != nil {
		return errGone
	}
	return nil
}

// say sends fragments under an id; nothing when there are none.
func (o *out) say(id string, f []views.Fragment) error {
	if len(f) == 0 {
		return nil
	}
	var message bytes.Buffer
	if err := views.WriteMessage(o.ctx, &message, id, f); err != nil {
		return err
	}
	return o.send(message.String())
}

// feed is a stream read ahead in a goroutine of its own, so that what came meanwhile can be shown at once.
type feed struct {
	items chan stream.Item
	err   error // valid once items is closed
}

// follow reads items until they or ctx end. The caller cancels ctx and then drains the feed.
func follow(ctx context.Context, items iter.Seq2[stream.Item, error]) *feed {
	f := &feed{items: make(chan stream.Item, buffered)}
	go func() {
		defer close(f.items)
		for item, err := range items {
			if err != nil {
				f.err = err
				return
			}
			select {
			case f.items <- item:
			case <-ctx.Done():
				return
			}
		}
	}()
	return f
}

// drain waits for the reader to end.
func (f *feed) drain() {
	for range f.items {
	}
}

// more takes what has come already, without waiting.
func (f *feed) more(items []stream.Item) []stream.Item {
	for len(items) < buffered {
		select {
		case item, ok := <-f.items:
			if !ok {
				return items
			}
			items = append(items, item)
		default:
			return items
		}
	}
	return items
}

// live keeps a page true that shows a state: it sends what look makes of it at once, and again after events of the
// account's stream that concern it, the first at once and then ever slower to once a pace; with always it looks again at
// every beat, for what changes without an event. Nothing is lost between page and stream, since every connection begins
// with the whole state.
func (w *Console) live(c echo.Context, concerns func(stream.AccountEvent) bool, always bool, look func(context.Context) ([]views.Fragment, error)) error {
	a := actor(c)
	leave, err := w.streams.take(a)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(c.Request().Context())
	events := follow(ctx, w.Reader.FollowAccount(ctx, a.TenantID, stream.FromNow, true))
	defer events.drain()
	defer cancel()
	// The stream must stand before the state is read: what changes in between is told twice, never missed.
	if first, ok := <-events.items; !ok || first.Kind != stream.Open {
		return orGone(ctx, events.err)
	}
	now, err := look(ctx)
	if err != nil {
		return err
	}
	o, err := start(c)
	if err != nil {
		return nil
	}
	if o.say("", now) != nil {
		return nil
	}
	beat := time.NewTicker(views.BeatEvery)
	defer beat.Stop()
	var due <-chan time.Time
	looked, gap := time.Now(), quick
	for {
		select {
		case item, ok := <-events.items:
			if !ok {
				return nil // the page connects again
			}
			if item.Kind == stream.Row && concerns(item.Account) && due == nil {
				wait := time.Until(looked.Add(gap))
				if gap = min(2*gap, pace); wait <= 0 {
					gap = quick
				}
				due = time.After(wait)
			}
		case <-due:
			due, looked = nil, time.Now()
			now, err := look(ctx)
			if err != nil || o.say("", now) != nil {
				return nil
			}
		case <-beat.C:
			if o.send(views.Beat) != nil {
				return nil
			}
			if always && due == nil {
				due = time.After(0)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// orGone is why a stream could not begin.
func orGone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
