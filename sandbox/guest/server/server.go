// Package server is the guest's side of the protocol: it runs commands, reads and writes the machine's disk
// and passes connections made inside on to the egress process. It is linked into cmd/managoat-guest only.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
)

// Limits of connections to the guest.
const (
	maxCallers   = 32               // connections at once: the server, the egress process, and those they replace
	helloTimeout = 10 * time.Second // for a caller to say who it is
)

// Config of a guest.
type Config struct {
	Root   bool     // commands may run as machine root, which the guest must be able to become
	Nested bool     // commands get a user namespace of their own
	OOM    *os.File // the cgroup's file that counts kills for memory, or nil
	Log    *log.Logger
}

// Server answers the callers of one machine.
type Server struct {
	cfg       Config
	log       *log.Logger
	hello     guest.Hello
	processes processes
	commands  commands
	egress    egress
	records   records
}

// New prepares a guest: when it returns, programs of the machine can connect to the egress listeners.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg: cfg,
		log: cfg.Log,
		hello: guest.Hello{
			Version: guest.Version, BootID: randomName(), StartedAt: time.Now(), Root: cfg.Root,
		},
	}
	s.processes.waiting = make(map[int]chan<- ended)
	s.commands = commands{s: s, byID: make(map[string]*command)}
	s.egress.changed = make(chan struct{})
	if err := s.egress.listen(s.log); err != nil {
		return nil, err
	}
	s.records.changed = make(chan struct{})
	if err := s.records.listen(s); err != nil {
		return nil, err
	}
	return s, nil
}

// randomName returns 128 random bits. crypto/rand would do as well, and bring half of crypto into a binary that
// starts for every command.
func randomName() string {
	var b [16]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		panic("no random numbers: " + err.Error()) // the kernel has them, always
	}
	return fmt.Sprintf("%x", b)
}

// Serve answers callers of l until accepting fails. As pid 1 that is the end of the machine.
func (s *Server) Serve(l net.Listener) error {
	done := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(done)
	all.Add(1)
	go func() {
		defer all.Done()
		s.processes.reap(done)
	}()
	slots := make(chan struct{}, maxCallers)
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		slots <- struct{}{}
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() { <-slots }()
			s.caller(conn)
		}()
	}
}

// caller serves one connection. Its first stream says who calls.
func (s *Server) caller(conn net.Conn) {
	session, err := wire.Serve(conn)
	if err != nil {
		conn.Close()
		return
	}
	defer session.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	role, err := s.introduce(session)
	if err != nil {
		s.log.Printf("caller: %v", err)
		return
	}
	if role == guest.RoleEgress {
		defer s.egress.attach(session)()
	}
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		streams.Add(1)
		go func() {
			defer streams.Done()
			defer stream.Close()
			if err := s.handle(ctx, role, stream); err != nil {
				s.log.Printf("%v", err)
			}
		}()
	}
}

func (s *Server) introduce(session *yamux.Session) (guest.Role, error) {
	ctx, cancel := context.WithTimeout(context.Background(), helloTimeout)
	defer cancel()
	stream, err := session.AcceptStreamWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("hello: %w", err)
	}
	defer stream.Close()
	stream.SetDeadline(time.Now().Add(helloTimeout))
	var req wire.Request
	if err := wire.ReadMessage(stream, &req); err != nil {
		return "", fmt.Errorf("hello: %w", err)
	}
	var h wire.Hello
	if err := json.Unmarshal(req.Body, &h); err != nil || req.Op != wire.OpHello {
		return "", answerError(stream, refuse(wire.CodeInvalid, "the first stream must say hello"))
	}
	role := guest.Role(h.Role)
	if role != guest.RoleServer && role != guest.RoleEgress {
		return "", answerError(stream, refuse(wire.CodeInvalid, "there is no role %q", h.Role))
	}
	return role, answer(stream, s.hello)
}

// handle answers one stream. What it returns is for the log: the caller has had its answer.
func (s *Server) handle(ctx context.Context, role guest.Role, stream *yamux.Stream) error {
	var req wire.Request
	if err := wire.ReadMessage(stream, &req); err != nil {
		return nil // the caller went away
	}
	if role != guest.RoleServer {
		return answerError(stream, refuse(wire.CodeDenied, "the role %q may not %s", role, req.Op))
	}
	err := s.do(ctx, stream, req)
	var refused *wire.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return nil
	case errors.As(err, &refused):
		return answerError(stream, refused)
	}
	return answerError(stream, refuse(wire.CodeInternal, "%s: %v", req.Op, err))
}

func (s *Server) do(ctx context.Context, stream *yamux.Stream, req wire.Request) error {
	switch req.Op {
	case wire.OpStart:
		var e guest.Exec
		if err := decode(req, &e); err != nil {
			return err
		}
		started, stop := untilGone(ctx, stream)
		err := s.commands.start(started, e)
		stop()
		return answerIf(stream, err)
	case wire.OpFollow, wire.OpAck, wire.OpStdin, wire.OpCloseStdin, wire.OpSignal, wire.OpStatus, wire.OpForget:
		var c wire.Command
		if err := decode(req, &c); err != nil {
			return err
		}
		return s.onCommand(ctx, stream, req.Op, c)
	case wire.OpList, wire.OpStat, wire.OpRead, wire.OpWrite, wire.OpMkdir, wire.OpRemove, wire.OpCopyTree:
		var p wire.Path
		if err := decode(req, &p); err != nil {
			return err
		}
		if req.Op == wire.OpRead {
			_, stop := untilGone(ctx, stream)
			defer stop()
		}
		return s.onPath(stream, req.Op, p)
	}
	if req.Op == wire.OpRecords {
		var t wire.Tag
		if err := decode(req, &t); err != nil {
			return err
		}
		ctx, stop := untilGone(ctx, stream)
		defer stop()
		return s.records.follow(ctx, stream, t)
	}
	return refuse(wire.CodeUnsupported, "this guest (version %d) knows no operation %q", guest.Version, req.Op)
}

func (s *Server) onCommand(ctx context.Context, stream *yamux.Stream, op string, c wire.Command) error {
	switch op {
	case wire.OpFollow:
		ctx, stop := untilGone(ctx, stream)
		defer stop()
		return s.commands.follow(ctx, stream, c.ID, [2]int64{c.Stdout, c.Stderr})
	case wire.OpAck:
		cmd, err := s.commands.get(c.ID)
		if err != nil {
			return err
		}
		cmd.spool.ack([2]int64{c.Stdout, c.Stderr})
		return answer(stream, nil)
	case wire.OpStdin:
		return answerIf(stream, s.commands.input(ctx, c.ID, stream, c.Size))
	case wire.OpCloseStdin:
		return answerIf(stream, s.commands.closeInput(c.ID))
	case wire.OpSignal:
		return answerIf(stream, s.commands.signal(c.ID, c.Signal))
	case wire.OpStatus:
		cmd, err := s.commands.get(c.ID)
		if err != nil {
			return err
		}
		return answer(stream, guest.Status{ID: cmd.id, Started: cmd.started, Exit: cmd.spool.ended()})
	case wire.OpForget:
		return answerIf(stream, s.commands.forget(c.ID))
	}
	panic("unreachable: " + op)
}

// untilGone returns a context that ends when the caller closes its side of the stream; a write that waits for
// the caller to read ends with it.
func untilGone(ctx context.Context, stream *yamux.Stream) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b [1]byte
		stream.Read(b[:])
		stream.SetWriteDeadline(time.Unix(1, 0))
		cancel()
	}()
	return ctx, func() {
		stream.SetReadDeadline(time.Unix(1, 0))
		<-done
		stream.SetWriteDeadline(time.Time{}) // for the answer that may still come
	}
}

func decode(req wire.Request, body any) error {
	if err := json.Unmarshal(req.Body, body); err != nil {
		return refuse(wire.CodeInvalid, "%s: %v", req.Op, err)
	}
	return nil
}

// answer sends a success.
func answer(w io.Writer, body any) error {
	var a wire.Answer
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		a.Body = raw
	}
	return wire.WriteMessage(w, a)
}

func answerError(w io.Writer, e *wire.Error) error {
	return wire.WriteMessage(w, wire.Answer{Error: e})
}

// answerIf sends a success without a body unless err says otherwise.
func answerIf(w io.Writer, err error) error {
	if err != nil {
		return err
	}
	return answer(w, nil)
}

func writeJSONFrame(w io.Writer, kind byte, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("frame: %w", err)
	}
	return wire.WriteFrame(w, kind, raw)
}

// oomKills reads how many processes of this machine the kernel has killed for memory: the line "oom_kill N" of
// memory.events (cgroup v2) or memory.oom_control (v1). Without the file it is 0: then only the provider's
// Stats can tell.
func (s *Server) oomKills() int64 {
	if s.cfg.OOM == nil {
		return 0
	}
	buf := make([]byte, 1024)
	n, _ := s.cfg.OOM.ReadAt(buf, 0)
	for _, line := range strings.Split(string(buf[:n]), "\n") {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.ParseInt(v, 10, 64)
			return kills
		}
	}
	return 0
}
