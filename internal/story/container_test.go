package story

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/client"
	"managoat/sandbox/docker/dockertest"
)

// composed is the server of deploy/compose.yaml on an engine of the tests.
type composed struct {
	tb      testing.TB
	environ []string
	files   []string // of compose, with the project's name
}

// docker runs the engine's command line.
func (c *composed) docker(stdin string, args ...string) string {
	c.tb.Helper()
	return c.run(stdin, "/usr/bin/docker", args...) // Debian's, which builds without a plugin
}

func (c *composed) compose(args ...string) string {
	c.tb.Helper()
	return c.run("", "docker-compose", append(append([]string{}, c.files...), args...)...)
}

func (c *composed) run(stdin, program string, args ...string) string {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.tb.Context()), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stderr = c.environ, strings.NewReader(stdin), &said
	out, err := cmd.Output()
	if err != nil {
		c.tb.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, &said)
	}
	return strings.TrimSpace(string(out))
}

// newComposed builds the server's image from the tested binary and lays the compose file out for this host: there is no
// registry, so PostgreSQL is the host's, machines are made from the engine's own image, and nobody fetches adapters.
func newComposed(tb testing.TB, engine *dockertest.Engine, port int) *composed {
	tb.Helper()
	root, dir := must(filepath.Abs("../..")), tb.TempDir()
	socket := strings.TrimPrefix(engine.Host, "unix://")
	c := &composed{tb: tb, environ: append(os.Environ(), "DOCKER_HOST="+engine.Host, "DOCKER_BUILDKIT=1", "DOCKER_SOCKET="+socket,
		"MANAGOAT_URL=http://127.0.0.1:"+strconv.Itoa(port), "MANAGOAT_PUBLISH=127.0.0.1:"+strconv.Itoa(port))}
	c.run("", "make", "-C", root, "--no-print-directory", "image-root", "BIN="+common.binary, "ROOT="+dir+"/dist/image")
	c.docker("", "build", "--quiet", "--file", root+"/Dockerfile", "--build-arg", "FROM=prebuilt", "--target", "server", "--tag", "managoat", dir)

	pg := must(os.MkdirTemp(common.dir, "pg"))
	if err := os.Chmod(pg, 0o755); err != nil {
		tb.Fatal(err)
	}
	home := filepath.Join(pg, "pg")
	postgres, err := db.StartEmbedded(tb.Context(), home, must(db.FindBinaries(home, "", "")), "unix_socket_permissions=0777", "fsync=off")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { postgres.Stop(context.WithoutCancel(tb.Context())) })
	must(postgres.OwnerURL(tb.Context(), "managoat"))
	if err := os.Chmod(home, 0o755); err != nil { // the server is another user than PostgreSQL
		tb.Fatal(err)
	}

	// The compose of Debian is older than a project's name in its file.
	shipped := regexp.MustCompile(`(?m)^name: .*$`).ReplaceAll(must(os.ReadFile(root+"/deploy/compose.yaml")), []byte(`version: "3.8"`))
	override := fmt.Sprintf(`version: "3.8"
services:
  server:
    environment:
      MANAGOAT_DATABASE_URL: "postgres://postgres@/managoat?host=/run/postgresql"
      MANAGOAT_DOCKER_IMAGE: %q
    volumes: [%q]
`, dockertest.Image, home+":/run/postgresql")
	for name, content := range map[string][]byte{"compose.yaml": shipped, "override.yaml": []byte(override)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	c.files = []string{"--project-directory", root + "/deploy", "--project-name", "m" + uuid.NewString()[:8], "--file", dir + "/compose.yaml", "--file", dir + "/override.yaml"}
	tb.Cleanup(func() { c.compose("down", "--volumes", "--timeout", "20") })
	return c
}

func TestTheComposedServerIsNobodyAndMakesMachinesThroughTheEnginesSocket(t *testing.T) {
	t.Parallel()
	common.open(t)
	engine := dockertest.Shared(t)
	port := freePort(t)
	c := newComposed(t, engine, port)
	c.compose("up", "--detach", "--no-deps", "--no-build", "server")
	id := c.compose("ps", "--quiet", "server")
	status := func(of string) string { return c.docker("", "inspect", "--format", of, id) }
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server:\n%s", c.run("", "sh", "-c", "/usr/bin/docker logs "+id+" 2>&1"))
		}
	})
	until(t, "the engine to find the server healthy", func() bool { return status("{{.State.Health.Status}}") == "healthy" })

	proc := string(must(os.ReadFile("/proc/" + status("{{.State.Pid}}") + "/status")))
	group := must(os.Stat(strings.TrimPrefix(engine.Host, "unix://"))).Sys().(*syscall.Stat_t).Gid
	for _, want := range []string{`Uid:\s65532\s65532\s65532\s65532\n`, `Gid:\s65532\s65532\s65532\s65532\n`, fmt.Sprintf(`Groups:\s%d ?\n`, group), `CapEff:\s0+\n`, `CapPrm:\s0+\n`, `NoNewPrivs:\s1\n`} {
		if !regexp.MustCompile(want).MatchString(proc) {
			t.Errorf("the server is not %q:\n%s", want, proc)
		}
	}
	base := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	logs := c.docker("", "logs", id)
	if !strings.Contains(logs, "Managoat runs at "+base+"\n") || !strings.Contains(logs, base+"/setup?token=") {
		t.Errorf("it greets with %q", logs)
	}

	key := c.docker("a long password of the container\n", "exec", "--interactive", id, "/managoat", "drop-root", "/var/run/docker.sock",
		"admin", "create-owner", "--email", "owner@example.test", "--password-stdin")
	a := &Account{Client: &client.Client{Base: base, Key: key}, tb: t}
	w := a.ready(a.workspace(a.environment(body{"name": "composed", "setup_script": "echo built >/home/sprite/kept"})).ID)
	machines := func() string {
		return c.docker("", "ps", "--all", "--quiet", "--filter", "name="+machine(*w.SandboxID))
	}
	if machines() == "" {
		t.Error("the engine has no container of the machine")
	}
	c.compose("restart", "--timeout", "20", "server")
	until(t, "the server to be back", func() bool { return a.Do(t.Context(), "GET", "/api/workspaces", nil, nil) == nil })
	if got := a.file(w.ID, "kept"); got != "built\n" {
		t.Errorf("after a restart of the server the machine's file is %q", got)
	}
	a.do("DELETE", "/api/workspaces/"+w.ID, nil)
	until(t, "the machine to be gone", func() bool { return machines() == "" })
}
