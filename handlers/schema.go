package handlers

import (
	"path"
	"reflect"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// qualified finds the type names in a generic type's name: managoat/internal/files.Entry.
var qualified = regexp.MustCompile(`[\w./-]*?(\w+)\.(\w+)`)

// schemaName names a type in the OpenAPI document. Types of different packages may have one name (files.Entry and
// ledger.Entry), so the package stands before it unless it says nothing new: agent.Agent is Agent.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Name() == "" {
		return huma.DefaultSchemaNamer(t, hint)
	}
	name := qualified.ReplaceAllStringFunc(t.Name(), func(s string) string {
		m := qualified.FindStringSubmatch(s)
		return with(m[1], m[2])
	})
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune("[],*·", r) {
			return -1
		}
		return r
	}, name)
	return with(path.Base(t.PkgPath()), name)
}

func with(pkg, name string) string {
	if pkg == "" || pkg == "." || pkg == "api" || strings.HasPrefix(strings.ToLower(name), pkg) {
		return strings.ToUpper(name[:1]) + name[1:]
	}
	return strings.ToUpper(pkg[:1]) + pkg[1:] + strings.ToUpper(name[:1]) + name[1:]
}
