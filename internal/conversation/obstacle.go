package conversation

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"managoat/internal/agent"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/runtime"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
)

// Obstacles are the agents of which no conversation would run in a workspace, or, with nil, on a machine of its own: each with
// why, in a few words for a list to choose from. A launch says it in full.
func (s *Service) Obstacles(ctx context.Context, actor tenant.Actor, agents []agent.Agent, in *workspace.Workspace) (map[uuid.UUID]string, error) {
	keys, err := s.o.Inference.List(ctx, actor, input.Page{Limit: input.MaxLimit})
	if err != nil {
		return nil, err
	}
	found := map[uuid.UUID]string{}
	for _, a := range agents {
		if why := obstacle(a, keys.Items, in); why != "" {
			found[a.ID] = why
		}
	}
	return found, nil
}

func obstacle(a agent.Agent, keys []inference.Credential, in *workspace.Workspace) string {
	if rt, ok := runtime.Get(a.Runtime); !ok || !adapted(rt) {
		return "does not run in this version yet"
	}
	if in != nil && in.EnvironmentID != nil && !a.AllowsEnvironment(*in.EnvironmentID) {
		return "may not run in this environment"
	}
	if in != nil && in.VaultID != nil && !a.AllowsVault(*in.VaultID) {
		return "may not use this vault"
	}
	provider := a.Provider()
	switch named := a.InferenceCredentialID; {
	case named != nil && !slices.ContainsFunc(keys, func(k inference.Credential) bool {
		return k.ID == *named && (provider == "" || k.Provider == provider)
	}):
		return "its inference credential is not there"
	case named == nil && provider != "" && !slices.ContainsFunc(keys, func(k inference.Credential) bool { return k.Provider == provider && k.Default }):
		return "no inference credential for " + provider
	}
	return ""
}

// adapted tells whether this version has the adapter of a runtime, or the runtime needs none of ours.
func adapted(rt runtime.Runtime) bool {
	return rt.Installs() == "" || runtime.Version(rt.Installs()) != ""
}
