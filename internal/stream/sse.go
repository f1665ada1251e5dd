package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// frameTimeout is how long one frame may take to leave; a stream as a whole has no limit.
const frameTimeout = 30 * time.Second

// Frame is one server-sent event. ID is set only for durable rows: a reader goes on after the last id it saw.
type Frame struct {
	ID    int64
	Event string // "" is an unnamed message
	Data  []byte // may hold several lines
}

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

// ServeSSE writes a stream to a client. encode makes the frame of a row; false leaves it out (its number is not said:
// the next row's is). The first error comes before anything is written, so that it can still answer as a refusal.
func ServeSSE(w http.ResponseWriter, r *http.Request, items iter.Seq2[Item, error], encode func(Item) (Frame, bool, error)) error {
	control := http.NewResponseController(w)
	started := false
	start := func() error {
		if started {
			return nil
		}
		started = true
		h := w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-store, no-transform")
		h.Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
		return control.Flush()
	}
	var b bytes.Buffer
	for item, err := range items {
		if err != nil {
			if started || errors.Is(err, context.Canceled) {
				return nil // the client connects again and is told then
			}
			return err
		}
		b.Reset()
		switch item.Kind {
		case Open:
			if err := start(); err != nil {
				return nil
			}
			continue
		case Alive:
			b.WriteString(": alive\n\n")
		case Reset:
			write(&b, Frame{Event: "reset", Data: []byte("{}")})
		case End:
			write(&b, Frame{Event: "end", Data: []byte("{}")})
		default:
			f, wanted, err := encode(item)
			if err != nil {
				return err
			}
			if !wanted {
				continue
			}
			write(&b, f)
		}
		if err := start(); err != nil {
			return nil
		}
		// Some writers (tests' recorders) know no deadline; a real connection does.
		if err := control.SetWriteDeadline(time.Now().Add(frameTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return nil
		}
		if _, err := w.Write(b.Bytes()); err != nil {
			return nil // the client is gone
		}
		if err := control.Flush(); err != nil {
			return nil
		}
	}
	return nil
}

func write(b *bytes.Buffer, f Frame) {
	if f.ID > 0 {
		fmt.Fprintf(b, "id: %d\n", f.ID)
	}
	if f.Event != "" {
		fmt.Fprintf(b, "event: %s\n", f.Event)
	}
	for line := range bytes.SplitSeq(f.Data, []byte("\n")) {
		b.WriteString("data: ")
		b.Write(bytes.TrimSuffix(line, []byte("\r")))
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}
