package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
)

// maxPiece is the largest piece of a Pipe.
const maxPiece = 64 << 10

// Pipe is a connection made inside a machine, carried over one stream. yamux's Close is a half-close that
// a peer cannot tell from an end, so a Pipe frames its bytes: a piece of length zero ends one direction
// (CloseWrite), the end of the stream without it is a reset (Close). A goroutine reads ahead, so that a reset
// also reaches a peer that only writes.
type Pipe struct {
	stream *yamux.Stream

	ahead *ahead      // what was read of the peer's direction
	gone  atomic.Bool // the peer closed the connection

	write  sync.Mutex
	closed bool   // we ended our direction
	piece  []byte // the piece being written, head and all
}

var _ net.Conn = (*Pipe)(nil)

// NewPipe carries a connection over stream, after its head was exchanged.
func NewPipe(stream *yamux.Stream) *Pipe {
	p := &Pipe{stream: stream, ahead: newAhead()}
	go p.pump()
	return p
}

// pump reads the peer's direction until the stream ends or the pipe is closed.
func (p *Pipe) pump() {
	err := p.readAhead()
	p.ahead.end(err)
	if err == io.EOF {
		// The peer is done writing. The end of the stream says that it is done reading, too.
		var b [1]byte
		p.stream.Read(b[:])
	}
	p.gone.Store(true)
	p.stream.SetWriteDeadline(time.Unix(1, 0))
}

func (p *Pipe) readAhead() error {
	var head [4]byte
	for {
		if _, err := io.ReadFull(p.stream, head[:]); err != nil {
			return reset(err)
		}
		left := int(binary.BigEndian.Uint32(head[:]))
		if left == 0 {
			return io.EOF
		}
		if left > maxPiece {
			return fmt.Errorf("a piece of %d bytes is over the limit of %d", left, maxPiece)
		}
		for left > 0 {
			space := p.ahead.space()
			if space == nil {
				return net.ErrClosed
			}
			n, err := p.stream.Read(space[:min(left, len(space))])
			p.ahead.filled(n)
			if err != nil {
				return reset(err)
			}
			left -= n
		}
	}
}

func reset(err error) error {
	switch err {
	case io.EOF, io.ErrUnexpectedEOF, yamux.ErrStreamClosed, yamux.ErrConnectionReset, yamux.ErrSessionShutdown:
		return syscall.ECONNRESET
	}
	return err
}

// Read reads what the peer wrote.
func (p *Pipe) Read(b []byte) (int, error) { return p.ahead.Read(b) }

// Write writes b in pieces.
func (p *Pipe) Write(b []byte) (int, error) {
	p.write.Lock()
	defer p.write.Unlock()
	if p.closed {
		return 0, net.ErrClosed
	}
	var done int
	for done < len(b) {
		n := min(len(b)-done, maxPiece)
		p.piece = append(binary.BigEndian.AppendUint32(p.piece[:0], uint32(n)), b[done:done+n]...)
		if _, err := p.stream.Write(p.piece); err != nil {
			return done, p.broken(err)
		}
		done += n
	}
	return done, nil
}

// broken tells a peer that is gone from a deadline that the caller set.
func (p *Pipe) broken(err error) error {
	if err == yamux.ErrTimeout && p.gone.Load() {
		return syscall.ECONNRESET
	}
	return reset(err)
}

// CloseWrite ends our direction; the peer reads to its end and may go on writing.
func (p *Pipe) CloseWrite() error {
	p.write.Lock()
	defer p.write.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if _, err := p.stream.Write(make([]byte, 4)); err != nil {
		return p.broken(err)
	}
	return nil
}

// Close ends the connection. Unless both directions were ended before, the peer sees a reset.
func (p *Pipe) Close() error {
	err := p.stream.Close()
	p.stream.SetReadDeadline(time.Unix(1, 0)) // ends the pump
	p.ahead.close()
	return err
}

// LocalAddr is the stream's address.
func (p *Pipe) LocalAddr() net.Addr { return p.stream.LocalAddr() }

// RemoteAddr is the stream's address.
func (p *Pipe) RemoteAddr() net.Addr { return p.stream.RemoteAddr() }

// SetDeadline sets both deadlines.
func (p *Pipe) SetDeadline(t time.Time) error {
	if err := p.SetReadDeadline(t); err != nil {
		return err
	}
	return p.SetWriteDeadline(t)
}

// SetReadDeadline sets the deadline of Read.
func (p *Pipe) SetReadDeadline(t time.Time) error {
	p.ahead.setDeadline(t)
	return nil
}

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
		if _, err := io.CopyBuffer(plainWriter{dst}, plainReader{src}, make([]byte, maxPiece)); err != nil || dst.CloseWrite() != nil {
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

// plainReader and plainWriter hide ReadFrom and WriteTo: net.TCPConn's would look for a splice that cannot be.
type (
	plainReader struct{ io.Reader }
	plainWriter struct{ io.Writer }
)
