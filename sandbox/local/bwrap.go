package local

import (
	"context"
	"errors"
	"os"

	"managoat/sandbox"
)

type bubblewrap struct{ p *Provider }

func (b *bubblewrap) probe(ctx context.Context, caps *sandbox.Capabilities) error { return nil }
func (b *bubblewrap) prepare(dir string, m *machine) error                        { return nil }
func (b *bubblewrap) boot(ctx context.Context, m *machine, f bootFiles) (int, error) {
	return 0, errors.ErrUnsupported
}
func (b *bubblewrap) guestUID(m *machine) int { return os.Geteuid() }
