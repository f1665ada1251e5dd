package workspace_test

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"managoat/internal/environment"
	"managoat/internal/secret"
	"managoat/internal/testworld"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
)

func repositories(all ...environment.Repository) func(*environment.Input) {
	return func(in *environment.Input) { in.Repositories = all }
}

func TestRepositoriesAreClonedAtTheirRefIntoTheirPlace(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	shop := w.Outside.Git.Add("shop", testworld.Shop)
	shop.Tag("v1", "main")
	feature := shop.Commit("feature/x", "A feature", testworld.Files{"feature.txt": "on the branch\n"})
	shop.Commit("feature/x", "More", testworld.Files{"feature.txt": "further on\n"})
	empty := w.Outside.Git.Add("other", testworld.Files{"README": "other\n"})

	ws := ready(t, w, create(t, w, makeEnvironment(t, w, repositories(
		environment.Repository{URL: shop.URL, MountPath: "/home/sprite/shop"},
		environment.Repository{URL: shop.URL, MountPath: "/srv/deep/branch", Ref: "feature/x"},
		environment.Repository{URL: shop.URL, MountPath: "/work tree/tag", Ref: "v1"},
		environment.Repository{URL: shop.URL, MountPath: "/home/sprite/a/b/commit", Ref: feature},
		environment.Repository{URL: empty.URL, MountPath: "/home/sprite/other"},
	))).ID)
	for command, want := range map[string]string{
		"git -C ~/shop status -sb | head -1":                              "## main...origin/main\n",
		"git -C /srv/deep/branch status -sb | head -1":                    "## feature/x...origin/feature/x\n",
		"cat /srv/deep/branch/feature.txt":                                "further on\n",
		"git -C '/work tree/tag' describe --tags":                         "v1\n",
		"git -C '/work tree/tag' symbolic-ref -q HEAD || echo detached":   "detached\n",
		"cat ~/a/b/commit/feature.txt":                                    "on the branch\n",
		"stat -c %U /srv/deep/branch /srv/deep/branch/.git /srv ~/a":      "sprite\nsprite\nroot\nsprite\n",
		"touch /srv/deep/branch/new && git -C /srv/deep/branch status -s": "?? new\n",
		"ls -A ~/other": ".git\nREADME\n",
	} {
		if got := run(t, w, ws.ID, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if got := setupLog(t, w, ws.ID)["repositories"]; got.Note != "5 repositories" || !strings.Contains(got.Output, "Cloning "+shop.URL+" at v1 into /work tree/tag") {
		t.Errorf("the step says %q and printed %q", got.Note, got.Output)
	}
}

// The token opens the repository and is nowhere to be found afterwards, nor in what is said when it fails.
func TestACloneNeverShowsItsToken(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	const token = "s3cret-token-of-the-repository"
	private := w.Outside.Git.Add("private", testworld.Files{"README": "private\n"})
	private.RequireToken(token)
	wrong := w.Outside.Git.Add("wrong", testworld.Files{"README": "wrong\n"})
	wrong.RequireToken("another")
	host := w.Outside.Git.Host

	with := func(r environment.Repository, value string) environment.Environment {
		r.MountPath = "/home/sprite/repo"
		env := makeEnvironment(t, w, repositories(r))
		if value != "" {
			if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env.ID, environment.SecretInput{Key: "GIT_TOKEN", Value: secret.New(value)}); err != nil {
				t.Fatal(err)
			}
		}
		return env
	}
	good := ready(t, w, create(t, w, with(environment.Repository{URL: private.URL, SecretKey: "GIT_TOKEN"}, token)).ID)
	found := run(t, w, good.ID, `cd ~/repo && cat README && git remote -v && cat .git/config && grep -rl s3cret . ~/.gitconfig ~/.git-credentials /etc/gitconfig /tmp 2>/dev/null; true`)
	if !strings.HasPrefix(found, "private\norigin\t"+private.URL+" (fetch)") || strings.Contains(found, "./") {
		t.Errorf("in the machine: %q", found)
	}
	for name, c := range map[string]struct {
		repo  environment.Repository
		value string
		want  string
	}{
		"a wrong token":           {environment.Repository{URL: wrong.URL, SecretKey: "GIT_TOKEN"}, token, "Authentication failed"},
		"no token":                {environment.Repository{URL: private.URL}, "", "could not read Username"},
		"a secret that is not":    {environment.Repository{URL: private.URL, SecretKey: "MISSING"}, token, `"MISSING"`},
		"a ref that is not":       {environment.Repository{URL: private.URL, SecretKey: "GIT_TOKEN", Ref: "no/such"}, token, "no branch, tag or commit no/such"},
		"a commit that is not":    {environment.Repository{URL: private.URL, SecretKey: "GIT_TOKEN", Ref: strings.Repeat("a1", 20)}, token, "no branch, tag or commit a1a1"},
		"a repository that isn't": {environment.Repository{URL: "https://" + host + "/nothing.git", SecretKey: "GIT_TOKEN"}, token, "not found"},
		"a host that is not":      {environment.Repository{URL: "https://nowhere.test/x.git", SecretKey: "GIT_TOKEN"}, token, "fatal: unable to access"},
	} {
		ws := settled(t, w, create(t, w, with(c.repo, c.value)).ID)
		if ws.Status != workspace.Failed || ws.Error.Step != "repositories" || !strings.Contains(ws.Error.Message+ws.Error.OutputTail, c.want) {
			t.Errorf("%s: status %s, error %+v", name, ws.Status, ws.Error)
		}
	}
	// Nothing that is kept holds it in any form.
	var kept strings.Builder
	conn := w.Instance.Owner(t)
	for _, table := range []string{"workspaces", "machines", "setup_steps", "operations", "tenant_events", "audit_events"} {
		rows, err := conn.Query(t.Context(), "select t::text from "+table+" t")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				t.Fatal(err)
			}
			kept.WriteString(s)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, form := range []string{
		token, base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token)), base64.StdEncoding.EncodeToString([]byte(token)), url.QueryEscape(token),
	} {
		if strings.Contains(kept.String(), form) {
			t.Errorf("the database keeps %q", form)
		}
	}
	if !strings.Contains(kept.String(), private.URL) {
		t.Error("the database keeps nothing of the clones: this test looks in the wrong place")
	}
}

func TestACloneRefusesAPlaceThatIsNotEmpty(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	repo := w.Outside.Git.Add("repo", testworld.Files{"README": "x\n"})
	w.Outside.Debian.Add(testworld.DebianPackage{Name: "in-the-way", Files: testworld.Files{"srv/app/file": "mine\n"}})
	env := makeEnvironment(t, w, func(in *environment.Input) {
		in.Packages.Apt = []string{"in-the-way"}
		in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: "/srv/app"}}
	})
	ws := settled(t, w, create(t, w, env).ID)
	if ws.Status != workspace.Failed || !strings.Contains(ws.Error.OutputTail, "/srv/app is not empty") {
		t.Errorf("status %s, error %+v\n%s", ws.Status, ws.Error, logText(t, w, ws.ID))
	}
}

func TestLimitedNetworkingHoldsInTheSetup(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	repo := w.Outside.Git.Add("repo", testworld.Files{"README": "x\n"})
	limited := func(hosts ...string) func(*environment.Input) {
		return func(in *environment.Input) {
			in.NetworkingType, in.NetworkingConfig.AllowedHosts = "limited", hosts
			in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: "/home/sprite/repo"}}
		}
	}
	ws := settled(t, w, create(t, w, makeEnvironment(t, w, limited())).ID)
	if ws.Status != workspace.Failed || ws.Error.Step != "repositories" || !strings.Contains(ws.Error.OutputTail, "403") {
		t.Errorf("with no host allowed: status %s, error %+v", ws.Status, ws.Error)
	}
	ready(t, w, create(t, w, makeEnvironment(t, w, limited(w.Outside.Git.Host))).ID)
	var denied, allowed bool
	eventually(t, "the rows of both", func() bool {
		for _, r := range w.Rows.All() {
			denied = denied || r.Decision == "denied" && r.Host == testworld.GitName && r.WorkspaceID == ws.ID
			allowed = allowed || r.Decision == "allowed" && r.Host == testworld.GitName && r.WorkspaceID != ws.ID && r.ConversationID == nil
		}
		return denied && allowed
	})
}
