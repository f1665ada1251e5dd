package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/hashicorp/yamux"

	"managoat/sandbox/guest/wire"
)

// Role of the caller of a guest.
type Role string

// Roles. At most one egress caller is served at a time; the newest wins (the process was restarted).
const (
	RoleServer Role = "server"
	RoleEgress Role = "egress"
)

// Hello is what a guest says about itself when a caller introduces itself.
type Hello struct {
	Version   int       `json:"version"`
	BootID    string    `json:"boot_id"` // changes at every start of the machine
	StartedAt time.Time `json:"started_at"`
	Root      bool      `json:"root"` // Root commands and sudo work
}

// ErrGone is returned by calls on a connection that ended. The machine may well be up: dial again.
var ErrGone = errors.New("guest connection ended")

// Refused is what a guest answers when it will not do what was asked, for reasons that are not about a path.
type Refused struct {
	Code    string // invalid, denied, command_exists, unsupported, internal
	Message string
}

func (e *Refused) Error() string { return "the machine's guest refused: " + e.Message }

// Limits of the client.
const (
	dialTimeout   = 30 * time.Second       // for the guest's hello, when the caller's context has no deadline
	pingPatience  = 100 * time.Millisecond // for a guest to say that it is there
	startPatience = 30 * time.Second       // for a guest to start a command
	cleanupPeriod = 10 * time.Second       // for ending a command whose caller went away
	maxCollected  = 64 << 20               // bytes per stream that Run collects of a protocol
)

// Client is one connection to a guest. Safe for concurrent use.
type Client struct {
	hello   Hello
	session *yamux.Session
}

// Dial introduces itself on a stream that a provider opened. It owns conn from then on.
func Dial(ctx context.Context, conn net.Conn, role Role) (*Client, error) {
	session, err := wire.Dial(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("dial guest: %w", err)
	}
	c := &Client{session: session}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := c.call(ctx, wire.OpHello, wire.Hello{Version: Version, Role: string(role)}, &c.hello); err != nil {
		session.Close()
		return nil, fmt.Errorf("dial guest: %w", err)
	}
	if c.hello.Version < Version-1 {
		session.Close()
		return nil, fmt.Errorf("dial guest: it speaks version %d, this server needs %d or newer: stop and start the machine", c.hello.Version, Version-1)
	}
	return c, nil
}

// Hello returns what the guest said at Dial.
func (c *Client) Hello() Hello { return c.hello }

// Close ends the connection; commands go on.
func (c *Client) Close() error { return c.session.Close() }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Answers tells whether the guest still does. One that is slow to say so, on a busy host, counts as there.
func (c *Client) Answers() bool {
	answered := make(chan error, 1)
	go func() {
		_, err := c.session.Ping()
		answered <- err
	}()
	patience := time.NewTimer(pingPatience)
	defer patience.Stop()
	select {
	case err := <-answered:
		return err == nil
	case <-c.Done():
		return false
	case <-patience.C:
		return true
	}
}

// exchange is one stream: a request, its answer, and what flows after it. It ends with its context.
type exchange struct {
	*yamux.Stream
	ctx  context.Context
	c    *Client
	stop func() bool
}

func (c *Client) open(ctx context.Context, op string, body any) (*exchange, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("guest %s: %w", op, err)
	}
	stream, err := c.session.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("guest %s: %w: %w", op, ErrGone, err)
	}
	x := &exchange{Stream: stream, ctx: ctx, c: c}
	x.stop = context.AfterFunc(ctx, func() {
		stream.SetDeadline(time.Unix(1, 0))
		stream.Close()
	})
	if err := wire.WriteMessage(stream, wire.Request{Op: op, Body: raw}); err != nil {
		defer x.close()
		return nil, x.failed(op, err)
	}
	return x, nil
}

func (x *exchange) close() {
	x.stop()
	x.Stream.Close()
}

// failed says why a stream broke: the caller went away, the guest refused, or the connection ended.
func (x *exchange) failed(op string, err error) error {
	var refused *wire.Error
	switch {
	case x.ctx.Err() != nil:
		return x.ctx.Err()
	case errors.As(err, &refused):
		return fmt.Errorf("guest %s: %w", op, &Refused{Code: refused.Code, Message: refused.Error()})
	case x.c.session.IsClosed(), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, yamux.ErrStreamClosed), errors.Is(err, yamux.ErrSessionShutdown), errors.Is(err, yamux.ErrConnectionReset):
		return fmt.Errorf("guest %s: %w", op, ErrGone)
	}
	return fmt.Errorf("guest %s: %w", op, err)
}

// answer reads the guest's answer into reply (nil: nothing is wanted).
func (x *exchange) answer(op string, reply any) error {
	var a wire.Answer
	if err := wire.ReadMessage(x, &a); err != nil {
		return x.failed(op, err)
	}
	return decode(op, a, reply)
}

func decode(op string, a wire.Answer, reply any) error {
	if e := a.Error; e != nil {
		if e.Message == "" { // a refusal of any other kind explains itself
			return &FileError{Code: e.Code, Path: e.Path}
		}
		return fmt.Errorf("guest %s: %w", op, &Refused{Code: e.Code, Message: e.Message})
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(a.Body, reply); err != nil {
		return fmt.Errorf("guest %s: answer: %w", op, err)
	}
	return nil
}

// call is an exchange with nothing after the answer.
func (c *Client) call(ctx context.Context, op string, body, reply any) error {
	x, err := c.open(ctx, op, body)
	if err != nil {
		return err
	}
	defer x.close()
	return x.answer(op, reply)
}

// --- commands ---

// Start starts a command. Its output waits in its spool until somebody follows it. Once asked for, a start is not given
// up at the end of ctx: nil means that the command runs and is the caller's to end, an error that nobody started it, as
// long as the guest answers.
func (c *Client) Start(ctx context.Context, e Exec) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	defer cancel()
	return c.call(ctx, wire.OpStart, e, nil)
}

// Offsets are where to go on reading, per stream.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// Follow reads a command's output from the given offsets, in order of arrival, then its exit. each is called
// from one goroutine; its error ends the follow. An Exit is returned exactly when the command ended and all
// its output was delivered. For SpoolProtocol the guest frees output only up to what Ack has named.
func (c *Client) Follow(ctx context.Context, id string, from Offsets, each func(Chunk) error) (*Exit, error) {
	x, err := c.open(ctx, wire.OpFollow, wire.Command{ID: id, Stdout: from.Stdout, Stderr: from.Stderr})
	if err != nil {
		return nil, err
	}
	defer x.close()
	if err := x.answer(wire.OpFollow, nil); err != nil {
		return nil, err
	}
	for {
		kind, payload, err := wire.ReadFrame(x)
		if err != nil {
			return nil, x.failed(wire.OpFollow, err)
		}
		switch kind {
		case wire.FrameOutput:
			head, data, err := wire.ParseOutput(payload)
			if err != nil {
				return nil, fmt.Errorf("guest follow: %w", err)
			}
			chunk := Chunk{Stream: Stdout, Offset: head.Offset, Data: data, Dropped: head.Dropped, At: head.At}
			if head.Stderr {
				chunk.Stream = Stderr
			}
			if err := each(chunk); err != nil {
				return nil, err
			}
		case wire.FrameExit:
			var exit Exit
			if err := json.Unmarshal(payload, &exit); err != nil {
				return nil, fmt.Errorf("guest follow: exit: %w", err)
			}
			return &exit, nil
		default:
			return nil, fmt.Errorf("guest follow: unknown frame %q", kind)
		}
	}
}

// Ack tells that everything before these offsets is stored for good and may be dropped from the spool.
func (c *Client) Ack(ctx context.Context, id string, upTo Offsets) error {
	return c.call(ctx, wire.OpAck, wire.Command{ID: id, Stdout: upTo.Stdout, Stderr: upTo.Stderr}, nil)
}

// Stdin writes to a command started with Exec.Stdin. It returns when the command's pipe took all of it.
func (c *Client) Stdin(ctx context.Context, id string, data []byte) error {
	x, err := c.open(ctx, wire.OpStdin, wire.Command{ID: id, Size: int64(len(data))})
	if err != nil {
		return err
	}
	defer x.close()
	return x.send(wire.OpStdin, data)
}

// send writes the bytes that a request announced and waits for the answer, which may be a refusal that came
// before they were read.
func (x *exchange) send(op string, data []byte) error {
	written := make(chan error, 1)
	go func() {
		_, err := x.Write(data)
		written <- err
	}()
	err := x.answer(op, nil)
	if err != nil {
		x.SetWriteDeadline(time.Unix(1, 0))
	}
	if werr := <-written; err == nil && werr != nil {
		return x.failed(op, werr)
	}
	return err
}

// CloseStdin ends a command's standard input.
func (c *Client) CloseStdin(ctx context.Context, id string) error {
	return c.call(ctx, wire.OpCloseStdin, wire.Command{ID: id}, nil)
}

// Signal sends a signal ("SIGINT", "SIGTERM", "SIGKILL") to a command's whole process tree. After SIGKILL it
// returns when nothing of the tree is left. A command that has ended may still have left processes: they
// get the signal.
func (c *Client) Signal(ctx context.Context, id, signal string) error {
	return c.call(ctx, wire.OpSignal, wire.Command{ID: id, Signal: signal}, nil)
}

// Status tells about one command; a *FileError with ErrNotFound when the guest does not know it.
func (c *Client) Status(ctx context.Context, id string) (Status, error) {
	var s Status
	err := c.call(ctx, wire.OpStatus, wire.Command{ID: id}, &s)
	return s, err
}

// Forget drops an ended command and its spool. A command that runs is refused; what is not known is success.
func (c *Client) Forget(ctx context.Context, id string) error {
	return c.call(ctx, wire.OpForget, wire.Command{ID: id}, nil)
}

// Run starts a command, waits for its exit and forgets it. It returns what the spool kept of the output: of a
// log the first and the last part, of a protocol everything, and an error when that is more than SpoolBytes
// (64 MiB without). When ctx ends first, the command's tree is killed.
func (c *Client) Run(ctx context.Context, e Exec) (stdout, stderr []byte, exit Exit, err error) {
	defer func() {
		var refused *Refused
		if errors.As(err, &refused) {
			return // nothing was started
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupPeriod)
		defer cancel()
		if err != nil && c.Signal(ctx, e.ID, "SIGKILL") != nil {
			return
		}
		if ferr := c.Forget(ctx, e.ID); err == nil && ferr != nil {
			err = ferr
		}
	}()
	if err := c.Start(ctx, e); err != nil {
		return nil, nil, Exit{}, err
	}
	bound := e.SpoolBytes
	if bound <= 0 {
		bound = maxCollected
	}
	if e.Spool != SpoolProtocol {
		// Nothing is read before the end: then the spool holds what is to be kept and no more.
		ended, err := c.Follow(ctx, e.ID, Offsets{Stdout: math.MaxInt64, Stderr: math.MaxInt64}, nil)
		if err != nil {
			return nil, nil, Exit{}, err
		}
		if ended.StdoutBytes == 0 && ended.StderrBytes == 0 {
			return nil, nil, *ended, nil
		}
		bound = math.MaxInt64
	}
	var kept [2]bytes.Buffer
	var done Offsets
	ended, err := c.Follow(ctx, e.ID, Offsets{}, func(chunk Chunk) error {
		buf, at := &kept[0], &done.Stdout
		if chunk.Stream == Stderr {
			buf, at = &kept[1], &done.Stderr
		}
		buf.Write(chunk.Data)
		*at = chunk.Offset + int64(len(chunk.Data))
		if int64(buf.Len()) > bound {
			return fmt.Errorf("guest run: the command printed more than the %d bytes its spool may hold", bound)
		}
		if e.Spool == SpoolProtocol {
			return c.Ack(ctx, e.ID, done)
		}
		return nil
	})
	if err != nil {
		return kept[0].Bytes(), kept[1].Bytes(), Exit{}, err
	}
	return kept[0].Bytes(), kept[1].Bytes(), *ended, nil
}

// Records follows what the recording shell recorded under a tag, oldest first, from the first record whose Seq
// is greater than after. It returns when ctx ends, each fails, or the connection does. The guest keeps the
// newest 16 MiB of records.
func (c *Client) Records(ctx context.Context, tag string, after int64, each func(Record) error) error {
	x, err := c.open(ctx, wire.OpRecords, wire.Tag{Tag: tag, After: after})
	if err != nil {
		return err
	}
	defer x.close()
	if err := x.answer(wire.OpRecords, nil); err != nil {
		return err
	}
	for {
		kind, payload, err := wire.ReadFrame(x)
		if err != nil {
			return x.failed(wire.OpRecords, err)
		}
		var r Record
		if kind != wire.FrameRecord {
			return fmt.Errorf("guest records: unknown frame %q", kind)
		}
		if err := json.Unmarshal(payload, &r); err != nil {
			return fmt.Errorf("guest records: %w", err)
		}
		if err := each(r); err != nil {
			return err
		}
	}
}

// --- disk, always as Sprite, always resolved through links under the roots with no race ---

// List lists a directory that lies, after links are resolved, under one of roots. At most limit entries,
// directories first, then by name; more tells that there were others.
func (c *Client) List(ctx context.Context, roots []string, path string, limit int) (entries []Entry, more bool, err error) {
	var l wire.Listing
	if err := c.call(ctx, wire.OpList, wire.Path{Roots: roots, Path: path, Limit: int64(limit)}, &l); err != nil {
		return nil, false, err
	}
	if err := json.Unmarshal(l.Entries, &entries); err != nil {
		return nil, false, fmt.Errorf("guest list: %w", err)
	}
	return entries, l.More, nil
}

// Stat tells about a path (following links) under one of roots, and the path after links were resolved.
func (c *Client) Stat(ctx context.Context, roots []string, path string) (Entry, string, error) {
	var f wire.Found
	if err := c.call(ctx, wire.OpStat, wire.Path{Roots: roots, Path: path}, &f); err != nil {
		return Entry{}, "", err
	}
	var e Entry
	if err := json.Unmarshal(f.Entry, &e); err != nil {
		return Entry{}, "", fmt.Errorf("guest stat: %w", err)
	}
	return e, f.Path, nil
}

// ReadFile reads at most max bytes of a regular file under one of roots; size is the whole file's.
func (c *Client) ReadFile(ctx context.Context, roots []string, path string, max int64) (data []byte, size int64, err error) {
	if max <= 0 {
		return nil, 0, &FileError{Code: ErrTooLarge, Path: path}
	}
	r, size, err := c.read(ctx, roots, path, max)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	data, err = io.ReadAll(io.LimitReader(r, max))
	if err != nil {
		return nil, 0, err
	}
	return data, size, nil
}

// OpenFile streams a regular file under one of roots. A stream that breaks off is an error of Read, never an
// early end.
func (c *Client) OpenFile(ctx context.Context, roots []string, path string) (io.ReadCloser, int64, error) {
	return c.read(ctx, roots, path, 0)
}

func (c *Client) read(ctx context.Context, roots []string, path string, limit int64) (io.ReadCloser, int64, error) {
	x, err := c.open(ctx, wire.OpRead, wire.Path{Roots: roots, Path: path, Limit: limit})
	if err != nil {
		return nil, 0, err
	}
	var f wire.Found
	if err := x.answer(wire.OpRead, &f); err != nil {
		x.close()
		return nil, 0, err
	}
	return &fileReader{x: x}, f.Size, nil
}

// fileReader reads the data frames of one file.
type fileReader struct {
	x    *exchange
	rest []byte
	err  error
}

func (r *fileReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		kind, payload, err := wire.ReadFrame(r.x)
		switch {
		case err != nil:
			r.err = r.x.failed(wire.OpRead, err)
		case kind == wire.FrameData:
			r.rest = payload
		case kind == wire.FrameEnd:
			r.err = io.EOF
			var a wire.Answer
			if err := json.Unmarshal(payload, &a); err != nil {
				r.err = fmt.Errorf("guest read: %w", err)
			} else if err := decode(wire.OpRead, a, nil); err != nil {
				r.err = err
			}
		default:
			r.err = fmt.Errorf("guest read: unknown frame %q", kind)
		}
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *fileReader) Close() error {
	r.x.close()
	return nil
}

// WriteFile writes a file as Sprite through a temporary name and a rename, making its directories (0700 under
// ~/.managoat, else 0755). path must lie under one of roots after links in its directory are resolved.
func (c *Client) WriteFile(ctx context.Context, roots []string, path string, data []byte, mode uint32) error {
	return c.write(ctx, wire.Path{Roots: roots, Path: path, Mode: mode}, data)
}

// WriteRootFile writes a file under /etc as machine root, like WriteFile. Where the machine has no root it is
// written by the one user there is.
func (c *Client) WriteRootFile(ctx context.Context, path string, data []byte, mode uint32) error {
	return c.write(ctx, wire.Path{Path: path, Mode: mode, Root: true}, data)
}

func (c *Client) write(ctx context.Context, p wire.Path, data []byte) error {
	p.Size = int64(len(data))
	x, err := c.open(ctx, wire.OpWrite, p)
	if err != nil {
		return err
	}
	defer x.close()
	return x.send(wire.OpWrite, data)
}

// Mkdir makes a directory and its parents as Sprite, under one of roots, and returns it with links resolved.
func (c *Client) Mkdir(ctx context.Context, roots []string, path string, mode uint32) (string, error) {
	var f wire.Found
	err := c.call(ctx, wire.OpMkdir, wire.Path{Roots: roots, Path: path, Mode: mode}, &f)
	return f.Path, err
}

// Remove removes a file or a whole tree under one of roots; what is not there is success.
func (c *Client) Remove(ctx context.Context, roots []string, path string) error {
	return c.call(ctx, wire.OpRemove, wire.Path{Roots: roots, Path: path}, nil)
}

// CopyTree copies regular files and directories with their modes; symlinks and anything else are skipped. A source that is itself
// a symlink, or does not exist, copies nothing. What Sprite cannot read is a *FileError with ErrUnreadable.
func (c *Client) CopyTree(ctx context.Context, roots []string, from, to string) error {
	return c.call(ctx, wire.OpCopyTree, wire.Path{Roots: roots, Path: from, To: to}, nil)
}

// --- egress ---

// EgressRequest heads every stream that a guest opens to the egress process: one per connection made inside.
type EgressRequest struct {
	// Listener is where the program connected: "proxy" (127.0.0.1:3128), "model" and "api" (the two internal names).
	Listener string `json:"listener"`
}

// Accept waits for the next connection made inside the machine (RoleEgress only). The stream carries exactly
// the bytes of that connection, half-closes included: it has a CloseWrite.
func (c *Client) Accept(ctx context.Context) (net.Conn, EgressRequest, error) {
	for {
		stream, err := c.session.AcceptStreamWithContext(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, EgressRequest{}, ctx.Err()
			}
			return nil, EgressRequest{}, fmt.Errorf("guest accept: %w", ErrGone)
		}
		// The guest writes the head together with the opening of the stream.
		stream.SetReadDeadline(time.Now().Add(dialTimeout))
		var head EgressRequest
		if err := wire.ReadMessage(stream, &head); err != nil {
			stream.Close() // a guest that breaks one stream must not end the others
			continue
		}
		stream.SetReadDeadline(time.Time{})
		return wire.NewPipe(stream), head, nil
	}
}
