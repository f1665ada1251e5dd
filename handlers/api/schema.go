package api

import (
	"path"
	"reflect"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// SchemaName names a type in the OpenAPI document. Types of several packages have the same name (an entry of a folder,
// an entry of the ledger), so that a name begins with its package's unless it says the same: FilesEntry, but Vault.
func SchemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	name := t.Name()
	if name == "" {
		return huma.DefaultSchemaNamer(t, hint)
	}
	// Data[managoat/internal/vault.Vault]: the parts are named alike.
	parts := genericParts.FindAllString(name, -1)
	if len(parts) > 1 {
		out := ""
		for _, part := range parts {
			out += qualified(part)
		}
		return out
	}
	return qualified(t.PkgPath() + "." + name)
}

// genericParts are the types in the name of a generic one, with their packages' paths.
var genericParts = regexp.MustCompile(`[\w/.-]+`)

func qualified(full string) string {
	dot := strings.LastIndexByte(full, '.')
	if dot < 0 {
		return title(full)
	}
	pkg, name := title(path.Base(full[:dot])), full[dot+1:]
	if strings.HasPrefix(name, pkg) || pkg == "Api" {
		return title(name)
	}
	return pkg + title(name)
}

func title(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
