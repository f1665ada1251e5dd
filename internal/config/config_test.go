package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func load(t *testing.T, args ...string) (*Config, error) {
	t.Helper()
	c := &Config{}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	if err := c.Flags(fs); err != nil {
		return nil, err
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return c, c.Check()
}

func TestABlankVariableIsUnset(t *testing.T) {
	t.Setenv("MANAGOAT_LISTEN", "  ")
	t.Setenv("SANDBOX_IDLE_TIMEOUT_MINUTES", "")
	c, err := load(t)
	if err != nil || c.Listen != "127.0.0.1:8080" || c.SandboxIdleTimeoutMinutes != 60 {
		t.Fatalf("%+v, %v", c, err)
	}
}

func TestAFlagWinsOverItsVariableAndTheManualsNameWorksBare(t *testing.T) {
	t.Setenv("MANAGOAT_LISTEN", "127.0.0.1:1")
	t.Setenv("SANDBOX_IDLE_TIMEOUT_MINUTES", "7")
	c, err := load(t, "--listen", "127.0.0.1:2")
	if err != nil || c.Listen != "127.0.0.1:2" || c.SandboxIdleTimeoutMinutes != 7 {
		t.Fatalf("%+v, %v", c, err)
	}
}

func TestLifetimesThatCannotBeMeantAreNamed(t *testing.T) {
	for variable, values := range map[string][]string{
		"SANDBOX_IDLE_TIMEOUT_MINUTES": {"-1", "525601", "99999999999999999999", "1.5", "an hour", "60m"},
		"SANDBOX_MAX_LIFETIME_HOURS":   {"-1", "87601", "99999999999999999999", "0.5", "day"},
		"SANDBOX_TASK_RETENTION_HOURS": {"-1", "87601", "3d"},
	} {
		for _, value := range values {
			for _, name := range []string{variable, "MANAGOAT_" + variable} {
				t.Run(name+"="+value, func(t *testing.T) {
					t.Setenv(name, value)
					if _, err := load(t); err == nil || !strings.Contains(err.Error(), variable) {
						t.Errorf("it was taken, or not named: %v", err)
					}
				})
			}
		}
	}
	t.Setenv("SANDBOX_IDLE_TIMEOUT_MINUTES", "0")
	t.Setenv("SANDBOX_MAX_LIFETIME_HOURS", "87600")
	c, err := load(t)
	if err != nil || c.IdleTimeout() != 0 || c.MaxLifetime() != 87600*time.Hour || c.TaskRetention() != 72*time.Hour {
		t.Errorf("%+v %v", c, err)
	}
}

func TestABadValueIsNamedWithItsSettingAndNoPassword(t *testing.T) {
	t.Setenv("MANAGOAT_DATABASE_URL", "mysql://u:hunter22@h/x")
	_, err := load(t, "--listen", "nowhere", "--egress-ports", "80,x", "--machine-pids", "1")
	if err == nil {
		t.Fatal("a bad configuration was accepted")
	}
	for _, want := range []string{"--listen (MANAGOAT_LISTEN)", "--egress-ports", "--machine-pids", "--database-url"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter22") {
		t.Errorf("the password stands in: %v", err)
	}
}

func TestHTTPSThatCannotWorkIsRefusedWithWhatItNeeds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "some.pem")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const home = "--url=https://goat.example.com"
	for _, c := range []struct {
		args []string
		want string // "": it is taken
	}{
		{[]string{home, "--tls-cert", file, "--tls-key", file}, ""},
		{[]string{home, "--tls-cert", file}, "--tls-cert (MANAGOAT_TLS_CERT): needs tls-key"},
		{[]string{home, "--tls-key", file}, "--tls-key (MANAGOAT_TLS_KEY): needs tls-cert"},
		{[]string{home, "--tls-cert", file, "--tls-key", file + ".gone"}, "--tls-key (MANAGOAT_TLS_KEY): open "},
		{[]string{home, "--tls-cert", file, "--tls-key", file, "--acme-domains", "goat.example.com"}, "not from both"},
		{[]string{"--tls-cert", file, "--tls-key", file}, "--url (MANAGOAT_URL): must be the https URL"},
		{[]string{"--url=http://goat.example.com", "--acme-domains", "goat.example.com"}, "--url (MANAGOAT_URL): must be the https URL"},
		{[]string{home, "--acme-domains", "goat.example.com,other.example.com", "--acme-contact", "ops@example.com", "--http-listen", ":80"}, ""},
		{[]string{"--url=https://BÜCHER.example.com", "--acme-domains", "xn--bcher-kva.Example.com"}, ""},
		{[]string{home, "--acme-domains", "other.example.com"}, "host goat.example.com must be among them"},
		{[]string{home, "--acme-domains", "*.example.com"}, `"*.example.com" is not a name`},
		{[]string{home, "--acme-domains", "10.0.0.1"}, `"10.0.0.1" is not a name`},
		{[]string{home, "--acme-domains", "goat"}, `"goat" is not a name`},
		{[]string{home, "--acme-domains", "goat.example.com", "--acme-contact", "nobody"}, "must be a mail address"},
		{[]string{"--acme-contact", "ops@example.com"}, "needs acme-domains"},
		{[]string{home, "--acme-domains", "goat.example.com", "--acme-directory", "http://ca.example.com"}, "must be an https URL"},
		{[]string{"--http-listen", ":80"}, "needs tls-cert or acme-domains"},
		{[]string{home, "--acme-domains", "goat.example.com", "--http-listen", "80"}, "must be host:port"},
	} {
		_, err := load(t, c.args...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
