package api

import (
	"context"

	"managoat/internal/account"
	"managoat/internal/identity"
	"managoat/internal/quota"
	"managoat/internal/secret"
)

// Auth are the endpoints of who calls: keys, sessions, members.
type Auth struct {
	Service  *identity.Service
	Quotas   *quota.Service
	Accounts *account.Service
}

// Me is who calls, and how much of the account is in use.
type Me struct {
	identity.Me
	ActiveSandboxes        int `json:"active_sandboxes"`
	MaxConcurrentSandboxes int `json:"max_concurrent_sandboxes"`
}

// Me answers GET /api/auth/me.
func (h Auth) Me(ctx context.Context, _ *struct{}) (*One[Me], error) {
	who, err := h.Service.Me(ctx, Actor(ctx))
	if err != nil {
		return nil, err
	}
	me := Me{Me: who}
	quotas, err := h.Quotas.List(ctx, Actor(ctx))
	if err != nil {
		return nil, err
	}
	for _, q := range quotas {
		if q.Quota == quota.RunningMachines {
			me.ActiveSandboxes, me.MaxConcurrentSandboxes = q.Used, q.Limit
		}
	}
	return Of(me), nil
}

// DeleteAccount answers DELETE /api/account: the account goes with everything it holds.
func (h Auth) DeleteAccount(ctx context.Context, in *struct {
	Body Body[account.DeleteInput]
}) (*struct{ Body account.Deleted }, error) {
	var confirmed account.DeleteInput
	if err := in.Body.Over(&confirmed); err != nil {
		return nil, err
	}
	done, err := h.Accounts.Delete(ctx, Actor(ctx), confirmed)
	if err != nil {
		return nil, err
	}
	return &struct{ Body account.Deleted }{done}, nil
}

// Login is a person's e-mail and password.
type Login struct {
	Email    string       `json:"email"`
	Password secret.Value `json:"password"`
}

// MintedKey is a key as POST /api/auth/token answers it.
type MintedKey struct {
	APIKey string `json:"api_key" doc:"shown this once"`
	KeyID  string `json:"key_id"`
	Prefix string `json:"prefix"`
}

// Token answers POST /api/auth/token: an API key for whoever knows the password.
func (h Auth) Token(ctx context.Context, in *struct {
	FromClient
	Body Body[Login]
}) (*struct{ Body MintedKey }, error) {
	var login Login
	if err := in.Body.Over(&login); err != nil {
		return nil, err
	}
	key, err := h.Service.Token(ctx, login.Email, login.Password, in.client)
	if err != nil {
		return nil, err
	}
	return &struct{ Body MintedKey }{MintedKey{APIKey: key.Plain.Reveal(), KeyID: key.ID.String(), Prefix: key.Prefix}}, nil
}

// CreatedKey is a new key with its plaintext, which is shown this once.
type CreatedKey struct {
	identity.Key
	Plain string `json:"key" doc:"shown this once"`
}

// ListKeys answers GET /api/auth/api-keys.
func (h Auth) ListKeys(ctx context.Context, in *PageQuery) (*Many[identity.Key], error) {
	return PageOf(h.Service.Keys(ctx, Actor(ctx), in.Page()))
}

// CreateKey answers POST /api/auth/api-keys.
func (h Auth) CreateKey(ctx context.Context, in *Create[identity.KeyInput]) (*One[CreatedKey], error) {
	var k identity.KeyInput
	if err := in.Body.Over(&k); err != nil {
		return nil, err
	}
	key, err := h.Service.CreateKey(ctx, Actor(ctx), k)
	if err != nil {
		return nil, err
	}
	return Of(CreatedKey{Key: key.Key, Plain: key.Plain.Reveal()}), nil
}

// RevokeKey answers DELETE /api/auth/api-keys/{id}.
func (h Auth) RevokeKey(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.RevokeKey(ctx, Actor(ctx), id)
}

// ListMembers answers GET /api/members.
func (h Auth) ListMembers(ctx context.Context, _ *struct{}) (*Many[identity.Member], error) {
	return AllOf(h.Service.Members(ctx, Actor(ctx)))
}

// ListSessions answers GET /api/sessions.
func (h Auth) ListSessions(ctx context.Context, _ *struct{}) (*Many[identity.Session], error) {
	return AllOf(h.Service.Sessions(ctx, Actor(ctx)))
}

// RevokeSession answers DELETE /api/sessions/{id}.
func (h Auth) RevokeSession(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.RevokeSession(ctx, Actor(ctx), id)
}
