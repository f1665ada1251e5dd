package secret_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// holdsSecrets are the packages whose structs hold what nobody may see.
var holdsSecrets = []string{"identity", "secret", "environment", "vault", "agent", "inference", "audit", "quota", "tenant"}

// named is how a field is called that could hold a secret.
var named = regexp.MustCompile(`(?i)(password|passphrase|token|plain|credential|apikey)$|^(value|key|secret)$`)

// shown are fields of such a name that hold none.
var shown = map[string]string{
	"store.Secret.Key":            "the name of a secret",
	"store.Input.Key":             "the name of a secret",
	"environment.SecretInput.Key": "the name of a secret",
	"vault.SecretInput.Key":       "the name of a secret",
	"identitytest.Account.Key":    "tests only",
}

// A field that holds a secret as a string would be printed by the next log line or panic that prints its struct.
func TestEveryFieldThatHoldsASecretMasksIt(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, dir := range holdsSecrets {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, p := range unmasked(file) {
				if shown[p] == "" {
					t.Errorf("%s: %s is no secret.Value", path, p)
				}
				checked++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked != len(shown) {
		t.Errorf("%d fields of such names are plain, %d are listed", checked, len(shown))
	}
	// And it can fail.
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\ntype A struct { Name string; Password, Hash string; B struct { AccessToken []byte }; V secret.Value }", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(unmasked(file), " "); got != "x.A.Password x.A.AccessToken" {
		t.Errorf("found %q", got)
	}
}

// unmasked finds the fields that are called like a secret and are plain text.
func unmasked(file *ast.File) (out []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		ast.Inspect(spec, func(n ast.Node) bool {
			field, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range field.Fields.List {
				for _, name := range f.Names {
					if named.MatchString(name.Name) && plainText(f.Type) {
						out = append(out, file.Name.Name+"."+spec.Name.Name+"."+name.Name)
					}
				}
			}
			return true
		})
		return false
	})
	return out
}

func plainText(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "string"
	case *ast.StarExpr:
		return plainText(e.X)
	case *ast.ArrayType:
		elem, ok := e.Elt.(*ast.Ident)
		return ok && (elem.Name == "byte" || elem.Name == "string")
	}
	return false
}
