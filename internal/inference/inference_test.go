package inference_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/identity/identitytest"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/netguard"
	"managoat/internal/refusal"
	"managoat/internal/secret"
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

func service(t *testing.T, d *identitytest.Instance, allow string) *inference.Service {
	t.Helper()
	allowances, err := netguard.ParseAllowances(allow)
	if err != nil {
		t.Fatal(err)
	}
	return inference.NewService(d.DB, d.Keys, allowances)
}

func key(name, provider, value string) inference.Input {
	return inference.Input{Name: name, Provider: provider, Key: secret.New(value)}
}

func patch(body string) func(*inference.Input) error {
	return func(in *inference.Input) error { return input.Decode([]byte(body), in) }
}

func TestACredentialIsKeptAndItsKeyNeverShown(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(t, d, "")
	c, err := s.Create(ctx, a.Actor, inference.Input{Name: "mine", Provider: inference.Anthropic, Key: secret.New(" sk-ant-s3cr3t\n")})
	if err != nil || c.Kind != inference.APIKey || !c.Default || c.Revision != 1 {
		t.Fatalf("made %+v, %v", c, err)
	}
	got, err := s.Get(ctx, a.Actor, c.ID)
	if err != nil || got != c {
		t.Errorf("kept as %+v, %v", got, err)
	}
	list, err := s.List(ctx, a.Actor, input.Page{})
	if out, _ := json.Marshal(list); err != nil || len(list.Items) != 1 || strings.Contains(string(out), "s3cr3t") {
		t.Errorf("lists %s, %v", out, err)
	}
	bound, err := s.Resolve(ctx, a.TenantID, nil, nil, inference.Anthropic)
	if err != nil || bound.Key.Reveal() != "sk-ant-s3cr3t" || bound.CredentialID != c.ID || bound.Revision != 1 || bound.Source != "own" {
		t.Fatalf("bound %+v, %v", bound, err)
	}
	var sealed []byte
	if err := d.Owner(t).QueryRow(ctx, "select sealed from inference_credentials").Scan(&sealed); err != nil || strings.Contains(string(sealed), "s3cr3t") {
		t.Errorf("stored as %q, %v", sealed, err)
	}
	// Another account.
	_, err = s.Get(ctx, b.Actor, c.ID)
	want(t, err, refusal.NotFound)
	_, err = s.Update(ctx, b.Actor, c.ID, patch(`{"key":"evil"}`))
	want(t, err, refusal.NotFound)
	want(t, s.Delete(ctx, b.Actor, c.ID), refusal.NotFound)
	_, err = s.Resolve(ctx, b.TenantID, &c.ID, nil, inference.Anthropic)
	want(t, err, refusal.CredentialNotFound)
	_, err = s.Open(ctx, d.Tenant(b.TenantID), c.ID, 1)
	want(t, err, refusal.InferenceSourceChanged)
}

func TestWhatCannotBeACredentialIsRefusedByField(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(t, d, "model=127.0.0.1:9999, model=llm.internal:*, webhook=hooks.internal:80")
	for name, c := range map[string]struct {
		in    inference.Input
		field string // "": it is taken
	}{
		"no name":                       {key("", "openai", "k"), "name"},
		"an unknown provider":           {key("x", "anthropc", "k"), "provider"},
		"an unknown kind":               {inference.Input{Name: "x", Provider: "openai", Kind: "password", Key: secret.New("k")}, "kind"},
		"a subscription of another":     {inference.Input{Name: "x", Provider: "openai", Kind: "oauth_token", Key: secret.New("k")}, "kind"},
		"no key":                        {key("x", "openai", "  "), "key"},
		"a key of two lines":            {key("x", "openai", "a\r\nX-Evil: b"), "key"},
		"a key with a space":            {key("x", "openai", "a b"), "key"},
		"a key with NUL":                {key("x", "openai", "a\x00b"), "key"},
		"a key with umlauts":            {key("x", "openai", "äöü"), "key"},
		"a huge key":                    {key("x", "openai", strings.Repeat("k", 9000)), "key"},
		"a compatible one without URL":  {key("x", "openai_compatible", "k"), "base_url"},
		"a URL that is none":            {withURL("::"), "base_url"},
		"a URL of a file":               {withURL("file:///etc/passwd"), "base_url"},
		"a URL with a password":         {withURL("https://u:p@models.example.com"), "base_url"},
		"a URL with a query":            {withURL("https://models.example.com/v1?key=x"), "base_url"},
		"a URL with a fragment":         {withURL("https://models.example.com/v1#x"), "base_url"},
		"a URL without a host":          {withURL("https:///v1"), "base_url"},
		"a URL with an odd address":     {withURL("https://0x7f000001/v1"), "base_url"},
		"a URL with an impossible port": {withURL("https://models.example.com:0/v1"), "base_url"},
		"plain http":                    {withURL("http://models.example.com/v1"), "base_url"},
		"plain http, other purpose":     {withURL("http://hooks.internal/v1"), "base_url"},
		"plain http, other port":        {withURL("http://127.0.0.1:9998"), "base_url"},
		"plain http that is allowed":    {withURL("http://127.0.0.1:9999/v1/"), ""},
		"any port that is allowed":      {withURL("http://LLM.internal:8080"), ""},
		"a subscription":                {inference.Input{Name: "subscription", Provider: "anthropic", Kind: "oauth_token", Key: secret.New("sk-ant-oat01-x")}, ""},
		"a compatible one":              {withURL("https://models.example.com:8443/v1"), ""},
	} {
		c.in.Name = strings.TrimSuffix(c.in.Name+" "+name, " no name")
		made, err := s.Create(ctx, a.Actor, c.in)
		if c.field == "" {
			if err != nil || strings.HasSuffix(made.BaseURL, "/") {
				t.Errorf("%s: %+v, %v", name, made, err)
			}
			continue
		}
		if fields := refusal.FieldErrors(err); !refusal.Is(err, refusal.ValidationFailed) || len(fields[c.field]) == 0 {
			t.Errorf("%s: %v, %v", name, err, fields)
		}
	}
}

func withURL(url string) inference.Input {
	return inference.Input{Name: "x", Provider: inference.OpenAICompatible, BaseURL: url, Key: secret.New("k")}
}

func TestAProviderHasExactlyOneDefaultWhateverHappens(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(t, d, "")
	defaults := func(wantName string) {
		t.Helper()
		list, err := s.List(ctx, a.Actor, input.Page{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range list.Items {
			if c.Provider == inference.OpenAI && c.Default {
				names = append(names, c.Name)
			}
		}
		if fmt.Sprint(names) != "["+wantName+"]" {
			t.Fatalf("defaults are %v, want %s", names, wantName)
		}
	}
	// Ten at once: one is the first.
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if _, err := s.Create(ctx, a.Actor, key(fmt.Sprint("k", i), inference.OpenAI, "x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := s.List(ctx, a.Actor, input.Page{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range list.Items {
		if c.Default {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d defaults of %d", n, len(list.Items))
	}
	first, err := s.Create(ctx, a.Actor, inference.Input{Name: "first", Provider: inference.OpenAI, Key: secret.New("x"), Default: true})
	if err != nil {
		t.Fatal(err)
	}
	defaults("first")
	second, err := s.Create(ctx, a.Actor, key("second", inference.OpenAI, "x"))
	if err != nil || second.Default {
		t.Fatalf("%+v, %v", second, err)
	}
	other, err := s.Create(ctx, a.Actor, key("other", inference.Google, "x"))
	if err != nil || !other.Default {
		t.Fatalf("the first of another provider: %+v, %v", other, err)
	}
	_, err = s.Update(ctx, a.Actor, first.ID, patch(`{"default":false}`))
	want(t, err, refusal.CannotUndefault)
	want(t, s.Delete(ctx, a.Actor, first.ID), refusal.CredentialIsDefault)
	if _, err := s.Update(ctx, a.Actor, second.ID, patch(`{"default":true}`)); err != nil {
		t.Fatal(err)
	}
	defaults("second")
	if err := s.Delete(ctx, a.Actor, first.ID); err != nil {
		t.Fatal(err)
	}
	defaults("second")
	if err := s.Delete(ctx, a.Actor, other.ID); err != nil {
		t.Errorf("the only one of its provider cannot go: %v", err)
	}
}

func TestABindingOpensUntilItsSourceChanges(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(t, d, "")
	c, err := s.Create(ctx, a.Actor, key("mine", inference.OpenAI, "one"))
	if err != nil {
		t.Fatal(err)
	}
	revision := int32(c.Revision)
	for _, edit := range []struct {
		body    string
		changes bool
	}{
		{`{"name":"renamed"}`, false}, {`{}`, false}, {`{"key":""}`, false}, {`{"default":true}`, false},
		{`{"key":"two"}`, true}, {`{"base_url":"https://proxy.example.com/v1"}`, true}, {`{"base_url":"https://proxy.example.com/v1/"}`, false}, {`{"base_url":""}`, true},
	} {
		if _, err := s.Open(ctx, d.Tenant(a.TenantID), c.ID, revision); err != nil {
			t.Fatal(err)
		}
		got, err := s.Update(ctx, a.Actor, c.ID, patch(edit.body))
		if err != nil {
			t.Fatal(edit.body, err)
		}
		if _, err := s.Open(ctx, d.Tenant(a.TenantID), c.ID, revision); edit.changes != refusal.Is(err, refusal.InferenceSourceChanged) {
			t.Errorf("%s: the binding of before answers %v", edit.body, err)
		}
		revision = int32(got.Revision)
	}
	_, err = s.Update(ctx, a.Actor, c.ID, patch(`{"provider":"google"}`))
	if fields := refusal.FieldErrors(want(t, err, refusal.ValidationFailed)); len(fields["provider"]) == 0 {
		t.Errorf("a new provider: %v", fields)
	}
	if bound, err := s.Open(ctx, d.Tenant(a.TenantID), c.ID, revision); err != nil || bound.Key.Reveal() != "two" {
		t.Errorf("an empty key replaced it: %v", err)
	}
	if err := s.Delete(ctx, a.Actor, c.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.Open(ctx, d.Tenant(a.TenantID), c.ID, revision)
	want(t, err, refusal.InferenceSourceChanged)
}

func TestTheLaunchsCredentialGoesBeforeTheAgentsAndTheDefault(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := service(t, d, "")
	create := func(name, provider string) uuid.UUID {
		t.Helper()
		c, err := s.Create(ctx, a.Actor, key(name, provider, "key-of-"+name))
		if err != nil {
			t.Fatal(err)
		}
		return c.ID
	}
	_, err := s.Resolve(ctx, a.TenantID, nil, nil, inference.Anthropic)
	if r := want(t, err, refusal.CredentialMissing); r.Fields["provider"] != inference.Anthropic {
		t.Errorf("names %v", r.Fields)
	}
	create("default", inference.Anthropic)
	agents, launch, foreign := create("agents", inference.Anthropic), create("launch", inference.Anthropic), create("foreign", inference.OpenAI)
	for name, c := range map[string]struct{ launch, agent *uuid.UUID }{
		"default": {}, "agents": {agent: &agents}, "launch": {launch: &launch, agent: &agents},
	} {
		if bound, err := s.Resolve(ctx, a.TenantID, c.launch, c.agent, inference.Anthropic); err != nil || bound.Key.Reveal() != "key-of-"+name {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = s.Resolve(ctx, a.TenantID, &foreign, nil, inference.Anthropic)
	want(t, err, refusal.ValidationFailed)
	if bound, err := s.Resolve(ctx, a.TenantID, &foreign, nil, ""); err != nil || bound.Provider != inference.OpenAI {
		t.Errorf("a command that names no model: %v", err)
	}
	none := uuid.New()
	_, err = s.Resolve(ctx, a.TenantID, &none, nil, inference.Anthropic)
	want(t, err, refusal.CredentialNotFound)
}

func TestPuttingAProvidersKeyMakesOrChangesItsDefault(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := service(t, d, "")
	one, err := s.PutDefault(ctx, a.Actor, inference.Anthropic, inference.APIKey, secret.New("one"))
	if err != nil || !one.Default || one.Revision != 1 {
		t.Fatalf("made %+v, %v", one, err)
	}
	two, err := s.PutDefault(ctx, a.Actor, inference.Anthropic, inference.OAuthToken, secret.New("two"))
	if err != nil || two.ID != one.ID || two.Kind != inference.OAuthToken || two.Revision != 2 {
		t.Fatalf("changed to %+v, %v", two, err)
	}
	_, err = s.PutDefault(ctx, a.Actor, inference.Google, inference.OAuthToken, secret.New("x"))
	want(t, err, refusal.ValidationFailed)
	_, err = s.PutDefault(ctx, a.Actor, "nobody", inference.APIKey, secret.New("x"))
	want(t, err, refusal.ValidationFailed)
	want(t, s.DeleteDefault(ctx, b.Actor, inference.Anthropic), refusal.NotFound)
	if err := s.DeleteDefault(ctx, a.Actor, inference.Anthropic); err != nil {
		t.Fatal(err)
	}
	want(t, s.DeleteDefault(ctx, a.Actor, inference.Anthropic), refusal.NotFound)
}
