package workspace_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/machine"
	"managoat/internal/testworld"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
	"managoat/sandbox/sandboxtest"
)

// A server that is killed in the middle of a setup: the next one on its host takes the setup up at once, on a new
// machine, says so, and leaves nothing of the old one.
func TestASetupWhoseServerWasKilledIsDoneAgain(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t)
	first := workspacetest.Spawn(t, w.Host, 0)
	ws := create(t, w, makeEnvironment(t, w, script("echo \"run on $(hostname)\"; [ -e ~/.again ] || sleep 5")))
	eventually(t, "the script to run", func() bool {
		got := setupLog(t, w, ws.ID)["setup_script"]
		return strings.Contains(got.Output, "run on")
	})
	change(t, w, "update hosts set capped = true, places = 1, draining_at = now()") // it was accepted, and no other host would take it
	first.Kill()
	began := time.Now()
	w.Server.Run(t)
	got := ready(t, w, ws.ID)
	if *got.SandboxID == *ws.SandboxID {
		t.Error("it went on with a machine of which nothing is known")
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Logf("adopted and done after %s", took)
	}
	if text := setupLog(t, w, ws.ID)["machine"].Output; !strings.Contains(text, "stopped in its step setup_script. It begins again") {
		t.Errorf("the log does not say so: %q", text)
	}
	if got.SetupID != ws.SetupID {
		t.Error("it is another setup now: who waited for it waits for ever")
	}
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelWorkspace: ws.ID.String()})
	if err != nil || len(infos) != 1 || infos[0].Labels[sandbox.LabelMachine] != got.SandboxID.String() {
		t.Errorf("its machines: %+v %v", infos, err)
	}
}

// A server that stops gracefully gives its setup back at once; another host takes it.
func TestASetupIsHandedToAnotherHostWhenItsServerStops(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := create(t, w, makeEnvironment(t, w, script("sleep 3; echo done")))
	eventually(t, "the script to run", func() bool { return setupLog(t, w, ws.ID)["setup_script"].State == "running" })
	w.Server.Stop()
	host := w.Host
	dir, err := os.MkdirTemp("", "mgt") // the test's own is too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	host.ID, host.Dir = uuid.New(), dir
	other := w.Start(t, host)
	other.Run(t)
	eventually(t, "the other server to finish it", func() bool {
		got, err := other.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
		return err == nil && got.Status == workspace.Ready
	})
	// What a prompt needs of the machine is the second host's to do, and the first concludes nothing of it.
	if _, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{}); !errors.Is(err, workspace.ErrElsewhere) {
		t.Errorf("from the first host: %v", err)
	}
}

func TestADeleteWhoseServerWasKilledIsFinished(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	w.Server.Stop()
	if err := w.Workspaces.Delete(t.Context(), w.Owner.Actor, ws.ID); err != nil { // accepted, and then the server dies
		t.Fatal(err)
	}
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID); err != nil || got.Status != workspace.Deleting {
		t.Fatalf("%+v %v", got, err)
	}
	w.Start(t, w.Host).Run(t)
	gone(t, w, ws.ID)
}

// A server is killed while it parks a machine, before it stopped it and after, and while it removes the files of another:
// the next one finishes all three, and touches nothing else.
func TestParksAndADeleteInTheMiddleOfWhichTheServerWasKilledAreFinished(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t, func(h *workspacetest.Host) {
		h.Lives = workspace.Lifetimes{Idle: 48 * time.Hour, Ceiling: 24 * time.Hour}
	})
	first := workspacetest.Spawn(t, w.Host, 0)
	env := makeEnvironment(t, w, script("echo kept > ~/file; mkdir ~/many && cd ~/many && touch {1..60000}"))
	idle, old, deleted := create(t, w, env), create(t, w, env), create(t, w, env)
	for _, ws := range []*workspace.Workspace{&idle, &old, &deleted} {
		*ws = ready(t, w, ws.ID)
	}
	foreign, err := w.Provider.Create(t.Context(), sandbox.Spec{Name: "foreign-" + uuid.NewString(), Hostname: "x", Labels: map[string]string{sandbox.LabelInstance: "another " + w.Host.Instance}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Provider.Destroy(context.Background(), foreign.ID) })
	state := func(ws workspace.Workspace) sandbox.State {
		t.Helper()
		info, err := w.Provider.Inspect(t.Context(), "mg-"+ws.SandboxID.String())
		if err != nil {
			t.Fatal(err)
		}
		return info.State
	}

	// Their time is over. The parks begin, and come as far as to a row that somebody else holds: the idle machine's before
	// it is stopped, since its turns are looked at once more, the other's when that is to be written down.
	change(t, w, "update machines set woken_at = woken_at - interval '50 hours' where id = $1", idle.SandboxID)
	change(t, w, "update machines set woken_at = woken_at - interval '25 hours' where id = $1", old.SandboxID)
	held, looks := w.Instance.Owner(t), w.Instance.Owner(t)
	hold := func(sql string, args ...any) {
		t.Helper()
		if _, err := held.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	hold(`create function begins() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(1); return new; end $$`)
	hold(`create trigger begins before update on operations for each row when (new.kind = 'park') execute function begins()`)
	hold("select pg_advisory_lock(1)") // no park begins before its row is held
	if err := w.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	hold("begin")
	hold("select from workspaces where id = any($1) for update", []uuid.UUID{idle.ID, old.ID})
	hold("select pg_advisory_unlock(1)")
	eventually(t, "both parks to be under way", func() bool {
		var n int
		if err := looks.QueryRow(t.Context(), "select count(*) from operations where kind = 'park' and state = 'running' and owner is not null").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2 && state(old) == sandbox.Stopped
	})
	if err := w.Workspaces.Delete(t.Context(), w.Owner.Actor, deleted.ID); err != nil {
		t.Fatal(err)
	}
	trash := func() []string {
		left, err := filepath.Glob(filepath.Join(w.Host.Machines, "trash", "mg-"+deleted.SandboxID.String()+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	// An engine removes a machine's files in one call, in the middle of which nothing can be held.
	slow := sandboxtest.Name() == sandboxtest.Local
	eventually(t, "the files to be removed", func() bool { return !slow || len(trash()) > 0 })
	first.Kill()
	if slow && len(trash()) == 0 || state(idle) != sandbox.Running || state(old) != sandbox.Stopped {
		t.Fatalf("it was not killed in the middle: %v, %s, %s", trash(), state(idle), state(old))
	}
	hold("rollback")

	w.Start(t, w.Host).Run(t)
	for _, ws := range []workspace.Workspace{idle, old} {
		if got := is(t, w, ws.ID, machine.Suspended); got.WaitingReason == "" || state(ws) != sandbox.Stopped {
			t.Errorf("parked without a reason: %+v, %s", got, state(ws))
		}
	}
	gone(t, w, deleted.ID)
	eventually(t, "the last files to be removed", func() bool { return len(trash()) == 0 })
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelInstance: w.Host.Instance})
	if err != nil || len(infos) != 2 {
		t.Errorf("its machines: %+v %v", infos, err)
	}
	if groups := groupsOf(t, "mg-"+deleted.SandboxID.String()); len(groups) > 0 {
		t.Errorf("its control groups: %v", groups)
	}
	if info, err := w.Provider.Inspect(t.Context(), foreign.ID); err != nil || info.State != sandbox.Stopped {
		t.Errorf("another instance's machine: %+v %v", info, err)
	}
}

// groupsOf are the control groups of a machine.
func groupsOf(t *testing.T, machine string) (found []string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), machine+".") {
			found = append(found, path)
		}
		return nil // groups come and go
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// After a restart the machines that run are told to the egress process, those that stopped are parked, and those that
// the provider does not have are lost.
func TestRestoreFindsEveryMachineAsItIs(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, nil)
	up, stopped, lost := create(t, w, env), create(t, w, env), create(t, w, env)
	for _, ws := range []*workspace.Workspace{&up, &stopped, &lost} {
		*ws = ready(t, w, ws.ID)
	}
	w.Server.Stop()
	ctx := t.Context()
	if err := w.Provider.Stop(ctx, "mg-"+stopped.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	if err := w.Provider.Destroy(ctx, "mg-"+lost.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	again := w.Start(t, w.Host)
	if err := again.Machines.Restore(ctx); err != nil {
		t.Fatal(err)
	}
	probing, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := again.Egress.Probe(probing, *up.SandboxID); err != nil {
		t.Errorf("the machine that is up: %v", err)
	}
	for _, c := range []struct {
		ws   workspace.Workspace
		want machine.Status
	}{{up, machine.Ready}, {stopped, machine.Suspended}, {lost, machine.Lost}} {
		got, err := again.Workspaces.Get(ctx, w.Owner.Actor, c.ws.ID)
		if err != nil || got.MachineStatus != c.want || got.Status != workspace.Ready {
			t.Errorf("workspace %s, machine %s, %v; want %s", got.Status, got.MachineStatus, err, c.want)
		}
	}
}

func TestDownParksEveryMachineOfTheHost(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, script("echo kept > ~/file"))
	a, b := create(t, w, env), create(t, w, env)
	ready(t, w, a.ID)
	ready(t, w, b.ID)
	w.Server.Stop()
	if parked, err := w.Machines.Down(t.Context()); err != nil || parked != 2 {
		t.Fatalf("parked %d, %v", parked, err)
	}
	for _, ws := range []workspace.Workspace{a, b} {
		got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
		if err != nil || got.MachineStatus != machine.Suspended {
			t.Errorf("machine %s, %v", got.MachineStatus, err)
		}
	}
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelInstance: w.Host.Instance})
	if err != nil || len(infos) != 2 || infos[0].State != sandbox.Stopped || infos[1].State != sandbox.Stopped {
		t.Errorf("%+v %v", infos, err)
	}
	again := w.Start(t, w.Host)
	again.Run(t)
	if _, err := again.Workspaces.Ensure(t.Context(), w.Owner.TenantID, a.ID, workspace.Caller{}); err != nil {
		t.Errorf("a prompt after it: %v", err)
	}
}

// The reaper removes what carries our labels and belongs to nothing, and touches nothing else.
func TestTheReaperRemovesOnlyWhatIsOursAndNobodyNeeds(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	labels := func(instance, tenant, id string) map[string]string {
		return map[string]string{sandbox.LabelInstance: instance, sandbox.LabelTenant: tenant, sandbox.LabelWorkspace: uuid.NewString(), sandbox.LabelMachine: id}
	}
	foreign := "foreign-" + uuid.NewString()
	for name, l := range map[string]map[string]string{
		"orphan-" + uuid.NewString(): labels(w.Host.Instance, w.Owner.TenantID.String(), uuid.NewString()),
		"left-" + uuid.NewString():   labels(w.Host.Instance, uuid.NewString(), uuid.NewString()),
		"odd-" + uuid.NewString():    {sandbox.LabelInstance: w.Host.Instance, sandbox.LabelTenant: "nobody"},
		foreign:                      labels("another instance "+w.Host.Instance, w.Owner.TenantID.String(), uuid.NewString()),
	} {
		if _, err := w.Provider.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "x", Labels: l}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { w.Provider.Destroy(context.Background(), foreign) })
	if err := w.Machines.Reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelInstance: w.Host.Instance})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, info := range infos {
		names = append(names, strings.SplitN(info.Name, "-", 2)[0])
	}
	if got := strings.Join(names, " "); got != "mg odd" && got != "odd mg" {
		t.Errorf("left are %s", got)
	}
	if _, err := w.Provider.Inspect(t.Context(), foreign); err != nil {
		t.Errorf("another instance's machine: %v", err)
	}
	run(t, w, ws.ID, "true")
}

// Without root there are no packages: it is said before a machine is made, and by the step when the environment got them
// later. All else works, with one user.
func TestAServerWithoutRootSaysWhatItsMachinesCannotDo(t *testing.T) {
	t.Parallel()
	sandboxtest.Needs(t, sandboxtest.Local, "an engine's machines have root, whoever runs the server")
	w := workspacetest.Quiet(t)
	packages := makeEnvironment(t, w, func(in *environment.Input) { in.Packages.Apt = []string{"managoat-hello"} })
	host := w.Host
	host.ID, host.Tenant, host.Try = uuid.New(), w.Owner.TenantID, &workspace.CreateInput{Name: "refused", EnvironmentID: packages.ID}
	server := workspacetest.Spawn(t, host, w.Nobody(t))
	change(t, w, "update hosts set seen_at = now() - interval '1 minute' where id = $1", w.Host.ID) // its server does nothing
	if !strings.HasPrefix(server.Tried, "sandbox_provider_unable: ") || !strings.Contains(server.Tried, "run the server as root") {
		t.Errorf("packages are answered with %q", server.Tried)
	}
	if ws := settled(t, w, create(t, w, packages).ID); ws.Status != workspace.Failed || ws.Error.Step != "packages" || !strings.Contains(ws.Error.Message, "run the server as root") {
		t.Errorf("the step says %+v", ws.Error)
	}
	repo := w.Outside.Git.Add("repo", testworld.Files{"README": "from the repository\n"})
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
		in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: "/home/sprite/repo"}}
		in.EnvVars = map[string]string{"A": "b"}
		in.SetupScript = "cat repo/README; . ~/.env; echo $A; id -un; sudo true || echo no sudo; ls $MANAGOAT_RUNTIME_TEMPLATE"
	})).ID)
	if got := setupLog(t, w, ws.ID)["setup_script"].Output; !strings.HasPrefix(got, "from the repository\nb\nsprite\n") || !strings.Contains(got, "no sudo\nclaude\ncodex\ngemini\n") {
		t.Errorf("the script printed %q", got)
	}
	ws = settled(t, w, create(t, w, makeEnvironment(t, w, repositories(environment.Repository{URL: repo.URL, MountPath: "/srv/app"}))).ID)
	if ws.Status != workspace.Failed || !strings.Contains(ws.Error.Message, "below /home/sprite") {
		t.Errorf("a mount outside of the home: %+v", ws.Error)
	}
}

// A machine that ends under its setup ends the setup with it, and a retry builds another.
func TestAMachineThatStopsUnderItsSetupFailsTheStep(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
		in.SetupScript, in.SetupTimeoutSeconds = "echo working; [ -e /tmp/never ] || sleep 600", 900
	}))
	eventually(t, "the script to run", func() bool { return setupLog(t, w, ws.ID)["setup_script"].Output == "working\n" })
	if err := w.Provider.Stop(t.Context(), "mg-"+ws.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	ws = settled(t, w, ws.ID)
	if ws.Status != workspace.Failed || ws.Error.Step != "setup_script" || ws.Error.Message != "The setup script was cut short: the machine stopped." || ws.Error.ExitCode != nil || ws.Error.OutputTail != "working" {
		t.Errorf("status %s, error %+v", ws.Status, ws.Error)
	}
	if _, err := w.Workspaces.Retry(t.Context(), w.Owner.Actor, ws.ID, workspace.RetryInput{}); err != nil {
		t.Error(err)
	}
}
