package server

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"managoat/sandbox/guest"
)

// collect follows a spool from the given positions to its exit.
func collect(s *spool, at [2]int64) (got [2][]byte, dropped [2]int64, order []int, exit *guest.Exit) {
	for {
		i, p, gap, ended, wait := s.next(&at)
		switch {
		case len(p.data) > 0:
			got[i] = append(got[i], p.data...)
			dropped[i] += gap
			order = append(order, i)
		case ended != nil:
			return got, dropped, order, ended
		default:
			<-wait
		}
	}
}

func TestWhatFitsIsKeptWholeAndReadFromAnyOffset(t *testing.T) {
	t.Parallel()
	for _, kind := range []guest.SpoolKind{guest.SpoolLog, guest.SpoolProtocol} {
		r := rand.New(rand.NewPCG(1, 2))
		s := newSpool(kind, 1<<20)
		var want [2][]byte
		for range 3000 {
			i := r.IntN(2)
			data := make([]byte, 1+r.IntN(100))
			for j := range data {
				data[j] = byte(r.Uint32())
			}
			want[i] = append(want[i], data...)
			s.add(i, data, time.Now(), nil)
		}
		s.end(guest.Exit{Code: 3})
		for range 50 {
			from := [2]int64{r.Int64N(int64(len(want[0]) + 1)), r.Int64N(int64(len(want[1]) + 1))}
			got, dropped, _, exit := collect(s, from)
			for i := range want {
				if !bytes.Equal(got[i], want[i][from[i]:]) || dropped[i] != 0 {
					t.Fatalf("%s: from %d: %d bytes, want %d", kind, from[i], len(got[i]), len(want[i])-int(from[i]))
				}
			}
			if exit.Code != 3 {
				t.Fatalf("exit %+v", exit)
			}
		}
	}
}

func TestALogKeepsItsTwoEndsWithinItsBoundWhateverItsPieces(t *testing.T) {
	t.Parallel()
	const bound = 10_000
	for _, size := range []int{1, 7, 64, 1000, 9999, 32 << 10} {
		s := newSpool(guest.SpoolLog, bound)
		var want []byte
		for len(want) < 300_000 {
			data := make([]byte, size)
			for j := range data {
				data[j] = byte(len(want) + j*7)
			}
			want = append(want, data...)
			s.add(stdout, data, time.Now(), nil)
		}
		s.end(guest.Exit{})
		got, dropped, _, _ := collect(s, [2]int64{})
		kept := got[stdout]
		if len(kept) > bound || len(kept) < bound/4 {
			t.Errorf("pieces of %d: %d bytes kept", size, len(kept))
		}
		if int64(len(kept))+dropped[stdout] != int64(len(want)) {
			t.Errorf("pieces of %d: %d kept and %d dropped of %d", size, len(kept), dropped[stdout], len(want))
		}
		head := len(kept) / 3
		if !bytes.Equal(kept[:head], want[:head]) || !bytes.Equal(kept[len(kept)-head:], want[len(want)-head:]) {
			t.Errorf("pieces of %d: the ends are not those that were printed", size)
		}
		if cost := s.streams[stdout].headCost + s.streams[stdout].tailCost; cost > bound {
			t.Errorf("pieces of %d: they weigh %d", size, cost)
		}
	}
}

func TestAProtocolWaitsAtItsBoundAndLosesNothing(t *testing.T) {
	t.Parallel()
	const bound, size, n = 1000, 100, 200
	s := newSpool(guest.SpoolProtocol, bound)
	quit := make(chan struct{})
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		for i := range n {
			s.add(stderr, bytes.Repeat([]byte{byte(i)}, size), time.Now(), quit)
		}
		s.end(guest.Exit{})
	}()
	at := [2]int64{}
	var got []byte
	for {
		_, p, dropped, exit, wait := s.next(&at)
		if len(p.data) > 0 {
			if dropped != 0 {
				t.Fatalf("%d bytes dropped", dropped)
			}
			got = append(got, p.data...)
			s.mu.Lock()
			if held := s.streams[stderr].tailCost; held >= bound+size {
				t.Errorf("%d bytes held with a bound of %d", held, bound)
			}
			s.mu.Unlock()
			s.ack(at)
			continue
		}
		if exit != nil {
			break
		}
		<-wait
	}
	writer.Wait()
	if len(got) != n*size || got[len(got)-1] != n-1 {
		t.Errorf("%d bytes came", len(got))
	}
}

func TestFollowersReadInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	s := newSpool(guest.SpoolLog, 0)
	want := []int{stdout, stderr, stderr, stdout, stderr, stdout, stdout}
	for k, i := range want {
		// A second apart, so that none is joined to the one before.
		s.add(i, []byte{byte(k)}, time.Unix(int64(k)*2, 0), nil)
	}
	s.end(guest.Exit{})
	_, _, order, _ := collect(s, [2]int64{})
	if len(order) != len(want) {
		t.Fatalf("order %v", order)
	}
	for k := range want {
		if order[k] != want[k] {
			t.Fatalf("order %v, want %v", order, want)
		}
	}
}

func TestAFollowerIsNotDisturbedByWhatGrowsOrIsDropped(t *testing.T) {
	t.Parallel()
	s := newSpool(guest.SpoolLog, 2000)
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			var at [2]int64
			last := int64(0)
			for {
				_, p, dropped, exit, wait := s.next(&at)
				if len(p.data) > 0 {
					if p.off != last+dropped {
						t.Errorf("a piece at %d after %d and %d dropped", p.off, last, dropped)
					}
					for k, b := range p.data {
						if b != byte(p.off+int64(k)) {
							t.Errorf("wrong byte at %d", p.off+int64(k))
							return
						}
					}
					last = p.end()
					continue
				}
				if exit != nil {
					return
				}
				<-wait
			}
		}()
	}
	var off int64
	for i := range 5000 {
		data := make([]byte, 1+i%37)
		for k := range data {
			data[k] = byte(off + int64(k))
		}
		off += int64(len(data))
		s.add(stdout, data, time.Now(), nil)
	}
	s.end(guest.Exit{})
	all.Wait()
}
