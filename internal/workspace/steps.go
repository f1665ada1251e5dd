package workspace

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"managoat/internal/environment"
	"managoat/sandbox/guest"
)

// Times of the commands of a setup.
const (
	packageTimeout = 300 * time.Second // one command of a package manager
	cloneTimeout   = 600 * time.Second // one repository
	quickTimeout   = 30 * time.Second  // what only touches the disk
	lockTimeout    = 120               // seconds that apt waits for another one's lock
)

// Places in a machine.
const (
	envFile      = guest.Home + "/.env"
	templateDir  = guest.Home + "/.managoat/template"
	scriptFile   = guest.Home + "/.managoat/setup.sh"
	aptConf      = "/etc/apt/apt.conf.d/90managoat"
	pipConf      = "/etc/pip.conf"
	tokenVar     = "MANAGOAT_GIT_TOKEN" // of a clone alone
	templateVar  = "MANAGOAT_RUNTIME_TEMPLATE"
	globalPrefix = "/usr/local" // where npm puts what is installed for everybody
)

// templateRuntimes are the runtimes whose template directories the setup script finds, empty.
var templateRuntimes = []string{"claude", "codex", "gemini"}

// homeRoots are where files of ours are written.
var homeRoots = []string{guest.Home}

// writeEnvironment is the step environment: the variables and secrets as a file, and what the machine's package managers
// need to find their way.
func (r *setup) writeEnvironment(ctx context.Context) (string, bool, error) {
	vars := maps.Clone(r.env.EnvVars)
	if vars == nil {
		vars = map[string]string{}
	}
	for name, v := range r.secrets {
		vars[name] = v.Reveal()
	}
	r.dotenv = dotenv(vars)
	if r.installs() {
		r.out.say("%s, %d of them secret, in %s once the packages are installed: what installs them sees none.", variables(len(vars)), len(r.secrets), envFile)
	} else {
		if err := r.writeDotenv(ctx); err != nil {
			return "", false, err
		}
		r.out.say("%s, %d of them secret, in %s.", variables(len(vars)), len(r.secrets), envFile)
	}
	if !r.built.Capabilities.Root {
		return variables(len(vars)), false, nil
	}
	conf := fmt.Sprintf("// Every way out of the machine goes through its proxy; another apt's lock is waited for.\n"+
		"Acquire::http::Proxy %q;\nAcquire::https::Proxy %q;\nDPkg::Lock::Timeout \"%d\";\n", r.base()["http_proxy"], r.base()["https_proxy"], lockTimeout)
	if err := r.built.Guest.WriteRootFile(ctx, aptConf, []byte(conf), 0o644); err != nil {
		return "", false, fmt.Errorf("write apt's settings: %w", err)
	}
	if r.s.o.AptSources != "" {
		if err := r.aptSources(ctx); err != nil {
			return "", false, err
		}
	}
	if r.s.o.PIPIndex != "" {
		if err := r.built.Guest.WriteRootFile(ctx, pipConf, []byte("[global]\nindex-url = "+r.s.o.PIPIndex+"\n"), 0o644); err != nil {
			return "", false, fmt.Errorf("write pip's settings: %w", err)
		}
	}
	return variables(len(vars)), false, nil
}

// writeDotenv writes the file of variables and secrets.
func (r *setup) writeDotenv(ctx context.Context) error {
	if err := r.built.Guest.WriteFile(ctx, homeRoots, envFile, r.dotenv, 0o600); err != nil {
		return fmt.Errorf("write the environment file: %w", err)
	}
	return nil
}

// aptSources puts the operator's package sources in the place of all that the base has: lines, or deb822.
func (r *setup) aptSources(ctx context.Context) error {
	err := r.command(ctx, "Clearing apt's sources", guest.Exec{
		Argv: []string{"sh", "-c", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*"}, Env: r.base(), Dir: "/", User: guest.Root, Timeout: quickTimeout,
	})
	if err != nil {
		return err
	}
	file := "/etc/apt/sources.list.d/managoat.list"
	if strings.Contains(r.s.o.AptSources, "Types:") {
		file = "/etc/apt/sources.list.d/managoat.sources"
	}
	if err := r.built.Guest.WriteRootFile(ctx, file, []byte(strings.TrimSpace(r.s.o.AptSources)+"\n"), 0o644); err != nil {
		return fmt.Errorf("write apt's sources: %w", err)
	}
	return nil
}

// dotenv writes variables as a file that shells and dotenv readers both read.
func dotenv(vars map[string]string) []byte {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value := vars[name]
		if strings.Contains(value, "'") {
			value = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "`", "\\`").Replace(value) + `"`
		} else {
			value = "'" + value + "'"
		}
		fmt.Fprintf(&b, "%s=%s\n", name, value)
	}
	return []byte(b.String())
}

// installPackages is the step packages, as machine root. Python's packages go beside the system's own
// (--break-system-packages): the machine is the environment, so a virtual one inside would only hide them.
func (r *setup) installPackages(ctx context.Context) (string, bool, error) {
	p := r.env.Packages
	if none(p) {
		return "no packages", true, nil
	}
	if l := r.built.Layer; l != nil {
		age := old(time.Since(l.CreatedAt))
		r.out.say("An earlier setup installed them: its layer, %s old, lies under this machine. A setup that is asked for fresh ones installs them anew.", age)
		return "cached, " + age + " old", false, nil
	}
	if !r.built.Capabilities.Root {
		return "", false, failf(nil, "%s", noRoot(r.built.Provider))
	}
	env := r.base()
	env["DEBIAN_FRONTEND"] = "noninteractive"
	var commands []packageCommand
	var notes []string
	if n := len(p.Apt); n > 0 {
		commands = append(commands,
			// What an interrupted installation left half done would stop every other one.
			packageCommand{"dpkg --configure", []string{"dpkg", "--configure", "-a"}},
			packageCommand{"apt-get install", []string{"apt-get", "-y", "-f", "install"}},
			// By default a list that could not be fetched is a warning, and what an old one knows is installed.
			packageCommand{"apt-get update", []string{"apt-get", "-o", "APT::Update::Error-Mode=any", "update"}},
			packageCommand{"apt-get install", append([]string{"apt-get", "-y", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends", "install", "--"}, p.Apt...)},
		)
		notes = append(notes, fmt.Sprintf("apt %d", n))
	}
	if n := len(p.Npm); n > 0 {
		commands = append(commands, packageCommand{"npm install",
			append([]string{"npm", "install", "--global", "--prefix", globalPrefix, "--no-fund", "--no-audit", "--no-update-notifier", "--"}, p.Npm...)})
		notes = append(notes, fmt.Sprintf("npm %d", n))
	}
	if n := len(p.Pip); n > 0 {
		commands = append(commands, packageCommand{"pip install",
			append([]string{"sh", "-c", pipScript, "pip", "install", "--break-system-packages", "--no-input", "--disable-pip-version-check", "--root-user-action=ignore", "--"}, p.Pip...)})
		notes = append(notes, fmt.Sprintf("pip %d, beside the system's own", n))
	}
	for _, c := range commands {
		r.out.say("$ %s", strings.Replace(strings.Join(c.argv, " "), "sh -c "+pipScript+" ", "", 1))
		err := r.command(ctx, c.label, guest.Exec{Argv: c.argv, Env: env, Dir: "/", User: guest.Root, Timeout: packageTimeout})
		if err != nil {
			return "", false, err
		}
	}
	r.snapshot(ctx)
	return strings.Join(notes, ", "), false, r.writeDotenv(ctx)
}

// packageCommand is one command of a package manager, with its name for errors.
type packageCommand struct {
	label string
	argv  []string
}

// pipScript runs pip, or says what to do where there is none: not every base has it.
const pipScript = `python3 -m pip --version >/dev/null 2>&1 || { echo "pip is not in this machine: add python3-pip to the apt packages" >&2; exit 127; }; exec python3 -m pip "$@"`

// cloneRepositories is the step repositories.
func variables(n int) string {
	if n == 1 {
		return "1 variable"
	}
	return fmt.Sprintf("%d variables", n)
}

func (r *setup) cloneRepositories(ctx context.Context) (string, bool, error) {
	if len(r.env.Repositories) == 0 {
		return "no repositories", true, nil
	}
	for _, repo := range r.env.Repositories {
		if err := r.clone(ctx, repo); err != nil {
			return "", false, err
		}
	}
	if n := len(r.env.Repositories); n > 1 {
		return fmt.Sprintf("%d repositories", n), false, nil
	}
	return "1 repository", false, nil
}

// cloneScript clones $1 into $2 at $3 (a branch, a tag, a commit, or nothing). A clone that fails leaves the directory
// empty: it is never cloned over.
const cloneScript = `
set -u
url=$1 dir=$2 ref=$3
cd "$dir" || exit
if [ -n "$(ls -A)" ]; then
	echo "$dir is not empty: something was put there before the clone" >&2
	exit 1
fi
wipe() {
	find "$dir" -mindepth 1 -delete
}
git clone --no-checkout -- "$url" . || { code=$?; wipe; exit $code; }
if [ -z "$ref" ]; then
	git rev-parse --quiet --verify HEAD >/dev/null || exit 0 # it has no commit yet
	git checkout --quiet && exit
elif git rev-parse --quiet --verify "refs/remotes/origin/$ref" >/dev/null; then
	git checkout --quiet -B "$ref" --track "origin/$ref" && exit
elif git rev-parse --quiet --verify "refs/tags/$ref" >/dev/null; then
	git checkout --quiet --detach "refs/tags/$ref" && exit
elif git rev-parse --quiet --verify "$ref^{commit}" >/dev/null; then
	git checkout --quiet --detach "$ref" && exit
elif git fetch --quiet origin "$ref" 2>/dev/null; then
	git checkout --quiet --detach FETCH_HEAD && exit
else
	echo "the repository has no branch, tag or commit $ref" >&2
fi
wipe
exit 1
`

// clone clones one repository as sprite. The secret that opens it travels in the environment of this one command, and
// git asks for it only at the repository's own host: it is in no address, no argument, no file and no error.
func (r *setup) clone(ctx context.Context, repo environment.Repository) error {
	if err := r.makeMount(ctx, repo.MountPath); err != nil {
		return err
	}
	env := r.base()
	config := [][2]string{{"advice.detachedHead", "false"}, {"init.defaultBranch", "main"}, {"credential.helper", ""}}
	if repo.SecretKey != "" {
		token, ok := r.secrets[repo.SecretKey]
		if !ok {
			return failf(nil, "The repository %s is opened by the secret %q, which neither the environment nor the vault has.", repo.URL, repo.SecretKey)
		}
		u, err := url.Parse(repo.URL)
		if err != nil {
			return failf(nil, "The address of the repository at %s cannot be read.", repo.MountPath)
		}
		env[tokenVar] = token.Reveal()
		config = append(config, [2]string{
			"credential." + u.Scheme + "://" + u.Host + ".helper",
			`!f() { test "$1" = get && printf 'username=x-access-token\npassword=%s\n' "$` + tokenVar + `"; }; f`,
		})
	}
	env["GIT_TERMINAL_PROMPT"] = "0"
	env["GIT_CONFIG_COUNT"] = fmt.Sprint(len(config))
	for i, c := range config {
		env[fmt.Sprintf("GIT_CONFIG_KEY_%d", i)], env[fmt.Sprintf("GIT_CONFIG_VALUE_%d", i)] = c[0], c[1]
	}
	at := ""
	if repo.Ref != "" {
		at = " at " + repo.Ref
	}
	r.out.say("Cloning %s%s into %s", repo.URL, at, repo.MountPath)
	return r.command(ctx, "The clone of "+repo.URL, guest.Exec{
		Argv: []string{"bash", "-c", cloneScript, "clone", repo.URL, repo.MountPath, repo.Ref}, Env: env, Dir: guest.Home,
		User: guest.Sprite, Timeout: cloneTimeout,
	})
}

// makeMount makes the directory of a repository, sprite's own. Outside of the home machine root makes it; where there is
// none, nothing outside of the home is kept when the machine stops.
func (r *setup) makeMount(ctx context.Context, mount string) error {
	label := "Making " + mount
	if strings.HasPrefix(mount, guest.Home+"/") {
		return r.command(ctx, label, guest.Exec{Argv: []string{"mkdir", "-p", "--", mount}, Env: r.base(), User: guest.Sprite, Timeout: quickTimeout})
	}
	if !r.built.Capabilities.Root {
		return failf(nil, "%s cannot be made: machines of the provider %q on this host have one user only. Use a mount path below %s, or run the server as root.", mount, r.built.Provider, guest.Home)
	}
	return r.command(ctx, label, guest.Exec{
		Argv: []string{"sh", "-c", `mkdir -p -- "$1" && chown sprite: -- "$1"`, "mount", mount}, Env: r.base(), Dir: "/", User: guest.Root, Timeout: quickTimeout,
	})
}

// runScript is the step setup_script: as sprite, with sudo, in a login shell, with nothing to read.
func (r *setup) runScript(ctx context.Context) (string, bool, error) {
	if strings.TrimSpace(r.env.SetupScript) == "" {
		return "no setup script", true, nil
	}
	g := r.built.Guest
	if err := g.Remove(ctx, homeRoots, templateDir); err != nil {
		return "", false, fmt.Errorf("clear the runtime template: %w", err)
	}
	for _, name := range templateRuntimes {
		if _, err := g.Mkdir(ctx, homeRoots, path.Join(templateDir, name), 0o700); err != nil {
			return "", false, fmt.Errorf("make the runtime template: %w", err)
		}
	}
	if err := g.WriteFile(ctx, homeRoots, scriptFile, []byte(r.env.SetupScript), 0o700); err != nil {
		return "", false, fmt.Errorf("write the setup script: %w", err)
	}
	env := r.own()
	env[templateVar] = templateDir
	env["DEBIAN_FRONTEND"] = "noninteractive"
	err := r.command(ctx, "The setup script", guest.Exec{
		Argv: []string{"bash", "-l", scriptFile}, Env: env, Dir: guest.Home, User: guest.Sprite, Sudo: true,
		Timeout: time.Duration(r.env.SetupTimeoutSeconds) * time.Second,
	})
	if err != nil {
		return "", false, err
	}
	return "", false, g.Remove(ctx, homeRoots, scriptFile)
}
