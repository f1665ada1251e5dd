// Package environment keeps what a machine is built from: packages, repositories, a setup script, variables, networking
// and secrets.
package environment

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/secret/store"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Environment is an environment as it is kept and shown. Lists in it are never null.
type Environment struct {
	ID uuid.UUID `json:"id"`
	Input
	SecretCount int       `json:"secret_count"`
	AgentCount  int       `json:"agent_count" doc:"agents whose own environment it is"`
	InsertedAt  time.Time `json:"inserted_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// OnChange is told in the transaction of an update which of the BuiltFields changed; it is not called when none did.
type OnChange func(ctx context.Context, tx db.Tx, tenantID, environmentID uuid.UUID, changed []string) error

// Service keeps the environments of every account.
type Service struct {
	db       *db.DB
	secrets  *store.Store
	onChange OnChange
}

// NewService makes the service. onChange may be nil.
func NewService(d *db.DB, keys *secret.Keyring, onChange OnChange) *Service {
	if onChange == nil {
		onChange = func(context.Context, db.Tx, uuid.UUID, uuid.UUID, []string) error { return nil }
	}
	return &Service{db: d, secrets: store.New(keys), onChange: onChange}
}

// Create keeps a new environment.
func (s *Service) Create(ctx context.Context, actor tenant.Actor, in Input) (Environment, error) {
	if err := in.Validate(); err != nil {
		return Environment{}, err
	}
	e := Environment{ID: uuid.Must(uuid.NewV7()), Input: in}
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		c := in.columns()
		row, err := tx.InsertEnvironment(ctx, queries.InsertEnvironmentParams{
			ID: e.ID, Name: in.Name, Packages: c.packages, EnvVars: c.envVars, SetupScript: in.SetupScript,
			SetupTimeoutSeconds: int32(in.SetupTimeoutSeconds), NetworkingType: in.NetworkingType, NetworkingConfig: c.networking,
			Repositories: c.repositories, Metadata: c.metadata,
		})
		if err != nil {
			return named(in.Name, err)
		}
		e.InsertedAt, e.UpdatedAt = row.CreatedAt, row.UpdatedAt
		return audit.Write(ctx, tx, actor, audit.EnvironmentCreate, "environment", e.ID, input.Changed(Input{}, in)...)
	})
	if err != nil {
		return Environment{}, fmt.Errorf("create an environment: %w", err)
	}
	return e, nil
}

// Get shows an environment.
func (s *Service) Get(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Environment, error) {
	return get(ctx, s.db.Tenant(actor.TenantID), id)
}

// List shows the environments of the account, by name.
func (s *Service) List(ctx context.Context, actor tenant.Actor, page input.Page) (input.List[Environment], error) {
	after, err := page.Name()
	if err != nil {
		return input.List[Environment]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).Environments(ctx, after, page.Fetch())
	if err != nil {
		return input.List[Environment]{}, fmt.Errorf("list the environments: %w", err)
	}
	items := make([]Environment, len(rows))
	for i, r := range rows {
		if items[i], err = environment(r.Environment, r.SecretCount, r.AgentCount); err != nil {
			return input.List[Environment]{}, err
		}
	}
	same := func(e Environment) Environment { return e }
	return input.Paged(page, items, same, func(e Environment) string { return input.NameCursor(e.Name) }), nil
}

// Update changes an environment: edit gets its present input and changes it. Machines that run keep what they were built
// from; OnChange hears of it.
func (s *Service) Update(ctx context.Context, actor tenant.Actor, id uuid.UUID, edit func(*Input) error) (Environment, error) {
	var e Environment
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		before, err := get(ctx, tx.Queries, id)
		if err != nil {
			return err
		}
		if e, err = get(ctx, tx.Queries, id); err != nil { // read again: edit may change maps in place
			return err
		}
		if err := edit(&e.Input); err != nil {
			return err
		}
		if err := e.Validate(); err != nil {
			return err
		}
		fields := input.Changed(before.Input, e.Input)
		if len(fields) == 0 {
			return nil
		}
		c := e.columns()
		e.UpdatedAt, err = tx.UpdateEnvironment(ctx, queries.UpdateEnvironmentParams{
			ID: id, Name: e.Name, Packages: c.packages, EnvVars: c.envVars, SetupScript: e.SetupScript,
			SetupTimeoutSeconds: int32(e.SetupTimeoutSeconds), NetworkingType: e.NetworkingType, NetworkingConfig: c.networking,
			Repositories: c.repositories, Metadata: c.metadata,
		})
		if err != nil {
			return named(e.Name, err)
		}
		if built := ChangedFields(Digests(before), Digests(e)); len(built) > 0 {
			if err := s.onChange(ctx, tx, actor.TenantID, id, built); err != nil {
				return err
			}
		}
		return audit.Write(ctx, tx, actor, audit.EnvironmentUpdate, "environment", id, fields...)
	})
	if err != nil {
		return Environment{}, fmt.Errorf("update an environment: %w", err)
	}
	return e, nil
}

// maxNamed is how many users of an environment a refusal names.
const maxNamed = 20

// Delete removes an environment that no workspace was made from and no agent uses.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		workspaces, err := tx.WorkspacesOfSource(ctx, queries.WorkspacesOfSourceParams{EnvironmentID: &id, AtMost: maxNamed})
		if err != nil {
			return err
		}
		if len(workspaces) > 0 {
			return store.InUse("environment", workspaces)
		}
		agents, err := tx.AgentsOfEnvironment(ctx, id, maxNamed)
		if err != nil {
			return err
		}
		if len(agents) > 0 {
			names := make([]string, len(agents))
			for i, a := range agents {
				names[i] = a.Name
			}
			return refusal.New(refusal.InUse, "The environment is the one of agent %q. Give the agent another one, or none, first.", names[0]).
				With("used_by", names)
		}
		if err := s.secrets.Clear(ctx, tx, store.OfEnvironment(id)); err != nil {
			return err
		}
		if err := tx.DeleteEnvironment(ctx, id); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.EnvironmentDelete, "environment", id)
	})
	if err != nil {
		return fmt.Errorf("delete an environment: %w", err)
	}
	return nil
}

// Hold checks that the environment is there and keeps it from being deleted until tx ends. What makes a row that refers
// to an environment calls it first: a foreign key alone does not see a delete.
func (s *Service) Hold(ctx context.Context, tx db.Tx, id uuid.UUID) error { return Hold(ctx, tx, id) }

// Hold is the method's work, for packages that have no service.
func Hold(ctx context.Context, tx db.Tx, id uuid.UUID) error {
	if _, err := tx.HoldEnvironment(ctx, id); db.NotFound(err) {
		return refusal.New(refusal.EnvironmentNotFound, "There is no environment with that id in this account.")
	} else if err != nil {
		return fmt.Errorf("hold the environment: %w", err)
	}
	return nil
}

// SecretInput is a secret to put into an environment.
type SecretInput struct {
	Key   string       `json:"key" doc:"a name of an environment variable"`
	Value secret.Value `json:"value" doc:"never shown again"`
}

// PutSecret adds a secret or replaces the one of its key.
func (s *Service) PutSecret(ctx context.Context, actor tenant.Actor, id uuid.UUID, in SecretInput) (store.Secret, error) {
	var out store.Secret
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) (err error) {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		out, err = s.secrets.Put(ctx, tx, actor.TenantID, store.OfEnvironment(id), store.Input{Key: in.Key, Value: in.Value})
		if err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.EnvironmentPutSecret, "environment", id, out.Key)
	})
	if err != nil {
		return store.Secret{}, fmt.Errorf("put a secret of an environment: %w", err)
	}
	return out, nil
}

// ListSecrets shows the secrets of an environment, without their values.
func (s *Service) ListSecrets(ctx context.Context, actor tenant.Actor, id uuid.UUID) ([]store.Secret, error) {
	q := s.db.Tenant(actor.TenantID)
	if _, err := get(ctx, q, id); err != nil {
		return nil, err
	}
	return s.secrets.List(ctx, q, store.OfEnvironment(id))
}

// DeleteSecret removes a secret that is named by its id or its key.
func (s *Service) DeleteSecret(ctx context.Context, actor tenant.Actor, id uuid.UUID, idOrKey string) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		key, err := s.secrets.Delete(ctx, tx, actor.TenantID, store.OfEnvironment(id), idOrKey)
		if err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.EnvironmentDeleteSecret, "environment", id, key)
	})
	if err != nil {
		return fmt.Errorf("delete a secret of an environment: %w", err)
	}
	return nil
}

// Secrets opens the environment's secrets, by key: for a machine's setup and its conversations, never for an answer.
func (s *Service) Secrets(ctx context.Context, tenantID, id uuid.UUID) (map[string]secret.Value, error) {
	return s.secrets.Values(ctx, s.db.Tenant(tenantID), tenantID, store.OfEnvironment(id))
}

// Masks opens what must be masked of the environment's secrets, see store.Masks.
func (s *Service) Masks(ctx context.Context, tenantID, id uuid.UUID) ([]secret.Value, error) {
	return s.secrets.Masks(ctx, s.db.Tenant(tenantID), tenantID, store.OfEnvironment(id))
}

func lock(ctx context.Context, tx db.Tx, id uuid.UUID) error {
	if _, err := tx.LockEnvironment(ctx, id); db.NotFound(err) {
		return refusal.NotFoundError()
	} else if err != nil {
		return fmt.Errorf("lock the environment: %w", err)
	}
	return nil
}

func get(ctx context.Context, q *queries.Queries, id uuid.UUID) (Environment, error) {
	row, err := q.Environment(ctx, id)
	if db.NotFound(err) {
		return Environment{}, refusal.NotFoundError()
	}
	if err != nil {
		return Environment{}, fmt.Errorf("read the environment: %w", err)
	}
	return environment(row.Environment, row.SecretCount, row.AgentCount)
}

// named turns the violation of the unique name into its refusal.
func named(name string, err error) error {
	if db.IsUnique(err, "environments_name") {
		return input.NameTaken("environment", name)
	}
	return err
}

type columns struct{ packages, envVars, networking, repositories, metadata json.RawMessage }

func (in Input) columns() columns {
	return columns{marshal(in.Packages), marshal(in.EnvVars), marshal(in.NetworkingConfig), marshal(in.Repositories), marshal(in.Metadata)}
}

func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, lists and maps of them
	}
	return b
}

func environment(r queries.Environment, secrets, agents int32) (Environment, error) {
	e := Environment{
		ID: r.ID, SecretCount: int(secrets), AgentCount: int(agents), InsertedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		Input: Input{
			Name: r.Name, SetupScript: r.SetupScript, SetupTimeoutSeconds: int(r.SetupTimeoutSeconds), NetworkingType: r.NetworkingType,
			Packages: Packages{Apt: []string{}, Npm: []string{}, Pip: []string{}}, NetworkingConfig: NetworkingConfig{AllowedHosts: []string{}},
		},
	}
	for _, c := range []struct {
		stored json.RawMessage
		into   any
	}{
		{r.Packages, &e.Packages}, {r.EnvVars, &e.EnvVars}, {r.NetworkingConfig, &e.NetworkingConfig},
		{r.Repositories, &e.Repositories}, {r.Metadata, &e.Metadata},
	} {
		if err := json.Unmarshal(c.stored, c.into); err != nil {
			return Environment{}, fmt.Errorf("read the environment %s: %w", r.ID, err)
		}
	}
	return e, nil
}
