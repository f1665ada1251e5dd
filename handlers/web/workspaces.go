package web

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/input"
	"managoat/internal/machine"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/views"
)

// ListWorkspaces answers GET /workspaces.
func (w *Console) ListWorkspaces(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	rows, next, err := w.workspaceRows(ctx, a, list(c))
	if err != nil {
		return err
	}
	p := views.WorkspacesPage{Page: w.page(c, "Workspaces", "workspaces"), Rows: rows, Pager: views.Pager{Older: older(c, next)}}
	p.Page.Stream = address("/workspaces/stream", "after", c.QueryParam("after"))
	return html(c, http.StatusOK, views.Workspaces(p))
}

// WorkspacesStream keeps the list true: GET /workspaces/stream.
func (w *Console) WorkspacesStream(c echo.Context) error {
	a, page := actor(c), list(c)
	return w.live(c, states, false, func(ctx context.Context) ([]views.Fragment, error) {
		rows, _, err := w.workspaceRows(ctx, a, page)
		return []views.Fragment{{Target: views.IDList, Swap: views.SwapMorph, Content: views.WorkspaceList(rows, time.Now())}}, err
	})
}

func (w *Console) workspaceRows(ctx context.Context, a tenant.Actor, page input.Page) (rows []views.WorkspaceRow, next string, err error) {
	all, err := w.Workspaces.List(ctx, a, false, page)
	if err != nil {
		return nil, "", err
	}
	environments, err := w.environmentLinks(ctx, a)
	if err != nil {
		return nil, "", err
	}
	for _, s := range all.Items {
		row := views.WorkspaceRow{ID: s.ID.String(), Name: views.Link{Name: s.Name, URL: "/workspaces/" + s.ID.String()}, Status: workspaceBadge(s), Note: workspaceNote(s),
			Stale: s.ChangedFields, Conversations: s.ConversationCount, ActiveAt: s.LastActiveAt}
		if s.EnvironmentID != nil {
			row.Environment = environments[*s.EnvironmentID]
		}
		rows = append(rows, row)
	}
	return rows, all.Next, nil
}

func (w *Console) environmentLinks(ctx context.Context, a tenant.Actor) (map[uuid.UUID]views.Link, error) {
	all, err := w.Environments.List(ctx, a, input.Page{Limit: choices})
	links := map[uuid.UUID]views.Link{}
	for _, e := range all.Items {
		links[e.ID] = environmentLink(e)
	}
	return links, err
}

// workspaceBadge is what a workspace is in, as people say it: its machine's state counts once it is ready.
func workspaceBadge(s workspace.Workspace) views.Badge {
	switch s.Status {
	case workspace.Provisioning:
		return views.Badge{State: views.StateRunning, Label: "setting up"}
	case workspace.Failed:
		return views.Badge{State: views.StateFailed, Label: "failed"}
	case workspace.Deleting:
		return views.Badge{State: views.StateOff, Label: "deleting"}
	}
	switch s.MachineStatus {
	case machine.Ready:
		if s.Transition != "" {
			return views.Badge{State: views.StateRunning, Label: s.Transition}
		}
		return views.Badge{State: views.StateReady, Label: "ready"}
	case machine.Suspended:
		if s.Transition != "" {
			return views.Badge{State: views.StateRunning, Label: s.Transition}
		}
		return views.Badge{State: views.StateParked, Label: "parked"}
	case machine.Lost, machine.Terminated, machine.Failed:
		return views.Badge{State: views.StateFailed, Label: "machine lost"}
	}
	return views.Badge{State: views.StateRunning, Label: orElse(s.Transition, "starting")}
}

// workspaceNote says more where the badge does not: the step that runs or failed.
func workspaceNote(s workspace.Workspace) string {
	switch {
	case s.Status == workspace.Failed && s.Error != nil:
		if v := views.Verdict(s.Error.ExitCode, s.Error.Signal); v != "" {
			return views.StepWord(s.Error.Step) + ": " + v
		}
		return views.StepWord(orElse(s.Error.Step, s.SetupStep))
	case s.Status == workspace.Provisioning && s.WaitingReason != "":
		return s.WaitingReason
	case s.Status == workspace.Provisioning && s.SetupStep != "":
		return views.StepWord(s.SetupStep)
	}
	return ""
}

// NewWorkspace shows the empty form: GET /workspaces/new.
func (w *Console) NewWorkspace(c echo.Context) error {
	return w.workspaceForm(c, http.StatusOK, views.WorkspaceFormPage{EnvironmentID: c.QueryParam("environment_id"), Provider: w.DefaultProvider})
}

func (w *Console) workspaceForm(c echo.Context, status int, p views.WorkspaceFormPage) error {
	ctx, a := c.Request().Context(), actor(c)
	p.Page = w.page(c, "New workspace", "workspaces")
	environments, err := w.Environments.List(ctx, a, input.Page{Limit: choices})
	if err != nil {
		return err
	}
	for _, e := range environments.Items {
		p.Environments = append(p.Environments, views.Option{Value: e.ID.String(), Label: e.Name})
	}
	vaults, err := w.Vaults.List(ctx, a, input.Page{Limit: choices})
	if err != nil {
		return err
	}
	p.Vaults = []views.Option{{Label: "none"}}
	for _, v := range vaults.Items {
		p.Vaults = append(p.Vaults, views.Option{Value: v.ID.String(), Label: v.Name})
	}
	for _, name := range w.Providers {
		p.Providers = append(p.Providers, views.Option{Value: name, Label: name})
	}
	return html(c, status, views.WorkspaceForm(p))
}

// CreateWorkspace makes a workspace and shows it being set up: POST /workspaces.
func (w *Console) CreateWorkspace(c echo.Context) error {
	p := views.WorkspaceFormPage{Name: c.FormValue("name"), EnvironmentID: c.FormValue("environment_id"), VaultID: c.FormValue("vault_id"), Provider: c.FormValue("sandbox_provider"), Fresh: c.FormValue("fresh") != ""}
	in := workspace.CreateInput{Name: p.Name, VaultID: optionalID(p.VaultID), SandboxProvider: p.Provider, Fresh: p.Fresh}
	if environment := optionalID(p.EnvironmentID); environment != nil {
		in.EnvironmentID = *environment
	}
	made, err := w.Workspaces.Create(c.Request().Context(), actor(c), in)
	if err == nil {
		return see(c, "/workspaces/"+made.ID.String(), "")
	}
	errs, status, err := formErrors(err, "name", "environment_id", "vault_id", "sandbox_provider")
	if err != nil {
		return err
	}
	p.Errors = errs
	return w.workspaceForm(c, status, p)
}

// about tells which events concern a workspace.
func about(workspaceID uuid.UUID) func(stream.AccountEvent) bool {
	return func(e stream.AccountEvent) bool {
		switch e.Name {
		case stream.WorkspaceStatus, stream.WorkspaceSetup, stream.ConversationStatus:
			var body struct {
				WorkspaceID uuid.UUID `json:"workspace_id"`
			}
			return unmarshal(e.Body, &body) && body.WorkspaceID == workspaceID
		}
		return false
	}
}
