package web

import (
	"context"
	"net/http"
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
	if p.Start, err = w.startForm(ctx, a, ""); err != nil {
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
				row.Note = "workspace · changed: " + strings.Join(s.ChangedFields, ", ")
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

// startForm is the form that starts a conversation; fixed names the workspace when there is no choice.
func (w *Console) startForm(ctx context.Context, a tenant.Actor, fixed string) (f views.StartForm, err error) {
	f.Fixed = fixed
	agents, err := w.Agents.List(ctx, a, input.Page{Limit: choices})
	if err != nil {
		return f, err
	}
	for _, g := range agents.Items {
		f.Agents = append(f.Agents, views.Option{Value: g.ID.String(), Label: g.Name + " · " + g.Runtime})
	}
	if fixed != "" {
		return f, nil
	}
	f.Workspaces = []views.Option{{Label: "on a machine of its own"}}
	spaces, err := w.Workspaces.List(ctx, a, false, input.Page{Limit: choices})
	for _, s := range spaces.Items {
		if s.Status != workspace.Deleting {
			f.Workspaces = append(f.Workspaces, views.Option{Value: s.ID.String(), Label: "in " + s.Name})
		}
	}
	return f, err
}
