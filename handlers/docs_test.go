package handlers_test

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/PuerkitoBio/goquery"
	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/internal/refusal"
	"managoat/static"
	"managoat/views/browsertest"
)

// described is a server of the whole table that can only say what it is.
func described(t *testing.T) (url string, document *huma.OpenAPI, routes []handlers.Route) {
	t.Helper()
	routes = handlers.APIRoutes(handlers.JSON{})
	routes = append(routes, handlers.Route{Method: "GET", Path: "/static/*", Access: handlers.Public, Web: assets})
	e, a := handlers.New(handlers.Config{Routes: routes, Log: slog.New(slog.DiscardHandler), Version: "1.2.3"})
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	return server.URL, a.OpenAPI(), routes
}

func read(t *testing.T, url, contentType string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), contentType) {
		t.Fatalf("%s: %d %s %v", url, res.StatusCode, res.Header.Get("Content-Type"), err)
	}
	return string(body)
}

func TestTheReferenceShowsEveryOperationFieldAndCode(t *testing.T) {
	t.Parallel()
	url, document, routes := described(t)
	page, err := goquery.NewDocumentFromReader(strings.NewReader(read(t, url+"/api/docs", "text/html")))
	if err != nil {
		t.Fatal(err)
	}
	summary := read(t, url+"/llms.txt", "text/plain")
	skill := read(t, url+"/skill", "text/markdown")
	operations := 0
	for _, r := range routes {
		if r.API == nil {
			continue
		}
		operations++
		op := api.Operation(document, r.Method, r.Path)
		shown := page.Find("#" + op.OperationID).Parent()
		if got := shown.Find("summary").Text(); !strings.Contains(got, r.Method) || !strings.Contains(got, r.Path) || !strings.Contains(got, r.Summary) {
			t.Errorf("%s %s is shown as %q", r.Method, r.Path, got)
		}
		want := map[handlers.SandboxRule]string{handlers.Never: "full key", handlers.Reads: "full or sandbox key", handlers.Own: "full or sandbox key"}[r.Sandbox]
		if r.Access == handlers.Public {
			want = "public"
		}
		if got := shown.Find(".note").Text(); got != want {
			t.Errorf("%s %s: may be called with %q, want %q", r.Method, r.Path, got, want)
		}
		if line := fmt.Sprintf("- `%s %s` %s (%s)\n", r.Method, r.Path, r.Summary, want); !strings.Contains(summary, line) {
			t.Errorf("llms.txt has no line %q", line)
		}
		names := map[string]bool{}
		for _, p := range op.Parameters {
			names[p.Name] = true
		}
		if op.RequestBody != nil {
			for name := range op.RequestBody.Content["application/json"].Schema.Properties {
				names[name] = true
			}
		}
		fields := shown.Find("dt code").Map(func(_ int, s *goquery.Selection) string { return s.Text() })
		for name := range names {
			if !slices.Contains(fields, name) {
				t.Errorf("%s %s does not show %s", r.Method, r.Path, name)
			}
		}
	}
	if got := page.Find("details.op").Length(); got != operations {
		t.Errorf("the page shows %d operations of %d", got, operations)
	}
	for _, e := range refusal.Table() {
		row := page.Find("#code-" + string(e.Code)).Text()
		if !strings.Contains(row, e.Meaning) || !strings.Contains(row, fmt.Sprint(e.Status)) || !strings.Contains(row, strings.Join(e.Fields, ", ")) {
			t.Errorf("the code %s is shown as %q", e.Code, row)
		}
		for name, text := range map[string]string{"llms.txt": summary, "the skill": skill} {
			if !strings.Contains(text, "`"+string(e.Code)+"`") {
				t.Errorf("%s does not know %s", name, e.Code)
			}
		}
	}
	ids := map[string]bool{}
	page.Find("[id]").Each(func(_ int, s *goquery.Selection) {
		if id := s.AttrOr("id", ""); ids[id] {
			t.Errorf("two elements have the id %q", id)
		} else {
			ids[id] = true
		}
	})
	page.Find(`a[href^="#"]`).Each(func(_ int, s *goquery.Selection) {
		if to := s.AttrOr("href", ""); !ids[to[1:]] {
			t.Errorf("%q leads to %s, which is not there", s.Text(), to)
		}
	})
}

// What guides tell people and agents to call is there.
func TestGuidesNameRealRoutesOnly(t *testing.T) {
	t.Parallel()
	url, _, routes := described(t)
	calls := map[string]bool{}
	paths := map[string]bool{}
	for _, r := range routes {
		calls[r.Method+" "+r.Path] = true
		paths[strings.ReplaceAll(r.Path, "{id}", "…")] = true
	}
	skill := read(t, url+"/skill", "text/markdown")
	named := regexp.MustCompile(`(GET|POST|PUT|PATCH|DELETE) (/api/[\w/{}-]+)`).FindAllString(skill, -1)
	if len(named) < 12 {
		t.Errorf("the skill names %q only", named)
	}
	for _, call := range named {
		if !calls[call] {
			t.Errorf("the skill names %s, which is no route", call)
		}
	}
	if !strings.HasPrefix(skill, "---\nname: managoat\ndescription: ") || !strings.Contains(skill, url) {
		t.Errorf("the skill begins %q", skill[:80])
	}
	examples := regexp.MustCompile(`BASE_URL(/api/[\w/…-]+)`).FindAllStringSubmatch(read(t, url+"/api/docs", "text/html"), -1)
	if len(examples) < 6 {
		t.Errorf("the reference's guide calls %q only", examples)
	}
	for _, m := range examples {
		if !paths[m[1]] {
			t.Errorf("the reference's guide calls %s, which is no route", m[1])
		}
	}
}

// The form of a refusal in the document is what refusals are.
func TestTheDocumentDescribesRefusals(t *testing.T) {
	t.Parallel()
	_, document, routes := described(t)
	schema := document.Components.Schemas.Map()["Refusal"]
	for _, r := range routes {
		if r.API == nil {
			continue
		}
		if ref := api.Operation(document, r.Method, r.Path).Responses["default"].Ref; ref != "#/components/responses/Refusal" {
			t.Errorf("%s %s refuses with %q", r.Method, r.Path, ref)
		}
	}
	if len(schema.Properties["error"].Enum) != len(refusal.Table()) {
		t.Errorf("the document knows the codes %v", schema.Properties["error"].Enum)
	}
	for _, e := range refusal.Table() {
		for _, f := range e.Fields {
			if schema.Properties[f] == nil {
				t.Errorf("the field %s of %s is not in the document", f, e.Code)
			}
		}
	}
	for name := range maps.Keys(document.Components.Schemas.Map()) {
		if strings.Contains(name, "StatusError") {
			t.Errorf("the document holds the Go type %s", name)
		}
	}
}

// The reference is a page like every other: it fits, in both themes, and loads nothing that its policy refuses.
func TestTheReferenceFitsAndLoadsCleanly(t *testing.T) {
	t.Parallel()
	url, _, _ := described(t)
	b := browsertest.New(t)
	for _, dark := range []bool{false, true} {
		b.Dark(dark)
		b.Open(url + "/api/docs")
		b.Run(`document.querySelectorAll("details").forEach(d => d.open = true)`)
		for _, width := range []int64{390, 800, 1280} {
			b.Size(width, 844)
			if over := b.Text("String(Math.max(0, document.documentElement.scrollWidth - window.innerWidth))"); over != "0" {
				t.Errorf("it is %s px too wide at %d px", over, width)
			}
		}
	}
	b.Open(url + "/api/docs#post-workspaces")
	b.Until(`document.querySelector("#post-workspaces").checkVisibility()`)
	for _, line := range b.Complaints() {
		t.Error(line)
	}
}

func assets(c echo.Context) error { return echo.WrapHandler(static.Handler())(c) }

// An answer without a form leaves clients to guess: streams, logs and downloads have one too.
func TestEveryAnswerOfTheDocumentHasAForm(t *testing.T) {
	t.Parallel()
	_, document, routes := described(t)
	for _, r := range routes {
		if r.API == nil {
			continue
		}
		for status, answer := range api.Operation(document, r.Method, r.Path).Responses {
			if len(answer.Content) == 0 && answer.Ref == "" && status != "204" {
				t.Errorf("%s %s answers %s with nothing that is described", r.Method, r.Path, status)
			}
			for media, body := range answer.Content {
				if body.Schema == nil {
					t.Errorf("%s %s answers %s with %s of no form", r.Method, r.Path, status, media)
				}
			}
		}
	}
}
