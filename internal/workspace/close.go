package workspace

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/tenant"
)

// EndAll ends every conversation and workspace of an account that was closed, and tells how many workspaces are not gone yet.
// Conversations end first: what they hold outside of their machines goes also when those cannot yet.
func (s *Service) EndAll(ctx context.Context, actor tenant.Actor) (left int, err error) {
	ids, err := s.db.Tenant(actor.TenantID).LeftWorkspaces(ctx)
	if err != nil {
		return 0, fmt.Errorf("look for the account's workspaces: %w", err)
	}
	var problems []error
	for _, id := range ids {
		if err := s.endOne(ctx, actor, id); err != nil {
			problems = append(problems, fmt.Errorf("end the workspace %s: %w", id, err))
		}
	}
	return len(ids), errors.Join(problems...)
}

func (s *Service) endOne(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	if err := s.o.Occupants.TerminateAll(ctx, actor, id); err != nil {
		return err
	}
	return s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		w, err := tx.LockWorkspace(ctx, id)
		if err != nil || w.Status == string(Deleting) || w.Status == string(Deleted) {
			return err
		}
		if err := s.end(ctx, tx, w); err != nil {
			return err
		}
		return audit.Write(ctx, tx, actor, audit.WorkspaceDelete, "workspace", id)
	})
}
