package web_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/PuerkitoBio/goquery"
	"github.com/google/uuid"

	"managoat/handlers"
	"managoat/handlers/web"
	"managoat/internal/account"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/files"
	"managoat/internal/identity/identitytest"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
)

func TestMain(m *testing.M) { os.Exit(conversationtest.Main(m)) }

// site is the console over a whole host.
type site struct {
	*conversationtest.World
	t   *testing.T
	url string
}

func newSite(t *testing.T) *site {
	t.Helper()
	w := conversationtest.New(t, conversationtest.Options{Lives: workspace.Lifetimes{Idle: 2 * time.Hour}})
	console := web.New(web.Options{
		Identity: w.People, Environments: w.Environments, Vaults: w.Vaults, Agents: w.Agents, Inference: w.Inference, Workspaces: w.Workspaces,
		Conversations: w.Conversations, Files: files.New(w.Workspaces, w.Conversations), Ledger: w.Ledger, Audit: audit.New(w.DB), Reader: w.Reader,
		Accounts:      account.New(w.DB, w.People, w.Workspaces, slog.New(slog.DiscardHandler)),
		SessionCookie: handlers.SessionCookie, Providers: []string{"local"}, DefaultProvider: "local", Version: "test",
	})
	edge, _ := handlers.New(handlers.Config{DB: w.DB, Auth: w.People, Routes: handlers.PageRoutes(console), ErrorPage: console.ErrorPage,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	server := httptest.NewServer(edge)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return &site{w, t, server.URL}
}

// visitor is a browser without JavaScript.
type visitor struct {
	t    *testing.T
	base string
	http *http.Client
}

func (s *site) visitor(t *testing.T) *visitor {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{t, s.url, &http.Client{Jar: jar, Timeout: time.Minute}}
}

// as signs an account's owner in.
func (s *site) as(t *testing.T, who identitytest.Account) *visitor {
	t.Helper()
	v := s.visitor(t)
	if p := v.post("/sign-in", "email", who.Email, "password", identitytest.Password); p.path != "/" || p.status != http.StatusOK {
		t.Fatalf("signing in ends at %s with %d: %s", p.path, p.status, p.text())
	}
	return v
}

// shown is a page as it arrived.
type shown struct {
	t      *testing.T
	status int
	path   string // where redirects ended
	header http.Header
	body   string
	doc    *goquery.Document
}

func (v *visitor) do(r *http.Request) *shown {
	v.t.Helper()
	answer, err := v.http.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	doc, err := goquery.NewDocumentFromReader(strings.NewReader(string(body)))
	if err != nil {
		v.t.Fatal(err)
	}
	return &shown{v.t, answer.StatusCode, answer.Request.URL.RequestURI(), answer.Header, string(body), doc}
}

func (v *visitor) get(path string, header ...string) *shown {
	v.t.Helper()
	r, err := http.NewRequest(http.MethodGet, v.base+path, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return v.do(r)
}

func (v *visitor) post(path string, fields ...string) *shown {
	v.t.Helper()
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	r, err := http.NewRequest(http.MethodPost, v.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return v.do(r)
}

func (s *shown) text() string {
	return strings.Join(strings.Fields(s.doc.Find("main").Text()), " ")
}

// says fails unless the page holds the texts and has the status.
func (s *shown) says(status int, texts ...string) *shown {
	s.t.Helper()
	if s.status != status {
		s.t.Fatalf("%s: status %d, want %d: %s", s.path, s.status, status, s.text())
	}
	for _, want := range texts {
		if !strings.Contains(s.text(), want) {
			s.t.Fatalf("%s does not say %q: %s", s.path, want, s.text())
		}
	}
	return s
}

// reason is the sentence beside a field.
func (s *shown) reason(field string) string {
	s.t.Helper()
	control := s.doc.Find(fmt.Sprintf(`[name="%s"][aria-invalid=true]`, field)).First()
	if control.Length() == 0 {
		return ""
	}
	by, _, _ := strings.Cut(control.AttrOr("aria-describedby", ""), " ")
	return strings.TrimSpace(s.doc.Find("#" + by).Text())
}

// One host serves all tests of this package: a database, machines and an egress process take longer to start than most
// tests to run.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, test := range map[string]func(*testing.T, *site){
		"without JavaScript":                                                 withoutJavaScript,
		"a conversation without JavaScript":                                  aConversationWithoutJavaScript,
		"a machine parks and is woken":                                       aMachineParksAndIsWoken,
		"a rebuild shows what is lost, and only then is offered":             aRebuildShowsWhatIsLost,
		"a workspace offers what runs there":                                 aWorkspaceOffersWhatRunsThere,
		"a workspace's tab counts what lives":                                aWorkspacesTabCountsWhatLives,
		"a long conversation opens at its end":                               aLongConversationOpensAtItsEnd,
		"a browser holds a few streams only":                                 aBrowserHoldsAFewStreamsOnly,
		"pages give their streams back":                                      pagesGiveTheirStreamsBack,
		"workspace and conversation are live, also when their stream breaks": theConsoleIsLive,
		"hostile text stays text":                                            hostileTextStaysText,
		"a page opened in the middle of a turn shows its prompt once":        aPageOpenedInTheMiddleOfATurnShowsItsPromptOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

func withoutJavaScript(t *testing.T, s *site) {
	other := s.Account(t)

	t.Run("who is not signed in is led to the sign-in and back", func(t *testing.T) {
		t.Parallel()
		v := s.visitor(t)
		p := v.get("/environments/new?x=1").says(200, "Sign in")
		if strings.Contains(p.text(), "one-time link") {
			t.Error("a server that has accounts speaks of the first one")
		}
		next := p.doc.Find("[name=next]").AttrOr("value", "")
		if next != "/environments/new?x=1" {
			t.Fatalf("leads back to %q", next)
		}
		v.post("/sign-in", "email", s.Owner.Email, "password", "wrong wrong wrong", "next", next).says(401, "Sign in")
		v.post("/sign-in", "email", s.Owner.Email, "password", identitytest.Password, "next", next).says(200, "New environment")
		if p := v.get("/sign-in"); p.path != "/" {
			t.Fatalf("who is signed in stays at %s", p.path)
		}
		v.post("/sign-out").says(200, "Sign in")
		v.get("/agents").says(200, "Sign in")
	})
	t.Run("signing in leads nowhere else", func(t *testing.T) {
		t.Parallel()
		for _, next := range []string{"https://evil.example/", "//evil.example/", `/\evil.example`, "javascript:alert(1)", "evil.example", "/ok%0d%0aSet-Cookie:x"} {
			v := s.visitor(t)
			v.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			to := v.post("/sign-in", "email", s.Owner.Email, "password", identitytest.Password, "next", next).header.Get("Location")
			if u, err := url.Parse(to); err != nil || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n") {
				t.Errorf("next %q leads to %q", next, to)
			}
		}
	})
	t.Run("a write from another site is refused", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Owner)
		r, err := http.NewRequest(http.MethodPost, s.url+"/vaults", strings.NewReader("name=stolen"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		v.do(r).says(403, "another site")
		if strings.Contains(v.get("/vaults").text(), "stolen") {
			t.Fatal("it was made all the same")
		}
	})
	t.Run("an environment: reasons beside the fields, what was typed stays, then it is kept", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Owner)
		p := v.post("/environments", "name", "web <b>", "packages.apt", "git\nrip grep", "repositories.url", "", "repositories.url", "ssh://git@example.com/a.git",
			"repositories.mount_path", "", "repositories.mount_path", "/home/sprite/a", "env_vars", "GOOD=1\nnonsense", "setup_script", "set -e\r\necho \"<hi>\"\r\n",
			"setup_timeout_seconds", "9000", "networking_type", "limited", "networking_config.allowed_hosts", "example.com")
		p.says(422, "Nothing was saved")
		for _, field := range []string{"packages.apt", "repositories.url", "env_vars", "setup_timeout_seconds"} {
			if p.reason(field) == "" {
				t.Errorf("no reason beside %s: %s", field, p.text())
			}
		}
		if got := p.doc.Find("[name=setup_script]").Text(); got != "set -e\necho \"<hi>\"\n" {
			t.Errorf("the script came back as %q", got)
		}
		if strings.Contains(p.body, "web <b>") {
			t.Error("a name is not escaped")
		}
		p = v.post("/environments", "name", "web <b>", "packages.apt", "git\nripgrep", "repositories.url", "https://example.com/a.git", "repositories.mount_path", "/home/sprite/a",
			"env_vars", "GOOD=1\nTWO=\"a\\nb\"", "setup_script", "set -e\r\ntrue\r\n", "setup_timeout_seconds", "90", "networking_type", "limited", "networking_config.allowed_hosts", "example.com")
		p.says(200, "Created the environment web <b>.")
		page := p.path
		e, err := s.Environments.Get(t.Context(), s.Owner.Actor, uuid.MustParse(strings.TrimPrefix(page, "/environments/")))
		if err != nil {
			t.Fatal(err)
		}
		if e.SetupScript != "set -e\ntrue\n" || e.EnvVars["TWO"] != "a\nb" || e.NetworkingType != "limited" || len(e.Packages.Apt) != 2 || e.Repositories[0].MountPath != "/home/sprite/a" {
			t.Fatalf("kept as %+v", e)
		}
		if strings.Contains(v.get(page).text(), "Created the environment") {
			t.Error("the sentence came twice")
		}
		// What the form shows it takes back unchanged.
		fields := []string{}
		v.get(page).doc.Find("main form.form").First().Find("input, textarea").Each(func(_ int, s *goquery.Selection) {
			if typ := s.AttrOr("type", ""); (typ == "radio" || typ == "checkbox") && s.AttrOr("checked", "-") == "-" {
				return
			}
			value := s.AttrOr("value", "")
			if goquery.NodeName(s) == "textarea" {
				value = s.Text()
			}
			fields = append(fields, s.AttrOr("name", ""), value)
		})
		v.post(page, fields...).says(200, "Saved the environment")
		again, err := s.Environments.Get(t.Context(), s.Owner.Actor, e.ID)
		if err != nil || fmt.Sprint(again.Input) != fmt.Sprint(e.Input) {
			t.Fatalf("after saving what was shown: %+v, %v", again.Input, err)
		}
		if p := v.post("/environments", "name", "web <b>", "setup_timeout_seconds", "90").says(422); p.reason("name") == "" {
			t.Errorf("a name that is taken has no reason beside it: %s", p.text())
		}
	})
	t.Run("a secret goes in and never comes out", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Owner)
		page := v.post("/vaults", "name", "bot").says(200, "Created the vault bot.").path
		v.post(page+"/secrets", "key", "1BAD", "value", "s3cret-value-one").says(422)
		p := v.post(page+"/secrets", "key", "GIT_TOKEN", "value", "s3cret-value-two\r\nline", "expires_at", "2099-01-31")
		p.says(200, "Saved the secret GIT_TOKEN.", "GIT_TOKEN", "just now")
		for _, at := range []string{page, "/vaults", "/audit"} {
			if strings.Contains(v.get(at).body, "s3cret") {
				t.Errorf("%s shows the value", at)
			}
		}
		v.post(page+"/secrets", "key", "GIT_TOKEN", "value", "x", "expires_at", "soon").says(422, "must be a date")
		v.post(page+"/secrets/GIT_TOKEN/delete").says(200, "Deleted the secret GIT_TOKEN.")
		v.post(page+"/delete", "confirm", "not bot").says(422, "This is not the name")
		v.post(page+"/delete", "confirm", "bot").says(200, "Deleted the vault bot.")
		v.get(page).says(404, "Not found")
	})
	t.Run("a key is shown once", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Account(t))
		v.post("/settings/keys", "name", "").says(422)
		p := v.post("/settings/keys", "name", "deploy").says(200, "Key made.")
		key := p.doc.Find("#made-key").Text()
		if !strings.HasPrefix(key, "mgt_") || p.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("key %q, Cache-Control %q", key, p.header.Get("Cache-Control"))
		}
		if _, err := s.People.AuthenticateKey(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if p := v.get("/settings/keys").says(200, "deploy"); strings.Contains(p.body, key) {
			t.Fatal("it is shown again")
		}
		at := v.get("/settings/keys").doc.Find(`form[action$="/delete"]`).First().AttrOr("action", "")
		v.post(at).says(200, "Deleted the key.")
	})
	t.Run("a credential is kept without being shown", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Account(t))
		if label := text(v.get("/agents/new").doc.Find("label[for=f-model]")); label != "Model" {
			t.Errorf("the model, which claude needs, is labelled %q", label)
		}
		v.post("/settings/credentials", "name", "team", "provider", "anthropic", "kind", "api_key", "key", "has space").says(422, "must hold no spaces")
		p := v.post("/settings/credentials", "name", "team", "provider", "anthropic", "kind", "api_key", "key", "sk-test-12345678").says(200, "Saved the credential team.", "default")
		if strings.Contains(p.body, "sk-test") {
			t.Fatal("its key is shown")
		}
	})
	t.Run("an agent: versions and their difference", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Owner)
		v.post("/agents", "name", "Builder", "runtime", "claude", "model", "openai/gpt-5").says(422)
		page := v.post("/agents", "name", "Builder", "runtime", "acp", "runtime_command", "agent", "system", "Be brief.").says(200, "Created the agent Builder.").path
		v.post(page, "version", "1", "name", "Builder", "runtime", "acp", "runtime_command", "agent --fast", "system", "Be brief.").says(200, "Saved version 2")
		v.post(page, "version", "1", "name", "Builder", "runtime", "acp", "runtime_command", "agent --slow").says(409)
		p := v.get(page+"/versions?to=2").says(200, "runtime_command", "Version 1 → 2")
		if p.doc.Find(".diff tr.add").Length() != 1 || p.doc.Find(".diff tr.del").Length() != 1 {
			t.Fatalf("the difference: %s", p.doc.Find(".diff").Text())
		}
		v.get(page + "/versions?to=9").says(404)
	})
	t.Run("an agent's MCP servers and skills", func(t *testing.T) {
		t.Parallel()
		v := s.as(t, s.Owner)
		const servers = `{"tracker": {"type": "http", "url": "https://mcp.example.com", "headers": {"Authorization": "Bearer ${KEY}"}}}`
		const skill = "---\r\nname: notes\r\ndescription: d\r\n---\r\n<b>one & two</b>\r\n"
		v.get("/agents/new").says(200, "MCP servers", "Add skill")
		refused := v.post("/agents", "name", "Librarian", "runtime", "claude", "model", "anthropic/x", "mcp_servers", "{\n\"a\": x}", "skills.name", "", "skills.content", "", "skills.name", "No Name", "skills.content", "text").
			says(422, "line 2", "must be 1 to 64 of a-z").doc
		if refused.Find(`[name="skills.content"]`).First().Text() != "text" || refused.Find(`[name="skills.name"][aria-invalid]`).Length() != 1 || !strings.Contains(refused.Find("[name=mcp_servers]").Text(), `"a": x`) {
			t.Error("what was typed is gone, or its fault is not shown at it")
		}
		v.post("/agents", "name", "Librarian", "runtime", "claude", "model", "anthropic/x", "mcp_servers", `{"a": {"comand": "x"}}`).says(422, "mcp_servers.a.comand")
		v.post("/agents", "name", "Librarian", "runtime", "claude", "model", "anthropic/x", "mcp_servers", `{"a": {}}`).says(422, "mcp_servers.a.command")
		page := v.post("/agents", "name", "Librarian", "runtime", "claude", "model", "anthropic/x", "mcp_servers", servers, "skills.name", "notes", "skills.content", skill).says(200, "Created the agent Librarian.").path
		kept := v.get(page).says(200, "Bearer ${KEY}").doc
		if got := kept.Find(`[name="skills.content"]`).First().Text(); got != strings.ReplaceAll(skill, "\r\n", "\n") {
			t.Errorf("the skill is shown as %q", got)
		}
		v.post(page, "version", "1", "name", "Librarian", "runtime", "claude", "model", "anthropic/x", "mcp_servers", kept.Find("[name=mcp_servers]").Text(), "skills.name", "notes", "skills.content", skill+"more\r\n").says(200, "Saved version 2")
		diff := v.get(page+"/versions?to=2").says(200, "skills").doc
		if diff.Find(".diff tr.add").Length() != 1 || diff.Find(".diff tr.del").Length() != 0 || !strings.Contains(diff.Find(".diff tr.add").Text(), "more") {
			t.Errorf("the difference: %s", diff.Find(".diff").Text())
		}
	})
	t.Run("another account sees nothing of it", func(t *testing.T) {
		t.Parallel()
		env := s.Environment(nil)
		space := s.Workspace(env)
		agent := s.Agent("")
		talk := s.Launch(conversation.CreateInput{AgentID: agent, WorkspaceID: &space.ID})
		vault := uuid.MustParse(strings.TrimPrefix(s.as(t, s.Owner).post("/vaults", "name", "mine").path, "/vaults/"))
		mine, foreign := s.as(t, s.Owner), s.as(t, other)
		ids := map[string]string{"workspaces": space.ID.String(), "conversations": talk.ID.String(), "agents": agent.String(), "environments": env.String(), "vaults": vault.String()}
		for _, r := range handlers.PageRoutes(web.New(web.Options{})) {
			noun := strings.Split(r.Path, "/")[1]
			if ids[noun] == "" || !strings.Contains(r.Path, "{id}") {
				continue
			}
			path := strings.NewReplacer("{id}", ids[noun], "{request}", uuid.NewString(), "{secret}", "KEY").Replace(r.Path)
			missing := strings.NewReplacer("{id}", uuid.NewString(), "{request}", uuid.NewString(), "{secret}", "KEY").Replace(r.Path)
			for _, at := range []string{path, missing, strings.ReplaceAll(path, ids[noun], "not-an-id")} {
				var p *shown
				if r.Method == http.MethodGet {
					p = foreign.get(at)
				} else {
					p = foreign.post(at, "confirm", "x", "prompt", "x", "title", "x", "turn", "1", "name", "x", "setup_timeout_seconds", "1", "runtime", "acp", "runtime_command", "x", "key", "KEY", "value", "x")
				}
				if p.status != http.StatusNotFound {
					t.Errorf("%s %s as another account: %d: %s", r.Method, at, p.status, p.text())
				}
			}
		}
		for _, list := range []string{"/", "/workspaces", "/conversations", "/agents", "/environments", "/vaults", "/audit"} {
			if body := foreign.get(list).says(200).body; strings.Contains(body, space.ID.String()) || strings.Contains(body, space.Name) || strings.Contains(body, talk.ID.String()) {
				t.Errorf("%s shows another account's things", list)
			}
			mine.get(list).says(200)
		}
	})
	t.Run("an account ends when its owner types the own address", func(t *testing.T) {
		ends := s.Account(t)
		v := s.as(t, ends)
		v.get("/settings/account").says(200, "Delete account", "To delete it, type "+ends.Email)
		v.post("/settings/account/delete", "confirm", s.Owner.Email).says(422, "must be your own e-mail address")
		if p := v.post("/settings/account/delete", "confirm", ends.Email).says(200, "The account was deleted"); p.path != "/sign-in" {
			t.Errorf("it ends at %s", p.path)
		}
		if p := v.get("/settings/account"); !strings.HasPrefix(p.path, "/sign-in?") {
			t.Errorf("whoever was signed in is at %s", p.path)
		}
	})
	t.Run("a sandbox key opens no page", func(t *testing.T) {
		t.Parallel()
		v := s.visitor(t)
		v.get("/workspaces", "Authorization", "Bearer mgt_nonsense").says(401)
	})
	t.Run("what is not there says so", func(t *testing.T) {
		t.Parallel()
		s.as(t, s.Owner).get("/nothing/here").says(404, "Not found", "not_found", "Request")
		s.visitor(t).get("/setup?token=nonsense").says(410, "This link cannot be used")
	})
}

func aMachineParksAndIsWoken(t *testing.T, s *site) {
	v := s.as(t, s.Owner)
	ws := s.Ready(s.Workspace(s.Environment(nil)).ID)
	page := "/workspaces/" + ws.ID.String()
	if text := v.get(page).says(200, "ready").doc.Find("#workspace-state").Text(); !strings.Contains(text, "parks in 1 h if nothing runs") {
		t.Errorf("before: %s", text)
	}
	if _, err := s.Instance.Owner(t).Exec(t.Context(), "update machines set woken_at = woken_at - interval '2 hours' where workspace_id = $1", ws.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Until("the machine to park", func() bool { return strings.Contains(v.get(page).doc.Find("#workspace-state").Text(), "parked") })
	p := v.get(page+"/files").says(200, "parked", "Nothing ran here for 2 hours", "Wake the machine")
	if strings.Contains(p.text(), "if nothing runs") || p.doc.Find("#workspace-state form[action$=wake]").Length() != 1 {
		t.Errorf("parked: %s", p.doc.Find("#workspace-state").Text())
	}
	if p = v.post(page + "/wake").says(200); p.path != page {
		t.Errorf("a wake ends at %s", p.path)
	}
	s.Until("the machine to be up", func() bool {
		return strings.Contains(v.get(page).doc.Find("#workspace-state").Text(), "parks in 1 h")
	})
}

func aRebuildShowsWhatIsLost(t *testing.T, s *site) {
	v := s.as(t, s.Owner)
	env := s.Environment(nil)
	ws := s.Ready(s.Workspace(env).ID)
	page := "/workspaces/" + ws.ID.String()
	if got := v.get(page).says(200).doc.Find(`#workspace-state a[href$="/rebuild"]`).Text(); got != "Rebuild…" {
		t.Errorf("the way to a rebuild is %q", got)
	}
	if _, err := s.Environments.Update(t.Context(), s.Owner.Actor, env, func(in *environment.Input) error {
		in.SetupScript, in.EnvVars = "echo again", map[string]string{"A": "b"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	banner := v.get(page).says(200).doc.Find("#workspace-state .banner")
	if got := text(banner); got != "Rebuild needed: setup script and variables changed since this machine was built.See what would be lost" {
		t.Errorf("the banner says %q", got)
	}
	v.get("/").says(200, "Waiting for you", "rebuild needed", "changed: setup script, variables")
	s.InMachine(ws.ID, "mkdir work; cd work; git init -q; git config user.name a; git config user.email a@example.com; echo x > x; git add x; git commit -qm 'only <here>'; echo more > new")
	talk := s.Launch(conversation.CreateInput{AgentID: s.Agent(""), WorkspaceID: &ws.ID}).ID
	s.Prompt(talk, "say working", "sleep 60000")
	s.Until("the agent to work", func() bool { return s.Said(talk) == "working" })
	p := v.get(banner.Find("a").AttrOr("href", "")).says(200, "setup script and variables changed", "~/work", "1 untracked, 1 commit not pushed", "only <here>", "new", "Turns that end with it", "say working", "turn 1 running")
	if p.doc.Find(`form[action$="/rebuild"] input[name=interrupt][required]`).Length() != 1 {
		t.Error("the rebuild does not ask whether the turn may end")
	}
	p = v.post(page+"/rebuild").says(409, "1 running, 0 waiting", "Rebuild workspace")
	if p.doc.Find(`form[action$="/rebuild"] [role=alert]`).Length() != 1 {
		t.Error("the refusal does not stand at the button")
	}
	v.post(page+"/rebuild", "interrupt", "true").says(200, "setting up")
	if turn := s.Ended(talk, 1); turn.Reason == nil || *turn.Reason != conversation.ByDestruction {
		t.Errorf("the turn: %+v", turn)
	}
	v.get(page + "/rebuild") // refused while it is built, or offered after it
	s.Ready(ws.ID)
	p = v.get(page).says(200, "ready")
	if p.doc.Find("#workspace-state .banner").Length() != 0 {
		t.Errorf("it is still stale: %s", p.doc.Find("#workspace-state").Text())
	}
	v.get(page+"/rebuild").says(200, "No field of the environment changed", "No repository is on the machine")
	if d := v.get(page + "/diagnostics"); d.status != 200 || !strings.Contains(d.body, `"kind": "setup"`) || !strings.Contains(d.body, `"version"`) || !strings.Contains(d.body, ws.ID.String()) {
		t.Errorf("diagnostics: %d %s", d.status, d.body)
	}
	v.get(page+"/audit").says(200, "workspace.rebuild", "workspace.create")
	other := s.as(t, s.Account(t))
	other.get(page + "/rebuild").says(404)
	other.post(page+"/rebuild", "interrupt", "true").says(404)
}

func aConversationWithoutJavaScript(t *testing.T, s *site) {
	s.as(t, s.Account(t)).get("/").says(200, "Before the first conversation", "Make an agent")
	v := s.as(t, s.Owner)
	env := s.Environment(nil)
	agent := s.Agent("")
	v.post("/workspaces", "name", "", "environment_id", env.String()).says(422)
	page := v.post("/workspaces", "name", "shop", "environment_id", env.String(), "sandbox_provider", "local").says(200, "shop", "One trust boundary").path
	space := uuid.MustParse(strings.TrimPrefix(page, "/workspaces/"))
	v.post("/conversations", "prompt", "say hello", "agent_id", agent.String(), "workspace_id", space.String(), "cwd", "/etc").says(422)
	talk := v.post("/conversations", "prompt", "say **bold** words\nterminal echo out; echo err >&2; exit 3", "agent_id", agent.String(), "workspace_id", space.String()).says(200).path
	id := uuid.MustParse(strings.TrimPrefix(strings.Split(talk, "#")[0], "/conversations/"))
	s.Ended(id, 1)
	p := v.get(talk).says(200, "bold words", "exit 3", "Turn 1 completed", "echo out; echo err")
	if p.doc.Find(".md strong").Text() != "bold" {
		t.Errorf("the message: %s", p.doc.Find(".said").Text())
	}
	if row := p.doc.Find("li.tool summary.fail"); row.Length() != 1 {
		t.Errorf("a command with exit code 3 is not shown as failed: %s", p.doc.Find("li.tool").Text())
	}
	v.post(talk+"/prompts", "prompt", "sleep 60000").says(200, "sleep 60000")
	if got := v.post(talk+"/prompts", "prompt", " \n").says(422, "invalid_prompt").doc.Find("#prompt").Text(); got != " \n" {
		t.Errorf("what was typed came back as %q", got)
	}
	// What is sent while a turn runs waits behind it, and can be taken back.
	p = v.post(talk+"/prompts", "prompt", "say behind").says(200, "say behind", "Queued behind turn 2")
	if got := strings.TrimSpace(p.doc.Find("#send").Text()); got != "Queue" {
		t.Errorf("the button says %q", got)
	}
	p = v.post(talk+"/interrupt", "turn", "3").says(200)
	if n := p.doc.Find("#queue li").Length(); n != 0 {
		t.Errorf("%d messages wait after the only one was withdrawn", n)
	}
	turn := s.Turn(id, 2)
	v.post(talk+"/interrupt", "turn", "2").says(200)
	s.Ended(id, 2)
	v.post(talk+"/interrupt", "turn", "2").says(409)
	v.get(talk).says(200, fmt.Sprintf("Turn %d interrupted", turn.TurnNumber), "Asked for by a person or a key.")
	v.post(talk+"/prompts", "prompt", "exit 4").says(200)
	s.Ended(id, 4)
	v.get(talk).says(200, "Turn 4 failed", "adapter_crashed", "Copy diagnostics", "agent: giving up")
	d := v.get(talk + "/diagnostics")
	for _, want := range []string{`"adapter_crashed"`, `"version": "test"`, `"request_id"`} {
		if !strings.Contains(d.body, want) {
			t.Errorf("the diagnostics lack %s: %s", want, d.body)
		}
	}
	for _, private := range []string{"exit 4", "bold"} {
		if strings.Contains(d.body, `"`+private) {
			t.Errorf("the diagnostics repeat what was said: %q", private)
		}
	}
	v.post(talk+"/rename", "title", strings.Repeat("x", 500)).says(422)
	v.post(talk+"/rename", "title", "Words").says(200, "Words")
	v.get("/conversations?q=Words").says(200, "Words", "shop")
	v.get("/").says(200, "Words", "Recent")
	for path, want := range map[string]string{"": "Words", "/files": ".managoat/", "/files?path=/etc": "path", "/git-status": "not", "/diff": "not", "/setup-log": "Create the machine", "/egress": "Unrestricted"} {
		v.get(page+path).says(200, want)
	}
	v.post(talk+"/terminate").says(200, "This conversation has ended")
	v.post(talk+"/prompts", "prompt", "x").says(410, "ended")
	v.post(page+"/delete", "confirm", "shop").says(200, "Deleting shop")
}

// What a list offers runs, or says beside it why it would not.
func aWorkspaceOffersWhatRunsThere(t *testing.T, s *site) {
	who := s.Account(t)
	v := s.as(t, who)
	env := v.post("/environments", "name", "small", "networking_type", "unrestricted", "setup_timeout_seconds", "90").says(200, "small").path
	page := v.post("/workspaces", "name", "shop", "environment_id", strings.TrimPrefix(env, "/environments/"), "sandbox_provider", "local").says(200, "shop").path
	for name, fields := range map[string][]string{
		"runs":      {"runtime", agent.ACP, "runtime_command", "run"},
		"unadapted": {"runtime", agent.Codex, "model", "openai/gpt-5"},
		"penniless": {"runtime", agent.Claude, "model", "anthropic/claude-sonnet-4-5"},
		"elsewhere": {"runtime", agent.ACP, "runtime_command", "run", "allowed_environment_ids_any", "false"},
	} {
		v.post("/agents", append(fields, "name", name)...).says(200, name)
	}
	why := map[string]string{"unadapted": "does not run in this version yet", "penniless": "no inference credential for anthropic"}
	for _, path := range []string{"/", "/conversations/new", page} {
		p := v.get(path).says(200)
		if why["elsewhere"] = ""; path == page {
			why["elsewhere"] = "may not run in this environment"
		}
		options := p.doc.Find("[name=agent_id] option")
		if options.Length() != 4 || options.First().Is("[disabled]") {
			t.Errorf("%s offers %s", path, text(options))
		}
		options.Each(func(_ int, o *goquery.Selection) {
			name, _, _ := strings.Cut(text(o), " ")
			if o.Is("[disabled]") != (why[name] != "") || !strings.HasSuffix(text(o), why[name]) {
				t.Errorf("%s offers %q, disabled %v", path, text(o), o.Is("[disabled]"))
			}
		})
	}
	v.post(page+"/delete", "confirm", "shop").says(200)
}

// The tab's count is that of the list behind it, on every tab.
func aWorkspacesTabCountsWhatLives(t *testing.T, s *site) {
	v := s.as(t, s.Owner)
	ws := s.Ready(s.Workspace(s.Environment(nil)).ID)
	launch := func() uuid.UUID {
		return s.Launch(conversation.CreateInput{AgentID: s.Agent(""), WorkspaceID: &ws.ID, Title: "talk"}).ID
	}
	launch()
	if _, err := s.Conversations.Terminate(t.Context(), s.Owner.Actor, launch()); err != nil {
		t.Fatal(err)
	}
	page := "/workspaces/" + ws.ID.String()
	for _, tab := range []string{"", "/files", "/audit"} {
		if got := text(v.get(page + tab).says(200).doc.Find("#tabs .count")); got != "1" {
			t.Errorf("%s: the tab counts %q", tab, got)
		}
	}
	p := v.get(page).says(200, "Ended 1")
	if live, ended := p.doc.Find("#list > ul > li").Length(), p.doc.Find("#list section li").Length(); live != 1 || ended != 1 {
		t.Errorf("%d live, %d ended: %s", live, ended, text(p.doc.Find("#list")))
	}
}

// A long conversation opens at its newest part, at the start of a turn; the rest is behind links, and a link to any row
// leads to it.
func aLongConversationOpensAtItsEnd(t *testing.T, s *site) {
	v := s.as(t, s.Owner)
	space := s.Workspace(s.Environment(nil))
	s.Ready(space.ID)
	talk := s.Launch(conversation.CreateInput{AgentID: s.Agent(""), WorkspaceID: &space.ID})
	for n := range 4 {
		turn := s.Ask(talk.ID, "say working")
		var rows []transcript.Row
		for i := range 110 {
			id := fmt.Sprintf("call-%d-%d", n, i)
			rows = append(rows, transcript.Row{Type: transcript.ToolCallType, TurnID: &turn.ID, Body: transcript.ToolCallBody{ID: id, Title: id, ToolKind: "read"}},
				transcript.Row{Type: transcript.ToolResult, TurnID: &turn.ID, Body: transcript.ToolResultBody{ID: id, Status: "completed", Output: "out of " + id}})
		}
		if err := s.Writer.Append(t.Context(), s.Owner.TenantID, talk.ID, rows...); err != nil {
			t.Fatal(err)
		}
	}
	page := "/conversations/" + talk.ID.String()
	p := v.get(page).says(200, "turn 4", "call-3-109")
	if first := p.doc.Find("#transcript > li").First(); !first.HasClass("you") || strings.Contains(first.Text(), "turn 1") {
		t.Fatalf("the page begins with %q", text(first))
	}
	first := strings.TrimPrefix(p.doc.Find("#transcript > li").First().AttrOr("id", ""), "e-")
	earlier := p.doc.Find("#earlier a").AttrOr("href", "")
	if earlier != page+"?before="+first {
		t.Fatalf("earlier rows are behind %q, the first one is %s", earlier, first)
	}
	seen := map[string]bool{}
	collect := func(doc *goquery.Document) {
		doc.Find("li[id^=e-]").Each(func(_ int, li *goquery.Selection) {
			if id := li.AttrOr("id", ""); seen[id] {
				t.Errorf("%s comes twice", id)
			} else {
				seen[id] = true
			}
		})
	}
	collect(p.doc)
	// As the script asks: fragments that go before what is there.
	f := v.get(earlier, "HX-Request", "true")
	if !strings.HasPrefix(f.body, `<hx-partial hx-target="#transcript" hx-swap="afterbegin">`) || strings.Contains(f.body, "<html") {
		t.Fatalf("the script gets %.300s", f.body)
	}
	// As a link: the older part, with the way back.
	for earlier != "" {
		p = v.get(earlier).says(200, "Newest")
		collect(p.doc)
		if p.doc.Find("#stream").Length() > 0 {
			t.Fatal("an older part follows the stream")
		}
		earlier = p.doc.Find("#earlier a").AttrOr("href", "")
	}
	calls := 0
	for _, r := range s.Rows(talk.ID) {
		if r.Type == "tool_call" {
			calls++
		}
	}
	if n := len(seen); calls < 440 || n < calls {
		t.Fatalf("the pages show %d items of %d calls", n, calls)
	}
	if p := v.get(page+"?at=20").says(200, "turn 1"); p.doc.Find("#e-20").Length()+p.doc.Find("#e-19").Length() == 0 {
		t.Fatal("the page around row 20 does not hold it")
	}
}

func text(s *goquery.Selection) string { return strings.Join(strings.Fields(s.Text()), " ") }

// A browser that leaks streams is refused more of them, and the pages go on to work.
// The stream of such a page replays rows that the page has. A state made before they are in would put the prompt there a
// second time, as one that waits for its row.
func aPageOpenedInTheMiddleOfATurnShowsItsPromptOnce(t *testing.T, s *site) {
	v := s.as(t, s.Owner)
	space := s.Workspace(s.Environment(nil))
	s.Ready(space.ID)
	talk := s.Launch(conversation.CreateInput{AgentID: s.Agent(""), WorkspaceID: &space.ID}).ID
	s.Prompt(talk, "say here it is", "sleep 600000")
	s.Until("the agent's words", func() bool { return strings.Contains(s.Said(talk), "here it is") })
	for range 8 {
		p := v.get("/conversations/"+talk.String()).says(200, "here it is")
		live, err := v.http.Get(s.url + p.doc.Find("#stream").AttrOr("hx-get", p.doc.Find("#stream").AttrOr("hx-sse:connect", "")))
		if err != nil {
			t.Fatal(err)
		}
		sent := ""
		for lines := bufio.NewScanner(live.Body); !strings.Contains(sent, `id="facts"`) && lines.Scan(); {
			sent += lines.Text() + "\n"
		}
		live.Body.Close()
		if !strings.Contains(sent, `id="working"`) || strings.Contains(sent, `class="you queued"`) {
			t.Fatalf("the stream of the page begins with %s", sent)
		}
	}
	v.post("/conversations/"+talk.String()+"/interrupt", "turn", "1").says(200)
}

func aBrowserHoldsAFewStreamsOnly(t *testing.T, s *site) {
	v := s.as(t, s.Owner)
	var open []*http.Response
	defer func() {
		for _, r := range open {
			r.Body.Close()
		}
	}()
	get := func() *http.Response {
		r, err := v.http.Get(s.url + "/stream")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 12 {
		r := get()
		open = append(open, r)
		if r.StatusCode != 200 || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
			t.Fatalf("a stream answers %d", r.StatusCode)
		}
	}
	r := get()
	r.Body.Close()
	if r.StatusCode != 429 || r.Header.Get("Retry-After") == "" {
		t.Fatalf("the thirteenth answers %d", r.StatusCode)
	}
	v.get("/workspaces").says(200)
	other := s.as(t, s.Owner) // another browser of the same person
	again, err := other.http.Get(s.url + "/stream")
	if err != nil || again.StatusCode != 200 {
		t.Fatalf("another browser: %v %v", again, err)
	}
	again.Body.Close()
	open[0].Body.Close()
	open = open[1:]
	s.Until("a closed stream to make room", func() bool {
		r := get()
		defer r.Body.Close()
		return r.StatusCode == 200
	})
}
