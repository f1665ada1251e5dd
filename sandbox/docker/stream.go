package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/guest/bridge"
)

// Guest opens a stream to a machine's guest, through a process that the engine starts beside it.
func (p *Provider) Guest(ctx context.Context, id string) (net.Conn, error) {
	const op = "guest"
	if conn := p.takeSpare(id); conn != nil {
		return conn, nil
	}
	c, err := p.inspect(ctx, op, id)
	switch {
	case err != nil:
		return nil, err
	case c.State.Paused:
		return nil, fail(sandbox.Unavailable, op, "the machine is frozen", nil)
	case !c.State.Running:
		return nil, fail(sandbox.Unavailable, op, "the machine is not running", nil)
	}
	conn, err := p.open(ctx, id)
	if err != nil {
		p.log.Warn("docker provider: a guest does not answer", "machine", id, "error", err)
		return nil, failed(op, "the guest does not answer", err)
	}
	return conn, nil
}

// Guests dials the guests of an engine's machines from another process (the egress process). It starts, stops and clears away
// nothing.
type Guests struct{ p *Provider }

// Attach reaches the machines of the engine at host, as Options.Host.
func Attach(host string) (*Guests, error) {
	engine, err := dialEngine(host)
	if err != nil {
		return nil, err
	}
	return &Guests{&Provider{engine: engine, log: slog.New(slog.DiscardHandler)}}, nil
}

// Guest opens a stream to a machine's guest, as Provider.Guest does.
func (g *Guests) Guest(ctx context.Context, id string) (net.Conn, error) { return g.p.Guest(ctx, id) }

// boot starts a machine's container and returns the stream that is its guest's standard input and output, once the guest has
// answered on it. Where another server has started it meanwhile, that stream is the other's.
func (p *Provider) boot(ctx context.Context, id string) (*stream, error) {
	out, err := p.engine.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, err
	}
	began, err := p.begin(ctx, id)
	if err != nil || !began {
		out.Close()
		if err == nil {
			return p.open(ctx, id)
		}
		return nil, err
	}
	// Only now, since the engine ends the input of a container when any of those who are attached to it goes.
	in, err := p.engine.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		out.Close()
		return nil, err
	}
	return answered(ctx, out.HijackedResponse, in.Conn)
}

// statusKey is the key of a context under which the status of the engine's answer is wanted, as an *int.
type statusKey struct{}

func noteStatus(r *http.Response) {
	if status, ok := r.Request.Context().Value(statusKey{}).(*int); ok {
		*status = r.StatusCode
	}
}

// begin starts a container, and tells whether it was this call that did. Of two that come at the very same moment the engine
// says so of both.
func (p *Provider) begin(ctx context.Context, id string) (bool, error) {
	var status int
	_, err := p.engine.ContainerStart(context.WithValue(ctx, statusKey{}, &status), id, client.ContainerStartOptions{})
	return status != http.StatusNotModified, err
}

// open starts a process beside a machine's guest and returns its stream, once the guest has answered on it.
func (p *Provider) open(ctx context.Context, id string) (*stream, error) {
	created, err := p.engine.ExecCreate(ctx, id, client.ExecCreateOptions{
		User: "0:0", AttachStdin: true, AttachStdout: true, AttachStderr: true, Cmd: []string{bridge.Program, bridge.Argument},
	})
	if err != nil {
		return nil, err
	}
	attached, err := p.engine.ExecAttach(ctx, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	return answered(ctx, attached.HijackedResponse, attached.Conn)
}

// answered waits for the guest's answer. in is where it reads.
func answered(ctx context.Context, out client.HijackedResponse, in net.Conn) (*stream, error) {
	s := &stream{Conn: out.Conn, frames: frames{in: out.Reader}, input: in}
	read := make(chan error, 1)
	go func() {
		var b [1]byte
		_, err := io.ReadFull(s, b[:])
		if err == nil && b[0] != bridge.Connected {
			said := make([]byte, maxSaid)
			n, _ := s.Read(said) // where the engine starts no process, it says why there
			err = fmt.Errorf("the guest answered %q", string(b[:])+string(said[:n]))
		}
		read <- err
	}()
	var err error
	select {
	case err = <-read:
	case <-ctx.Done():
		s.Close()
		<-read
		err = ctx.Err()
	}
	if err != nil {
		s.Close()
		if said := strings.TrimSpace(string(s.errs)); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return s, nil
}

// stream is the guest's side of a process of the engine: what it prints comes in frames, what it reads does not, and may take
// a connection of its own.
type stream struct {
	net.Conn
	frames
	input net.Conn
}

func (s *stream) Read(b []byte) (int, error)         { return s.frames.Read(b) }
func (s *stream) Write(b []byte) (int, error)        { return s.input.Write(b) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.input.SetWriteDeadline(t) }
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// Close ends both directions.
func (s *stream) Close() error {
	err := s.Conn.Close()
	if s.input != s.Conn {
		err = errors.Join(err, s.input.Close())
	}
	return err
}

// CloseWrite ends what the guest reads.
func (s *stream) CloseWrite() error {
	if c, ok := s.input.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.New("this connection cannot be closed on one side")
}

// Kinds of frames, and the bound of what is kept of standard error.
const (
	frameStdout = 1
	frameStderr = 2
	maxSaid     = 4096
)

// frames reads the standard output out of the engine's framed stream: a byte that names the stream, three of nothing, the
// length in four, and so many of content.
type frames struct {
	in   *bufio.Reader
	left int // of the frame that is read
	errs []byte
}

func (f *frames) Read(b []byte) (int, error) {
	for f.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(f.in, head[:]); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(head[4:]))
		switch head[0] {
		case frameStdout:
			f.left = size
		case frameStderr:
			text := make([]byte, min(size, maxSaid))
			if _, err := io.ReadFull(f.in, text); err != nil {
				return 0, err
			}
			if _, err := f.in.Discard(size - len(text)); err != nil {
				return 0, err
			}
			if room := maxSaid - len(f.errs); room > 0 {
				f.errs = append(f.errs, text[:min(room, len(text))]...)
			}
		default:
			return 0, fmt.Errorf("the engine sent a frame of kind %d", head[0])
		}
	}
	n, err := f.in.Read(b[:min(len(b), f.left)])
	f.left -= n
	return n, err
}

// spare is a connection that a start has proved to work and nobody has asked for yet.
type spare struct {
	conn  *stream
	timer *time.Timer
	ended chan error // why it is not looked at any more: a guest says nothing unasked
}

func (p *Provider) keepSpare(id string, conn *stream) {
	p.dropSpare(id)
	s := &spare{conn: conn, ended: make(chan error, 1)}
	go func() {
		_, err := conn.in.Peek(1)
		s.ended <- err
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spares[id] = s
	s.timer = time.AfterFunc(spareLife, func() { p.dropSpare(id) })
}

// takeSpare returns a machine's spare connection, unless it has ended.
func (p *Provider) takeSpare(id string) net.Conn {
	p.mu.Lock()
	s := p.spares[id]
	if s == nil || !s.timer.Stop() {
		p.mu.Unlock()
		return nil
	}
	delete(p.spares, id)
	p.mu.Unlock()
	s.conn.SetReadDeadline(time.Unix(1, 0))
	if err := <-s.ended; !errors.Is(err, os.ErrDeadlineExceeded) || s.conn.SetReadDeadline(time.Time{}) != nil {
		s.conn.Close()
		return nil
	}
	return s.conn
}

func (p *Provider) dropSpare(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.spares[id]; s != nil {
		s.timer.Stop()
		s.conn.Close()
		delete(p.spares, id)
	}
}
