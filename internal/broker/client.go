package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// Times the server's side keeps.
const (
	controlTimeout = 10 * time.Second      // one control call that does not wait for anything
	goneTimeout    = 2 * time.Second       // for a process to say that it is there still
	spawnTimeout   = 15 * time.Second      // from a start of the process until its socket answers
	socketPoll     = 5 * time.Millisecond  // between looks for the socket of a process just started
	retryFirst     = 50 * time.Millisecond // first pause after the process was lost or a sink failed
	retryMost      = 5 * time.Second       // longest pause, each doubles the last
	retireEvery    = 2 * time.Second       // between looks whether a process of another build may end
	probeWait      = 2 * time.Second       // the process answers a probe at least this often
	rowsWait       = 20 * time.Second      // the process answers a wait for rows at least this often
	rowsTimeout    = rowsWait + controlTimeout
	maxControlBody = 256 << 20 // bytes of one control message: the full set of a large host, with room
)

// Sink stores the rows. A nil error acknowledges them for good. After a crash of the server rows may come
// again with the same ID: storing one twice must be a no-op.
type Sink interface {
	Requests(ctx context.Context, rows []RequestRow) error
	Usage(ctx context.Context, rows []UsageRow) error
}

// Spawn starts the egress process of a directory, detached, and returns when it was started. Its error, or nil,
// is sent on exited when it ends. A process that finds another one serving the directory ends with ErrServed.
type Spawn func(ctx context.Context, dir string) (exited <-chan error, err error)

// ClientOptions of Connect.
type ClientOptions struct {
	Spawn    Spawn // required
	Sink     Sink  // required
	Settings Settings
	Log      *slog.Logger // nil: slog.Default()
	// Build is the version of this binary. A process of another one is replaced in a moment when nothing goes through it.
	Build string
}

// Client is the server's side of the egress process. It starts or adopts the process, connects again with growing
// pauses when it is gone, and then sends everything it was told again. Safe for concurrent use.
type Client struct {
	dir  string
	opts ClientOptions
	log  *slog.Logger
	http *http.Client

	// order makes what is sent follow what was told: one change, or the whole state, at a time.
	order sync.Mutex

	mu       sync.Mutex
	machines map[uuid.UUID]Machine
	tokens   map[uuid.UUID]Token
	complete bool
	boot     string        // of the process that has our state; "" while there is none
	build    string        // of that one
	ready    chan struct{} // closed while boot is set
	lastErr  error         // why there is no process
	unfollow func()        // ends keep's waiting on the process of boot

	cancel context.CancelFunc
	done   chan struct{}
}

// ErrIncompatible says that a process of another protocol version serves the directory.
var ErrIncompatible = errors.New("the running egress process is of another version")

// errLost says that the process is gone or was replaced: its state must be sent again.
var errLost = errors.New("the egress process is away")

// Connect starts the egress process of dir or adopts the one that runs, and returns when it has the settings. ctx
// bounds this call only; the connection is kept until Close.
func Connect(ctx context.Context, dir string, o ClientOptions) (*Client, error) {
	path, err := socketPath(dir)
	if err != nil {
		return nil, err
	}
	if err := prepareDir(dir); err != nil {
		return nil, fmt.Errorf("egress directory: %w", err)
	}
	c := &Client{
		dir: dir, opts: o, log: o.Log,
		http:     controlClient(path),
		machines: map[uuid.UUID]Machine{},
		tokens:   map[uuid.UUID]Token{},
		ready:    make(chan struct{}),
		done:     make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if err := c.establish(ctx); err != nil {
		c.http.CloseIdleConnections()
		return nil, err
	}
	keep, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	go c.keep(keep)
	return c, nil
}

func controlClient(path string) *http.Client {
	var d net.Dialer
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) },
	}}
}

// Close ends the server's side. The egress process and everything it carries go on.
func (c *Client) Close() error {
	c.cancel()
	<-c.done
	c.http.CloseIdleConnections()
	return nil
}

// PutMachine tells the process to connect to a machine's guest, or changes what it knows of it. Putting a
// machine that is not connected makes it try at once.
func (c *Client) PutMachine(ctx context.Context, m Machine) error {
	c.mu.Lock()
	c.machines[m.ID] = m
	c.mu.Unlock()
	return c.change(ctx, func(boot string) error {
		if m, ok := get(c, c.machines, m.ID); ok {
			return c.call(ctx, boot, http.MethodPut, "/machines/"+m.ID.String(), m, nil)
		}
		return nil // removed meanwhile
	})
}

// RemoveMachine ends the connection to a machine's guest and all traffic of the machine.
func (c *Client) RemoveMachine(ctx context.Context, id uuid.UUID) error {
	c.mu.Lock()
	delete(c.machines, id)
	c.mu.Unlock()
	return c.change(ctx, func(boot string) error {
		if _, ok := get(c, c.machines, id); ok {
			return nil // put again meanwhile
		}
		return c.call(ctx, boot, http.MethodDelete, "/machines/"+id.String(), nil, nil)
	})
}

// PutToken makes a token known or changes what it stands for; the next request that shows it is judged by that.
// It returns when the process has it.
func (c *Client) PutToken(ctx context.Context, t Token) error {
	c.mu.Lock()
	c.tokens[t.ID] = t
	c.mu.Unlock()
	return c.change(ctx, func(boot string) error {
		if t, ok := get(c, c.tokens, t.ID); ok {
			return c.call(ctx, boot, http.MethodPut, "/tokens/"+t.ID.String(), tokenOnWire(t), nil)
		}
		return nil
	})
}

// RemoveToken makes a token unknown and ends the connections that were opened with it.
func (c *Client) RemoveToken(ctx context.Context, id uuid.UUID) error {
	c.mu.Lock()
	delete(c.tokens, id)
	c.mu.Unlock()
	return c.change(ctx, func(boot string) error {
		if _, ok := get(c, c.tokens, id); ok {
			return nil
		}
		return c.call(ctx, boot, http.MethodDelete, "/tokens/"+id.String(), nil, nil)
	})
}

// Prune makes the process forget every machine and token that was not put through this client. A server calls
// it once after its start, when it has put all that live; before that, an adopted process keeps what it has.
func (c *Client) Prune(ctx context.Context) error {
	c.mu.Lock()
	c.complete = true
	c.mu.Unlock()
	return c.change(ctx, func(boot string) error { return c.sendState(ctx, boot) })
}

// Probe waits until the process holds a live connection to the machine's guest. When ctx ends first its error
// says what stood in the way.
func (c *Client) Probe(ctx context.Context, machineID uuid.UUID) error {
	why := "no attempt has ended yet"
	for {
		var answer probeAnswer
		err := c.retry(ctx, func(boot string) error {
			ctx, cancel := context.WithTimeout(ctx, probeWait+controlTimeout)
			defer cancel()
			return c.call(ctx, boot, http.MethodGet, "/machines/"+machineID.String()+"/probe", nil, &answer)
		})
		switch {
		case err == nil && answer.Connected:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("egress does not reach the guest of machine %s: %s: %w", machineID, why, ctx.Err())
		case err != nil:
			return err
		case answer.Error != "":
			why = answer.Error
		}
	}
}

// Boot names the egress process that has our state; "" while there is none.
func (c *Client) Boot() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

// Gone tells that the named process serves no more: what it carried has ended with it. It asks, since a process that has
// just died may not be missed yet; without an answer in time there is none.
func (c *Client) Gone(ctx context.Context, boot string) bool {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	h, err := c.hello(ctx)
	return err != nil || h.Boot.String() != boot
}

func get[T any](c *Client, from map[uuid.UUID]T, id uuid.UUID) (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := from[id]
	return v, ok
}

// change sends one change in order, again after every loss of the process, until it has it.
func (c *Client) change(ctx context.Context, send func(boot string) error) error {
	return c.retry(ctx, func(boot string) error {
		c.order.Lock()
		defer c.order.Unlock()
		return send(boot)
	})
}

// retry waits for a process and calls it, until the call has an answer.
func (c *Client) retry(ctx context.Context, call func(boot string) error) error {
	for {
		c.mu.Lock()
		boot, ready, last := c.boot, c.ready, c.lastErr
		c.mu.Unlock()
		if boot == "" {
			select {
			case <-ready:
				continue
			case <-c.done:
				return errors.New("egress client: closed")
			case <-ctx.Done():
				return fmt.Errorf("egress process: %w (%w)", ctx.Err(), errors.Join(errLost, last))
			}
		}
		err := call(boot)
		if err == nil || !errors.Is(err, errLost) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("egress process: %w", errors.Join(ctx.Err(), err))
		}
		c.lose(boot, err)
	}
}

// lose marks the process of boot as gone; keep finds or starts the next one.
func (c *Client) lose(boot string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.boot == boot {
		c.boot, c.lastErr, c.ready = "", err, make(chan struct{})
		if c.unfollow != nil {
			c.unfollow()
		}
	}
}

// keep holds the connection until Close: it follows the rows of the process it has, and finds or starts the next one
// when that is gone. A process that was lost is replaced at once; one that does not last is not started in a hurry.
func (c *Client) keep(ctx context.Context) {
	defer close(c.done)
	var pause time.Duration
	for {
		c.mu.Lock()
		boot := c.boot
		following, cancel := context.WithCancel(ctx)
		c.unfollow = cancel
		c.mu.Unlock()
		since := time.Now()
		if boot != "" {
			err := c.follow(following, boot)
			if ctx.Err() == nil {
				c.log.Warn("egress process lost", "boot", boot, "error", err)
				c.lose(boot, err)
			}
		}
		cancel()
		if time.Since(since) > retryMost {
			pause = 0
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return // asked here: of two cases that are ready, select takes any
		}
		pause = min(max(retryFirst, 2*pause), retryMost)
		// Not to be cut short: a process that was started must be seen to serve, or Close would leave one behind that
		// nobody knows of yet.
		if err := c.establish(context.WithoutCancel(ctx)); err != nil && ctx.Err() == nil {
			c.log.Error("no egress process", "error", err, "retry_in", pause)
			c.mu.Lock()
			c.lastErr = err
			c.mu.Unlock()
		}
	}
}

// establish adopts or starts a process and gives it the whole state.
func (c *Client) establish(ctx context.Context) error {
	h, err := c.hello(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // says nothing about the process
	}
	if err != nil {
		if h, err = c.spawn(ctx); err != nil {
			return err
		}
	}
	if h.Version != ControlVersion {
		return fmt.Errorf("%w: it speaks %d, this server %d; run `managoat down` or end process %d, then start again", ErrIncompatible, h.Version, ControlVersion, h.PID)
	}
	c.order.Lock()
	defer c.order.Unlock()
	boot := h.Boot.String()
	if err := c.sendState(ctx, boot); err != nil {
		return err
	}
	c.log.Info("egress process ready", "boot", boot, "pid", h.PID, "since", h.StartedAt, "build", h.Build)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot, c.build, c.lastErr = boot, h.Build, nil
	close(c.ready)
	return nil
}

func (c *Client) spawn(ctx context.Context) (hello, error) {
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	exited, err := c.opts.Spawn(ctx, c.dir)
	if err != nil {
		return hello{}, fmt.Errorf("start the egress process: %w", err)
	}
	tick := time.NewTicker(socketPoll)
	defer tick.Stop()
	for {
		h, err := c.hello(ctx)
		if err == nil {
			return h, nil
		}
		select {
		case <-tick.C:
		case exit := <-exited:
			// Another process may have been faster: then its socket answers.
			if h, err := c.hello(ctx); err == nil {
				return h, nil
			}
			return hello{}, fmt.Errorf("the egress process ended at its start (%v); its log is %s in %s", exit, logName, c.dir)
		case <-ctx.Done():
			return hello{}, fmt.Errorf("the egress process does not answer: %w", errors.Join(ctx.Err(), err))
		}
	}
}

func (c *Client) hello(ctx context.Context) (hello, error) {
	var h hello
	err := c.call(ctx, "", http.MethodGet, "/hello", nil, &h)
	return h, err
}

func (c *Client) sendState(ctx context.Context, boot string) error {
	c.mu.Lock()
	s := state{
		Settings: c.opts.Settings,
		Machines: slices.Collect(maps.Values(c.machines)),
		Tokens:   slices.Collect(maps.Values(c.tokens)),
		Complete: c.complete,
	}
	c.mu.Unlock()
	return c.call(ctx, boot, http.MethodPost, "/state", stateOnWire(s), nil)
}

// follow stores the rows of one process until it is lost.
func (c *Client) follow(ctx context.Context, boot string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return followRows(ctx, c, boot, "requests", c.opts.Sink.Requests) })
	g.Go(func() error { return followRows(ctx, c, boot, "usage", c.opts.Sink.Usage) })
	g.Go(func() error { return c.retire(ctx, boot) })
	return g.Wait()
}

// errRetired says that the process of another build has ended because it was asked to.
var errRetired = errors.New("the egress process of another build carried nothing and was asked to end")

// retire has a process of another build end as soon as nothing goes through it.
func (c *Client) retire(ctx context.Context, boot string) error {
	c.mu.Lock()
	build := c.build
	c.mu.Unlock()
	if c.opts.Build == "" || build == c.opts.Build {
		return nil
	}
	c.log.Warn("the egress process is of another build, and is replaced when nothing goes through it", "build", build, "ours", c.opts.Build)
	tick := time.NewTicker(retireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		c.mu.Lock()
		complete := c.complete
		c.mu.Unlock()
		if !complete {
			continue // another one would not know what lives
		}
		var answer retired
		switch err := c.call(ctx, boot, http.MethodPost, "/retire", nil, &answer); {
		case errors.Is(err, errLost):
			return err
		case err != nil:
			c.log.Warn("the egress process of another build cannot be replaced while it runs: managoat down ends it", "error", err)
			return nil
		case answer.Ends:
			return errRetired
		}
	}
}

// Running tells of which build the egress process of a directory is, if one runs.
func Running(ctx context.Context, dir string) (build string, runs bool) {
	path, err := socketPath(dir)
	if err != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	hc := controlClient(path)
	defer hc.CloseIdleConnections()
	var h hello
	err = control(ctx, hc, "", http.MethodGet, "/hello", nil, &h)
	return h.Build, err == nil
}

func followRows[R any](ctx context.Context, c *Client, boot, kind string, store func(context.Context, []R) error) error {
	after := uint64(0)
	for {
		var batch rowBatch
		path := "/rows/" + kind + "?" + url.Values{"after": {strconv.FormatUint(after, 10)}}.Encode()
		if err := c.callWithin(ctx, rowsTimeout, boot, http.MethodGet, path, nil, &batch); err != nil {
			return err
		}
		rows := make([]R, 0, len(batch.Rows))
		for _, raw := range batch.Rows {
			var row R
			if err := json.Unmarshal(raw, &row); err != nil {
				// Never written by us: skipping it keeps one bad row from stopping all that follow.
				c.log.Error("egress row cannot be read", "kind", kind, "error", err)
				continue
			}
			rows = append(rows, row)
		}
		for pause := retryFirst; len(rows) > 0; pause = min(2*pause, retryMost) {
			err := store(ctx, rows)
			if err == nil {
				break
			}
			c.log.Warn("egress rows not stored", "kind", kind, "rows", len(rows), "error", err, "retry_in", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		after = batch.Last
	}
}

func (c *Client) call(ctx context.Context, boot, method, path string, in, out any) error {
	return c.callWithin(ctx, controlTimeout, boot, method, path, in, out)
}

// callWithin makes one control call. Errors that mean the process is gone or was replaced wrap errLost.
func (c *Client) callWithin(ctx context.Context, timeout time.Duration, boot, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return control(ctx, c.http, boot, method, path, in, out)
}

func control(ctx context.Context, hc *http.Client, boot, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("egress %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://egress"+path, body)
	if err != nil {
		return fmt.Errorf("egress %s %s: %w", method, path, err)
	}
	req.Header.Set(bootHeader, boot)
	resp, err := hc.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxControlBody))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLost, err)
	case resp.StatusCode == http.StatusPreconditionFailed:
		return fmt.Errorf("%w: it was replaced by another", errLost)
	case resp.StatusCode >= 300:
		return fmt.Errorf("egress %s %s: %s", method, path, bytes.TrimSpace(answer))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("egress %s %s: %w", method, path, err)
	}
	return nil
}

// Stop ends the egress process of dir gracefully, with or without a server, and returns when it is gone. No
// process is success.
func Stop(ctx context.Context, dir string) error {
	path, err := socketPath(dir)
	if err != nil {
		return err
	}
	hc := controlClient(path)
	defer hc.CloseIdleConnections()
	if err := control(ctx, hc, "", http.MethodPost, "/stop", nil, nil); err != nil {
		if errors.Is(err, errLost) && ctx.Err() == nil {
			return nil
		}
		return err
	}
	// The lock is free when the process has ended and its rows are on disk.
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return fmt.Errorf("wait for the egress process to end: %w", err)
	}
	return lock.Close()
}
