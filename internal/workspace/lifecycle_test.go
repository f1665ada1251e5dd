package workspace_test

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/environment"
	"managoat/internal/input"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
	"managoat/sandbox/guest"
	"managoat/sandbox/sandboxtest"
)

// code is the refusal's code of an error.
func code(err error) refusal.Code {
	if r, ok := refusal.As(err); ok {
		return r.Code
	}
	if err != nil {
		return refusal.Code("not a refusal: " + err.Error())
	}
	return ""
}

func TestWhatCannotBeAWorkspaceIsRefused(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t, func(h *workspacetest.Host) { h.Quota = 2 })
	env := makeEnvironment(t, w, nil)
	stranger := w.Account(t)
	in := workspace.CreateInput{Name: "mine", EnvironmentID: env.ID}
	make := func(actor tenant.Actor, change func(*workspace.CreateInput)) error {
		in := in
		if change != nil {
			change(&in)
		}
		_, err := w.Workspaces.Create(t.Context(), actor, in)
		return err
	}
	if err := make(w.Owner.Actor, nil); err != nil {
		t.Fatal(err)
	}
	id := uuid.New()
	for name, c := range map[string]struct {
		actor  tenant.Actor
		change func(*workspace.CreateInput)
		want   refusal.Code
	}{
		"an empty name":                 {w.Owner.Actor, func(in *workspace.CreateInput) { in.Name = "  " }, refusal.ValidationFailed},
		"a name with a line break":      {w.Owner.Actor, func(in *workspace.CreateInput) { in.Name = "a\nb" }, refusal.ValidationFailed},
		"a name of another workspace":   {w.Owner.Actor, nil, refusal.NameTaken},
		"no environment":                {w.Owner.Actor, func(in *workspace.CreateInput) { in.Name, in.EnvironmentID = "x", uuid.Nil }, refusal.ValidationFailed},
		"another account's environment": {stranger.Actor, nil, refusal.EnvironmentNotFound},
		"a vault that is not":           {w.Owner.Actor, func(in *workspace.CreateInput) { in.Name, in.VaultID = "x", &id }, refusal.VaultNotFound},
		"a provider that is not":        {w.Owner.Actor, func(in *workspace.CreateInput) { in.Name, in.SandboxProvider = "x", "cloud" }, refusal.ProviderDisabled},
	} {
		if got := code(make(c.actor, c.change)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if err := make(w.Owner.Actor, func(in *workspace.CreateInput) { in.Name = "two / ünïcode 🐐 'quoted'" }); err != nil {
		t.Errorf("an odd name: %v", err)
	}
	err := make(w.Owner.Actor, func(in *workspace.CreateInput) { in.Name = "three" })
	if r, _ := refusal.As(err); code(err) != refusal.SandboxQuotaExceeded || r.Fields["limit"] != 2 || r.Fields["active_sandboxes"] != 2 {
		t.Errorf("over the account's quota: %v", err)
	}
	if list, err := w.Workspaces.List(t.Context(), w.Owner.Actor, true, input.Page{}); err != nil || len(list.Items) != 2 {
		t.Errorf("what was refused left rows: %+v %v", list, err)
	}
}

func TestTheInstancesCeilingCountsEveryAccount(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t, func(h *workspacetest.Host) { h.Fleet = 3 })
	first := create(t, w, makeEnvironment(t, w, nil))
	// The others ask at once, each account for one: two places are left.
	var refused atomic.Int64
	var all sync.WaitGroup
	for range 6 {
		other := w.Account(t)
		in := environment.New()
		in.Name = "theirs"
		env, err := w.Environments.Create(t.Context(), other.Actor, in)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			_, err := w.Workspaces.Create(t.Context(), other.Actor, workspace.CreateInput{Name: "theirs", EnvironmentID: env.ID})
			switch r, _ := refusal.As(err); {
			case err == nil:
			case code(err) != refusal.FleetFull || r.RetryAfterSeconds() == 0:
				t.Error(err)
			default:
				refused.Add(1)
			}
		})
	}
	all.Wait()
	if n := refused.Load(); n != 4 {
		t.Errorf("%d of 6 were refused, with two places left", n)
	}
	// A wake takes a place too; what is parked has none.
	conn := w.Instance.Owner(t)
	if _, err := conn.Exec(t.Context(), "update machines set status = 'suspended', transition = '' where workspace_id = $1", first.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "update workspaces set status = 'ready' where id = $1", first.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "update operations set state = 'done' where workspace_id = $1", first.ID); err != nil {
		t.Fatal(err)
	}
	env := makeEnvironment(t, w, nil)
	if _, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: "in its place", EnvironmentID: env.ID}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Workspaces.Wake(t.Context(), w.Owner.Actor, first.ID)
	if r, _ := refusal.As(err); code(err) != refusal.FleetFull || r.RetryAfterSeconds() == 0 {
		t.Errorf("a wake: %v", err)
	}
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, first.ID); err != nil || got.MachineStatus != machine.Suspended || got.Transition != "" {
		t.Errorf("after it the machine is %s %s, %v", got.MachineStatus, got.Transition, err)
	}
}

func TestAnotherAccountSeesNothingOfAWorkspace(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t)
	ws := create(t, w, makeEnvironment(t, w, nil))
	stranger := w.Account(t).Actor
	ctx := t.Context()
	_, get := w.Workspaces.Get(ctx, stranger, ws.ID)
	_, patch := w.Workspaces.Patch(ctx, stranger, ws.ID, workspace.PatchInput{Metadata: &map[string]any{"a": "b"}})
	_, retry := w.Workspaces.Retry(ctx, stranger, ws.ID, workspace.RetryInput{})
	_, log := w.Workspaces.SetupLog(ctx, stranger, ws.ID)
	_, peek := w.Workspaces.Peek(ctx, stranger.TenantID, ws.ID)
	_, of := w.Workspaces.OfMachine(ctx, stranger.TenantID, *ws.SandboxID)
	remove := w.Workspaces.Delete(ctx, stranger, ws.ID)
	for i, err := range []error{get, patch, retry, log, peek, of, remove} {
		if code(err) != refusal.NotFound {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if _, err := w.Workspaces.Ensure(ctx, stranger.TenantID, ws.ID, workspace.Caller{}); code(err) != refusal.WorkspaceNotFound {
		t.Errorf("ensure: %v", err)
	}
	if list, err := w.Workspaces.List(ctx, stranger, true, input.Page{}); err != nil || len(list.Items) != 0 {
		t.Errorf("list: %+v %v", list, err)
	}
}

func TestOnlyTheMetadataOfAWorkspaceChanges(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t)
	ws := create(t, w, makeEnvironment(t, w, nil))
	asRead(t, w, ws)
	text := "other"
	for name, in := range map[string]workspace.PatchInput{
		"name": {Name: &text}, "environment_id": {EnvironmentID: &text}, "vault_id": {VaultID: &text}, "sandbox_provider": {SandboxProvider: &text},
	} {
		_, err := w.Workspaces.Patch(t.Context(), w.Owner.Actor, ws.ID, in)
		if r, _ := refusal.As(err); code(err) != refusal.WorkspaceFieldFixed || r.Fields["field"] != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := w.Workspaces.Patch(t.Context(), w.Owner.Actor, ws.ID, workspace.PatchInput{Metadata: &map[string]any{"team": "a"}})
	if err != nil || got.Metadata["team"] != "a" || got.Name != ws.Name {
		t.Errorf("%+v %v", got, err)
	}
	asRead(t, w, got)
}

// asRead compares the answer of a call that changes a workspace with what a read says right after it.
func asRead(t *testing.T, w *workspacetest.World, answered workspace.Workspace) {
	t.Helper()
	read, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, answered.ID)
	if err != nil || !reflect.DeepEqual(answered, read) {
		t.Errorf("answered\n%+v\nread right after it\n%+v\n%v", answered, read, err)
	}
}

func TestTheListPagesFromTheNewestOn(t *testing.T) {
	t.Parallel()
	w := workspacetest.Quiet(t)
	env := makeEnvironment(t, w, nil)
	var want []uuid.UUID
	for range 5 {
		want = append(want, create(t, w, env).ID)
	}
	slices.Reverse(want)
	implicit := implicitWorkspace(t, w, nil)
	var got []uuid.UUID
	page := input.Page{Limit: 2}
	for {
		list, err := w.Workspaces.List(t.Context(), w.Owner.Actor, false, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, ws := range list.Items {
			got = append(got, ws.ID)
		}
		if !list.HasMore {
			break
		}
		page.Cursor = list.Next
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	all, err := w.Workspaces.List(t.Context(), w.Owner.Actor, true, input.Page{})
	if err != nil || len(all.Items) != 6 || all.Items[0].ID != implicit || !all.Items[0].Implicit || all.Items[0].EnvironmentID != nil {
		t.Errorf("with implicit ones: %+v %v", all, err)
	}
}

// implicitWorkspace makes a conversation's own workspace.
func implicitWorkspace(t *testing.T, w *workspacetest.World, environmentID *uuid.UUID) uuid.UUID {
	t.Helper()
	var id uuid.UUID
	err := w.InTenant(t.Context(), w.Owner.TenantID, func(tx db.Tx) (err error) {
		id, err = w.Workspaces.CreateImplicitTx(t.Context(), tx, w.Owner.Actor, workspace.ImplicitInput{Name: "a conversation", EnvironmentID: environmentID})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnImplicitWorkspaceTellsItsConversationAndEndsWithIt(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, script("echo for the conversation"))
	id := implicitWorkspace(t, w, &env.ID)
	up, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, id, workspace.Caller{})
	if err != nil || !up.Implicit {
		t.Fatal(up, err)
	}
	var told []string
	text := ""
	for _, e := range w.Occupants.Stages() {
		if e.State == workspace.StagePrinted {
			text += strings.Join(e.Lines, "")
			continue
		}
		told = append(told, e.Step+" "+e.State)
	}
	want := []string{"machine started", "machine done", "broker started", "broker done", "environment started", "environment done", "packages started",
		"packages skipped", "repositories started", "repositories skipped", "setup_script started", "setup_script done"}
	if !slices.Equal(told, want) || !strings.Contains(text, "for the conversation\n") {
		t.Errorf("told %v\n%s", told, text)
	}
	if got := events[stream.SetupBody](t, w, stream.WorkspaceSetup, id); len(got) != 0 {
		t.Errorf("the account's stream has its lines: %+v", got)
	}
	for name, err := range map[string]error{
		"setup log": second(w.Workspaces.SetupLog(t.Context(), w.Owner.Actor, id)), "retry": second(w.Workspaces.Retry(t.Context(), w.Owner.Actor, id, workspace.RetryInput{})),
		"delete": w.Workspaces.Delete(t.Context(), w.Owner.Actor, id),
	} {
		if code(err) != refusal.ImplicitWorkspace {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.Environments.Delete(t.Context(), w.Owner.Actor, env.ID); code(err) != refusal.SourceInUse {
		t.Errorf("its environment: %v", err)
	}
	err = w.InTenant(t.Context(), w.Owner.TenantID, func(tx db.Tx) error {
		return w.Workspaces.EndImplicitTx(t.Context(), tx, w.Owner.TenantID, id)
	})
	if err != nil {
		t.Fatal(err)
	}
	gone(t, w, id)
	if len(w.Occupants.Terminated()) != 0 {
		t.Error("its conversation was ended twice")
	}
	if err := w.Environments.Delete(t.Context(), w.Owner.Actor, env.ID); err != nil {
		t.Errorf("its environment is still held: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// gone waits until a deleted workspace and its machines are.
func gone(t *testing.T, w *workspacetest.World, id uuid.UUID) {
	t.Helper()
	eventually(t, "the end of the workspace", func() bool {
		_, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, id)
		return code(err) == refusal.NotFound
	})
	infos, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelWorkspace: id.String()})
	if err != nil || len(infos) != 0 {
		t.Errorf("its machines: %v %v", infos, err)
	}
}

func TestRetryBuildsFromTheEnvironmentAsItIsThen(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, script("echo one; exit 7"))
	first := settled(t, w, create(t, w, env).ID)
	if first.Status != workspace.Failed {
		t.Fatalf("status %s", first.Status)
	}
	if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
		in.SetupScript = "echo two"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	again, err := w.Workspaces.Retry(t.Context(), w.Owner.Actor, first.ID, workspace.RetryInput{})
	if err != nil || again.Status != workspace.Provisioning || again.Error != nil || again.SetupID == first.SetupID {
		t.Fatalf("%+v %v", again, err)
	}
	if _, err := w.Workspaces.Retry(t.Context(), w.Owner.Actor, first.ID, workspace.RetryInput{}); code(err) != refusal.WorkspaceNotFailed {
		t.Errorf("a retry of a retry: %v", err)
	}
	ws := ready(t, w, first.ID)
	if *ws.SandboxID == *first.SandboxID || ws.Stale {
		t.Errorf("machine %s after %s, stale %v", ws.SandboxID, first.SandboxID, ws.Stale)
	}
	if got := setupLog(t, w, ws.ID)["setup_script"].Output; got != "two\n" {
		t.Errorf("the log says %q", got)
	}
	for _, e := range events[stream.SetupBody](t, w, stream.WorkspaceSetup, ws.ID) {
		if e.SetupID != ws.SetupID {
			t.Errorf("lines of the first setup are still there: %+v", e)
		}
	}
	if _, err := w.Workspaces.Retry(t.Context(), w.Owner.Actor, ws.ID, workspace.RetryInput{}); code(err) != refusal.WorkspaceNotFailed {
		t.Errorf("a retry of a ready one: %v", err)
	}
}

// Retry and prompts that arrive together start one setup; the prompts wait for it and end with its error.
func TestPromptsAndARetryTogetherStartOneSetup(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, script("sleep 1; echo broken; exit 7"))
	ws := settled(t, w, create(t, w, env).ID)
	machines := count(t, w, "machines")
	var wg sync.WaitGroup
	errs := make([]error, 6)
	waited := make([][]workspace.Waiting, len(errs))
	for i := range errs {
		wg.Go(func() {
			if i == 3 {
				_, errs[i] = w.Workspaces.Retry(t.Context(), w.Owner.Actor, ws.ID, workspace.RetryInput{})
				return
			}
			_, errs[i] = w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{Progress: func(x workspace.Waiting) { waited[i] = append(waited[i], x) }})
		})
	}
	wg.Wait()
	if got := count(t, w, "machines"); got != machines+1 {
		t.Errorf("%d machines were made, want one", got-machines)
	}
	for i, err := range errs {
		if i == 3 {
			if err != nil && code(err) != refusal.WorkspaceNotFailed {
				t.Errorf("retry: %v", err)
			}
			continue
		}
		r, _ := refusal.As(err)
		if code(err) != refusal.SetupFailed || r.Fields["step"] != "setup_script" || *r.Fields["exit_code"].(*int) != 7 || r.Fields["output_tail"] != "broken" {
			t.Errorf("prompt %d: %v", i, err)
		}
		if len(waited[i]) == 0 || waited[i][len(waited[i])-1] != (workspace.Waiting{For: "setup", Step: "setup_script"}) {
			t.Errorf("prompt %d waited for %+v", i, waited[i])
		}
	}
}

func count(t *testing.T, w *workspacetest.World, table string) (n int) {
	t.Helper()
	if err := w.Instance.Owner(t).QueryRow(t.Context(), "select count(*) from "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAPromptWaitsForTheSetupAndGetsTheMachine(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, func(in *environment.Input) {
		in.SetupScript, in.EnvVars = "sleep 1; touch ~/made", map[string]string{"A": "as built"}
	})
	ws := create(t, w, env)
	if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
		in.EnvVars = map[string]string{"A": "as now"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	up, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	if up.Vars["A"] != "as now" || up.Policy.Type != "unrestricted" || up.Trust["GIT_SSL_CAINFO"] == "" || up.ReadyAt.IsZero() {
		t.Errorf("%+v", up)
	}
	if got := run(t, w, ws.ID, "ls ~"); got != "made\n" {
		t.Errorf("the machine has %q", got)
	}
}

func TestDeleteFromEveryStatus(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	slow := makeEnvironment(t, w, script("sleep 600"))
	running := create(t, w, slow)
	eventually(t, "the script", func() bool {
		ws, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, running.ID)
		return err == nil && ws.SetupStep == "setup_script"
	})
	failed := settled(t, w, create(t, w, makeEnvironment(t, w, script("exit 1"))).ID)
	up := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	parked := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	if err := w.Provider.Stop(t.Context(), "mg-"+parked.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	fresh := create(t, w, makeEnvironment(t, w, nil))
	for _, ws := range []workspace.Workspace{running, failed, up, parked, fresh} {
		if err := w.Workspaces.Delete(t.Context(), w.Owner.Actor, ws.ID); err != nil {
			t.Errorf("from %s: %v", ws.Status, err)
		}
		if err := w.Workspaces.Delete(t.Context(), w.Owner.Actor, ws.ID); err != nil && code(err) != refusal.NotFound {
			t.Errorf("again from %s: %v", ws.Status, err)
		}
	}
	for _, ws := range []workspace.Workspace{running, failed, up, parked, fresh} {
		gone(t, w, ws.ID)
		if !slices.Contains(w.Occupants.Terminated(), ws.ID) {
			t.Errorf("the conversations of the one that was %s go on", ws.Status)
		}
		all := events[workspace.StatusBody](t, w, stream.WorkspaceStatus, ws.ID)
		if n := len(all); n < 2 || all[n-1].Status != workspace.Deleted || all[n-2].Status != workspace.Deleting {
			t.Errorf("the stream ends with %+v", all[max(0, n-2):])
		}
	}
	if err := w.Environments.Delete(t.Context(), w.Owner.Actor, slow.ID); err != nil {
		t.Errorf("its environment is still held: %v", err)
	}
	// The name is free again.
	if _, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: up.Name, EnvironmentID: *up.EnvironmentID}); err != nil {
		t.Error(err)
	}
}

func TestStaleNamesTheFieldsThatChangedAndClearsWhenTheyAreBack(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	env := makeEnvironment(t, w, func(in *environment.Input) { in.EnvVars = map[string]string{"A": "1"} })
	ws, other := ready(t, w, create(t, w, env).ID), ready(t, w, create(t, w, env).ID)
	seen := len(events[workspace.StatusBody](t, w, stream.WorkspaceStatus, ws.ID))
	check := func(what string, edit func(*environment.Input), event bool, want ...string) {
		t.Helper()
		if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error { edit(in); return nil }); err != nil {
			t.Fatal(err)
		}
		got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
		if err != nil || !slices.Equal(got.ChangedFields, want) || got.Stale != (len(want) > 0) {
			t.Errorf("%s: changed fields %v, stale %v, %v; want %v", what, got.ChangedFields, got.Stale, err, want)
		}
		all := events[workspace.StatusBody](t, w, stream.WorkspaceStatus, ws.ID)
		if added := len(all) - seen; added != map[bool]int{true: 1}[event] {
			t.Errorf("%s: %d events", what, added)
		} else if event && (!slices.Equal(all[len(all)-1].ChangedFields, want) || all[len(all)-1].Stale != (len(want) > 0)) {
			t.Errorf("%s: the event says %+v", what, all[len(all)-1])
		}
		seen = len(all)
	}
	none := []string{}
	as := func(edits ...func(*environment.Input)) func(*environment.Input) { // the environment as it was built, edited
		return func(in *environment.Input) {
			name, metadata := in.Name, in.Metadata
			*in = env.Input
			in.Name, in.Metadata = name, metadata
			for _, edit := range edits {
				edit(in)
			}
		}
	}
	check("its name", func(in *environment.Input) { in.Name = "another name" }, false, none...)
	check("its metadata", func(in *environment.Input) { in.Metadata = map[string]any{"x": "y"} }, false, none...)
	if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env.ID, environment.SecretInput{Key: "S", Value: secret.New("a secret value")}); err != nil {
		t.Fatal(err)
	}
	check("a secret", func(*environment.Input) {}, false, none...)
	for field, edit := range map[string]func(*environment.Input){
		"repositories": func(in *environment.Input) {
			in.Repositories = []environment.Repository{{URL: "https://example.com/a.git", MountPath: "/home/sprite/a"}}
		},
		"packages":              func(in *environment.Input) { in.Packages.Apt = []string{"ripgrep"} },
		"setup_script":          func(in *environment.Input) { in.SetupScript = "true" },
		"setup_timeout_seconds": func(in *environment.Input) { in.SetupTimeoutSeconds++ },
		"env_vars":              func(in *environment.Input) { in.EnvVars = map[string]string{"A": "2"} },
		"networking_type":       func(in *environment.Input) { in.NetworkingType = "limited" },
		"networking_config": func(in *environment.Input) {
			in.NetworkingConfig.AllowedHosts = []string{"example.com"}
		},
	} {
		check(field, as(edit), true, field)
		check(field+" put back", as(), true, none...)
	}
	check("a value", func(in *environment.Input) { in.EnvVars = map[string]string{"A": "2"} }, true, "env_vars")
	check("the value again", func(in *environment.Input) { in.EnvVars = map[string]string{"A": "3"} }, true, "env_vars")
	check("another field too", func(in *environment.Input) { in.SetupScript = "true" }, true, "setup_script", "env_vars")
	// Each workspace of the environment tells its own: what the other one was built from is another moment's.
	if _, err := w.Workspaces.Rebuild(t.Context(), w.Owner.Actor, other.ID, workspace.RebuildInput{}); err != nil {
		t.Fatal(err)
	}
	ready(t, w, other.ID)
	check("one field back", func(in *environment.Input) { in.SetupScript = "" }, true, "env_vars")
	all := events[workspace.StatusBody](t, w, stream.WorkspaceStatus, other.ID)
	if got := all[len(all)-1]; !slices.Equal(got.ChangedFields, []string{"setup_script"}) {
		t.Errorf("the other one says %+v", got)
	}
}

func TestAMachineThatStoppedIsStartedAgainOnceForTwoPrompts(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, script("echo kept > ~/file"))).ID)
	ref := "mg-" + ws.SandboxID.String()
	up, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, ws.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Guest.WriteRootFile(t.Context(), guest.CABundle, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := w.Provider.Stop(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	// A read says what it is, and never wakes it.
	_, err = w.Workspaces.Peek(t.Context(), w.Owner.TenantID, ws.ID)
	if r, _ := refusal.As(err); code(err) != refusal.SandboxNotReady || r.Fields["status"] != "suspended" {
		t.Errorf("a read: %v", err)
	}
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID); err != nil || got.Status != workspace.Ready || got.MachineStatus != machine.Suspended {
		t.Errorf("status %s, machine %s, %v", got.Status, got.MachineStatus, err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			up, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{})
			if err != nil || up.MachineID != *ws.SandboxID {
				t.Errorf("%+v %v", up, err)
			}
		})
	}
	wg.Wait()
	if got := run(t, w, ws.ID, "cat ~/file; grep -c BEGIN /etc/ssl/certs/managoat-ca.pem"); !strings.HasPrefix(got, "kept\n") || got == "kept\n0\n" {
		t.Errorf("the disk has %q", got)
	}
	var wakes int
	if err := w.Instance.Owner(t).QueryRow(t.Context(), "select count(*) from operations where kind = 'wake'").Scan(&wakes); err != nil || wakes != 1 {
		t.Errorf("%d wakes, %v", wakes, err)
	}
}

func TestAMachineThatItsProviderLostIsBuiltAgainByTheNextPrompt(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, script("echo built"))).ID)
	if err := w.Provider.Destroy(t.Context(), "mg-"+ws.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	// The connection to its guest ends when the kernel has ended its processes.
	eventually(t, "a read of a lost machine", func() bool {
		_, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, ws.ID)
		r, _ := refusal.As(err)
		return code(err) == refusal.SandboxNotReady && r.Fields["status"] == "lost"
	})
	up, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{})
	if err != nil || up.MachineID == *ws.SandboxID {
		t.Errorf("%+v %v", up, err)
	}
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID); err != nil || got.Status != workspace.Ready || got.MachineStatus != machine.Ready || *got.SandboxID != up.MachineID {
		t.Errorf("%+v %v", got, err)
	}
}

// A provider that is not offered any more: no prompt runs, nothing is touched, a delete waits for its return.
func TestADisabledProviderRunsNothingAndLosesNothing(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	w.Server.Stop()
	host := w.Host
	host.Disabled = true
	off := w.Start(t, host)
	off.Run(t)
	if _, err := off.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{}); code(err) != refusal.ProviderDisabled {
		t.Errorf("a prompt: %v", err)
	}
	if _, err := off.Workspaces.Peek(t.Context(), w.Owner.TenantID, ws.ID); code(err) != refusal.SandboxNotReady {
		t.Errorf("a read: %v", err)
	}
	if err := off.Workspaces.Delete(t.Context(), w.Owner.Actor, ws.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the delete to say why it waits", func() bool {
		got, err := off.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
		return err == nil && got.Status == workspace.Deleting && strings.Contains(got.WaitingReason, sandboxtest.Name())
	})
	if info, err := w.Provider.Inspect(t.Context(), "mg-"+ws.SandboxID.String()); err != nil || info.State != sandbox.Running {
		t.Errorf("the machine is %+v, %v", info, err)
	}
}

// A machine that fills its disk later is parked with the reason, and the next prompt starts it with room to delete in.
func TestAMachineWhoseDiskIsFullIsParkedAndSaysSo(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Limits = sandbox.Limits{DiskBytes: 64 << 20} })
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, nil)).ID)
	up, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{})
	if err != nil {
		t.Fatal(err)
	}
	fill := guest.Exec{ID: "fill", Argv: []string{"bash", "-c", "head -c 150000000 /dev/urandom > ~/big; sync ~/big; sleep 600"}, User: guest.Sprite, Spool: guest.SpoolLog}
	if err := up.Guest.Start(t.Context(), fill); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the machine to be parked", func() bool {
		got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID)
		return err == nil && got.MachineStatus == machine.Suspended && got.Transition == "" && strings.Contains(got.WaitingReason, "disk_full")
	})
	if _, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{}); err != nil {
		t.Fatal(err)
	}
	// It is over its limit still, and runs: there must be time to delete.
	for range 3 {
		if err := w.Machines.Found(t.Context(), w.Owner.TenantID, *ws.SandboxID); err != nil {
			t.Fatal(err)
		}
	}
	run(t, w, ws.ID, "rm ~/big")
	if got, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, ws.ID); err != nil || got.MachineStatus != machine.Ready || got.WaitingReason != "" {
		t.Errorf("%+v %v", got, err)
	}
}
