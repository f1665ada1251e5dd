package story

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/handlers"
	"managoat/handlers/web"
	"managoat/internal/testworld"
)

// holdings are an account's rows, one of each kind, by where they stand in a path.
type holdings struct {
	ids     map[string]string // resource → id
	values  map[string]string // path parameter → value; {id} is the resource's
	secrets []string          // texts that only the account may see
}

// furnish gives an account one of everything.
func furnish(tb testing.TB, a *Account, world *testworld.World) holdings {
	tb.Helper()
	a.credential(world)
	word := "word" + uuid.NewString()[:8] // stands in everything that can carry it
	id := func(path string, in body) string {
		tb.Helper()
		return call[struct{ ID string }](a, "POST", path, in).ID
	}
	world.Model.Script("leave "+word, testworld.Reply{testworld.Call("Bash", testworld.Input{"command": "echo " + word + " > /home/sprite/" + word, "description": "leave it"})},
		testworld.Reply{testworld.Say("Left " + word + ".")})
	env := id("/api/environments", body{"name": "env " + word, "env_vars": body{"WORD": word}})
	vault := id("/api/vaults", body{"name": "vault " + word})
	a.do("POST", "/api/environments/"+env+"/secrets", body{"key": "LOCAL", "value": "local " + word})
	a.do("POST", "/api/vaults/"+vault+"/secrets", body{"key": "LOCAL", "value": "vaulted " + word})
	agent := id("/api/agents", body{"name": "agent " + word, "runtime": "claude", "model": "anthropic/claude-test-1"})
	credential := id("/api/inference-credentials", body{"name": "key " + word, "provider": "openai", "key": "sk-" + word})
	w := call[Workspace](a, "POST", "/api/workspaces", body{"name": "ws " + word, "environment_id": env, "vault_id": vault})
	conversation := a.launch(agent, body{"workspace_id": w.ID, "title": "talk " + word, "prompt": "Please leave " + word}).ID
	a.completed(conversation, 1)
	w = a.ready(w.ID)
	requests := a.rows(conversation, "permission_request")
	if len(requests) == 0 {
		tb.Fatal("claude asked for no permission")
	}
	var request struct {
		Body struct {
			ID string `json:"request_id"`
		}
	}
	if err := json.Unmarshal([]byte(requests[0].raw), &request); err != nil {
		tb.Fatal(err)
	}
	key := call[struct{ ID, Key string }](a, "POST", "/api/auth/api-keys", body{"name": "api " + word})
	a.session() // so that there is one
	sessions := get[[]struct{ ID string }](a, "/api/sessions")
	if len(sessions) != 1 {
		tb.Fatalf("sessions: %+v", sessions)
	}
	return holdings{
		ids: map[string]string{
			"environments": env, "vaults": vault, "agents": agent, "inference-credentials": credential, "workspaces": w.ID, "sandboxes": *w.SandboxID,
			"conversations": conversation, "api-keys": key.ID, "sessions": sessions[0].ID,
			"keys": key.ID, "credentials": credential, // as the pages call them
		},
		values:  map[string]string{"secret": "LOCAL", "version": "1", "number": "1", "request": request.Body.ID},
		secrets: []string{word, a.Email},
	}
}

var parameter = regexp.MustCompile(`\{(\w+)\}`)

// path fills a route's parameters with the holdings. Without an id it is a list, or a route of nobody's.
func (h holdings) path(tb testing.TB, route string) (path string, owned bool) {
	tb.Helper()
	parts := strings.Split(route, "/")
	for i, part := range parts {
		m := parameter.FindStringSubmatch(part)
		switch {
		case m == nil:
			continue
		case m[1] == "id":
			id, ok := h.ids[parts[i-1]]
			if !ok {
				tb.Fatalf("%s: the walk has no id of %s", route, parts[i-1])
			}
			parts[i], owned = id, true
		case m[1] == "provider" || m[1] == "part": // nobody's own
			parts[i] = map[string]string{"provider": "openai", "part": "keys"}[m[1]]
		default:
			v, ok := h.values[m[1]]
			if !ok {
				tb.Fatalf("%s: the walk has nothing for %s", route, part)
			}
			parts[i] = v
		}
	}
	return strings.Join(parts, "/"), owned
}

// shows tells which of the holdings an answer gives away.
func (h holdings) shows(answer []byte) (found []string) {
	for _, id := range h.ids {
		if bytes.Contains(answer, []byte(id)) {
			found = append(found, id)
		}
	}
	for _, s := range h.secrets {
		if bytes.Contains(answer, []byte(s)) {
			found = append(found, s)
		}
	}
	return found
}

// apiRoutes are the operations of the server's own OpenAPI document, as "METHOD /api/path".
func apiRoutes(tb testing.TB, a *Account) []string {
	tb.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := a.Get(tb.Context(), "/api/openapi.json", &document); err != nil {
		tb.Fatal(err)
	}
	var routes []string
	for path, operations := range document.Paths {
		for method := range operations {
			if !strings.HasPrefix(path, "/api/") {
				path = "/api" + path
			}
			routes = append(routes, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(routes)
	if len(routes) < 50 {
		tb.Fatalf("the document has %d operations only", len(routes))
	}
	return routes
}

// bodies are what operations need to be past the check of their input.
var bodies = map[string]body{
	"POST /api/environments/{id}/secrets":             {"key": "OTHER", "value": "taken over"},
	"POST /api/vaults/{id}/secrets":                   {"key": "OTHER", "value": "taken over"},
	"POST /api/conversations/{id}/prompts":            {"prompt": "hello"},
	"POST /api/conversations/{id}/requests/{request}": {"option_id": "allow"},
	"PATCH /api/environments/{id}":                    {"name": "taken over"},
	"PATCH /api/vaults/{id}":                          {"name": "taken over"},
	"PATCH /api/agents/{id}":                          {"name": "taken over"},
	"PATCH /api/inference-credentials/{id}":           {"name": "taken over"},
	"PATCH /api/workspaces/{id}":                      {"metadata": body{"taken": "over"}},
	"PATCH /api/conversations/{id}":                   {"title": "taken over"},
	"PATCH /api/vaults/{id}/secrets/{secret}":         {"expires_at": nil},
}

// answer is what a server says, whatever it says.
type answer struct {
	status int
	body   []byte
	header http.Header
}

// ask sends one request as it is.
func ask(tb testing.TB, hc *http.Client, method, url, key string, contentType string, in []byte) answer {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, bytes.NewReader(in))
	if err != nil {
		tb.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if len(in) > 0 {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := hc.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		tb.Fatalf("%s %s: %v", method, url, err)
	}
	return answer{res.StatusCode, all, res.Header}
}

// operation calls one operation of the API.
func operation(tb testing.TB, base, key, route, path string) answer {
	tb.Helper()
	method, _, _ := strings.Cut(route, " ")
	in := []byte{}
	if method != http.MethodGet && method != http.MethodDelete {
		var err error
		if in, err = json.Marshal(body{}.with(bodies[route])); err != nil {
			tb.Fatal(err)
		}
	}
	if strings.HasSuffix(path, "/stream") {
		path += "?wait=false&after=0"
	}
	return ask(tb, http.DefaultClient, method, base+path, key, "application/json", in)
}

// session signs the owner in, as a browser does.
func (a *Account) session() *http.Client {
	a.tb.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		a.tb.Fatal(err)
	}
	hc := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	form := url.Values{"email": {a.Email}, "password": {a.Password}}
	if got := ask(a.tb, hc, "POST", a.Base+"/sign-in", "", "application/x-www-form-urlencoded", []byte(form.Encode())); got.status != http.StatusSeeOther || len(jar.Cookies(must(url.Parse(a.Base)))) == 0 {
		a.tb.Fatalf("sign in: %d %s", got.status, got.body)
	}
	return hc
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// measured is what changes in a machine by itself.
var measured = regexp.MustCompile(`"use":\{[^}]*\},|"disk_bytes":\d+,`)

func TestEveryRouteHidesAnAccountFromOthersFromStrangersAndFromItsOwnMachines(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a, b := s.account(t), s.account(t)
	h := furnish(t, a, world)
	routes := apiRoutes(t, a)
	before := map[string][]byte{} // what the owner sees of its own
	see := func(route, path string) []byte {
		return measured.ReplaceAll(operation(t, a.Base, a.Key, route, path).body, nil)
	}
	for _, resource := range []string{"environments", "vaults", "agents", "inference-credentials", "workspaces", "conversations"} {
		path := "/api/" + resource + "/" + h.ids[resource]
		before[path] = see("GET", path)
		if !bytes.Contains(before[path], []byte(h.ids[resource])) {
			t.Fatalf("%s: %s", path, before[path])
		}
	}
	made := uuid.NewString()
	key := sandboxKey(t, h.ids["conversations"])
	owned := 0
	for _, route := range routes {
		path, has := h.path(t, strings.SplitN(route, " ", 2)[1])
		method, _, _ := strings.Cut(route, " ")

		// Nobody.
		if got := operation(t, s.url, "", route, path); got.status != http.StatusUnauthorized && !slices.Contains(open, route) {
			t.Errorf("%s without a key: %d %s", route, got.status, got.body)
		}
		// The account's own machine.
		switch own := slices.Contains(forMachines, route); {
		case own && method != http.MethodGet, slices.Contains(open, route):
		case own:
			if got := operation(t, s.url, key, route, path); got.status != http.StatusOK {
				t.Errorf("%s with a machine's key: %d %s", route, got.status, got.body)
			}
		default:
			if got := operation(t, s.url, key, route, path); got.status != http.StatusForbidden || !bytes.Contains(got.body, []byte(`"insufficient_scope"`)) || !bytes.Contains(got.body, []byte(`"required_scope":"full"`)) {
				t.Errorf("%s with a machine's key: %d %s", route, got.status, got.body)
			}
		}
		// Another account.
		if !has {
			if method == http.MethodGet {
				if got := operation(t, s.url, b.Key, route, path); got.status != http.StatusOK || len(h.shows(got.body)) > 0 {
					t.Errorf("%s of another account: %d, shows %v", route, got.status, h.shows(got.body))
				}
			}
			continue
		}
		owned++
		foreign := operation(t, s.url, b.Key, route, path)
		if foreign.status != http.StatusNotFound {
			t.Errorf("%s with another account's id: %d %s", route, foreign.status, foreign.body)
		}
		// It answers as if the row were not there, and as it answers to nonsense.
		for _, id := range []string{made, "no-id", "..%2f..%2fetc"} {
			other := h
			other.ids = map[string]string{}
			for resource := range h.ids {
				other.ids[resource] = id
			}
			nothing, _ := other.path(t, strings.SplitN(route, " ", 2)[1])
			if got := operation(t, s.url, b.Key, route, nothing); got.status != foreign.status || !bytes.Equal(got.body, foreign.body) {
				t.Errorf("%s answers %d %s to another account's id and %d %s to %s", route, foreign.status, foreign.body, got.status, got.body, id)
			}
		}
	}
	if owned < 40 {
		t.Errorf("only %d routes have an id", owned)
	}
	// Another account's rows cannot be built upon either.
	env, agent := b.environment(nil), b.claude(nil)
	for name, in := range map[string]struct {
		path string
		body body
	}{
		"a workspace of its environment":      {"/api/workspaces", body{"name": "x", "environment_id": h.ids["environments"]}},
		"a workspace with its vault":          {"/api/workspaces", body{"name": "x", "environment_id": env, "vault_id": h.ids["vaults"]}},
		"an agent with its environment":       {"/api/agents", body{"name": "x", "runtime": "claude", "model": "anthropic/m", "environment_id": h.ids["environments"]}},
		"an agent with its credential":        {"/api/agents", body{"name": "x", "runtime": "claude", "model": "anthropic/m", "inference_credential_id": h.ids["inference-credentials"]}},
		"a conversation with its agent":       {"/api/conversations", body{"agent_id": h.ids["agents"]}},
		"a conversation in its workspace":     {"/api/conversations", body{"agent_id": agent, "workspace_id": h.ids["workspaces"]}},
		"a conversation with its credential":  {"/api/conversations", body{"agent_id": agent, "environment_id": env, "inference_credential_id": h.ids["inference-credentials"]}},
		"a conversation of its environment":   {"/api/conversations", body{"agent_id": agent, "environment_id": h.ids["environments"]}},
		"a conversation below one of its own": {"/api/conversations", body{"agent_id": agent, "environment_id": env, "parent_conversation_id": h.ids["conversations"]}},
	} {
		if no := b.refused("POST", in.path, in.body); no.Status != 404 && no.Status != 422 {
			t.Errorf("%s: %+v", name, no)
		}
	}
	// Nothing of it has changed anything.
	for path, was := range before {
		if now := see("GET", path); !bytes.Equal(now, was) {
			t.Errorf("%s was\n%s\nand is\n%s", path, was, now)
		}
	}
}

// open are the operations that need no key.
var open = []string{"POST /api/auth/token"}

// forMachines are the operations that a machine's key may call.
var forMachines = []string{
	"GET /api/auth/me", "GET /api/environments", "GET /api/environments/{id}", "GET /api/agents", "GET /api/agents/{id}", "GET /api/agents/{id}/versions", "GET /api/agents/{id}/versions/{version}",
	"POST /api/conversations", "GET /api/conversations/{id}", "POST /api/conversations/{id}/prompts", "POST /api/conversations/{id}/interrupt",
	"GET /api/conversations/{id}/turns", "GET /api/conversations/{id}/turns/{number}", "GET /api/conversations/{id}/events", "GET /api/conversations/{id}/stream",
}

// sandboxKey is the key that a running adapter was given for its conversation.
func sandboxKey(tb testing.TB, conversation string) (key string) {
	tb.Helper()
	processes(func(_ string, read func(string) []byte) {
		env := bytes.Split(read("environ"), []byte{0})
		if !slices.ContainsFunc(env, func(v []byte) bool { return string(v) == "MANAGOAT_CONVERSATION_ID="+conversation }) {
			return
		}
		for _, v := range env {
			if k, ok := strings.CutPrefix(string(v), "MANAGOAT_TOKEN="); ok {
				key = k
			}
		}
	})
	if !strings.HasPrefix(key, "mgt_") {
		tb.Fatalf("the adapter of %s has no key", conversation)
	}
	return key
}

func TestEveryPageHidesAnAccountFromOthersAndFromStrangers(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a, b := s.account(t), s.account(t)
	h := furnish(t, a, world)
	stranger := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	owner, other := a.session(), b.session()
	form := []byte("name=taken+over&title=taken+over&prompt=hello&option_id=allow&key=OTHER&value=taken")
	owned := 0
	for _, r := range handlers.PageRoutes(new(web.Console)) {
		if strings.HasSuffix(r.Path, "*") || r.Path == "/sign-out" {
			continue
		}
		path, has := h.path(t, r.Path)
		var in []byte
		if r.Mutates() {
			in = form
		}
		stream := strings.HasSuffix(path, "/stream")
		if got := ask(t, stranger, r.Method, s.url+path, "", "application/x-www-form-urlencoded", in); r.Access == handlers.Signed && got.status != http.StatusSeeOther && got.status != http.StatusUnauthorized || len(h.shows(got.body)) > 0 {
			t.Errorf("%s %s to a stranger: %d, shows %v", r.Method, path, got.status, h.shows(got.body))
		}
		switch {
		case has:
			owned++
			if got := ask(t, other, r.Method, s.url+path, "", "application/x-www-form-urlencoded", in); got.status != http.StatusNotFound || !bytes.Contains(got.body, []byte("<html")) {
				t.Errorf("%s %s of another account: %d %s", r.Method, path, got.status, got.body)
			}
			if r.Method == http.MethodGet && !stream { // the walk would prove nothing at an address that nobody can open
				if got := ask(t, owner, r.Method, s.url+path, "", "", nil); got.status == http.StatusNotFound || got.status >= http.StatusInternalServerError {
					t.Errorf("%s %s of one's own: %d", r.Method, path, got.status)
				}
			}
		case r.Method == http.MethodGet && !stream && r.Access == handlers.Signed:
			if got := ask(t, other, r.Method, s.url+path, "", "", nil); got.status != http.StatusOK && got.header.Get("Location") == "" || len(h.shows(got.body)) > 0 {
				t.Errorf("%s %s of another account: %d, shows %v", r.Method, path, got.status, h.shows(got.body))
			}
		}
	}
	if owned < 30 {
		t.Errorf("only %d pages have an id", owned)
	}
}
