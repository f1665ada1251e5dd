package handlers

import (
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"managoat/handlers/api"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

// Names in the OpenAPI document.
const (
	schemeKey     = "key"     // an API key in the Authorization header
	schemeSession = "session" // a browser's cookie
	refused       = "Refusal" // every answer of no
)

// documentConfig is huma's configuration. What it would serve itself are rows of the table here.
func documentConfig(version string) huma.Config {
	config := huma.DefaultConfig("Managoat", version)
	config.Info.Description = "A runtime for coding agents: environments, workspaces, agents and their conversations."
	config.DocsPath, config.SchemasPath, config.OpenAPIPath = "", "", ""
	config.CreateHooks = nil // no $schema links in bodies
	config.RejectUnknownQueryParameters = true
	config.Formats = map[string]huma.Format{echo.MIMEApplicationJSON: api.Format, "json": api.Format}
	config.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		schemeKey:     {Type: "http", Scheme: "bearer", Description: "An API key: Authorization: Bearer mgt_…"},
		schemeSession: {Type: "apiKey", In: "cookie", Name: SessionCookie, Description: "A browser's session. Writes from another site are refused."},
	}
	return config
}

// operation describes a row of the JSON API.
func operation(r Route) huma.Operation {
	return huma.Operation{
		Method: r.Method, Path: r.Path, DefaultStatus: r.status(), Summary: r.Summary, Description: r.description(),
		OperationID: operationID(r), Tags: []string{tag(r.Path)}, Security: r.security(),
	}
}

// security says who may call, with the scopes of keys as roles.
func (r Route) security() []map[string][]string {
	if r.Access == Public {
		return nil
	}
	ways := []map[string][]string{{schemeKey: {string(tenant.ScopeFull)}}, {schemeSession: {}}}
	if r.Sandbox != Never {
		ways = append(ways, map[string][]string{schemeKey: {string(tenant.ScopeSandbox)}})
	}
	return ways
}

// description says what the row holds beside its summary.
func (r Route) description() string {
	var said []string
	if r.Sandbox == Own {
		said = append(said, "A sandbox key reaches its own conversation and those that it started.")
	}
	if r.Quota != NoQuota {
		said = append(said, "Uses the quota "+string(r.Quota)+".")
	}
	if r.Secret {
		said = append(said, "The answer is shown once and kept nowhere.")
	}
	return strings.Join(said, " ")
}

// operationID is "list-workspaces" for GET /api/workspaces, "post-workspaces-by-id-retry" for its action.
func operationID(r Route) string {
	words := []string{strings.ToLower(r.Method)}
	for _, part := range strings.Split(strings.TrimPrefix(r.Path, "/api/"), "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			part = "by-" + strings.TrimSuffix(name, "}")
		}
		words = append(words, strings.ReplaceAll(part, ".", "-"))
	}
	return strings.Join(words, "-")
}

func tag(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/api/"), "/")
	return first
}

// finish adds what no single row says: the order of the resources, and the one form of every answer of no.
func finish(document *huma.OpenAPI, routes []Route) {
	codes := []any{}
	fields := map[string]*huma.Schema{}
	for _, e := range refusal.Table() {
		codes = append(codes, string(e.Code))
		for _, f := range e.Fields {
			fields[f] = &huma.Schema{Description: "of some codes"}
		}
	}
	fields["error"] = &huma.Schema{Type: huma.TypeString, Enum: codes, Description: "the code; it never changes"}
	fields["message"] = &huma.Schema{Type: huma.TypeString, Description: "a sentence for people, with the next step"}
	fields["errors"] = &huma.Schema{Type: huma.TypeObject, Description: "what is wrong, by field",
		AdditionalProperties: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}}}
	fields["retry_after_seconds"] = &huma.Schema{Type: huma.TypeInteger, Description: "as the Retry-After header"}
	schemas := document.Components.Schemas.Map()
	for name, s := range schemas {
		if s == schemas[refused] || strings.HasSuffix(name, "StatusError") {
			delete(schemas, name) // huma's guess from our error's Go type
		}
	}
	schemas[refused] = &huma.Schema{Type: huma.TypeObject, Properties: fields, Required: []string{"error", "message"}, AdditionalProperties: true}
	document.Components.Responses = map[string]*huma.Response{refused: {Description: "A refusal, or a fault of the server.",
		Content: map[string]*huma.MediaType{echo.MIMEApplicationJSON: {Schema: &huma.Schema{Ref: "#/components/schemas/" + refused}}}}}
	for _, r := range routes {
		if r.API == nil {
			continue
		}
		if name := tag(r.Path); !slices.ContainsFunc(document.Tags, func(t *huma.Tag) bool { return t.Name == name }) {
			document.Tags = append(document.Tags, &huma.Tag{Name: name})
		}
		api.Operation(document, r.Method, r.Path).Responses["default"] = &huma.Response{Ref: "#/components/responses/" + refused}
	}
}
