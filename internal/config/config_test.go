package config

import (
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
