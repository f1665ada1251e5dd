package api

import (
	"context"

	"github.com/google/uuid"

	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
)

// Credentials are the endpoints of inference credentials.
type Credentials struct{ Service *inference.Service }

// List answers GET /api/inference-credentials.
func (h Credentials) List(ctx context.Context, in *PageQuery) (*Many[inference.Credential], error) {
	return PageOf(h.Service.List(ctx, Actor(ctx), in.Page()))
}

// Create answers POST /api/inference-credentials.
func (h Credentials) Create(ctx context.Context, in *Create[inference.Input]) (*One[inference.Credential], error) {
	var c inference.Input
	if err := in.Body.Over(&c); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Create(ctx, Actor(ctx), c))
}

// Get answers GET /api/inference-credentials/{id}.
func (h Credentials) Get(ctx context.Context, in *ByID) (*One[inference.Credential], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Get(ctx, Actor(ctx), id))
}

// Update answers PATCH /api/inference-credentials/{id}.
func (h Credentials) Update(ctx context.Context, in *Change[inference.Input]) (*One[inference.Credential], error) {
	return change(ctx, in, func(ctx context.Context, id uuid.UUID, edit func(*inference.Input) error) (inference.Credential, error) {
		return h.Service.Update(ctx, Actor(ctx), id, edit)
	})
}

// Delete answers DELETE /api/inference-credentials/{id}.
func (h Credentials) Delete(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.Delete(ctx, Actor(ctx), id)
}

// accountProviders are the names under which a provider's default is set, with the kind of key each takes.
var accountProviders = map[string]struct{ provider, kind string }{
	"anthropic":               {inference.Anthropic, inference.APIKey},
	"anthropic_api_key":       {inference.Anthropic, inference.APIKey},
	"claude_code_oauth_token": {inference.Anthropic, inference.OAuthToken},
	"openai":                  {inference.OpenAI, inference.APIKey},
	"openai_api_key":          {inference.OpenAI, inference.APIKey},
	"google":                  {inference.Google, inference.APIKey},
	"gemini_api_key":          {inference.Google, inference.APIKey},
}

// ByProvider is the input of an endpoint that names a provider in its path.
type ByProvider struct {
	Provider string `path:"provider" doc:"anthropic, openai, google; or anthropic_api_key, claude_code_oauth_token, openai_api_key, gemini_api_key"`
}

// ProviderKey is the key of a provider's default credential.
type ProviderKey struct {
	Value    secret.Value `json:"value" doc:"never shown again"`
	Validate bool         `json:"validate" doc:"not available yet: the provider is not asked whether it knows the key"`
}

// ListDefaults answers GET /api/account/inference-credentials.
func (h Credentials) ListDefaults(ctx context.Context, _ *struct{}) (*Many[inference.Credential], error) {
	list, err := h.Service.List(ctx, Actor(ctx), input.Page{Limit: input.MaxLimit})
	if err != nil {
		return nil, err
	}
	var defaults []inference.Credential
	for _, c := range list.Items {
		if c.Default {
			defaults = append(defaults, c)
		}
	}
	return AllOf(defaults, nil)
}

// PutDefault answers PUT /api/account/inference-credentials/{provider}.
func (h Credentials) PutDefault(ctx context.Context, in *struct {
	ByProvider
	Body Body[ProviderKey]
}) (*One[inference.Credential], error) {
	p, ok := accountProviders[in.Provider]
	if !ok {
		return nil, refusal.NotFoundError()
	}
	var body ProviderKey
	if err := in.Body.Over(&body); err != nil {
		return nil, err
	}
	if body.Validate {
		return nil, refusal.New(refusal.NotAvailableYet, "validate: the provider is not asked whether it knows the key. Leave it out, or send false.").With("field", "validate")
	}
	return OneOf(h.Service.PutDefault(ctx, Actor(ctx), p.provider, p.kind, body.Value))
}

// DeleteDefault answers DELETE /api/account/inference-credentials/{provider}.
func (h Credentials) DeleteDefault(ctx context.Context, in *ByProvider) (*None, error) {
	p, ok := accountProviders[in.Provider]
	if !ok {
		return nil, refusal.NotFoundError()
	}
	return &None{}, h.Service.DeleteDefault(ctx, Actor(ctx), p.provider)
}
