package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"managoat/internal/netguard/hostname"
)

// BuiltFields are the seven fields that a machine is built from, in the order people see them. A change of one makes the
// workspaces of the environment stale; a change of anything else does not.
var BuiltFields = []string{"repositories", "packages", "setup_script", "setup_timeout_seconds", "env_vars", "networking_type", "networking_config"}

// Digests are what a workspace remembers of the fields its machine was built from: equal exactly when the field means
// the same. Order counts only where it has a meaning: not that of packages, hosts and repositories.
func Digests(e Environment) map[string]string {
	packages := Packages{Apt: sorted(e.Packages.Apt), Npm: sorted(e.Packages.Npm), Pip: sorted(e.Packages.Pip)}
	hosts := make([]string, len(e.NetworkingConfig.AllowedHosts))
	for i, host := range e.NetworkingConfig.AllowedHosts {
		hosts[i] = host
		if p, err := hostname.ParsePattern(host); err == nil {
			hosts[i] = p.String()
		}
	}
	repositories := slices.Clone(e.Repositories)
	slices.SortFunc(repositories, func(a, b Repository) int { return strings.Compare(a.MountPath, b.MountPath) })
	if repositories == nil {
		repositories = []Repository{}
	}
	variables := e.EnvVars
	if variables == nil {
		variables = map[string]string{}
	}
	return map[string]string{
		"repositories":          digest(repositories),
		"packages":              digest(packages),
		"setup_script":          digest(e.SetupScript),
		"setup_timeout_seconds": digest(e.SetupTimeoutSeconds),
		"env_vars":              digest(variables),
		"networking_type":       digest(e.NetworkingType),
		"networking_config":     digest(sorted(hosts)),
	}
}

// ChangedFields names the built fields whose digests differ, in the order of BuiltFields.
func ChangedFields(built, now map[string]string) []string {
	out := []string{}
	for _, field := range BuiltFields {
		if built[field] != now[field] {
			out = append(out, field)
		}
	}
	return out
}

func sorted(s []string) []string {
	out := slices.Sorted(slices.Values(s))
	return slices.Compact(out)
}

func digest(v any) string {
	b, err := json.Marshal(v) // maps come out sorted
	if err != nil {
		panic(err) // our own types
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
