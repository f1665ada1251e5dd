package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"managoat/internal/refusal"
	"managoat/internal/secret/store"
	"managoat/internal/vault"
)

// Vaults are the endpoints of vaults and their secrets.
type Vaults struct{ Service *vault.Service }

// List answers GET /api/vaults.
func (h Vaults) List(ctx context.Context, in *PageQuery) (*Many[vault.Vault], error) {
	return PageOf(h.Service.List(ctx, Actor(ctx), in.Page()))
}

// Create answers POST /api/vaults.
func (h Vaults) Create(ctx context.Context, in *Create[vault.Input]) (*One[vault.Vault], error) {
	var v vault.Input
	if err := in.Body.Over(&v); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Create(ctx, Actor(ctx), v))
}

// Get answers GET /api/vaults/{id}.
func (h Vaults) Get(ctx context.Context, in *ByID) (*One[vault.Vault], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Get(ctx, Actor(ctx), id))
}

// Update answers PATCH /api/vaults/{id}.
func (h Vaults) Update(ctx context.Context, in *Change[vault.Input]) (*One[vault.Vault], error) {
	return change(ctx, in, func(ctx context.Context, id uuid.UUID, edit func(*vault.Input) error) (vault.Vault, error) {
		return h.Service.Update(ctx, Actor(ctx), id, edit)
	})
}

// Delete answers DELETE /api/vaults/{id}.
func (h Vaults) Delete(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.Delete(ctx, Actor(ctx), id)
}

// ListSecrets answers GET /api/vaults/{id}/secrets.
func (h Vaults) ListSecrets(ctx context.Context, in *ByID) (*Many[store.Secret], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return AllOf(h.Service.ListSecrets(ctx, Actor(ctx), id))
}

// PutSecret answers POST /api/vaults/{id}/secrets.
func (h Vaults) PutSecret(ctx context.Context, in *Change[vault.SecretInput]) (*One[store.Secret], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var s vault.SecretInput
	if err := in.Body.Over(&s); err != nil {
		return nil, err
	}
	return OneOf(h.Service.PutSecret(ctx, Actor(ctx), id, s))
}

// Expiry is what may change of a secret that stays.
type Expiry struct {
	ExpiresAt *time.Time `json:"expires_at" doc:"advisory; null clears"`
}

// unsaid is an expiry that a body did not name.
var unsaid = time.Unix(0, 0)

// UpdateSecret answers PATCH /api/vaults/{id}/secrets/{secret}: its expiry, never its value. {} keeps it.
func (h Vaults) UpdateSecret(ctx context.Context, in *struct {
	SecretRef
	Body Body[Expiry]
}) (*One[store.Secret], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	e := Expiry{ExpiresAt: &unsaid}
	if err := in.Body.Over(&e); err != nil {
		return nil, err
	}
	if e.ExpiresAt != &unsaid {
		return OneOf(h.Service.UpdateSecret(ctx, Actor(ctx), id, in.Secret, e.ExpiresAt))
	}
	secrets, err := h.Service.ListSecrets(ctx, Actor(ctx), id)
	if err != nil {
		return nil, err
	}
	for _, s := range secrets {
		if s.Key == in.Secret {
			return Of(s), nil
		}
	}
	return nil, refusal.NotFoundError()
}

// DeleteSecret answers DELETE /api/vaults/{id}/secrets/{secret}.
func (h Vaults) DeleteSecret(ctx context.Context, in *SecretRef) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.DeleteSecret(ctx, Actor(ctx), id, in.Secret)
}
