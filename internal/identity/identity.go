// Package identity knows people and programs: accounts' owners and members, passwords, browser sessions, API keys and
// the one-time link of the first start. Tokens are random, 256 bits, and stored as their SHA-256.
package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Lifetimes.
const (
	SessionLifetime   = 30 * 24 * time.Hour
	SetupLinkLifetime = 24 * time.Hour
	// stampEvery is how often the last use of a key or a session is written, at most.
	stampEvery = time.Minute
)

// Service knows who is who in every account.
type Service struct {
	Cost Cost // of new passwords

	db     *db.DB
	keys   *secret.Keyring
	log    *slog.Logger
	stamps chan stamp
}

// NewService makes the service. Run its Run beside it.
func NewService(d *db.DB, keys *secret.Keyring, log *slog.Logger) *Service {
	return &Service{Cost: DefaultCost, db: d, keys: keys, log: log, stamps: make(chan stamp, stampQueue)}
}

// AuthenticateKey knows the actor of an API key, or answers with the refusal that says why not.
func (s *Service) AuthenticateKey(ctx context.Context, key string) (tenant.Actor, error) {
	unknown := refusal.New(refusal.Unauthenticated, "This API key is not known here. Make one in the settings, under API keys.")
	if !strings.HasPrefix(key, KeyPrefix) {
		return tenant.Actor{}, unknown
	}
	row, err := s.db.Lookup().KeyByHash(ctx, stampEvery.Seconds(), hashToken(secret.New(key)))
	switch {
	case db.NotFound(err):
		return tenant.Actor{}, unknown
	case err != nil:
		return tenant.Actor{}, fmt.Errorf("look the key up: %w", err)
	case row.Revoked:
		return tenant.Actor{}, refusal.New(refusal.KeyRevoked, "This API key was revoked. Make another one in the settings, under API keys.")
	case row.Expired:
		return tenant.Actor{}, refusal.New(refusal.KeyExpired, "This API key has expired. Make another one in the settings, under API keys.")
	case row.Suspended:
		return tenant.Actor{}, refusal.New(refusal.AccountSuspended, "This account is suspended. Ask the operator of this server.")
	}
	if row.Stamp {
		s.stamp(stamp{tenantID: row.TenantID, id: row.KeyID, write: (*queries.Queries).StampKey})
	}
	a := tenant.Actor{
		TenantID: row.TenantID, Kind: tenant.Key, ID: row.KeyID.String(), Scope: tenant.Scope(row.Scope),
		IdentityID: row.IdentityID, ConversationID: row.ConversationID, Account: row.Account,
	}
	if a.Scope == tenant.ScopeSandbox {
		a.Kind = tenant.Sandbox
	}
	return a, nil
}

// AuthenticateSession knows the actor of a browser's session token.
func (s *Service) AuthenticateSession(ctx context.Context, token string) (tenant.Actor, error) {
	row, err := s.db.Lookup().SessionByHash(ctx, stampEvery.Seconds(), hashToken(secret.New(token)))
	if db.NotFound(err) {
		return tenant.Actor{}, refusal.New(refusal.SignInRequired, "This session has ended. Sign in again.")
	}
	if err != nil {
		return tenant.Actor{}, fmt.Errorf("look the session up: %w", err)
	}
	if row.Stamp {
		s.stamp(stamp{tenantID: row.TenantID, id: row.SessionID, write: (*queries.Queries).StampSession})
	}
	return tenant.Actor{
		TenantID: row.TenantID, Kind: tenant.User, ID: row.IdentityID.String(), Scope: tenant.ScopeFull, IdentityID: row.IdentityID,
		SessionID: row.SessionID, Email: row.Email, Role: row.Role, Account: row.Account,
	}, nil
}

// Member is a person of an account.
type Member struct {
	ID         uuid.UUID `json:"id"`
	Email      string    `json:"email"`
	Role       string    `json:"role" enum:"owner,member"`
	InsertedAt time.Time `json:"inserted_at"`
}

// Members shows the people of the account, the first one first.
func (s *Service) Members(ctx context.Context, actor tenant.Actor) ([]Member, error) {
	rows, err := s.db.Tenant(actor.TenantID).Members(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the members: %w", err)
	}
	out := make([]Member, len(rows))
	for i, r := range rows {
		out[i] = Member{ID: r.IdentityID, Email: r.Email, Role: r.Role, InsertedAt: r.CreatedAt}
	}
	return out, nil
}

// Me says who calls.
type Me struct {
	ID             uuid.UUID        `json:"id" doc:"the person's id, or that of who made the key"`
	Email          string           `json:"email"`
	Role           string           `json:"role" enum:"owner,member"`
	AccountID      uuid.UUID        `json:"account_id"`
	Account        string           `json:"account"`
	Actor          tenant.ActorKind `json:"actor" enum:"user,key,sandbox"`
	Scopes         []string         `json:"scopes"`
	ConversationID *uuid.UUID       `json:"conversation_id" doc:"of a sandbox key"`
	ExpiresAt      *time.Time       `json:"expires_at" doc:"of the key"`
}

// Me says who the actor is.
func (s *Service) Me(ctx context.Context, actor tenant.Actor) (Me, error) {
	me := Me{
		ID: actor.IdentityID, Email: actor.Email, Role: actor.Role, AccountID: actor.TenantID, Account: actor.Account, Actor: actor.Kind,
		Scopes: []string{scopeName(string(actor.Scope), actor.ConversationID)},
	}
	if actor.ConversationID != uuid.Nil {
		me.ConversationID = &actor.ConversationID
	}
	q := s.db.Tenant(actor.TenantID)
	if me.Email == "" && actor.IdentityID != uuid.Nil {
		m, err := q.Member(ctx, actor.IdentityID)
		if err != nil && !db.NotFound(err) { // who made the key may have left
			return Me{}, fmt.Errorf("read who made the key: %w", err)
		}
		me.Email, me.Role = m.Email, m.Role
	}
	if id, err := uuid.Parse(actor.ID); err == nil && actor.Kind != tenant.User {
		k, err := q.Key(ctx, id)
		if err != nil && !db.NotFound(err) {
			return Me{}, fmt.Errorf("read the key: %w", err)
		}
		me.ExpiresAt = k.ExpiresAt
	}
	return me, nil
}

// tokenSize is the size of every token in bytes.
const tokenSize = 32

func newToken(prefix string) secret.Value {
	b := make([]byte, tokenSize)
	rand.Read(b)
	return secret.New(prefix + base64.RawURLEncoding.EncodeToString(b))
}

// hashToken is what is stored of a token. A plain hash will do: there is nothing to guess in 256 random bits.
func hashToken(token secret.Value) []byte {
	sum := sha256.Sum256([]byte(token.Reveal()))
	return sum[:]
}
