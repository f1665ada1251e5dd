package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/internal/netguard"
	"managoat/internal/testworld"
	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/guest"
	"managoat/sandbox/local"
)

// A machine of the local provider has no network: everything below goes through its guest and a real egress process.
func TestARealMachineReachesWhatItsConversationMayAndNothingElse(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	repo := w.Git.Add("shop", testworld.Files{"README.md": "hello\n"})
	keys := make(chan string, 10)
	model := serve(t, func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("X-Api-Key")
		io.WriteString(w, `{"model":"answered","usage":{"input_tokens":1,"output_tokens":2}}`)
	})

	dir := t.TempDir()
	provider, err := local.New(local.Options{Dir: dir, GuestBinary: conformancetest.GuestBinary(t), ExtraCA: w.CA.PEM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { provider.Close() })
	made, err := provider.Create(t.Context(), sandbox.Spec{Name: "broker-test", Hostname: "box"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := provider.Destroy(context.Background(), made.ID); err != nil {
			t.Error(err)
		}
	})
	if err := provider.Start(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}

	settings := testSettings(t)
	allow, err := netguard.ParseAllowances(w.AllowPrivate())
	if err != nil {
		t.Fatal(err)
	}
	resolve, err := netguard.ParseResolve(w.Resolve())
	if err != nil {
		t.Fatal(err)
	}
	settings.AllowPrivate = append(settings.AllowPrivate, allow...)
	maps.Copy(settings.Resolve, resolve)
	egress, rows := shortDir(t), newStore()
	client, err := Connect(t.Context(), egress, ClientOptions{Spawn: spawn(t, egress, machines+"="+dir), Sink: rows, Settings: settings, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	m := Machine{ID: uuid.New(), TenantID: uuid.New(), WorkspaceID: uuid.New(), Provider: provider.Name(), Ref: made.ID,
		Policy: Policy{Type: rule.Limited}}
	plaintext, hash := NewToken()
	k := Token{ID: uuid.New(), Hash: hash, MachineID: m.ID, ConversationID: uuid.New(),
		Policy: Policy{Type: rule.Limited, AllowedHosts: []string{w.Git.Host}}, Model: modelCredential(model)}
	probe, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, err := range []error{client.PutMachine(t.Context(), m), client.PutToken(t.Context(), k), client.Probe(probe, m.ID)} {
		if err != nil {
			t.Fatal(err)
		}
	}

	conn, err := provider.Guest(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	inside, err := guest.Dial(t.Context(), conn, guest.RoleServer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	run := func(token, script string) (string, int) {
		t.Helper()
		env := ProxyEnv(token)
		env["GIT_SSL_CAINFO"], env["GIT_TERMINAL_PROMPT"], env["KEY"] = guest.CABundle, "0", plaintext
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, errout, exit, err := inside.Run(ctx, guest.Exec{ID: uuid.NewString(), Argv: []string{"bash", "-c", script}, Env: env, User: guest.Sprite})
		if err != nil {
			t.Fatal(err)
		}
		return string(out) + string(errout), exit.Code
	}
	call := fmt.Sprintf(`curl -sS -H "X-Api-Key: $KEY" -d '{"model":"m"}' http://%s/v1/messages`, ModelHost)
	for _, c := range []struct {
		name, token, script, want string
		fails                     bool
	}{
		{"git clones an allowed host", plaintext, "git clone -q " + repo.URL + " /tmp/shop && cat /tmp/shop/README.md && git -C /tmp/shop remote -v", "hello\n", false},
		{"another host is refused", plaintext, "curl -sS http://elsewhere.test/", `"host_not_allowed"`, false},
		{"without the token the machine's policy holds", "", "git ls-remote " + repo.URL, "403", true},
		{"past the proxy there is nothing", plaintext, "curl -sS --noproxy '*' -m 5 http://192.0.2.1/", "curl: (7)", true},
		{"the host's loopback is not the machine's", plaintext, fmt.Sprintf("curl -sS --noproxy '*' -m 5 http://127.0.0.1:%d/", model), "curl: (7)", true},
		{"the model gateway answers by its name", plaintext, call, `"answered"`, false},
		{"and through the proxy too", plaintext, strings.Replace(call, "curl", "curl --noproxy ''", 1), `"answered"`, false},
		{"the server's name is answered", plaintext, fmt.Sprintf("curl -sS -H 'Authorization: Bearer mgt_x' http://%s/api/me", APIHost), "server_unavailable", false},
	} {
		out, code := run(c.token, c.script)
		if !strings.Contains(out, c.want) || (code != 0) != c.fails {
			t.Errorf("%s: exit %d, %s, want %s", c.name, code, out, c.want)
		}
		if strings.Contains(out, plaintext) || strings.Contains(out, realKey) {
			t.Errorf("%s: a key is printed: %s", c.name, out)
		}
	}
	for range 2 {
		if key := <-keys; key != realKey {
			t.Errorf("the provider saw %q", key)
		}
	}
	out, _ := run(plaintext, `cat /proc/*/environ /proc/*/cmdline 2>/dev/null; grep -rhs sk-ant-api03 /home /tmp /etc /var; true`)
	if !strings.Contains(out, plaintext) || strings.Contains(out, realKey) {
		t.Errorf("what is to be found inside: %s", out)
	}

	// A process that is killed is replaced while the machine waits.
	h := &host{Client: client}
	if err := h.process(t).Kill(); err != nil {
		t.Fatal(err)
	}
	if out, code := run(plaintext, call); code != 0 || !strings.Contains(out, "answered") {
		t.Errorf("after the process was killed: exit %d, %s", code, out)
	}
	requests, usage := rows.await(t, "all calls", func(_ []RequestRow, usage []UsageRow) bool { return len(usage) == 3 })
	for _, u := range usage {
		if u.ConversationID != k.ConversationID || u.OutputTokens != 2 {
			t.Errorf("usage %+v", u)
		}
	}
	seen := map[string]bool{}
	for _, r := range requests {
		seen[fmt.Sprint(r.Listener, " ", r.Host, " ", r.Decision)] = true
		if r.MachineID != m.ID {
			text, _ := json.Marshal(r)
			t.Errorf("row %s", text)
		}
	}
	for _, want := range []string{
		fmt.Sprint(journal.Proxy, " ", testworld.GitName, " ", journal.Allowed), fmt.Sprint(journal.Proxy, " elsewhere.test ", journal.Denied),
		fmt.Sprint(journal.Model, " 127.0.0.1 ", journal.Injected), fmt.Sprint(journal.API, " ", APIHost, " ", journal.Failed),
		fmt.Sprint(journal.Proxy, " ", testworld.GitName, " ", journal.Denied),
	} {
		if !seen[want] {
			t.Errorf("no row of %q in %v", want, seen)
		}
	}
}
