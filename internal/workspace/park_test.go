package workspace_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
	"managoat/sandbox/sandboxtest"
)

// change changes rows past everything.
func change(t *testing.T, w *workspacetest.World, sql string, args ...any) {
	t.Helper()
	if _, err := w.Instance.Owner(t).Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// is waits until a workspace's machine is in a state.
func is(t *testing.T, w *workspacetest.World, id uuid.UUID, status machine.Status) (got workspace.Workspace) {
	t.Helper()
	eventually(t, "the machine to be "+string(status), func() (ok bool) {
		var err error
		if got, err = w.Workspaces.Get(t.Context(), w.Owner.Actor, id); err != nil {
			t.Fatal(err)
		}
		return got.MachineStatus == status && got.Transition == ""
	})
	return got
}

// The machine of one conversation parks like any other and is kept. Destroying it is one switch away.
func TestTheMachineOfOneConversationIsKeptUntilItMayBeDisposedOf(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) {
		h.Lives = workspace.Lifetimes{Idle: time.Hour, Retention: 72 * time.Hour, Ceiling: 24 * time.Hour}
	})
	id := implicitWorkspace(t, w, nil)
	first, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, id, workspace.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	sweep := func(s *workspacetest.Server) {
		t.Helper()
		if err := s.Workspaces.ParkDue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	change(t, w, "update machines set woken_at = woken_at - interval '25 hours'")
	sweep(w.Server)
	is(t, w, id, machine.Suspended)
	change(t, w, "update machines set parked_at = parked_at - interval '73 hours'")
	sweep(w.Server)
	is(t, w, id, machine.Suspended)
	if _, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, id); code(err) != refusal.ImplicitWorkspace {
		t.Errorf("a wake of it: %v", err)
	}

	w.Server.Stop()
	host := w.Host
	host.Lives.Disposable = true
	on := w.Start(t, host)
	on.Run(t)
	sweep(on)
	got := is(t, w, id, machine.Lost)
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelWorkspace: id.String()})
	if err != nil || len(infos) != 0 || got.Status != workspace.Ready || !strings.Contains(got.WaitingReason, "72 hours") {
		t.Errorf("kept for 72 hours: %v %v %+v", infos, err, got)
	}
	second, err := on.Workspaces.Ensure(t.Context(), w.Owner.TenantID, id, workspace.Caller{})
	if err != nil || second.MachineID == first.MachineID {
		t.Fatalf("the next prompt: %+v %v", second, err)
	}
	change(t, w, "update machines set woken_at = woken_at - interval '24 hours' where id = $1", second.MachineID)
	sweep(on)
	if got := is(t, w, id, machine.Lost); !strings.Contains(got.WaitingReason, "24 hours") {
		t.Errorf("up for 24 hours: %+v", got)
	}
}

func TestWakesThatThereIsNothingFor(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Lives = workspace.Lifetimes{Idle: time.Hour} })
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	failed := settled(t, w, create(t, w, makeEnvironment(t, w, script("exit 1"))).ID)
	if _, err := w.Workspaces.Wake(t.Context(), w.Account(t).Actor, ws.ID); code(err) != refusal.NotFound {
		t.Errorf("of another account: %v", err)
	}
	if _, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, failed.ID); code(err) != refusal.SandboxNotReady {
		t.Errorf("of one that failed: %v", err)
	}
	if got, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, ws.ID); err != nil || got.MachineStatus != machine.Ready || got.Transition != "" {
		t.Errorf("of one that is up: %+v %v", got, err)
	}

	// One that parks just now is waited for.
	w.Server.Stop()
	change(t, w, "update machines set woken_at = woken_at - interval '1 hour' where workspace_id = $1", ws.ID)
	if err := w.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, ws.ID); code(err) != refusal.SandboxNotReady {
		t.Errorf("a read while it parks: %v", err)
	}
	woken := make(chan error)
	go func() {
		_, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, ws.ID)
		woken <- err
	}()
	disabled := w.Host
	disabled.Disabled = true
	off := w.Start(t, disabled)
	off.Run(t)
	eventually(t, "the park to say why it waits", func() bool {
		got, err := off.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
		return err == nil && got.Transition == "parking" && strings.Contains(got.WaitingReason, sandboxtest.Name())
	})
	if _, err := off.Workspaces.Wake(t.Context(), w.Owner.Actor, ws.ID); code(err) != refusal.ProviderDisabled {
		t.Errorf("of a provider that is disabled: %v", err)
	}
	off.Stop()
	change(t, w, "update operations set lease_until = null where state = 'pending'") // the pause is over
	on := w.Start(t, w.Host)
	on.Run(t)
	if err := <-woken; err != nil {
		t.Errorf("of one that was parking: %v", err)
	}
	is(t, w, ws.ID, machine.Ready)
	var trail string
	err := w.Instance.Owner(t).QueryRow(t.Context(), `select string_agg(action || ' ' || actor_kind, ', ' order by id)
		from audit_events where resource_id = $1 and action in ('workspace.park', 'workspace.wake')`, ws.ID.String()).Scan(&trail)
	if err != nil || trail != "workspace.wake key, workspace.park system, workspace.wake key" {
		t.Errorf("the trail says %q, %v", trail, err)
	}

	// A prompt that comes while a park looks at the disk is in time.
	on.Workspaces.UseSurvey(func(context.Context, uuid.UUID, *workspace.Up) (json.RawMessage, error) {
		change(t, w, "update machines set woken_at = now() where workspace_id = $1", ws.ID)
		return nil, nil
	})
	change(t, w, "update machines set woken_at = woken_at - interval '1 hour' where workspace_id = $1", ws.ID)
	if err := on.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the park to end", func() bool {
		var parks, spared int
		err := w.Instance.Owner(t).QueryRow(t.Context(), "select count(*), count(*) filter (where state = 'failed') from operations where kind = 'park' and state in ('done', 'failed')").Scan(&parks, &spared)
		if err != nil || parks == 2 && spared != 1 {
			t.Fatalf("%d parks, %d stood down, %v", parks, spared, err)
		}
		return parks == 2
	})
	is(t, w, ws.ID, machine.Ready)
}
