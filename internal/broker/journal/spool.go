package journal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Sizes of a spool, in bytes.
const (
	segmentBytes = 1 << 20 // a segment is deleted as a whole, when all its rows are acknowledged
	maxRow       = 64 << 10
)

// maxBatch is how many rows Next returns at most.
const maxBatch = 1000

const (
	segmentSuffix = ".jsonl"
	ackedName     = "acked"
)

// Spool keeps rows on disk, in order, until they are acknowledged. It survives the end of the process, also by
// kill -9; it does not sync, so the host's own crash can lose the newest rows. Rows are numbered from 1 without a
// gap. At its bound new rows are dropped and counted. Safe for concurrent use.
type Spool struct {
	dir   string
	bound int64
	log   *slog.Logger

	mu       sync.Mutex
	segments []segment // oldest first; the last one is written
	w        *os.File  // of the last segment
	size     int64     // of all segments
	next     uint64    // number of the next row
	acked    uint64    // rows up to here are delivered
	dropped  int64     // since the last row that was kept
	changed  chan struct{}
	closed   bool

	read cursor // where the last Next ended
}

type segment struct {
	first uint64
	size  int64
}

// cursor is a place in the rows: the byte offset of row seq in the segment that begins with first.
type cursor struct {
	first, seq uint64
	offset     int64
}

// ErrClosed is returned after Close.
var ErrClosed = errors.New("spool is closed")

// OpenSpool opens the spool in dir, which it makes, and takes up what a former process left. bound is in bytes.
func OpenSpool(dir string, bound int64, log *slog.Logger) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Spool{dir: dir, bound: bound, log: log, next: 1, changed: make(chan struct{})}
	if err := s.recover(); err != nil {
		return nil, fmt.Errorf("spool %s: %w", dir, err)
	}
	return s, nil
}

func (s *Spool) recover() error {
	text, err := os.ReadFile(filepath.Join(s.dir, ackedName))
	switch {
	case err == nil:
		if s.acked, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // sorted by name, so by number
		name, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok {
			continue
		}
		first, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			return err
		}
		rows, whole, err := scan(filepath.Join(s.dir, e.Name()))
		if err != nil {
			return err
		}
		s.segments = append(s.segments, segment{first, whole})
		s.size += whole
		s.next = first + rows
	}
	s.next = max(s.next, s.acked+1)
	return s.trim()
}

// scan counts the rows of a segment and cuts off half a row that a killed process left at its end.
func scan(path string) (rows uint64, whole int64, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	whole = int64(bytes.LastIndexByte(text, '\n') + 1)
	if whole < int64(len(text)) {
		if err := os.Truncate(path, whole); err != nil {
			return 0, 0, err
		}
	}
	return uint64(bytes.Count(text, []byte{'\n'})), whole, nil
}

// Append keeps one row. write gets the number of rows dropped before it and returns the row as one line of JSON. It
// never waits for a reader.
func (s *Spool) Append(write func(dropped int64) ([]byte, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	row, err := write(s.dropped)
	if err != nil {
		return err
	}
	if len(row) > maxRow || bytes.IndexByte(row, '\n') >= 0 {
		return fmt.Errorf("row of %d bytes is not one line of at most %d", len(row), maxRow)
	}
	row = append(row, '\n')
	if s.size+int64(len(row)) > s.bound {
		if s.dropped == 0 {
			s.log.Warn("spool is full, rows are dropped", "dir", s.dir, "bytes", s.size)
		}
		s.dropped++
		return nil
	}
	if err := s.write(row); err != nil {
		s.dropped++
		return err
	}
	s.dropped = 0
	s.next++
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func (s *Spool) write(row []byte) error {
	if s.w == nil || s.segments[len(s.segments)-1].size >= segmentBytes {
		if err := s.begin(); err != nil {
			return err
		}
	}
	last := &s.segments[len(s.segments)-1]
	// At a fixed place, so that half a row after a full disk is written over by the next one.
	if _, err := s.w.WriteAt(row, last.size); err != nil {
		return err
	}
	last.size += int64(len(row))
	s.size += int64(len(row))
	return nil
}

// begin starts the segment of the next row.
func (s *Spool) begin() error {
	if s.w != nil {
		s.w.Close()
		s.w = nil
	}
	w, err := os.OpenFile(s.path(s.next), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	s.w = w
	if n := len(s.segments); n == 0 || s.segments[n-1].first != s.next {
		s.segments = append(s.segments, segment{first: s.next})
	}
	return nil
}

func (s *Spool) path(first uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d%s", first, segmentSuffix))
}

// Next waits until there are rows that are not acknowledged and lie after the given number, and returns them with
// the number of the last. Numbers below the acknowledged one mean that.
func (s *Spool) Next(ctx context.Context, after uint64) (rows [][]byte, last uint64, err error) {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, 0, ErrClosed
		}
		changed := s.changed
		rows, last, err = s.readFrom(max(after, s.acked) + 1)
		s.mu.Unlock()
		if err != nil || len(rows) > 0 {
			return rows, last, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, last, ctx.Err()
		}
	}
}

// readFrom reads rows from number seq on. It goes on where it stopped when asked for the next ones, and looks from
// the start of the segment otherwise.
func (s *Spool) readFrom(seq uint64) (rows [][]byte, last uint64, err error) {
	last = seq - 1
	for last+1 < s.next && len(rows) < maxBatch {
		i := s.segmentOf(last + 1)
		if i < 0 {
			return rows, last, nil
		}
		seg := s.segments[i]
		at := s.read
		if at.first != seg.first || at.seq > last+1 {
			at = cursor{first: seg.first, seq: seg.first}
		}
		got, end, err := s.readSegment(seg, at, last+1, maxBatch-len(rows))
		if err != nil {
			return nil, 0, err
		}
		if len(got) == 0 {
			return rows, last, nil
		}
		rows, last, s.read = append(rows, got...), last+uint64(len(got)), end
	}
	return rows, last, nil
}

// segmentOf finds the segment that holds row seq.
func (s *Spool) segmentOf(seq uint64) int {
	for i, seg := range slices.Backward(s.segments) {
		if seg.first <= seq {
			return i
		}
	}
	return -1
}

func (s *Spool) readSegment(seg segment, at cursor, from uint64, most int) ([][]byte, cursor, error) {
	f, err := os.Open(s.path(seg.first))
	if err != nil {
		return nil, at, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(io.NewSectionReader(f, at.offset, seg.size-at.offset), maxRow+1)
	var rows [][]byte
	for len(rows) < most {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, at, err
		}
		if at.seq >= from {
			rows = append(rows, bytes.Clone(line[:len(line)-1]))
		}
		at.seq++
		at.offset += int64(len(line))
	}
	return rows, at, nil
}

// Ack tells that all rows up to seq are stored for good. They are never returned again.
func (s *Spool) Ack(seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq = min(seq, s.next-1)
	if s.closed || seq <= s.acked {
		return nil
	}
	path := filepath.Join(s.dir, ackedName)
	if err := os.WriteFile(path+".new", strconv.AppendUint(nil, seq, 10), 0o600); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	s.acked = seq
	return s.trim()
}

// trim deletes segments whose rows are all acknowledged.
func (s *Spool) trim() error {
	for len(s.segments) > 0 {
		end := s.next // first row after the oldest segment
		if len(s.segments) > 1 {
			end = s.segments[1].first
		}
		oldest := s.segments[0]
		if s.acked+1 < end {
			return nil
		}
		if len(s.segments) == 1 {
			if s.w != nil && oldest.size < segmentBytes/4 {
				return nil // still small: go on writing it
			}
			if s.w != nil {
				s.w.Close()
				s.w = nil
			}
		}
		if err := os.Remove(s.path(oldest.first)); err != nil {
			return err
		}
		s.size -= oldest.size
		s.segments = s.segments[1:]
	}
	return nil
}

// Close ends the spool; what is in it stays for the next process.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.changed)
	s.changed = make(chan struct{})
	if s.w != nil {
		return s.w.Close()
	}
	return nil
}
