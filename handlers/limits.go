package handlers

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/internal/identity"
	"managoat/internal/refusal"
)

// Requests a minute, in fixed windows, per server process.
const (
	perKey     = 600  // of one key
	perAddress = 6000 // of one client address
	maxTracked = 100_000
)

// limits counts requests by key and by address. A process's own count is enough to stop a runaway client; what must
// hold across servers (prompts, machines) is a quota in the database.
type limits struct {
	mu     sync.Mutex
	window time.Time
	counts map[[32]byte]int
	now    func() time.Time
}

func newLimits() *limits { return &limits{counts: map[[32]byte]int{}, now: time.Now} }

// take counts one request and tells how long to wait when there were too many.
func (l *limits) take(what string, limit int) (wait time.Duration) {
	id := sha256.Sum256([]byte(what)) // keys are not kept in memory as they are
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if window := now.Truncate(time.Minute); window != l.window || len(l.counts) > maxTracked {
		l.window = window
		clear(l.counts)
	}
	l.counts[id]++
	if l.counts[id] > limit {
		return l.window.Add(time.Minute).Sub(now)
	}
	return 0
}

func (l *limits) middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		wait := l.take("address "+identity.Network(c.RealIP()), perAddress)
		if key, ok := bearer(c.Request()); ok && isAPI(c) {
			wait = max(wait, l.take("key "+key, perKey)) // the key, not the header: one key can be written in many ways
		}
		if wait > 0 {
			return refusal.New(refusal.RateLimited, "Too many requests this minute: at most %d from one key and %d from one address.", perKey, perAddress).RetryAfter(wait)
		}
		return next(c)
	}
}
