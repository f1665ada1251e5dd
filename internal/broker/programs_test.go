package broker

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/internal/netguard"
	"managoat/internal/testworld"
	"managoat/sandbox/guest"
)

// inside runs a real program as a machine's process would run: with the proxy's environment and nothing else.
func (h *host) inside(t *testing.T, env map[string]string, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1"}
	// The guest's port is a port of the machine's own network; here it is another one.
	proxy := h.box.port("proxy").String()
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+strings.ReplaceAll(v, guest.ProxyAddr, proxy))
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// worldHost is a host whose machines see the test world.
func worldHost(t *testing.T, w *testworld.World) *host {
	t.Helper()
	return newHost(t, func(s *Settings, m *Machine, k *Token) {
		allow, err := netguard.ParseAllowances(w.AllowPrivate())
		if err != nil {
			t.Fatal(err)
		}
		resolve, err := netguard.ParseResolve(w.Resolve())
		if err != nil {
			t.Fatal(err)
		}
		s.AllowPrivate, s.Resolve = append(s.AllowPrivate, allow...), resolve
		k.Policy = Policy{Type: rule.Limited, AllowedHosts: []string{w.Git.Host}}
		m.Policy = k.Policy
	})
}

func TestGitClonesThroughATunnelUnderItsConversationsToken(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	repo := w.Git.Add("shop", testworld.Files{"README.md": "hello\n"})
	h := worldHost(t, w)

	env := ProxyEnv(h.token)
	env["GIT_SSL_CAINFO"] = w.CA.File
	dir := filepath.Join(t.TempDir(), "shop")
	if out, err := h.inside(t, env, "git", "clone", "--quiet", repo.URL, dir); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || string(text) != "hello\n" {
		t.Errorf("%q %v", text, err)
	}
	rows, _ := h.await(t, "the clone", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) > 0 })
	for _, r := range rows {
		if r.ConversationID == nil || *r.ConversationID != h.spec.ConversationID || r.Host != testworld.GitName || r.Decision != journal.Allowed || r.Rule != w.Git.Host {
			t.Errorf("row %+v", r)
		}
	}

	// Its own default is to wait for a 407; the machine's policy answers instead, and nobody knows whose clone it was.
	delete(env, "GIT_HTTP_PROXY_AUTHMETHOD")
	if out, err := h.inside(t, env, "git", "ls-remote", repo.URL); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.await(t, "a request that git made without its token", func(rows []RequestRow, _ []UsageRow) bool {
		return slices.ContainsFunc(rows, func(r RequestRow) bool { return r.Rule == journal.RuleMachine })
	})

	// A token that ended: git shows what the proxy said.
	env = ProxyEnv("mgw_dead")
	env["GIT_SSL_CAINFO"] = w.CA.File
	out, err := h.inside(t, env, "git", "ls-remote", repo.URL)
	if err == nil || !strings.Contains(out, "407") || strings.Contains(out, "mgw_dead") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestCurlGetsThroughAndReadsRefusals(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "plain "+r.Method) })
	secure := serveTLS(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "secure "+r.Proto) })
	h := newHost(t, nil)
	env := ProxyEnv(h.token)
	curl := func(args ...string) (string, error) {
		return h.inside(t, env, append([]string{"curl", "--silent", "--show-error", "--insecure"}, args...)...)
	}
	for want, args := range map[string][]string{
		"plain GET":          {fmt.Sprintf("http://local.test:%d/", port)},
		"plain POST":         {"--data", "x", fmt.Sprintf("http://local.test:%d/", port)},
		"secure HTTP/2.0":    {"--http2", fmt.Sprintf("https://local.test:%d/", secure)},
		"secure HTTP/1.1":    {"--http1.1", fmt.Sprintf("https://local.test:%d/", secure)},
		`"port_not_allowed"`: {"http://elsewhere.test:25/"},
		`"address_not_allow`: {"http://inside.test/"},
		`"upstream_unreacha`: {"http://local.test:1/"},
		"plain GETplain GET": {fmt.Sprintf("http://local.test:%d/1", port), fmt.Sprintf("http://local.test:%d/2", port)},
	} {
		if out, err := curl(args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("curl %q: %v, %s, want %s", args, err, out, want)
		}
	}
	// A refused tunnel tells its status on the command line.
	if out, err := curl("https://inside.test/"); err == nil || !strings.Contains(out, "403") {
		t.Errorf("%v: %s", err, out)
	}
	// --proxy-anyauth makes curl wait for a challenge, as git does by default: the 407 must keep the connection.
	env = ProxyEnv("mgw_dead")
	if out, err := curl("--proxy-anyauth", "--verbose", fmt.Sprintf("http://local.test:%d/", port)); err != nil || !strings.Contains(out, "plain GET") {
		t.Errorf("%v: %s", err, out) // nothing was shown, so the machine's own policy answers
	}
	if out, err := curl("--include", fmt.Sprintf("http://local.test:%d/", port)); err != nil || !strings.Contains(out, "407 Proxy Authentication Required") || !strings.Contains(out, "proxy_token_unknown") {
		t.Errorf("%v: %s", err, out)
	}
}
