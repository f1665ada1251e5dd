package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/machine/operation"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/queries"
)

// record is a workspace with its machine, and why what is under way waits.
type record struct {
	w       queries.Workspace
	m       queries.Machine
	waiting string
	away    bool // the server of the machine's host
	drains  bool // that host
}

func (s *Service) row(ctx context.Context, q *queries.Queries, id uuid.UUID) (record, error) {
	r, err := q.Workspace(ctx, id)
	if db.NotFound(err) || err == nil && Status(r.Workspace.Status) == Deleted {
		return record{}, refusal.NotFoundError()
	}
	if err != nil {
		return record{}, fmt.Errorf("read the workspace: %w", err)
	}
	return record{r.Workspace, r.Machine, r.Waiting, r.Away, r.Draining}, nil
}

// views shows rows with what others know of them: the environment as it is now, the conversations.
func (s *Service) views(ctx context.Context, tenantID uuid.UUID, rows []record) ([]Workspace, error) {
	var ids, sources []uuid.UUID
	for _, r := range rows {
		ids = append(ids, r.w.ID)
		if id := r.w.EnvironmentID; id != nil && !slices.Contains(sources, *id) {
			sources = append(sources, *id)
		}
	}
	q := s.db.Tenant(tenantID)
	environments, err := q.EnvironmentsByID(ctx, sources)
	if err != nil {
		return nil, fmt.Errorf("read the environments: %w", err)
	}
	digests := map[uuid.UUID]map[string]string{}
	for _, r := range environments {
		env, err := environmentOf(r)
		if err != nil {
			return nil, err
		}
		digests[r.ID] = environment.Digests(env)
	}
	counts, err := s.o.Occupants.ConversationCounts(ctx, tenantID, ids)
	if err != nil {
		return nil, fmt.Errorf("count the conversations: %w", err)
	}
	resting, err := q.IdleWorkspaces(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look since when the workspaces are idle: %w", err)
	}
	idle := map[uuid.UUID]time.Time{}
	for _, r := range resting {
		idle[r.ID] = r.Since
	}
	out := make([]Workspace, len(rows))
	for i, r := range rows {
		var now map[string]string
		if r.w.EnvironmentID != nil {
			now = digests[*r.w.EnvironmentID]
		}
		if out[i], err = view(r, now); err != nil {
			return nil, err
		}
		out[i].ConversationCount = counts[r.w.ID]
		if since, ok := idle[r.w.ID]; ok {
			out[i].IdleSince = &since
			if _, err := s.o.Machines.Provider(r.w.Provider); err == nil {
				out[i].ParksAt = s.o.Lifetimes.parksAt(since, r.m.WokenAt)
			}
		}
	}
	return out, nil
}

// parksAt is when a machine parks that is idle since then and came up at woken; nil: never.
func (l Lifetimes) parksAt(idle time.Time, woken *time.Time) (at *time.Time) {
	if l.Idle > 0 {
		t := idle.Add(l.Idle)
		at = &t
	}
	if l.Ceiling > 0 && woken != nil {
		if t := woken.Add(l.Ceiling); at == nil || t.Before(*at) {
			at = &t
		}
	}
	return at
}

// view shows one row. now are the digests of its environment as it is.
func view(r record, now map[string]string) (Workspace, error) {
	w := Workspace{
		ID: r.w.ID, Name: r.w.Name, Implicit: r.w.Implicit, EnvironmentID: r.w.EnvironmentID, VaultID: r.w.VaultID,
		SandboxProvider: r.w.Provider, SandboxID: r.w.MachineID, Status: Status(r.w.Status), MachineStatus: machine.Status(r.m.Status),
		SetupID: *r.w.SetupID, SetupStep: r.w.SetupStep, ChangedFields: []string{}, DiskBytes: r.m.DiskBytes, Transition: r.m.Transition,
		WaitingReason: r.waiting, Metadata: map[string]any{}, LastActiveAt: r.w.LastActiveAt, CreatedAt: r.w.CreatedAt, UpdatedAt: r.w.UpdatedAt,
	}
	for _, c := range []struct {
		stored json.RawMessage
		into   any
	}{{r.w.Error, &w.Error}, {r.m.Limits, &w.Limits}, {r.m.Base, &w.Base}, {r.w.Metadata, &w.Metadata}} {
		if len(c.stored) == 0 {
			continue
		}
		if err := json.Unmarshal(c.stored, c.into); err != nil {
			return Workspace{}, fmt.Errorf("read the workspace %s: %w", r.w.ID, err)
		}
	}
	if r.away && (w.Status == Ready || w.Status == Deleting) && machine.Kept(w.MachineStatus) {
		w.WaitingReason = machine.HostAway
	}
	if w.WaitingReason == "" && r.drains && w.Status == Ready && machine.Kept(w.MachineStatus) {
		w.WaitingReason = machine.HostDraining
	}
	if w.WaitingReason == "" && w.MachineStatus != machine.Ready && len(r.m.Error) > 0 {
		var cause struct{ Message string }
		if err := json.Unmarshal(r.m.Error, &cause); err != nil {
			return Workspace{}, fmt.Errorf("read the error of machine %s: %w", r.m.ID, err)
		}
		w.WaitingReason = cause.Message
	}
	if w.Status == Ready && r.w.EnvironmentID != nil {
		var built map[string]string
		if err := json.Unmarshal(r.m.Built, &built); err != nil {
			return Workspace{}, fmt.Errorf("read what machine %s was built from: %w", r.m.ID, err)
		}
		w.ChangedFields = environment.ChangedFields(built, now)
		w.Stale = len(w.ChangedFields) > 0
	}
	return w, nil
}

// readEnvironment reads an environment through the given queries, so that a transaction sees its own changes. nil is a
// machine made from nothing but the base.
func readEnvironment(ctx context.Context, q *queries.Queries, id *uuid.UUID) (environment.Environment, error) {
	if id == nil {
		return environment.Environment{Input: environment.New()}, nil
	}
	row, err := q.Environment(ctx, *id)
	if err != nil {
		return environment.Environment{}, fmt.Errorf("read the environment %s: %w", *id, err)
	}
	return environmentOf(row.Environment)
}

func environmentOf(r queries.Environment) (environment.Environment, error) {
	e := environment.Environment{ID: r.ID, Input: environment.Input{
		Name: r.Name, SetupScript: r.SetupScript, SetupTimeoutSeconds: int(r.SetupTimeoutSeconds), NetworkingType: r.NetworkingType,
	}}
	for _, c := range []struct {
		stored json.RawMessage
		into   any
	}{{r.Packages, &e.Packages}, {r.EnvVars, &e.EnvVars}, {r.NetworkingConfig, &e.NetworkingConfig}, {r.Repositories, &e.Repositories}} {
		if err := json.Unmarshal(c.stored, c.into); err != nil {
			return environment.Environment{}, fmt.Errorf("read the environment %s: %w", r.ID, err)
		}
	}
	return e, nil
}

// StatusBody is the body of a workspace.status event.
type StatusBody struct {
	WorkspaceID   uuid.UUID      `json:"workspace_id"`
	Implicit      bool           `json:"implicit"`
	Status        Status         `json:"status"` // deleted once the machine is gone
	MachineStatus machine.Status `json:"machine_status"`
	SetupStep     string         `json:"setup_step"`
	Stale         bool           `json:"stale"`
	ChangedFields []string       `json:"changed_fields"`
	Error         *SetupError    `json:"error,omitempty"`
}

// statusEvent puts the status of a workspace, as tx leaves it, on the account's stream. Who watches is told after the commit.
func (s *Service) statusEvent(ctx context.Context, tx db.Tx, tenantID, id uuid.UUID) error {
	r, err := tx.Workspace(ctx, id)
	if err != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	env, err := readEnvironment(ctx, tx.Queries, r.Workspace.EnvironmentID)
	if err != nil {
		return err
	}
	return s.appendStatus(ctx, tx, tenantID, record{r.Workspace, r.Machine, r.Waiting, r.Away, r.Draining}, environment.Digests(env))
}

func (s *Service) appendStatus(ctx context.Context, tx db.Tx, tenantID uuid.UUID, r record, now map[string]string) error {
	w, err := view(r, now)
	if err != nil {
		return err
	}
	err = s.o.Stream.AppendTx(ctx, tx, tenantID, stream.Event{Name: stream.WorkspaceStatus, WorkspaceID: &w.ID, Body: StatusBody{
		WorkspaceID: w.ID, Implicit: w.Implicit, Status: w.Status, MachineStatus: w.MachineStatus, SetupStep: w.SetupStep, Stale: w.Stale,
		ChangedFields: w.ChangedFields, Error: w.Error,
	}})
	if err != nil {
		return fmt.Errorf("tell of the workspace's status: %w", err)
	}
	tx.OnCommit(func() { s.notify(w.ID) })
	return nil
}

// told makes a write of an operation that changes a workspace: how is one of the operation's ways to write. Who watches
// is told in the same transaction, and woken after it.
func (s *Service) told(ctx context.Context, h *operation.Held, how func(context.Context, func(db.Tx) error) error, fn func(db.Tx) error) error {
	return how(ctx, func(tx db.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return s.statusEvent(ctx, tx, h.TenantID, h.WorkspaceID)
	})
}

// MachineChanged is machine.OnChange: what changes a machine changes its workspace's status.
func (s *Service) MachineChanged(ctx context.Context, tx db.Tx, tenantID, workspaceID uuid.UUID) error {
	return s.statusEvent(ctx, tx, tenantID, workspaceID)
}

// EnvironmentChanged is environment.OnChange: each edit of a built field is told of every ready workspace of the
// environment, also when the field had changed before.
func (s *Service) EnvironmentChanged(ctx context.Context, tx db.Tx, tenantID, environmentID uuid.UUID, _ []string) error {
	rows, err := tx.WorkspacesBuiltFrom(ctx, environmentID)
	if err != nil {
		return fmt.Errorf("look for the environment's workspaces: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	env, err := readEnvironment(ctx, tx.Queries, &environmentID)
	if err != nil {
		return err
	}
	now := environment.Digests(env)
	for _, r := range rows {
		if err := s.appendStatus(ctx, tx, tenantID, record{w: r.Workspace, m: r.Machine}, now); err != nil {
			return err
		}
	}
	return nil
}

// changes returns a channel that is closed at the workspace's next change on this server.
func (s *Service) changes(id uuid.UUID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.changed[id]
	if c == nil {
		c = make(chan struct{})
		s.changed[id] = c
	}
	return c
}

func (s *Service) notify(id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.changed[id]; c != nil {
		close(c)
		delete(s.changed, id)
	}
}
