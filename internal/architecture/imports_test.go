// Package architecture holds the tests of the house's shape: which package may import which.
package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// rule says what a package and all below it must not import.
type rule struct {
	from string
	not  []string
	why  string
}

var rules = []rule{
	{"managoat/sandbox", []string{"managoat/internal", "managoat/handlers", "managoat/views", "managoat/db", "managoat/queries"}, "machines know nothing of the product above them"},
	{"managoat/cmd/managoat-guest", []string{"managoat/internal", "managoat/handlers", "managoat/views", "managoat/db", "managoat/queries", "managoat/sandbox/local", "net/http"}, "the guest is the protocol and nothing else"},
	{"managoat/internal", []string{"managoat/handlers", "managoat/views", "managoat/cmd"}, "the domain knows no HTTP edge and no HTML"},
	{"managoat/views", []string{"managoat/internal", "managoat/handlers", "managoat/db", "managoat/queries", "managoat/sandbox"}, "views know view models only"},
	{"managoat/db", []string{"managoat/internal", "managoat/handlers", "managoat/views", "managoat/sandbox"}, "the database door knows no domain"},
	{"managoat/queries", []string{"managoat/internal", "managoat/handlers", "managoat/views", "managoat/sandbox", "managoat/db"}, "generated code knows nothing of ours"},
	{"managoat/handlers/api", []string{"managoat/handlers/web", "managoat/views"}, "JSON knows no HTML"},
	{"managoat/internal/machine", []string{"managoat/internal/workspace", "managoat/internal/conversation"}, "machine knows nobody above it"},
	{"managoat/internal/workspace", []string{"managoat/internal/conversation"}, "workspace reaches conversations through Occupants only"},
	{"managoat/internal/client", []string{"managoat/internal", "managoat/db", "managoat/sandbox"}, "the API's client is a client like any other"},
	{"managoat/internal/refusal", []string{"managoat"}, "everybody refuses; a refusal knows nobody"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImportsOnlyGoTheAgreedWay(t *testing.T) {
	t.Parallel()
	packages := list(t)
	checked := map[string]int{}
	for _, p := range packages {
		for _, r := range rules {
			if !within(p.ImportPath, r.from) {
				continue
			}
			checked[r.from]++
			for _, imp := range p.Imports {
				for _, no := range r.not {
					if within(imp, no) && !within(imp, r.from) {
						t.Errorf("%s imports %s: %s", p.ImportPath, imp, r.why)
					}
				}
			}
		}
	}
	for _, r := range rules {
		if checked[r.from] == 0 {
			t.Errorf("the rule for %s looks at no package: it moved or is gone", r.from)
		}
	}
}

// Only the database's own package may open a pool: everybody else passes its doors.
func TestNobodyButTheDatabasePackageOpensAPool(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if within(p.ImportPath, "managoat/db") {
			continue
		}
		for _, imp := range p.Imports {
			if imp == "github.com/jackc/pgx/v5/pgxpool" || imp == "database/sql" {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

// A server on another system has machines by Docker alone. What makes machines of the kernel it runs on does not compile there.
func TestAServerElsewhereNeedsNothingOfLinux(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-deps", "managoat/cmd/managoat")
	cmd.Env = append(cmd.Environ(), "GOOS=darwin", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	needed := strings.Fields(string(out))
	if !slices.Contains(needed, "managoat/sandbox/docker") {
		t.Error("it has no machines at all")
	}
	for _, p := range []string{"managoat/sandbox/local", "managoat/sandbox/userns", "managoat/sandbox/guest/boot", "managoat/sandbox/guest/server", "managoat/sandbox/guest/shim"} {
		if slices.Contains(needed, p) {
			t.Errorf("it needs %s", p)
		}
	}
}

func within(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "managoat/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
