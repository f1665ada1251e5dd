package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A person who types four settings' worth of database does not look for them among fifty of a server.
func TestVerbsOfTheDatabaseShowItsSettingsAlone(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"host list", "host drain", "host forget", "admin create-owner", "migrate"} {
		out, err := exec.Command(os.Getenv("MANAGOAT_TEST_BINARY"), append(strings.Fields(line), "--help")...).Output()
		if err != nil || !strings.Contains(string(out), "--database-url") || strings.Contains(string(out), "--sandbox-provider") {
			t.Errorf("managoat %s --help: %v\n%s", line, err, out)
		}
	}
}

// Help that answers for something else leaves the reader to find that out.
func TestHelpIsOfTheVerbThatWasNamed(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"--help":                       {0, "Use a server:"},
		"workspace --help":             {0, "rebuild-preview"},
		"ws rebuild --help":            {0, "--interrupt"},
		"host --help":                  {0, "drain"},
		"runtimes -h":                  {0, "install"},
		"help admin":                   {0, "create-owner"},
		"help workspace show":          {0, "workspace show WORKSPACE"},
		"help":                         {0, "Use a server:"},
		"conversation --help":          {2, `there is no verb "conversation". Do you mean run?`},
		"conversation":                 {2, `there is no verb "conversation"`},
		"help conversation":            {2, `there is no verb "conversation"`},
		"workspace destroy x --help":   {2, `workspace has no verb "destroy"`},
		"workspace rebuidl":            {2, "Do you mean rebuild?"},
		"help workspace frobnicate":    {2, `workspace has no verb "frobnicate"`},
		"host forget one another -h":   {0, "--yes"},
		"workspace files --frobnicate": {2, "unknown flag"},
	} {
		out, err := exec.Command(os.Getenv("MANAGOAT_TEST_BINARY"), strings.Fields(line)...).CombinedOutput()
		code := 0
		if exit, ok := err.(*exec.ExitError); ok {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want.code || !strings.Contains(string(out), want.says) || want.code == 2 && strings.Contains(string(out), "Use a server:") {
			t.Errorf("managoat %s: exit %d\n%s", line, code, out)
		}
	}
}
