package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/recorder"
	"managoat/sandbox/guest/wire"
)

// Limits of records.
const (
	maxRecorders   = 256      // shells recorded at once; more run unrecorded until one ends
	maxRecordBytes = 16 << 20 // of records that are kept
	recordCost     = 256      // what a record weighs besides its bytes
	maxTag         = 128      // bytes
)

// records is what recording shells told, newest last.
type records struct {
	mu      sync.Mutex
	kept    []guest.Record
	bytes   int
	next    int64
	changed chan struct{} // closed and replaced when one is added
}

func cost(r *guest.Record) int {
	n := recordCost + len(r.Stdout.Head) + len(r.Stdout.Tail) + len(r.Stderr.Head) + len(r.Stderr.Tail)
	for _, a := range r.Argv {
		n += len(a)
	}
	return n
}

func (rs *records) add(r guest.Record) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.next++
	r.Seq = rs.next
	rs.kept = append(rs.kept, r)
	rs.bytes += cost(&r)
	for rs.bytes > maxRecordBytes {
		rs.bytes -= cost(&rs.kept[0])
		rs.kept[0] = guest.Record{}
		rs.kept = rs.kept[1:]
	}
	close(rs.changed)
	rs.changed = make(chan struct{})
}

// after returns the first record of a tag after seq, or a channel to wait on.
func (rs *records) after(tag string, seq int64) (*guest.Record, <-chan struct{}) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := range rs.kept {
		if r := rs.kept[i]; r.Seq > seq && r.Tag == tag {
			return &r, nil
		}
	}
	return nil, rs.changed
}

// listen takes records for the life of the machine.
func (rs *records) listen(s *Server) error {
	l, err := net.Listen("unix", recorder.Address)
	if err != nil {
		return fmt.Errorf("records: %w", err)
	}
	slots := make(chan struct{}, maxRecorders)
	go func() {
		for {
			slots <- struct{}{}
			conn, err := l.Accept()
			if err != nil {
				s.log.Printf("records: %v", err)
				<-slots
				time.Sleep(100 * time.Millisecond) // out of descriptors: what ends frees some
				continue
			}
			go func() {
				defer func() { <-slots }()
				defer conn.Close()
				rs.take(conn)
			}()
		}
	}()
	return nil
}

// take reads one shell's record. A recorder that is killed closes its connection without an end: that, and
// when, is the end.
func (rs *records) take(conn net.Conn) {
	in := io.LimitReader(conn, 2*recorder.MaxRecord)
	var begin recorder.Begin
	if err := wire.ReadMessage(in, &begin); err != nil || begin.Tag == "" || len(begin.Tag) > maxTag {
		return
	}
	began := time.Now()
	r := guest.Record{Tag: begin.Tag, Argv: begin.Argv, Dir: begin.Dir, Start: begin.Start}
	var end recorder.End
	if err := wire.ReadMessage(in, &end); err != nil {
		r.Code, r.Lost, r.Duration = -1, true, time.Since(began)
	} else {
		r.Code, r.Signal, r.Duration, r.Output = end.Code, end.Signal, end.Duration, end.Output
		r.Stdout, r.Stderr = end.Stdout, end.Stderr
	}
	rs.add(r)
}

// follow sends a tag's records after seq as they come.
func (rs *records) follow(ctx context.Context, w io.Writer, t wire.Tag) error {
	if err := answer(w, nil); err != nil {
		return err
	}
	seq := t.After
	for {
		r, wait := rs.after(t.Tag, seq)
		if r != nil {
			seq = r.Seq
			if err := writeJSONFrame(w, wire.FrameRecord, r); err != nil {
				return err
			}
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
