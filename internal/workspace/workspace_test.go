package workspace_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
)

func TestMain(m *testing.M) { os.Exit(workspacetest.Main(m)) }

// patience bounds a wait for something that takes a second on a quiet machine.
const patience = 5 * time.Minute

// eventually polls until ok, and fails the test when it does not come true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for pause := 5 * time.Millisecond; !ok(); pause = min(2*pause, 40*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// makeEnvironment keeps an environment.
func makeEnvironment(t *testing.T, w *workspacetest.World, change func(*environment.Input)) environment.Environment {
	t.Helper()
	in := environment.New()
	in.Name = "env " + uuid.NewString()
	if change != nil {
		change(&in)
	}
	env, err := w.Environments.Create(t.Context(), w.Owner.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// create makes a workspace of an environment.
func create(t *testing.T, w *workspacetest.World, env environment.Environment) workspace.Workspace {
	t.Helper()
	ws, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: "ws " + uuid.NewString(), EnvironmentID: env.ID})
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

// settled waits until a workspace's setup has ended.
func settled(t *testing.T, w *workspacetest.World, id uuid.UUID) workspace.Workspace {
	t.Helper()
	var ws workspace.Workspace
	eventually(t, "the end of the setup", func() bool {
		var err error
		if ws, err = w.Workspaces.Get(t.Context(), w.Owner.Actor, id); err != nil {
			t.Fatal(err)
		}
		return ws.Status != workspace.Provisioning
	})
	return ws
}

// ready waits for a setup that must succeed.
func ready(t *testing.T, w *workspacetest.World, id uuid.UUID) workspace.Workspace {
	t.Helper()
	ws := settled(t, w, id)
	if ws.Status != workspace.Ready {
		t.Fatalf("status %s, error %+v\n%s", ws.Status, ws.Error, logText(t, w, id))
	}
	return ws
}

func setupLog(t *testing.T, w *workspacetest.World, id uuid.UUID) map[string]workspace.LogStep {
	t.Helper()
	log, err := w.Workspaces.SetupLog(t.Context(), w.Owner.Actor, id)
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]workspace.LogStep{}
	for _, s := range log.Steps {
		steps[s.Step] = s
	}
	return steps
}

func logText(t *testing.T, w *workspacetest.World, id uuid.UUID) string {
	t.Helper()
	log, err := w.Workspaces.SetupLog(t.Context(), w.Owner.Actor, id)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range log.Steps {
		b.WriteString("== " + s.Step + " " + s.State + " " + s.Note + "\n" + s.Output)
	}
	return b.String()
}

// events are the rows of the account's stream with that name, in order.
func events[T any](t *testing.T, w *workspacetest.World, name string, id uuid.UUID) []T {
	t.Helper()
	rows, err := w.Instance.Owner(t).Query(context.Background(), "select body from tenant_events where tenant_id = $1 and name = $2 and workspace_id = $3 order by seq", w.Owner.TenantID, name, id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var raw json.RawMessage
		var v T
		if err := rows.Scan(&raw); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
