package conversation_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"managoat/internal/conversation"
	"managoat/internal/refusal"
)

// A code without words is shown to people as it is.
func TestEveryCodeOfATurnHasWords(t *testing.T) {
	t.Parallel()
	codes := []string{conversation.ByParking, conversation.ByDestruction, "machine_lost", string(refusal.SetupFailed), string(refusal.HostDraining)}
	for _, name := range []string{"problem.go", "control.go", "attach.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			called := spec.Names[0].Name
			lit, ok := spec.Values[0].(*ast.BasicLit)
			if ok && (strings.HasPrefix(called, "Code") || strings.HasPrefix(called, "By") || name == "attach.go" && strings.Contains(lit.Value, "_")) {
				code, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				codes = append(codes, code)
			}
			return true
		})
	}
	if len(codes) < 25 {
		t.Fatalf("only these codes are found: %v", codes)
	}
	for _, code := range codes {
		if m := conversation.Meaning(code); !strings.HasSuffix(m, ".") {
			t.Errorf("%s means %q", code, m)
		}
	}
	if m := conversation.Meaning("apt-get: exit 7"); m != "" {
		t.Errorf("what is no code means %q", m)
	}
}
