package audit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/audit"
	"managoat/internal/idempotency"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

var ctx = context.Background()

func person(tenantID uuid.UUID) tenant.Actor {
	return tenant.Actor{TenantID: tenantID, Kind: tenant.User, ID: "ada", RequestID: "request-7", Address: "192.0.2.1"}
}

func write(t *testing.T, d *dbtest.Database, actor tenant.Actor, action audit.Action, resource string, id any, changed ...string) {
	t.Helper()
	if err := d.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		return audit.Write(ctx, tx, actor, action, resource, id, changed...)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTheTrailSaysWhoDidWhatToWhichAndWhichFieldsChanged(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b := d.Account(t), d.Account(t)
	id := uuid.New()
	write(t, d, person(a), audit.EnvironmentUpdate, "environment", id, "name", "packages")
	write(t, d, tenant.SystemActor(a, "reaper"), audit.WorkspaceDelete, "workspace", "w")
	write(t, d, person(b), audit.EnvironmentDelete, "environment", id)
	s := audit.New(d.DB)
	list, err := s.List(ctx, person(a), audit.Filter{}, input.Page{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	job, change := list.Items[0], list.Items[1] // newest first
	if job.Actor != "system:reaper" || len(job.Metadata.ChangedFields) != 0 || job.Metadata.ChangedFields == nil {
		t.Errorf("the job's is %+v", job)
	}
	if change.Actor != "user" || change.ActorID != "ada" || change.Action != "environment.update" || change.ResourceID != id.String() ||
		!slices.Equal(change.Metadata.ChangedFields, []string{"name", "packages"}) || change.RequestID != "request-7" || change.RequestIP != "192.0.2.1" {
		t.Errorf("the change is %+v", change)
	}
	for name, c := range map[string]struct {
		filter audit.Filter
		want   int
	}{
		"kind":           {audit.Filter{ActorKind: tenant.System}, 1},
		"actor":          {audit.Filter{ActorID: "ada"}, 1},
		"action":         {audit.Filter{Action: audit.WorkspaceDelete}, 1},
		"resource":       {audit.Filter{ResourceType: "environment", ResourceID: id.String()}, 1},
		"other resource": {audit.Filter{ResourceType: "environment", ResourceID: "w"}, 0},
		"since":          {audit.Filter{Since: time.Now().Add(time.Hour)}, 0},
		"until":          {audit.Filter{Until: time.Now().Add(time.Hour)}, 2},
		"all of it":      {audit.Filter{ActorKind: tenant.User, ActorID: "ada", Action: audit.EnvironmentUpdate, Since: time.Now().Add(-time.Hour)}, 1},
	} {
		if got, err := s.List(ctx, person(a), c.filter, input.Page{}); err != nil || len(got.Items) != c.want {
			t.Errorf("by %s: %d, %v, want %d", name, len(got.Items), err, c.want)
		}
	}
}

func TestTheTrailIsPagedBackwards(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	for i := range 7 {
		write(t, d, person(a), audit.AgentUpdate, "agent", i)
	}
	s := audit.New(d.DB)
	var got []string
	page := input.Page{Limit: 3}
	for {
		list, err := s.List(ctx, person(a), audit.Filter{}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			got = append(got, e.ResourceID)
		}
		if !list.HasMore {
			break
		}
		page.Cursor = list.Next
	}
	if fmt.Sprint(got) != "[6 5 4 3 2 1 0]" {
		t.Errorf("paged %v", got)
	}
	if _, err := s.List(ctx, person(a), audit.Filter{}, input.Page{Cursor: "nonsense"}); !refusal.Is(err, refusal.BadRequest) {
		t.Errorf("a cursor that is none: %v", err)
	}
}

func TestARowThatSaysTooLittleFailsItsChange(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b := d.Account(t), d.Account(t)
	for name, c := range map[string]struct {
		actor  tenant.Actor
		action audit.Action
	}{
		"an action outside the vocabulary": {person(a), "environment.destroy"},
		"no action":                        {person(a), ""},
		"nobody":                           {tenant.Actor{TenantID: a}, audit.AgentUpdate},
		"nobody's id":                      {tenant.Actor{TenantID: a, Kind: tenant.User}, audit.AgentUpdate},
		"no account":                       {tenant.Actor{Kind: tenant.User, ID: "ada"}, audit.AgentUpdate},
		"another account":                  {person(b), audit.AgentUpdate},
	} {
		err := d.InTenant(ctx, a, func(tx db.Tx) error {
			if err := tx.Exec(ctx, "update tenants set name = 'changed'"); err != nil {
				return err
			}
			return audit.Write(ctx, tx, c.actor, c.action, "agent", "x")
		})
		if err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if tn, err := d.Tenant(a).Tenant(ctx); err != nil || tn.Name == "changed" {
		t.Errorf("a change without its row was kept: %q, %v", tn.Name, err)
	}
}

// The app can add to the trail and read it, and nothing else.
func TestTheTrailCannotBeRewritten(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	write(t, d, person(a), audit.AgentUpdate, "agent", "x")
	for _, sql := range []string{"update audit_events set actor_id = 'eve'", "delete from audit_events", "truncate audit_events"} {
		err := d.InTenant(ctx, a, func(tx db.Tx) error { return tx.Exec(ctx, sql) })
		if err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestAChangeUsesItsIdempotencyKeyExactlyWhenItIsMade(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	claim := func() *idempotency.Claim { return idempotency.New(a, "POST /api/agents", "key-1", []byte("{}")) }
	refused := idempotency.With(ctx, claim())
	boom := fmt.Errorf("boom")
	if err := d.InTenant(refused, a, func(tx db.Tx) error {
		if err := audit.Write(refused, tx, person(a), audit.AgentCreate, "agent", "x"); err != nil {
			return err
		}
		return boom
	}); err != boom {
		t.Fatal(err)
	}
	made := idempotency.With(ctx, claim())
	if err := d.InTenant(made, a, func(tx db.Tx) error { return audit.Write(made, tx, person(a), audit.AgentCreate, "agent", "x") }); err != nil {
		t.Fatalf("a change that was rolled back used the key: %v", err)
	}
	again := idempotency.With(ctx, claim())
	err := d.InTenant(again, a, func(tx db.Tx) error { return audit.Write(again, tx, person(a), audit.AgentCreate, "agent", "y") })
	if !refusal.Is(err, refusal.IdempotencyInProgress) {
		t.Errorf("a second change with the key: %v", err)
	}
}

func TestTheVocabularyIsNounDotVerbAndListedWhole(t *testing.T) {
	t.Parallel()
	for i, action := range audit.Actions {
		noun, verb, ok := strings.Cut(string(action), ".")
		if !ok || noun == "" || verb == "" || strings.ToLower(string(action)) != string(action) {
			t.Errorf("%q is not noun.verb", action)
		}
		if slices.Contains(audit.Actions[:i], action) {
			t.Errorf("%q is listed twice", action)
		}
	}
}
