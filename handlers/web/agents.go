package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/agent"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/views"
	"managoat/views/markup"
)

var agentFields = []string{"name", "description", "system", "runtime", "runtime_command", "model", "environment_id", "allowed_environment_ids", "allowed_vault_ids",
	"mcp_servers", "skills"}

// ListAgents answers GET /agents.
func (w *Console) ListAgents(c echo.Context) error {
	all, err := w.Agents.List(c.Request().Context(), actor(c), list(c))
	if err != nil {
		return err
	}
	p := views.AgentsPage{Page: w.page(c, "Agents", "agents"), Pager: views.Pager{Older: older(c, all.Next)}}
	for _, g := range all.Items {
		p.Rows = append(p.Rows, views.AgentRow{Name: agentLink(g), Description: g.Description, Runtime: g.Runtime, Model: text(g.Model), Version: g.Version, UpdatedAt: g.UpdatedAt})
	}
	return html(c, http.StatusOK, views.Agents(p))
}

func agentLink(g agent.Agent) views.Link {
	return views.Link{Name: g.Name, URL: "/agents/" + g.ID.String()}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// choicesFor fills in what an agent's form lets one choose from.
func (w *Console) choicesFor(ctx context.Context, a tenant.Actor, f *views.AgentForm) error {
	f.Runtimes = []views.Option{{Value: agent.Claude, Label: "claude"}, {Value: agent.Codex, Label: "codex (does not run yet)"}, {Value: agent.Gemini, Label: "gemini (does not run yet)"},
		{Value: agent.ACP, Label: "acp: a command in the machine"}}
	f.Skills = append(f.Skills, views.SkillForm{}) // to fill in without JavaScript
	f.Environments, f.Vaults = []views.Option{{Label: "none"}}, nil
	environments, err := w.Environments.List(ctx, a, input.Page{Limit: choices})
	if err != nil {
		return err
	}
	for _, e := range environments.Items {
		f.Environments = append(f.Environments, views.Option{Value: e.ID.String(), Label: e.Name})
	}
	vaults, err := w.Vaults.List(ctx, a, input.Page{Limit: choices})
	if err != nil {
		return err
	}
	for _, v := range vaults.Items {
		f.Vaults = append(f.Vaults, views.Option{Value: v.ID.String(), Label: v.Name})
	}
	return nil
}

func agentForm(g agent.Config) views.AgentForm {
	f := views.AgentForm{Name: g.Name, Description: g.Description, System: g.System, Runtime: g.Runtime, RuntimeCommand: g.RuntimeCommand, Model: text(g.Model),
		EnvironmentID: idText(g.EnvironmentID), AnyEnvironment: g.AllowedEnvironmentIDs == nil, AllowedEnvs: idTexts(g.AllowedEnvironmentIDs),
		AnyVault: g.AllowedVaultIDs == nil, AllowedVaults: idTexts(g.AllowedVaultIDs)}
	if len(g.MCPServers) > 0 {
		f.MCPServers = indented(g.MCPServers)
	}
	for _, s := range g.Skills {
		f.Skills = append(f.Skills, views.SkillForm{Name: s.Name, Content: s.Content})
	}
	return f
}

// indented is a value's JSON for people.
func indented(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(err) // our own types
	}
	return b.String()
}

func idTexts(all []uuid.UUID) (texts []string) {
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return texts
}

func sentAgent(c echo.Context) views.AgentForm {
	f := views.AgentForm{Name: c.FormValue("name"), Description: input.Lines(c.FormValue("description")), System: input.Lines(c.FormValue("system")),
		Runtime: c.FormValue("runtime"), RuntimeCommand: c.FormValue("runtime_command"), Model: c.FormValue("model"), EnvironmentID: c.FormValue("environment_id"),
		AnyEnvironment: c.FormValue("allowed_environment_ids_any") != "false", AnyVault: c.FormValue("allowed_vault_ids_any") != "false",
		MCPServers: input.Lines(c.FormValue("mcp_servers"))}
	values, err := c.FormParams()
	if err != nil {
		return f
	}
	f.AllowedEnvs, f.AllowedVaults = values["allowed_environment_ids"], values["allowed_vault_ids"]
	contents := values["skills.content"]
	for i, name := range values["skills.name"] {
		s := views.SkillForm{Name: strings.TrimSpace(name)}
		if i < len(contents) {
			s.Content = input.Lines(contents[i])
		}
		if s.Name != "" || strings.TrimSpace(s.Content) != "" {
			f.Skills = append(f.Skills, s)
		}
	}
	return f
}

// writeAgent puts a form over a configuration; what the form does not show stays. What text cannot mean is a validation error
// of its field, together with what the rules say of the rest.
func writeAgent(f views.AgentForm, g *agent.Config) error {
	g.Name, g.Description, g.System, g.Runtime, g.RuntimeCommand = f.Name, f.Description, f.System, f.Runtime, f.RuntimeCommand
	g.Model = nil
	if f.Model != "" {
		g.Model = &f.Model
	}
	g.EnvironmentID = optionalID(f.EnvironmentID)
	g.AllowedEnvironmentIDs, g.AllowedVaultIDs = ids(f.AnyEnvironment, f.AllowedEnvs), ids(f.AnyVault, f.AllowedVaults)
	g.Skills = nil
	for _, s := range f.Skills {
		g.Skills = append(g.Skills, agent.Skill{Name: s.Name, Content: s.Content})
	}
	g.MCPServers = nil
	if err := readServers(f.MCPServers, g); err != nil {
		return together(err, g.Validate())
	}
	return nil
}

// readServers reads the field of MCP servers as strictly as the API does.
func readServers(text string, g *agent.Config) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var raw json.RawMessage
	var syntax *json.SyntaxError
	if err := json.Unmarshal([]byte(text), &raw); errors.As(err, &syntax) {
		var v refusal.Validation
		line := 1 + strings.Count(text[:min(int(syntax.Offset), len(text))], "\n")
		v.Add("mcp_servers", "is not JSON: line %d, %s", line, strings.TrimPrefix(syntax.Error(), "json: "))
		return v.Err()
	}
	body, err := json.Marshal(map[string]json.RawMessage{"mcp_servers": raw})
	if err != nil {
		return err
	}
	return input.Decode(body, g)
}

func ids(any bool, texts []string) []uuid.UUID {
	if any {
		return nil
	}
	all := []uuid.UUID{}
	for _, t := range texts {
		if one := optionalID(t); one != nil {
			all = append(all, *one)
		}
	}
	return all
}

// NewAgent shows the empty form: GET /agents/new.
func (w *Console) NewAgent(c echo.Context) error {
	form := agentForm(agent.New())
	form.Runtime = orElse(form.Runtime, agent.Claude)
	return w.newAgent(c, http.StatusOK, form)
}

func (w *Console) newAgent(c echo.Context, status int, form views.AgentForm) error {
	if err := w.choicesFor(c.Request().Context(), actor(c), &form); err != nil {
		return err
	}
	return html(c, status, views.AgentNew(views.AgentFormPage{Page: w.page(c, "New agent", "agents"), Form: form}))
}

// CreateAgent keeps a new agent: POST /agents.
func (w *Console) CreateAgent(c echo.Context) error {
	form, config := sentAgent(c), agent.New()
	err := writeAgent(form, &config)
	if err == nil {
		var made agent.Agent
		if made, err = w.Agents.Create(c.Request().Context(), actor(c), config); err == nil {
			return see(c, "/agents/"+made.ID.String(), "Created the agent "+made.Name+".")
		}
	}
	errs, status, err := formErrors(err, agentFields...)
	if err != nil {
		return err
	}
	form.Errors = errs
	return w.newAgent(c, status, form)
}

// ShowAgent answers GET /agents/{id}.
func (w *Console) ShowAgent(c echo.Context) error {
	return w.agent(c, http.StatusOK, func(*views.AgentPage) {})
}

// agent shows an agent as it is, with what edit changes on the page.
func (w *Console) agent(c echo.Context, status int, edit func(*views.AgentPage)) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	g, err := w.Agents.Get(ctx, a, at)
	if err != nil {
		return err
	}
	p := views.AgentPage{Page: w.page(c, g.Name, "agents"), URL: "/agents/" + at.String(), Name: g.Name, Tab: "edit", Form: agentForm(g.Config), Version: g.Version,
		UpdatedAt: g.UpdatedAt, StartURL: "/conversations/new?agent_id=" + at.String()}
	edit(&p)
	if err := w.choicesFor(ctx, a, &p.Form); err != nil {
		return err
	}
	return html(c, status, views.Agent(p))
}

// UpdateAgent saves the form as the next version: POST /agents/{id}.
func (w *Console) UpdateAgent(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	form := sentAgent(c)
	made, err := w.Agents.Update(c.Request().Context(), actor(c), at, int(number(c.FormValue("version"))), func(g *agent.Config) error {
		return writeAgent(form, g)
	})
	if err == nil {
		return see(c, "/agents/"+at.String(), "Saved version "+strconv.Itoa(made.Version)+" of "+made.Name+".")
	}
	errs, status, err := formErrors(err, agentFields...)
	if err != nil {
		return err
	}
	form.Errors = errs
	return w.agent(c, status, func(p *views.AgentPage) { p.Form = form })
}

// DeleteAgent removes an agent: POST /agents/{id}/delete.
func (w *Console) DeleteAgent(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	g, err := w.Agents.Get(ctx, a, at)
	if err != nil {
		return err
	}
	status, errs := http.StatusUnprocessableEntity, checkName(c, g.Name)
	if errs == nil {
		if err = w.Agents.Delete(ctx, a, at); err == nil {
			return see(c, "/agents", "Deleted the agent "+g.Name+".")
		}
		if errs, status, err = formErrors(err, "confirm"); err != nil {
			return err
		}
		errs["confirm"] = errs[""]
	}
	return w.agent(c, status, func(p *views.AgentPage) { p.DeleteErrors = errs })
}

// ShowAgentVersions lists an agent's versions and the difference that ?to= made: GET /agents/{id}/versions.
func (w *Console) ShowAgentVersions(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	all, err := w.Agents.Versions(ctx, a, at, list(c))
	if err != nil {
		return err
	}
	base := "/agents/" + at.String() + "/versions"
	fill := func(p *views.AgentPage) { p.Tab = "versions" }
	var rows []views.AgentVersion
	for i, v := range all.Items {
		row := views.AgentVersion{Number: v.Version, At: v.InsertedAt, By: v.CreatedBy}
		if v.Version > 1 {
			row.DiffURL = base + "?to=" + strconv.Itoa(v.Version) + "#diff"
			if i+1 < len(all.Items) {
				row.Changed = input.Changed(all.Items[i+1].Config, v.Config)
			}
		}
		rows = append(rows, row)
	}
	to := int(number(c.QueryParam("to")))
	var diff markup.FileDiff
	if to > 1 {
		before, err := w.Agents.Version(ctx, a, at, to-1)
		if err != nil {
			return err
		}
		after, err := w.Agents.Version(ctx, a, at, to)
		if err != nil {
			return err
		}
		diff = configDiff(before.Config, after.Config)
	} else if to == 1 {
		return refusal.NotFoundError()
	}
	return w.agent(c, http.StatusOK, func(p *views.AgentPage) {
		fill(p)
		p.Versions, p.VersionsPager = rows, views.Pager{Older: older(c, all.Next)}
		if to > 1 {
			p.From, p.To, p.Diff = to-1, to, diff
		}
	})
}

func configDiff(before, after agent.Config) markup.FileDiff {
	return markup.Changes("agent.json", configText(before), configText(after))
}

// configText is a configuration for a difference: its texts of several lines stand below it, line by line.
func configText(c agent.Config) string {
	var texts strings.Builder
	text := func(name string, content *string) {
		if strings.Contains(*content, "\n") {
			fmt.Fprintf(&texts, "\n%s:\n%s\n", name, strings.TrimSuffix(*content, "\n"))
			*content = "below"
		}
	}
	text("system", &c.System)
	c.Skills = slices.Clone(c.Skills)
	for i := range c.Skills {
		text("skill "+c.Skills[i].Name, &c.Skills[i].Content)
	}
	return indented(c) + texts.String()
}
