// Package audit keeps the append-only trail of an account: who did what to which resource, and which fields changed,
// by name and never by value. A row is written in the transaction of the change it tells of.
package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/idempotency"
	"managoat/internal/input"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Write adds the row of a change to the change's own transaction. resourceID is printed; changed are names of fields.
//
// The request's Idempotency-Key, if it has one, is taken here too: exactly the requests that change something use it.
func Write(ctx context.Context, tx db.Tx, actor tenant.Actor, action Action, resourceType string, resourceID any, changed ...string) error {
	if !slices.Contains(Actions, action) {
		return fmt.Errorf("audit: %q is not in the vocabulary", action)
	}
	if actor.TenantID == uuid.Nil || actor.Kind == "" || actor.ID == "" {
		return fmt.Errorf("audit: %s without an actor", action)
	}
	if err := idempotency.Take(ctx, tx); err != nil {
		return err
	}
	if changed == nil {
		changed = []string{}
	}
	err := tx.InsertAuditEvent(ctx, queries.InsertAuditEventParams{
		TenantID: actor.TenantID, ID: uuid.Must(uuid.NewV7()), ActorKind: string(actor.Kind), ActorID: actor.ID,
		Action: string(action), ResourceType: resourceType, ResourceID: fmt.Sprint(resourceID), Changed: changed,
		RequestID: actor.RequestID, Address: actor.Address,
	})
	if err != nil {
		return fmt.Errorf("write the audit row of %s: %w", action, err)
	}
	return nil
}

// Event is a row of the trail.
type Event struct {
	ID           uuid.UUID `json:"id"`
	InsertedAt   time.Time `json:"inserted_at"`
	Actor        string    `json:"actor" doc:"user, key, sandbox, operator, or system:<job>"`
	ActorID      string    `json:"actor_id" doc:"the person's or the key's id, the operator's or the job's name"`
	Action       Action    `json:"action" doc:"noun.verb"`
	ResourceType string    `json:"resource_type"`
	ResourceID   string    `json:"resource_id"`
	Metadata     Metadata  `json:"metadata"`
	RequestID    string    `json:"request_id"`
	RequestIP    string    `json:"request_ip"`
}

// Metadata of an event: names, never values.
type Metadata struct {
	ChangedFields []string `json:"changed_fields"`
}

// Filter narrows a look at the trail. A zero field does not narrow.
type Filter struct {
	ActorKind    tenant.ActorKind
	ActorID      string
	Action       Action
	ResourceType string
	ResourceID   string
	Since, Until time.Time
}

// Service reads the trail.
type Service struct{ db *db.DB }

// New makes the service.
func New(d *db.DB) *Service { return &Service{d} }

// List shows the trail, newest first. The page's cursor is the id of the last event of the page before.
func (s *Service) List(ctx context.Context, actor tenant.Actor, f Filter, page input.Page) (input.List[Event], error) {
	before, err := page.ID()
	if err != nil {
		return input.List[Event]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).AuditEvents(ctx, queries.AuditEventsParams{
		Before: before, ActorKind: some(db.SafeText(string(f.ActorKind))), ActorID: some(db.SafeText(f.ActorID)), Action: some(db.SafeText(string(f.Action))),
		ResourceType: some(db.SafeText(f.ResourceType)), ResourceID: some(db.SafeText(f.ResourceID)), Since: some(f.Since), Until: some(f.Until), AtMost: page.Fetch(),
	})
	if err != nil {
		return input.List[Event]{}, fmt.Errorf("list the audit trail: %w", err)
	}
	return input.Paged(page, rows, event, func(e Event) string { return e.ID.String() }), nil
}

func event(r queries.AuditEvent) Event {
	kind := r.ActorKind
	if tenant.ActorKind(kind) == tenant.System {
		kind += ":" + r.ActorID
	}
	return Event{
		ID: r.ID, InsertedAt: r.At, Actor: kind, ActorID: r.ActorID, Action: Action(r.Action), ResourceType: r.ResourceType,
		ResourceID: r.ResourceID, Metadata: Metadata{ChangedFields: r.Changed}, RequestID: r.RequestID, RequestIP: r.Address,
	}
}

// some is nil for a zero value: the filter does not ask.
func some[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
