package api

import (
	"context"

	"managoat/internal/quota"
)

// Quotas are the endpoints of the account's limits.
type Quotas struct{ Service *quota.Service }

// List answers GET /api/quotas.
func (h Quotas) List(ctx context.Context, _ *struct{}) (*Many[quota.Quota], error) {
	return AllOf(h.Service.List(ctx, Actor(ctx)))
}
