package web

import (
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/audit"
	"managoat/internal/input"
	"managoat/internal/tenant"
	"managoat/views"
)

// pages are where the resources of the trail are shown.
var pages = map[string]string{
	"workspace": "/workspaces/", "conversation": "/conversations/", "agent": "/agents/", "environment": "/environments/", "vault": "/vaults/",
}

// ShowAudit lists who changed what: GET /audit.
func (w *Console) ShowAudit(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	p := views.AuditPage{Page: w.page(c, "Audit", "audit"), Action: c.QueryParam("action"), Actor: c.QueryParam("actor")}
	p.Kinds = []views.Option{{Label: "anyone"}}
	for _, k := range []tenant.ActorKind{tenant.User, tenant.Key, tenant.Sandbox, tenant.Operator, tenant.System} {
		p.Kinds = append(p.Kinds, views.Option{Value: string(k), Label: string(k)})
	}
	for _, action := range audit.Actions {
		p.Actions = append(p.Actions, string(action))
	}
	trail, err := w.Audit.List(ctx, a, audit.Filter{Action: audit.Action(p.Action), ActorKind: tenant.ActorKind(p.Actor)}, list(c))
	if err != nil {
		return err
	}
	names, err := w.names(c, a)
	if err != nil {
		return err
	}
	p.Rows = auditRows(trail.Items, names)
	p.Pager = views.Pager{Older: older(c, trail.Next)}
	return html(c, http.StatusOK, views.Audit(p))
}

// auditRows are rows of the trail, with the names of people and keys.
func auditRows(trail []audit.Event, names map[string]string) (rows []views.AuditRow) {
	for _, e := range trail {
		row := views.AuditRow{At: e.InsertedAt, Actor: orElse(names[e.ActorID], e.ActorID), ActorKind: e.Actor, Action: string(e.Action),
			Resource: views.Link{Name: views.Words(e.ResourceType) + " " + shortID(e.ResourceID)}, Changed: e.Metadata.ChangedFields, RequestID: e.RequestID, Address: e.RequestIP}
		if path := pages[e.ResourceType]; path != "" {
			row.Resource.URL = path + e.ResourceID
		}
		rows = append(rows, row)
	}
	return rows
}

// names are the people and keys of the account, by id.
func (w *Console) names(c echo.Context, a tenant.Actor) (map[string]string, error) {
	names := map[string]string{}
	members, err := w.Identity.Members(c.Request().Context(), a)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		names[m.ID.String()] = m.Email
	}
	keys, err := w.Identity.Keys(c.Request().Context(), a, input.Page{Limit: choices})
	if err != nil {
		return nil, err
	}
	for _, k := range keys.Items {
		names[k.ID.String()] = k.Name
	}
	return names, nil
}

// shortID is the end of an id, which tells things made together apart.
func shortID(text string) string {
	if _, err := uuid.Parse(text); err != nil || len(text) < 8 {
		return text
	}
	return text[len(text)-8:]
}
