package workspace

import (
	"context"
	"fmt"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/tenant"
)

// EndAll ends every workspace of an account that was closed, those of conversations too, and tells how many are not gone
// yet.
func (s *Service) EndAll(ctx context.Context, actor tenant.Actor) (left int, err error) {
	ids, err := s.db.Tenant(actor.TenantID).LeftWorkspaces(ctx)
	if err != nil {
		return 0, fmt.Errorf("look for the account's workspaces: %w", err)
	}
	for _, id := range ids {
		err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
			w, err := tx.LockWorkspace(ctx, id)
			if err != nil || w.Status == string(Deleting) || w.Status == string(Deleted) {
				return err
			}
			if err := s.end(ctx, tx, w); err != nil {
				return err
			}
			return audit.Write(ctx, tx, actor, audit.WorkspaceDelete, "workspace", id)
		})
		if err != nil {
			return len(ids), fmt.Errorf("end the workspace %s: %w", id, err)
		}
	}
	return len(ids), nil
}
