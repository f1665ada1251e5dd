// Package stream follows transcripts and the account's own stream: replay first, then live, through one query and one
// filter. Followers of one stream share one read of what is new; one that falls behind reads from PostgreSQL at its own
// pace and delays nobody.
package stream

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/db"
)

// Times and sizes of streams.
const (
	channel      = "managoat_streams"
	notifyPause  = 5 * time.Millisecond  // what changes in it is told to other servers together
	maxPayload   = 7900                  // bytes of a notification; PostgreSQL takes 7,999
	maxPair      = 2*36 + 2              // bytes of a stream's name in one
	firstPause   = 50 * time.Millisecond // before what failed is tried again; then twice that …
	mostPause    = 2 * time.Second       // … up to this
	pageRows     = 500                   // rows of one read
	pageBytes    = 1 << 20               // of their bodies and lines, about; one row at least
	recentBytes  = 256 << 10             // of rows that a followed stream keeps for those who are a little behind
	lookInterval = 15 * time.Second      // between looks at a followed stream that nobody told of

	// maxFollowers of one account at once, in one server process. A follower costs a connection and about 40 KiB, and lives
	// as long as its client likes: without a bound one account takes every descriptor of the server.
	maxFollowers = 2000
)

// Hub wakes followers: those of this process directly, those of others through one NOTIFY channel with ids only.
type Hub struct {
	db  *db.DB
	log *slog.Logger
	id  string // this process, so that it does not hear itself

	mu     sync.Mutex
	rooms  map[topic]*room
	of     map[uuid.UUID]int // followers, by account
	closed chan struct{}     // followers leave: their clients connect to another server, or to the next one here
	wg     sync.WaitGroup

	heartbeat, look time.Duration // Heartbeat and lookInterval, but for tests

	changed   map[topic]bool // to tell others; under changedMu
	changedMu sync.Mutex
	kick      chan struct{}
}

// topic is a conversation's transcript, or an account's own stream (the conversation is then uuid.Nil).
type topic struct{ tenantID, conversationID uuid.UUID }

// NewHub makes a hub. Run must run for other processes to hear and be heard.
func NewHub(d *db.DB, log *slog.Logger) *Hub {
	return &Hub{db: d, log: log, id: uuid.NewString(), rooms: map[topic]*room{}, of: map[uuid.UUID]int{}, closed: make(chan struct{}),
		heartbeat: Heartbeat, look: lookInterval, changed: map[topic]bool{}, kick: make(chan struct{}, 1)}
}

// Conversation says that a conversation has new committed rows, or has ended.
func (h *Hub) Conversation(tenantID, conversationID uuid.UUID) {
	h.told(topic{tenantID, conversationID})
}

// Account says that an account's stream has new committed rows.
func (h *Hub) Account(tenantID uuid.UUID) { h.told(topic{tenantID, uuid.Nil}) }

func (h *Hub) told(t topic) {
	h.wake(t)
	h.changedMu.Lock()
	h.changed[t] = true
	h.changedMu.Unlock()
	signal(h.kick)
}

func (h *Hub) wake(t topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.rooms[t]; r != nil {
		signal(r.dirty)
	}
}

// wakeAll makes every followed stream look again: whatever was told while nobody listened is found.
func (h *Hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.rooms {
		signal(r.dirty)
	}
}

// signal leaves a note in a channel of one place.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one lies there already
	}
}

// Run tells other processes and hears them until ctx ends. Then every stream of this process ends, so that a server that
// stops does not wait for its clients.
func (h *Hub) Run(ctx context.Context) error {
	h.wg.Go(func() { h.tell(ctx) })
	h.wg.Go(func() { h.hear(ctx) })
	<-ctx.Done()
	h.mu.Lock()
	close(h.closed)
	h.mu.Unlock()
	h.wg.Wait()
	return nil
}

func (h *Hub) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.kick:
		}
		pause(ctx, notifyPause)
		for _, payload := range h.payloads() {
			call, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostPause)
			err := h.db.Notify(call, channel, payload)
			cancel()
			if err != nil {
				// Followers elsewhere find the rows at their next look.
				h.log.Warn("other servers were not told of new events", "error", err)
			}
		}
	}
}

// pause waits, or not when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// payloads are "origin tenant/conversation tenant/conversation …", as many as fit in one each.
func (h *Hub) payloads() (all []string) {
	h.changedMu.Lock()
	changed := h.changed
	h.changed = map[topic]bool{}
	h.changedMu.Unlock()
	var b strings.Builder
	for t := range changed {
		if b.Len()+maxPair > maxPayload {
			all = append(all, b.String())
			b.Reset()
		}
		if b.Len() == 0 {
			b.WriteString(h.id)
		}
		b.WriteString(" " + t.tenantID.String() + "/" + t.conversationID.String())
	}
	if b.Len() > 0 {
		all = append(all, b.String())
	}
	return all
}

// hear listens, and listens again when its connection is lost.
func (h *Hub) hear(ctx context.Context) {
	for wait := firstPause; ctx.Err() == nil; wait = min(2*wait, mostPause) {
		err := h.db.Listen(ctx, channel, func() {
			wait = firstPause
			h.wakeAll()
		}, h.heard)
		if ctx.Err() != nil {
			return
		}
		h.log.Warn("the connection that hears other servers was lost", "error", err, "again_in", wait)
		pause(ctx, wait)
	}
}

func (h *Hub) heard(payload string) {
	origin, rest, _ := strings.Cut(payload, " ")
	if origin == h.id {
		return
	}
	for pair := range strings.FieldsSeq(rest) {
		a, b, _ := strings.Cut(pair, "/")
		tenantID, err1 := uuid.Parse(a)
		conversationID, err2 := uuid.Parse(b)
		if err1 == nil && err2 == nil {
			h.wake(topic{tenantID, conversationID})
		}
	}
}
