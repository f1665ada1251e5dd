package views

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestDurationsReadAsPeopleSayThem(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 ms", 12 * time.Millisecond: "12 ms", 999 * time.Millisecond: "999 ms", 3449 * time.Millisecond: "3.4 s", 59990 * time.Millisecond: "59.9 s",
		72 * time.Second: "1 min 12 s", 2*time.Hour + 5*time.Minute: "2 h 05 min",
	} {
		if got := Took(d); got != want {
			t.Errorf("Took(%v) = %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0:00", 42 * time.Second: "0:42", 61 * time.Minute: "1:01:00"} {
		if got := Elapsed(d); got != want {
			t.Errorf("Elapsed(%v) = %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "just now", 59 * time.Second: "just now", time.Minute: "1 min ago", 2 * time.Hour: "2 h ago", 72 * time.Hour: "3 d ago", -30 * time.Second: "in a minute", -3 * time.Minute: "in 3 min"} {
		if got := Ago(start, start.Add(-d)); got != want {
			t.Errorf("Ago(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestNumbersAndSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 18_204_000: "18,204,000", -1234: "−1,234"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %q", n, got)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1204: "1.2 kB", 999_999: "1.0 MB", 1_400_000_000: "1.4 GB", 5_000_000_000_000_000: "5000.0 TB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSlugsOfDifferentTextsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, text := range []string{"a b", "a_b", "a_20b", "a-b", "a.b", "é", "", `"><script>`} {
		s := slug(text)
		if !regexp.MustCompile(`^[A-Za-z0-9_-]*$`).MatchString(s) {
			t.Errorf("%q gives %q", text, s)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("%q and %q both give %q", text, other, s)
		}
		seen[s] = text
	}
}

// HTML that templ does not escape is made in one place: package markup, and there templ.Raw in one function.
func TestRawHTMLComesFromOneFunction(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	var uses []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != root || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if ext := filepath.Ext(path); (ext != ".go" && ext != ".templ") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if regexp.MustCompile(`templ\.(Raw|FromGoHTML|JSUnsafeFuncCall|SafeURL)\(`).Match(content) {
			rel, _ := filepath.Rel(root, path)
			uses = append(uses, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(uses) != 1 || uses[0] != "views/markup/markdown.go" {
		t.Fatalf("raw HTML in %q", uses)
	}
}

// Views render what they are given: they import no domain package and nothing that does I/O.
func TestViewsImportOnlyWhatRenders(t *testing.T) {
	t.Parallel()
	allowed := regexp.MustCompile(`^(managoat/(static|views/markup)|github\.com/a-h/templ(/.*)?|bytes|context|encoding/json|fmt|io|slices|strconv|strings|time)$`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ImportSpec); ok && !allowed.MatchString(strings.Trim(spec.Path.Value, `"`)) {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
			return true
		})
	}
}
