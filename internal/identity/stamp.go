package identity

import (
	"context"
	"time"

	"github.com/google/uuid"

	"managoat/queries"
)

// stampQueue is how many last uses wait to be written. When it is full the next use writes instead.
const stampQueue = 256

// stampTimeout bounds the writing of what waits when the server stops.
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
			s.writeStamp(ctx, st)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stampTimeout)
			defer cancel()
			for {
				select {
				case st := <-s.stamps:
					s.writeStamp(last, st)
				default:
					return nil
				}
			}
		}
	}
}

func (s *Service) writeStamp(ctx context.Context, st stamp) {
	if err := st.write(s.db.Tenant(st.tenantID), ctx, st.id, stampEvery.Seconds()); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "a last use was not written", "tenant_id", st.tenantID, "id", st.id, "err", err)
	}
}
