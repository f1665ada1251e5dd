package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/PuerkitoBio/goquery"

	"managoat/static"
)

var moment = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

func document(t *testing.T, e example) (*goquery.Document, []byte) {
	t.Helper()
	var out bytes.Buffer
	if err := e.page.Render(context.Background(), &out); err != nil {
		t.Fatalf("%s: %v", e.path, err)
	}
	doc, err := goquery.NewDocumentFromReader(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return doc, out.Bytes()
}

// The content security policy lets no inline script or style act; a page that holds one is broken.
func TestNoPageHoldsInlineScriptOrStyle(t *testing.T) {
	t.Parallel()
	for _, e := range examples(moment) {
		doc, _ := document(t, e)
		if n := doc.Find("style, [style], script:not([src]), iframe, object, embed").Length(); n > 0 {
			t.Errorf("%s: %d inline scripts, styles or frames", e.path, n)
		}
		doc.Find("*").Each(func(_ int, s *goquery.Selection) {
			for _, a := range s.Nodes[0].Attr {
				if strings.HasPrefix(a.Key, "on") || strings.HasPrefix(a.Key, "hx-on") || strings.HasPrefix(a.Val, "javascript:") || strings.HasPrefix(a.Val, "js:") {
					t.Errorf("%s: <%s %s=%q>", e.path, goquery.NodeName(s), a.Key, a.Val)
				}
			}
		})
	}
}

var (
	startTag  = regexp.MustCompile(`<[a-z][a-z0-9-]*((?:\s+[^\s"'<>/=]+(?:="[^"]*")?)*)\s*/?>`)
	attribute = regexp.MustCompile(`\s([^\s"'<>/=]+)(?:="[^"]*")?`)
)

// Of two attributes with one name a browser hears the first: a field whose type is text and then password shows
// what is typed. The parser of documents drops the second too, so the text is looked at.
func TestNoElementSaysAnAttributeTwice(t *testing.T) {
	t.Parallel()
	secret := 0
	for _, e := range examples(moment) {
		doc, text := document(t, e)
		for _, tag := range startTag.FindAllSubmatch(text, -1) {
			said := map[string]bool{}
			for _, a := range attribute.FindAllSubmatch(tag[1], -1) {
				if said[string(a[1])] {
					t.Errorf("%s: %s says %s twice", e.path, tag[0], a[1])
				}
				said[string(a[1])] = true
			}
		}
		doc.Find("input[name=password]").Each(func(_ int, s *goquery.Selection) {
			secret++
			if kind := s.AttrOr("type", ""); kind != "password" {
				t.Errorf("%s: a password is typed into a field of the type %q", e.path, kind)
			}
		})
	}
	if secret == 0 {
		t.Error("no page asks for a password")
	}
}

func TestEveryPageIsSoundAndLabelled(t *testing.T) {
	t.Parallel()
	paths := map[string]bool{}
	for _, e := range examples(moment) {
		if paths[e.path] {
			t.Errorf("two examples at %s", e.path)
		}
		paths[e.path] = true
		doc, _ := document(t, e)
		ids := map[string]bool{}
		doc.Find("[id]").Each(func(_ int, s *goquery.Selection) {
			id := s.AttrOr("id", "")
			if ids[id] {
				t.Errorf("%s: two elements have the id %q", e.path, id)
			}
			ids[id] = true
		})
		if doc.Find("html[lang] head title").Length() != 1 || doc.Find("main").Length() != 1 || doc.Find("h1").Length() != 1 {
			t.Errorf("%s: one language, title, main and h1 each", e.path)
		}
		doc.Find("input:not([type=hidden]), select, textarea").Each(func(_ int, s *goquery.Selection) {
			id := s.AttrOr("id", "")
			if s.AttrOr("aria-label", "") == "" && s.Closest("label").Length() == 0 && (id == "" || doc.Find(`label[for="`+id+`"]`).Length() == 0) {
				t.Errorf("%s: the control %q has no label", e.path, s.AttrOr("name", "?"))
			}
		})
		doc.Find("[aria-describedby], [aria-labelledby]").Each(func(_ int, s *goquery.Selection) {
			for _, id := range strings.Fields(s.AttrOr("aria-describedby", "") + " " + s.AttrOr("aria-labelledby", "")) {
				if !ids[id] {
					t.Errorf("%s: %q is described by %q, which is not there", e.path, s.AttrOr("name", ""), id)
				}
			}
		})
		doc.Find("[aria-invalid]").Each(func(_ int, s *goquery.Selection) {
			if s.AttrOr("aria-describedby", "") == "" {
				t.Errorf("%s: %q is invalid without a reason beside it", e.path, s.AttrOr("name", ""))
			}
		})
		doc.Find("a, button").Each(func(_ int, s *goquery.Selection) {
			if strings.TrimSpace(s.Text()) == "" && s.AttrOr("aria-label", "") == "" && s.Find("img[alt]:not([alt=''])").Length() == 0 {
				t.Errorf("%s: <%s> without a name", e.path, goquery.NodeName(s))
			}
			if goquery.NodeName(s) == "a" && s.AttrOr("href", "") == "" {
				t.Errorf("%s: the link %q leads nowhere", e.path, s.Text())
			}
		})
		// Without JavaScript whatever htmx would send is a plain form or link.
		doc.Find("[hx-post], [hx-get]").Each(func(_ int, s *goquery.Selection) {
			if to := s.AttrOr("hx-post", s.AttrOr("hx-get", "")); to != s.AttrOr("action", s.AttrOr("href", "")) {
				t.Errorf("%s: %q works only with JavaScript", e.path, to)
			}
		})
		doc.Find("table").Each(func(_ int, s *goquery.Selection) {
			if s.Closest(".diff, .file, .md").Length() == 0 && s.Find("th:not([scope])").Length() > 0 {
				t.Errorf("%s: a table's head without a scope", e.path)
			}
		})
	}
}

// Whoever opens the console for the first time loads this much and no more.
func TestTheFirstPageIsLight(t *testing.T) {
	t.Parallel()
	const limit = 60_000
	compressed := func(b []byte) int {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Len()
	}
	assets := 0
	seen := map[string]bool{}
	for _, e := range examples(moment) {
		if !slices.Contains([]string{"/", "/setup", "/sign-in", "/workspaces/w1", "/conversations/c1"}, e.path) {
			continue
		}
		doc, page := document(t, e)
		doc.Find("script[src], link[href], img[src]").Each(func(_ int, s *goquery.Selection) {
			path := s.AttrOr("src", s.AttrOr("href", ""))
			if seen[path] {
				return
			}
			seen[path] = true
			assets += sent(t, path)
		})
		if total := compressed(page) + assets; total > limit {
			t.Errorf("%s: %d bytes with all assets, limit %d", e.path, total, limit)
		}
	}
	if len(seen) < 4 || !strings.HasPrefix(static.Path("app.css"), static.Prefix) {
		t.Fatalf("assets: %v", seen)
	}
}
