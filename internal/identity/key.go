package identity

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/queries"
)

// KeyPrefix begins every API key, so that people and scanners know one when they see it.
const KeyPrefix = "mgt_"

// visiblePrefix is how much of a key is kept to tell it from others, in characters.
const visiblePrefix = len(KeyPrefix) + 8

// Key is an API key as it is shown.
type Key struct {
	ID         uuid.UUID  `json:"id"`
	Name       string     `json:"name"`
	Prefix     string     `json:"prefix" doc:"the visible start of the key"`
	Scopes     []string   `json:"scopes" doc:"full, or sandbox:<conversation id>"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"to the minute"`
	ExpiresAt  *time.Time `json:"expires_at"`
}

// CreatedKey is a new key. Its plaintext is known here once and stored nowhere.
type CreatedKey struct {
	Key
	Plain secret.Value `json:"-"`
}

// KeyInput is what people write of a key.
type KeyInput struct {
	Name      string     `json:"name" doc:"1 to 200 characters"`
	ExpiresAt *time.Time `json:"expires_at" doc:"null: never"`
}

// CreateKey makes an API key of scope full.
func (s *Service) CreateKey(ctx context.Context, actor tenant.Actor, in KeyInput) (CreatedKey, error) {
	var v refusal.Validation
	input.Name(&v, "name", &in.Name)
	if err := v.Err(); err != nil {
		return CreatedKey{}, err
	}
	var key CreatedKey
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) (err error) {
		if in.ExpiresAt != nil {
			future, err := tx.IsFuture(ctx, *in.ExpiresAt)
			if err != nil {
				return err
			}
			if !future {
				v.Add("expires_at", "must be in the future")
				return v.Err()
			}
		}
		key, err = insertKey(ctx, tx, actor, in.Name, tenant.ScopeFull, nil, in.ExpiresAt)
		return err
	})
	if err != nil {
		return CreatedKey{}, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// MintSandboxKey makes the key of one conversation, in the caller's transaction. It reaches what the table of routes
// leaves to sandbox keys, until it expires.
func MintSandboxKey(ctx context.Context, tx db.Tx, actor tenant.Actor, conversationID uuid.UUID, lifetime time.Duration) (CreatedKey, error) {
	expires, err := tx.KeyExpiry(ctx, lifetime.Seconds())
	if err != nil {
		return CreatedKey{}, fmt.Errorf("make a sandbox key: %w", err)
	}
	key, err := insertKey(ctx, tx, actor, "conversation "+conversationID.String(), tenant.ScopeSandbox, &conversationID, &expires)
	if err != nil {
		return CreatedKey{}, fmt.Errorf("make a sandbox key: %w", err)
	}
	return key, nil
}

// RevokeSandboxKeys ends every key of a conversation, in the caller's transaction.
func RevokeSandboxKeys(ctx context.Context, tx db.Tx, actor tenant.Actor, conversationID uuid.UUID) error {
	ids, err := tx.RevokeConversationKeys(ctx, conversationID)
	if err != nil {
		return fmt.Errorf("revoke the keys of a conversation: %w", err)
	}
	for _, id := range ids {
		if err := audit.Write(ctx, tx, actor, audit.APIKeyRevoke, "api_key", id); err != nil {
			return err
		}
	}
	return nil
}

// Keys shows the keys that people of the account made and did not revoke, newest first.
func (s *Service) Keys(ctx context.Context, actor tenant.Actor, page input.Page) (input.List[Key], error) {
	before, err := page.ID()
	if err != nil {
		return input.List[Key]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).Keys(ctx, before, page.Fetch())
	if err != nil {
		return input.List[Key]{}, fmt.Errorf("list the keys: %w", err)
	}
	return input.Paged(page, rows, key, func(k Key) string { return k.ID.String() }), nil
}

// RevokeKey ends a key at once. The row stays, so that its use answers api_key_revoked.
func (s *Service) RevokeKey(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		n, err := tx.RevokeKey(ctx, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return refusal.NotFoundError()
		}
		return audit.Write(ctx, tx, actor, audit.APIKeyRevoke, "api_key", id)
	})
	if err != nil {
		return fmt.Errorf("revoke a key: %w", err)
	}
	return nil
}

func insertKey(ctx context.Context, tx db.Tx, actor tenant.Actor, name string, scope tenant.Scope, conversationID *uuid.UUID, expires *time.Time) (CreatedKey, error) {
	plain := newToken(KeyPrefix)
	var maker *uuid.UUID
	if actor.IdentityID != uuid.Nil {
		maker = &actor.IdentityID
	}
	row, err := tx.InsertKey(ctx, queries.InsertKeyParams{
		TenantID: actor.TenantID, ID: uuid.Must(uuid.NewV7()), Name: name, Prefix: plain.Reveal()[:visiblePrefix], KeyHash: hashToken(plain),
		Scope: string(scope), IdentityID: maker, ConversationID: conversationID, ExpiresAt: expires,
	})
	if err != nil {
		return CreatedKey{}, err
	}
	fields := []string{"name", "scope"}
	if expires != nil {
		fields = append(fields, "expires_at")
	}
	return CreatedKey{Key: key(row), Plain: plain}, audit.Write(ctx, tx, actor, audit.APIKeyCreate, "api_key", row.ID, fields...)
}

func key(r queries.ApiKey) Key {
	conversation := uuid.Nil
	if r.ConversationID != nil {
		conversation = *r.ConversationID
	}
	return Key{
		ID: r.ID, Name: r.Name, Prefix: r.Prefix, Scopes: []string{scopeName(r.Scope, conversation)},
		CreatedAt: r.CreatedAt, LastUsedAt: r.LastUsedAt, ExpiresAt: r.ExpiresAt,
	}
}

// scopeName is a scope as the wire writes it.
func scopeName(scope string, conversationID uuid.UUID) string {
	if conversationID != uuid.Nil {
		return scope + ":" + conversationID.String()
	}
	return scope
}
