// Package agent keeps how agents behave. Every change is a new version; a version never changes, and outlives the agent,
// so that a transcript can always say what ran.
package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/environment"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/vault"
	"managoat/queries"
)

// Agent is an agent as it is now: its newest version.
type Agent struct {
	ID uuid.UUID `json:"id"`
	Config
	Version           int       `json:"version" doc:"the newest version's number"`
	ACP               bool      `json:"acp"`
	ConversationCount int       `json:"conversation_count"`
	InsertedAt        time.Time `json:"inserted_at"`
	UpdatedAt         time.Time `json:"updated_at"`
}

// Version is one immutable state of an agent.
type Version struct {
	AgentID    uuid.UUID `json:"agent_id"`
	Version    int       `json:"version"`
	Config     Config    `json:"config"`
	CreatedBy  string    `json:"created_by" doc:"the person's e-mail, or the kind and id of what made it"`
	InsertedAt time.Time `json:"inserted_at"`
}

// Service keeps the agents of every account.
type Service struct {
	db        *db.DB
	providers []string
}

// NewService makes the service. providers are the sandbox providers that this instance offers.
func NewService(d *db.DB, providers []string) *Service { return &Service{db: d, providers: providers} }

// Create keeps a new agent as its version 1.
func (s *Service) Create(ctx context.Context, actor tenant.Actor, c Config) (Agent, error) {
	if err := c.Validate(); err != nil {
		return Agent{}, err
	}
	a := Agent{ID: uuid.Must(uuid.NewV7()), Config: c, Version: 1, ACP: true}
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := s.checkReferences(ctx, tx, Config{}, c); err != nil {
			return err
		}
		row, err := tx.InsertAgent(ctx, queries.InsertAgentParams{ID: a.ID, Name: c.Name, EnvironmentID: c.EnvironmentID})
		if err != nil {
			return named(c.Name, err)
		}
		a.InsertedAt, a.UpdatedAt = row.CreatedAt, row.UpdatedAt
		if err := insertVersion(ctx, tx, actor, a); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.AgentCreate, "agent", a.ID, input.Changed(Config{}, c)...)
	})
	if err != nil {
		return Agent{}, fmt.Errorf("create an agent: %w", err)
	}
	return a, nil
}

// Get shows an agent.
func (s *Service) Get(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Agent, error) {
	return get(ctx, s.db.Tenant(actor.TenantID), id)
}

// List shows the agents of the account, by name.
func (s *Service) List(ctx context.Context, actor tenant.Actor, page input.Page) (input.List[Agent], error) {
	after, err := page.Name()
	if err != nil {
		return input.List[Agent]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).Agents(ctx, after, page.Fetch())
	if err != nil {
		return input.List[Agent]{}, fmt.Errorf("list the agents: %w", err)
	}
	items := make([]Agent, len(rows))
	for i, r := range rows {
		if items[i], err = agent(r.Agent, r.Config, r.ConversationCount); err != nil {
			return input.List[Agent]{}, err
		}
	}
	same := func(a Agent) Agent { return a }
	return input.Paged(page, items, same, func(a Agent) string { return input.NameCursor(a.Name) }), nil
}

// Update changes an agent, which makes its next version: edit gets its present configuration and changes it. An edit
// that changes nothing makes none. version, when it is not 0, is the version that the editor saw: version_conflict when
// another change came first.
func (s *Service) Update(ctx context.Context, actor tenant.Actor, id uuid.UUID, version int, edit func(*Config) error) (Agent, error) {
	var a Agent
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		before, err := get(ctx, tx.Queries, id)
		if err != nil {
			return err
		}
		if version != 0 && version != before.Version {
			return refusal.New(refusal.VersionConflict, "The agent is at version %d now; this change was made from version %d. Read it again.", before.Version, version).
				With("version", before.Version)
		}
		if a, err = get(ctx, tx.Queries, id); err != nil { // read again: edit may change maps in place
			return err
		}
		if err := edit(&a.Config); err != nil {
			return err
		}
		if err := a.Validate(); err != nil {
			return err
		}
		fields := input.Changed(before.Config, a.Config)
		if len(fields) == 0 {
			return nil
		}
		if err := s.checkReferences(ctx, tx, before.Config, a.Config); err != nil {
			return err
		}
		a.Version = before.Version + 1
		a.UpdatedAt, err = tx.UpdateAgent(ctx, queries.UpdateAgentParams{ID: id, Name: a.Name, EnvironmentID: a.EnvironmentID, Version: int32(a.Version)})
		if err != nil {
			return named(a.Name, err)
		}
		if err := insertVersion(ctx, tx, actor, a); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.AgentUpdate, "agent", id, fields...)
	})
	if err != nil {
		return Agent{}, fmt.Errorf("update an agent: %w", err)
	}
	return a, nil
}

// Delete removes an agent. Its versions and the conversations that ran them stay.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		n, err := tx.DeleteAgent(ctx, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return refusal.NotFoundError()
		}
		return audit.Write(ctx, tx, actor, audit.AgentDelete, "agent", id)
	})
	if err != nil {
		return fmt.Errorf("delete an agent: %w", err)
	}
	return nil
}

// Versions shows the versions of an agent, newest first.
func (s *Service) Versions(ctx context.Context, actor tenant.Actor, id uuid.UUID, page input.Page) (input.List[Version], error) {
	before, err := page.Number()
	if err != nil {
		return input.List[Version]{}, err
	}
	q := s.db.Tenant(actor.TenantID)
	if _, err := get(ctx, q, id); err != nil {
		return input.List[Version]{}, err
	}
	rows, err := q.AgentVersions(ctx, queries.AgentVersionsParams{AgentID: id, Before: before, AtMost: page.Fetch()})
	if err != nil {
		return input.List[Version]{}, fmt.Errorf("list the versions of an agent: %w", err)
	}
	items := make([]Version, len(rows))
	for i, r := range rows {
		if items[i], err = versionOf(r); err != nil {
			return input.List[Version]{}, err
		}
	}
	same := func(v Version) Version { return v }
	return input.Paged(page, items, same, func(v Version) string { return input.NumberCursor(v.Version) }), nil
}

// Version shows one version, of an agent that may be deleted: conversations name it.
func (s *Service) Version(ctx context.Context, actor tenant.Actor, id uuid.UUID, version int) (Version, error) {
	if version < 1 || version > 1<<31-1 {
		return Version{}, refusal.NotFoundError()
	}
	row, err := s.db.Tenant(actor.TenantID).AgentVersion(ctx, id, int32(version))
	if db.NotFound(err) {
		return Version{}, refusal.NotFoundError()
	}
	if err != nil {
		return Version{}, fmt.Errorf("read a version of an agent: %w", err)
	}
	return versionOf(row)
}

// checkReferences checks what the configuration names and the one before it did not: what was deleted since then does
// not stand in the way of other changes. What is named is held until the transaction ends.
func (s *Service) checkReferences(ctx context.Context, tx db.Tx, before, c Config) error {
	if c.EnvironmentID != nil {
		if err := environment.Hold(ctx, tx, *c.EnvironmentID); err != nil {
			return err
		}
	}
	for _, id := range c.AllowedEnvironmentIDs {
		if slices.Contains(before.AllowedEnvironmentIDs, id) {
			continue
		}
		if err := environment.Hold(ctx, tx, id); err != nil {
			return err
		}
	}
	for _, id := range c.AllowedVaultIDs {
		if slices.Contains(before.AllowedVaultIDs, id) {
			continue
		}
		if err := vault.Hold(ctx, tx, id); err != nil {
			return err
		}
	}
	if c.InferenceCredentialID != nil {
		provider, err := inference.Hold(ctx, tx, *c.InferenceCredentialID)
		if err != nil {
			return err
		}
		if want := c.Provider(); want != "" && provider != want {
			var v refusal.Validation
			v.Add("inference_credential_id", "is a key for %s; the model needs one for %s", provider, want)
			return v.Err()
		}
	}
	if p := c.SandboxProvider; p != nil && (before.SandboxProvider == nil || *before.SandboxProvider != *p) && !slices.Contains(s.providers, *p) {
		return refusal.New(refusal.ProviderDisabled, "This instance does not offer the sandbox provider %q. It offers: %s.", *p, strings.Join(s.providers, ", ")).
			With("provider", *p).With("enabled", s.providers).With("errors", map[string][]string{"sandbox_provider": {"is not offered by this instance"}})
	}
	return nil
}

func lock(ctx context.Context, tx db.Tx, id uuid.UUID) error {
	if _, err := tx.LockAgent(ctx, id); db.NotFound(err) {
		return refusal.NotFoundError()
	} else if err != nil {
		return fmt.Errorf("lock the agent: %w", err)
	}
	return nil
}

func insertVersion(ctx context.Context, tx db.Tx, actor tenant.Actor, a Agent) error {
	config, err := json.Marshal(a.Config)
	if err != nil {
		return err
	}
	_, err = tx.InsertAgentVersion(ctx, queries.InsertAgentVersionParams{AgentID: a.ID, Version: int32(a.Version), Config: config, CreatedBy: actor.By()})
	return err
}

func get(ctx context.Context, q *queries.Queries, id uuid.UUID) (Agent, error) {
	row, err := q.Agent(ctx, id)
	if db.NotFound(err) {
		return Agent{}, refusal.NotFoundError()
	}
	if err != nil {
		return Agent{}, fmt.Errorf("read the agent: %w", err)
	}
	return agent(row.Agent, row.Config, row.ConversationCount)
}

// named turns the violation of the unique name into its refusal.
func named(name string, err error) error {
	if db.IsUnique(err, "agents_tenant_id_name_key") {
		return input.NameTaken("agent", name)
	}
	return err
}

func agent(r queries.Agent, config json.RawMessage, conversations int32) (Agent, error) {
	a := Agent{ID: r.ID, Version: int(r.Version), ACP: true, ConversationCount: int(conversations), InsertedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
	if err := json.Unmarshal(config, &a.Config); err != nil {
		return Agent{}, fmt.Errorf("read the agent %s: %w", r.ID, err)
	}
	return a, nil
}

func versionOf(r queries.AgentVersion) (Version, error) {
	v := Version{AgentID: r.AgentID, Version: int(r.Version), CreatedBy: r.CreatedBy, InsertedAt: r.CreatedAt}
	if err := json.Unmarshal(r.Config, &v.Config); err != nil {
		return Version{}, fmt.Errorf("read version %d of the agent %s: %w", r.Version, r.AgentID, err)
	}
	return v, nil
}
