// Package stream follows transcripts and the account's own stream: replay first, then live, through one query and one
// filter. Followers read from PostgreSQL at their own pace; a slow one delays nobody.
package stream

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/db"
)

// Times and sizes of the hub.
const (
	channel      = "managoat_streams"
	notifyPause  = 5 * time.Millisecond // notifications of one pause travel together
	maxPayload   = 7900                 // bytes; PostgreSQL takes 7,999
	listenPause  = time.Second          // before the lost LISTEN connection is made again
	pageSize     = 500                  // rows of one read
	followerRoom = 16                   // batches a follower may be behind before it reads for itself
)

// Hub wakes followers: those of this process directly, those of others through one NOTIFY channel with ids only.
type Hub struct {
	db  *db.DB
	log *slog.Logger
	id  string // this process, so that it does not hear itself

	mu    sync.Mutex
	rooms map[topic]*room

	notifyMu sync.Mutex
	changed  map[topic]bool
	kick     chan struct{}
}

// topic is a conversation's transcript, or an account's own stream (the conversation is then uuid.Nil).
type topic struct{ tenantID, conversationID uuid.UUID }

// NewHub makes a hub; Run must run for other processes to hear and be heard.
func NewHub(d *db.DB, log *slog.Logger) *Hub {
	return &Hub{db: d, log: log, id: uuid.NewString(), rooms: map[topic]*room{}, changed: map[topic]bool{}, kick: make(chan struct{}, 1)}
}

// Conversation says that a conversation has new committed rows.
func (h *Hub) Conversation(tenantID, conversationID uuid.UUID) {
	h.wake(topic{tenantID, conversationID}, true)
}

// Account says that an account's stream has new committed rows.
func (h *Hub) Account(tenantID uuid.UUID) { h.wake(topic{tenantID, uuid.Nil}, true) }

func (h *Hub) wake(t topic, tell bool) {
	h.mu.Lock()
	r := h.rooms[t]
	h.mu.Unlock()
	if r != nil {
		select {
		case r.dirty <- struct{}{}:
		default: // it will look anyway
		}
	}
	if tell {
		h.notifyMu.Lock()
		h.changed[t] = true
		h.notifyMu.Unlock()
		select {
		case h.kick <- struct{}{}:
		default:
		}
	}
}

// Run tells other processes and hears them until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { h.tell(ctx) })
	wg.Go(func() { h.hear(ctx) })
	wg.Wait()
	return nil
}

func (h *Hub) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.kick:
		}
		pause := time.NewTimer(notifyPause)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
		for _, payload := range h.payloads() {
			if err := h.db.Notify(context.WithoutCancel(ctx), channel, payload); err != nil {
				// Followers elsewhere look again at their next heartbeat.
				h.log.Warn("other servers were not told of new events", "err", err)
			}
		}
	}
}

// payloads are "origin tenant/conversation tenant/conversation …", as many as fit in one each.
func (h *Hub) payloads() []string {
	h.notifyMu.Lock()
	changed := h.changed
	h.changed = map[topic]bool{}
	h.notifyMu.Unlock()
	var all []string
	var b strings.Builder
	for t := range changed {
		if b.Len() == 0 {
			b.WriteString(h.id)
		}
		b.WriteString(" " + t.tenantID.String() + "/" + t.conversationID.String())
		if b.Len() > maxPayload-80 {
			all = append(all, b.String())
			b.Reset()
		}
	}
	if b.Len() > 0 {
		all = append(all, b.String())
	}
	return all
}

func (h *Hub) hear(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.db.Listen(ctx, channel, h.wakeAll, h.heard)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			h.log.Warn("the connection that hears other servers was lost", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenPause):
		}
	}
}

func (h *Hub) heard(payload string) {
	origin, rest, _ := strings.Cut(payload, " ")
	if origin == h.id {
		return
	}
	for _, pair := range strings.Fields(rest) {
		a, b, _ := strings.Cut(pair, "/")
		tenantID, err1 := uuid.Parse(a)
		conversationID, err2 := uuid.Parse(b)
		if err1 == nil && err2 == nil {
			h.wake(topic{tenantID, conversationID}, false)
		}
	}
}

// wakeAll makes every followed topic look again: whatever was told while nobody listened is found.
func (h *Hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.rooms {
		select {
		case r.dirty <- struct{}{}:
		default:
		}
	}
}

// room is the followers of one topic. One goroutine reads what is new once for all of them.
type room struct {
	dirty chan struct{}
	stop  context.CancelFunc

	mu        sync.Mutex
	followers map[*follower]bool
	seq       int64 // everything up to here was handed out
}

// row is what rooms hand out: a transcript's or an account's.
type row interface{ number() int64 }

// follower is one reader. Batches come while it keeps up; when it does not, late is set and it reads for itself.
type follower struct {
	batches chan []row
	late    chan struct{}
}

// read gives the rows after a number, at most pageSize of them.
type read func(ctx context.Context, after int64) ([]row, error)

// join adds a follower to a topic's room, which is made with the first. from is where its live part begins.
func (h *Hub) join(t topic, head int64, rd read) (*follower, func()) {
	f := &follower{batches: make(chan []row, followerRoom), late: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.rooms[t]
	if r == nil {
		ctx, stop := context.WithCancel(context.Background())
		r = &room{dirty: make(chan struct{}, 1), stop: stop, followers: map[*follower]bool{}, seq: head}
		h.rooms[t] = r
		go r.run(ctx, h.log, rd)
	}
	r.mu.Lock()
	r.followers[f] = true
	r.mu.Unlock()
	return f, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		r.mu.Lock()
		delete(r.followers, f)
		empty := len(r.followers) == 0
		r.mu.Unlock()
		if empty && h.rooms[t] == r {
			delete(h.rooms, t)
			r.stop()
		}
	}
}

func (r *room) run(ctx context.Context, log *slog.Logger, rd read) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.dirty:
		}
		for {
			rows, err := rd(ctx, r.seq)
			if err != nil {
				if ctx.Err() == nil {
					log.Warn("new events could not be read", "err", err)
					r.each(func(f *follower) { f.behind() })
				}
				break
			}
			if len(rows) == 0 {
				break
			}
			r.seq = rows[len(rows)-1].number()
			r.each(func(f *follower) {
				select {
				case f.batches <- rows:
				default:
					f.behind()
				}
			})
			if len(rows) < pageSize {
				break
			}
		}
	}
}

func (r *room) each(fn func(*follower)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.followers {
		fn(f)
	}
}

func (f *follower) behind() {
	select {
	case f.late <- struct{}{}:
	default:
	}
}
