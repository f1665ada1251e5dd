package acp

import "bytes"

// MaxLine bounds one protocol line. A longer one is dropped while it is read: an agent must not be able to spend the
// server's memory, and its process must not stall on a spool that nobody can free.
const MaxLine = 8 << 20

// head is how much of a line over MaxLine is kept, to answer a request that it carried.
const head = 4 << 10

// Line is one line of an agent's standard output, without its end.
type Line struct {
	Data  []byte // of a line over MaxLine: its first bytes
	Start int64  // offset of its first byte in the stream
	End   int64  // offset after its end: where to go on reading
	Long  bool   // it was over MaxLine
}

// Lines cuts a stream into lines. Its zero value begins at offset 0.
type Lines struct {
	start int64 // of the line in buf
	next  int64 // offset of the byte to come
	buf   []byte
	long  bool
}

// NewLines cuts a stream that is read from an offset at which a line begins.
func NewLines(offset int64) *Lines { return &Lines{start: offset, next: offset} }

// Write takes the next bytes and returns the lines that they end. The lines' data are the caller's.
func (l *Lines) Write(p []byte) []Line {
	var lines []Line
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.keep(p)
			break
		}
		l.keep(p[:i])
		l.next++
		lines = append(lines, l.cut())
		p = p[i+1:]
	}
	return lines
}

// Dropping tells that a line over MaxLine is being read, and up to which offset: that much of it may be freed from the
// spool before it ends.
func (l *Lines) Dropping() (upTo int64, ok bool) { return l.next, l.long }

// Rest ends the stream: what came after the last line end, if anything.
func (l *Lines) Rest() (Line, bool) {
	if l.next == l.start {
		return Line{}, false
	}
	return l.cut(), true
}

func (l *Lines) keep(p []byte) {
	l.next += int64(len(p))
	if l.long {
		return
	}
	if len(l.buf)+len(p) > MaxLine {
		l.buf = append([]byte(nil), append(l.buf, p[:min(len(p), head)]...)[:head]...)
		l.long = true
		return
	}
	l.buf = append(l.buf, p...)
}

func (l *Lines) cut() Line {
	line := Line{Data: bytes.TrimSuffix(l.buf, []byte("\r")), Start: l.start, End: l.next, Long: l.long}
	l.start, l.buf, l.long = l.next, nil, false
	return line
}
