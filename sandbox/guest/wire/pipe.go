package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
)

// maxPiece is the largest piece of a Pipe.
const maxPiece = 32 << 10

// Pipe is a connection made inside a machine, carried over one stream. yamux's Close is a half-close that
// a peer cannot tell from an end, so a Pipe frames its bytes: a piece of length zero ends one direction
// (CloseWrite), the end of the stream without it is a reset (Close), seen at once by both Read and Write.
type Pipe struct {
	stream *yamux.Stream

	rest int  // bytes of the current piece not yet read
	end  bool // the peer ended its direction

	write  sync.Mutex
	closed bool // we ended our direction
}

var _ net.Conn = (*Pipe)(nil)

// NewPipe carries a connection over stream, after its head was exchanged.
func NewPipe(stream *yamux.Stream) *Pipe { return &Pipe{stream: stream} }

// Read reads what the peer wrote. It is for one reader.
func (p *Pipe) Read(b []byte) (int, error) {
	if p.end {
		return 0, io.EOF
	}
	if p.rest == 0 {
		var head [4]byte
		if _, err := io.ReadFull(p.stream, head[:]); err != nil {
			return 0, reset(err)
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxPiece {
			return 0, fmt.Errorf("a piece of %d bytes is over the limit of %d", n, maxPiece)
		}
		if n == 0 {
			p.end = true
			go p.watch()
			return 0, io.EOF
		}
		p.rest = int(n)
	}
	n, err := p.stream.Read(b[:min(len(b), p.rest)])
	p.rest -= n
	if err != nil {
		err = reset(err)
	}
	return n, err
}

// watch waits, after the peer ended its direction, for the end of the stream: a peer that closes while we
// still write must not leave us blocked on a full window. It ends with the stream.
func (p *Pipe) watch() {
	var b [1]byte
	for {
		p.stream.SetReadDeadline(time.Time{}) // the reader is done; its deadlines are not about this wait
		if _, err := p.stream.Read(b[:]); err != yamux.ErrTimeout {
			p.stream.SetWriteDeadline(time.Unix(1, 0))
			return
		}
	}
}

func reset(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF || err == yamux.ErrStreamClosed || err == yamux.ErrConnectionReset {
		return syscall.ECONNRESET
	}
	return err
}

// Write writes b in pieces.
func (p *Pipe) Write(b []byte) (int, error) {
	p.write.Lock()
	defer p.write.Unlock()
	if p.closed {
		return 0, net.ErrClosed
	}
	var done int
	buf := make([]byte, 4, 4+min(len(b), maxPiece))
	for done < len(b) {
		n := min(len(b)-done, maxPiece)
		binary.BigEndian.PutUint32(buf, uint32(n))
		buf = append(buf[:4], b[done:done+n]...)
		if _, err := p.stream.Write(buf); err != nil {
			return done, reset(err)
		}
		done += n
	}
	return done, nil
}

// CloseWrite ends our direction; the peer reads to its end and may go on writing.
func (p *Pipe) CloseWrite() error {
	p.write.Lock()
	defer p.write.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	_, err := p.stream.Write(make([]byte, 4))
	return reset(err)
}

// Close ends the connection. Unless both directions were ended before, the peer sees a reset.
func (p *Pipe) Close() error { return p.stream.Close() }

// LocalAddr is the stream's address.
func (p *Pipe) LocalAddr() net.Addr { return p.stream.LocalAddr() }

// RemoteAddr is the stream's address.
func (p *Pipe) RemoteAddr() net.Addr { return p.stream.RemoteAddr() }

// SetDeadline sets both deadlines.
func (p *Pipe) SetDeadline(t time.Time) error { return p.stream.SetDeadline(t) }

// SetReadDeadline sets the deadline of Read.
func (p *Pipe) SetReadDeadline(t time.Time) error { return p.stream.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of Write.
func (p *Pipe) SetWriteDeadline(t time.Time) error { return p.stream.SetWriteDeadline(t) }

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// Join copies both directions between two connections, passing half-closes on, until both ended or one
// failed; then it closes both.
func Join(a, b halfCloser) {
	var wg sync.WaitGroup
	copyTo := func(dst, src halfCloser) {
		defer wg.Done()
		if _, err := io.Copy(plainWriter{dst}, plainReader{src}); err != nil || dst.CloseWrite() != nil {
			a.Close()
			b.Close()
		}
	}
	wg.Add(2)
	go copyTo(a, b)
	copyTo(b, a)
	wg.Wait()
	a.Close()
	b.Close()
}

// plainReader and plainWriter hide ReadFrom and WriteTo: io.Copy's own buffer is all a relay needs, and
// net.TCPConn's ReadFrom would look for a splice that cannot be.
type (
	plainReader struct{ io.Reader }
	plainWriter struct{ io.Writer }
)
