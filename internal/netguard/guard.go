// Package netguard is the one guard of outbound connections: it resolves a name once, refuses what is not the
// public internet, and dials the very address it vetted. The egress process and the server's own calls go
// through it, and nothing else of Managoat dials out.
package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"managoat/internal/netguard/hostname"
)

// Times of a dial.
const (
	resolveTimeout = 5 * time.Second
	dialTimeout    = 10 * time.Second       // all addresses of a name together
	nextAddress    = 250 * time.Millisecond // head start of an address before the next is tried beside it (RFC 8305)
	keepAlive      = 30 * time.Second
)

// maxAddresses of one name are tried.
const maxAddresses = 8

// Refusal is the error of a dial that the guard did not make.
type Refusal struct {
	Host string
	Port int
	Addr netip.Addr // the address that is not allowed; invalid when the name itself is refused
	Kind string     // "loopback", "private", "cloud metadata" …
}

func (r *Refusal) Error() string {
	if r.Addr.IsValid() && r.Addr.String() != r.Host {
		return fmt.Sprintf("%s resolves to a %s address (%s), which is refused", r.Host, r.Kind, r.Addr)
	}
	return fmt.Sprintf("%s is a %s address, which is refused", r.Host, r.Kind)
}

// Advice says what an operator can do, "" when nothing can be done.
func (r *Refusal) Advice(purpose Purpose) string {
	if r.Kind == kindMetadata {
		return ""
	}
	return fmt.Sprintf("An operator can allow it with MANAGOAT_ALLOW_PRIVATE=%s=%s.", purpose, net.JoinHostPort(r.Host, strconv.Itoa(r.Port)))
}

// ResolveError is the error of a dial whose name could not be resolved.
type ResolveError struct {
	Host string
	Err  error
}

func (e *ResolveError) Error() string { return fmt.Sprintf("%s cannot be resolved: %v", e.Host, e.Err) }

// Unwrap gives the resolver's error.
func (e *ResolveError) Unwrap() error { return e.Err }

// Options of a Guard.
type Options struct {
	Resolve      map[string][]netip.Addr // folded names that are answered without a resolver
	AllowPrivate []Allowance
	ExtraCA      []byte // PEM, trusted beside the host's roots; see ReadCA
	// Lookup resolves a folded name; nil: the host's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Guard dials out. Safe for concurrent use; its settings never change.
type Guard struct{ o Options }

// New makes a guard.
func New(o Options) *Guard {
	if o.Lookup == nil {
		o.Lookup = lookup
	}
	return &Guard{o}
}

// Dial connects to addr (host:port) for a purpose, as net.Dialer.DialContext does for TCP. The name is resolved
// once; when any of its addresses is not allowed the name is refused whole, since an answer that mixes public
// and private addresses is an attack more often than a mistake.
func (g *Guard) Dial(ctx context.Context, purpose Purpose, addr string) (net.Conn, error) {
	host, port, err := hostname.SplitPort(addr)
	if err != nil {
		return nil, err
	}
	vetted, err := g.vet(ctx, purpose, host, port)
	if err != nil {
		return nil, err
	}
	return dialFirst(ctx, vetted, port)
}

// Dialer is Dial for one purpose in the shape that transports take.
func (g *Guard) Dialer(purpose Purpose) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) { return g.Dial(ctx, purpose, addr) }
}

// vet resolves a folded host and returns its addresses when all of them may be dialled.
func (g *Guard) vet(ctx context.Context, purpose Purpose, host string, port int) ([]netip.Addr, error) {
	found, err := g.lookup(ctx, host)
	if err != nil {
		return nil, &ResolveError{host, err}
	}
	if len(found) == 0 {
		return nil, &ResolveError{host, errors.New("no addresses")}
	}
	allowed := Allows(g.o.AllowPrivate, purpose, host, port)
	for _, addr := range found {
		if k := kind(addr); k == kindMetadata || k != "" && !allowed {
			return nil, &Refusal{Host: host, Port: port, Addr: addr, Kind: k}
		}
	}
	return found[:min(len(found), maxAddresses)], nil
}

func (g *Guard) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	if found, ok := g.o.Resolve[host]; ok {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return g.o.Lookup(ctx, host)
}

// lookup asks the host's resolver.
func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if strings.Contains(host, ".") {
		host += "." // as it is, without the host's search domains: it is this name that a policy allowed
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i, addr := range found {
		found[i] = addr.Unmap() // IPv4 addresses may come in their IPv6 form: the resolver's notation, not the name's
	}
	return found, err
}

// dialFirst connects to the first address that answers.
func dialFirst(ctx context.Context, vetted []netip.Addr, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	running, next := 0, 0
	start := func() {
		addr := vetted[next]
		next++
		running++
		go func() {
			conn, err := dialAddr(ctx, netip.AddrPortFrom(addr, uint16(port)))
			results <- result{conn, err}
		}()
	}
	timer := time.NewTimer(nextAddress)
	defer timer.Stop()
	var winner net.Conn
	var errs []error
	start()
	for running > 0 {
		select {
		case <-timer.C:
			if next < len(vetted) && winner == nil {
				start()
				timer.Reset(nextAddress)
			}
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				if next < len(vetted) && winner == nil && ctx.Err() == nil {
					start()
					timer.Reset(nextAddress)
				}
			case winner == nil:
				winner = r.conn
				cancel() // ends the attempts beside it; they are waited for
			default:
				r.conn.Close()
			}
		}
	}
	if winner != nil {
		return winner, nil
	}
	return nil, errors.Join(errs...)
}

// dialAddr connects to exactly this address. The control hook sees the address that the socket is about to
// connect to, whatever happened on the way there.
func dialAddr(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		KeepAlive: keepAlive,
		Control: func(_, address string, _ syscall.RawConn) error {
			got, err := netip.ParseAddrPort(address)
			if err != nil || got.Addr().Unmap() != to.Addr().Unmap() || got.Port() != to.Port() {
				return fmt.Errorf("about to connect to %s instead of the vetted %s", address, to)
			}
			return nil
		},
	}
	return d.DialContext(ctx, "tcp", to.String())
}
