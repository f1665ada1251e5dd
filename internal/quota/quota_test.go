package quota_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/quota"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

var ctx = context.Background()

func want(t *testing.T, err error, code refusal.Code) *refusal.Refusal {
	t.Helper()
	r, ok := refusal.As(err)
	if !ok || r.Code != code {
		t.Fatalf("got %v, want the refusal %s", err, code)
	}
	return r
}

func take(d *dbtest.Database, tenantID uuid.UUID, limit int) error {
	return d.InTenant(ctx, tenantID, func(tx db.Tx) error {
		return quota.TakePrompt(ctx, tx, tenantID, quota.Defaults{PromptsPerMinute: limit})
	})
}

// freshMinute keeps a test that counts prompts of one minute from running over its end.
func freshMinute(t *testing.T, d *dbtest.Database, tenantID uuid.UUID) {
	t.Helper()
	if _, err := d.Owner(t).Exec(ctx, "update quotas set prompt_minute = date_trunc('minute', now()) + interval '1 minute', prompt_count = 0 where tenant_id = $1", tenantID); err != nil {
		t.Fatal(err)
	}
}

func TestPromptsOfAMinuteAreCountedExactlyWhenTheyComeTogether(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b := d.Account(t), d.Account(t)
	freshMinute(t, d, a)
	var taken, refused atomic.Int64
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			err := take(d, a, 15)
			if err == nil {
				taken.Add(1)
				return
			}
			r, ok := refusal.As(err)
			if !ok || r.Code != refusal.QuotaExceeded {
				t.Error(err)
				return
			}
			refused.Add(1)
			if r.Fields["quota"] != "prompts_per_minute" || r.Fields["limit"] != 15 || r.Fields["used"] != 15 || r.RetryAfterSeconds() < 1 || r.RetryAfterSeconds() > 120 {
				t.Errorf("says %v", r.Fields)
			}
		})
	}
	wg.Wait()
	if taken.Load() != 15 || refused.Load() != 25 {
		t.Fatalf("%d taken and %d refused", taken.Load(), refused.Load())
	}
	if err := take(d, b, 15); err != nil {
		t.Errorf("another account's prompts count: %v", err)
	}
}

func TestARolledBackPromptIsNotCountedAndTheNextMinuteBeginsAtZero(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	freshMinute(t, d, a)
	boom := errors.New("boom")
	err := d.InTenant(ctx, a, func(tx db.Tx) error {
		if err := quota.TakePrompt(ctx, tx, a, quota.Defaults{PromptsPerMinute: 1}); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if err := take(d, a, 1); err != nil {
		t.Fatal(err)
	}
	want(t, take(d, a, 1), refusal.QuotaExceeded)
	if _, err := d.Owner(t).Exec(ctx, "update quotas set prompt_minute = now() - interval '61 seconds' where tenant_id = $1", a); err != nil {
		t.Fatal(err)
	}
	if err := take(d, a, 1); err != nil {
		t.Errorf("the next minute: %v", err)
	}
}

func machine(t *testing.T, d *dbtest.Database, tenantID uuid.UUID, status string) {
	t.Helper()
	conn := d.Owner(t)
	environment, workspace := uuid.New(), uuid.New()
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"insert into environments (tenant_id, id, name) values ($1, $2, $3)", []any{tenantID, environment, environment.String()}},
		{"insert into workspaces (tenant_id, id, name, environment_id, provider, status) values ($1, $2, $3, $4, 'local', 'ready')", []any{tenantID, workspace, workspace.String(), environment}},
		{"insert into machines (tenant_id, id, workspace_id, provider, status) values ($1, $2, $3, 'local', $4)", []any{tenantID, uuid.New(), workspace, status}},
	} {
		if _, err := conn.Exec(ctx, s.sql, s.args...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRunningMachinesAreCountedAndParkedOnesAreNot(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b := d.Account(t), d.Account(t)
	for _, status := range []string{"pending", "starting", "ready", "suspended", "terminated", "failed", "lost"} {
		machine(t, d, a, status)
		machine(t, d, b, "ready")
	}
	check := func(limit int) error {
		return d.InTenant(ctx, a, func(tx db.Tx) error {
			return quota.CheckMachine(ctx, tx, a, quota.Defaults{RunningMachines: limit})
		})
	}
	if err := check(4); err != nil {
		t.Fatal(err)
	}
	r := want(t, check(3), refusal.SandboxQuotaExceeded)
	if r.Fields["active_sandboxes"] != 3 || r.Fields["limit"] != 3 || r.Fields["quota"] != "running_machines" || r.RetryAfterSeconds() == 0 {
		t.Errorf("says %v", r.Fields)
	}
	// The operator's override goes before the default, 0 included.
	for override, passes := range map[int]bool{0: false, 3: false, 4: true} {
		if _, err := d.Owner(t).Exec(ctx, "update quotas set running_machines = $2 where tenant_id = $1", a, override); err != nil {
			t.Fatal(err)
		}
		if err := check(100); (err == nil) != passes {
			t.Errorf("override %d: %v", override, err)
		}
	}
}

// Two servers start the last machine together: the second waits for the first and sees its machine.
func TestTheLastMachineIsStartedOnce(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a := d.Account(t)
	conn := d.Owner(t)
	environment, workspace := uuid.New(), uuid.New()
	if _, err := conn.Exec(ctx, "insert into environments (tenant_id, id, name) values ($1, $2, 'e')", a, environment); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "insert into workspaces (tenant_id, id, name, environment_id, provider, status) values ($1, $2, 'w', $3, 'local', 'ready')", a, workspace, environment); err != nil {
		t.Fatal(err)
	}
	var started atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := d.InTenant(ctx, a, func(tx db.Tx) error {
				if err := quota.CheckMachine(ctx, tx, a, quota.Defaults{RunningMachines: 2}); err != nil {
					return err
				}
				return tx.Exec(ctx, "insert into machines (tenant_id, id, workspace_id, provider, status) values ($1, $2, $3, 'local', 'pending')", a, uuid.New(), workspace)
			})
			if err == nil {
				started.Add(1)
			} else if !refusal.Is(err, refusal.SandboxQuotaExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if started.Load() != 2 {
		t.Errorf("%d machines were started, 2 may be", started.Load())
	}
}

func TestQuotasAreShownWithLimitUseAndWhenTheyFree(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, b := d.Account(t), d.Account(t)
	machine(t, d, a, "ready")
	freshMinute(t, d, a)
	for range 3 {
		if err := take(d, a, 5); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Owner(t).Exec(ctx, "update quotas set running_machines = 7 where tenant_id = $1", a); err != nil {
		t.Fatal(err)
	}
	s := quota.New(d.DB, quota.Defaults{RunningMachines: 20, PromptsPerMinute: 5})
	list := func(tenantID uuid.UUID) string {
		t.Helper()
		quotas, err := s.List(ctx, tenant.Actor{TenantID: tenantID})
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, q := range quotas {
			out += fmt.Sprintln(q.Quota, q.Used, "of", q.Limit, q.Source)
			if (q.ResetsAt != nil) != (q.Quota == quota.PromptsPerMinute) || q.Frees == "" {
				t.Errorf("%s frees %q, at %v", q.Quota, q.Frees, q.ResetsAt)
			}
			if q.ResetsAt != nil && time.Until(*q.ResetsAt) < 0 {
				t.Errorf("%s was reset at %s", q.Quota, q.ResetsAt)
			}
		}
		return out
	}
	if got := list(a); got != "running_machines 1 of 7 override\nprompts_per_minute 3 of 5 default\n" {
		t.Errorf("shows\n%s", got)
	}
	if got := list(b); got != "running_machines 0 of 20 default\nprompts_per_minute 0 of 5 default\n" {
		t.Errorf("another account sees\n%s", got)
	}
}
