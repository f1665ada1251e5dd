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
const maxPiece = 32 << 10

// Pipe is a connection made inside a machine, carried over one stream. yamux's Close is a half-close that
// a peer cannot tell from an end, so a Pipe frames its bytes: a piece of length zero ends one direction
// (CloseWrite), the end of the stream without it is a reset (Close). A goroutine reads ahead, so that a reset
// also reaches a peer that only writes.
type Pipe struct {
	stream *yamux.Stream

	ahead   net.Conn // what was read ahead; its deadlines are those of Read
	readErr error    // why ahead ends; set before it does
	gone    atomic.Bool

	write  sync.Mutex
	closed bool // we ended our direction
}

var _ net.Conn = (*Pipe)(nil)

// NewPipe carries a connection over stream, after its head was exchanged.
func NewPipe(stream *yamux.Stream) *Pipe {
	ahead, feed := net.Pipe()
	p := &Pipe{stream: stream, ahead: ahead}
	go p.pump(feed)
	return p
}

// pump reads the peer's direction until the stream ends or the pipe is closed.
func (p *Pipe) pump(feed net.Conn) {
	p.readErr = p.copyTo(feed)
	feed.Close()
	if p.readErr == io.EOF {
		// The peer is done writing. The end of the stream says that it is done reading, too.
		var b [1]byte
		p.stream.Read(b[:])
	}
	p.gone.Store(true)
	p.stream.SetWriteDeadline(time.Unix(1, 0))
}

func (p *Pipe) copyTo(feed net.Conn) error {
	buf := make([]byte, maxPiece)
	for {
		if _, err := io.ReadFull(p.stream, buf[:4]); err != nil {
			return reset(err)
		}
		n := binary.BigEndian.Uint32(buf)
		if n == 0 {
			return io.EOF
		}
		if n > maxPiece {
			return fmt.Errorf("a piece of %d bytes is over the limit of %d", n, maxPiece)
		}
		if _, err := io.ReadFull(p.stream, buf[:n]); err != nil {
			return reset(err)
		}
		if _, err := feed.Write(buf[:n]); err != nil {
			return net.ErrClosed
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
func (p *Pipe) Read(b []byte) (int, error) {
	n, err := p.ahead.Read(b)
	if err == io.EOF {
		err = p.readErr
	}
	return n, err
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
	p.ahead.Close()
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
func (p *Pipe) SetReadDeadline(t time.Time) error { return p.ahead.SetReadDeadline(t) }

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
