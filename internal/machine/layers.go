package machine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/sandbox"
)

// Snapshot copies what was installed in a machine, for the caller to keep as a layer or to discard. It is nil where the
// machine's provider keeps no layers.
func (s *Service) Snapshot(ctx context.Context, tenantID, id uuid.UUID) (sandbox.Snapshot, error) {
	row, p, err := s.here(ctx, tenantID, id)
	if err != nil {
		return nil, err
	}
	layers, err := layersOf(ctx, p)
	if err != nil || layers == nil {
		return nil, err
	}
	return layers.Snapshot(ctx, row.ProviderRef)
}

// layersOf is the part of a provider that keeps layers; nil for one that does not.
func layersOf(ctx context.Context, p sandbox.Provider) (sandbox.Layers, error) {
	caps, err := p.Capabilities(ctx)
	if err != nil || !caps.Layers {
		return nil, err
	}
	layers, ok := p.(sandbox.Layers)
	if !ok {
		return nil, fmt.Errorf("the provider %s says that it keeps layers, and does not", p.Name())
	}
	return layers, nil
}

// reapLayers removes this instance's layers of accounts that are gone. One that a machine stands on still is left for the
// next time.
func (s *Service) reapLayers(ctx context.Context, p sandbox.Provider) error {
	layers, err := layersOf(ctx, p)
	if err != nil || layers == nil {
		return err
	}
	all, err := layers.ListLayers(ctx, map[string]string{sandbox.LabelInstance: s.o.Instance})
	if err != nil {
		return err
	}
	there := map[string]bool{} // accounts
	for _, l := range all {
		account := l.Labels[sandbox.LabelTenant]
		if _, asked := there[account]; !asked {
			id, err := uuid.Parse(account)
			if err != nil {
				return fmt.Errorf("a layer's label %s: %w", sandbox.LabelTenant, err)
			}
			_, err = s.db.Tenant(id).Tenant(ctx)
			if err != nil && !db.NotFound(err) {
				return err
			}
			there[account] = err == nil
		}
		if there[account] || l.Machines > 0 {
			continue
		}
		s.log.Info("a layer of an account that is gone is removed", "layer", l.ID)
		if err := layers.RemoveLayer(ctx, l.ID); err != nil {
			return err
		}
	}
	return nil
}
