// Package store keeps the named secrets of an environment or of a vault: sealed at rest, listed without their values.
// The packages of the two parents check that the parent is there, lock it, and write the audit row.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/queries"
)

// Limits of secrets.
const (
	MaxSecrets = 200      // of one parent
	MaxValue   = 64 << 10 // bytes of a value
)

// Secret is a secret as it is shown: never its value.
type Secret struct {
	ID            uuid.UUID  `json:"id"`
	Key           string     `json:"key"`
	EnvironmentID *uuid.UUID `json:"environment_id,omitempty"`
	VaultID       *uuid.UUID `json:"vault_id,omitempty"`
	ExpiresAt     *time.Time `json:"expires_at" doc:"advisory: nothing happens then"`
	InsertedAt    time.Time  `json:"inserted_at"`
	UpdatedAt     time.Time  `json:"updated_at" doc:"when its value or its expiry last changed"`
}

// Input is a secret to put: it replaces one of the same key.
type Input struct {
	Key       string
	Value     secret.Value
	ExpiresAt *time.Time
}

// Validate checks a secret to put.
func (in *Input) Validate() error {
	var v refusal.Validation
	if problem := input.VariableName(in.Key); problem != "" {
		v.Add("key", "%s", problem)
	}
	v.Check(!in.Value.Empty(), "value", "must not be empty")
	input.Text(&v, "value", in.Value.Reveal(), MaxValue)
	return v.Err()
}

// Parent is whose secrets: an environment's or a vault's. Exactly one is set.
type Parent struct {
	EnvironmentID *uuid.UUID
	VaultID       *uuid.UUID
}

// OfEnvironment is an environment as a parent.
func OfEnvironment(id uuid.UUID) Parent { return Parent{EnvironmentID: &id} }

// OfVault is a vault as a parent.
func OfVault(id uuid.UUID) Parent { return Parent{VaultID: &id} }

// Store seals and opens the secrets of an account.
type Store struct{ keys *secret.Keyring }

// New makes a store.
func New(keys *secret.Keyring) *Store { return &Store{keys} }

// Put adds a secret or replaces the one of its key. The caller has locked the parent, so that no two puts of one key
// meet.
func (s *Store) Put(ctx context.Context, tx db.Tx, tenantID uuid.UUID, p Parent, in Input) (Secret, error) {
	if err := in.Validate(); err != nil {
		return Secret{}, err
	}
	id, err := tx.SecretID(ctx, queries.SecretIDParams{Key: in.Key, EnvironmentID: p.EnvironmentID, VaultID: p.VaultID})
	switch {
	case db.NotFound(err):
		n, err := tx.CountSecrets(ctx, p.EnvironmentID, p.VaultID)
		if err != nil {
			return Secret{}, fmt.Errorf("count the secrets: %w", err)
		}
		if n >= MaxSecrets {
			var v refusal.Validation
			v.Add("key", "would be one more than the %d secrets there may be", MaxSecrets)
			return Secret{}, v.Err()
		}
		id = uuid.Must(uuid.NewV7())
	case err != nil:
		return Secret{}, fmt.Errorf("look for the secret: %w", err)
	}
	sealed, version, err := s.keys.Seal(ctx, tx.Queries, tenantID, id, in.Value)
	if err != nil {
		return Secret{}, fmt.Errorf("seal the secret: %w", err)
	}
	row, err := tx.PutSecret(ctx, queries.PutSecretParams{
		ID: id, EnvironmentID: p.EnvironmentID, VaultID: p.VaultID, Key: in.Key, Sealed: sealed, KeyVersion: version, ExpiresAt: in.ExpiresAt,
	})
	if err != nil {
		return Secret{}, fmt.Errorf("put the secret: %w", err)
	}
	return p.secret(row.ID, row.Key, row.ExpiresAt, row.CreatedAt, row.UpdatedAt), nil
}

// Expire changes the advisory expiry of a secret; nil clears it.
func (s *Store) Expire(ctx context.Context, tx db.Tx, p Parent, key string, at *time.Time) (Secret, error) {
	id, err := tx.SecretID(ctx, queries.SecretIDParams{Key: db.SafeText(key), EnvironmentID: p.EnvironmentID, VaultID: p.VaultID})
	if db.NotFound(err) {
		return Secret{}, refusal.NotFoundError()
	}
	if err != nil {
		return Secret{}, fmt.Errorf("look for the secret: %w", err)
	}
	row, err := tx.ExpireSecret(ctx, at, id)
	if err != nil {
		return Secret{}, fmt.Errorf("change the secret's expiry: %w", err)
	}
	return p.secret(row.ID, row.Key, row.ExpiresAt, row.CreatedAt, row.UpdatedAt), nil
}

// List shows the secrets of a parent, by key.
func (s *Store) List(ctx context.Context, q *queries.Queries, p Parent) ([]Secret, error) {
	rows, err := q.Secrets(ctx, p.EnvironmentID, p.VaultID)
	if err != nil {
		return nil, fmt.Errorf("list the secrets: %w", err)
	}
	out := make([]Secret, len(rows))
	for i, r := range rows {
		out[i] = p.secret(r.ID, r.Key, r.ExpiresAt, r.CreatedAt, r.UpdatedAt)
	}
	return out, nil
}

// Values opens the secrets of a parent, by key. For what runs with them, never for an answer.
func (s *Store) Values(ctx context.Context, q *queries.Queries, tenantID uuid.UUID, p Parent) (map[string]secret.Value, error) {
	rows, err := q.Secrets(ctx, p.EnvironmentID, p.VaultID)
	if err != nil {
		return nil, fmt.Errorf("read the secrets: %w", err)
	}
	out := make(map[string]secret.Value, len(rows))
	for _, r := range rows {
		if out[r.Key], err = s.keys.Unseal(ctx, q, tenantID, r.ID, r.Sealed, r.KeyVersion); err != nil {
			return nil, fmt.Errorf("open the secret %s: %w", r.Key, err)
		}
	}
	return out, nil
}

// Delete removes a secret that is named by its id or its key, and returns its key.
func (s *Store) Delete(ctx context.Context, tx db.Tx, p Parent, idOrKey string) (string, error) {
	row, err := tx.DeleteSecret(ctx, queries.DeleteSecretParams{IDOrKey: db.SafeText(idOrKey), EnvironmentID: p.EnvironmentID, VaultID: p.VaultID})
	if db.NotFound(err) {
		return "", refusal.NotFoundError()
	}
	if err != nil {
		return "", fmt.Errorf("delete the secret: %w", err)
	}
	return row.Key, nil
}

// Clear removes every secret of a parent.
func (s *Store) Clear(ctx context.Context, tx db.Tx, p Parent) error {
	if err := tx.DeleteSecretsOf(ctx, p.EnvironmentID, p.VaultID); err != nil {
		return fmt.Errorf("delete the secrets: %w", err)
	}
	return nil
}

func (p Parent) secret(id uuid.UUID, key string, expires *time.Time, created, updated time.Time) Secret {
	return Secret{ID: id, Key: key, EnvironmentID: p.EnvironmentID, VaultID: p.VaultID, ExpiresAt: expires, InsertedAt: created, UpdatedAt: updated}
}

// InUse is the refusal to delete an environment or a vault that workspaces were made from. It names them; a
// conversation's own workspace counts as long as the conversation lives.
func InUse(kind string, workspaces []queries.WorkspacesOfSourceRow) error {
	names := make([]string, len(workspaces))
	for i, w := range workspaces {
		names[i] = w.Name
	}
	r := refusal.New(refusal.SourceInUse, "Workspace %q was made from this %s%s. Delete the workspace first.", names[0], kind, others(len(names)-1))
	if workspaces[0].Implicit {
		r = refusal.New(refusal.SourceInUse, "A conversation with a machine of its own (%q) was made from this %s%s. End the conversation first.", names[0], kind, others(len(names)-1))
	}
	return r.With("workspaces", names)
}

func others(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", and so was 1 other"
	}
	return fmt.Sprintf(", and so were %d others", n)
}
