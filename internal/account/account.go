// Package account ends accounts. What an account holds is made elsewhere; here is what becomes of it when its owner
// wants it gone.
package account

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/identity"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
)

// lookEvery is how often closed accounts are looked at: their machines take a moment to go, or wait for a host or a
// provider to come back.
const lookEvery = 2 * time.Second

// Service ends accounts.
type Service struct {
	db         *db.DB
	identity   *identity.Service
	workspaces *workspace.Service
	log        *slog.Logger
	closed     chan struct{} // somebody closed an account here
}

// New makes the service.
func New(d *db.DB, people *identity.Service, workspaces *workspace.Service, log *slog.Logger) *Service {
	return &Service{db: d, identity: people, workspaces: workspaces, log: log, closed: make(chan struct{}, 1)}
}

// DeleteInput confirms the end of an account.
type DeleteInput struct {
	Confirm string `json:"confirm" doc:"your own e-mail address"`
}

// Deleted is what a deletion did.
type Deleted struct {
	Deleted          bool      `json:"deleted" doc:"true: nobody signs in any more, no key works, and what runs is being ended"`
	UserID           uuid.UUID `json:"user_id"`
	SpritesDestroyed int       `json:"sprites_destroyed" doc:"machines, running or parked, that are destroyed with their disks"`
}

// Delete closes the actor's account at once: sessions and keys end. Its conversations and machines end after that, and
// when the last machine is gone nothing of the account is left. Only an owner can, who gives the own e-mail address.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, in DeleteInput) (Deleted, error) {
	me, err := s.identity.Me(ctx, actor)
	if err != nil {
		return Deleted{}, err
	}
	if me.Role != identity.RoleOwner {
		return Deleted{}, refusal.New(refusal.OwnerRequired, "Only an owner can delete the account %s.", actor.Account)
	}
	var v refusal.Validation
	v.Check(strings.EqualFold(strings.TrimSpace(in.Confirm), me.Email), "confirm", "must be your own e-mail address")
	if err := v.Err(); err != nil {
		return Deleted{}, err
	}
	done := Deleted{Deleted: true, UserID: me.ID}
	err = s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if n, err := tx.CloseTenant(ctx); err != nil || n == 0 {
			return err // it is closed already
		}
		machines, err := tx.LeftMachines(ctx)
		if err != nil {
			return err
		}
		done.SpritesDestroyed = int(machines)
		if err := tx.DeleteSessions(ctx); err != nil {
			return err
		}
		if err := tx.RevokeKeys(ctx); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.AccountDelete, "account", actor.TenantID)
	})
	if err != nil {
		return Deleted{}, fmt.Errorf("delete an account: %w", err)
	}
	s.log.Info("an account was closed", "account", actor.TenantID, "by", actor.By(), "machines", done.SpritesDestroyed)
	select {
	case s.closed <- struct{}{}:
	default:
	}
	return done, nil
}

// Run ends what closed accounts hold until ctx ends. Every server may: each step is done once.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		refs, err := s.db.Due(ctx, db.DueClosed)
		if err != nil && ctx.Err() == nil {
			s.log.Error("look for closed accounts", "error", err)
		}
		for _, ref := range refs {
			if err := s.end(ctx, ref.TenantID); err != nil && ctx.Err() == nil {
				s.log.Error("end a closed account", "account", ref.TenantID, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.closed:
		}
	}
}

// end goes on with the end of a closed account.
func (s *Service) end(ctx context.Context, id uuid.UUID) error {
	left, err := s.workspaces.EndAll(ctx, tenant.SystemActor(id, "account.delete"))
	if err != nil || left > 0 {
		return err
	}
	gone := false
	err = s.db.AsPlatform(ctx, "account.delete", "remove the closed account "+id.String(), func(tx db.Tx) error {
		if _, err := tx.LockClosedTenant(ctx, id); db.NotFound(err) {
			return nil // another server was faster
		} else if err != nil {
			return err
		}
		// What was under way when the account was closed may have made one more.
		if left, err := tx.CountLeftWorkspaces(ctx, id); err != nil || left > 0 {
			return err
		}
		if err := tx.DeleteLoneIdentities(ctx, id); err != nil {
			return err
		}
		gone = true
		return tx.DeleteTenant(ctx, id)
	})
	if err == nil && gone {
		s.log.Info("nothing is left of a closed account", "account", id)
	}
	return err
}
