// Package config is the one typed set of settings: each has a flag and a MANAGOAT_ variable of the same name, a
// default, and a rule that is checked before anything starts.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/net/idna"

	"managoat/sandbox/docker"
)

// Config holds the settings of a server.
type Config struct {
	Data    string
	Listen  string
	URL     string
	HostURL string

	TLSCert       string
	TLSKey        string
	ACMEDomains   []string
	ACMEContact   string
	ACMEDirectory string
	HTTPListen    string

	DatabaseURL         string
	AppDatabaseURL      string
	PlatformDatabaseURL string
	DatabasePooler      string
	DatabaseConnections int
	PGBin               string
	MasterKey           string
	RuntimesDir         string

	SandboxProviders []string
	DockerHost       string
	DockerImage      string
	DockerRuntime    string
	SandboxProvider  string
	AllowPrivate     []string
	Resolve          []string
	ExtraCA          string
	APTSources       string
	NPMRegistry      string
	PIPIndex         string
	EgressPorts      []string

	SandboxIdleTimeoutMinutes int
	SandboxMaxLifetimeHours   int
	SandboxTaskRetentionHours int

	MachineMemoryMB int
	MachineCPUs     float64
	MachinePids     int
	MachineDiskMB   int

	PackageLayerDays int
	PackageLayersMB  int

	RunningMachines  int
	FleetMachines    int
	HostMachines     int
	PromptsPerMinute int

	TrustedProxies []string
	LogLevel       string
	LogFormat      string
}

// maxHostMachines are more than any host runs.
const maxHostMachines = 100_000

// maxConnections are more than any PostgreSQL gives a server.
const maxConnections = 1000

// Lifetimes beyond these are slips of the keyboard.
const (
	maxIdleMinutes   = 365 * 24 * 60
	maxLifetimeHours = 10 * 365 * 24
)

// Setting is one row of the table of settings; docs/configuration.md is made from it.
type Setting struct {
	Flag    string // "listen"; its variable is MANAGOAT_LISTEN
	Default string
	Help    string
	Bare    bool // the manual's name works without MANAGOAT_ too
	Store   bool // it tells where the instance's data is
	bind    func(*Config) pflag.Value
	check   func(*Config) error
}

// Variable is the environment variable of the setting.
func (s Setting) Variable() string {
	return "MANAGOAT_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Settings is the table.
var Settings = []Setting{
	{Flag: "data", Store: true, Default: defaultData(), Help: "data directory: database, machines, keys", bind: text(func(c *Config) *string { return &c.Data })},
	{Flag: "listen", Default: "127.0.0.1:8080", Help: "address to serve on", bind: text(func(c *Config) *string { return &c.Listen }), check: func(c *Config) error { return address(c.Listen) }},
	{Flag: "url", Help: "public URL of this server, as browsers see it (default: http:// and the listen address)", bind: text(func(c *Config) *string { return &c.URL }), check: publicURL},
	{Flag: "host-url", Help: "where the other servers on the same database reach this one, and no other (default: the URL)", bind: text(func(c *Config) *string { return &c.HostURL }), check: func(c *Config) error { return webURL(c.HostURL) }},
	{Flag: "tls-cert", Help: "PEM file of a certificate, with its chain, to serve https with; read again when it changes (default: plain http)", bind: text(func(c *Config) *string { return &c.TLSCert }), check: certificate},
	{Flag: "tls-key", Help: "PEM file of the certificate's key", bind: text(func(c *Config) *string { return &c.TLSKey }), check: func(c *Config) error {
		if c.TLSKey != "" && c.TLSCert == "" {
			return errors.New("needs tls-cert")
		}
		return readable(c.TLSKey)
	}},
	{Flag: "acme-domains", Help: "names to serve https with, the public URL's among them; their certificates come from an ACME authority, which reaches this server on port 443 (TLS-ALPN-01), or on port 80 at http-listen (HTTP-01)", bind: list(func(c *Config) *[]string { return &c.ACMEDomains }), check: domains},
	{Flag: "acme-contact", Help: "mail address that the authority may write to", bind: text(func(c *Config) *string { return &c.ACMEContact }), check: func(c *Config) error {
		if c.ACMEContact == "" {
			return nil
		}
		if a, err := mail.ParseAddress(c.ACMEContact); err != nil || a.Address != c.ACMEContact {
			return errors.New("must be a mail address such as ops@example.com")
		}
		if len(c.ACMEDomains) == 0 {
			return errors.New("needs acme-domains")
		}
		return nil
	}},
	{Flag: "acme-directory", Default: "https://acme-v02.api.letsencrypt.org/directory", Help: "the authority; one of your own is trusted by extra-ca", bind: text(func(c *Config) *string { return &c.ACMEDirectory }), check: func(c *Config) error {
		if u, err := url.Parse(c.ACMEDirectory); err != nil || u.Scheme != "https" || u.Host == "" {
			return errors.New("must be an https URL")
		}
		return nil
	}},
	{Flag: "http-listen", Help: "second address, without TLS, that sends browsers on to the public URL, such as :80", bind: text(func(c *Config) *string { return &c.HTTPListen }), check: func(c *Config) error {
		switch {
		case c.HTTPListen == "":
			return nil
		case !c.TLS():
			return errors.New("needs tls-cert or acme-domains: without TLS there is nothing to send browsers on to")
		}
		return address(c.HTTPListen)
	}},
	{Flag: "database-url", Store: true, Help: "a PostgreSQL that is already there, 15 or newer (default: an embedded one under the data directory)", bind: text(func(c *Config) *string { return &c.DatabaseURL }), check: func(c *Config) error { return pgURL(c.DatabaseURL) }},
	{Flag: "app-database-url", Store: true, Help: "the app login's URL, when the owner may not create roles", bind: text(func(c *Config) *string { return &c.AppDatabaseURL }), check: func(c *Config) error { return pgURL(c.AppDatabaseURL) }},
	{Flag: "platform-database-url", Store: true, Help: "the platform login's URL, when the owner may not create roles", bind: text(func(c *Config) *string { return &c.PlatformDatabaseURL }), check: func(c *Config) error { return pgURL(c.PlatformDatabaseURL) }},
	{Flag: "database-pooler", Store: true, Help: "host:port, or directory:port of a socket, of a PgBouncer before database-url, in any mode but statement; migrations and notifications go to database-url all the same", bind: text(func(c *Config) *string { return &c.DatabasePooler }), check: func(c *Config) error { return pooler(c) }},
	{Flag: "database-connections", Store: true, Default: "16", Help: "connections to the database that the server's statements share; a few more are the platform login's and the notifications'", bind: number(func(c *Config) *int { return &c.DatabaseConnections }), check: between(1, maxConnections, func(c *Config) int { return c.DatabaseConnections })},
	{Flag: "pg-bin", Store: true, Help: "directory of PostgreSQL's server binaries (default: the newest installed)", bind: text(func(c *Config) *string { return &c.PGBin })},
	{Flag: "master-key", Store: true, Help: "32 bytes, hex or base64, that seal every secret (default: a key file made in the data directory)", bind: text(func(c *Config) *string { return &c.MasterKey })},
	{Flag: "runtimes-dir", Help: "where adapters are installed, shared by all data directories of a host", Default: defaultRuntimes(), bind: text(func(c *Config) *string { return &c.RuntimesDir })},
	{Flag: "sandbox-providers", Default: "local", Help: "the enabled sandbox providers, comma separated: local, docker", bind: list(func(c *Config) *[]string { return &c.SandboxProviders }), check: func(c *Config) error {
		for _, p := range c.SandboxProviders {
			if p != "local" && p != "docker" {
				return fmt.Errorf("%q is not a sandbox provider (local, docker)", p)
			}
		}
		return nil
	}},
	{Flag: "sandbox-provider", Default: "local", Help: "the provider of new workspaces that name none", bind: text(func(c *Config) *string { return &c.SandboxProvider }), check: func(c *Config) error {
		if !slices.Contains(c.SandboxProviders, c.SandboxProvider) {
			return errors.New("must be one of sandbox-providers")
		}
		return nil
	}},
	{Flag: "docker-host", Help: "the Docker Engine that the docker provider uses, such as unix:///run/docker.sock (default: DOCKER_HOST, or the usual socket)", bind: text(func(c *Config) *string { return &c.DockerHost })},
	{Flag: "docker-image", Default: docker.DefaultImage, Help: "the image that machines of the docker provider are made from", bind: text(func(c *Config) *string { return &c.DockerImage })},
	{Flag: "docker-runtime", Help: "the engine's runtime for machines, such as runsc (default: the engine's own)", bind: text(func(c *Config) *string { return &c.DockerRuntime })},
	{Flag: "allow-private", Help: "private targets that may be dialled: purpose=host:port,… (purposes model, git, mcp, webhook, machine; the port may be *)", bind: list(func(c *Config) *[]string { return &c.AllowPrivate })},
	{Flag: "resolve", Help: "names with fixed addresses for the egress and the server's own calls: name=address,…", bind: list(func(c *Config) *[]string { return &c.Resolve })},
	{Flag: "extra-ca", Help: "file of PEM certificates that server, egress and machines trust beside the public ones", bind: text(func(c *Config) *string { return &c.ExtraCA }), check: func(c *Config) error { return readable(c.ExtraCA) }},
	{Flag: "apt-sources", Help: "sources.list lines for machines, or a file of them (default: the host's)", bind: text(func(c *Config) *string { return &c.APTSources })},
	{Flag: "npm-registry", Help: "npm registry for machines (default: the host's)", bind: text(func(c *Config) *string { return &c.NPMRegistry }), check: func(c *Config) error { return webURL(c.NPMRegistry) }},
	{Flag: "pip-index", Help: "pip index for machines (default: the host's)", bind: text(func(c *Config) *string { return &c.PIPIndex }), check: func(c *Config) error { return webURL(c.PIPIndex) }},
	{Flag: "egress-ports", Default: "80,443,22,5432,9418", Help: "ports that an unrestricted machine may reach", bind: list(func(c *Config) *[]string { return &c.EgressPorts }), check: func(c *Config) error {
		_, err := c.Ports()
		return err
	}},
	{Flag: "sandbox-idle-timeout-minutes", Default: "60", Bare: true, Help: "a machine parks when no turn has run or waited for so long; 0: never", bind: number(func(c *Config) *int { return &c.SandboxIdleTimeoutMinutes }), check: between(0, maxIdleMinutes, func(c *Config) int { return c.SandboxIdleTimeoutMinutes })},
	{Flag: "sandbox-max-lifetime-hours", Default: "0", Bare: true, Help: "a machine that is up for so long parks, and the turns on it end; 0: off", bind: number(func(c *Config) *int { return &c.SandboxMaxLifetimeHours }), check: between(0, maxLifetimeHours, func(c *Config) int { return c.SandboxMaxLifetimeHours })},
	{Flag: "sandbox-task-retention-hours", Default: "72", Bare: true, Help: "of no effect yet: a conversation's own machine is kept parked as long as the conversation lives", bind: number(func(c *Config) *int { return &c.SandboxTaskRetentionHours }), check: between(0, maxLifetimeHours, func(c *Config) int { return c.SandboxTaskRetentionHours })},
	{Flag: "machine-memory-mb", Default: "4096", Help: "memory of a machine", bind: number(func(c *Config) *int { return &c.MachineMemoryMB }), check: atLeast(128, func(c *Config) int { return c.MachineMemoryMB })},
	{Flag: "machine-cpus", Default: "2", Help: "processors of a machine", bind: fraction(func(c *Config) *float64 { return &c.MachineCPUs })},
	{Flag: "machine-pids", Default: "2048", Help: "processes and threads of a machine", bind: number(func(c *Config) *int { return &c.MachinePids }), check: atLeast(64, func(c *Config) int { return c.MachinePids })},
	{Flag: "machine-disk-mb", Default: "20480", Help: "what a machine may write to its disk", bind: number(func(c *Config) *int { return &c.MachineDiskMB }), check: atLeast(64, func(c *Config) int { return c.MachineDiskMB })},
	{Flag: "package-layer-days", Default: "30", Help: "installed packages are reused by later setups of their account for this long", bind: number(func(c *Config) *int { return &c.PackageLayerDays }), check: atLeast(1, func(c *Config) int { return c.PackageLayerDays })},
	{Flag: "package-layers-mb", Default: "20480", Help: "what installed packages kept for later setups may occupy on this host; 0: none are kept", bind: number(func(c *Config) *int { return &c.PackageLayersMB }), check: atLeast(0, func(c *Config) int { return c.PackageLayersMB })},
	{Flag: "running-machines", Default: "20", Help: "machines an account may run at once", bind: number(func(c *Config) *int { return &c.RunningMachines }), check: atLeast(0, func(c *Config) int { return c.RunningMachines })},
	{Flag: "fleet-machines", Default: "100", Help: "machines the instance may run at once", bind: number(func(c *Config) *int { return &c.FleetMachines }), check: atLeast(1, func(c *Config) int { return c.FleetMachines })},
	{Flag: "host-machines", Default: "0", Help: "machines this host may run at once; 0: no bound, and new machines are shared among hosts by how many each one's memory and processors hold", bind: number(func(c *Config) *int { return &c.HostMachines }), check: between(0, maxHostMachines, func(c *Config) int { return c.HostMachines })},
	{Flag: "prompts-per-minute", Default: "60", Help: "prompts an account may send a minute", bind: number(func(c *Config) *int { return &c.PromptsPerMinute }), check: atLeast(1, func(c *Config) int { return c.PromptsPerMinute })},
	{Flag: "trusted-proxies", Help: "networks of reverse proxies whose X-Forwarded-For is believed, comma separated", bind: list(func(c *Config) *[]string { return &c.TrustedProxies }), check: func(c *Config) error {
		_, err := c.Proxies()
		return err
	}},
	{Flag: "log-level", Store: true, Default: "info", Help: "debug, info, warn or error", bind: text(func(c *Config) *string { return &c.LogLevel }), check: oneOf(func(c *Config) string { return c.LogLevel }, "debug", "info", "warn", "error")},
	{Flag: "log-format", Store: true, Default: "text", Help: "text or json", bind: text(func(c *Config) *string { return &c.LogFormat }), check: oneOf(func(c *Config) string { return c.LogFormat }, "text", "json")},
}

// Flags adds the settings to a command's flags, with defaults from the environment. A blank variable is unset.
func (c *Config) Flags(fs *pflag.FlagSet) error {
	var problems []error
	for _, s := range Settings {
		v := s.bind(c)
		set := func(source, value string) {
			if err := v.Set(value); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", source, err))
			}
		}
		set(s.Flag, s.Default)
		names := []string{s.Variable()}
		if s.Bare {
			names = append([]string{strings.TrimPrefix(s.Variable(), "MANAGOAT_")}, names...)
		}
		for _, name := range names {
			if value := strings.TrimSpace(os.Getenv(name)); value != "" {
				set(name, value)
			}
		}
		fs.Var(v, s.Flag, s.Help+" ["+s.Variable()+"]")
	}
	return errors.Join(problems...)
}

// Check says which settings cannot be served with, all of them at once.
func (c *Config) Check() error {
	var problems []error
	for _, s := range Settings {
		if s.check == nil {
			continue
		}
		if err := s.check(c); err != nil {
			problems = append(problems, fmt.Errorf("--%s (%s): %w", s.Flag, s.Variable(), err))
		}
	}
	return errors.Join(problems...)
}

// Host is the public URL's, without a port.
func (c *Config) Host() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// TLS tells whether the server speaks https itself.
func (c *Config) TLS() bool { return c.TLSCert != "" || len(c.ACMEDomains) > 0 }

// MaxLifetime is how long a machine may be up at once; 0: for ever.
func (c *Config) MaxLifetime() time.Duration {
	return time.Duration(c.SandboxMaxLifetimeHours) * time.Hour
}

// TaskRetention is how long a conversation's own machine is kept parked; 0: for ever.
func (c *Config) TaskRetention() time.Duration {
	return time.Duration(c.SandboxTaskRetentionHours) * time.Hour
}

// IdleTimeout is after how long an idle machine parks; 0: never.
func (c *Config) IdleTimeout() time.Duration {
	return time.Duration(c.SandboxIdleTimeoutMinutes) * time.Minute
}

// PackageLayers is for how long installed packages are reused, and what all that is kept of them may occupy in bytes; less
// than 0: nothing is kept.
func (c *Config) PackageLayers() (age time.Duration, bytes int64) {
	if c.PackageLayersMB == 0 {
		return 0, -1
	}
	return time.Duration(c.PackageLayerDays) * 24 * time.Hour, int64(c.PackageLayersMB) << 20
}

// Ports are the egress ports as numbers.
func (c *Config) Ports() ([]int, error) {
	var ports []int
	for _, p := range c.EgressPorts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("%q is not a port", p)
		}
		ports = append(ports, n)
	}
	return ports, nil
}

// Proxies are the trusted proxies as networks.
func (c *Config) Proxies() ([]*net.IPNet, error) {
	var nets []*net.IPNet
	for _, p := range c.TrustedProxies {
		_, n, err := net.ParseCIDR(p)
		if err != nil {
			return nil, fmt.Errorf("%q is not a network such as 10.0.0.0/8", p)
		}
		nets = append(nets, n)
	}
	return nets, nil
}

// AptSources are the sources.list lines, read from a file when the setting names one.
func (c *Config) AptSources() (string, error) {
	if filepath.IsAbs(c.APTSources) && !strings.Contains(c.APTSources, "\n") {
		b, err := os.ReadFile(c.APTSources)
		return string(b), err
	}
	return c.APTSources, nil
}

// Dir is a path below the data directory.
func (c *Config) Dir(parts ...string) string {
	return filepath.Join(append([]string{c.Data}, parts...)...)
}

func defaultData() string {
	if os.Geteuid() == 0 {
		return "/var/lib/managoat"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "managoat")
	}
	return "managoat-data"
}

func defaultRuntimes() string {
	if os.Geteuid() == 0 {
		return "/var/lib/managoat-runtimes"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "managoat-runtimes")
	}
	return "managoat-runtimes"
}

func webURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return errors.New("must be an http or https URL")
	}
	return nil
}

func publicURL(c *Config) error {
	if err := webURL(c.URL); err != nil || !c.TLS() {
		return err
	}
	if u, _ := url.Parse(c.URL); u == nil || u.Scheme != "https" {
		return errors.New("must be the https URL that browsers use when the server speaks TLS (tls-cert, acme-domains)")
	}
	return nil
}

func address(s string) error {
	_, port, err := net.SplitHostPort(s)
	if n, e := strconv.Atoi(port); err != nil || e != nil || n < 0 || n > 65535 {
		return errors.New("must be host:port")
	}
	return nil
}

func certificate(c *Config) error {
	switch {
	case c.TLSCert == "":
		return nil
	case c.TLSKey == "":
		return errors.New("needs tls-key")
	case len(c.ACMEDomains) > 0:
		return errors.New("the certificate comes from files or from an authority (acme-domains), not from both")
	}
	return readable(c.TLSCert)
}

func domains(c *Config) error {
	if len(c.ACMEDomains) == 0 {
		return nil
	}
	host, _ := idna.Lookup.ToASCII(c.Host())
	named := host == "" // a URL that is none is refused as one
	for _, d := range c.ACMEDomains {
		// The authority asks under the name, so it must be one that the world knows.
		name, err := idna.Lookup.ToASCII(d)
		if err != nil || !strings.Contains(name, ".") || net.ParseIP(d) != nil {
			return fmt.Errorf("%q is not a name such as managoat.example.com", d)
		}
		named = named || name == host
	}
	if !named {
		return fmt.Errorf("the public URL's host %s must be among them", c.Host())
	}
	return nil
}

func pgURL(s string) error {
	if s == "" {
		return nil
	}
	// The URL itself stays out of the message: it holds a password.
	if u, err := url.Parse(s); err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return errors.New("must be of the form postgres://user:password@host:port/name")
	}
	return nil
}

func pooler(c *Config) error {
	if c.DatabasePooler == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.DatabasePooler); err != nil {
		return errors.New("must be host:port")
	}
	if c.DatabaseURL == "" {
		return errors.New("needs database-url: nothing stands between a server and its own PostgreSQL")
	}
	return nil
}

func readable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func atLeast(min int, get func(*Config) int) func(*Config) error {
	return func(c *Config) error {
		if get(c) < min {
			return fmt.Errorf("must be at least %d", min)
		}
		return nil
	}
}

func between(min, max int, get func(*Config) int) func(*Config) error {
	return func(c *Config) error {
		if n := get(c); n < min || n > max {
			return fmt.Errorf("must be %d to %d", min, max)
		}
		return nil
	}
}

func oneOf(get func(*Config) string, allowed ...string) func(*Config) error {
	return func(c *Config) error {
		if !slices.Contains(allowed, get(c)) {
			return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
		}
		return nil
	}
}
