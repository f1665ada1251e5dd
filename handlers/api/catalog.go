package api

import (
	"context"

	"managoat/internal/agent"
	"managoat/internal/inference"
)

// Catalog is the endpoint that says what this instance offers.
type Catalog struct {
	Providers []string // enabled sandbox providers
	Default   string   // of new workspaces
}

// Offer is what an instance offers: the values that fields take.
type Offer struct {
	SandboxAPIAccess []string            `json:"sandbox_api_access"`
	Runtimes         []string            `json:"runtimes"`
	Models           map[string][]string `json:"models" doc:"suggestions by runtime; any id of a provider's may be named"`
	ModelProviders   []string            `json:"model_providers"`
	SandboxProviders SandboxProviders    `json:"sandbox_providers"`
	PackageManagers  []string            `json:"package_managers"`
	ToolKinds        []string            `json:"tool_kinds" doc:"keys of a permission policy, beside tool titles and default"`
	MCPServers       []string            `json:"mcp_servers"`
}

// SandboxProviders are the providers of machines.
type SandboxProviders struct {
	Enabled []string `json:"enabled"`
	Default string   `json:"default"`
}

// suggested models by runtime. An id is never checked against a list: the provider knows.
var suggested = map[string][]string{
	agent.Claude: {"anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-1", "anthropic/claude-haiku-4-5"},
	agent.Codex:  {"openai/gpt-5", "openai/gpt-5-codex"},
	agent.Gemini: {"google/gemini-2.5-pro", "google/gemini-2.5-flash"},
	agent.ACP:    {},
}

// Get answers GET /api/catalog.
func (h Catalog) Get(context.Context, *struct{}) (*One[Offer], error) {
	return Of(Offer{
		SandboxAPIAccess: []string{"owner", "none"},
		Runtimes:         agent.Runtimes,
		Models:           suggested,
		ModelProviders:   inference.Providers,
		SandboxProviders: SandboxProviders{Enabled: h.Providers, Default: h.Default},
		PackageManagers:  []string{"apt", "npm", "pip"},
		ToolKinds:        agent.ToolKinds,
		MCPServers:       []string{},
	}), nil
}
