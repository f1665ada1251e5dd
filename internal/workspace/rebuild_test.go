package workspace_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
)

func rebuild(t *testing.T, w *workspacetest.World, s *workspacetest.Server, id uuid.UUID, in workspace.RebuildInput) (workspace.Workspace, error) {
	t.Helper()
	return s.Workspaces.Rebuild(t.Context(), w.Owner.Actor, id, in)
}

// The environment as it is then is what a rebuild builds, and nothing is stale after it. Whoever comes second is refused.
func TestARebuildBuildsFromTheEnvironmentAsItIsThen(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Quota, h.Fleet = 1, 1 }) // it takes the place of the old machine
	env := makeEnvironment(t, w, script("echo one | tee ~/one"))
	first := ready(t, w, create(t, w, env).ID)
	if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
		in.SetupScript = "ls ~; echo two"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, first.ID); err != nil || !slices.Equal(got.ChangedFields, []string{"setup_script"}) {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := rebuild(t, w, w.Server, first.ID, workspace.RebuildInput{}); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]error{
		"another rebuild": second(rebuild(t, w, w.Server, first.ID, workspace.RebuildInput{Interrupt: true})),
		"a retry":         second(w.Workspaces.Retry(t.Context(), w.Owner.Actor, first.ID, workspace.RetryInput{})),
	} {
		if code(got) != map[string]refusal.Code{"another rebuild": refusal.RebuildInProgress, "a retry": refusal.WorkspaceNotFailed}[name] {
			t.Errorf("%s while it is rebuilt: %v", name, got)
		}
	}
	ws := ready(t, w, first.ID)
	if *ws.SandboxID == *first.SandboxID || ws.Stale || ws.SetupID == first.SetupID {
		t.Errorf("%+v", ws)
	}
	if got := setupLog(t, w, ws.ID)["setup_script"].Output; got != "two\n" {
		t.Errorf("the log says %q", got)
	}
	var told []string
	for _, e := range events[workspace.StatusBody](t, w, stream.WorkspaceStatus, ws.ID) {
		if s := string(e.Status); len(told) == 0 || told[len(told)-1] != s {
			told = append(told, s)
		}
	}
	if !slices.Equal(told, []string{"provisioning", "ready", "provisioning", "ready"}) {
		t.Errorf("the stream says %v", told)
	}
	// One that fails is rebuilt as it is retried, and many at once are one.
	if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
		in.SetupScript = "exit 3"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := rebuild(t, w, w.Server, ws.ID, workspace.RebuildInput{}); err != nil {
		t.Fatal(err)
	}
	if got := settled(t, w, ws.ID); got.Status != workspace.Failed || got.Error.Step != "setup_script" {
		t.Fatalf("%+v", got)
	}
	machines := count(t, w, "machines")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			var err error
			if i%2 == 0 {
				_, err = rebuild(t, w, w.Server, ws.ID, workspace.RebuildInput{})
			} else {
				_, err = w.Workspaces.Retry(t.Context(), w.Owner.Actor, ws.ID, workspace.RetryInput{})
			}
			if err != nil && code(err) != refusal.RebuildInProgress && code(err) != refusal.WorkspaceNotFailed {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := count(t, w, "machines") - machines; n != 1 {
		t.Errorf("%d machines were planned", n)
	}
	settled(t, w, ws.ID)
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelWorkspace: ws.ID.String()})
	if err != nil || len(infos) != 0 {
		t.Errorf("left are %v %v", infos, err)
	}
}

// Of a provider that is disabled nothing is touched: no turn ends, no row changes.
func TestARebuildOnADisabledProviderTouchesNothing(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	w.Server.Stop()
	open := workspace.OpenTurn{ConversationID: uuid.New(), TurnID: uuid.New(), TurnNumber: 1, Status: workspace.TurnRunning, Sent: true}
	w.Occupants.Open(open)
	host := w.Host
	host.Disabled = true
	off := w.Start(t, host)
	before, err := off.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
	if err != nil {
		t.Fatal(err)
	}
	events := count(t, w, "tenant_events")
	_, err = rebuild(t, w, off, ws.ID, workspace.RebuildInput{Interrupt: true})
	if r, _ := refusal.As(err); code(err) != refusal.ProviderDisabled || !strings.Contains(r.Message, "MANAGOAT_SANDBOX_PROVIDERS") || !strings.Contains(r.Message, "another provider") {
		t.Errorf("a rebuild: %v", err)
	}
	after, err := off.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
	if turns, _ := w.Occupants.OpenTurns(t.Context(), nil, ws.ID); err != nil || !after.UpdatedAt.Equal(before.UpdatedAt) || *after.SandboxID != *before.SandboxID || len(turns) != 1 || count(t, w, "tenant_events") != events {
		t.Errorf("%+v %v, turns %v", after, err, turns)
	}
	if info, err := w.Provider.Inspect(t.Context(), "mg-"+ws.SandboxID.String()); err != nil || info.State != sandbox.Running {
		t.Errorf("its machine: %+v %v", info, err)
	}
}

// What is under way with the machine does not hold a rebuild up, and a rebuild whose server is killed is finished.
func TestARebuildTakesTheMachineFromAParkAndOutlivesItsServer(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Lives = workspace.Lifetimes{Idle: time.Hour} })
	env := makeEnvironment(t, w, script("echo \"on $(hostname)\"; [ ! -e /tmp/never ] || true; sleep $WAIT"))
	edit := func(seconds string) {
		t.Helper()
		if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
			in.EnvVars = map[string]string{"WAIT": seconds}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	edit("0")
	first := ready(t, w, create(t, w, env).ID)
	w.Server.Stop()
	change(t, w, "update machines set woken_at = woken_at - interval '1 hour'")
	if err := w.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	edit("600")
	if got, err := rebuild(t, w, w.Server, first.ID, workspace.RebuildInput{}); err != nil || got.MachineStatus != machine.Pending || got.Transition != "provisioning" {
		t.Fatalf("while it parks: %+v %v", got, err)
	}
	dies := workspacetest.Spawn(t, w.Host, 0)
	eventually(t, "the script to run", func() bool { return strings.Contains(setupLog(t, w, first.ID)["setup_script"].Output, "on ") })
	dies.Kill()
	edit("0")
	again := w.Start(t, w.Host)
	again.Run(t)
	ws := ready(t, w, first.ID)
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelWorkspace: ws.ID.String()})
	if err != nil || len(infos) != 1 || infos[0].Labels[sandbox.LabelMachine] != ws.SandboxID.String() || *ws.SandboxID == *first.SandboxID {
		t.Errorf("its machines: %+v %v", infos, err)
	}
	var parks int
	if err := w.Instance.Owner(t).QueryRow(t.Context(), "select count(*) from operations where kind = 'park' and state = 'cancelled'").Scan(&parks); err != nil || parks != 1 {
		t.Errorf("%d parks were cancelled, %v", parks, err)
	}
}

// A park whose machine is gone says so, instead of trying for ever.
func TestAMachineThatIsLostAsItParksIsLost(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Lives = workspace.Lifetimes{Idle: time.Hour} })
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	w.Server.Stop()
	change(t, w, "update machines set woken_at = woken_at - interval '1 hour'")
	if err := w.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Provider.Destroy(t.Context(), "mg-"+ws.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	w.Start(t, w.Host).Run(t)
	is(t, w, ws.ID, machine.Lost)
}
