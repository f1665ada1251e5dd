package stream

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// Bounds of what is written to a client. A stream as a whole has none.
const (
	writeTimeout  = 30 * time.Second // for one write; a client that takes longer is gone
	deadlineEvery = time.Second      // the timeout is exact to this: with a thousand clients, setting it for each frame costs
	writeBytes    = 32 << 10         // of frames that are there already and leave together
)

// Frame is one server-sent event. ID is set only for durable rows: a reader goes on after the last id it saw.
type Frame struct {
	ID    int64
	Event string // "" is an unnamed message
	Data  []byte // may hold several lines
}

// Encode makes the frame of a row. false leaves the row out; its number is then not said, the next row's is.
type Encode func(Item) (Frame, bool, error)

// Cursor reads where a reader wants to go on: the Last-Event-ID header and ?after= are equal, the larger wins. none is
// returned when neither is given or can be read.
func Cursor(r *http.Request, none int64) int64 {
	at := none
	for _, s := range []string{r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")} {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
			at = max(at, n)
		}
	}
	return at
}

// ServeSSE writes a stream to a client until one of the two ends. An error of the stream is returned only before anything
// was written, so that it can still be answered as a refusal; later it closes the connection, and the client goes on from
// the last id it saw. A row that cannot be encoded is an error at any time.
func ServeSSE(w http.ResponseWriter, r *http.Request, items iter.Seq2[Item, error], encode Encode) error {
	out := client{w: w, control: http.NewResponseController(w)}
	for item, err := range items {
		if err != nil {
			if out.open || errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		switch item.Kind {
		case Open:
		case Alive:
			out.buf.WriteString(": heartbeat\n\n")
		case Reset:
			out.frame(Frame{Event: "reset", Data: []byte("{}")})
		case End:
			out.frame(Frame{Event: "end", Data: []byte("{}")})
		default:
			f, wanted, err := encode(item)
			if err != nil {
				return err
			}
			if wanted {
				out.frame(f)
			}
		}
		if item.More && out.buf.Len() < writeBytes {
			continue
		}
		if !out.flush() {
			return nil // the client is gone
		}
	}
	return nil
}

// client is where frames go.
type client struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
	open    bool
	allowed time.Time // when the deadline of writes was last set
}

// flush sends what there is; the headers before.
func (c *client) flush() bool {
	if now := time.Now(); now.Sub(c.allowed) >= deadlineEvery {
		// The server's own timeout is for answers that end. Recorders of tests know none.
		if err := c.control.SetWriteDeadline(now.Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return false
		}
		c.allowed = now
	}
	if !c.open {
		c.open = true
		h := c.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-store, no-transform")
		h.Set("X-Accel-Buffering", "no")
		c.w.WriteHeader(http.StatusOK)
	}
	_, err := c.w.Write(c.buf.Bytes())
	if c.buf.Cap() > 2*writeBytes {
		c.buf = bytes.Buffer{} // an idle stream keeps no large frame's memory
	}
	c.buf.Reset()
	return err == nil && c.control.Flush() == nil
}

func (c *client) frame(f Frame) {
	if f.ID > 0 {
		c.buf.WriteString("id: ")
		c.buf.Write(strconv.AppendInt(c.buf.AvailableBuffer(), f.ID, 10))
		c.buf.WriteByte('\n')
	}
	if f.Event != "" {
		c.buf.WriteString("event: ")
		c.buf.WriteString(f.Event)
		c.buf.WriteByte('\n')
	}
	for line := range bytes.SplitSeq(lineEnds(f.Data), []byte("\n")) {
		c.buf.WriteString("data: ")
		c.buf.Write(line)
		c.buf.WriteByte('\n')
	}
	c.buf.WriteByte('\n')
}

// lineEnds makes every end of a line the same: to a reader of events a lone CR is one too, and what follows it a field.
func lineEnds(data []byte) []byte {
	if bytes.IndexByte(data, '\r') < 0 {
		return data
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
}
