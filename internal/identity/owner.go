package identity

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/queries"
)

// RoleOwner is the role of who made an account.
const RoleOwner = "owner"

// maxEmail is the length of an e-mail address, from RFC 5321 section 4.5.3.1.
const maxEmail = 320

// OwnerInput is what makes an account and its owner.
type OwnerInput struct {
	Email    string       `json:"email"`
	Password secret.Value `json:"password"`
	Account  string       `json:"account" doc:"the account's name; empty: the e-mail address"`
}

// Validate brings the input into the form that is stored and checks every rule.
func (in *OwnerInput) Validate() error {
	var v refusal.Validation
	in.Email = normalEmail(in.Email)
	if a, err := mail.ParseAddress(in.Email); err != nil || a.Address != in.Email || len(in.Email) > maxEmail || strings.ContainsAny(in.Email, "\x00\r\n") {
		v.Add("email", "must be an e-mail address, such as ada@example.com")
	}
	checkPassword(&v, in.Password)
	if in.Account = strings.TrimSpace(in.Account); in.Account == "" {
		in.Account = shortened(in.Email, input.MaxName)
	}
	input.Name(&v, "account", &in.Account)
	return v.Err()
}

func checkPassword(v *refusal.Validation, password secret.Value) {
	v.Check(utf8.RuneCountInString(password.Reveal()) >= MinPassword, "password", "must have at least %d characters", MinPassword)
	v.Check(len(password.Reveal()) <= MaxPassword, "password", "must have at most %d bytes", MaxPassword)
}

// normalEmail is the form that e-mail addresses are compared in.
func normalEmail(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

func shortened(s string, characters int) string {
	if r := []rune(s); len(r) > characters {
		return string(r[:characters])
	}
	return s
}

// Owner is a new account and who owns it.
type Owner struct {
	TenantID   uuid.UUID
	IdentityID uuid.UUID
	Email      string
	Account    string
}

// CreateOwner makes an account with its owner and the owner's first API key. operator is who asked for it, for the
// access row. An e-mail address that somebody has is email_taken.
func (s *Service) CreateOwner(ctx context.Context, operator string, in OwnerInput) (Owner, CreatedKey, error) {
	var owner Owner
	var key CreatedKey
	err := s.makeOwner(ctx, operator, "make an account", in, func(tx db.Tx, o Owner) (err error) {
		owner = o
		actor := tenant.Actor{TenantID: o.TenantID, Kind: tenant.Operator, ID: operator, IdentityID: o.IdentityID}
		key, err = insertKey(ctx, tx, actor, "first key", tenant.ScopeFull, nil, nil)
		return err
	})
	return owner, key, err
}

// makeOwner makes an account in one platform transaction, which then adds to it and fails as a whole. guard is run
// first.
func (s *Service) makeOwner(ctx context.Context, operator, reason string, in OwnerInput, then func(db.Tx, Owner) error, guard ...func(db.Tx) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	hash, err := s.Cost.hash(ctx, in.Password)
	if err != nil {
		return err
	}
	o := Owner{TenantID: uuid.Must(uuid.NewV7()), IdentityID: uuid.Must(uuid.NewV7()), Email: in.Email, Account: in.Account}
	dataKey, version := s.keys.NewDataKey(o.TenantID)
	err = s.db.AsPlatform(ctx, operator, reason, func(tx db.Tx) error {
		// One account at a time, so that two set-up links used together do not both make the first one.
		if err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended('make an account', 0))"); err != nil {
			return err
		}
		for _, check := range guard {
			if err := check(tx); err != nil {
				return err
			}
		}
		if _, err := tx.InsertIdentity(ctx, queries.InsertIdentityParams{ID: o.IdentityID, Email: o.Email, PasswordHash: hash}); err != nil {
			if db.IsUnique(err, "identities_email_key") {
				return refusal.New(refusal.EmailTaken, "Somebody with the e-mail address %s has an account here. Sign in with it, or use another address.", o.Email).
					With("errors", map[string][]string{"email": {"has an account here"}})
			}
			return err
		}
		insert := []error{
			tx.InsertTenant(ctx, queries.InsertTenantParams{TenantID: o.TenantID, Name: o.Account, DataKey: dataKey, KeyVersion: version}),
			tx.InsertTenantHead(ctx, o.TenantID),
			tx.InsertQuotas(ctx, o.TenantID),
			tx.InsertMembership(ctx, queries.InsertMembershipParams{TenantID: o.TenantID, IdentityID: o.IdentityID, Email: o.Email, Role: RoleOwner}),
			tx.EndSetupLinks(ctx), // whoever finds an old link must not make an account with it
		}
		if err := errors.Join(insert...); err != nil {
			return err
		}
		actor := tenant.Actor{TenantID: o.TenantID, Kind: tenant.Operator, ID: operator}
		if err := audit.Write(ctx, tx, actor, audit.AccountCreate, "account", o.TenantID, "name"); err != nil {
			return err
		}
		if err := audit.Write(ctx, tx, actor, audit.MemberCreate, "member", o.IdentityID, "email", "role"); err != nil {
			return err
		}
		return then(tx, o)
	})
	if err != nil {
		return fmt.Errorf("make an account: %w", err)
	}
	return nil
}

// HasAccounts tells whether anybody has an account here: the first start prints a set-up link when nobody has.
func (s *Service) HasAccounts(ctx context.Context) (bool, error) {
	return s.db.Lookup().HasAccounts(ctx)
}

// setupOperator stands in the access rows of what a set-up link does.
const setupOperator = "set-up"

// SetupLink makes the token of a one-time link that makes the first account.
func (s *Service) SetupLink(ctx context.Context) (token secret.Value, expires time.Time, err error) {
	token = newToken("")
	err = s.db.AsPlatform(ctx, setupOperator, "make a set-up link", func(tx db.Tx) (err error) {
		expires, err = tx.InsertSetupLink(ctx, hashToken(token), SetupLinkLifetime.Seconds())
		return err
	})
	if err != nil {
		return secret.Value{}, time.Time{}, fmt.Errorf("make a set-up link: %w", err)
	}
	return token, expires, nil
}

// CheckSetupLink tells whether a set-up link can be used: setup_link_invalid when not.
func (s *Service) CheckSetupLink(ctx context.Context, token string) error {
	works, err := s.db.Lookup().SetupLinkWorks(ctx, hashToken(secret.New(token)))
	if err != nil {
		return fmt.Errorf("check the set-up link: %w", err)
	}
	if !works {
		return setupLinkInvalid()
	}
	return nil
}

// UseSetupLink makes the first account with a set-up link and signs its owner in. The link works once, even when two
// browsers send it together; one that was refused for its input works on.
func (s *Service) UseSetupLink(ctx context.Context, token string, in OwnerInput, c Client) (NewSession, error) {
	var session NewSession
	guard := func(tx db.Tx) error {
		n, err := tx.UseSetupLink(ctx, hashToken(secret.New(token)))
		if err != nil {
			return err
		}
		if n == 0 {
			return setupLinkInvalid()
		}
		return nil
	}
	if err := s.CheckSetupLink(ctx, token); err != nil { // before a password is hashed for whoever asks
		return NewSession{}, err
	}
	err := s.makeOwner(ctx, setupOperator, "make the first account", in, func(tx db.Tx, o Owner) (err error) {
		session, err = insertSession(ctx, tx, o.TenantID, o.IdentityID, c)
		return err
	}, guard)
	return session, err
}

func setupLinkInvalid() error {
	return refusal.New(refusal.SetupLinkInvalid, "This set-up link was used, has expired, or never was one. Restart the server to get a new one, or run managoat admin create-owner.")
}

// CheckMasterKey tells whether the accounts of this database were made with this master key. Without it every secret is
// lost, so that a server must not start with another one.
func (s *Service) CheckMasterKey(ctx context.Context) error {
	return s.db.AsPlatform(ctx, "server", "check the master key", func(tx db.Tx) error {
		row, err := tx.AnyTenantKey(ctx)
		if db.NotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("check the master key: %w", err)
		}
		if err := s.keys.Check(row.TenantID, row.DataKey, row.KeyVersion); err != nil {
			return fmt.Errorf("this is not the master key that the accounts of this database were made with (MANAGOAT_MASTER_KEY or the key file): %w", err)
		}
		return nil
	})
}
