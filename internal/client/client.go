// Package client calls a Managoat server's JSON API and follows its streams. The command line is built on it.
package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Client of one server. Key may be empty for the routes that need none.
type Client struct {
	Base string // http://127.0.0.1:8080
	Key  string
	HTTP *http.Client // nil: http.DefaultClient
	// Away is told when a stream that is followed cannot be had, with the cause, and when it goes on, with nil; nil: nobody is.
	// A connection that breaks and stands again at once is neither.
	Away func(cause error)

	silence time.Duration // 0: silence, but for tests
}

func (c *Client) patience() time.Duration { return cmp.Or(c.silence, silence) }

// Limits of what is read from a server.
const (
	maxAnswer = 64 << 20
	maxFrame  = 16 << 20
)

// Refused is an answer of no. Its message says what to do.
type Refused struct {
	Status  int
	Code    string
	Message string
	Body    json.RawMessage
}

func (e *Refused) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the server answered %d %s", e.Status, e.Code)
	}
	return e.Message + " (" + e.Code + ")"
}

// Unreachable says that no server answered.
type Unreachable struct {
	Base string
	Err  error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("no answer from %s: %v. Does a server run there? managoat serve starts one", e.Base, e.Err)
}
func (e *Unreachable) Unwrap() error { return e.Err }

// attempts of a POST whose answer was lost on the way.
const attempts = 3

// Do calls one endpoint. in is sent as JSON unless nil; the answer is decoded into out unless nil. A POST carries an
// Idempotency-Key: when the connection breaks before its answer, it is asked for that answer again and acts once.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	if method != http.MethodPost || c.Key == "" { // without a key it is a sign-in, which knows no such keys
		return c.do(ctx, method, path, body, nil, out)
	}
	header := http.Header{"Idempotency-Key": {uuid.NewString()}}
	for n := 1; ; n++ {
		err := c.do(ctx, method, path, body, header, out)
		if n == attempts || !lost(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(n) * firstPause):
		}
	}
}

// lost tells whether a request may have acted and its answer did not come, or not yet. Where nobody listens nothing acted.
func lost(err error) bool {
	var refused *Refused
	var gone *Unreachable
	var op *net.OpError
	switch {
	case errors.As(err, &refused):
		return refused.Code == "idempotency_in_progress"
	case errors.As(err, &gone):
		return !errors.As(gone.Err, &op) || op.Op != "dial"
	}
	return false
}

func (c *Client) do(ctx context.Context, method, path string, in []byte, header http.Header, out any) error {
	var body io.Reader
	if in != nil {
		body = bytes.NewReader(in)
	}
	resp, err := c.send(ctx, method, path, body, "application/json", header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return &Unreachable{c.Base, err}
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	if raw, ok := out.(*json.RawMessage); ok {
		*raw = b
		return nil
	}
	return json.Unmarshal(b, out)
}

// Get is Do for reads.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.Do(ctx, http.MethodGet, path, nil, out)
}

// Download writes an endpoint's body, asking for one content type.
func (c *Client) Download(ctx context.Context, path, accept string, w io.Writer) error {
	resp, err := c.send(ctx, http.MethodGet, path, nil, accept, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return &Unreachable{c.Base, err}
	}
	return nil
}

func (c *Client) send(ctx context.Context, method, path string, body io.Reader, accept string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Base, "/")+path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Accept", accept)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	httpClient := c.HTTP
	if httpClient == nil {
		httpClient = http.DefaultClient
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the URL
		}
		return nil, &Unreachable{c.Base, err}
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		r := &Refused{Status: resp.StatusCode, Body: b}
		var e struct{ Error, Message string }
		if json.Unmarshal(b, &e) == nil {
			r.Code, r.Message = e.Error, e.Message
		}
		return nil, r
	}
	return resp, nil
}

// Opened is the event of the frame that Follow makes itself each time a connection stands: what was read before it may
// be out of date, what comes after it will not be missed.
const Opened = "opened"

// Frame of a stream.
type Frame struct {
	ID    string
	Event string
	Data  []byte
}

// ErrStop ends Follow without an error when each returns it.
var ErrStop = errors.New("stop following")

// Pauses between attempts to connect again.
const (
	firstPause = 200 * time.Millisecond
	longest    = 5 * time.Second
	// silence is how long a stream may say nothing: more than twice the server's heartbeat (15 s).
	silence = 40 * time.Second
)

// Follow reads a stream, from the frame after the given id, and connects again from the last id it saw when the
// connection ends, until the stream says "end", each says ErrStop, or ctx ends. A refusal ends it at once. That it has to
// wait for the server is told to Away.
func (c *Client) Follow(ctx context.Context, path, after string, each func(Frame) error) error {
	pause, away := firstPause, false
	for {
		opened := false
		ended, err := c.follow(ctx, path, &after, func(f Frame) error {
			if pause, opened = firstPause, true; away {
				away = false
				c.Away(nil)
			}
			return each(f)
		})
		var refused *Refused
		var gone *Unreachable
		switch {
		case errors.Is(err, ErrStop) || ended:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status != http.StatusServiceUnavailable && refused.Status != http.StatusBadGateway && refused.Status != http.StatusTooManyRequests:
			return err
		case err != nil && !errors.As(err, &gone) && refused == nil:
			return err
		}
		if !opened && !away && c.Away != nil {
			away = true
			c.Away(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

func (c *Client) follow(ctx context.Context, path string, after *string, each func(Frame) error) (ended bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := http.Header{}
	if *after != "" {
		header.Set("Last-Event-ID", *after)
	}
	watchdog := time.AfterFunc(c.patience(), cancel) // for the answer too: something on the way may hold it back
	defer watchdog.Stop()
	resp, err := c.send(ctx, http.MethodGet, path, nil, "text/event-stream", header)
	if err != nil {
		if ctx.Err() != nil {
			err = &Unreachable{c.Base, errors.New("it says nothing")}
		}
		return false, err
	}
	defer resp.Body.Close()
	if err := each(Frame{Event: Opened}); err != nil {
		return false, err
	}
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	var f Frame
	var data bytes.Buffer
	for {
		line, err := readLine(lines)
		if err != nil {
			return false, &Unreachable{c.Base, err}
		}
		watchdog.Reset(c.patience())
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data.Len() > 0 || f.Event != "" {
				f.Data = bytes.TrimSuffix(data.Bytes(), []byte("\n"))
				if f.Event == "end" {
					return true, nil
				}
				if err := each(f); err != nil {
					return false, err
				}
				if f.ID != "" {
					*after = f.ID
				}
			}
			f, data = Frame{}, bytes.Buffer{}
		case field == "id":
			f.ID = value
		case field == "event":
			f.Event = value
		case field == "data":
			if data.Len()+len(value) > maxFrame {
				return false, fmt.Errorf("a frame of %s is larger than %d bytes", path, maxFrame)
			}
			data.WriteString(value)
			data.WriteByte('\n')
		}
	}
}

func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxFrame {
			return "", errors.New("line too long")
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(line), "\r\n"), nil
	}
}
