package journal

import (
	"io"
	"log"
	"net/http"
)

// NoLog is for HTTP servers and relays that would print every failure of a machine: each is a row already.
var NoLog = log.New(io.Discard, "", 0)

// Writer passes an answer on and notes its status, when it began and its size in a row.
type Writer struct {
	http.ResponseWriter
	Row *Request
}

// Unwrap lets http.ResponseController flush and hijack.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status of the answer itself, not of what comes before it.
func (w *Writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.Row.Status, w.Row.LatencyMS = status, Since(w.Row.At)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.Row.BytesIn += int64(n)
	return n, err
}
