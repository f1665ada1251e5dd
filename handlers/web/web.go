// Package web is the HTML edge: load, validate, call a service, answer with a page, a fragment or a redirect. Each file
// holds one page with its actions. The same services as the JSON edge decide everything; what is here only decodes forms
// and fills the view models of package views.
//
// Every page is complete without JavaScript: forms post, answers redirect. Where htmx asks (the HX-Request header), the
// same actions answer with the fragments that changed.
package web

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/account"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/conversation"
	"managoat/internal/environment"
	"managoat/internal/files"
	"managoat/internal/identity"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/ledger"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/tenant"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/views"
)

// Sizes of what a page shows at once.
const (
	listSize   = 100 // rows of a list
	choices    = input.MaxLimit
	maxFlash   = 512     // bytes of the sentence that survives a redirect
	gzipFrom   = 1 << 10 // a shorter page is sent as it is
	flashName  = "managoat_flash"
	flashLives = time.Minute
)

// Options are the services behind the pages.
type Options struct {
	Identity      *identity.Service
	Environments  *environment.Service
	Vaults        *vault.Service
	Agents        *agent.Service
	Inference     *inference.Service
	Workspaces    *workspace.Service
	Conversations *conversation.Service
	Files         *files.Service
	Ledger        *ledger.Service
	Audit         *audit.Service
	Reader        *stream.Reader
	Accounts      *account.Service

	SessionCookie   string   // name of the cookie that holds a browser's session
	Providers       []string // sandbox providers on offer
	DefaultProvider string
	Version         string
}

// Console answers the pages.
type Console struct {
	Options
	streams streams
}

// New makes the console.
func New(o Options) *Console {
	return &Console{Options: o, streams: streams{open: map[caller]int{}}}
}

// actor is who calls. The edge put it there; a route that is not public cannot run without one.
func actor(c echo.Context) tenant.Actor {
	a, ok := tenant.ActorFrom(c.Request().Context())
	if !ok {
		panic("web: no actor on a route that needs one")
	}
	return a
}

// page is what every page of a signed-in person begins with.
func (w *Console) page(c echo.Context, title, section string) views.Page {
	a := actor(c)
	return views.Page{Title: title, Section: section, Now: time.Now(), Account: a.Account, Email: a.Email, Flash: takeFlash(c)}
}

// id reads an id of the path; a malformed one answers like a missing one.
func id(c echo.Context, name string) (uuid.UUID, error) {
	parsed, err := uuid.Parse(c.Param(name))
	if err != nil {
		return uuid.Nil, refusal.NotFoundError()
	}
	return parsed, nil
}

// list reads which part of a list is asked for.
func list(c echo.Context) input.Page {
	return input.Page{Limit: listSize, Cursor: c.QueryParam("after")}
}

// older is the URL of the next part of a list, keeping its filters.
func older(c echo.Context, next string) string {
	if next == "" {
		return ""
	}
	query := c.Request().URL.Query()
	query.Set("after", next)
	return c.Request().URL.Path + "?" + query.Encode()
}

// html answers with a page. It is rendered before anything is sent, so that a page is whole or an error.
func html(c echo.Context, status int, page templ.Component) error {
	var body bytes.Buffer
	if err := page.Render(c.Request().Context(), &body); err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, echo.MIMETextHTMLCharsetUTF8)
	h.Add(echo.HeaderVary, echo.HeaderAcceptEncoding)
	if body.Len() < gzipFrom || !strings.Contains(c.Request().Header.Get(echo.HeaderAcceptEncoding), "gzip") {
		return c.HTMLBlob(status, body.Bytes())
	}
	h.Set(echo.HeaderContentEncoding, "gzip")
	c.Response().WriteHeader(status)
	z := gzip.NewWriter(c.Response())
	if _, err := z.Write(body.Bytes()); err != nil {
		return nil // the client is gone
	}
	_ = z.Close() // likewise
	return nil
}

// fragments answers htmx with what changes on its page.
func fragments(c echo.Context, status int, f ...views.Fragment) error {
	return html(c, status, views.Partials(f))
}

// inPlace tells whether htmx asks, which takes fragments.
func inPlace(c echo.Context) bool { return c.Request().Header.Get("HX-Request") == "true" }

// see redirects after an action, with what came of it.
func see(c echo.Context, where, done string) error {
	if done != "" {
		setFlash(c, views.Flash{State: views.StateDone, Text: done})
	}
	return c.Redirect(http.StatusSeeOther, where)
}

// refuse redirects after an action that was refused and whose page has no field to say it beside. What is not there is
// not found: another account's ids answer as ids of nothing do everywhere.
func refuse(c echo.Context, where string, err error) error {
	r, ok := refusal.As(err)
	if !ok || r.Code == refusal.NotFound {
		return err
	}
	setFlash(c, views.Flash{State: views.StateFailed, Text: r.Message})
	return c.Redirect(http.StatusSeeOther, where)
}

// A flash survives one redirect in a cookie of its own. It is text, shown escaped.

func setFlash(c echo.Context, f views.Flash) {
	if len(f.Text) > maxFlash {
		f.Text = strings.ToValidUTF8(f.Text[:maxFlash], "") + "…"
	}
	b, err := json.Marshal(f)
	if err != nil {
		return // strings; never
	}
	c.SetCookie(cookie(c, flashName, base64.RawURLEncoding.EncodeToString(b), time.Now().Add(flashLives)))
}

func takeFlash(c echo.Context) *views.Flash {
	held, err := c.Cookie(flashName)
	if err != nil || inPlace(c) {
		return nil
	}
	c.SetCookie(cookie(c, flashName, "", time.Unix(1, 0)))
	b, err := base64.RawURLEncoding.DecodeString(held.Value)
	if err != nil {
		return nil
	}
	var f views.Flash
	if json.Unmarshal(b, &f) != nil || f.Text == "" || len(f.Text) > maxFlash+8 {
		return nil
	}
	if f.State != views.StateFailed {
		f.State = views.StateDone
	}
	return &f
}

// cookie is one of ours: for this site and this console only, never for scripts.
func cookie(c echo.Context, name, value string, expires time.Time) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: "/", Expires: expires, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: c.Scheme() == "https"}
}

// fieldOf is the field beside which a refusal is shown that names none itself.
var fieldOf = map[refusal.Code]string{
	refusal.NameTaken: "name", refusal.EmailTaken: "email", refusal.CwdNotAllowed: "cwd", refusal.InvalidPrompt: "prompt", refusal.ModelInvalid: "model",
	refusal.EnvironmentNotFound: "environment_id", refusal.VaultNotFound: "vault_id", refusal.AgentNotFound: "agent_id", refusal.WorkspaceNotFound: "workspace_id",
	refusal.EnvironmentNotAllowed: "agent_id", refusal.VaultNotAllowed: "agent_id", refusal.ProviderDisabled: "sandbox_provider",
}

// formErrors makes a refusal of what a form sent into the reasons beside its fields; fields are the names that the form
// shows, and a reason for any other stands above them. An error that is no refusal is returned as it is.
func formErrors(err error, fields ...string) (views.Errors, int, error) {
	r, ok := refusal.As(err)
	if !ok || r.Code == refusal.NotFound {
		return nil, 0, err
	}
	shown := map[string]bool{}
	for _, f := range fields {
		shown[f] = true
	}
	out := views.Errors{}
	add := func(field, text string) {
		// A reason for an entry of a field stands at the field: env_vars.PATH at env_vars.
		for at := field; at != ""; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
			if shown[at] || strings.HasPrefix(at, "repositories[") && at == field {
				if at != field && !strings.Contains(text, field) {
					text = field + " " + text
				}
				out[at] = joined(out[at], text)
				return
			}
		}
		if field != "" {
			text = field + " " + text
		}
		out[""] = joined(out[""], text)
	}
	if all := refusal.FieldErrors(err); len(all) > 0 {
		for field, problems := range all {
			add(field, strings.Join(problems, "; "))
		}
	} else if field := fieldOf[r.Code]; shown[field] {
		out[field] = r.Message
	} else {
		out[""] = r.Message
	}
	return out, r.Status(), nil
}

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// lines are the entries of a field that holds one a line.
func lines(text string) []string {
	entries := []string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			entries = append(entries, line)
		}
	}
	return entries
}

// optionalID reads a choice that may be none. A malformed one is an id that nothing has.
func optionalID(value string) *uuid.UUID {
	if value == "" {
		return nil
	}
	parsed, err := uuid.Parse(value)
	if err != nil {
		parsed = uuid.Nil
	}
	return &parsed
}

func idText(v *uuid.UUID) string {
	if v == nil {
		return ""
	}
	return v.String()
}

// checkName makes sure that somebody who deletes a thing has its name before their eyes.
func checkName(c echo.Context, name string) views.Errors {
	if strings.TrimSpace(c.FormValue("confirm")) == strings.TrimSpace(name) {
		return nil
	}
	return views.Errors{"confirm": "This is not the name. Nothing was deleted."}
}

// problem is a refusal as a page shows it; nil for an error that is none.
func problem(err error) *views.Problem {
	r, ok := refusal.As(err)
	if !ok {
		return nil
	}
	return &views.Problem{Code: string(r.Code), Message: r.Message}
}

// address is a path with the parameters that are not empty.
func address(path string, params ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		if params[i+1] != "" {
			query.Set(params[i], params[i+1])
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func when(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
