package testworld_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"managoat/internal/testworld"
)

// commandTimeout bounds one run of a real client.
const commandTimeout = 2 * time.Minute

// command runs a program with exactly this environment (and PATH), and returns what it printed and its exit code.
func command(t *testing.T, dir string, env []string, argv ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || ctx.Err() != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// mustRun is command for what has to succeed.
func mustRun(t *testing.T, dir string, env []string, argv ...string) string {
	t.Helper()
	out, code := command(t, dir, env, argv...)
	if code != 0 {
		t.Fatalf("%v: exit code %d\n%s", argv, code, out)
	}
	return out
}

// proxy starts a forward proxy that finds the world's names on loopback, as the way out of a machine does.
func proxy(t *testing.T) string {
	t.Helper()
	local := func(address string) string {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Errorf("proxy: %v", err)
		}
		return net.JoinHostPort("127.0.0.1", port)
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Host = local(r.In.URL.Host) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			forward.ServeHTTP(rw, r)
			return
		}
		upstream, err := net.Dial("tcp", local(r.Host))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		rw.WriteHeader(http.StatusOK)
		client, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Errorf("proxy: %v", err)
			return
		}
		var both sync.WaitGroup
		for _, ends := range [][2]net.Conn{{upstream, client}, {client, upstream}} {
			both.Go(func() {
				io.Copy(ends[0], ends[1])
				ends[0].Close()
			})
		}
		both.Wait()
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func gitEnv(w *testworld.World) []string {
	return []string{"GIT_SSL_CAINFO=" + w.CA.File, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1"}
}

// gitAt is git that finds the world's git host.
func gitAt(w *testworld.World, args ...string) []string {
	_, port, _ := strings.Cut(w.Git.Host, ":")
	return append([]string{"git", "-c", "http.curloptResolve=" + testworld.GitName + ":" + port + ":127.0.0.1"}, args...)
}

func TestGitClonesTheShopAndItsTestsFailUntilOneOperatorIsMended(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	repo := w.Git.Add("shop", testworld.Shop)
	dir := filepath.Join(t.TempDir(), "shop")
	mustRun(t, "", gitEnv(w), gitAt(w, "clone", "--quiet", repo.URL, dir)...)

	out, code := command(t, dir, nil, "./run-tests.sh")
	if code != 1 || !strings.Contains(out, testworld.ShopFails) || strings.Count(out, "\n") < 5 {
		t.Fatalf("before: exit code %d, output %q", code, out)
	}
	cart := filepath.Join(dir, "cart.sh")
	source, err := os.ReadFile(cart)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cart, bytes.Replace(source, []byte("$1 + $2"), []byte("$1 * $2"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := command(t, dir, nil, "./run-tests.sh"); code != 0 || !strings.Contains(out, testworld.ShopPasses) {
		t.Fatalf("after: exit code %d, output %q", code, out)
	}
}

func TestGitServesBranchesAndTags(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	repo := w.Git.Add("lib", testworld.Files{"a.txt": "a\n", "run.sh": "#!/bin/sh\n"})
	repo.Tag("v1", "main")
	side := repo.Commit("feature/b", "Add b", testworld.Files{"dir/b.txt": "b\n"})
	main := repo.Commit("main", "Change a", testworld.Files{"a.txt": "aa\n"})

	dir := filepath.Join(t.TempDir(), "lib")
	mustRun(t, "", gitEnv(w), gitAt(w, "clone", "--quiet", "--branch", "feature/b", repo.URL, dir)...)
	got := mustRun(t, dir, gitEnv(w), "git", "log", "--format=%H %s")
	if !strings.HasPrefix(got, side+" Add b\n") || !strings.HasSuffix(got, " First version\n") {
		t.Errorf("history of the branch: %q", got)
	}
	if got := mustRun(t, dir, nil, "git", "ls-tree", "-r", "--format=%(objectmode) %(path)", "HEAD"); got != "100644 a.txt\n100644 dir/b.txt\n100755 run.sh\n" {
		t.Errorf("tree of the branch: %q", got)
	}
	if got := mustRun(t, dir, nil, "git", "rev-parse", "origin/main", "v1~0"); !strings.HasPrefix(got, main+"\n") || strings.Count(got, main) != 1 {
		t.Errorf("main and v1: %q, want main at %s and v1 behind it", got, main)
	}
}

func TestGitRepositoryWithATokenNeedsItToClone(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	repo := w.Git.Add("private", testworld.Files{"a.txt": "a\n"})
	repo.RequireToken("right")
	for token, want := range map[string]int{"right": 0, "wrong": 128, "": 128} {
		url := strings.Replace(repo.URL, "https://", "https://x-access-token:"+token+"@", 1)
		out, code := command(t, "", gitEnv(w), gitAt(w, "clone", "--quiet", url, filepath.Join(t.TempDir(), "c"))...)
		if code != want {
			t.Errorf("clone with token %q: exit code %d, want %d\n%s", token, code, want, out)
		}
	}
}

// apt runs apt-get against a private root directory, with the world's repository as its only source.
func apt(t *testing.T, w *testworld.World) (root string, run func(args ...string) (string, int)) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log/apt"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range map[string]string{
		"etc/apt/sources.list": w.Debian.Sources() + "\n",
		"var/lib/dpkg/status":  "",
		"apt.conf":             fmt.Sprintf("Dir %q;\nDir::State::status %q;\nDPkg::Options { \"--root=%s\"; \"--force-not-root\"; \"--force-script-chrootless\"; \"--log=/dev/null\"; };\nAPT::Sandbox::User \"\";\n", root, filepath.Join(root, "var/lib/dpkg/status"), root),
	} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"APT_CONFIG=" + filepath.Join(root, "apt.conf"), "http_proxy=" + proxy(t), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
	return root, func(args ...string) (string, int) {
		return command(t, "", env, append([]string{"apt-get", "-q", "-y"}, args...)...)
	}
}

func TestAptInstallsAPackageWhoseProgramRuns(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	root, run := apt(t, w)
	for _, args := range [][]string{{"update"}, {"install", testworld.HelloPackage.Name}} {
		if out, code := run(args...); code != 0 {
			t.Fatalf("apt-get %v: exit code %d\n%s", args, code, out)
		}
	}
	if got := mustRun(t, "", nil, filepath.Join(root, "usr/bin/managoat-hello")); got != "hello from a Debian package\n" {
		t.Errorf("the installed program says %q", got)
	}
}

func TestAptReportsAPackageThatCannotBeConfigured(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	_, run := apt(t, w)
	if out, code := run("update"); code != 0 {
		t.Fatalf("apt-get update: exit code %d\n%s", code, out)
	}
	out, code := run("install", testworld.BrokenPackage.Name)
	if code != 100 || !strings.Contains(out, "exit status 7") || !strings.Contains(out, "cannot be configured") {
		t.Errorf("exit code %d, output:\n%s", code, out)
	}
}

func TestNpmInstallsAPackageWhoseCommandRuns(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	w.NPM.Add(testworld.NPMPackage{Name: "@team/tool", Version: "2.1.0", Bin: map[string]string{"team-tool": "tool.sh"}, Files: testworld.Files{"tool.sh": "#!/bin/sh\necho tool\n"}})
	prefix := t.TempDir()
	env := []string{"HTTPS_PROXY=" + proxy(t), "NPM_CONFIG_CAFILE=" + w.CA.File, "NPM_CONFIG_REGISTRY=" + w.NPM.URL, "NPM_CONFIG_CACHE=" + t.TempDir(), "NPM_CONFIG_USERCONFIG=/dev/null"}
	mustRun(t, "", env, "npm", "install", "--global", "--prefix", prefix, testworld.GreetPackage.Name, "@team/tool@2.1.0")
	if got := mustRun(t, "", nil, filepath.Join(prefix, "bin/managoat-greet")); got != "hello from an npm package\n" {
		t.Errorf("managoat-greet says %q", got)
	}
	if got := mustRun(t, "", nil, filepath.Join(prefix, "bin/team-tool")); got != "tool\n" {
		t.Errorf("team-tool says %q", got)
	}
	if out, code := command(t, "", env, "npm", "install", "--global", "--prefix", prefix, "managoat-missing"); code == 0 || !strings.Contains(out, "E404") {
		t.Errorf("a package that is not there: exit code %d\n%s", code, out)
	}
}

func TestSettingsNameEveryServiceAndOpenNoMoreThanEachNeeds(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	if got, want := w.Resolve(), "git.test=127.0.0.1,deb.test=127.0.0.1,npm.test=127.0.0.1,model.test=127.0.0.1"; got != want {
		t.Errorf("Resolve: %q, want %q", got, want)
	}
	allowed := strings.Split(w.AllowPrivate(), ",")
	if slices.Contains(allowed, "machine="+w.Model.Host) {
		t.Error("a machine could reach the model past the gateway")
	}
	if !slices.Contains(allowed, "model="+w.Model.Host) || !slices.Contains(allowed, "machine="+w.Git.Host) {
		t.Errorf("AllowPrivate: %q", allowed)
	}
	connection, err := tls.Dial("tcp", strings.Replace(w.Model.Host, testworld.ModelName, "127.0.0.1", 1), &tls.Config{RootCAs: w.CA.Pool(), ServerName: testworld.ModelName})
	if err != nil {
		t.Fatalf("the authority's pool does not trust the model: %v", err)
	}
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsARequestThatStillWaits(t *testing.T) {
	t.Parallel()
	w := testworld.Open(t, t.TempDir())
	gate := testworld.NewGate()
	w.Model.Script("hold", testworld.Reply{testworld.Wait(gate)})
	done := make(chan error, 1)
	go func() {
		response, err := http.Post(w.Model.LoopbackURL+"/v1/messages", "application/json",
			strings.NewReader(`{"model":"m","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"hold"}]}`))
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		done <- err
	}()
	select {
	case <-gate.Reached():
	case <-time.After(commandTimeout):
		t.Fatal("the reply never came to the gate")
	}
	if err := w.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("the held request ended as if it were whole")
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(w.Model.LoopbackURL, "http://")); err == nil {
		t.Error("the model still listens")
	}
}
