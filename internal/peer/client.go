package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"managoat/internal/netguard"
	"managoat/internal/netguard/hostname"
	"managoat/internal/refusal"
)

// Times and sizes of calls.
const (
	callTimeout = 10 * time.Second // of one call; of a stream, until it stands
	maxAnswer   = 64 << 10         // bytes
)

// Protocol names what a stream turns into (the Upgrade header).
const Protocol = "managoat-guest"

// ErrAway says that a server does not answer, or does not answer as a server of this instance does.
var ErrAway = errors.New("the server does not answer")

// Server is another server of the instance, as the hosts table has it.
type Server struct {
	ID  uuid.UUID
	URL string
}

// Client calls other servers.
type Client struct {
	key   Key
	self  uuid.UUID
	guard netguard.Options
	now   func() time.Time

	mu         sync.Mutex
	transports map[string]*http.Transport // by URL
}

// NewClient makes a client of the server self. Of guard the fixed names and the extra certificates count.
func NewClient(key Key, self uuid.UUID, guard netguard.Options) *Client {
	return &Client{key: key, self: self, guard: guard, now: time.Now, transports: map[string]*http.Transport{}}
}

// Close ends connections that are not in use. Streams go on.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// Call asks a server and reads its answer into reply (nil: nothing is wanted). A refusal of the other server is returned as
// it is; one that cannot be asked is ErrAway.
func (c *Client) Call(ctx context.Context, to Server, method, path string, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := c.send(ctx, to, method, path, "")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusMultipleChoices {
		return refused(res)
	}
	if reply == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(reply); err != nil {
		return fmt.Errorf("%w: its answer: %w", ErrAway, err)
	}
	return nil
}

// Open opens a stream to what another server has at a path.
func (c *Client) Open(ctx context.Context, to Server, path string) (net.Conn, error) {
	// The context is that of the opening: once the stream stands it is the caller's.
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := c.send(ctx, to, http.MethodGet, path, Protocol)
	if err != nil {
		return nil, err
	}
	stream, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != Protocol || !ok {
		defer res.Body.Close()
		return nil, refused(res)
	}
	return &conn{stream}, nil
}

func (c *Client) send(ctx context.Context, to Server, method, path, upgrade string) (*http.Response, error) {
	transport, err := c.transport(to.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: its address %q: %w", ErrAway, to.URL, err)
	}
	base, err := url.Parse(to.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: its address: %w", ErrAway, err)
	}
	r, err := http.NewRequestWithContext(ctx, method, base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	if upgrade != "" {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", upgrade)
	}
	r.Header.Set("Authorization", c.key.Sign(method, path, c.self, to.ID, c.now()))
	res, err := transport.RoundTrip(r) // not a client's Do: the signature follows no redirect
	if err != nil {
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	return res, nil
}

// transport dials the one host of an address and nothing else.
func (c *Client) transport(address string) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.transports[address]; t != nil {
		return t, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	host, err := hostname.Fold(u.Hostname())
	if err != nil {
		return nil, err
	}
	o := c.guard
	// Servers of an instance are neighbours, on private addresses as a rule.
	o.AllowPrivate = []netguard.Allowance{{Purpose: netguard.Peer, Host: host}}
	t, err := netguard.New(o).Transport(netguard.Peer)
	if err != nil {
		return nil, err
	}
	t.ForceAttemptHTTP2 = false // a stream takes its connection for itself
	c.transports[address] = t
	return t, nil
}

// passed are the refusals of another server that are for the person who asked: about the machine. Any other says that the
// two servers do not understand each other.
var passed = []refusal.Code{refusal.SandboxNotReady, refusal.SandboxUnreachable, refusal.ProviderDisabled}

// refused is what a server answers that does not do what it is asked.
func refused(res *http.Response) error {
	var body map[string]any
	err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&body)
	code, _ := body["error"].(string)
	message, _ := body["message"].(string)
	if err != nil || !slices.Contains(passed, refusal.Code(code)) {
		return fmt.Errorf("%w as one of this instance does: %s %s", ErrAway, res.Status, code)
	}
	r := refusal.New(refusal.Code(code), "%s", message)
	for name, value := range body {
		switch n, number := value.(float64); {
		case name == "error" || name == "message" || name == "reason":
		case name == "retry_after_seconds" && number:
			r = r.RetryAfter(time.Duration(n) * time.Second)
		default:
			r = r.With(name, value)
		}
	}
	return r
}

// conn is a stream as a connection. It has no deadlines: the multiplexer on it keeps its own time.
type conn struct{ io.ReadWriteCloser }

type address struct{}

func (address) Network() string { return "managoat" }
func (address) String() string  { return "another server's machine" }

func (*conn) LocalAddr() net.Addr              { return address{} }
func (*conn) RemoteAddr() net.Addr             { return address{} }
func (*conn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (*conn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (*conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
