// Package quota holds what an account may use at once: its limits, checked in the transaction that would use them, under
// the account's quota row. The row is locked last and held to the commit, so that two requests never pass one limit
// together.
package quota

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Names of the quotas.
const (
	RunningMachines  = "running_machines"
	PromptsPerMinute = "prompts_per_minute"
)

// Defaults are the instance's limits for accounts that have none of their own. 0 allows nothing.
type Defaults struct {
	RunningMachines  int // machines that are pending, starting or ready at once
	PromptsPerMinute int // prompts an account's conversations take in a minute, together
}

// TakePrompt uses one prompt of this minute, or has the transaction refused with quota_exceeded. Call it last in the
// transaction that accepts the prompt.
func TakePrompt(ctx context.Context, tx db.Tx, tenantID uuid.UUID, d Defaults) error {
	tx.Refused("prompts", func(ctx context.Context, q *queries.Queries) error { return tooManyPrompts(ctx, q, tenantID, d) })
	return tx.TakePrompt(ctx, int32(d.PromptsPerMinute))
}

func tooManyPrompts(ctx context.Context, q *queries.Queries, tenantID uuid.UUID, d Defaults) error {
	use, err := q.QuotaUse(ctx)
	if err != nil {
		return fmt.Errorf("read the quotas of account %s: %w", tenantID, err)
	}
	limit := limitOf(use.PromptsPerMinute, d.PromptsPerMinute)
	frees := time.Duration(use.PromptsResetIn * float64(time.Second))
	return refusal.New(refusal.QuotaExceeded, "This account may send %d prompts a minute and has sent %d. The next minute begins in %s.",
		limit, use.Prompts, max(frees, time.Second).Round(time.Second)).
		With("quota", PromptsPerMinute).With("limit", limit).With("used", int(use.Prompts)).RetryAfter(frees)
}

// machineRetry is how long a client waits before it asks again for a machine: when one frees is not known.
const machineRetry = 30 * time.Second

// CheckMachine refuses with sandbox_quota_exceeded when the account runs as many machines as it may. Call it last in the
// transaction that makes a machine pending or starting.
func CheckMachine(ctx context.Context, tx db.Tx, tenantID uuid.UUID, d Defaults) error {
	if _, err := tx.LockQuotas(ctx); err != nil {
		return fmt.Errorf("lock the quotas of account %s: %w", tenantID, err)
	}
	// After the lock, in a statement of its own: it sees what the transaction before this one made.
	use, err := tx.QuotaUse(ctx)
	if err != nil {
		return fmt.Errorf("read the quotas of account %s: %w", tenantID, err)
	}
	limit := limitOf(use.RunningMachines, d.RunningMachines)
	if int(use.Machines) < limit {
		return nil
	}
	return refusal.New(refusal.SandboxQuotaExceeded, "This account may run %d machines at once and runs %d. One frees when a workspace parks, is idle long enough to park, or is deleted.",
		limit, use.Machines).
		With("quota", RunningMachines).With("limit", limit).With("used", int(use.Machines)).With("active_sandboxes", int(use.Machines)).RetryAfter(machineRetry)
}

func limitOf(own *int32, instance int) int {
	if own != nil {
		return int(*own)
	}
	return instance
}

// Quota is one limit of an account and its use now.
type Quota struct {
	Quota    string     `json:"quota"`
	Limit    int        `json:"limit"`
	Used     int        `json:"used"`
	Source   string     `json:"source" enum:"default,override" doc:"the instance's default, or set by an operator for this account"`
	ResetsAt *time.Time `json:"resets_at,omitempty" doc:"when use begins again at zero"`
	Frees    string     `json:"frees" doc:"when use goes down, in words"`
}

// Service shows the quotas.
type Service struct {
	db       *db.DB
	defaults Defaults
}

// New makes the service.
func New(d *db.DB, defaults Defaults) *Service { return &Service{d, defaults} }

// List shows every quota of the account.
func (s *Service) List(ctx context.Context, actor tenant.Actor) ([]Quota, error) {
	use, err := s.db.Tenant(actor.TenantID).QuotaUse(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the quotas of account %s: %w", actor.TenantID, err)
	}
	return s.quotas(use), nil
}

func (s *Service) quotas(use queries.QuotaUseRow) []Quota {
	source := func(own *int32) string {
		if own != nil {
			return "override"
		}
		return "default"
	}
	return []Quota{{
		Quota: RunningMachines, Limit: limitOf(use.RunningMachines, s.defaults.RunningMachines), Used: int(use.Machines),
		Source: source(use.RunningMachines), Frees: "when a workspace parks or is deleted",
	}, {
		Quota: PromptsPerMinute, Limit: limitOf(use.PromptsPerMinute, s.defaults.PromptsPerMinute), Used: int(use.Prompts),
		Source: source(use.PromptsPerMinute), ResetsAt: &use.PromptsResetAt, Frees: "at the next minute",
	}}
}
