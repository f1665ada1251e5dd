package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// later is what a row of the manual's coverage may leave to other work, in these words only.
var later = []string{
	"codex and gemini running", "permission policy beyond `auto_allow`", "SDK names",
	"secrets that reach a running machine through the broker (placeholders and bindings)", "placeholders and bindings for other secrets",
}

func TestEveryStatementOfTheManualNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/manual-coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`([a-z/]+)\.(Test\w+)`)
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.Contains(line, "| proved by |") {
			continue
		}
		rows++
		if len(cells) != 2 {
			t.Errorf("not a statement and its tests: %s", line)
			continue
		}
		proof, rest, _ := strings.Cut(cells[1], "Later: ")
		tests := name.FindAllStringSubmatch(proof, -1)
		if len(tests) == 0 {
			t.Errorf("no test proves: %s", cells[0])
		}
		for _, m := range tests {
			if !exists(t, m[1], m[2]) {
				t.Errorf("%s names %s, which is no test of %s", cells[0], m[2], m[1])
			}
		}
		if rest = strings.TrimSpace(rest); rest != "" && !slices.Contains(later, rest) {
			t.Errorf("%s leaves %q to later", cells[0], rest)
		}
	}
	if rows < 60 {
		t.Errorf("only %d statements", rows)
	}
}

// exists tells whether a package, by the end of its path, has a test.
func exists(t *testing.T, pkg, test string) bool {
	t.Helper()
	for _, dir := range []string{"../../internal/" + pkg, "../../" + pkg} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(source), "\nfunc "+test+"(t *testing.T)") {
				return true
			}
		}
	}
	return false
}
