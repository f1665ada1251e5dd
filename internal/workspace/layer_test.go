package workspace_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/testworld"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
)

// nosyPackage writes whatever its installation finds where it stays.
var nosyPackage = testworld.DebianPackage{
	Name:     "managoat-nosy",
	Postinst: "#!/bin/sh\n{ env; cat /home/sprite/.env /home/sprite/.managoat/* /proc/*/environ; } > /usr/share/managoat-nosy 2>/dev/null || true\n",
}

// packaged is an environment with packages of every account of the test, whose script runs a command of each.
func packaged(in *environment.Input) {
	in.Name = "packaged " + uuid.NewString()
	in.Packages = environment.Packages{Apt: []string{"managoat-hello"}, Npm: []string{"managoat-greet"}}
	in.SetupScript = "managoat-hello && managoat-greet"
}

const greetings = "hello from a Debian package\nhello from an npm package\n"

// layers are those that are kept of an account, the newest first.
func layers(t *testing.T, w *workspacetest.World, account uuid.UUID) []sandbox.Layer {
	t.Helper()
	all, err := w.Provider.ListLayers(t.Context(), map[string]string{sandbox.LabelInstance: w.Host.Instance, sandbox.LabelTenant: account.String()})
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

// installed says what the step packages of a workspace's setup did.
func installed(t *testing.T, w *workspacetest.World, ws workspace.Workspace, want string) {
	t.Helper()
	if got := setupLog(t, w, ws.ID)["packages"].Note; got != want {
		t.Errorf("the packages were %q, want %q", got, want)
	}
}

// A package that writes down all it sees while it is installed finds no variable and no secret, and neither does anybody
// in the layer.
func TestTheSecondSetupInstallsNothingAndALayerHoldsNoSecret(t *testing.T) {
	t.Parallel()
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
	installed(t, w, second, "cached, less than a minute old")
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
	installed(t, w, third, "cached, less than a minute old")
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

func TestALayerIsReplacedWhenAskedAndNeverUsedByOthers(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	make := func(actor tenant.Actor, fresh bool, change func(*environment.Input)) workspace.Workspace {
		t.Helper()
		in := environment.New()
		packaged(&in)
		change(&in)
		env, err := w.Environments.Create(t.Context(), actor, in)
		if err != nil {
			t.Fatal(err)
		}
		ws, err := w.Workspaces.Create(t.Context(), actor, workspace.CreateInput{Name: "ws " + uuid.NewString(), EnvironmentID: env.ID, Fresh: fresh})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of the setup", func() bool {
			if ws, err = w.Workspaces.Get(t.Context(), actor, ws.ID); err != nil {
				t.Fatal(err)
			}
			return ws.Status != workspace.Provisioning
		})
		return ws
	}
	owner, account := w.Owner.Actor, w.Owner.TenantID
	same := func(*environment.Input) {}

	// A setup that fails after its packages leaves none. Its retry makes one.
	failed := make(owner, false, func(in *environment.Input) { in.SetupScript = "test -e /nothing" })
	if failed.Status != workspace.Failed || failed.Error.Step != "setup_script" {
		t.Fatalf("status %s, error %+v", failed.Status, failed.Error)
	}
	making := func() []string {
		names, err := filepath.Glob(filepath.Join(w.Host.Machines, "making", "layer-*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if all := layers(t, w, account); len(all) != 0 {
		t.Errorf("a failed setup left a layer: %+v", all)
	}
	if _, err := w.Environments.Update(t.Context(), owner, *failed.EnvironmentID, func(in *environment.Input) error {
		in.SetupScript = ""
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Workspaces.Retry(t.Context(), owner, failed.ID, workspace.RetryInput{Fresh: true}); err != nil {
		t.Fatal(err)
	}
	installed(t, w, ready(t, w, failed.ID), "apt 1, npm 1")
	first := newLayer(t, w, account)

	user := make(owner, false, same)
	installed(t, w, user, "cached, less than a minute old")

	// Not for other packages, other networking, other accounts.
	installed(t, w, make(owner, false, func(in *environment.Input) { in.Packages.Npm = nil; in.SetupScript = "" }), "apt 1")
	installed(t, w, make(owner, false, func(in *environment.Input) {
		in.NetworkingType, in.NetworkingConfig.AllowedHosts = "limited", []string{w.Outside.Debian.Host, w.Outside.NPM.Host}
	}), "apt 1, npm 1")
	stranger := w.Account(t)
	theirs := make(stranger.Actor, false, same)
	log, err := w.Workspaces.SetupLog(t.Context(), stranger.Actor, theirs.ID)
	if err != nil || log.Steps[3].Note != "apt 1, npm 1" {
		t.Errorf("another account's packages were %+v %v", log.Steps, err)
	}

	// Fresh installs anew, and what it installed takes the layer's place, which stays for the machine on it.
	before := layers(t, w, account)
	installed(t, w, make(owner, true, same), "apt 1, npm 1")
	newer := newLayer(t, w, account, before...)
	if newer.Name != first.Name {
		t.Errorf("the fresh layer has another name: %+v, %+v", newer, first)
	}
	if i := slices.IndexFunc(layers(t, w, account), func(l sandbox.Layer) bool { return l.ID == first.ID && l.Machines == 1 }); i < 0 {
		t.Errorf("the layer under a machine is gone: %+v", layers(t, w, account))
	}
	if got := run(t, w, user.ID, "managoat-hello; managoat-greet"); got != greetings {
		t.Errorf("the machine on the older layer says %q", got)
	}

	// One that lost a file is installed over.
	if err := os.Remove(filepath.Join(w.Host.Machines, "layers", newer.ID, "usr/bin/managoat-hello")); err != nil {
		t.Fatal(err)
	}
	before = layers(t, w, account)
	installed(t, w, make(owner, false, same), "apt 1, npm 1")
	mended := newLayer(t, w, account, before...)
	eventually(t, "the end of the broken layer", func() bool {
		return !slices.ContainsFunc(layers(t, w, account), func(l sandbox.Layer) bool { return l.ID == newer.ID })
	})
	installed(t, w, make(owner, false, same), "cached, less than a minute old")
	if mended.Name != first.Name {
		t.Errorf("the mended layer has another name: %+v", mended)
	}
	eventually(t, "the end of what was copied for nothing", func() bool { return len(making()) == 0 })

	// What an account leaves behind goes with it.
	if _, err := w.Instance.Owner(t).Exec(t.Context(), "delete from tenants where tenant_id = $1", stranger.TenantID); err != nil {
		t.Fatal(err)
	}
	for len(layers(t, w, stranger.TenantID)) > 0 {
		if err := w.Machines.Reap(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(layers(t, w, account)) == 0 {
		t.Error("another account's layers went as well")
	}
}
