package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/agent"
	"managoat/internal/environment"
	"managoat/internal/identity/identitytest"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/vault"
)

var ctx = context.Background()

func want(t *testing.T, err error, code refusal.Code) *refusal.Refusal {
	t.Helper()
	r, ok := refusal.As(err)
	if !ok || r.Code != code {
		t.Fatalf("got %v, want the refusal %s", err, code)
	}
	return r
}

func service(d *identitytest.Instance) *agent.Service {
	return agent.NewService(d.DB, []string{"local"})
}

const model = "anthropic/claude-sonnet-4-5"

func claude(name string) agent.Config {
	c := agent.New()
	m := model
	c.Name, c.Runtime, c.Model = name, agent.Claude, &m
	return c
}

func skills(list string) string { return `{"skills":[` + list + `]}` }

func patch(body string) func(*agent.Config) error {
	return func(c *agent.Config) error { return input.Decode([]byte(body), c) }
}

func TestEveryChangeIsANewVersionAndAVersionNeverChanges(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	made, err := s.Create(ctx, a.Actor, claude("reviewer"))
	if err != nil || made.Version != 1 || !made.ACP {
		t.Fatalf("made %+v, %v", made, err)
	}
	for i, body := range []string{`{"system":"Be brief.\r\n"}`, `{"metadata":{"team":"web"}}`, `{"permission_policy":{"default":"auto_allow","Bash":"auto_allow"}}`} {
		got, err := s.Update(ctx, a.Actor, made.ID, i+1, patch(body))
		if err != nil || got.Version != i+2 {
			t.Fatalf("%s: %+v, %v", body, got, err)
		}
	}
	same, err := s.Update(ctx, a.Actor, made.ID, 0, patch(`{"system":"Be brief.\n"}`))
	if err != nil || same.Version != 4 {
		t.Fatalf("a change of nothing is version %d, %v", same.Version, err)
	}
	versions, err := s.Versions(ctx, a.Actor, made.ID, input.Page{Limit: 3})
	if err != nil || len(versions.Items) != 3 || versions.Items[0].Version != 4 || !versions.HasMore {
		t.Fatalf("versions are %+v, %v", versions, err)
	}
	rest, err := s.Versions(ctx, a.Actor, made.ID, input.Page{Limit: 3, Cursor: versions.Next})
	if err != nil || len(rest.Items) != 1 || rest.Items[0].Version != 1 || rest.Items[0].CreatedBy != a.Email {
		t.Fatalf("and then %+v, %v", rest, err)
	}
	first, err := s.Version(ctx, a.Actor, made.ID, 1)
	if err != nil || first.Config.System != "" || first.Config.Name != "reviewer" {
		t.Fatalf("version 1 is %+v, %v", first, err)
	}
	second, err := s.Version(ctx, a.Actor, made.ID, 2)
	if err != nil || second.Config.System != "Be brief.\n" || len(second.Config.Metadata) != 0 {
		t.Fatalf("version 2 is %+v, %v", second, err)
	}
	// Another account.
	for _, v := range []int{1, 4} {
		_, err = s.Version(ctx, b.Actor, made.ID, v)
		want(t, err, refusal.NotFound)
	}
	_, err = s.Versions(ctx, b.Actor, made.ID, input.Page{})
	want(t, err, refusal.NotFound)
	_, err = s.Get(ctx, b.Actor, made.ID)
	want(t, err, refusal.NotFound)
	_, err = s.Update(ctx, b.Actor, made.ID, 0, patch(`{"system":"evil"}`))
	want(t, err, refusal.NotFound)
	want(t, s.Delete(ctx, b.Actor, made.ID), refusal.NotFound)
	if list, err := s.List(ctx, b.Actor, input.Page{}); err != nil || len(list.Items) != 0 {
		t.Errorf("another account lists %+v, %v", list, err)
	}
	for _, v := range []int{0, -1, 5, 1 << 40} {
		_, err = s.Version(ctx, a.Actor, made.ID, v)
		want(t, err, refusal.NotFound)
	}
	// A version outlives its agent.
	if err := s.Delete(ctx, a.Actor, made.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, a.Actor, made.ID)
	want(t, err, refusal.NotFound)
	if _, err := s.Version(ctx, a.Actor, made.ID, 2); err != nil {
		t.Errorf("version 2 went with the agent: %v", err)
	}
	// The database itself refuses to change one.
	for _, sql := range []string{"update agent_versions set config = '{}'", "delete from agent_versions"} {
		err := d.InTenant(ctx, a.TenantID, func(tx db.Tx) error { return tx.Exec(ctx, sql) })
		if err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestAChangeFromAnOldVersionIsRefused(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(d)
	made, err := s.Create(ctx, a.Actor, claude("reviewer"))
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 6)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = s.Update(ctx, a.Actor, made.ID, 1, patch(fmt.Sprintf(`{"system":"from editor %d"}`, i)))
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if r := want(t, err, refusal.VersionConflict); r.Fields["version"] != 2 {
			t.Errorf("says the version is %v", r.Fields["version"])
		}
	}
	if won != 1 {
		t.Fatalf("%d editors of one version won", won)
	}
	// Without a version the changes line up.
	for i := range errs {
		wg.Go(func() {
			if _, err := s.Update(ctx, a.Actor, made.ID, 0, patch(fmt.Sprintf(`{"description":"%d"}`, i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := s.Get(ctx, a.Actor, made.ID); err != nil || got.Version != 8 {
		t.Errorf("version %d, %v", got.Version, err)
	}
}

func TestAnAgentsFieldsAreCheckedAndRefusedByName(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(d)
	for name, c := range map[string]struct {
		body, field string
		code        refusal.Code // "": it is taken
	}{
		"claude":                              {`{}`, "", ""},
		"no name":                             {`{"name":""}`, "name", refusal.ValidationFailed},
		"an unknown field":                    {`{"sytem":"x"}`, "sytem", refusal.ValidationFailed},
		"a system prompt with NUL":            {`{"system":"\u0000"}`, "system", refusal.ValidationFailed},
		"a huge system prompt":                {`{"system":"` + strings.Repeat("x", 300<<10) + `"}`, "system", refusal.ValidationFailed},
		"no runtime":                          {`{"runtime":""}`, "runtime", refusal.ValidationFailed},
		"an unknown runtime":                  {`{"runtime":"clawd"}`, "runtime", refusal.ValidationFailed},
		"codex":                               {`{"runtime":"codex","model":"openai/gpt-5"}`, "", ""},
		"gemini":                              {`{"runtime":"gemini","model":"google/gemini-2.5-pro"}`, "", ""},
		"codex with another's model":          {`{"runtime":"codex","model":"google/gemini-2.5-pro"}`, "model", refusal.ValidationFailed},
		"a runtime of later":                  {`{"runtime":"opencode","model":"openai/gpt-5"}`, "runtime", refusal.NotAvailableYet},
		"our own loop":                        {`{"runtime":"native","machine_use":"never"}`, "runtime", refusal.NotAvailableYet},
		"acp":                                 {`{"runtime":"acp","runtime_command":"my-agent --acp","model":null}`, "", ""},
		"acp with a model":                    {`{"runtime":"acp","runtime_command":"my-agent","model":"openai_compatible/meta-llama/Llama-3.1:free"}`, "", ""},
		"acp without a command":               {`{"runtime":"acp","model":null}`, "runtime_command", refusal.ValidationFailed},
		"acp with two lines":                  {`{"runtime":"acp","runtime_command":"a\nb"}`, "runtime_command", refusal.ValidationFailed},
		"a command of claude's":               {`{"runtime_command":"rm -rf /"}`, "runtime_command", refusal.ValidationFailed},
		"no model":                            {`{"model":null}`, "model", refusal.ValidationFailed},
		"a model without a provider":          {`{"model":"claude-sonnet-4-5"}`, "model", refusal.ValidationFailed},
		"a model of another provider":         {`{"model":"openai/gpt-5"}`, "model", refusal.ValidationFailed},
		"a model with a space":                {`{"model":"anthropic/claude sonnet"}`, "model", refusal.ValidationFailed},
		"a model that is an option":           {`{"model":"anthropic/--help"}`, "model", refusal.ValidationFailed},
		"no skills":                           {`{"skills":[],"mcp_servers":{},"exchange_access":"none","model_retries":0}`, "", ""},
		"skills that are kept":                {`{"skills":[{"skill_id":"x","version":2}]}`, "skills", refusal.NotAvailableYet},
		"skills of a repository":              {`{"skills":[{"source":"acme/skills","ref":"main","name":"x"}]}`, "skills", refusal.NotAvailableYet},
		"a skill":                             {skills(`{"name":"a-1","content":"---\r\nname: a-1\r\ndescription: what it is for\r\n---\r\ntext"}`), "", ""},
		"a skill with more of YAML":           {skills(`{"name":"a","content":"---\n# of ours\ndescription: >\n  what it\n  is for\nname: \"a\"\nallowed-tools:\n- Read\n---"}`), "", ""},
		"a skill of codex":                    {`{"runtime":"codex","model":"openai/gpt-5",` + skills(`{"name":"a","content":"---\nname: a\ndescription: d\n---"}`)[1:], "", ""},
		"a skill of acp":                      {`{"runtime":"acp","runtime_command":"x",` + skills(`{"name":"a","content":"---\nname: a\ndescription: d\n---"}`)[1:], "skills", refusal.ValidationFailed},
		"a skill that leads elsewhere":        {skills(`{"name":"../a","content":"---\nname: ../a\ndescription: d\n---"}`), "skills[0].name", refusal.ValidationFailed},
		"a skill without a name":              {skills(`{"content":"---\nname: a\ndescription: d\n---"}`), "skills[0].name", refusal.ValidationFailed},
		"a skill with a long name":            {skills(`{"name":"` + strings.Repeat("a", 65) + `"}`), "skills[0].name", refusal.ValidationFailed},
		"two skills of one name":              {skills(`{"name":"a","content":"---\nname: a\ndescription: d\n---"},{"name":"a","content":"---\nname: a\ndescription: e\n---"}`), "skills[1].name", refusal.ValidationFailed},
		"a skill of nothing":                  {skills(`{"name":"a","content":""}`), "skills[0].content", refusal.ValidationFailed},
		"a skill without front matter":        {skills(`{"name":"a","content":"# A\n---\nname: a\ndescription: d\n---"}`), "skills[0].content", refusal.ValidationFailed},
		"a skill whose front matter goes on":  {skills(`{"name":"a","content":"---\nname: a\ndescription: d\n--- \n"}`), "skills[0].content", refusal.ValidationFailed},
		"a skill that is called otherwise":    {skills(`{"name":"a","content":"---\nname: b\ndescription: d\n---"}`), "skills[0].content", refusal.ValidationFailed},
		"a skill that says nothing of itself": {skills(`{"name":"a","content":"---\nname: a\ndescription:\n---\ndescription: d"}`), "skills[0].content", refusal.ValidationFailed},
		"a skill that says too much":          {skills(`{"name":"a","content":"---\nname: a\ndescription: ` + strings.Repeat("d", 1025) + `\n---"}`), "skills[0].content", refusal.ValidationFailed},
		"a skill with NUL":                    {skills(`{"name":"a","content":"---\nname: a\ndescription: d\n---\u0000"}`), "skills[0].content", refusal.ValidationFailed},
		"a huge skill":                        {skills(`{"name":"a","content":"---\nname: a\ndescription: d\n---` + strings.Repeat("x", 64<<10) + `"}`), "skills[0].content", refusal.ValidationFailed},
		"too many skills":                     {skills(strings.Repeat(`{},`, 50) + `{}`), "skills", refusal.ValidationFailed},
		"an unknown field of a skill":         {skills(`{"name":"a","contents":""}`), "skills.contents", refusal.ValidationFailed},
		"skills that are no list":             {`{"skills":{}}`, "skills", refusal.ValidationFailed},
		"MCP servers":                         {`{"mcp_servers":{"files":{"command":"npx","args":["-y","x"]},"far":{"type":"http","url":"https://example.com","headers":{"A":"${KEY}"}}}}`, "", ""},
		"MCP servers of acp":                  {`{"runtime":"acp","runtime_command":"x","mcp_servers":{"a":{"command":"x"}}}`, "", ""},
		"no MCP servers":                      {`{"mcp_servers":null,"skills":null}`, "", ""},
		"an MCP server of nothing":            {`{"mcp_servers":{"a":{}}}`, "mcp_servers.a.command", refusal.ValidationFailed},
		"an unknown field of an MCP server":   {`{"mcp_servers":{"a":{"comand":"x"}}}`, "mcp_servers.a.comand", refusal.ValidationFailed},
		"an MCP server with a wrong type":     {`{"mcp_servers":{"a":{"command":["x"]}}}`, "mcp_servers.a.command", refusal.ValidationFailed},
		"an MCP server that is a string":      {`{"mcp_servers":{"a":"x"}}`, "mcp_servers.a", refusal.ValidationFailed},
		"MCP servers that are a list":         {`{"mcp_servers":[]}`, "mcp_servers", refusal.ValidationFailed},
		"the exchange":                        {`{"exchange_access":"read"}`, "exchange_access", refusal.NotAvailableYet},
		"retries":                             {`{"model_retries":1}`, "model_retries", refusal.NotAvailableYet},
		"too many retries":                    {`{"model_retries":6}`, "model_retries", refusal.ValidationFailed},
		"a machine always":                    {`{"machine_use":"always"}`, "", ""},
		"a machine on demand":                 {`{"machine_use":"on_demand"}`, "machine_use", refusal.NotAvailableYet},
		"an unknown use of the machine":       {`{"machine_use":"sometimes"}`, "machine_use", refusal.ValidationFailed},
		"an ephemeral machine":                {`{"sandbox_mode":"ephemeral"}`, "", ""},
		"a persistent machine":                {`{"sandbox_mode":"persistent"}`, "sandbox_mode", refusal.ValidationFailed},
		"the local provider":                  {`{"sandbox_provider":"local"}`, "", ""},
		"a provider that is not offered":      {`{"sandbox_provider":"docker"}`, "sandbox_provider", refusal.ProviderDisabled},
		"a policy that allows":                {`{"permission_policy":{"default":"auto_allow","execute":"auto_allow","Read file":"auto_allow"}}`, "", ""},
		"a policy that is cleared":            {`{"permission_policy":null}`, "", ""},
		"a policy that asks":                  {`{"permission_policy":{"execute":"ask"}}`, "permission_policy", refusal.NotAvailableYet},
		"a policy that denies":                {`{"permission_policy":{"execute":"auto_deny"}}`, "permission_policy", refusal.NotAvailableYet},
		"a policy with a time":                {`{"permission_policy":{"ask_timeout":60}}`, "permission_policy", refusal.NotAvailableYet},
		"a policy with a wrong time":          {`{"permission_policy":{"ask_timeout":0}}`, "permission_policy.ask_timeout", refusal.ValidationFailed},
		"a policy with a wrong value":         {`{"permission_policy":{"execute":"allow"}}`, "permission_policy.execute", refusal.ValidationFailed},
		"a policy with a number":              {`{"permission_policy":{"execute":1}}`, "permission_policy.execute", refusal.ValidationFailed},
		"an environment that is not there":    {`{"environment_id":"` + uuid.NewString() + `"}`, "", refusal.EnvironmentNotFound},
		"an environment that is no id":        {`{"environment_id":"nonsense"}`, "", refusal.EnvironmentNotFound},
		"an allowed one that is not there":    {`{"allowed_environment_ids":["` + uuid.NewString() + `"]}`, "", refusal.EnvironmentNotFound},
		"an allowed vault that is not there":  {`{"allowed_vault_ids":["` + uuid.NewString() + `"]}`, "", refusal.VaultNotFound},
		"a credential that is not there":      {`{"inference_credential_id":"` + uuid.NewString() + `"}`, "", refusal.CredentialNotFound},
		"nothing but its own":                 {`{"allowed_environment_ids":[],"allowed_vault_ids":[]}`, "", ""},
		"a list of ids that holds none":       {`{"allowed_vault_ids":["x"]}`, "allowed_vault_ids", refusal.ValidationFailed},
		"metadata that is a string":           {`{"metadata":"x"}`, "metadata", refusal.ValidationFailed},
		"wrong before what is not available":  {`{"skills":[{"skill_id":"x"}],"system":"\u0000"}`, "system", refusal.ValidationFailed},
		"a type that does not fit: retries":   {`{"model_retries":"1"}`, "model_retries", refusal.ValidationFailed},
		"a type that does not fit: allowed":   {`{"allowed_vault_ids":"all"}`, "allowed_vault_ids", refusal.ValidationFailed},
		"a type that does not fit: a command": {`{"runtime_command":["a"]}`, "runtime_command", refusal.ValidationFailed},
	} {
		config := claude(name)
		err := patch(c.body)(&config)
		if err == nil {
			_, err = s.Create(ctx, a.Actor, config)
		}
		if c.code == "" {
			if err != nil {
				t.Errorf("%s: %v %v", name, err, refusal.FieldErrors(err))
			}
			continue
		}
		r, ok := refusal.As(err)
		if !ok || r.Code != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
			continue
		}
		if c.field != "" && len(refusal.FieldErrors(err)[c.field]) == 0 {
			t.Errorf("%s: names %v, want %s", name, r.Fields, c.field)
		}
		if c.code == refusal.NotAvailableYet && r.Fields["field"] != c.field {
			t.Errorf("%s: field is %v", name, r.Fields["field"])
		}
	}
}

func TestWhatAnAgentNamesMustBeInItsAccountAndIsHeld(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	environments := environment.NewService(d.DB, d.Keys, nil)
	vaults := vault.NewService(d.DB, d.Keys)
	credentials := inference.NewService(d.DB, d.Keys, nil)
	in := environment.New()
	in.Name = "node"
	mine, err := environments.Create(ctx, a.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := environments.Create(ctx, b.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	box, err := vaults.Create(ctx, a.Actor, vault.Input{Name: "bot"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := credentials.Create(ctx, a.Actor, inference.Input{Name: "k", Provider: inference.Anthropic, Key: secret.New("k")})
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := credentials.Create(ctx, a.Actor, inference.Input{Name: "w", Provider: inference.OpenAI, Key: secret.New("k")})
	if err != nil {
		t.Fatal(err)
	}

	c := claude("reviewer")
	c.EnvironmentID = &theirs.ID
	_, err = s.Create(ctx, a.Actor, c)
	want(t, err, refusal.EnvironmentNotFound)
	c.EnvironmentID, c.InferenceCredentialID = &mine.ID, &wrong.ID
	_, err = s.Create(ctx, a.Actor, c)
	if fields := refusal.FieldErrors(want(t, err, refusal.ValidationFailed)); len(fields["inference_credential_id"]) == 0 {
		t.Errorf("a key of another provider: %v", fields)
	}
	c.InferenceCredentialID = &key.ID
	c.AllowedVaultIDs = []uuid.UUID{box.ID}
	made, err := s.Create(ctx, a.Actor, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(ctx, a.Actor, made.ID)
	if err != nil || *got.EnvironmentID != mine.ID || got.AllowedEnvironmentIDs != nil || !slices.Equal(got.AllowedVaultIDs, []uuid.UUID{box.ID}) {
		t.Fatalf("kept as %+v, %v", got.Config, err)
	}
	if !got.AllowsEnvironment(uuid.New()) || !got.AllowsVault(box.ID) || got.AllowsVault(uuid.New()) {
		t.Error("the allowed lists are read wrongly")
	}
	narrowed, err := s.Update(ctx, a.Actor, made.ID, 0, patch(`{"allowed_environment_ids":[]}`))
	if err != nil || narrowed.AllowedEnvironmentIDs == nil {
		t.Fatalf("an empty list became %v, %v", narrowed.AllowedEnvironmentIDs, err)
	}
	if got, err = s.Get(ctx, a.Actor, made.ID); err != nil || got.AllowedEnvironmentIDs == nil || got.AllowsEnvironment(uuid.New()) || !got.AllowsEnvironment(mine.ID) {
		t.Errorf("an empty list allows, or its own environment is not allowed (%v)", err)
	}
	if out, _ := json.Marshal(got); !strings.Contains(string(out), `"allowed_environment_ids":[]`) || strings.Contains(string(out), `"skills":null`) {
		t.Errorf("shown as %s", out)
	}
	// What the agent stands on is held.
	if r := want(t, environments.Delete(ctx, a.Actor, mine.ID), refusal.InUse); fmt.Sprint(r.Fields["used_by"]) != "[reviewer]" {
		t.Errorf("used by %v", r.Fields)
	}
	if r := want(t, credentials.Delete(ctx, a.Actor, key.ID), refusal.InUse); fmt.Sprint(r.Fields["used_by"]) != "[reviewer]" {
		t.Errorf("used by %v", r.Fields)
	}
	if e, err := environments.Get(ctx, a.Actor, mine.ID); err != nil || e.AgentCount != 1 {
		t.Errorf("the environment counts %d agents, %v", e.AgentCount, err)
	}
	// A vault that was merely allowed may go, and does not stand in the way of other changes.
	if err := vaults.Delete(ctx, a.Actor, box.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, a.Actor, made.ID, 0, patch(`{"system":"x"}`)); err != nil {
		t.Errorf("a deleted vault stands in the way: %v", err)
	}
	if _, err := s.Update(ctx, a.Actor, made.ID, 0, patch(`{"environment_id":null,"inference_credential_id":null}`)); err != nil {
		t.Fatal(err)
	}
	if err := environments.Delete(ctx, a.Actor, mine.ID); err != nil {
		t.Errorf("the environment is still held: %v", err)
	}
	if err := credentials.Delete(ctx, a.Actor, key.ID); err != nil {
		t.Errorf("the credential is still held: %v", err)
	}
}

func TestNamesOfAgentsAreUniqueInAnAccount(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(d)
	one, err := s.Create(ctx, a.Actor, claude("reviewer"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Create(ctx, a.Actor, claude("reviewer"))
	want(t, err, refusal.NameTaken)
	two, err := s.Create(ctx, a.Actor, claude("writer"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(ctx, a.Actor, two.ID, 0, patch(`{"name":"reviewer"}`))
	want(t, err, refusal.NameTaken)
	if got, err := s.Get(ctx, a.Actor, two.ID); err != nil || got.Version != 1 {
		t.Errorf("a refused change made version %d, %v", got.Version, err)
	}
	if _, err := s.Create(ctx, b.Actor, claude("reviewer")); err != nil {
		t.Errorf("another account's name stood in the way: %v", err)
	}
	list, err := s.List(ctx, a.Actor, input.Page{Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Items[0].ID != one.ID || !list.HasMore {
		t.Fatalf("lists %+v, %v", list, err)
	}
	if list, err = s.List(ctx, a.Actor, input.Page{Limit: 1, Cursor: list.Next}); err != nil || list.Items[0].ID != two.ID || list.HasMore {
		t.Fatalf("and then %+v, %v", list, err)
	}
}

func TestModelsFitTheirRuntimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		runtime, model string
		fits           bool
	}{
		{"claude", "anthropic/claude-opus-4-1", true}, {"claude", "openai/gpt-5", false}, {"codex", "openai/gpt-5", true}, {"codex", "google/gemini-2.5-pro", false},
		{"gemini", "google/gemini-2.5-pro", true}, {"opencode", "openai/gpt-5", true}, {"opencode", "openai_compatible/x", false},
		{"acp", "openai_compatible/x", true}, {"native", "google/x", true}, {"nothing", "anthropic/x", false},
		{"claude", "", false}, {"claude", "anthropic/", false}, {"claude", "/x", false}, {"claude", "Anthropic/x", false}, {"claude", "anthropic/\x00", false},
		{"claude", "anthropic/" + strings.Repeat("x", 300), false},
	} {
		if problem := agent.CheckModel(c.runtime, c.model); (problem == "") != c.fits {
			t.Errorf("%s with %q: %q", c.runtime, c.model, problem)
		}
	}
}
