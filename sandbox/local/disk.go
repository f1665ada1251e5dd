package local

import (
	"context"
	"sync"
	"time"
)

type usage struct {
	mu sync.Mutex
	by map[string]measured
}

type measured struct {
	bytes int64
	full  bool
	at    time.Time
}

func (u *usage) full(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.by[name].full
}
func (u *usage) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.by, name)
}
func (u *usage) of(m *machine) (measured, error) {
	return measured{}, nil
}
func (p *Provider) checkDisks(ctx context.Context) {}
