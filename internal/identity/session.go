package identity

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/queries"
)

// maxUserAgent is how much is kept of what a browser says it is, in characters.
const maxUserAgent = 300

// Client is where a request comes from.
type Client struct {
	Address   string
	UserAgent string
	RequestID string
}

// NewSession is a session that just began. The token goes into the browser's cookie and is known nowhere else.
type NewSession struct {
	TenantID  uuid.UUID
	Token     secret.Value
	ExpiresAt time.Time
}

// SignIn begins a session of the person's oldest account.
func (s *Service) SignIn(ctx context.Context, email string, password secret.Value, c Client) (NewSession, error) {
	who, err := s.verify(ctx, email, password, c)
	if err != nil {
		return NewSession{}, err
	}
	var session NewSession
	err = s.db.InTenant(ctx, who.TenantID, func(tx db.Tx) (err error) {
		session, err = insertSession(ctx, tx, who.TenantID, who.IdentityID, c)
		return err
	})
	if err != nil {
		return NewSession{}, fmt.Errorf("begin a session: %w", err)
	}
	return session, nil
}

// Token makes an API key for whoever knows the password, for clients that have no browser.
func (s *Service) Token(ctx context.Context, email string, password secret.Value, c Client) (CreatedKey, error) {
	who, err := s.verify(ctx, email, password, c)
	if err != nil {
		return CreatedKey{}, err
	}
	var key CreatedKey
	err = s.db.InTenant(ctx, who.TenantID, func(tx db.Tx) (err error) {
		key, err = insertKey(ctx, tx, userActor(who.TenantID, who.IdentityID, c), "sign-in", tenant.ScopeFull, nil, nil)
		return err
	})
	if err != nil {
		return CreatedKey{}, fmt.Errorf("make a key at sign-in: %w", err)
	}
	return key, nil
}

// verify finds the person of an e-mail and a password. What is wrong with the two is not said, and takes equally long.
func (s *Service) verify(ctx context.Context, email string, password secret.Value, c Client) (queries.IdentityByEmailRow, error) {
	failed := refusal.New(refusal.SignInFailed, "E-mail or password are not right.")
	email = normalEmail(email)
	if len(password.Reveal()) > MaxPassword || len(email) > maxEmail {
		return queries.IdentityByEmailRow{}, failed
	}
	a := newAttempt(email, c.Address)
	if err := s.take(ctx, a); err != nil {
		return queries.IdentityByEmailRow{}, err
	}
	who, err := s.db.Lookup().IdentityByEmail(ctx, db.SafeText(email))
	known := err == nil
	if err != nil && !db.NotFound(err) {
		return who, fmt.Errorf("look the person up: %w", err)
	}
	if !known {
		who.PasswordHash = s.Cost.decoy()
	}
	right, err := verifyPassword(ctx, who.PasswordHash, password)
	if err != nil {
		return who, fmt.Errorf("check the password: %w", err)
	}
	if !known || !right {
		s.log.InfoContext(ctx, "a sign-in failed", "address", c.Address, "request_id", c.RequestID)
		return queries.IdentityByEmailRow{}, failed
	}
	return who, s.forget(ctx, a)
}

func userActor(tenantID, identityID uuid.UUID, c Client) tenant.Actor {
	return tenant.Actor{
		TenantID: tenantID, Kind: tenant.User, ID: identityID.String(), IdentityID: identityID, Scope: tenant.ScopeFull,
		RequestID: c.RequestID, Address: c.Address,
	}
}

func insertSession(ctx context.Context, tx db.Tx, tenantID, identityID uuid.UUID, c Client) (NewSession, error) {
	out := NewSession{TenantID: tenantID, Token: newToken("")}
	id := uuid.Must(uuid.NewV7())
	var err error
	out.ExpiresAt, err = tx.InsertSession(ctx, queries.InsertSessionParams{
		TenantID: tenantID, ID: id, IdentityID: identityID, TokenHash: hashToken(out.Token), Lifetime: SessionLifetime.Seconds(),
		UserAgent: shortened(db.SafeText(strings.TrimSpace(c.UserAgent)), maxUserAgent), Address: c.Address,
	})
	if err != nil {
		return NewSession{}, err
	}
	if err := tx.PurgeSessions(ctx); err != nil {
		return NewSession{}, err
	}
	return out, audit.Write(ctx, tx, userActor(tenantID, identityID, c), audit.SessionCreate, "session", id)
}

// Session is a browser of a person.
type Session struct {
	ID         uuid.UUID `json:"id"`
	UserAgent  string    `json:"user_agent"`
	Address    string    `json:"address"`
	Current    bool      `json:"current" doc:"the one that asks"`
	InsertedAt time.Time `json:"inserted_at"`
	LastUsedAt time.Time `json:"last_used_at"`
	ExpiresAt  time.Time `json:"expires_at"`
}

// Sessions shows the sessions of the actor's person in this account, the last used first.
func (s *Service) Sessions(ctx context.Context, actor tenant.Actor) ([]Session, error) {
	rows, err := s.db.Tenant(actor.TenantID).Sessions(ctx, actor.IdentityID)
	if err != nil {
		return nil, fmt.Errorf("list the sessions: %w", err)
	}
	out := make([]Session, len(rows))
	for i, r := range rows {
		out[i] = Session{
			ID: r.ID, UserAgent: r.UserAgent, Address: r.Address, Current: r.ID == actor.SessionID,
			InsertedAt: r.CreatedAt, LastUsedAt: r.LastUsedAt, ExpiresAt: r.ExpiresAt,
		}
	}
	return out, nil
}

// RevokeSession ends a session of the actor's person.
func (s *Service) RevokeSession(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		n, err := tx.DeleteSession(ctx, id, actor.IdentityID)
		if err != nil {
			return err
		}
		if n == 0 {
			return refusal.NotFoundError()
		}
		return audit.Write(ctx, tx, actor, audit.SessionDelete, "session", id)
	})
	if err != nil {
		return fmt.Errorf("end a session: %w", err)
	}
	return nil
}

// SignOut ends the session that asks.
func (s *Service) SignOut(ctx context.Context, actor tenant.Actor) error {
	return s.RevokeSession(ctx, actor, actor.SessionID)
}
