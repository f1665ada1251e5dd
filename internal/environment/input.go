package environment

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"managoat/internal/broker/rule"
	"managoat/internal/input"
	"managoat/internal/netguard/hostname"
	"managoat/internal/refusal"
)

// Limits of an environment.
const (
	MaxScript       = 256 << 10 // bytes
	MaxVariables    = 200
	MaxVariable     = 32 << 10 // bytes of one value
	MaxPackages     = 200      // of one package manager
	MaxPackageName  = 200
	MaxRepositories = 50
	MaxURL          = 2048
	MaxPath         = 512
	MaxRef          = 255
	MaxAllowedHosts = 500

	MinSetupTimeout     = 1 // seconds
	MaxSetupTimeout     = 900
	DefaultSetupTimeout = 120
)

// Input is what people write of an environment. New gives its defaults.
type Input struct {
	Name                string            `json:"name" doc:"1 to 200 characters, unique in the account"`
	Packages            Packages          `json:"packages"`
	EnvVars             map[string]string `json:"env_vars" doc:"plain values; secrets are kept apart"`
	SetupScript         string            `json:"setup_script" doc:"run by bash at the end of the setup"`
	SetupTimeoutSeconds int               `json:"setup_timeout_seconds" doc:"1 to 900, default 120"`
	NetworkingType      string            `json:"networking_type" doc:"unrestricted (default) or limited"`
	NetworkingConfig    NetworkingConfig  `json:"networking_config"`
	Repositories        []Repository      `json:"repositories"`
	Metadata            map[string]any    `json:"metadata"`
}

// Packages are installed by the setup, by package manager.
type Packages struct {
	Apt []string `json:"apt" doc:"name or name=version"`
	Npm []string `json:"npm" doc:"name or name@version, global"`
	Pip []string `json:"pip" doc:"name, name==version or name~=version"`
}

// NetworkingConfig narrows the networking type limited.
type NetworkingConfig struct {
	AllowedHosts []string `json:"allowed_hosts" doc:"host, *.host, host:port; none: nothing may be reached"`
}

// Repository is cloned by the setup.
type Repository struct {
	URL       string `json:"url" doc:"https only, without user and password"`
	MountPath string `json:"mount_path" doc:"absolute path in the machine"`
	Ref       string `json:"ref,omitempty" doc:"branch, tag or commit; default: the repository's own"`
	SecretKey string `json:"secret_key,omitempty" doc:"key of the secret that opens a private repository"`
}

// New is an environment's input with its defaults.
func New() Input {
	return Input{SetupTimeoutSeconds: DefaultSetupTimeout, NetworkingType: rule.Unrestricted}
}

// Validate brings the input into the form that is stored and checks every rule. Its refusal names each field that
// breaks one.
func (in *Input) Validate() error {
	var v refusal.Validation
	input.Name(&v, "name", &in.Name)
	input.Metadata(&v, "metadata", &in.Metadata)
	in.Packages.validate(&v)
	in.validateVariables(&v)
	in.SetupScript = input.Lines(in.SetupScript)
	input.Text(&v, "setup_script", in.SetupScript, MaxScript)
	v.Check(in.SetupTimeoutSeconds >= MinSetupTimeout && in.SetupTimeoutSeconds <= MaxSetupTimeout,
		"setup_timeout_seconds", "must be from %d to %d", MinSetupTimeout, MaxSetupTimeout)
	in.validateNetworking(&v)
	in.validateRepositories(&v)
	return v.Err()
}

// Names of packages, with a version where the manager takes one. None can be an option of the manager, a path, an
// address, or mean anything to a shell.
var (
	aptPackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?(=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?$`)
	npmPackage = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*(@[\^~]?[A-Za-z0-9][A-Za-z0-9.+-]*)?$`)
	pipPackage = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?([=~]=[A-Za-z0-9][A-Za-z0-9.+!]*)?$`)
)

func (p *Packages) validate(v *refusal.Validation) {
	for _, m := range []struct {
		name     string
		packages *[]string
		form     *regexp.Regexp
		advice   string
	}{
		{"apt", &p.Apt, aptPackage, "write name or name=version"},
		{"npm", &p.Npm, npmPackage, "write name, @scope/name or name@version"},
		{"pip", &p.Pip, pipPackage, "write name, name==version or name~=version"},
	} {
		field := "packages." + m.name
		v.Check(len(*m.packages) <= MaxPackages, field, "must have at most %d entries, has %d", MaxPackages, len(*m.packages))
		kept := []string{}
		for _, name := range *m.packages {
			name = strings.TrimSpace(name)
			if len(name) > MaxPackageName || !m.form.MatchString(name) {
				v.Add(field, "%q is not a package of %s: %s", shorten(name), m.name, m.advice)
			}
			if !slices.Contains(kept, name) {
				kept = append(kept, name)
			}
		}
		*m.packages = kept
	}
}

func (in *Input) validateVariables(v *refusal.Validation) {
	if in.EnvVars == nil {
		in.EnvVars = map[string]string{}
	}
	v.Check(len(in.EnvVars) <= MaxVariables, "env_vars", "must have at most %d entries, has %d", MaxVariables, len(in.EnvVars))
	for _, name := range slices.Sorted(maps.Keys(in.EnvVars)) {
		if problem := input.VariableName(name); problem != "" {
			v.Add("env_vars", "%s", problem)
			continue
		}
		input.Text(v, "env_vars."+name, in.EnvVars[name], MaxVariable)
	}
}

func (in *Input) validateNetworking(v *refusal.Validation) {
	if in.NetworkingType != rule.Unrestricted && in.NetworkingType != rule.Limited {
		v.Add("networking_type", "must be %s or %s", rule.Unrestricted, rule.Limited)
	}
	hosts := []string{}
	for _, host := range in.NetworkingConfig.AllowedHosts {
		hosts = append(hosts, strings.TrimSpace(host))
	}
	in.NetworkingConfig.AllowedHosts = hosts
	const field = "networking_config.allowed_hosts"
	v.Check(len(hosts) <= MaxAllowedHosts, field, "must have at most %d entries, has %d", MaxAllowedHosts, len(hosts))
	for _, host := range hosts {
		if err := (rule.Policy{Type: rule.Limited, AllowedHosts: []string{host}}).Validate(); err != nil {
			v.Add(field, "%s", err)
		}
	}
}

// Places in a machine that are the system's own, or the product's: a repository there would break what the setup and
// the agents stand on.
var reservedTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
	"/var/cache", "/var/lib", "/var/log", "/var/run", "/home/sprite/.managoat"}

// Folders that may hold repositories and cannot be one.
var reservedFolders = []string{"/", "/home", "/home/sprite", "/root", "/tmp", "/opt", "/srv", "/mnt", "/media", "/var"}

func (in *Input) validateRepositories(v *refusal.Validation) {
	if in.Repositories == nil {
		in.Repositories = []Repository{}
	}
	v.Check(len(in.Repositories) <= MaxRepositories, "repositories", "must have at most %d entries, has %d", MaxRepositories, len(in.Repositories))
	for i := range in.Repositories {
		r := &in.Repositories[i]
		field := fmt.Sprintf("repositories[%d].", i)
		r.URL, r.Ref = strings.TrimSpace(r.URL), strings.TrimSpace(r.Ref)
		if problem := repositoryURL(r.URL); problem != "" {
			v.Add(field+"url", "%s", problem)
		}
		if problem := mountPath(r.MountPath); problem != "" {
			v.Add(field+"mount_path", "%s", problem)
		}
		for _, other := range in.Repositories[:i] {
			if within(r.MountPath, other.MountPath) || within(other.MountPath, r.MountPath) {
				v.Add(field+"mount_path", "collides with %q of another repository: use folders beside each other", other.MountPath)
			}
		}
		if r.Ref != "" && !validRef(r.Ref) {
			v.Add(field+"ref", "%q cannot be a branch, a tag or a commit", shorten(r.Ref))
		}
		if r.SecretKey != "" {
			if problem := input.VariableName(r.SecretKey); problem != "" {
				v.Add(field+"secret_key", "%s", problem)
			}
		}
	}
}

// repositoryURL says what is wrong with the address of a repository. Its sentence does not repeat the address, which
// may hold a password.
func repositoryURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || len(s) > MaxURL || !utf8.ValidString(s) || strings.ContainsAny(s, " \t\r\n\\"):
		return fmt.Sprintf("must be an address of at most %d characters", MaxURL)
	case u.Scheme != "https":
		return "must begin with https://"
	case u.User != nil:
		return "must not hold a user or a password: put the token into a secret and name it in secret_key"
	case strings.ContainsAny(s, "?#"):
		return "must not have a query or a fragment"
	case strings.Trim(u.Path, "/") == "":
		return "must have the path of a repository"
	}
	if _, err := hostname.Fold(strings.TrimSuffix(u.Host, ":"+u.Port())); err != nil {
		return "must have a host: " + err.Error()
	}
	if port := u.Port(); port != "" {
		if _, err := hostname.Port(port); err != nil {
			return "must have a port from 1 to 65535"
		}
	}
	return ""
}

func mountPath(p string) string {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "must be an absolute path, such as /home/sprite/app"
	case len(p) > MaxPath || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }):
		return fmt.Sprintf("must have at most %d bytes and no control characters", MaxPath)
	case path.Clean(p) != p:
		return fmt.Sprintf("must be written without . and .. and doubled or trailing slashes: %q", path.Clean(p))
	case slices.Contains(reservedFolders, p):
		return "must be a folder of its own: " + path.Join(p, "app")
	case slices.ContainsFunc(reservedTrees, func(tree string) bool { return within(p, tree) }):
		return "must not lie in a folder of the system: use one below /home/sprite"
	}
	return ""
}

// within tells whether p is the folder or lies below it.
func within(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/")
}

// validRef follows git check-ref-format, and refuses what git could take for an option.
func validRef(ref string) bool {
	if len(ref) > MaxRef || strings.HasPrefix(ref, "-") || strings.HasPrefix(ref, "/") || strings.HasSuffix(ref, "/") || strings.HasSuffix(ref, ".") ||
		ref == "@" || strings.Contains(ref, "..") || strings.Contains(ref, "@{") || strings.Contains(ref, "//") ||
		strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' || strings.ContainsRune(`~^:?*[\`, r) }) {
		return false
	}
	for part := range strings.SplitSeq(ref, "/") {
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// shorten keeps a refusal readable when what it repeats is not.
func shorten(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}
