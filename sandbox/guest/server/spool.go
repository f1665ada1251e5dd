package server

import (
	"sync"
	"time"

	"managoat/sandbox/guest"
)

// Bounds of spools.
const (
	defaultLogSpool      = 1 << 20
	defaultProtocolSpool = 8 << 20
	maxSpool             = 64 << 20 // per stream, whatever the caller asks
	pieceSize            = 32 << 10 // one read of a pipe
	pieceMinCost         = 64       // what a piece weighs at least: a stream of single bytes must not cost 80 times its bound
)

// stdout and stderr index a spool's streams.
const (
	stdout = iota
	stderr
)

// spool holds the output of one command, in order of arrival over both streams.
type spool struct {
	mu      sync.Mutex
	kind    guest.SpoolKind
	bound   int64 // per stream
	streams [2]stream
	order   uint64 // of the next piece
	exit    *guest.Exit
	changed chan struct{} // closed and replaced when followers or writers may go on
}

// stream is one half of a spool. A log's head is filled once and its tail slides; a protocol has only a tail,
// which Ack shortens.
type stream struct {
	head, tail         []piece
	headCost, tailCost int64
	total              int64 // bytes printed so far
}

type piece struct {
	order uint64
	off   int64
	at    time.Time
	data  []byte
}

func (p piece) end() int64  { return p.off + int64(len(p.data)) }
func (p piece) cost() int64 { return int64(max(len(p.data), pieceMinCost)) }

func newSpool(kind guest.SpoolKind, bound int64) *spool {
	if kind == "" {
		kind = guest.SpoolLog
	}
	if bound <= 0 {
		bound = defaultLogSpool
		if kind == guest.SpoolProtocol {
			bound = defaultProtocolSpool
		}
	}
	return &spool{kind: kind, bound: min(bound, maxSpool), changed: make(chan struct{})}
}

func (s *spool) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// add appends a piece of output that the spool may keep. For a protocol it waits for room until quit is
// closed, and then drops nothing: what comes after a quit is over the bound by at most one piece.
func (s *spool) add(i int, data []byte, at time.Time, quit <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.streams[i]
	for s.kind == guest.SpoolProtocol && st.tailCost >= s.bound {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-quit:
			s.mu.Lock()
			s.push(i, data, at)
			return
		}
		s.mu.Lock()
	}
	s.push(i, data, at)
}

func (s *spool) push(i int, data []byte, at time.Time) {
	st := &s.streams[i]
	if s.kind == guest.SpoolLog {
		if room := int(s.bound/2 - st.headCost); len(st.tail) == 0 && room >= pieceMinCost {
			n := min(room, len(data))
			st.headCost += s.join(&st.head, piece{off: st.total, at: at, data: data[:n:n]})
			st.total += int64(n)
			data = data[n:]
		}
	}
	if len(data) > 0 {
		st.tailCost += s.join(&st.tail, piece{off: st.total, at: at, data: data})
		st.total += int64(len(data))
	}
	if s.kind == guest.SpoolLog {
		for over := st.tailCost - s.bound/2; over > 0; over = st.tailCost - s.bound/2 {
			st.tailCost -= st.dropFirst(over)
		}
	}
	s.broadcast()
}

// dropFirst drops the oldest piece of the tail, or its beginning when that is enough, and returns what it cost.
func (st *stream) dropFirst(over int64) int64 {
	first := &st.tail[0]
	cost := first.cost()
	if cost-over >= pieceMinCost {
		first.data = first.data[over:]
		first.off += over
		return over
	}
	st.tail[0] = piece{}
	st.tail = st.tail[1:]
	return cost
}

// join appends p to pieces, growing the last one when both are small and nothing came between, and returns
// what that costs.
func (s *spool) join(pieces *[]piece, p piece) int64 {
	if n := len(*pieces); n > 0 {
		last := &(*pieces)[n-1]
		if last.order+1 == s.order && last.end() == p.off && len(last.data)+len(p.data) <= pieceSize/8 && p.at.Sub(last.at) < time.Second {
			before := last.cost()
			// A new array: a follower may be sending the old one.
			last.data = append(last.data[:len(last.data):len(last.data)], p.data...)
			return last.cost() - before
		}
	}
	p.order = s.order
	s.order++
	*pieces = append(*pieces, p)
	return p.cost()
}

// end records the exit: nothing is printed after it.
func (s *spool) end(exit guest.Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit = &exit
	s.broadcast()
}

// ended returns the exit, nil while the command runs.
func (s *spool) ended() *guest.Exit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exit
}

// printed tells how many bytes each stream got.
func (s *spool) printed() (out, err int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[stdout].total, s.streams[stderr].total
}

// ack drops what a reader stored for good.
func (s *spool) ack(upTo [2]int64) {
	if s.kind != guest.SpoolProtocol {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.streams {
		st := &s.streams[i]
		for len(st.tail) > 0 && st.tail[0].end() <= upTo[i] {
			st.tailCost -= st.tail[0].cost()
			st.tail[0] = piece{}
			st.tail = st.tail[1:]
		}
	}
	s.broadcast()
}

// next returns the first piece after the positions at, cut to what was not read yet, and how many bytes are
// missing before it. Without one it returns the exit, when all was read, or a channel to wait on.
func (s *spool) next(at *[2]int64) (i int, p piece, dropped int64, exit *guest.Exit, wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for j := range s.streams {
		if q, ok := s.streams[j].after(at[j]); ok && (!found || q.order < p.order) {
			i, p, found = j, q, true
		}
	}
	if !found {
		return 0, piece{}, 0, s.exit, s.changed
	}
	if p.off < at[i] {
		p.data = p.data[at[i]-p.off:]
		p.off = at[i]
	}
	dropped = p.off - at[i]
	at[i] = p.end()
	return i, p, dropped, nil, nil
}

// after finds the first piece that reaches beyond off.
func (st *stream) after(off int64) (piece, bool) {
	for _, pieces := range [2][]piece{st.head, st.tail} {
		if len(pieces) == 0 || pieces[len(pieces)-1].end() <= off {
			continue
		}
		lo, hi := 0, len(pieces)-1
		for lo < hi {
			if mid := (lo + hi) / 2; pieces[mid].end() > off {
				hi = mid
			} else {
				lo = mid + 1
			}
		}
		return pieces[lo], true
	}
	return piece{}, false
}
