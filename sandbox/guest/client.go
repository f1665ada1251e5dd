package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
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

// Client is one connection to a guest. Safe for concurrent use.
type Client struct {
	hello Hello
	// implementation fields are added by the implementation of this package
}

// Dial introduces itself on a stream that a provider opened. It owns conn from then on.
func Dial(ctx context.Context, conn net.Conn, role Role) (*Client, error) {
	return nil, errors.ErrUnsupported
}

// Hello returns what the guest said at Dial.
func (c *Client) Hello() Hello { return c.hello }

// Close ends the connection; commands go on.
func (c *Client) Close() error { return nil }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return nil }

// Start starts a command. Its output waits in its spool until somebody follows it.
func (c *Client) Start(ctx context.Context, e Exec) error { return errors.ErrUnsupported }

// Offsets are where to go on reading, per stream.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// Follow reads a command's output from the given offsets, in order of arrival, then its exit. each is called
// from one goroutine; its error ends the follow. An Exit is returned exactly when the command ended and all
// its output was delivered. For SpoolProtocol the guest frees output only up to what Ack has named.
func (c *Client) Follow(ctx context.Context, id string, from Offsets, each func(Chunk) error) (*Exit, error) {
	return nil, errors.ErrUnsupported
}

// Ack tells that everything before these offsets is stored for good and may be dropped from the spool.
func (c *Client) Ack(ctx context.Context, id string, upTo Offsets) error {
	return errors.ErrUnsupported
}

// Stdin writes to a command started with Exec.Stdin.
func (c *Client) Stdin(ctx context.Context, id string, data []byte) error {
	return errors.ErrUnsupported
}

// CloseStdin ends a command's standard input.
func (c *Client) CloseStdin(ctx context.Context, id string) error { return errors.ErrUnsupported }

// Signal sends a signal ("SIGINT", "SIGTERM", "SIGKILL") to a command's whole process tree.
func (c *Client) Signal(ctx context.Context, id, signal string) error { return errors.ErrUnsupported }

// Status tells about one command; a *FileError with ErrNotFound when the guest does not know it.
func (c *Client) Status(ctx context.Context, id string) (Status, error) {
	return Status{}, errors.ErrUnsupported
}

// Forget drops an ended command and its spool.
func (c *Client) Forget(ctx context.Context, id string) error { return errors.ErrUnsupported }

// Run starts a command, collects its output (bounded by the spool) and waits for its exit.
func (c *Client) Run(ctx context.Context, e Exec) (stdout, stderr []byte, exit Exit, err error) {
	return nil, nil, Exit{}, errors.ErrUnsupported
}

// --- disk, always as Sprite, always resolved through links under the roots with no race ---

// List lists a directory that lies, after links are resolved, under one of roots. At most limit entries,
// directories first, then by name; more tells that there were others.
func (c *Client) List(ctx context.Context, roots []string, path string, limit int) (entries []Entry, more bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Stat tells about a path (following links) under one of roots, and the path after links were resolved.
func (c *Client) Stat(ctx context.Context, roots []string, path string) (Entry, string, error) {
	return Entry{}, "", errors.ErrUnsupported
}

// ReadFile reads at most max bytes of a regular file under one of roots; size is the whole file's.
func (c *Client) ReadFile(ctx context.Context, roots []string, path string, max int64) (data []byte, size int64, err error) {
	return nil, 0, errors.ErrUnsupported
}

// OpenFile streams a regular file under one of roots.
func (c *Client) OpenFile(ctx context.Context, roots []string, path string) (io.ReadCloser, int64, error) {
	return nil, 0, errors.ErrUnsupported
}

// WriteFile writes a file as Sprite through a temporary name and a rename, making its directories (0700 under
// ~/.managoat, else 0755). path must lie under one of roots after links in its directory are resolved.
func (c *Client) WriteFile(ctx context.Context, roots []string, path string, data []byte, mode uint32) error {
	return errors.ErrUnsupported
}

// Mkdir makes a directory and its parents as Sprite, under one of roots, and returns it with links resolved.
func (c *Client) Mkdir(ctx context.Context, roots []string, path string, mode uint32) (string, error) {
	return "", errors.ErrUnsupported
}

// Remove removes a file or a whole tree under one of roots; what is not there is success.
func (c *Client) Remove(ctx context.Context, roots []string, path string) error {
	return errors.ErrUnsupported
}

// CopyTree copies regular files and directories with their modes; symlinks and anything else are skipped. A source that is itself
// a symlink, or does not exist, copies nothing. What Sprite cannot read is a *FileError with ErrUnreadable.
func (c *Client) CopyTree(ctx context.Context, roots []string, from, to string) error {
	return errors.ErrUnsupported
}

// --- egress ---

// EgressRequest heads every stream that a guest opens to the egress process: one per connection made inside.
type EgressRequest struct {
	// Listener is where the program connected: "proxy" (127.0.0.1:3128), "model" and "api" (the two internal names).
	Listener string `json:"listener"`
}

// Accept waits for the next connection made inside the machine (RoleEgress only). The stream carries exactly
// the bytes of that connection, half-closes included.
func (c *Client) Accept(ctx context.Context) (net.Conn, EgressRequest, error) {
	return nil, EgressRequest{}, errors.ErrUnsupported
}
