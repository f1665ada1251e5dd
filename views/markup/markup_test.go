package markup

import (
	"context"
	"strings"
	"testing"

	"github.com/PuerkitoBio/goquery"
	"github.com/a-h/templ"
)

func render(t testing.TB, c templ.Component) string {
	t.Helper()
	var out strings.Builder
	if err := c.Render(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// hostile are things that must come out as text, wherever they come in.
var hostile = []string{
	`<script>alert(1)</script>`, `<SCRIPT SRC=//evil.example></SCRIPT>`, `<img src=x onerror=alert(1)>`, `<svg onload=alert(1)>`,
	`<svg><script>alert(1)</script></svg>`, `<iframe srcdoc="<script>alert(1)</script>"></iframe>`, `<iframe src=javascript:alert(1)>`,
	`<object data="data:text/html,<script>alert(1)</script>">`, `<embed src=javascript:alert(1)>`, `<body onload=alert(1)>`,
	`<a href="javascript:alert(1)">x</a>`, `[x](javascript:alert(1))`, `[x](JaVaScRiPt:alert(1))`, "[x](java\tscript:alert(1))",
	`[x](&#106;avascript:alert(1))`, `[x](data:text/html;base64,PHNjcmlwdD4=)`, `[x](vbscript:msgbox(1))`, `<javascript:alert(1)>`,
	`![x](javascript:alert(1))`, `![x](https://evil.example/pixel.png)`, `![x" onerror="alert(1)](x)`, `[x]: javascript:alert(1)` + "\n\n[x]",
	`<style>*{display:none}</style>`, `<p style="position:fixed;inset:0">x</p>`, `<link rel=stylesheet href=//evil.example>`, `<meta http-equiv=refresh content=0>`,
	`<base href=//evil.example>`, `<form action=//evil.example><input name=password></form>`, `<input autofocus onfocus=alert(1)>`, `<button formaction=javascript:alert(1)>x</button>`,
	`<div hx-get="/settings/keys" hx-trigger="load">x</div>`, `<div data-hx-post="/x" data-hx-trigger=load>x</div>`, `<hx-partial hx-target="#transcript">x</hx-partial>`,
	`<div id="transcript">x</div>`, `<template hx type="partial" hx-target="body">x</template>`, `<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>`,
	`</textarea><script>alert(1)</script>`, `</title><script>alert(1)</script>`, `<!--><script>alert(1)</script>-->`, `<![CDATA[<script>alert(1)</script>]]>`,
	"```html\n<script>alert(1)</script>\n```", "`<script>alert(1)</script>`", "```\" onmouseover=alert(1) x=\"\nx\n```", "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
	"\x1b]8;;javascript:alert(1)\x07x\x1b]8;;\x07", "\x1b[31;\"><script>alert(1)</script>m", "\x00<script\x00>alert(1)</script>", "<script\n>alert(1)</script>",
}

// safe fails when HTML holds an element or attribute that could act.
func safe(t *testing.T, source, html string) {
	t.Helper()
	doc, err := goquery.NewDocumentFromReader(strings.NewReader("<body>" + html + "</body>"))
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]string{"a": "href rel target", "ol": "start", "th": "align", "td": "align class", "span": "class", "div": "class", "tr": "class id"}
	elements := " p br hr h3 h4 h5 h6 em strong del code pre blockquote ul ol li table thead tbody tr th td span a div "
	doc.Find("body *").Each(func(_ int, s *goquery.Selection) {
		name := goquery.NodeName(s)
		if !strings.Contains(elements, " "+name+" ") {
			t.Errorf("%q became <%s>: %s", source, name, html)
		}
		for _, attr := range s.Nodes[0].Attr {
			if !strings.Contains(" "+allowed[name]+" ", " "+attr.Key+" ") {
				t.Errorf("%q became <%s %s=%q>", source, name, attr.Key, attr.Val)
			}
			if attr.Key == "href" && !strings.HasPrefix(attr.Val, "https://") && !strings.HasPrefix(attr.Val, "#L") {
				t.Errorf("%q leads to %q", source, attr.Val)
			}
		}
	})
}

func TestNothingThatActsComesOutOfUntrustedText(t *testing.T) {
	t.Parallel()
	for _, source := range hostile {
		for _, around := range []string{source, "text " + source + " text", "> " + source, "- " + source, "| a |\n|---|\n| " + source + " |", "# " + source} {
			safe(t, around, render(t, Markdown(around)))
		}
		safe(t, source, render(t, ANSI(source)))
		safe(t, source, render(t, Code(source+".html", source)))
		for _, file := range ParseDiff("--- a/x\n+++ b/x\n@@ -1 +1 @@ " + source + "\n-" + source + "\n+" + source + "\n") {
			safe(t, source, render(t, Diff(file)))
		}
	}
}

func TestMarkdownCostsNoMoreThanItsTextIsWorth(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{
		"rows filled up to the widest": "|" + strings.Repeat("a|", 2000) + "\n|" + strings.Repeat("-|", 2000) + "\n" + strings.Repeat("|a\n", 2000),
		"nested quotes":                strings.Repeat(">", 16000) + "a",
		"open links":                   strings.Repeat("[a](", 4000),
		"open brackets":                strings.Repeat("[", 16000),
		"longer than what is parsed":   strings.Repeat("[a](", 100_000),
	} {
		if got := len(render(t, Markdown(source))); got > 100*len(source) {
			t.Errorf("%s: %d bytes of text became %d of HTML", name, len(source), got)
		}
	}
}

func FuzzMarkdownIsSafe(f *testing.F) {
	for _, source := range hostile {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		html := render(t, Markdown(source))
		for _, bad := range []string{"<script", "<iframe", "<img", "<svg", "<style", "<input", "<form", "javascript:\"", " style=", " id=", " hx-"} {
			for _, tag := range strings.Split(html, "<")[1:] {
				if inside, _, ok := strings.Cut("<"+tag, ">"); ok && strings.Contains(strings.ToLower(inside), bad) {
					t.Fatalf("%q gives %q", source, inside)
				}
			}
		}
	})
}

func TestMarkdownShowsWhatAgentsWrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, want string }{
		{"a **b** `c`", "<p>a <strong>b</strong> <code>c</code></p>"},
		{"# Title", "<h3>Title</h3>"},
		{"use <div> here", "<p>use &lt;div&gt; here</p>"},
		{"3. three\n4. four", `<ol start="3">`},
		{"- [x] done\n- [ ] open", "<li>☑ done</li>"},
		{"see https://example.com/a", `href="https://example.com/a"`},
		{"see [main.go](cart/main.go)", "<p>see main.go</p>"},
		{"![logo](https://example.com/l.png)", "image: logo</a>"},
		{"```go\nfunc main() {}\n```", `<span class="c-k">func</span>`},
		{"```\nplain <b>\n```", "<pre><code>plain &lt;b&gt;\n</code></pre>"},
		{"| a | b |\n|:-:|--|\n| 1 | 2 |", `<th align="center">a</th>`},
	} {
		if got := render(t, Markdown(c.source)); !strings.Contains(got, c.want) {
			t.Errorf("%q gives %q, want %q in it", c.source, got, c.want)
		}
	}
	if got := render(t, Markdown("see https://example.com/a")); !strings.Contains(got, "noreferrer") || !strings.Contains(got, `target="_blank"`) {
		t.Errorf("a link without its guards: %s", got)
	}
}

func TestBlocksCutOnlyWhereABlockSurelyBegins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		source string
		want   []string
	}{
		{"", nil},
		{"one", []string{"one"}},
		{"one\ntwo", []string{"one\ntwo"}},
		{"one\n\ntwo", []string{"one\n\n", "two"}},
		{"- a\n\n- b\n\n  more\n\nafter", []string{"- a\n\n- b\n\n  more\n\n", "after"}},
		{"1. a\n\n2) b", []string{"1. a\n\n2) b"}},
		{"```\na\n\nb\n```\n\nafter", []string{"```\na\n\nb\n```\n\n", "after"}},
		{"~~~~\n```\n\nx\n~~~~\n\ny", []string{"~~~~\n```\n\nx\n~~~~\n\n", "y"}},
		{"a\n\n```\nopen\n\nfence", []string{"a\n\n", "```\nopen\n\nfence"}},
		{"a\r\n\r\nb", []string{"a\r\n\r\n", "b"}},
	} {
		got := Blocks(c.source)
		if strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("%q gives %q, want %q", c.source, got, c.want)
		}
	}
}

func FuzzBlocksJoinToTheSource(f *testing.F) {
	f.Add("a\n\nb\n\n- c\n\n```\nd\n\ne\n```\n\nf")
	f.Fuzz(func(t *testing.T, source string) {
		if got := strings.Join(Blocks(source), ""); got != source {
			t.Fatalf("%q became %q", source, got)
		}
	})
}

func TestANSIKeepsColoursAndDropsEverythingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, source, want string }{
		{"plain", "a <b> & \"c\"", "a &lt;b&gt; &amp; &#34;c&#34;"},
		{"colour", "\x1b[31mred\x1b[0m not", `<span class="a-1">red</span> not`},
		{"bright and bold", "\x1b[1;92mok\x1b[22m ok", `<span class="a-b a-2">ok</span><span class="a-2"> ok</span>`},
		{"empty reset", "\x1b[34mblue\x1b[mnot", `<span class="a-4">blue</span>not`},
		{"colour over lines", "\x1b[33ma\nb\x1b[39m\n", "<span class=\"a-3\">a</span>\n<span class=\"a-3\">b</span>\n"},
		{"256 colours", "\x1b[38;5;196mx", `<span class="a-1">x</span>`},
		{"true colour", "\x1b[38;2;10;200;10mx", `<span class="a-2">x</span>`},
		{"background ignored", "\x1b[48;5;21mx", "x"},
		{"reversed has no colour of its own", "\x1b[7;31mx", `<span class="a-r">x</span>`},
		{"cursor and erase", "a\x1b[2K\x1b[1Gb\x1b[?25l", "ab"},
		{"window title", "\x1b]0;title\x07text\x1b]0;t\x1b\\more", "textmore"},
		{"link keeps its text", "\x1b]8;;https://x.example\x1b\\text\x1b]8;;\x1b\\", "text"},
		{"progress bar", "10%\r50%\r100%\n", "100%\n"},
		{"colour set before a return holds after it", "\x1b[32m10%\r100%\n", "<span class=\"a-2\">100%</span>\n"},
		{"windows line ends", "a\r\nb\r\n", "a\nb\n"},
		{"broken off", "a\x1b", "a"},
		{"broken off in parameters", "a\x1b[31", "a"},
		{"not a sequence after all", "a\x1b[3\nb", "a\nb"},
		{"NUL and other controls are shown", "a\x00b\x07", "a\u2400b\u2407"},
		{"C1 controls are not obeyed", "a\u009b31mb", "a\uFFFD31mb"},
		{"writing direction is shown, not obeyed", "a\u202eb", "a&lt;U+202E&gt;b"},
		{"broken UTF-8", "a\xffb", "a\uFFFDb"},
	} {
		if got := render(t, ANSI(c.source)); got != c.want {
			t.Errorf("%s: %q gives\n%q, want\n%q", c.name, c.source, got, c.want)
		}
	}
}

func FuzzANSIIsWholeHTML(f *testing.F) {
	f.Add("\x1b[31mred\r\n\x1b[0m<b>")
	f.Fuzz(func(t *testing.T, source string) {
		html := render(t, ANSI(source))
		if strings.ContainsRune(html, 0x1b) {
			t.Fatalf("%q leaves an escape in %q", source, html)
		}
		open := 0
		for _, tag := range strings.Split(html, "<")[1:] {
			switch {
			case strings.HasPrefix(tag, `span class="a-`):
				open++
			case strings.HasPrefix(tag, "/span>"):
				open--
			default:
				t.Fatalf("%q gives <%s", source, tag)
			}
			if open < 0 || open > 1 {
				t.Fatalf("%q gives unbalanced %q", source, html)
			}
		}
		if open != 0 {
			t.Fatalf("%q leaves a span open: %q", source, html)
		}
	})
}

func TestPlainHasNoEscapes(t *testing.T) {
	t.Parallel()
	if got := Plain("\x1b[1mRun\x1b[0m \x1b]0;x\x07tests"); got != "Run tests" {
		t.Fatalf("%q", got)
	}
}

func TestParseDiffReadsWhatGitPrints(t *testing.T) {
	t.Parallel()
	files := ParseDiff(`warning: something before
diff --git a/cart/total.go b/cart/total.go
index 3f9c2d1..8a7b6c5 100644
--- a/cart/total.go
+++ b/cart/total.go
@@ -4,3 +4,4 @@ func Total(c Cart) int {
 	sum := 0
--- a line that begins with two dashes when deleted
++++ and one with three when added
+new
 end
\ No newline at end of file
diff --git a/old name.go b/new name.go
similarity index 100%
rename from old name.go
rename to new name.go
diff --git a/logo.png b/logo.png
new file mode 100644
Binary files /dev/null and b/logo.png differ
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/run b/run
old mode 100644
new mode 100755
diff --git "a/\303\244.txt" "b/\303\244.txt"
--- "a/\303\244.txt"
+++ "b/\303\244.txt"
@@ -1,2 +1 @@
-a
 b
`)
	type summary struct {
		path, from, note string
		added, deleted   int
	}
	want := []summary{
		{"cart/total.go", "", "", 2, 1}, {"new name.go", "old name.go", "renamed", 0, 0}, {"logo.png", "", "new file, binary", 0, 0},
		{"gone", "", "deleted", 0, 1}, {"run", "", "mode 100644 → 100755", 0, 0}, {"ä.txt", "", "", 0, 1},
	}
	if len(files) != len(want) {
		t.Fatalf("%d files: %+v", len(files), files)
	}
	for i, f := range files {
		if got := (summary{f.Path, f.From, f.Note, f.Added, f.Deleted}); got != want[i] {
			t.Errorf("file %d: %+v, want %+v", i, got, want[i])
		}
	}
	lines := files[0].Lines
	if lines[1] != (DiffLine{DiffContext, 4, 4, "\tsum := 0"}) || lines[2].Kind != DiffDeleted || lines[2].Old != 5 || lines[3].Text != "+++ and one with three when added" || lines[4].New != 6 {
		t.Errorf("lines: %+v", lines)
	}
}

func TestChangesOfEqualTextsAreNone(t *testing.T) {
	t.Parallel()
	if d := Changes("x", "a\n", "a\n"); len(d.Lines) != 0 || d.Path != "x" {
		t.Fatalf("%+v", d)
	}
	if d := Changes("x", "a\nb\n", "a\nc\n"); d.Added != 1 || d.Deleted != 1 || d.From != "" {
		t.Fatalf("%+v", d)
	}
}

func FuzzParseDiffNeverPanics(f *testing.F) {
	f.Add("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, file := range ParseDiff(text) {
			render(t, Diff(file))
		}
	})
}
