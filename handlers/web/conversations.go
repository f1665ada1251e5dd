package web

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/internal/conversation"
	"managoat/internal/input"
	"managoat/internal/tenant"
	"managoat/views"
)

var statuses = []views.Option{
	{Label: "any status"}, {Value: conversation.Running, Label: "running"}, {Value: conversation.Idle, Label: "idle"}, {Value: conversation.Pending, Label: "not begun"},
	{Value: conversation.Failed, Label: "failed"}, {Value: conversation.Terminated, Label: "ended"},
}

// ListConversations answers GET /conversations.
func (w *Console) ListConversations(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	p := views.ConversationsPage{Page: w.page(c, "Conversations", "conversations"), Query: c.QueryParam("q"), Status: c.QueryParam("status"), Statuses: statuses}
	rows, next, err := w.conversationRows(ctx, a, filter(c), list(c))
	if err != nil {
		return err
	}
	p.Rows, p.Pager = rows, views.Pager{Older: older(c, next)}
	p.Page.Stream = address("/conversations/stream", "q", p.Query, "status", p.Status, "after", c.QueryParam("after"))
	return html(c, http.StatusOK, views.Conversations(p))
}

func filter(c echo.Context) conversation.Filter {
	return conversation.Filter{Text: c.QueryParam("q"), Status: c.QueryParam("status")}
}

// ConversationsStream keeps the list true: GET /conversations/stream.
func (w *Console) ConversationsStream(c echo.Context) error {
	a, f, page := actor(c), filter(c), list(c)
	return w.live(c, states, false, func(ctx context.Context) ([]views.Fragment, error) {
		rows, _, err := w.conversationRows(ctx, a, f, page)
		return []views.Fragment{{Target: views.IDList, Swap: views.SwapMorph, Content: views.ConversationList(rows, time.Now())}}, err
	})
}

func (w *Console) conversationRows(ctx context.Context, a tenant.Actor, f conversation.Filter, page input.Page) (rows []views.ConversationRow, next string, err error) {
	all, err := w.Conversations.List(ctx, a, f, page)
	for _, t := range all.Items {
		row := views.ConversationRow{ID: t.ID.String(), Title: views.Link{Name: titleOf(t), URL: "/conversations/" + t.ID.String() + "#end"}, Agent: agentOf(t), Runtime: t.Runtime,
			Workspace: workspaceOf(t), Status: conversationBadge(t), Turns: t.TurnCount, ActiveAt: t.LastActiveAt}
		if t.CurrentTurn != nil && t.CurrentTurn.WaitingFor != nil {
			row.Why = waitingText(*t.CurrentTurn.WaitingFor)
		} else if t.Error != nil {
			row.Why = orElse(conversation.Meaning(t.Error.Code), t.Error.Message)
		}
		rows = append(rows, row)
	}
	return rows, all.Next, err
}

func titleOf(t conversation.Conversation) string {
	if t.Title != "" {
		return t.Title
	}
	first, _, _ := strings.Cut(strings.TrimSpace(t.FirstPrompt), "\n")
	return orElse(first, "Conversation "+shortID(t.ID.String()))
}

func agentOf(t conversation.Conversation) views.Link {
	if t.AgentName == "" {
		return views.Link{Name: "a deleted agent"}
	}
	return views.Link{Name: t.AgentName, URL: "/agents/" + t.AgentID.String()}
}

func workspaceOf(t conversation.Conversation) views.Link {
	if t.Workspace.Implicit {
		return views.Link{Name: "own machine"}
	}
	l := views.Link{Name: t.Workspace.Name}
	if t.Workspace.Status != "deleted" {
		l.URL = "/workspaces/" + t.Workspace.ID.String()
	}
	return l
}

// conversationBadge is what a conversation is in, with the clock of its running turn.
func conversationBadge(t conversation.Conversation) views.Badge {
	if turn := t.CurrentTurn; turn != nil {
		b := views.Badge{State: views.StateRunning, Label: "turn " + views.Count(turn.TurnNumber), Since: turn.InsertedAt}
		if turn.StartedAt != nil {
			b.Since = *turn.StartedAt
		} else {
			b.State = views.StateWaiting
		}
		return b
	}
	switch t.Status {
	case conversation.Failed:
		return views.Badge{State: views.StateFailed, Label: "failed"}
	case conversation.Terminated:
		return views.Badge{State: views.StateOff, Label: "ended"}
	case conversation.Pending:
		return views.Badge{State: views.StateOff, Label: "not begun"}
	}
	return views.Badge{State: views.StateReady, Label: "idle"}
}

// waitingText says what a turn waits for.
func waitingText(w conversation.Waiting) string {
	switch w.Reason {
	case conversation.ForQueue:
		if w.Detail == "" {
			return "Waiting to begin"
		}
		return "Queued behind turn " + w.Detail
	case conversation.ForHost:
		return "Waiting for the server whose host runs the machine: it is away"
	case conversation.ForSetup:
		if w.Detail != "" {
			return "Waiting for the setup: " + views.StepWord(w.Detail)
		}
		return "Waiting for the setup"
	case conversation.ForMachine:
		if w.Detail != "" {
			return "Waiting for the machine to park, to wake it again"
		}
		return "Waiting for the machine to start"
	case conversation.ForHome:
		return "Preparing the config home"
	case conversation.ForAdapter:
		if w.Detail == "installing" {
			return "Installing the runtime"
		}
		return "Starting the runtime"
	case conversation.ForSession:
		return "Opening the session"
	case conversation.ForModel:
		return "Waiting for the model"
	}
	return "Waiting for the " + views.Words(w.Reason)
}

// NewConversation shows the form: GET /conversations/new.
func (w *Console) NewConversation(c echo.Context) error {
	f, err := w.startForm(c.Request().Context(), actor(c), nil)
	if err != nil {
		return err
	}
	f.AgentID, f.WorkspaceID = c.QueryParam("agent_id"), c.QueryParam("workspace_id")
	return html(c, http.StatusOK, views.ConversationForm(views.ConversationFormPage{Page: w.page(c, "New conversation", "conversations"), Start: f}))
}

// CreateConversation starts one: POST /conversations.
func (w *Console) CreateConversation(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	prompt := input.Lines(c.FormValue("prompt"))
	in := conversation.CreateInput{WorkspaceID: optionalID(c.FormValue("workspace_id")), Cwd: strings.TrimSpace(c.FormValue("cwd")), Prompt: &prompt}
	if agent := optionalID(c.FormValue("agent_id")); agent != nil {
		in.AgentID = *agent
	}
	made, err := w.Conversations.Create(ctx, a, in)
	if err == nil {
		return see(c, "/conversations/"+made.ID.String()+"#end", "")
	}
	errs, status, err := formErrors(err, "prompt", "agent_id", "workspace_id", "cwd")
	if err != nil {
		return err
	}
	f, err := w.startForm(ctx, a, nil)
	if err != nil {
		return err
	}
	f.Prompt, f.Cwd, f.AgentID, f.WorkspaceID, f.Errors = prompt, in.Cwd, c.FormValue("agent_id"), c.FormValue("workspace_id"), errs
	return html(c, status, views.ConversationForm(views.ConversationFormPage{Page: w.page(c, "New conversation", "conversations"), Start: f}))
}
