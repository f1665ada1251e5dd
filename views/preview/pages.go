package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/a-h/templ"

	"managoat/views"
	"managoat/views/markup"
)

// example is one page in one state.
type example struct {
	path string // where the preview serves it
	page templ.Component
}

// long is a name as long as names may be.
var long = strings.Repeat("a name that goes on and on ", 8)[:200]

func page(now time.Time, title, section string) views.Page {
	return views.Page{
		Title: title, Section: section, Now: now, Account: "storefront team", Email: "owner@example.com",
	}
}

// examples are all pages with made-up content: usual, empty, failing and very long.
func examples(now time.Time) []example {
	var list []example
	add := func(path string, component templ.Component) { list = append(list, example{path, component}) }
	ago := func(d time.Duration) time.Time { return now.Add(-d) }

	add("/setup", views.Setup(views.SetupPage{Now: now, Token: "t"}))
	add("/setup/refused", views.Setup(views.SetupPage{Now: now, Token: "t", Account: "storefront", Email: "owner", Errors: views.Errors{"email": "This is not an email address.", "password": "must have at least 8 characters"}}))
	add("/setup/gone", views.LinkGone(views.LinkGonePage{Now: now, Reason: "It was used already: an account exists."}))
	add("/sign-in", views.SignIn(views.SignInPage{Now: now}))
	add("/sign-in/refused", views.SignIn(views.SignInPage{Now: now, Email: "owner@example.com", Errors: views.Errors{"": "This email address and password do not belong together. After ten tries the address waits a minute."}}))

	add("/api/docs", views.Docs(views.DocsPage{Now: now, Version: "1.2.3", Base: "https://managoat.example.com", Groups: []views.DocsGroup{{Name: "Workspaces", Operations: []views.DocsOperation{
		{ID: "post-workspaces", Method: "POST", Path: "/api/workspaces", Summary: "Create a workspace", Note: "Uses the quota running_machines.", Access: "full key", Status: 201, Answer: views.DocsAnswer{Before: `{"data": `, Type: "Workspace", After: "}"},
			Body: []views.DocsField{{Name: "name", Kind: "text", Doc: "1 to 200 characters, unique in the account"}, {Name: strings.Repeat("a_long_name", 9), Kind: "list of", Type: "Workspace", Doc: long, Limits: "at most 200 characters"}}},
		{ID: "get-workspaces-by-id-patch", Method: "GET", Path: "/api/workspaces/{id}/" + strings.Repeat("a-long-path/", 9), Summary: long, Access: "full or sandbox key", Status: 200, Answer: views.DocsAnswer{Before: "A patch, as an attachment"},
			Params: []views.DocsField{{Name: "id", Kind: "text", In: "path"}, {Name: "limit", Kind: "whole number", In: "query", Doc: "how many at most", Limits: "1 to 500; default 100"}}},
	}}}, Types: []views.DocsType{{Name: "Workspace", Fields: []views.DocsField{{Name: "id", Kind: "text"}}}}, Codes: []views.DocsCode{{Code: "fleet_full", Status: 503, Meaning: "The instance runs as many machines as it may.", Fields: []string{"retry_after_seconds"}}}}))

	start := views.StartForm{
		Agents:     []views.Option{{Value: "a1", Label: "Builder · claude"}, {Value: "a2", Label: "Reviewer · claude"}},
		Workspaces: []views.Option{{Label: "a machine of its own"}, {Value: "w1", Label: "in storefront"}},
	}
	running := views.Row{Badge: views.Badge{State: views.StateRunning, Label: "turn 4", Since: ago(42 * time.Second)}, Title: views.Link{Name: "Fix the cart total when a coupon is applied twice", URL: "/conversations/c1#end"}, Note: "Builder · claude · storefront · ~/storefront"}
	waiting := views.Row{Badge: views.Badge{State: views.StateWaiting, Label: "waiting for the setup", Since: ago(41 * time.Second)}, Title: views.Link{Name: "Review the cart", URL: "/conversations/c2#end"}, Note: "Reviewer · claude · checkout"}
	idle := views.Row{Badge: views.Badge{State: views.StateReady, Label: "idle"}, Title: views.Link{Name: "Look into the flaky checkout test", URL: "/conversations/c3#end"}, Note: "Builder · claude · ~/storefront/e2e", At: ago(2 * time.Hour)}
	failed := views.Row{Badge: views.Badge{State: views.StateFailed, Label: "Run the setup script: exit 7"}, Title: views.Link{Name: "checkout", URL: "/workspaces/w2"}, Note: "workspace", At: ago(4 * time.Minute)}
	add("/", views.Home(views.HomePage{Page: page(now, "Home", "home"), Start: start, Overview: views.Overview{
		Running: []views.Row{running, waiting}, Failed: []views.Row{failed}, Recent: []views.Row{idle, {Badge: views.Badge{State: views.StateOff, Label: "ended"}, Title: views.Link{Name: long, URL: "/conversations/c4"}, Note: long, At: ago(50 * time.Hour)}},
	}}))
	add("/home/first", views.Home(views.HomePage{Page: page(now, "Home", "home"), Steps: []views.FirstStep{
		{Done: true, Text: "Save an inference credential: the key of a model"},
		{Text: "Make an environment: what a machine holds", Link: views.Link{Name: "New environment", URL: "/environments/new"}},
		{Text: "Make an agent: how the work is done", Link: views.Link{Name: "New agent", URL: "/agents/new"}},
		{Text: "Create a workspace from the environment", Link: views.Link{Name: "New workspace", URL: "/workspaces/new"}},
	}}))

	add("/workspaces", views.Workspaces(views.WorkspacesPage{Page: page(now, "Workspaces", "workspaces"), Rows: []views.WorkspaceRow{
		{ID: "w0", Name: views.Link{Name: "billing", URL: "/workspaces/w0"}, Environment: views.Link{Name: "go-1.26", URL: "/environments/e2"}, Status: views.Badge{State: views.StateRunning, Label: "setting up", Since: ago(53 * time.Second)}, Note: "installing packages", ActiveAt: ago(time.Minute)},
		{ID: "w1", Name: views.Link{Name: "storefront", URL: "/workspaces/w1"}, Environment: views.Link{Name: "node-22", URL: "/environments/e1"}, Status: views.Badge{State: views.StateReady, Label: "ready"}, Conversations: 3, Stale: []string{"packages", "setup_script"}, ActiveAt: ago(40 * time.Second)},
		{ID: "w2", Name: views.Link{Name: "checkout", URL: "/workspaces/w2"}, Environment: views.Link{Name: "node-22", URL: "/environments/e1"}, Status: views.Badge{State: views.StateFailed, Label: "failed"}, Note: "Run the setup script: exit 7", ActiveAt: ago(4 * time.Minute)},
		{ID: "w3", Name: views.Link{Name: "docs", URL: "/workspaces/w3"}, Environment: views.Link{Name: "hugo", URL: "/environments/e3"}, Status: views.Badge{State: views.StateParked, Label: "parked"}, Conversations: 1204, ActiveAt: ago(3 * 24 * time.Hour)},
		{ID: "w4", Name: views.Link{Name: long, URL: "/workspaces/w4"}, Environment: views.Link{Name: long, URL: "/environments/e4"}, Status: views.Badge{State: views.StateOff, Label: "deleting"}, ActiveAt: ago(31 * 24 * time.Hour)},
	}, Pager: views.Pager{Older: "/workspaces?before=w4"}}))
	add("/workspaces/none", views.Workspaces(views.WorkspacesPage{Page: page(now, "Workspaces", "workspaces")}))
	add("/workspaces/many", views.Workspaces(views.WorkspacesPage{Page: page(now, "Workspaces", "workspaces"), Rows: manyWorkspaces(now, 500)}))
	form := views.WorkspaceFormPage{Page: page(now, "New workspace", "workspaces"), Environments: []views.Option{{Value: "e1", Label: "node-22"}, {Value: "e2", Label: "go-1.26"}}, Vaults: []views.Option{{Label: "none"}, {Value: "v1", Label: "team-bot"}}, Providers: []views.Option{{Value: "local", Label: "local"}}}
	add("/workspaces/new", views.WorkspaceForm(form))
	form.Name, form.Errors = "storefront", views.Errors{"name": "A workspace of this name exists. Choose another one."}
	add("/workspaces/new/refused", views.WorkspaceForm(form))
	add("/workspaces/new/none", views.WorkspaceForm(views.WorkspaceFormPage{Page: page(now, "New workspace", "workspaces")}))

	w1 := workspace(now)
	add("/workspaces/w1", views.Workspace(w1))
	building := workspace(now)
	building.Head.Name, building.Head.URL, building.Head.Status, building.Head.Machine, building.Head.ParksAt, building.Head.Stale = "billing", "/workspaces/w0", views.Badge{State: views.StateRunning, Label: "setting up", Since: ago(53 * time.Second)}, views.Badge{}, time.Time{}, nil
	building.Head.Use, building.Head.RebuildURL = nil, ""
	building.Conversations, building.Setup = []views.Row{waiting}, setup(now, "provisioning")
	add("/workspaces/w0", views.Workspace(building))
	broken := building
	broken.Head.RebuildURL = ""
	broken.Head.Name, broken.Head.URL, broken.Head.Status = "checkout", "/workspaces/w2", views.Badge{State: views.StateFailed, Label: "failed"}
	broken.Setup, broken.Conversations = setup(now, "failed"), nil
	add("/workspaces/w2", views.Workspace(broken))
	lost := rebuild(now)
	add("/workspaces/w1/rebuild", views.Rebuild(lost))
	lost.Errors = views.Errors{"": "A rebuild takes the machine from the workspace's turns: 1 running, 1 waiting. Wait for their end, or interrupt them."}
	add("/workspaces/w1/rebuild/refused", views.Rebuild(lost))
	add("/workspaces/w3/rebuild", views.Rebuild(views.RebuildPage{Page: page(now, "Rebuild docs", "workspaces"), Workspace: views.Link{Name: "docs", URL: "/workspaces/w3"}, Note: "This is what git found before the machine parked. Everything else on its disk goes too.",
		KnownAt: ago(3 * 24 * time.Hour), Clean: 1, DiskBytes: 1_400_000_000, WakeURL: "/workspaces/w3/wake"}))
	add("/workspaces/w2/rebuild", views.Rebuild(views.RebuildPage{Page: page(now, "Rebuild checkout", "workspaces"), Workspace: views.Link{Name: "checkout", URL: "/workspaces/w2"}, Gone: true, Note: "There is nothing to lose: the machine is gone already, with its disk."}))
	add("/workspaces/w0/rebuild", views.Rebuild(views.RebuildPage{Page: page(now, "Rebuild billing", "workspaces"), Workspace: views.Link{Name: "billing", URL: "/workspaces/w0"}, Problem: &views.Problem{Code: "rebuild_in_progress", Message: "The workspace's machine is being set up already. Follow that setup, and rebuild when it has ended."}}))
	gone := w1
	gone.Head.Status, gone.Head.MachineNote, gone.Head.ParksAt, gone.Head.Use, gone.Head.Stale = views.Badge{State: views.StateFailed, Label: "machine lost"}, "The machine does not exist any more.", time.Time{}, nil, nil
	gone.Head.DiagnosticsURL = "/workspaces/w1/diagnostics"
	add("/workspaces/w1/lost", views.Workspace(gone))
	parked := w1
	parked.Head.Status, parked.Head.WakeURL, parked.Head.MachineNote, parked.Head.ParksAt, parked.Head.Stale = views.Badge{State: views.StateParked, Label: "parked"}, "/workspaces/w1/wake", "wakes on the next prompt", time.Time{}, nil
	parked.Head.Use = nil
	away := w1
	away.Head.MachineNote, away.Head.ParksAt, away.Head.Use = "The server whose host runs the machine is away. The machine and its disk are kept.", time.Time{}, nil
	add("/workspaces/w1/away", views.Workspace(away))
	off := w1
	off.Start.Closed = "Nothing can be started here: the sandbox provider docker is switched off. The machine and its disk are kept."
	add("/workspaces/w1/off", views.Workspace(off))
	unable := w1
	unable.Start.Agents = w1.Start.Agents[1:]
	add("/workspaces/w1/unable", views.Workspace(unable))
	parked.Tab, parked.Files = "files", &views.FilesTab{NotReady: &views.NotReady{Message: "The machine is parked since 14:02, and reading never wakes it. Its disk is as it was left.", WakeURL: "/workspaces/w1/wake"}}
	add("/workspaces/w3", views.Workspace(parked))
	tab := func(name string, fill func(*views.WorkspacePage)) {
		p := workspace(now)
		p.Tab = name
		fill(&p)
		add("/workspaces/w1/"+map[string]string{"git": "git-status", "log": "setup-log"}[name]+strings.TrimPrefix(name, map[string]string{"git": "git", "log": "log"}[name]), views.Workspace(p))
	}
	tab("audit", func(p *views.WorkspacePage) {
		p.Audit = &views.AuditTab{Rows: []views.AuditRow{
			{At: ago(time.Minute), Actor: "owner@example.com", ActorKind: "user", Action: "workspace.rebuild", Resource: views.Link{Name: "storefront", URL: "/workspaces/w1"}, RequestID: "01JF3K8Z", Address: "192.0.2.4"},
			{At: ago(3 * time.Hour), Actor: "machine.idle", ActorKind: "system", Action: "workspace.park", Resource: views.Link{Name: "storefront", URL: "/workspaces/w1"}},
		}}
	})
	tab("files", func(p *views.WorkspacePage) {
		p.Files = &views.FilesTab{Path: "/home/sprite/storefront", Crumbs: []views.Link{{Name: "~", URL: "/workspaces/w1/files"}, {Name: "storefront", URL: "/workspaces/w1/files?path=storefront"}}, Cut: true, Entries: []views.FileEntry{
			{Name: ".git", Kind: "dir", URL: "#", Modified: ago(time.Hour)}, {Name: "cart", Kind: "dir", URL: "#", Modified: ago(4 * time.Minute)},
			{Name: "current", Kind: "link", Target: "/var/lib/app/releases/17", URL: "#", Modified: ago(90 * time.Hour)},
			{Name: "go.mod", Kind: "file", URL: "/workspaces/w1/file", Size: 1204, Modified: ago(3 * time.Hour)}, {Name: "main.go", Kind: "file", URL: "/workspaces/w1/file", Size: 48120, Modified: ago(2 * time.Minute)},
			{Name: long, Kind: "file", URL: "#", Size: 0, Modified: ago(2 * time.Minute)},
		}}
	})
	file := workspace(now)
	file.Tab, file.Files = "files", &views.FilesTab{Path: "/home/sprite/storefront/cart/total.go", Crumbs: []views.Link{{Name: "~", URL: "#"}, {Name: "storefront", URL: "#"}, {Name: "cart", URL: "#"}, {Name: "total.go"}}, File: &views.FileView{Name: "total.go", Size: 481200, Shown: 262144, Truncated: true, Text: goSource}}
	add("/workspaces/w1/file", views.Workspace(file))
	tab("git", func(p *views.WorkspacePage) {
		p.Git = &views.GitTab{Path: "/home/sprite/storefront", Repositories: []views.Option{{Value: "/home/sprite/storefront", Label: "~/storefront"}, {Value: "/home/sprite/shared", Label: "~/shared"}}, Branch: "fix-coupon", Upstream: "origin/main", Ahead: 2, Behind: 1, Head: "3f9c2d1", Entries: []views.GitEntry{
			{Path: "cart/total.go", Unstaged: "modified", DiffURL: "/workspaces/w1/diff"}, {Path: "cart/coupon.go", From: "cart/discount.go", Staged: "renamed"}, {Path: "notes.md", Unstaged: "untracked"}, {Path: "dist/" + long, Staged: "added", Unstaged: "modified"},
		}}
	})
	tab("diff", func(p *views.WorkspacePage) {
		p.Diff = &views.DiffTab{Path: "/home/sprite/storefront", Repositories: []views.Option{{Value: "/home/sprite/storefront", Label: "~/storefront"}}, PatchURL: "/workspaces/w1/patch", Files: markup.ParseDiff(patch)}
	})
	tab("log", func(p *views.WorkspacePage) {
		p.Setup = setup(now, "ready")
		p.Setup.Open = true
		p.Setup.Steps[5].Output = manyLines(10000)
		p.Setup.Steps[5].DroppedBytes = 1 << 20
	})
	tab("egress", func(p *views.WorkspacePage) {
		p.Egress = &views.EgressTab{Policy: "Limited: 4 hosts are allowed, everything else is denied. The model's own traffic goes through the gateway.", Rows: []views.EgressRow{
			{At: ago(time.Minute), Host: "model gateway", Method: "POST", Decision: views.StateDone, Word: "allowed", Rule: "gateway", Status: 200, In: 40213, Out: 18204, Took: 3400 * time.Millisecond, Conversation: views.Link{Name: "Fix the cart total", URL: "/conversations/c1"}},
			{At: ago(2 * time.Minute), Host: "proxy.internal:443", Method: "CONNECT", Decision: views.StateFailed, Word: "denied", Rule: "not in allowed_hosts", Conversation: views.Link{Name: "Fix the cart total", URL: "/conversations/c1"}},
			{At: ago(2 * time.Hour), Host: "packages.example.com:443", Method: "CONNECT", Decision: views.StateDone, Word: "allowed", Rule: "allowed_hosts", In: 12 << 20, Out: 40000, Took: 9 * time.Second, Conversation: views.Link{Name: "setup"}},
		}}
	})

	add("/conversations", views.Conversations(views.ConversationsPage{Page: page(now, "Conversations", "conversations"), Statuses: statuses, Rows: []views.ConversationRow{
		{ID: "c1", Title: views.Link{Name: "Fix the cart total when a coupon is applied twice", URL: "/conversations/c1#end"}, Agent: views.Link{Name: "Builder", URL: "/agents/a1"}, Runtime: "claude", Workspace: views.Link{Name: "storefront", URL: "/workspaces/w1"}, Status: views.Badge{State: views.StateRunning, Label: "turn 4", Since: ago(42 * time.Second)}, Why: "waiting for the model", Turns: 4, ActiveAt: ago(2 * time.Second)},
		{ID: "c2", Title: views.Link{Name: "Review the cart", URL: "/conversations/c2#end"}, Agent: views.Link{Name: "Reviewer", URL: "/agents/a2"}, Runtime: "claude", Workspace: views.Link{Name: "own machine"}, Status: views.Badge{State: views.StateFailed, Label: "failed"}, Why: "The runtime ended by itself.", Turns: 1, ActiveAt: ago(3 * time.Hour)},
		{ID: "c3", Title: views.Link{Name: long, URL: "/conversations/c3"}, Agent: views.Link{Name: long, URL: "/agents/a2"}, Runtime: "acp", Workspace: views.Link{Name: long, URL: "/workspaces/w4"}, Status: views.Badge{State: views.StateReady, Label: "idle"}, Turns: 10412, ActiveAt: ago(400 * 24 * time.Hour)},
	}}))
	add("/conversations/none", views.Conversations(views.ConversationsPage{Page: page(now, "Conversations", "conversations"), Statuses: statuses}))
	add("/conversations/nothing-found", views.Conversations(views.ConversationsPage{Page: page(now, "Conversations", "conversations"), Statuses: statuses, Query: "cuopon"}))
	add("/conversations/new", views.ConversationForm(views.ConversationFormPage{Page: page(now, "New conversation", "conversations"), Start: start}))
	refused := start
	refused.Prompt, refused.Cwd, refused.Errors = "Fix the cart total", "/etc", views.Errors{"cwd": "A folder lies under /home/sprite or under a repository of the environment; /etc does not."}
	add("/conversations/new/refused", views.ConversationForm(views.ConversationFormPage{Page: page(now, "New conversation", "conversations"), Start: refused}))
	add("/conversations/c1", views.Conversation(conversation(now)))
	quiet := conversation(now)
	quiet.Transcript, quiet.Working, quiet.Head, quiet.EarlierURL, quiet.Stream = views.NewTranscript("Builder", ""), views.Working{}, views.TurnState{Name: "A conversation that has not begun", State: views.Badge{State: views.StateReady, Label: "idle"}}, "", ""
	quiet.Facts = views.Facts{}
	add("/conversations/c0", views.Conversation(quiet))
	ended := conversation(now)
	ended.Stream, ended.Working, ended.Head = "", views.Working{}, views.TurnState{Name: long, State: views.Badge{State: views.StateFailed, Label: "failed"}}
	ended.Transcript = views.NewTranscript("Builder", "/conversations/c2/diagnostics")
	ended.Transcript.Append(failingRows(now.Add(-3 * time.Hour)))
	ended.Composer = views.Composer{Closed: "This conversation has ended. Its transcript stays."}
	ended.Manage.TerminateURL, ended.Queue = "", nil
	add("/conversations/c2", views.Conversation(ended))
	busy := conversation(now)
	busy.Stream = ""
	busy.Composer.Text, busy.Composer.Note = "And run the linter too.", &views.Problem{Code: "conversation_busy", Message: "Turn 4 is still running. Wait for its end or interrupt it; what you typed is still here."}
	add("/conversations/c5", views.Conversation(busy))
	heavy := conversation(now)
	heavy.Stream = ""
	heavy.Transcript = views.NewTranscript("Builder", "/d")
	heavy.Transcript.Append(heavyRows(now.Add(-time.Hour)))
	add("/conversations/long", views.Conversation(heavy))

	add("/agents", views.Agents(views.AgentsPage{Page: page(now, "Agents", "agents"), Rows: []views.AgentRow{
		{Name: views.Link{Name: "Builder", URL: "/agents/a1"}, Description: "Writes code, runs the tests, says what it did.", Runtime: "claude", Model: "anthropic/claude-sonnet-4-5", Version: 7, UpdatedAt: ago(26 * time.Hour)},
		{Name: views.Link{Name: long, URL: "/agents/a2"}, Description: long, Runtime: "acp", Version: 1, UpdatedAt: ago(5 * time.Minute)},
	}}))
	add("/agents/none", views.Agents(views.AgentsPage{Page: page(now, "Agents", "agents")}))
	agent := views.AgentForm{Name: "Builder", Description: "Writes code, runs the tests, says what it did.", Runtime: "claude", Model: "anthropic/claude-sonnet-4-5", System: "Run the tests before you say that something works.", AnyEnvironment: true, AllowedVaults: []string{"v1"},
		MCPServers: "{\n  \"tracker\": {\n    \"type\": \"http\",\n    \"url\": \"https://mcp.example.com\",\n    \"headers\": {\n      \"Authorization\": \"Bearer ${TRACKER_TOKEN}\"\n    }\n  }\n}\n",
		Skills:     []views.SkillForm{{Name: "release-notes", Content: "---\nname: release-notes\ndescription: How release notes are written here.\n---\nOne line a change, newest first.\n"}, {}},
		Runtimes:   []views.Option{{Value: "claude", Label: "claude"}, {Value: "acp", Label: "acp: a command in the machine"}}, Environments: []views.Option{{Label: "none"}, {Value: "e1", Label: "node-22"}, {Value: "e2", Label: "go-1.26"}}, Vaults: []views.Option{{Value: "v1", Label: "team-bot"}}}
	add("/agents/new", views.AgentNew(views.AgentFormPage{Page: page(now, "New agent", "agents"), Form: views.AgentForm{AnyEnvironment: true, AnyVault: true, Skills: []views.SkillForm{{}}, Runtimes: agent.Runtimes, Environments: agent.Environments, Vaults: agent.Vaults}}))
	add("/agents/a1", views.Agent(views.AgentPage{Page: page(now, "Builder", "agents"), URL: "/agents/a1", Name: "Builder", Tab: "edit", Form: agent, Version: 7, UpdatedAt: ago(26 * time.Hour), StartURL: "/conversations/new?agent_id=a1"}))
	agent.Errors = views.Errors{"model": "The runtime claude speaks to anthropic only; openai/gpt-5 does not fit.", "skills[0].name": "must be 1 to 64 of a-z, 0-9 and -", "mcp_servers": "mcp_servers.tracker.url must be an http or https address of at most 2048 bytes, without user, password and fragment"}
	agent.Model = "openai/gpt-5"
	add("/agents/a1/refused", views.Agent(views.AgentPage{Page: page(now, "Builder", "agents"), URL: "/agents/a1", Name: "Builder", Tab: "edit", Form: agent, Version: 7, UpdatedAt: ago(26 * time.Hour)}))
	add("/agents/a1/versions", views.Agent(views.AgentPage{Page: page(now, "Builder", "agents"), URL: "/agents/a1", Name: "Builder", Tab: "versions", Version: 3, UpdatedAt: ago(26 * time.Hour), From: 2, To: 3,
		Versions: []views.AgentVersion{{Number: 3, At: ago(26 * time.Hour), By: "owner@example.com", Changed: []string{"model", "system"}, DiffURL: "?to=3"}, {Number: 2, At: ago(48 * time.Hour), By: "key deploy", Changed: []string{"model"}, DiffURL: "?to=2"}, {Number: 1, At: ago(90 * time.Hour), By: "owner@example.com"}},
		Diff:     markup.Changes("Builder", "model: anthropic/claude-haiku-4-5\nruntime: claude\nsystem: |\n  Be brief.\n", "model: anthropic/claude-sonnet-4-5\nruntime: claude\nsystem: |\n  Be brief.\n  Run the tests before you say that something works.\n")}))

	add("/environments", views.Environments(views.EnvironmentsPage{Page: page(now, "Environments", "environments"), Rows: []views.EnvironmentRow{
		{Name: views.Link{Name: "node-22", URL: "/environments/e1"}, Holds: "apt 3, npm 1 · 2 repositories · setup script", Network: "limited, 4 hosts", Workspaces: 2, UpdatedAt: ago(2 * time.Hour)},
		{Name: views.Link{Name: long, URL: "/environments/e2"}, Holds: "nothing yet", Network: "unrestricted", UpdatedAt: ago(20 * 24 * time.Hour)},
	}}))
	add("/environments/none", views.Environments(views.EnvironmentsPage{Page: page(now, "Environments", "environments")}))
	add("/environments/new", views.EnvironmentNew(views.EnvironmentFormPage{Page: page(now, "New environment", "environments"), Form: views.EnvironmentForm{Repositories: []views.RepositoryForm{{}}, SetupTimeout: "120"}}))
	env := views.EnvironmentForm{Name: "node-22", Apt: "git\nripgrep\njq", Npm: "typescript", Repositories: []views.RepositoryForm{{URL: "https://git.example.com/storefront.git", MountPath: "/home/sprite/storefront", Ref: "main", SecretKey: "GIT_TOKEN"}, {}}, EnvVars: "CI=1\nNODE_ENV=test", Networking: "limited", AllowedHosts: "packages.example.com\n*.example.com", SetupScript: "set -eux\ncd storefront\nnpm ci\nnpm run build\n", SetupTimeout: "300"}
	add("/environments/e1", views.Environment(views.EnvironmentPage{Page: page(now, "node-22", "environments"), URL: "/environments/e1", Name: "node-22", UpdatedAt: ago(2 * time.Hour), Workspaces: []views.Link{{Name: "storefront", URL: "/workspaces/w1"}, {Name: "checkout", URL: "/workspaces/w2"}}, Form: env, Secrets: secrets(now, "/environments/e1/secrets", false)}))
	env.Repositories = []views.RepositoryForm{env.Repositories[0], {}}
	env.Errors = views.Errors{"packages.apt": "\"rip grep\" is not a package name.", "repositories[0].url": "A repository is cloned over https; this URL begins with ssh.", "setup_timeout_seconds": "1 to 900 seconds."}
	env.Apt, env.SetupTimeout, env.Repositories[0].URL = "git\nrip grep", "9000", "ssh://git@git.example.com/storefront.git"
	add("/environments/e1/refused", views.Environment(views.EnvironmentPage{Page: page(now, "node-22", "environments"), URL: "/environments/e1", Name: "node-22", UpdatedAt: ago(2 * time.Hour), Form: env, Secrets: views.SecretsPanel{URL: "/environments/e1/secrets"}}))

	add("/vaults", views.Vaults(views.VaultsPage{Page: page(now, "Vaults", "vaults"), Rows: []views.VaultRow{{Name: views.Link{Name: "team-bot", URL: "/vaults/v1"}, Description: "What the bot may use", Secrets: 3, UpdatedAt: ago(time.Hour)}}}))
	add("/vaults/none", views.Vaults(views.VaultsPage{Page: page(now, "Vaults", "vaults")}))
	add("/vaults/new", views.VaultNew(views.VaultFormPage{Page: page(now, "New vault", "vaults")}))
	vault := views.VaultPage{Page: page(now, "team-bot", "vaults"), URL: "/vaults/v1", Name: "team-bot", UpdatedAt: ago(time.Hour), Form: views.VaultForm{Name: "team-bot", Description: "What the bot may use"}, Secrets: secrets(now, "/vaults/v1/secrets", true)}
	vault.Flash = &views.Flash{State: views.StateDone, Text: "Saved secret GIT_TOKEN."}
	add("/vaults/v1", views.Vault(vault))

	add("/settings/keys", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "keys", Keys: views.KeysTab{Made: "mgt_6mJc1FqVhXo0u7e2N4kP8sRtYbDzLwGa", Rows: []views.KeyRow{{Name: "deploy", Prefix: "mgt_6mJc", Scope: "full", CreatedAt: ago(time.Second), DeleteURL: "#"}, {Name: long, Prefix: "mgt_a81B", Scope: "full", CreatedAt: ago(90 * time.Hour), UsedAt: ago(time.Minute), DeleteURL: "#"}}}}))
	add("/settings/keys/none", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "keys"}))
	providers := []views.Option{{Value: "anthropic", Label: "anthropic"}, {Value: "openai_compatible", Label: "openai compatible"}}
	add("/settings/credentials", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "credentials", Credentials: views.CredentialsTab{Providers: providers, Rows: []views.CredentialRow{{Name: "team", Provider: "anthropic", Kind: "API key", Default: true, ChangedAt: ago(time.Hour), DeleteURL: "#"}, {Name: "own server", Provider: "openai_compatible", Kind: "API key", BaseURL: "https://models.example.com/v1", ChangedAt: ago(time.Hour), DefaultURL: "#", DeleteURL: "#"}}}}))
	add("/settings/sessions", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "sessions", Sessions: []views.SessionRow{{Browser: "Firefox on Linux", Address: "192.0.2.4", Email: "owner@example.com", Current: true, CreatedAt: ago(5 * time.Hour), UsedAt: ago(0)}, {Browser: "Safari on iPhone", Address: "2001:db8::17", Email: "owner@example.com", CreatedAt: ago(50 * time.Hour), UsedAt: ago(20 * time.Hour), DeleteURL: "#"}}}))
	add("/settings/members", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "members", Members: []views.MemberRow{{Email: "owner@example.com", Role: "owner", JoinedAt: ago(500 * time.Hour), You: true}, {Email: "member@example.com", Role: "member", JoinedAt: ago(50 * time.Hour)}}}))

	add("/settings/account", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "account", Account: views.AccountTab{Name: "storefront team", Email: "owner@example.com", Owner: true, Errors: views.Errors{"confirm": "must be your own e-mail address"}}}))
	add("/settings/account/member", views.Settings(views.SettingsPage{Page: page(now, "Settings", "settings"), Tab: "account", Account: views.AccountTab{Name: "storefront team", Email: "member@example.com"}}))

	add("/audit", views.Audit(views.AuditPage{Page: page(now, "Audit", "audit"), Kinds: []views.Option{{Label: "anyone"}, {Value: "key", Label: "key"}}, Actions: []string{"workspace.create"}, Rows: []views.AuditRow{
		{At: ago(time.Minute), Actor: "owner@example.com", ActorKind: "user", Action: "environment.update", Resource: views.Link{Name: "node-22", URL: "/environments/e1"}, Changed: []string{"packages", "setup_script"}, RequestID: "01JF3K8Z", Address: "192.0.2.4"},
		{At: ago(2 * time.Hour), Actor: "deploy", ActorKind: "key", Action: "workspace.create", Resource: views.Link{Name: "storefront", URL: "/workspaces/w1"}, RequestID: "01JF3K7Q"},
		{At: ago(3 * time.Hour), Actor: "Fix the cart total", ActorKind: "sandbox", Action: "conversation.create", Resource: views.Link{Name: long, URL: "/conversations/c3"}, RequestID: "01JF3K7P"},
	}}))
	add("/audit/nothing-found", views.Audit(views.AuditPage{Page: page(now, "Audit", "audit"), Kinds: []views.Option{{Label: "anyone"}, {Value: "key", Label: "key"}}, Actions: []string{"workspace.create"}, Action: "workspace.explode"}))

	add("/error/404", views.Error(views.ErrorPage{Page: page(now, "Not found", ""), SignedIn: true, Status: 404, Heading: "Not found", Problem: views.Problem{Code: "not_found", Message: "There is no page or thing at this address. It may have been deleted, or belong to another account."}, Back: views.Link{Name: "Home", URL: "/"}}))
	add("/error/500", views.Error(views.ErrorPage{Page: page(now, "Something broke", ""), Status: 500, Heading: "Something broke on our side", Problem: views.Problem{Code: "internal", Message: "The server could not answer. Nothing you did caused it. Its log holds the reason under the request's id.", RequestID: "01JF3K8Z5M4T"}, Technical: true, Back: views.Link{Name: "Home", URL: "/"}}))
	return list
}

var statuses = []views.Option{{Label: "any status"}, {Value: "running", Label: "running"}, {Value: "idle", Label: "idle"}, {Value: "failed", Label: "failed"}, {Value: "terminated", Label: "ended"}}

func manyWorkspaces(now time.Time, n int) (rows []views.WorkspaceRow) {
	for i := range n {
		rows = append(rows, views.WorkspaceRow{ID: fmt.Sprint("m", i), Name: views.Link{Name: fmt.Sprintf("service-%03d", i), URL: "/workspaces/w1"}, Environment: views.Link{Name: "go-1.26", URL: "/environments/e2"}, Status: views.Badge{State: views.StateParked, Label: "parked"}, Conversations: i % 7, ActiveAt: now.Add(-time.Duration(i) * time.Hour)})
	}
	return rows
}

func manyLines(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "%05d  compiling unit %d of %d\n", i, i, n)
	}
	return out.String()
}

func secrets(now time.Time, url string, expires bool) views.SecretsPanel {
	return views.SecretsPanel{URL: url, Hint: "Each becomes a variable in the machine. Values are write-only: replaced, never shown.", Expires: expires, Rows: []views.SecretRow{
		{Key: "GIT_TOKEN", ChangedAt: now.Add(-20 * time.Minute), ExpiresAt: now.Add(30 * 24 * time.Hour), DeleteURL: url + "/GIT_TOKEN/delete"},
		{Key: "NPM_TOKEN", ChangedAt: now.Add(-90 * time.Hour), DeleteURL: url + "/NPM_TOKEN/delete"},
	}}
}

func workspace(now time.Time) views.WorkspacePage {
	return views.WorkspacePage{
		Page: page(now, "storefront", "workspaces"),
		Head: views.WorkspaceHead{
			ID: "w1", URL: "/workspaces/w1", Name: "storefront", Status: views.Badge{State: views.StateReady, Label: "ready"}, ParksAt: now.Add(41 * time.Minute),
			Use:         []views.MachineUse{{Name: "memory", Used: "412 MB", Limit: "4.3 GB"}, {Name: "processors", Used: "0.4", Limit: "2"}, {Name: "disk", Used: "20 GB", Limit: "21 GB", Full: true}},
			Environment: views.Link{Name: "node-22", URL: "/environments/e1"}, Vault: views.Link{Name: "team-bot", URL: "/vaults/v1"}, Provider: "local", DiskBytes: 1_400_000_000,
			Conversations: 3, CreatedAt: now.Add(-26 * time.Hour), Stale: []string{"packages", "setup_script"}, RebuildURL: "/workspaces/w1/rebuild",
		},
		Tab:   "conversations",
		Setup: setup(now, "ready"),
		Start: views.StartForm{Fixed: "w1", Agents: []views.Option{{Value: "a1", Label: "Builder · claude"}, {Value: "a2", Label: "Reviewer · codex · does not run in this version yet", Disabled: true}}},
		Conversations: []views.Row{
			{Badge: views.Badge{State: views.StateRunning, Label: "turn 4", Since: now.Add(-42 * time.Second)}, Title: views.Link{Name: "Fix the cart total when a coupon is applied twice", URL: "/conversations/c1#end"}, Note: "Builder · claude · ~/storefront"},
			{Badge: views.Badge{State: views.StateWaiting, Label: "waiting for you", Since: now.Add(-3 * time.Minute)}, Title: views.Link{Name: "Review the cart", URL: "/conversations/c2#end"}, Note: "Reviewer · claude · ~/storefront"},
			{Badge: views.Badge{State: views.StateReady, Label: "idle"}, Title: views.Link{Name: "Look into the flaky checkout test", URL: "/conversations/c3#end"}, Note: "Builder · claude · ~/storefront/e2e", At: now.Add(-2 * time.Hour)},
		},
		Ended: []views.Row{{Badge: views.Badge{State: views.StateOff, Label: "ended"}, Title: views.Link{Name: "Bump the dependencies", URL: "/conversations/c4#end"}, Note: "Builder · claude · ~/storefront", At: now.Add(-50 * time.Hour)}},
	}
}

// rebuild is the page of a workspace with all that can be lost.
func rebuild(now time.Time) views.RebuildPage {
	return views.RebuildPage{
		Page: page(now, "Rebuild storefront", "workspaces"), Workspace: views.Link{Name: "storefront", URL: "/workspaces/w1"}, Fields: []string{"packages", "setup_script", "env_vars"},
		Note: "This is what git finds on the machine now. Everything else on its disk goes too.", KnownAt: now.Add(-2 * time.Second), Clean: 2, DiskBytes: 1_400_000_000,
		Repositories: []views.RepositoryWork{
			{Path: "~/storefront", Branch: "fix-coupon", Staged: 1, Unstaged: 2, Untracked: 1, Unpushed: 2, Stashes: 1, DiffURL: "/workspaces/w1/diff", PatchURL: "/workspaces/w1/patch", Files: []views.GitEntry{
				{Path: "cart/total.go", Unstaged: "modified"}, {Path: "cart/coupon.go", From: "cart/discount.go", Staged: "renamed"}, {Path: "notes.md", Unstaged: "untracked"}, {Path: "dist/" + long, Unstaged: "modified"},
			}, Commits: []views.Commit{{ID: "3f9c2d1", Subject: "Count a coupon once"}, {ID: "0b7a6e4", Subject: long}}},
			{Path: "~/experiment", Unpushed: 1000, Cut: true, Commits: []views.Commit{{ID: "77ab1c9", Subject: "Try the other parser"}}},
			{Path: "~/broken", Error: "git failed in the machine: fatal: index file smaller than expected"},
		},
		Turns: []views.Row{
			{Badge: views.Badge{State: views.StateRunning, Label: "running"}, Title: views.Link{Name: "Fix the cart total when a coupon is applied twice", URL: "/conversations/c1#end"}, Note: "turn 4"},
			{Badge: views.Badge{State: views.StateWaiting, Label: "waiting"}, Title: views.Link{Name: long, URL: "/conversations/c3#end"}, Note: "turn 5"},
		},
	}
}

func setup(now time.Time, status string) views.SetupView {
	s := views.SetupView{Status: status, Took: 49200 * time.Millisecond, EndedAt: now.Add(-2 * time.Hour), RetryURL: "", EnvironmentURL: "/environments/e1", DiagnosticsURL: "/workspaces/w2/diagnostics", LogURL: "/workspaces/w2/setup-log", Steps: []views.SetupStep{
		{Name: "machine", State: views.StateDone, Note: "local · id 7f3c", Took: 46 * time.Millisecond},
		{Name: "broker", State: views.StateDone, Note: "limited · 4 hosts", Took: 110 * time.Millisecond},
		{Name: "environment", State: views.StateDone, Took: 8 * time.Millisecond},
		{Name: "packages", State: views.StateDone, Note: "apt 3, npm 1", Took: 41 * time.Second, Output: "Get:1 https://deb.example.com bookworm/main ripgrep amd64 13.0.0-4\nSetting up ripgrep (13.0.0-4) ...\n"},
		{Name: "repositories", State: views.StateDone, Note: "1", Took: 3400 * time.Millisecond, Output: "Cloning into '/home/sprite/storefront'...\n"},
		{Name: "setup_script", State: views.StateDone, Note: "time limit 300 s", Took: 4600 * time.Millisecond, Output: "+ npm ci\n\x1b[32madded 214 packages in 9s\x1b[0m\n+ npm run build\n"},
	}}
	last := &s.Steps[5]
	switch status {
	case "provisioning":
		last.State, last.StartedAt, last.Output = views.StateRunning, now.Add(-12*time.Second), "+ npm ci\n\x1b[32madded 214 packages in 9s\x1b[0m\n+ npm run build\n\x1b[2mvite building for production…\x1b[0m\n"
	case "failed":
		seven := 7
		last.State, last.Took, last.ExitCode = views.StateFailed, 12*time.Second, &seven
		last.Output = manyLines(188) + "npm ERR! code EINTEGRITY\n\x1b[31mnpm ERR! sha512 integrity checksum failed for left-pad@1.3.0\x1b[0m\n"
		s.Failure = &views.SetupFailure{Step: "setup_script", Message: "The setup script ended with exit code 7. Fix it in the environment, then retry: the next setup runs what the environment says then.", ExitCode: &seven}
		s.RetryURL = "/workspaces/w2/retry"
	}
	return s
}
