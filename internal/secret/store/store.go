// Package store keeps the named secrets of an environment or of a vault: sealed at rest, listed without their values.
// The packages of the two parents check that the parent is there, lock it, and write the audit row.
package store

import (
	"context"
	"errors"
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

	maxRetired      = 1000    // values of one parent that were replaced or deleted and are masked on; the oldest are forgotten
	maxRetiredBytes = 4 << 20 // of those
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
	id := uuid.Must(uuid.NewV7())
	old, err := tx.Secret(ctx, queries.SecretParams{IDOrKey: in.Key, EnvironmentID: p.EnvironmentID, VaultID: p.VaultID})
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
	case err != nil:
		return Secret{}, fmt.Errorf("look for the secret: %w", err)
	default:
		id = old.ID
		if err := s.retire(ctx, tx, tenantID, p, old, in.Value); err != nil {
			return Secret{}, err
		}
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
	old, err := find(ctx, tx, p, key)
	if err != nil {
		return Secret{}, err
	}
	row, err := tx.ExpireSecret(ctx, at, old.ID)
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

// Masks opens every value that machines may hold: the secrets of a parent, and what they were before, as far as a machine
// that is there may have been given it. For what masks them, never for what runs.
func (s *Store) Masks(ctx context.Context, q *queries.Queries, tenantID uuid.UUID, p Parent) ([]secret.Value, error) {
	rows, err := q.SecretMasks(ctx, p.EnvironmentID, p.VaultID)
	if err != nil {
		return nil, fmt.Errorf("read the secrets to mask: %w", err)
	}
	out := make([]secret.Value, len(rows))
	for i, r := range rows {
		if out[i], err = s.keys.Unseal(ctx, q, tenantID, r.ID, r.Sealed, r.KeyVersion); err != nil {
			return nil, fmt.Errorf("open a secret to mask: %w", err)
		}
	}
	return out, nil
}

// Delete removes a secret that is named by its id or its key, and returns its key.
func (s *Store) Delete(ctx context.Context, tx db.Tx, tenantID uuid.UUID, p Parent, idOrKey string) (string, error) {
	old, err := find(ctx, tx, p, idOrKey)
	if err != nil {
		return "", err
	}
	if err := s.retire(ctx, tx, tenantID, p, old, secret.Value{}); err != nil {
		return "", err
	}
	key, err := tx.DeleteSecret(ctx, old.ID)
	if err != nil {
		return "", fmt.Errorf("delete the secret: %w", err)
	}
	return key, nil
}

func find(ctx context.Context, tx db.Tx, p Parent, idOrKey string) (queries.SecretRow, error) {
	row, err := tx.Secret(ctx, queries.SecretParams{IDOrKey: db.SafeText(idOrKey), EnvironmentID: p.EnvironmentID, VaultID: p.VaultID})
	if db.NotFound(err) {
		return row, refusal.NotFoundError()
	}
	if err != nil {
		return row, fmt.Errorf("look for the secret: %w", err)
	}
	return row, nil
}

// retire keeps a value that another replaces, or none, for Masks. One that does not open has never been on a machine.
func (s *Store) retire(ctx context.Context, tx db.Tx, tenantID uuid.UUID, p Parent, old queries.SecretRow, by secret.Value) error {
	value, err := s.keys.Unseal(ctx, tx.Queries, tenantID, old.ID, old.Sealed, old.KeyVersion)
	if errors.Is(err, secret.ErrSealed) || err == nil && value.Equal(by) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the secret that goes: %w", err)
	}
	if err := tx.RetireSecret(ctx, old.ID); err != nil {
		return fmt.Errorf("keep what the secret was: %w", err)
	}
	if err := tx.DropRetiredSecrets(ctx, p.EnvironmentID, p.VaultID); err != nil {
		return fmt.Errorf("forget what secrets were: %w", err)
	}
	err = tx.BoundRetiredSecrets(ctx, queries.BoundRetiredSecretsParams{EnvironmentID: p.EnvironmentID, VaultID: p.VaultID, AtMost: maxRetired, AtMostBytes: maxRetiredBytes})
	if err != nil {
		return fmt.Errorf("bound what secrets were: %w", err)
	}
	return nil
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
