package workspace_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/testworld"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
	"managoat/sandbox/sandboxtest"
)

// nosyPackage writes whatever its installation finds where it stays.
var nosyPackage = testworld.DebianPackage{
	Name:     "managoat-nosy",
	Postinst: "#!/bin/sh\n{ env; cat /home/sprite/.env /home/sprite/.managoat/* /proc/*/environ; } > /usr/share/managoat-nosy 2>/dev/null || true\n",
}

const greetings = "hello from a Debian package\nhello from an npm package\n"

// layers are those that are kept of an account, the newest first.
func layers(t *testing.T, w *workspacetest.World, account uuid.UUID) []sandbox.Layer {
	t.Helper()
	all, err := w.Provider.(sandbox.Layers).ListLayers(t.Context(), map[string]string{sandbox.LabelInstance: w.Host.Instance, sandbox.LabelTenant: account.String()})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// newLayer waits for a layer that is none of those before.
func newLayer(t *testing.T, w *workspacetest.World, account uuid.UUID, before ...sandbox.Layer) (l sandbox.Layer) {
	t.Helper()
	eventually(t, "a layer", func() bool {
		all := layers(t, w, account)
		i := slices.IndexFunc(all, func(l sandbox.Layer) bool {
			return !slices.ContainsFunc(before, func(b sandbox.Layer) bool { return b.ID == l.ID })
		})
		if i >= 0 {
			l = all[i]
		}
		return i >= 0
	})
	return l
}

// cached is what the note of the step packages begins with when it installed nothing.
const cached = "cached"

// installed says what the step packages of a workspace's setup did.
func installed(t *testing.T, w *workspacetest.World, ws workspace.Workspace, want string) {
	t.Helper()
	if got := setupLog(t, w, ws.ID)["packages"].Note; got != want && !(want == cached && strings.HasPrefix(got, "cached, ")) {
		t.Errorf("the packages were %q, want %q", got, want)
	}
}

// A package that writes down all it sees while it is installed finds no variable and no secret, and neither does anybody
// in the layer.
func TestTheSecondSetupInstallsNothingAndALayerHoldsNoSecret(t *testing.T) {
	t.Parallel()
	sandboxtest.Needs(t, sandboxtest.Local, "it keeps what was installed")
	w := workspacetest.New(t)
	w.Outside.Debian.Add(nosyPackage)
	const variable, hidden, vaulted = "variable-5b8e1f", "environment-secret-77c1d2", "vault-secret-0e94aa"
	packages := environment.Packages{Apt: []string{nosyPackage.Name, "managoat-hello"}, Npm: []string{"managoat-greet"}}
	script := "managoat-hello && managoat-greet && test \"$HIDDEN$VAULTED\" = " + hidden + vaulted + " && grep -c = ~/.env && sudo touch /usr/share/of-the-script"
	env := makeEnvironment(t, w, func(in *environment.Input) {
		in.Packages, in.SetupScript, in.EnvVars = packages, script, map[string]string{"PLAIN": variable}
	})
	if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env.ID, environment.SecretInput{Key: "HIDDEN", Value: secret.New(hidden)}); err != nil {
		t.Fatal(err)
	}
	v, err := w.Vaults.Create(t.Context(), w.Owner.Actor, vault.Input{Name: "vault"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Vaults.PutSecret(t.Context(), w.Owner.Actor, v.ID, vault.SecretInput{Key: "VAULTED", Value: secret.New(vaulted)}); err != nil {
		t.Fatal(err)
	}
	make := func() workspace.Workspace {
		ws, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: "ws " + uuid.NewString(), EnvironmentID: env.ID, VaultID: &v.ID})
		if err != nil {
			t.Fatal(err)
		}
		ws = ready(t, w, ws.ID)
		if got := setupLog(t, w, ws.ID)["setup_script"].Output; got != greetings+"3\n" {
			t.Errorf("the script printed %q", got)
		}
		return ws
	}
	installed(t, w, make(), "apt 2, npm 1")
	layer := newLayer(t, w, w.Owner.TenantID)

	asked := len(w.Outside.Debian.Requests()) + len(w.Outside.NPM.Requests())
	// Nor does the order of packages matter, or anything of the environment that comes after them.
	slices.Reverse(packages.Apt)
	if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
		in.Packages, in.SetupTimeoutSeconds = packages, 300
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	second := make()
	installed(t, w, second, cached)
	if n := len(w.Outside.Debian.Requests()) + len(w.Outside.NPM.Requests()); n != asked {
		t.Errorf("the second setup asked the registries %d times", n-asked)
	}
	// Package managers know what lies in the layer, and replace it.
	run(t, w, second.ID, "dpkg-query -W managoat-hello managoat-nosy && npm ls -g --prefix /usr/local | grep managoat-greet@1.0.0")
	w.Outside.NPM.Add(testworld.NPMPackage{Name: "managoat-greet", Version: "2.0.0", Bin: testworld.GreetPackage.Bin, Files: testworld.Files{"greet.js": "#!/usr/bin/env node\nconsole.log('newer')\n"}})
	w.Outside.Debian.Add(testworld.DebianPackage{Name: "managoat-hello", Version: "2.0", Files: testworld.Files{"usr/bin/managoat-hello": "#!/bin/sh\necho newer\n"}})
	if _, err := w.Environments.Update(t.Context(), w.Owner.Actor, env.ID, func(in *environment.Input) error {
		in.SetupScript = "{ sudo npm install -g --prefix /usr/local managoat-greet@2.0.0 && sudo apt-get update && sudo apt-get install -y managoat-hello; } >/dev/null && managoat-hello && managoat-greet"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	third := ready(t, w, create(t, w, env).ID)
	installed(t, w, third, cached)
	if got := setupLog(t, w, third.ID)["setup_script"].Output; got != "newer\nnewer\n" {
		t.Errorf("what is installed over a layer is not there: %q", got)
	}

	dir := filepath.Join(w.Host.Machines, "layers", layer.ID)
	files := 0
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		data, err := os.ReadFile(name)
		for _, word := range []string{variable, hidden, vaulted, "BEGIN CERTIFICATE"} {
			if bytes.Contains(data, []byte(word)) {
				t.Errorf("%s holds %q", name, word)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if files < 10 {
		t.Errorf("the layer holds %d files", files)
	}
	for _, name := range []string{"root/home", "root/root", "root/tmp", "root/run", "root/etc/hostname", "root/var/cache/apt", "usr/share/of-the-script"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("the layer holds %s", name)
		}
	}
}

func TestALayerComesFromASetupThatSucceedsAndIsItsAccountsAlone(t *testing.T) {
	t.Parallel()
	sandboxtest.Needs(t, sandboxtest.Local, "it keeps what was installed")
	w := workspacetest.New(t)
	begin := func(actor tenant.Actor, fresh bool, script string) workspace.Workspace {
		t.Helper()
		in := environment.New()
		in.Name, in.SetupScript = "env "+uuid.NewString(), script
		in.Packages = environment.Packages{Apt: []string{"managoat-hello"}, Npm: []string{"managoat-greet"}}
		env, err := w.Environments.Create(t.Context(), actor, in)
		if err != nil {
			t.Fatal(err)
		}
		ws, err := w.Workspaces.Create(t.Context(), actor, workspace.CreateInput{Name: "ws " + uuid.NewString(), EnvironmentID: env.ID, Fresh: fresh})
		if err != nil {
			t.Fatal(err)
		}
		return ws
	}
	owner, account := w.Owner.Actor, w.Owner.TenantID
	const greet = "managoat-hello && managoat-greet"

	// One that fails after its packages leaves nothing. Its retry does.
	failed := settled(t, w, begin(owner, false, "test -e /nothing").ID)
	if failed.Status != workspace.Failed || failed.Error.Step != "setup_script" {
		t.Fatalf("status %s, error %+v", failed.Status, failed.Error)
	}
	if all := layers(t, w, account); len(all) != 0 {
		t.Errorf("a failed setup left a layer: %+v", all)
	}
	if _, err := w.Environments.Update(t.Context(), owner, *failed.EnvironmentID, func(in *environment.Input) error {
		in.SetupScript = greet
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Workspaces.Retry(t.Context(), owner, failed.ID, workspace.RetryInput{}); err != nil {
		t.Fatal(err)
	}
	installed(t, w, ready(t, w, failed.ID), "apt 1, npm 1")
	first := newLayer(t, w, account)
	user := ready(t, w, begin(owner, false, greet).ID)
	installed(t, w, user, cached)

	// Another account installs its own. Fresh installs anew, and takes the layer's place but for the machine on it.
	stranger := w.Account(t)
	theirs := begin(stranger.Actor, false, greet)
	fresh := begin(owner, true, greet)
	installed(t, w, ready(t, w, fresh.ID), "apt 1, npm 1")
	newer := newLayer(t, w, account, first)
	if newer.Name != first.Name {
		t.Errorf("the fresh layer has another name: %+v, %+v", newer, first)
	}
	if i := slices.IndexFunc(layers(t, w, account), func(l sandbox.Layer) bool { return l.ID == first.ID && l.Machines == 1 }); i < 0 {
		t.Errorf("the layer under a machine is gone: %+v", layers(t, w, account))
	}
	if got := run(t, w, user.ID, greet); got != greetings {
		t.Errorf("the machine on the older layer says %q", got)
	}
	newLayer(t, w, stranger.TenantID)
	log, err := w.Workspaces.SetupLog(t.Context(), stranger.Actor, theirs.ID)
	if err != nil || log.Steps[3].Note != "apt 1, npm 1" {
		t.Errorf("another account's packages were %+v %v", log.Steps, err)
	}
	if left, err := filepath.Glob(filepath.Join(w.Host.Machines, "layers", "*", "layer.json")); err != nil || len(left) < 3 {
		t.Errorf("layers on disk: %v %v", left, err)
	}

	// What an account leaves behind goes with it.
	if _, err := w.Instance.Owner(t).Exec(t.Context(), "delete from tenants where tenant_id = $1", stranger.TenantID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the account's layer", func() bool {
		if err := w.Machines.Reap(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(layers(t, w, stranger.TenantID)) == 0
	})
	if len(layers(t, w, account)) != 2 {
		t.Error("another account's layers went as well")
	}
}

// What is installed depends on more than the packages' names; what comes after them is not among it.
func TestALayerIsNamedByAllThatItsPackagesDependOn(t *testing.T) {
	t.Parallel()
	account := uuid.New()
	name := func(account uuid.UUID, npm string, change func(*environment.Environment)) string {
		env := environment.Environment{Input: environment.New()}
		env.Packages = environment.Packages{Apt: []string{"git", "jq"}, Npm: []string{"typescript"}}
		change(&env)
		return workspace.LayerName(account, env, workspace.Options{NPMRegistry: npm})
	}
	want := name(account, "", func(*environment.Environment) {})
	for what, got := range map[string]string{
		"the order of packages": name(account, "", func(e *environment.Environment) { slices.Reverse(e.Packages.Apt) }),
		"the script": name(account, "", func(e *environment.Environment) {
			e.SetupScript, e.EnvVars, e.Repositories = "make", map[string]string{"A": "b"}, []environment.Repository{{URL: "https://example.com/a"}}
		}),
	} {
		if got != want {
			t.Errorf("%s changes the name", what)
		}
	}
	for what, got := range map[string]string{
		"another account":       name(uuid.New(), "", func(*environment.Environment) {}),
		"another registry":      name(account, "https://npm.example.com", func(*environment.Environment) {}),
		"one package more":      name(account, "", func(e *environment.Environment) { e.Packages.Pip = []string{"uvicorn"} }),
		"a version":             name(account, "", func(e *environment.Environment) { e.Packages.Npm = []string{"typescript@5"} }),
		"another manager":       name(account, "", func(e *environment.Environment) { e.Packages.Npm, e.Packages.Pip = nil, []string{"typescript"} }),
		"limited networking":    name(account, "", func(e *environment.Environment) { e.NetworkingType = "limited" }),
		"a host that is let in": name(account, "", func(e *environment.Environment) { e.NetworkingConfig.AllowedHosts = []string{"example.com"} }),
	} {
		if got == want {
			t.Errorf("%s does not change the name", what)
		}
	}
	if got := name(account, "", func(e *environment.Environment) { e.Packages = environment.Packages{} }); got != "" {
		t.Errorf("no packages have the name %q", got)
	}
	for d, want := range map[time.Duration]string{14*24*time.Hour + time.Hour: "14 days", 25 * time.Hour: "1 day", 90 * time.Minute: "1 hour", 2 * time.Minute: "2 minutes", 0: "less than a minute"} {
		if got := workspace.Old(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
