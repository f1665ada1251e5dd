package local

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
)

// Guests dials the guests of a provider's machines from another process (the egress process). It starts, stops and
// clears away nothing.
type Guests struct{ p *Provider }

// Attach opens the directory of a provider that another process of the same user runs.
func Attach(dir string) (*Guests, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	p := &Provider{dir: dir, log: slog.New(slog.DiscardHandler), groups: findHierarchy()}
	if os.Geteuid() == 0 {
		p.engine = &namespaces{p: p}
	} else {
		p.engine = &bubblewrap{p: p}
	}
	return &Guests{p}, nil
}

// Guest opens a stream to a machine's guest, as Provider.Guest does.
func (g *Guests) Guest(ctx context.Context, id string) (net.Conn, error) { return g.p.Guest(ctx, id) }
