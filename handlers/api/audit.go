package api

import (
	"context"
	"time"

	"managoat/internal/audit"
	"managoat/internal/input"
	"managoat/internal/tenant"
)

// Audit are the endpoints of the account's trail.
type Audit struct{ Service *audit.Service }

// AuditQuery narrows a look at the trail.
type AuditQuery struct {
	Limit        int       `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"how many at most"`
	Before       string    `query:"before" doc:"next_cursor of the page before: the id of its last event"`
	Actor        string    `query:"actor" enum:"user,key,sandbox,operator,system" doc:"kind of actor"`
	ActorID      string    `query:"actor_id"`
	Action       string    `query:"action" doc:"noun.verb"`
	ResourceType string    `query:"resource_type"`
	ResourceID   string    `query:"resource_id"`
	Since        time.Time `query:"since" doc:"at or after"`
	Until        time.Time `query:"until" doc:"before"`
}

// List answers GET /api/audit, newest first.
func (h Audit) List(ctx context.Context, in *AuditQuery) (*Many[audit.Event], error) {
	filter := audit.Filter{
		ActorKind: tenant.ActorKind(in.Actor), ActorID: in.ActorID, Action: audit.Action(in.Action),
		ResourceType: in.ResourceType, ResourceID: in.ResourceID, Since: in.Since, Until: in.Until,
	}
	return PageOf(h.Service.List(ctx, Actor(ctx), filter, input.Page{Limit: in.Limit, Cursor: in.Before}))
}
