package identity

import (
	"context"
	"time"

	"github.com/google/uuid"

	"managoat/queries"
)

// stampQueue is how many last uses wait to be written. When it is full the next use writes instead.
const stampQueue = 256

// stampTimeout bounds the writing of what waits.
const stampTimeout = 2 * time.Second

// stamp is a last use to write: nobody waits for it.
type stamp struct {
	tenantID, id uuid.UUID
	write        func(q *queries.Queries, ctx context.Context, id uuid.UUID, every float64) error
}

func (s *Service) stamp(st stamp) {
	select {
	case s.stamps <- st:
	default:
	}
}

// Run writes last uses until ctx ends, then what still waits.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case st := <-s.stamps:
			s.writeStamps(ctx, st)
		case <-ctx.Done():
			s.writeStamps(ctx)
			return nil
		}
	}
}

// writeStamps writes some and what waits by then, also when ctx has ended: what was taken out of the queue is not lost.
func (s *Service) writeStamps(ctx context.Context, some ...stamp) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stampTimeout)
	defer cancel()
	for {
		for _, st := range some {
			if err := st.write(s.db.Tenant(st.tenantID), ctx, st.id, stampEvery.Seconds()); err != nil {
				s.log.WarnContext(ctx, "a last use was not written", "tenant_id", st.tenantID, "id", st.id, "err", err)
			}
		}
		select {
		case st := <-s.stamps:
			some = []stamp{st}
		default:
			return
		}
	}
}
