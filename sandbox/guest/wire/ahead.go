package wire

import (
	"os"
	"sync"
	"time"
)

// aheadSize is how much of a connection is read before somebody asks for it.
const aheadSize = 64 << 10

// ahead is a bounded queue of bytes between one writer and one reader that has deadlines.
type ahead struct {
	mu       sync.Mutex
	cond     sync.Cond
	ring     []byte
	at, n    int // the first byte and how many there are; only Read moves at, and never past what is there
	err      error
	closed   bool // nobody reads any more
	deadline time.Time
	timer    *time.Timer
}

func newAhead() *ahead {
	a := &ahead{}
	a.cond.L = &a.mu
	return a
}

// space waits for room and returns the part of the ring to fill next; nil when nobody reads any more.
func (a *ahead) space() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ring == nil {
		a.ring = make([]byte, aheadSize)
	}
	for a.n == len(a.ring) && !a.closed {
		a.cond.Wait()
	}
	if a.closed {
		return nil
	}
	end := (a.at + a.n) % len(a.ring)
	if end < a.at {
		return a.ring[end:a.at]
	}
	return a.ring[end:]
}

// filled adds what was put into the space.
func (a *ahead) filled(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n += n
	a.cond.Broadcast()
}

// end says why nothing more comes.
func (a *ahead) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	a.cond.Broadcast()
}

func (a *ahead) Read(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.n == 0 && a.err == nil && !a.closed && !a.late() {
		a.cond.Wait()
	}
	switch {
	case a.closed:
		return 0, os.ErrClosed
	case a.late():
		return 0, os.ErrDeadlineExceeded
	case a.n == 0:
		return 0, a.err
	}
	n := copy(b, a.ring[a.at:min(a.at+a.n, len(a.ring))])
	a.at = (a.at + n) % len(a.ring)
	a.n -= n
	a.cond.Broadcast()
	return n, nil
}

func (a *ahead) late() bool { return !a.deadline.IsZero() && !time.Now().Before(a.deadline) }

func (a *ahead) setDeadline(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	a.deadline = t
	if !t.IsZero() {
		a.timer = time.AfterFunc(time.Until(t), func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.cond.Broadcast()
		})
	}
	a.cond.Broadcast()
}

func (a *ahead) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cond.Broadcast()
}
