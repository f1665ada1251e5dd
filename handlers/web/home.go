package web

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/internal/conversation"
	"managoat/internal/input"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/views"
)

// recent is how many conversations that rest the home page shows.
const recent = 8

// ShowHome answers GET /.
func (w *Console) ShowHome(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	p := views.HomePage{Page: w.page(c, "Home", "home")}
	p.Page.Stream = "/stream"
	var err error
	if p.Start, err = w.startForm(ctx, a, nil); err != nil {
		return err
	}
	if p.Overview, err = w.overview(ctx, a); err != nil {
		return err
	}
	if p.Steps, err = w.firstSteps(ctx, a, p.Start); err != nil {
		return err
	}
	return html(c, http.StatusOK, views.Home(p))
}

// HomeStream keeps the home page true: GET /stream.
func (w *Console) HomeStream(c echo.Context) error {
	a := actor(c)
	return w.live(c, states, false, func(ctx context.Context) ([]views.Fragment, error) {
		o, err := w.overview(ctx, a)
		return []views.Fragment{{Target: views.IDOverview, Swap: views.SwapMorph, Content: views.OverviewRegion(o, time.Now())}}, err
	})
}

// states are the events after which a list of workspaces or conversations looks different.
func states(e stream.AccountEvent) bool {
	return e.Name == stream.WorkspaceStatus || e.Name == stream.ConversationStatus || e.Name == stream.PermissionRequested
}

// overview is what runs, what failed, what waits, and what rested last.
func (w *Console) overview(ctx context.Context, a tenant.Actor) (o views.Overview, err error) {
	spaces, err := w.Workspaces.List(ctx, a, false, input.Page{Limit: listSize})
	if err != nil {
		return o, err
	}
	for _, s := range spaces.Items {
		row := views.Row{Badge: workspaceBadge(s), Title: views.Link{Name: s.Name, URL: "/workspaces/" + s.ID.String()}, Note: "workspace", At: s.LastActiveAt}
		switch s.Status {
		case workspace.Provisioning, workspace.Deleting:
			row.Badge.Label = orElse(workspaceNote(s), row.Badge.Label)
			o.Running = append(o.Running, row)
		case workspace.Failed:
			row.Badge.Label = orElse(workspaceNote(s), row.Badge.Label)
			o.Failed = append(o.Failed, row)
		case workspace.Ready:
			if s.Stale {
				row.Badge = views.Badge{State: views.StateStale, Label: "rebuild needed"}
				row.Note = "workspace · changed: " + strings.Join(views.FieldWords(s.ChangedFields), ", ")
				o.Waiting = append(o.Waiting, row)
			}
		}
	}
	talks, err := w.Conversations.List(ctx, a, conversation.Filter{}, input.Page{Limit: listSize})
	if err != nil {
		return o, err
	}
	for _, t := range talks.Items {
		row := conversationLine(t)
		switch {
		case len(t.PendingRequests) > 0:
			o.Waiting = append(o.Waiting, row)
		case t.CurrentTurn != nil:
			o.Running = append(o.Running, row)
		case t.Status == conversation.Failed:
			o.Failed = append(o.Failed, row)
		case len(o.Recent) < recent:
			o.Recent = append(o.Recent, row)
		}
	}
	return o, nil
}

// conversationLine is a conversation as a line of a list.
func conversationLine(t conversation.Conversation) views.Row {
	note := []string{orElse(t.AgentName, "deleted agent"), t.Runtime}
	if !t.Workspace.Implicit {
		note = append(note, t.Workspace.Name)
	}
	return views.Row{Badge: conversationBadge(t), Title: views.Link{Name: titleOf(t), URL: "/conversations/" + t.ID.String() + "#end"},
		Note: strings.Join(append(note, short(t.Cwd)), " · "), At: t.LastActiveAt}
}

// short writes a path as a shell would show it.
func short(path string) string {
	if path == "/home/sprite" {
		return "~"
	}
	if rest, ok := strings.CutPrefix(path, "/home/sprite/"); ok {
		return "~/" + rest
	}
	return path
}

// firstSteps are what a new account still lacks; none once it has had a conversation.
func (w *Console) firstSteps(ctx context.Context, a tenant.Actor, f views.StartForm) ([]views.FirstStep, error) {
	talks, err := w.Conversations.List(ctx, a, conversation.Filter{}, input.Page{Limit: 1})
	if err != nil || len(talks.Items) > 0 {
		return nil, err
	}
	credentials, err := w.Inference.List(ctx, a, input.Page{Limit: 1})
	if err != nil {
		return nil, err
	}
	environments, err := w.Environments.List(ctx, a, input.Page{Limit: 1})
	if err != nil {
		return nil, err
	}
	return []views.FirstStep{
		{Done: len(credentials.Items) > 0, Text: "Save an inference credential: the key of a model", Link: views.Link{Name: "Inference credentials", URL: "/settings/credentials"}},
		{Done: len(environments.Items) > 0, Text: "Make an environment: what a machine holds", Link: views.Link{Name: "New environment", URL: "/environments/new"}},
		{Done: len(f.Agents) > 0, Text: "Make an agent: how the work is done", Link: views.Link{Name: "New agent", URL: "/agents/new"}},
		{Done: len(f.Workspaces) > 1, Text: "Create a workspace from the environment", Link: views.Link{Name: "New workspace", URL: "/workspaces/new"}},
		{Text: "Start a conversation", Link: views.Link{Name: "New conversation", URL: "/conversations/new"}},
	}, nil
}

// startForm is the form that starts a conversation: in a workspace, or, for nil, wherever one chooses. What could not run is
// not offered, and says why.
func (w *Console) startForm(ctx context.Context, a tenant.Actor, in *workspace.Workspace) (f views.StartForm, err error) {
	agents, err := w.Agents.List(ctx, a, input.Page{Limit: choices})
	if err != nil {
		return f, err
	}
	obstacles, err := w.Conversations.Obstacles(ctx, a, agents.Items, in)
	if err != nil {
		return f, err
	}
	var unable []views.Option
	for _, g := range agents.Items {
		o := views.Option{Value: g.ID.String(), Label: g.Name + " · " + g.Runtime}
		if why := obstacles[g.ID]; why != "" {
			o.Label, o.Disabled = o.Label+" · "+why, true
			unable = append(unable, o)
			continue
		}
		f.Agents = append(f.Agents, o)
	}
	f.Agents = append(f.Agents, unable...)
	if in != nil {
		f.Fixed = in.ID.String()
		if why := w.notOffered(*in); why != "" {
			f.Closed = "Nothing can be started here: " + why + ". The machine and its disk are kept."
		}
		return f, nil
	}
	f.Workspaces = []views.Option{{Label: "on a machine of its own"}}
	spaces, err := w.Workspaces.List(ctx, a, false, input.Page{Limit: choices})
	for _, s := range spaces.Items {
		if s.Status == workspace.Deleting {
			continue
		}
		o := views.Option{Value: s.ID.String(), Label: "in " + s.Name}
		if why := w.notOffered(s); why != "" {
			o.Label, o.Disabled = o.Label+" · "+why, true
		}
		f.Workspaces = append(f.Workspaces, o)
	}
	return f, err
}

// notOffered says that this instance does not offer the provider of a workspace; "" when it does.
func (w *Console) notOffered(s workspace.Workspace) string {
	if slices.Contains(w.Providers, s.SandboxProvider) {
		return ""
	}
	return "the sandbox provider " + s.SandboxProvider + " is switched off"
}
