// Package wire is how a guest and its callers talk: yamux streams, each headed by one length-prefixed JSON
// request and answered by one length-prefixed JSON answer, with binary frames after it where bytes flow.
// Both sides decode under the limits below; neither trusts the other's lengths.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Limits of the protocol.
const (
	MaxMessage = 8 << 20   // a request or an answer: an environment and an argument list, or 10,000 directory entries
	MaxFrame   = 1 << 20   // one frame: at most a record of the recording shell
	window     = 512 << 10 // what one stream may have in flight
	backlog    = 1024      // streams opened and not yet accepted
)

// Operations, one per stream.
const (
	OpHello      = "hello"
	OpStart      = "start"
	OpFollow     = "follow"
	OpAck        = "ack"
	OpStdin      = "stdin"
	OpCloseStdin = "close_stdin"
	OpSignal     = "signal"
	OpStatus     = "status"
	OpForget     = "forget"
	OpList       = "list"
	OpStat       = "stat"
	OpRead       = "read"
	OpWrite      = "write"
	OpMkdir      = "mkdir"
	OpRemove     = "remove"
	OpCopyTree   = "copy_tree"
	OpRecords    = "records"
)

// Codes of errors that are not about a path.
const (
	CodeInvalid     = "invalid"
	CodeDenied      = "denied"
	CodeExists      = "command_exists"
	CodeUnsupported = "unsupported"
	CodeInternal    = "internal"
)

// Request heads every stream.
type Request struct {
	Op   string          `json:"op"`
	Body json.RawMessage `json:"body,omitempty"`
}

// Answer is the other side's reply to a Request: an error or a body.
type Answer struct {
	Error *Error          `json:"error,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
}

// Error of an operation. Path is set for disk operations.
type Error struct {
	Code    string `json:"code"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message,omitempty"`
}

func (e *Error) Error() string {
	switch {
	case e.Path != "":
		return e.Code + ": " + e.Path
	case e.Message != "":
		return e.Message
	}
	return e.Code
}

// Hello is the body of OpHello.
type Hello struct {
	Version int    `json:"version"`
	Role    string `json:"role"`
}

// Command is the body of the operations on one command.
type Command struct {
	ID     string `json:"id"`
	Stdout int64  `json:"stdout,omitempty"`
	Stderr int64  `json:"stderr,omitempty"`
	Signal string `json:"signal,omitempty"`
	Size   int64  `json:"size,omitempty"` // of the bytes that follow (OpStdin)
}

// Path is the body of the disk operations.
type Path struct {
	Roots []string `json:"roots"`
	Path  string   `json:"path"`
	To    string   `json:"to,omitempty"`
	Limit int64    `json:"limit,omitempty"` // entries (OpList) or bytes (OpRead, 0: all)
	Size  int64    `json:"size,omitempty"`  // of the bytes that follow (OpWrite)
	Mode  uint32   `json:"mode,omitempty"`
	Root  bool     `json:"root,omitempty"` // write as machine root (OpWrite)
}

// Found is the answer of OpStat, OpMkdir and OpRead.
type Found struct {
	Path  string          `json:"path,omitempty"`
	Size  int64           `json:"size,omitempty"`
	Entry json.RawMessage `json:"entry,omitempty"`
}

// Listing is the answer of OpList.
type Listing struct {
	Entries json.RawMessage `json:"entries"`
	More    bool            `json:"more"`
}

// Tag is the body of OpRecords.
type Tag struct {
	Tag   string `json:"tag"`
	After int64  `json:"after,omitempty"`
}

// WriteMessage writes v as one length-prefixed JSON message.
func WriteMessage(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(body) > MaxMessage {
		return &Error{Code: CodeInvalid, Message: fmt.Sprintf("a message of %d bytes is over the limit of %d", len(body), MaxMessage)}
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...))
	return err
}

// ReadMessage reads one message into v.
func ReadMessage(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxMessage {
		return fmt.Errorf("a message of %d bytes is over the limit of %d", n, MaxMessage)
	}
	// Grown as bytes arrive: a length alone must not cost memory.
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(body) < int(n) {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}

// Kinds of frames.
const (
	FrameOutput byte = 'o' // a piece of a command's output: Output
	FrameExit   byte = 'x' // JSON of the exit; the last frame
	FrameData   byte = 'd' // bytes of a file
	FrameEnd    byte = 'e' // JSON of an Answer; the last frame of a file
	FrameRecord byte = 'r' // JSON of a record of the recording shell
)

const frameHead = 5

// WriteFrame writes a frame whose payload is the concatenation of parts, with one write.
func WriteFrame(w io.Writer, kind byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > MaxFrame {
		return fmt.Errorf("a frame of %d bytes is over the limit of %d", n, MaxFrame)
	}
	buf := make([]byte, 0, frameHead+n)
	buf = append(buf, kind)
	buf = binary.BigEndian.AppendUint32(buf, uint32(n))
	for _, p := range parts {
		buf = append(buf, p...)
	}
	_, err := w.Write(buf)
	return err
}

// ReadFrame reads a frame. The payload is the caller's.
func ReadFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes is over the limit of %d", n, MaxFrame)
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	return head[0], payload, nil
}

// Output is the head of a FrameOutput; the bytes follow it.
type Output struct {
	Stderr  bool
	Offset  int64
	Dropped int64
	At      time.Time
}

const outputHead = 1 + 3*8

// Bytes encodes the head.
func (o Output) Bytes() []byte {
	b := make([]byte, 1, outputHead)
	if o.Stderr {
		b[0] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(o.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(o.Dropped))
	return binary.BigEndian.AppendUint64(b, uint64(o.At.UnixNano()))
}

// ParseOutput splits a FrameOutput's payload.
func ParseOutput(payload []byte) (Output, []byte, error) {
	if len(payload) < outputHead {
		return Output{}, nil, errors.New("a frame of output is too short")
	}
	o := Output{
		Stderr:  payload[0] == 1,
		Offset:  int64(binary.BigEndian.Uint64(payload[1:])),
		Dropped: int64(binary.BigEndian.Uint64(payload[9:])),
		At:      time.Unix(0, int64(binary.BigEndian.Uint64(payload[17:]))),
	}
	if o.Offset < 0 || o.Dropped < 0 {
		return Output{}, nil, errors.New("a frame of output has a negative offset")
	}
	return o, payload[outputHead:], nil
}
