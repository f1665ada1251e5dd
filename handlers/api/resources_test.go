package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"managoat/db"
	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/environment"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/inference"
	"managoat/internal/quota"
	"managoat/internal/secret"
	"managoat/internal/vault"
)

// tested are the routes of configuration, keys, credentials, quotas and the trail.
var tested = regexp.MustCompile(`^/api/(auth|members|sessions|catalog|quotas|audit|environments|vaults|agents|inference-credentials|account/inference-credentials|openapi.json)(/|$)`)

// table is the part of the server's table that this file tests.
func table(d *identitytest.Instance) []handlers.Route {
	quotas := quota.New(d.DB, quota.Defaults{RunningMachines: 20, PromptsPerMinute: 60})
	all := handlers.APIRoutes(handlers.JSON{
		Auth:         api.Auth{Service: d.People, Quotas: quotas},
		Quotas:       api.Quotas{Service: quotas},
		Audit:        api.Audit{Service: audit.New(d.DB)},
		Catalog:      api.Catalog{Providers: []string{"local"}, Default: "local"},
		Environments: api.Environments{Service: environment.NewService(d.DB, d.Keys, nil)},
		Vaults:       api.Vaults{Service: vault.NewService(d.DB, d.Keys)},
		Agents:       api.Agents{Service: agent.NewService(d.DB, []string{"local"})},
		Credentials:  api.Credentials{Service: inference.NewService(d.DB, d.Keys, nil)},
	})
	return slices.DeleteFunc(all, func(r handlers.Route) bool { return !tested.MatchString(r.Path) })
}

// server is the edge over a database with two accounts and a sandbox key of the first.
type server struct {
	*identitytest.Instance
	t       *testing.T
	http    *httptest.Server
	routes  []handlers.Route
	keys    map[string]string // by who: a, b, sandbox
	owner   *pgx.Conn
	account identitytest.Account
	saved   map[string]string // ids, by name
	log     *bytes.Buffer
}

func newServer(t *testing.T) *server {
	t.Helper()
	return newServerOn(t, identitytest.New(t))
}

func newServerOn(t *testing.T, i *identitytest.Instance) *server {
	t.Helper()
	s := &server{Instance: i, t: t, saved: map[string]string{}, log: &bytes.Buffer{}}
	s.owner = s.Owner(t)
	s.account = s.Account(t)
	b := s.Account(t)
	var sandbox identity.CreatedKey
	err := s.InTenant(context.Background(), s.account.TenantID, func(tx db.Tx) (err error) {
		sandbox, err = identity.MintSandboxKey(context.Background(), tx, s.account.Actor, uuid.New(), 1<<40)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.keys = map[string]string{"a": s.account.Key, "b": b.Key, "sandbox": sandbox.Plain.Reveal()}
	s.routes = table(s.Instance)
	e, _ := handlers.New(handlers.Config{DB: s.DB, Auth: s.People, Routes: s.routes, Log: slog.New(slog.NewTextHandler(s.log, nil)), Version: "test"})
	s.http = httptest.NewServer(e)
	t.Cleanup(s.http.Close)
	return s
}

// step is one request and everything that must be true after it.
type step struct {
	as     string // a, b, sandbox; "": nobody
	call   string // "POST /api/vaults/{vault}"; {name} is a saved id
	body   string
	status int
	has    []string // in the answer
	hasNot []string // nor anywhere in it
	save   string   // the name under which data.id is kept
}

var placeholder = regexp.MustCompile(`\{(\w+)\}`)

func (s *server) run(steps []step) {
	s.t.Helper()
	for i, st := range steps {
		name := fmt.Sprintf("%d: %s as %q %s", i, st.call, st.as, short(st.body))
		before := s.trail()
		status, answer, header := s.send(st.as, st.call, st.body)
		if status != st.status {
			s.t.Fatalf("%s: %d %s, want %d", name, status, answer, st.status)
		}
		for _, want := range st.has {
			if !strings.Contains(answer, want) {
				s.t.Errorf("%s: %s does not hold %q", name, answer, want)
			}
		}
		for _, no := range st.hasNot {
			if strings.Contains(answer, no) {
				s.t.Errorf("%s: %s holds %q", name, answer, no)
			}
		}
		if status != 204 && !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			s.t.Errorf("%s: answers %s", name, header.Get("Content-Type"))
		}
		if status >= 400 && !strings.Contains(answer, `"message":"`) {
			s.t.Errorf("%s: a refusal without a sentence: %s", name, answer)
		}
		s.checkTrail(name, st, status, before)
		if st.save != "" {
			var out struct {
				Data struct{ ID string }
			}
			if err := json.Unmarshal([]byte(answer), &out); err != nil || out.Data.ID == "" {
				s.t.Fatalf("%s: no id in %s", name, answer)
			}
			s.saved[st.save] = out.Data.ID
		}
	}
}

// checkTrail sees that a change wrote the row its route promises, and that nothing else wrote one.
func (s *server) checkTrail(name string, st step, status int, before []string) {
	s.t.Helper()
	after := s.trail()
	method, path, _ := strings.Cut(st.call, " ")
	path, _, _ = strings.Cut(path, "?")
	var want []string
	if status < 300 && method != "GET" {
		for _, r := range s.routes {
			if r.Method == method && pattern(r.Path).MatchString(placeholder.ReplaceAllString(path, "x")) {
				want = []string{string(r.Audit)}
			}
		}
	}
	got := after[len(before):]
	if !slices.Equal(got, want) && !(len(got) == 1 && len(want) == 1 && strings.HasPrefix(want[0], "inference_credential.") && strings.HasPrefix(got[0], "inference_credential.")) {
		s.t.Errorf("%s: wrote the rows %v, want %v", name, got, want)
	}
}

func pattern(path string) *regexp.Regexp {
	return regexp.MustCompile("^" + placeholder.ReplaceAllString(path, `[^/]+`) + "$")
}

func (s *server) trail() []string {
	s.t.Helper()
	rows, err := s.owner.Query(context.Background(), "select action from audit_events order by id")
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var action string
		if err := rows.Scan(&action); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, action)
	}
	return out
}

func (s *server) send(as, call, body string) (int, string, http.Header) {
	s.t.Helper()
	method, path, _ := strings.Cut(call, " ")
	fill := func(text string) string {
		return placeholder.ReplaceAllStringFunc(text, func(p string) string {
			if id, ok := s.saved[p[1:len(p)-1]]; ok {
				return id
			}
			return p
		})
	}
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(fill(body))
	}
	req, err := http.NewRequest(method, s.http.URL+fill(path), reader)
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if as != "" {
		req.Header.Set("Authorization", "Bearer "+s.keys[as])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(answer), res.Header
}

func short(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

func TestEnvironmentsOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.run([]step{
		{as: "a", call: "GET /api/environments", status: 200, has: []string{`"data":[]`, `"has_more":false`, `"limit":100`}},
		{as: "a", call: "POST /api/environments", body: `{"name":"node","env_vars":{"A":"1"},"setup_script":"a\r\nb"}`, status: 201, save: "env",
			has: []string{`"setup_script":"a\nb"`, `"packages":{"apt":[],"npm":[],"pip":[]}`, `"repositories":[]`, `"metadata":{}`, `"setup_timeout_seconds":120`, `"networking_type":"unrestricted"`, `"secret_count":0`, `"inserted_at":`}},
		{as: "a", call: "GET /api/environments/{env}", status: 200, has: []string{`"name":"node"`}},
		{as: "a", call: "PATCH /api/environments/{env}", body: `{"packages":{"apt":["git"]},"env_vars":null}`, status: 200,
			has: []string{`"apt":["git"]`, `"env_vars":{}`, `"name":"node"`}},
		// Bad input.
		{as: "a", call: "POST /api/environments", body: `{"name":"x","network":"limited"}`, status: 422, has: []string{`"error":"validation_failed"`, `"network":["is not a field of this resource"]`}},
		{as: "a", call: "POST /api/environments", body: `{"name":"x","networking_config":{"allowed_host":[]}}`, status: 422, has: []string{`networking_config.allowed_host`}},
		{as: "a", call: "POST /api/environments", body: `{"name":"x","packages":{"cargo":["x"]}}`, status: 422, has: []string{`packages.cargo`}},
		{as: "a", call: "POST /api/environments", body: `{"name":7,"setup_timeout_seconds":"x"}`, status: 422, has: []string{`"name":[`, `"setup_timeout_seconds":[`}},
		{as: "a", call: "POST /api/environments", body: `{}`, status: 422, has: []string{`"name":["must not be empty"]`}},
		{as: "a", call: "POST /api/environments", body: `{"Name":"x"}`, status: 422, has: []string{`"Name":[`}},
		{as: "a", call: "POST /api/environments", body: `{"name":"x","repositories":[{"url":"https://u:t0ken@x.example/a","mount_path":"/home/sprite/a"}]}`, status: 422,
			has: []string{`repositories[0].url`}, hasNot: []string{"t0ken"}},
		{as: "a", call: "POST /api/environments", body: `{"name":"x","env_vars":{"PATH":"/evil"}}`, status: 422, has: []string{`\"PATH\" is reserved`}},
		{as: "a", call: "POST /api/environments", body: `{"name":`, status: 400, has: []string{`"error":"bad_request"`}},
		{as: "a", call: "POST /api/environments", body: `[]`, status: 422, has: []string{`"error":"validation_failed"`}},
		{as: "a", call: "POST /api/environments", body: `{"name":"node"}`, status: 422, has: []string{`"error":"name_taken"`, `"errors":{"name":[`}},
		{as: "a", call: "POST /api/environments", body: `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, status: 413, has: []string{`"error":"payload_too_large"`}},
		{as: "a", call: "GET /api/environments?limit=0", status: 422, has: []string{`"limit":[`}},
		{as: "a", call: "GET /api/environments?after=%00", status: 400, has: []string{`"error":"bad_request"`}},
		{as: "a", call: "GET /api/environments?colour=red", status: 422},
		// Ids that are nobody's.
		{as: "a", call: "GET /api/environments/0192b3a0-0000-7000-8000-000000000000", status: 404, has: []string{`"error":"not_found"`}},
		{as: "a", call: "GET /api/environments/nonsense", status: 404, has: []string{`"error":"not_found"`}},
		{as: "a", call: "GET /api/environments/%00", status: 404, has: []string{`"error":"not_found"`}},
		{as: "a", call: "PATCH /api/environments/nonsense", body: `{"name":"x"}`, status: 404},
		{as: "a", call: "DELETE /api/environments/nonsense", status: 404},
		// Secrets.
		{as: "a", call: "POST /api/environments/{env}/secrets", body: `{"key":"TOKEN","value":"s3cr3t-one"}`, status: 201, save: "secret", has: []string{`"key":"TOKEN"`}, hasNot: []string{"s3cr3t", "REDACTED"}},
		{as: "a", call: "POST /api/environments/{env}/secrets", body: `{"key":"TOKEN","value":"s3cr3t-two"}`, status: 201, has: []string{`"id":"`}},
		{as: "a", call: "POST /api/environments/{env}/secrets", body: `{"key":"a-b","value":"s3cr3t"}`, status: 422, has: []string{`"key":[`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "POST /api/environments/{env}/secrets", body: `{"key":"B","value":{"s3cr3t":1}}`, status: 422, has: []string{`"value":[`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "POST /api/environments/{env}/secrets", body: `{"key":"B"}`, status: 422, has: []string{`"value":[`}},
		{as: "a", call: "GET /api/environments/{env}/secrets", status: 200, has: []string{`"key":"TOKEN"`, `"environment_id":"`}, hasNot: []string{"s3cr3t", `"value"`}},
		{as: "a", call: "GET /api/environments/{env}", status: 200, has: []string{`"secret_count":1`}, hasNot: []string{"s3cr3t"}},
		// Another account, a sandbox key, nobody.
		{as: "b", call: "GET /api/environments", status: 200, has: []string{`"data":[]`}, hasNot: []string{"node"}},
		{as: "b", call: "GET /api/environments/{env}", status: 404, hasNot: []string{"node"}},
		{as: "b", call: "PATCH /api/environments/{env}", body: `{"name":"stolen"}`, status: 404},
		{as: "b", call: "DELETE /api/environments/{env}", status: 404},
		{as: "b", call: "GET /api/environments/{env}/secrets", status: 404, hasNot: []string{"TOKEN"}},
		{as: "b", call: "POST /api/environments/{env}/secrets", body: `{"key":"TOKEN","value":"evil"}`, status: 404},
		{as: "b", call: "DELETE /api/environments/{env}/secrets/{secret}", status: 404},
		{as: "b", call: "POST /api/environments", body: `{"name":"node"}`, status: 201},
		{as: "sandbox", call: "GET /api/environments", status: 200, has: []string{`"name":"node"`}},
		{as: "sandbox", call: "GET /api/environments/{env}", status: 200},
		{as: "sandbox", call: "POST /api/environments", body: `{"name":"x"}`, status: 403, has: []string{`"error":"insufficient_scope"`, `"reason":"insufficient_scope"`, `"required_scope":"full"`}},
		{as: "sandbox", call: "PATCH /api/environments/{env}", body: `{"name":"x"}`, status: 403},
		{as: "sandbox", call: "GET /api/environments/{env}/secrets", status: 403},
		{as: "", call: "GET /api/environments", status: 401, has: []string{`"error":"api_key_invalid"`, `"reason":"api_key_invalid"`}},
		{as: "", call: "DELETE /api/environments/{env}", status: 401},
		// The end.
		{as: "a", call: "DELETE /api/environments/{env}/secrets/TOKEN", status: 204},
		{as: "a", call: "DELETE /api/environments/{env}/secrets/TOKEN", status: 404},
		{as: "a", call: "DELETE /api/environments/{env}", status: 204},
		{as: "a", call: "GET /api/environments/{env}", status: 404},
		{as: "a", call: "DELETE /api/environments/{env}", status: 404},
	})
	if strings.Contains(s.log.String(), "s3cr3t") || strings.Contains(s.log.String(), "request failed") {
		t.Errorf("the log says %s", s.log)
	}
}

func TestAWorkspaceHoldsItsSourcesOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.run([]step{
		{as: "a", call: "POST /api/environments", body: `{"name":"node"}`, status: 201, save: "env"},
		{as: "a", call: "POST /api/vaults", body: `{"name":"bot"}`, status: 201, save: "vault"},
	})
	if _, err := s.owner.Exec(context.Background(), "insert into workspaces (tenant_id, id, name, environment_id, vault_id, provider, status) values ($1, $2, 'storefront', $3, $4, 'local', 'ready')",
		s.account.TenantID, uuid.New(), s.saved["env"], s.saved["vault"]); err != nil {
		t.Fatal(err)
	}
	s.run([]step{
		{as: "a", call: "DELETE /api/environments/{env}", status: 409, has: []string{`"error":"source_in_use_by_workspace"`, `"workspaces":["storefront"]`}},
		{as: "a", call: "DELETE /api/vaults/{vault}", status: 409, has: []string{`"error":"source_in_use_by_workspace"`, `"workspaces":["storefront"]`}},
		{as: "b", call: "DELETE /api/environments/{env}", status: 404, hasNot: []string{"storefront"}},
		{as: "b", call: "DELETE /api/vaults/{vault}", status: 404, hasNot: []string{"storefront"}},
	})
}

func TestVaultsOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.run([]step{
		{as: "a", call: "POST /api/vaults", body: `{"name":"bot","description":"of the team"}`, status: 201, save: "vault", has: []string{`"metadata":{}`, `"secret_count":0`}},
		{as: "a", call: "POST /api/vaults", body: `{"name":"bot"}`, status: 422, has: []string{`"error":"name_taken"`}},
		{as: "a", call: "POST /api/vaults", body: `{"name":"x","secrets":{}}`, status: 422, has: []string{`"secrets":[`}},
		{as: "a", call: "PATCH /api/vaults/{vault}", body: `{"description":""}`, status: 200, has: []string{`"description":""`, `"name":"bot"`}},
		{as: "a", call: "POST /api/vaults/{vault}/secrets", body: `{"key":"TOKEN","value":"s3cr3t","expires_at":"2030-01-02T03:04:05Z"}`, status: 201, save: "secret", has: []string{`"expires_at":"2030-01-02T03:04:05Z"`, `"vault_id":"`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "POST /api/vaults/{vault}/secrets", body: `{"key":"B","value":"x","expires_at":"soon"}`, status: 422, has: []string{`"expires_at":[`}},
		{as: "a", call: "PATCH /api/vaults/{vault}/secrets/TOKEN", body: `{"expires_at":null}`, status: 200, has: []string{`"expires_at":null`}},
		{as: "a", call: "PATCH /api/vaults/{vault}/secrets/TOKEN", body: `{"value":"x"}`, status: 422, has: []string{`"value":[`}},
		{as: "a", call: "PATCH /api/vaults/{vault}/secrets/NEVER", body: `{"expires_at":null}`, status: 404},
		{as: "a", call: "PATCH /api/vaults/{vault}/secrets/%00", body: `{"expires_at":null}`, status: 404},
		{as: "a", call: "GET /api/vaults/{vault}/secrets", status: 200, has: []string{`"key":"TOKEN"`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "GET /api/vaults", status: 200, has: []string{`"secret_count":1`}},
		{as: "b", call: "GET /api/vaults", status: 200, has: []string{`"data":[]`}},
		{as: "b", call: "GET /api/vaults/{vault}", status: 404},
		{as: "b", call: "PATCH /api/vaults/{vault}", body: `{"name":"stolen"}`, status: 404},
		{as: "b", call: "DELETE /api/vaults/{vault}", status: 404},
		{as: "b", call: "GET /api/vaults/{vault}/secrets", status: 404},
		{as: "b", call: "POST /api/vaults/{vault}/secrets", body: `{"key":"TOKEN","value":"evil"}`, status: 404},
		{as: "b", call: "PATCH /api/vaults/{vault}/secrets/TOKEN", body: `{"expires_at":null}`, status: 404},
		{as: "b", call: "DELETE /api/vaults/{vault}/secrets/TOKEN", status: 404},
		{as: "sandbox", call: "GET /api/vaults", status: 403},
		{as: "sandbox", call: "GET /api/vaults/{vault}/secrets", status: 403},
		{as: "", call: "GET /api/vaults", status: 401},
		{as: "a", call: "DELETE /api/vaults/{vault}/secrets/{secret}", status: 204},
		{as: "a", call: "DELETE /api/vaults/{vault}", status: 204},
		{as: "a", call: "GET /api/vaults/{vault}", status: 404},
	})
	if _, _, h := s.send("a", "GET /api/vaults/{vault}", ""); h.Get("X-Request-Id") == "" {
		t.Error("an answer without a request id")
	}
}

func TestAgentsOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const claude = `"runtime":"claude","model":"anthropic/claude-sonnet-4-5"`
	s.run([]step{
		{as: "a", call: "POST /api/environments", body: `{"name":"node"}`, status: 201, save: "env"},
		{as: "b", call: "POST /api/environments", body: `{"name":"theirs"}`, status: 201, save: "theirs"},
		{as: "a", call: "POST /api/agents", body: `{"name":"reviewer",` + claude + `,"environment_id":"{env}"}`, status: 201, save: "agent",
			has: []string{`"version":1`, `"acp":true`, `"skills":[]`, `"mcp_servers":{}`, `"permission_policy":{}`, `"allowed_vault_ids":null`, `"sandbox_mode":"ephemeral"`, `"machine_use":"always"`, `"conversation_count":0`}},
		{as: "a", call: "PATCH /api/agents/{agent}", body: `{"system":"Be brief.","version":1}`, status: 200, has: []string{`"version":2`, `"model":"anthropic/claude-sonnet-4-5"`}},
		{as: "a", call: "PATCH /api/agents/{agent}", body: `{"system":"Be long.","version":1}`, status: 409, has: []string{`"error":"version_conflict"`, `"version":2`}},
		{as: "a", call: "PATCH /api/agents/{agent}", body: `{"permission_policy":{"default":"auto_allow"},"allowed_vault_ids":[]}`, status: 200, has: []string{`"version":3`, `"allowed_vault_ids":[]`}},
		{as: "a", call: "PATCH /api/agents/{agent}", body: `{"permission_policy":null,"allowed_vault_ids":null,"runtime_command":null}`, status: 200, has: []string{`"version":4`, `"permission_policy":{}`, `"allowed_vault_ids":null`}},
		{as: "a", call: "GET /api/agents/{agent}/versions", status: 200, has: []string{`"version":4`, `"version":1`, `"created_by":"key:`}},
		{as: "a", call: "GET /api/agents/{agent}/versions/1", status: 200, has: []string{`"system":""`}},
		{as: "a", call: "GET /api/agents/{agent}/versions/9", status: 404},
		{as: "a", call: "GET /api/agents/{agent}/versions/x", status: 404},
		// What acts later.
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"skills":[{"source":"acme/skills"}]}`, status: 422, has: []string{`"error":"not_available_yet"`, `"field":"skills"`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"skills":[{"skill_id":"x"}]}`, status: 422, has: []string{`"error":"not_available_yet"`, `"field":"skills"`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"permission_policy":{"execute":"ask"}}`, status: 422, has: []string{`"error":"not_available_yet"`, `"field":"permission_policy"`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x","runtime":"opencode","model":"openai/gpt-5"}`, status: 422, has: []string{`"error":"not_available_yet"`, `"field":"runtime"`}},
		// MCP servers and skills.
		{as: "a", call: "POST /api/agents", body: `{"name":"codex","runtime":"codex","model":"openai/gpt-5","mcp_servers":{"a":{"type":"stdio","command":"x","env":{"K":"${K}"}}},"skills":[{"name":"s","content":"---\nname: s\ndescription: d\n---"}]}`,
			status: 201, save: "codex", has: []string{`"mcp_servers":{"a":{"command":"x","env":{"K":"${K}"}}}`, `"skills":[{"name":"s","content":"---\nname: s\ndescription: d\n---"}]`}},
		{as: "a", call: "PATCH /api/agents/{codex}", body: `{"mcp_servers":{"b":{"type":"http","url":"https://example.com"}}}`, status: 200, has: []string{`"version":2`, `"mcp_servers":{"b":{"type":"http","url":"https://example.com"}}`, `"skills":[{"name":"s"`}},
		{as: "a", call: "GET /api/agents/{codex}/versions/1", status: 200, has: []string{`"mcp_servers":{"a":{`}},
		{as: "a", call: "PATCH /api/agents/{codex}", body: `{"mcp_servers":{"b":{"typ":"http"}}}`, status: 422, has: []string{`"mcp_servers.b.typ":[`}},
		{as: "a", call: "PATCH /api/agents/{codex}", body: `{"mcp_servers":{"b":{"type":"http","url":"x"}}}`, status: 422, has: []string{`"mcp_servers.b.url":[`}},
		{as: "a", call: "PATCH /api/agents/{codex}", body: `{"mcp_servers":{"b":{"command":7}}}`, status: 422, has: []string{`"mcp_servers.b.command":[`}},
		{as: "a", call: "PATCH /api/agents/{codex}", body: `{"skills":[{"name":"s","content":"text"}]}`, status: 422, has: []string{`"skills[0].content":[`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"model_retries":2}`, status: 422, has: []string{`"field":"model_retries"`}},
		// Bad input.
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"temperature":1}`, status: 422, has: []string{`"temperature":[`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x","runtime":"claude","model":"openai/gpt-5"}`, status: 422, has: []string{`"model":[`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"runtime_command":"rm"}`, status: 422, has: []string{`"runtime_command":[`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"sandbox_mode":"persistent"}`, status: 422, has: []string{`"sandbox_mode":[`, "workspace"}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"environment_id":"nonsense"}`, status: 404, has: []string{`"error":"environment_not_found"`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"environment_id":"{theirs}"}`, status: 404, has: []string{`"error":"environment_not_found"`}, hasNot: []string{"theirs"}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x",` + claude + `,"sandbox_provider":"docker"}`, status: 422, has: []string{`"error":"sandbox_provider_disabled"`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"reviewer",` + claude + `}`, status: 422, has: []string{`"error":"name_taken"`}},
		{as: "a", call: "POST /api/agents", body: `{"name":"x","runtime":"acp","runtime_command":"my-agent --acp"}`, status: 201, has: []string{`"model":null`}},
		// Another account, a sandbox key, nobody.
		{as: "b", call: "GET /api/agents", status: 200, has: []string{`"data":[]`}},
		{as: "b", call: "GET /api/agents/{agent}", status: 404},
		{as: "b", call: "PATCH /api/agents/{agent}", body: `{"system":"evil"}`, status: 404},
		{as: "b", call: "DELETE /api/agents/{agent}", status: 404},
		{as: "b", call: "GET /api/agents/{agent}/versions", status: 404},
		{as: "b", call: "GET /api/agents/{agent}/versions/1", status: 404},
		{as: "sandbox", call: "GET /api/agents", status: 200, has: []string{`"reviewer"`}},
		{as: "sandbox", call: "POST /api/agents", body: `{"name":"y",` + claude + `}`, status: 403},
		{as: "sandbox", call: "PATCH /api/agents/{agent}", body: `{"system":"evil"}`, status: 403},
		{as: "", call: "GET /api/agents/{agent}", status: 401},
		// The agent holds its environment until it goes; its versions stay.
		{as: "a", call: "DELETE /api/environments/{env}", status: 409, has: []string{`"error":"in_use"`, `"used_by":["reviewer"]`}},
		{as: "a", call: "DELETE /api/agents/{agent}", status: 204},
		{as: "a", call: "GET /api/agents/{agent}", status: 404},
		{as: "a", call: "GET /api/agents/{agent}/versions/2", status: 200, has: []string{`Be brief.`}},
		{as: "a", call: "DELETE /api/environments/{env}", status: 204},
	})
}

func TestInferenceCredentialsOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.run([]step{
		{as: "a", call: "POST /api/inference-credentials", body: `{"name":"mine","provider":"anthropic","key":"sk-ant-s3cr3t"}`, status: 201, save: "cred",
			has: []string{`"default":true`, `"kind":"api_key"`, `"revision":1`, `"base_url":""`}, hasNot: []string{"s3cr3t", `"key"`}},
		{as: "a", call: "GET /api/inference-credentials/{cred}", status: 200, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "PATCH /api/inference-credentials/{cred}", body: `{"key":"sk-ant-s3cr3t-two"}`, status: 200, has: []string{`"revision":2`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "PATCH /api/inference-credentials/{cred}", body: `{"default":false}`, status: 422, has: []string{`"error":"cannot_undefault"`}},
		{as: "a", call: "PATCH /api/inference-credentials/{cred}", body: `{"provider":"openai"}`, status: 422, has: []string{`"provider":[`}},
		{as: "a", call: "POST /api/inference-credentials", body: `{"name":"x","provider":"openai_compatible","key":"k"}`, status: 422, has: []string{`"base_url":[`}},
		{as: "a", call: "POST /api/inference-credentials", body: `{"name":"x","provider":"openai_compatible","key":"k","base_url":"http://169.254.169.254/"}`, status: 422, has: []string{`"base_url":[`}},
		{as: "a", call: "POST /api/inference-credentials", body: `{"name":"x","provider":"openai","api_key":"s3cr3t"}`, status: 422, has: []string{`"api_key":[`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "POST /api/inference-credentials", body: `{"name":"x","provider":"openai","key":"s3cr3t with spaces"}`, status: 422, has: []string{`"key":[`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "POST /api/inference-credentials", body: `{"name":"mine","provider":"openai","key":"k"}`, status: 422, has: []string{`"error":"name_taken"`}},
		{as: "a", call: "PUT /api/account/inference-credentials/claude_code_oauth_token", body: `{"value":"sk-ant-oat-s3cr3t"}`, status: 200, has: []string{`"kind":"oauth_token"`, `"revision":3`}, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "PUT /api/account/inference-credentials/openai_api_key", body: `{"value":"sk-s3cr3t","validate":false}`, status: 200, has: []string{`"provider":"openai"`, `"default":true`}},
		{as: "a", call: "PUT /api/account/inference-credentials/openai", body: `{"value":"k","validate":true}`, status: 422, has: []string{`"error":"not_available_yet"`}},
		{as: "a", call: "PUT /api/account/inference-credentials/nobody", body: `{"value":"k"}`, status: 404},
		{as: "a", call: "PUT /api/account/inference-credentials/google", body: `{"value":""}`, status: 422, has: []string{`"key":[`}},
		{as: "a", call: "GET /api/account/inference-credentials", status: 200, has: []string{`"anthropic"`, `"openai"`}, hasNot: []string{"s3cr3t"}},
		{as: "b", call: "GET /api/inference-credentials", status: 200, has: []string{`"data":[]`}},
		{as: "b", call: "GET /api/account/inference-credentials", status: 200, has: []string{`"data":[]`}},
		{as: "b", call: "GET /api/inference-credentials/{cred}", status: 404},
		{as: "b", call: "PATCH /api/inference-credentials/{cred}", body: `{"key":"evil"}`, status: 404},
		{as: "b", call: "DELETE /api/inference-credentials/{cred}", status: 404},
		{as: "b", call: "DELETE /api/account/inference-credentials/anthropic", status: 404},
		{as: "sandbox", call: "GET /api/inference-credentials", status: 403},
		{as: "sandbox", call: "PUT /api/account/inference-credentials/openai", body: `{"value":"evil"}`, status: 403},
		{as: "", call: "GET /api/inference-credentials", status: 401},
		{as: "a", call: "DELETE /api/inference-credentials/{cred}", status: 204},
		{as: "a", call: "DELETE /api/account/inference-credentials/openai", status: 204},
		{as: "a", call: "GET /api/inference-credentials", status: 200, has: []string{`"data":[]`}},
	})
	if strings.Contains(s.log.String(), "s3cr3t") {
		t.Errorf("the log holds a key: %s", s.log)
	}
}

func TestKeysSessionsAndMembersOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.saved["email"] = s.account.Email
	s.run([]step{
		{as: "a", call: "GET /api/auth/me", status: 200, has: []string{`"email":"` + s.account.Email, `"scopes":["full"]`, `"role":"owner"`, `"max_concurrent_sandboxes":20`, `"expires_at":null`}},
		{as: "sandbox", call: "GET /api/auth/me", status: 200, has: []string{`"scopes":["sandbox:`, `"actor":"sandbox"`}, hasNot: []string{`"expires_at":null`}},
		{as: "", call: "GET /api/auth/me", status: 401, has: []string{`"reason":"api_key_invalid"`}},
		{as: "a", call: "POST /api/auth/api-keys", body: `{"name":"CI"}`, status: 201, save: "key", has: []string{`"key":"mgt_`, `"prefix":"mgt_`, `"scopes":["full"]`, `"last_used_at":null`}},
		{as: "a", call: "GET /api/auth/api-keys", status: 200, has: []string{`"name":"CI"`}, hasNot: []string{`"key":`}},
		{as: "a", call: "POST /api/auth/api-keys", body: `{"name":"CI","scopes":["admin"]}`, status: 422, has: []string{`"scopes":[`}},
		{as: "a", call: "POST /api/auth/api-keys", body: `{"name":""}`, status: 422, has: []string{`"name":[`}},
		{as: "a", call: "POST /api/auth/api-keys", body: `{"name":"x","expires_at":"2001-01-01T00:00:00Z"}`, status: 422, has: []string{`"expires_at":[`}},
		{as: "b", call: "DELETE /api/auth/api-keys/{key}", status: 404},
		{as: "b", call: "GET /api/auth/api-keys", status: 200, hasNot: []string{`"CI"`}},
		{as: "sandbox", call: "POST /api/auth/api-keys", body: `{"name":"x"}`, status: 403},
		{as: "sandbox", call: "GET /api/auth/api-keys", status: 403},
		{as: "a", call: "DELETE /api/auth/api-keys/{key}", status: 204},
		{as: "a", call: "DELETE /api/auth/api-keys/{key}", status: 404},
		{as: "", call: "POST /api/auth/token", body: `{"email":"{email}","password":"` + identitytest.Password + `"}`, status: 200, has: []string{`"api_key":"mgt_`, `"key_id":"`, `"prefix":"mgt_`}},
		{as: "", call: "POST /api/auth/token", body: `{"email":"{email}","password":"wrong password"}`, status: 401, has: []string{`"error":"sign_in_failed"`}, hasNot: []string{"wrong password"}},
		{as: "", call: "POST /api/auth/token", body: `{"email":"nobody@example.com","password":"wrong password"}`, status: 401, has: []string{`"error":"sign_in_failed"`}},
		{as: "", call: "POST /api/auth/token", body: `{"email":"{email}"}`, status: 401},
		{as: "", call: "POST /api/auth/token", body: `{"email":["x"],"password":7}`, status: 422, has: []string{`"email":[`, `"password":[`}},
		{as: "a", call: "GET /api/members", status: 200, has: []string{s.account.Email, `"role":"owner"`}},
		{as: "b", call: "GET /api/members", status: 200, hasNot: []string{s.account.Email}},
		{as: "sandbox", call: "GET /api/members", status: 403},
		{as: "a", call: "GET /api/sessions", status: 200, has: []string{`"data":[]`}},
		{as: "a", call: "GET /api/catalog", status: 200, has: []string{`"runtimes":["claude","codex","gemini","acp"]`, `"package_managers":["apt","npm","pip"]`, `"enabled":["local"]`}},
		{as: "a", call: "GET /api/quotas", status: 200, has: []string{`"quota":"running_machines"`, `"limit":20`, `"used":0`, `"resets_at":"`}},
		{as: "sandbox", call: "GET /api/quotas", status: 403},
		{as: "", call: "GET /api/quotas", status: 401},
		{as: "a", call: "GET /api/audit", status: 200, has: []string{`"action":"api_key.revoke"`, `"actor":"key"`, `"request_ip":"127.0.0.1"`, `"changed_fields":[`}, hasNot: []string{"mgt_"}},
		{as: "a", call: "GET /api/audit?action=api_key.revoke&limit=1", status: 200, has: []string{`"action":"api_key.revoke"`}, hasNot: []string{`"action":"api_key.create"`}},
		{as: "a", call: "GET /api/audit?resource_id=%00", status: 200, has: []string{`"data":[]`}},
		{as: "a", call: "GET /api/audit?actor=nobody", status: 422, has: []string{`"actor":[`}},
		{as: "a", call: "GET /api/audit?since=yesterday", status: 422},
		{as: "a", call: "GET /api/audit?before=nonsense", status: 400},
		{as: "b", call: "GET /api/audit", status: 200, hasNot: []string{`"api_key.revoke"`}},
		{as: "sandbox", call: "GET /api/audit", status: 403},
	})
	// A browser's session, with its cookie.
	session, err := s.People.SignIn(context.Background(), s.account.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1", UserAgent: "a browser"})
	if err != nil {
		t.Fatal(err)
	}
	with := func(method, path, site string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, s.http.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(&http.Cookie{Name: handlers.SessionCookie, Value: session.Token.Reveal()})
		req.Header.Set("Sec-Fetch-Site", site)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	status, answer := with("GET", "/api/sessions", "same-origin")
	var list struct {
		Data []struct {
			ID      string
			Current bool
		}
	}
	if err := json.Unmarshal([]byte(answer), &list); err != nil || status != 200 || len(list.Data) != 1 || !list.Data[0].Current {
		t.Fatalf("sessions: %d %s, %v", status, answer, err)
	}
	path := "/api/sessions/" + list.Data[0].ID
	if status, answer := with("DELETE", path, "cross-site"); status != 403 || !strings.Contains(answer, "cross_origin_refused") {
		t.Errorf("another site ended the session: %d %s", status, answer)
	}
	s.run([]step{{as: "b", call: "DELETE " + path, status: 404}, {as: "sandbox", call: "DELETE " + path, status: 403}})
	if status, _ := with("DELETE", path, "same-origin"); status != 204 {
		t.Errorf("ending it answers %d", status)
	}
	if status, answer := with("GET", "/api/sessions", "same-origin"); status != 401 || !strings.Contains(answer, "sign_in_required") {
		t.Errorf("an ended session answers %d %s", status, answer)
	}
}

// A repeated create with the same Idempotency-Key is answered from the first one.
func TestARepeatedCreateIsMadeOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	send := func(as, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("POST", s.http.URL+"/api/vaults", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+s.keys[as])
		req.Header.Set("Idempotency-Key", "once")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(answer)
	}
	if status, _ := send("a", `{"name":""}`); status != 422 {
		t.Fatalf("bad input answers %d", status)
	}
	status, first := send("a", `{"name":"bot"}`)
	if status != 201 {
		t.Fatalf("a refused request used the key: %d %s", status, first)
	}
	if status, again := send("a", `{"name":"bot"}`); status != 201 || again != first {
		t.Errorf("again: %d %s, first %s", status, again, first)
	}
	if status, other := send("a", `{"name":"other"}`); status != 422 || !strings.Contains(other, "idempotency_key_reused") {
		t.Errorf("another body: %d %s", status, other)
	}
	if status, theirs := send("b", `{"name":"bot"}`); status != 201 || theirs == first {
		t.Errorf("another account's key: %d %s", status, theirs)
	}
}

// The document says what the server takes: every field of every body, none required, unknown ones refused.
func TestTheDocumentDescribesEveryBody(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	status, answer, _ := s.send("", "GET /api/openapi.json", "")
	if status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody *struct {
				Content map[string]struct {
					Schema struct {
						Properties           map[string]any
						Required             []string
						AdditionalProperties any
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(answer), &doc); err != nil {
		t.Fatal(err)
	}
	for _, r := range s.routes {
		if r.API == nil {
			continue
		}
		op, ok := doc.Paths[r.Path][strings.ToLower(r.Method)]
		if !ok {
			t.Errorf("%s %s is not in the document", r.Method, r.Path)
			continue
		}
		if op.RequestBody == nil {
			continue
		}
		schema := op.RequestBody.Content["application/json"].Schema
		if len(schema.Properties) == 0 || len(schema.Required) != 0 || schema.AdditionalProperties != false {
			t.Errorf("%s %s: %+v", r.Method, r.Path, schema)
		}
	}
	body := doc.Paths["/api/environments"]["post"]
	if out, _ := json.Marshal(body); !bytes.Contains(out, []byte("allowed_hosts")) || !bytes.Contains(out, []byte("mount_path")) || bytes.Contains(out, []byte("$ref")) {
		t.Errorf("an environment's body is %s", out)
	}
}
