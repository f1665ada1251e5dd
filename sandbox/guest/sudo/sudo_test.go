package sudo

import (
	"slices"
	"strings"
	"testing"
)

func TestOptionsThatSetupScriptsUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		argv string
		user string
		set  string
	}{
		{"apt-get install -y x", "apt-get install -y x", "root", ""},
		{"-n -E -H apt-get update", "apt-get update", "root", ""},
		{"-nEH -- ls -la", "ls -la", "root", ""},
		{"-u sprite -- id", "id", "sprite", ""},
		{"-usprite id", "id", "sprite", ""},
		{"--user=sprite --preserve-env=A,B id -u", "id -u", "sprite", ""},
		{"-p prompt: -S true", "true", "root", ""},
		{"A=1 B=2 env C=3", "env C=3", "root", "A=1 B=2"},
		{"/opt/a=b/run x=y", "/opt/a=b/run x=y", "root", ""},
		{"-s echo it's", "/bin/bash -c 'echo' 'it'\\''s'", "root", ""},
		{"-i", "/bin/bash -l", "root", ""},
	} {
		o, err := parse(strings.Fields(c.args))
		if err != nil || o.user != c.user || strings.Join(o.command(), " ") != c.argv || strings.Join(o.set, " ") != c.set {
			t.Errorf("sudo %s: %q as %s with %q %v", c.args, o.command(), o.user, o.set, err)
		}
	}
	for _, args := range []string{"-u nobody id", "-u", "-g wheel id", "-R /x id", "--chroot=/x id", "-e file"} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("sudo %s is taken, and would do something else than it says", args)
		}
	}
}

func TestTheEnvironmentKeepsWhatASetupMeansForItsPackages(t *testing.T) {
	t.Parallel()
	env := []string{"HOME=/home/sprite", "USER=sprite", "PATH=/home/sprite/bin", "DEBIAN_FRONTEND=noninteractive", "HTTP_PROXY=http://x", "MAIL=m", "MANAGOAT_SUDO_FD=240"}
	got := options{user: "root", set: []string{"HTTP_PROXY=http://y"}}.environment(env)
	for _, want := range []string{"HOME=/root", "USER=root", "DEBIAN_FRONTEND=noninteractive", "HTTP_PROXY=http://y", "SUDO_USER=sprite"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing: %q", want, got)
		}
	}
	for _, kv := range got {
		if strings.HasPrefix(kv, "MAIL=") || strings.HasPrefix(kv, "MANAGOAT_SUDO_FD=") || kv == "PATH=/home/sprite/bin" || kv == "HTTP_PROXY=http://x" {
			t.Errorf("%s was kept", kv)
		}
	}
	if got := (options{user: "root", keep: true}).environment(env); !slices.Contains(got, "HOME=/home/sprite") {
		t.Errorf("-E changed HOME: %q", got)
	}
}
