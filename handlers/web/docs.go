package web

import (
	_ "embed"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"managoat/handlers/api"
	"managoat/internal/refusal"
	"managoat/views"
)

//go:embed llms.txt
var summaryText string

//go:embed skill.md
var skillText string

var (
	summaryTemplate = template.Must(template.New("llms.txt").Parse(summaryText))
	skillTemplate   = template.Must(template.New("skill").Parse(skillText))
)

// ShowReference shows the API's reference: GET /api/docs.
func ShowReference(document *huma.OpenAPI) echo.HandlerFunc {
	p := reference(document)
	return func(c echo.Context) error { return html(c, http.StatusOK, views.Docs(here(p, c))) }
}

// ShowSummary is the reference in one line an operation: GET /llms.txt.
func ShowSummary(document *huma.OpenAPI) echo.HandlerFunc {
	return write(summaryTemplate, reference(document), echo.MIMETextPlainCharsetUTF8)
}

// ShowSkill is a skill of this server for agents: GET /skill.
func ShowSkill(document *huma.OpenAPI) echo.HandlerFunc {
	return write(skillTemplate, reference(document), "text/markdown; charset=utf-8")
}

func write(t *template.Template, p views.DocsPage, contentType string) echo.HandlerFunc {
	return func(c echo.Context) error {
		var out strings.Builder
		if err := t.Execute(&out, here(p, c)); err != nil {
			return err
		}
		return c.Blob(http.StatusOK, contentType, []byte(out.String()))
	}
}

// here is the page as the caller reached this server.
func here(p views.DocsPage, c echo.Context) views.DocsPage {
	p.Now, p.Base = time.Now(), c.Scheme()+"://"+c.Request().Host
	return p
}

// reference makes the page of the document: nothing on it is written twice.
func reference(document *huma.OpenAPI) views.DocsPage {
	r := reader{document.Components.Schemas.Map(), map[string]bool{}}
	p := views.DocsPage{Version: document.Info.Version}
	byTag := map[string][]views.DocsOperation{}
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		operations := api.Operations(document.Paths[path])
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if op, ok := operations[method]; ok {
				byTag[op.Tags[0]] = append(byTag[op.Tags[0]], r.operation(path, op))
			}
		}
	}
	for _, t := range document.Tags {
		p.Groups = append(p.Groups, views.DocsGroup{Name: heading(t.Name), Operations: byTag[t.Name]})
	}
	described := map[string]bool{}
	for len(described) < len(r.named) { // types name further types
		for name := range maps.Clone(r.named) {
			if !described[name] {
				described[name] = true
				p.Types = append(p.Types, views.DocsType{Name: name, Fields: r.fields("", r.schemas[name])})
			}
		}
	}
	slices.SortFunc(p.Types, func(a, b views.DocsType) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range refusal.Table() {
		p.Codes = append(p.Codes, views.DocsCode{Code: string(e.Code), Status: e.Status, Meaning: e.Meaning, Fields: e.Fields})
	}
	return p
}

// heading is a tag as a person reads it.
func heading(tag string) string {
	words := strings.ReplaceAll(tag, "-", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// reader reads the document's schemas and notes which of them it named.
type reader struct {
	schemas map[string]*huma.Schema
	named   map[string]bool
}

func (r reader) operation(path string, op *huma.Operation) views.DocsOperation {
	out := views.DocsOperation{ID: op.OperationID, Method: op.Method, Path: path, Summary: op.Summary, Note: op.Description, Access: access(op)}
	for _, p := range op.Parameters {
		f := r.field(p.Name, p.Schema)
		f.In, f.Doc = p.In, p.Description
		if p.In == "path" && p.Description == p.Name {
			f.Doc = ""
		}
		out.Params = append(out.Params, f)
	}
	if op.RequestBody != nil {
		out.Body = r.fields("", op.RequestBody.Content[echo.MIMEApplicationJSON].Schema)
	}
	for code, response := range op.Responses {
		if status, err := strconv.Atoi(code); err == nil && status < 300 {
			out.Status, out.Answer = status, r.answer(response)
		}
	}
	return out
}

// access names the keys that an operation takes.
func access(op *huma.Operation) string {
	var roles []string
	for _, way := range op.Security {
		for _, scopes := range way {
			roles = append(roles, scopes...)
		}
	}
	if len(roles) == 0 {
		return "public"
	}
	return strings.Join(roles, " or ") + " key"
}

// answer names what stands in an answer's envelope.
func (r reader) answer(response *huma.Response) views.DocsAnswer {
	media, ok := response.Content[echo.MIMEApplicationJSON]
	if !ok || media.Schema == nil {
		if len(response.Content) == 0 {
			return views.DocsAnswer{Before: "without a body"}
		}
		if frames := response.Content["text/event-stream"]; frames != nil {
			if data, ok := frames.Schema.Extensions["contentSchema"].(*huma.Schema); ok && data.Ref != "" {
				return views.DocsAnswer{Before: "server-sent events, each with ", Type: r.name(data.Ref)}
			}
		}
		return views.DocsAnswer{Before: strings.TrimSuffix(response.Description, ".")}
	}
	schema := r.resolve(media.Schema)
	data, ok := schema.Properties["data"]
	if !ok {
		return views.DocsAnswer{Type: r.name(media.Schema.Ref)}
	}
	if data.Items != nil {
		return views.DocsAnswer{Before: `{"data": [`, Type: r.name(data.Items.Ref), After: `, …], "meta": {…}}`}
	}
	out := views.DocsAnswer{Before: `{"data": `, Type: r.name(data.Ref), After: "}"}
	for _, beside := range slices.Sorted(maps.Keys(schema.Properties)) {
		if beside != "data" {
			out.After = fmt.Sprintf(", %q: …", beside) + out.After
		}
	}
	return out
}

// fields lists an object's fields with those of the objects written out in it, by their dotted names.
func (r reader) fields(prefix string, s *huma.Schema) (out []views.DocsField) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		f := r.field(prefix+name, property)
		if len(s.Required) > 0 && !slices.Contains(s.Required, name) {
			f.Limits = strings.TrimPrefix(f.Limits+"; may be left out", "; ")
		}
		out = append(out, f)
		if property.Items != nil {
			out = append(out, r.fields(prefix+name+"[].", property.Items)...)
		}
		out = append(out, r.fields(prefix+name+".", property)...)
	}
	return out
}

func (r reader) field(name string, s *huma.Schema) views.DocsField {
	f := views.DocsField{Name: name, Doc: s.Description, Limits: limits(s)}
	f.Kind, f.Type = r.kind(s)
	return f
}

// kind says what a value is, and which type it is of.
func (r reader) kind(s *huma.Schema) (kind, typ string) {
	switch {
	case s.Ref != "":
		return "", r.name(s.Ref)
	case s.Type == huma.TypeArray:
		if s.Items == nil {
			return "list", ""
		}
		inner, typ := r.kind(s.Items)
		return strings.TrimSpace("list of " + inner), typ
	case s.Type == huma.TypeObject:
		if inner, ok := s.AdditionalProperties.(*huma.Schema); ok && (inner.Type != "" || inner.Ref != "") {
			inner, typ := r.kind(inner)
			return strings.TrimSpace("object of " + inner), typ
		}
		return "object", ""
	case s.Format == "date-time":
		return "time", ""
	}
	word, ok := map[string]string{huma.TypeString: "text", huma.TypeInteger: "whole number", huma.TypeNumber: "number", huma.TypeBoolean: "true or false"}[s.Type]
	if !ok {
		return "any value", ""
	}
	return word, ""
}

// limits says what a value may be.
func limits(s *huma.Schema) string {
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		say("%v to %v", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		say("at least %v", *s.Minimum)
	case s.Maximum != nil:
		say("at most %v", *s.Maximum)
	}
	if s.MaxLength != nil {
		say("at most %d characters", *s.MaxLength)
	}
	if len(s.Enum) > 0 {
		values := make([]string, len(s.Enum))
		for i, v := range s.Enum {
			values[i] = fmt.Sprint(v)
		}
		say("one of %s", strings.Join(values, ", "))
	}
	if s.Default != nil {
		say("default %v", s.Default)
	}
	return strings.Join(said, "; ")
}

// name is a schema's name, which is then described.
func (r reader) name(ref string) string {
	if ref == "" {
		return ""
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	r.named[name] = true
	return name
}

func (r reader) resolve(s *huma.Schema) *huma.Schema {
	for s.Ref != "" {
		s = r.schemas[s.Ref[strings.LastIndex(s.Ref, "/")+1:]]
	}
	return s
}
