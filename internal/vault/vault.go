// Package vault keeps named sets of secrets. Where a vault and an environment hold the same key, the vault's value wins.
package vault

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

// Input is what people write of a vault.
type Input struct {
	Name        string         `json:"name" doc:"1 to 200 characters, unique in the account"`
	Description string         `json:"description"`
	Metadata    map[string]any `json:"metadata"`
}

// Validate brings the input into the form that is stored and checks every rule.
func (in *Input) Validate() error {
	var v refusal.Validation
	input.Name(&v, "name", &in.Name)
	in.Description = input.Lines(in.Description)
	input.Text(&v, "description", in.Description, input.MaxDescription)
	input.Metadata(&v, "metadata", &in.Metadata)
	return v.Err()
}

// Vault is a vault as it is kept and shown.
type Vault struct {
	ID uuid.UUID `json:"id"`
	Input
	SecretCount int       `json:"secret_count"`
	InsertedAt  time.Time `json:"inserted_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// Service keeps the vaults of every account.
type Service struct {
	db      *db.DB
	secrets *store.Store
}

// NewService makes the service.
func NewService(d *db.DB, keys *secret.Keyring) *Service {
	return &Service{db: d, secrets: store.New(keys)}
}

// Create keeps a new vault.
func (s *Service) Create(ctx context.Context, actor tenant.Actor, in Input) (Vault, error) {
	if err := in.Validate(); err != nil {
		return Vault{}, err
	}
	v := Vault{ID: uuid.Must(uuid.NewV7()), Input: in}
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		metadata, err := json.Marshal(in.Metadata)
		if err != nil {
			return err
		}
		row, err := tx.InsertVault(ctx, queries.InsertVaultParams{ID: v.ID, Name: in.Name, Description: in.Description, Metadata: metadata})
		if err != nil {
			return named(in.Name, err)
		}
		v.InsertedAt, v.UpdatedAt = row.CreatedAt, row.UpdatedAt
		return audit.Write(ctx, tx, actor, audit.VaultCreate, "vault", v.ID, input.Changed(Input{}, in)...)
	})
	if err != nil {
		return Vault{}, fmt.Errorf("create a vault: %w", err)
	}
	return v, nil
}

// Get shows a vault.
func (s *Service) Get(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Vault, error) {
	return get(ctx, s.db.Tenant(actor.TenantID), id)
}

// List shows the vaults of the account, by name.
func (s *Service) List(ctx context.Context, actor tenant.Actor, page input.Page) (input.List[Vault], error) {
	after, err := page.Name()
	if err != nil {
		return input.List[Vault]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).Vaults(ctx, after, page.Fetch())
	if err != nil {
		return input.List[Vault]{}, fmt.Errorf("list the vaults: %w", err)
	}
	items := make([]Vault, len(rows))
	for i, r := range rows {
		if items[i], err = vault(r.Vault, r.SecretCount); err != nil {
			return input.List[Vault]{}, err
		}
	}
	same := func(v Vault) Vault { return v }
	return input.Paged(page, items, same, func(v Vault) string { return input.NameCursor(v.Name) }), nil
}

// Update changes a vault: edit gets its present input and changes it.
func (s *Service) Update(ctx context.Context, actor tenant.Actor, id uuid.UUID, edit func(*Input) error) (Vault, error) {
	var v Vault
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		before, err := get(ctx, tx.Queries, id)
		if err != nil {
			return err
		}
		if v, err = get(ctx, tx.Queries, id); err != nil { // read again: edit may change the metadata in place
			return err
		}
		if err := edit(&v.Input); err != nil {
			return err
		}
		if err := v.Validate(); err != nil {
			return err
		}
		fields := input.Changed(before.Input, v.Input)
		if len(fields) == 0 {
			return nil
		}
		metadata, err := json.Marshal(v.Metadata)
		if err != nil {
			return err
		}
		v.UpdatedAt, err = tx.UpdateVault(ctx, queries.UpdateVaultParams{ID: id, Name: v.Name, Description: v.Description, Metadata: metadata})
		if err != nil {
			return named(v.Name, err)
		}
		return audit.Write(ctx, tx, actor, audit.VaultUpdate, "vault", id, fields...)
	})
	if err != nil {
		return Vault{}, fmt.Errorf("update a vault: %w", err)
	}
	return v, nil
}

// maxNamed is how many users of a vault a refusal names.
const maxNamed = 20

// Delete removes a vault that no workspace was made with.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		workspaces, err := tx.WorkspacesOfSource(ctx, queries.WorkspacesOfSourceParams{VaultID: &id, AtMost: maxNamed})
		if err != nil {
			return err
		}
		if len(workspaces) > 0 {
			return store.InUse("vault", workspaces)
		}
		if err := s.secrets.Clear(ctx, tx, store.OfVault(id)); err != nil {
			return err
		}
		if err := tx.DeleteVault(ctx, id); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.VaultDelete, "vault", id)
	})
	if err != nil {
		return fmt.Errorf("delete a vault: %w", err)
	}
	return nil
}

// Hold checks that the vault is there and keeps it from being deleted until tx ends. What makes a row that refers to a
// vault calls it first: a foreign key alone does not see a delete.
func (s *Service) Hold(ctx context.Context, tx db.Tx, id uuid.UUID) error { return Hold(ctx, tx, id) }

// Hold is the method's work, for packages that have no service.
func Hold(ctx context.Context, tx db.Tx, id uuid.UUID) error {
	if _, err := tx.HoldVault(ctx, id); db.NotFound(err) {
		return refusal.New(refusal.VaultNotFound, "There is no vault with that id in this account.")
	} else if err != nil {
		return fmt.Errorf("hold the vault: %w", err)
	}
	return nil
}

// SecretInput is a secret to put into a vault.
type SecretInput struct {
	Key       string       `json:"key" doc:"a name of an environment variable"`
	Value     secret.Value `json:"value" doc:"never shown again"`
	ExpiresAt *time.Time   `json:"expires_at" doc:"advisory: when whoever issued it lets it end"`
}

// PutSecret adds a secret or replaces the one of its key.
func (s *Service) PutSecret(ctx context.Context, actor tenant.Actor, id uuid.UUID, in SecretInput) (store.Secret, error) {
	return s.change(ctx, actor, id, audit.VaultPutSecret, func(tx db.Tx) (store.Secret, error) {
		return s.secrets.Put(ctx, tx, actor.TenantID, store.OfVault(id), store.Input(in))
	})
}

// UpdateSecret changes the advisory expiry of a secret, which is named by its key; nil clears it.
func (s *Service) UpdateSecret(ctx context.Context, actor tenant.Actor, id uuid.UUID, key string, expiresAt *time.Time) (store.Secret, error) {
	return s.change(ctx, actor, id, audit.VaultUpdateSecret, func(tx db.Tx) (store.Secret, error) {
		return s.secrets.Expire(ctx, tx, store.OfVault(id), key, expiresAt)
	})
}

// ListSecrets shows the secrets of a vault, without their values.
func (s *Service) ListSecrets(ctx context.Context, actor tenant.Actor, id uuid.UUID) ([]store.Secret, error) {
	q := s.db.Tenant(actor.TenantID)
	if _, err := get(ctx, q, id); err != nil {
		return nil, err
	}
	return s.secrets.List(ctx, q, store.OfVault(id))
}

// DeleteSecret removes a secret that is named by its id or its key.
func (s *Service) DeleteSecret(ctx context.Context, actor tenant.Actor, id uuid.UUID, idOrKey string) error {
	_, err := s.change(ctx, actor, id, audit.VaultDeleteSecret, func(tx db.Tx) (store.Secret, error) {
		key, err := s.secrets.Delete(ctx, tx, actor.TenantID, store.OfVault(id), idOrKey)
		return store.Secret{Key: key}, err
	})
	return err
}

// Secrets opens the vault's secrets, by key: for a machine's setup and its conversations, never for an answer.
func (s *Service) Secrets(ctx context.Context, tenantID, id uuid.UUID) (map[string]secret.Value, error) {
	return s.secrets.Values(ctx, s.db.Tenant(tenantID), tenantID, store.OfVault(id))
}

// Masks opens what must be masked of the vault's secrets, see store.Masks.
func (s *Service) Masks(ctx context.Context, tenantID, id uuid.UUID) ([]secret.Value, error) {
	return s.secrets.Masks(ctx, s.db.Tenant(tenantID), tenantID, store.OfVault(id))
}

// change runs one change of a secret under the vault's lock and writes its audit row.
func (s *Service) change(ctx context.Context, actor tenant.Actor, id uuid.UUID, action audit.Action, fn func(db.Tx) (store.Secret, error)) (store.Secret, error) {
	var out store.Secret
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) (err error) {
		if err := lock(ctx, tx, id); err != nil {
			return err
		}
		if out, err = fn(tx); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, action, "vault", id, out.Key)
	})
	if err != nil {
		return store.Secret{}, fmt.Errorf("%s: %w", action, err)
	}
	return out, nil
}

func lock(ctx context.Context, tx db.Tx, id uuid.UUID) error {
	if _, err := tx.LockVault(ctx, id); db.NotFound(err) {
		return refusal.NotFoundError()
	} else if err != nil {
		return fmt.Errorf("lock the vault: %w", err)
	}
	return nil
}

func get(ctx context.Context, q *queries.Queries, id uuid.UUID) (Vault, error) {
	row, err := q.Vault(ctx, id)
	if db.NotFound(err) {
		return Vault{}, refusal.NotFoundError()
	}
	if err != nil {
		return Vault{}, fmt.Errorf("read the vault: %w", err)
	}
	return vault(row.Vault, row.SecretCount)
}

// named turns the violation of the unique name into its refusal.
func named(name string, err error) error {
	if db.IsUnique(err, "vaults_name") {
		return input.NameTaken("vault", name)
	}
	return err
}

func vault(r queries.Vault, secrets int32) (Vault, error) {
	v := Vault{ID: r.ID, Input: Input{Name: r.Name, Description: r.Description}, SecretCount: int(secrets), InsertedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
	if err := json.Unmarshal(r.Metadata, &v.Metadata); err != nil {
		return Vault{}, fmt.Errorf("read the vault %s: %w", r.ID, err)
	}
	return v, nil
}
