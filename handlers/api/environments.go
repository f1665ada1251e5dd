package api

import (
	"context"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/secret/store"
)

// Environments are the endpoints of environments and their secrets.
type Environments struct{ Service *environment.Service }

// List answers GET /api/environments.
func (h Environments) List(ctx context.Context, in *PageQuery) (*Many[environment.Environment], error) {
	return PageOf(h.Service.List(ctx, Actor(ctx), in.Page()))
}

// Create answers POST /api/environments.
func (h Environments) Create(ctx context.Context, in *Create[environment.Input]) (*One[environment.Environment], error) {
	e := environment.New()
	if err := in.Body.Over(&e); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Create(ctx, Actor(ctx), e))
}

// Get answers GET /api/environments/{id}.
func (h Environments) Get(ctx context.Context, in *ByID) (*One[environment.Environment], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Get(ctx, Actor(ctx), id))
}

// Update answers PATCH /api/environments/{id}.
func (h Environments) Update(ctx context.Context, in *Change[environment.Input]) (*One[environment.Environment], error) {
	return change(ctx, in, func(ctx context.Context, id uuid.UUID, edit func(*environment.Input) error) (environment.Environment, error) {
		return h.Service.Update(ctx, Actor(ctx), id, edit)
	})
}

// Delete answers DELETE /api/environments/{id}.
func (h Environments) Delete(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.Delete(ctx, Actor(ctx), id)
}

// ListSecrets answers GET /api/environments/{id}/secrets.
func (h Environments) ListSecrets(ctx context.Context, in *ByID) (*Many[store.Secret], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return AllOf(h.Service.ListSecrets(ctx, Actor(ctx), id))
}

// PutSecret answers POST /api/environments/{id}/secrets.
func (h Environments) PutSecret(ctx context.Context, in *Change[environment.SecretInput]) (*One[store.Secret], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var s environment.SecretInput
	if err := in.Body.Over(&s); err != nil {
		return nil, err
	}
	return OneOf(h.Service.PutSecret(ctx, Actor(ctx), id, s))
}

// SecretRef names one secret in a path.
type SecretRef struct {
	ByID
	Secret string `path:"secret" doc:"id or key of the secret"`
}

// DeleteSecret answers DELETE /api/environments/{id}/secrets/{secret}.
func (h Environments) DeleteSecret(ctx context.Context, in *SecretRef) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.DeleteSecret(ctx, Actor(ctx), id, in.Secret)
}
