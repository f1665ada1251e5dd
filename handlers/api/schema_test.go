package api_test

import (
	"reflect"
	"testing"

	"managoat/handlers/api"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/secret/store"
	"managoat/internal/vault"
)

func TestTypesOfTheSameNameAreApartInTheDocument(t *testing.T) {
	t.Parallel()
	for want, typ := range map[string]reflect.Type{
		"Vault":           reflect.TypeFor[vault.Vault](),
		"AgentVersion":    reflect.TypeFor[agent.Version](),
		"AgentConfig":     reflect.TypeFor[*agent.Config](),
		"AuditEvent":      reflect.TypeFor[[]audit.Event](),
		"StoreSecret":     reflect.TypeFor[store.Secret](),
		"Me":              reflect.TypeFor[api.Me](),
		"DataVault":       reflect.TypeFor[api.Data[vault.Vault]](),
		"DataStoreSecret": reflect.TypeFor[api.Data[store.Secret]](),
	} {
		if got := api.SchemaName(typ, "hint"); got != want {
			t.Errorf("%s is called %s, want %s", typ, got, want)
		}
	}
	if got := api.SchemaName(reflect.TypeFor[struct{ A int }](), "Hint"); got != "Hint" {
		t.Errorf("a type without a name is called %s", got)
	}
}
