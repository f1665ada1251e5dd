package conversation

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/refusal"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
)

// machineLost is why a machine is built again.
const machineLost = "machine_lost"

// up makes sure that the workspace's machine is up. That it had to be woken or built again is shown, and why it could not be.
func (t *turn) up(ctx context.Context) (*workspace.Up, error) {
	t.machine, t.rebuilds = uuid.Nil, false
	start, woken := time.Now(), false
	up, err := t.s.o.Workspaces.Ensure(ctx, t.c.TenantID, t.c.WorkspaceID, workspace.Caller{Rebuild: t.rebuild, Progress: func(w workspace.Waiting) {
		reason := ForMachine
		if w.For == "setup" {
			reason = ForSetup
		} else if w.Step == "" { // else it may stay up
			woken = true
		}
		t.waits(ctx, reason, w.Step)
	}})
	stage := transcript.StageBody{Stage: "wake", State: "done", DurationMS: time.Since(start).Milliseconds()}
	if t.rebuilds {
		stage.Stage, stage.Reason = "rebuild", machineLost
	}
	if err == nil {
		t.machine = up.MachineID
		if woken || t.rebuilds {
			t.stage(ctx, stage)
		}
		return up, nil
	}
	var f *failure
	if r, ok := refusal.As(err); ok && (t.rebuilds || r.Code != refusal.SetupFailed) {
		if a, aerr := readAdapter(t.c.Adapter); r.Code == refusal.ProviderDisabled && aerr == nil && a != nil && a.Session {
			stage.Stage = "reattach" // to the agent that runs on there
		}
		stage.State, stage.Reason, stage.Advice = "failed", string(r.Code), r.Message
		t.stage(ctx, stage)
	} else if errors.As(err, &f) {
		stage.Stage, stage.State, stage.Reason, stage.Advice = "rebuild", "failed", f.problem.Code, f.problem.Message
		t.stage(ctx, stage)
	}
	return nil, err
}

// rebuildEvery is how long a conversation that had a lost machine built again does not have another one: a machine that is
// lost as soon as it is there would be built for ever.
const rebuildEvery = 10 * time.Minute

// rebuild says whether the turn may have a lost machine built again.
func (t *turn) rebuild(ctx context.Context, tx db.Tx) error {
	n, err := tx.TakeRebuild(ctx, t.c.ID, rebuildEvery.Seconds())
	if err == nil && n == 0 {
		return fail(CodeMachineLostAgain, "The machine was lost again, less than %.0f minutes after it had been built anew for this conversation. The next prompt builds another.", rebuildEvery.Minutes())
	}
	t.rebuilds = err == nil
	return err
}
