package gateway

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/broker/journal"
	"managoat/internal/netguard"
	"managoat/internal/secret"
)

const token = "mgw_token-of-the-conversation"

// world is a gateway between a client and one upstream, on real sockets.
type world struct {
	t        *testing.T
	url      string
	grant    Grant
	upstream *httptest.Server

	mu       sync.Mutex
	requests []journal.Request
	usage    []journal.Usage
	recorded chan struct{}
}

// newWorld serves answer behind a gateway under a credential; change may alter the grant.
func newWorld(t *testing.T, cred Credential, answer http.HandlerFunc, change func(*Grant)) *world {
	t.Helper()
	w := &world{t: t, upstream: httptest.NewServer(answer), recorded: make(chan struct{}, 100)}
	t.Cleanup(w.upstream.Close)
	cred.CredentialID, cred.Key = uuid.New(), secret.New(testKey)
	if cred.BaseURL == "" {
		cred.BaseURL = w.upstream.URL
		if cred.Provider == OpenAI || cred.Provider == OpenAICompatible {
			cred.BaseURL += "/v1"
		}
	}
	if cred.Source == "" {
		cred.Source = Own
	}
	w.grant = Grant{Token: uuid.New(), Conversation: uuid.New(), Credential: &cred, Live: t.Context()}
	if change != nil {
		change(&w.grant)
	}
	allow, err := netguard.ParseAllowances("model=127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	transport, err := netguard.New(netguard.Options{AllowPrivate: allow, Resolve: map[string][]netip.Addr{"private.example": {netip.MustParseAddr("10.0.0.1")}}}).Transport(netguard.Model)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.CloseIdleConnections)
	gateway := httptest.NewServer(New(Options{
		Origin: journal.Origin{TenantID: uuid.New(), WorkspaceID: uuid.New(), MachineID: uuid.New()},
		Name:   "model.managoat.internal",
		Authorize: func(plaintext string) (Grant, bool) {
			return w.grant, plaintext == token
		},
		Transport: func() http.RoundTripper { return transport },
		Request: func(r journal.Request) {
			w.mu.Lock()
			w.requests = append(w.requests, r)
			w.mu.Unlock()
			w.recorded <- struct{}{}
		},
		Usage: func(u journal.Usage) {
			w.mu.Lock()
			w.usage = append(w.usage, u)
			w.mu.Unlock()
		},
	}))
	t.Cleanup(gateway.Close)
	w.url = gateway.URL
	return w
}

func (w *world) do(method, path, body string, header map[string]string) (*http.Response, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(text)
}

// row waits for the row of the request just made.
func (w *world) row() journal.Request {
	w.t.Helper()
	select {
	case <-w.recorded:
	case <-time.After(10 * time.Second):
		w.t.Fatal("no row was recorded")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests[len(w.requests)-1]
}

func (w *world) onlyUsage() journal.Usage {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.usage) != 1 {
		w.t.Fatalf("%d usage rows", len(w.usage))
	}
	return w.usage[0]
}

func (w *world) noUsage() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.usage) != 0 {
		w.t.Errorf("usage of a call that went nowhere: %+v", w.usage)
	}
}

func unreached(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the provider was asked: %s %s", r.Method, r.URL)
	}
}

func TestTheRealKeyGoesOutAndTheTokenDoesNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cred       Credential
		path       string
		shown      map[string]string
		wantPath   string
		wantHeader map[string]string
	}{
		"anthropic, x-api-key": {Credential{Provider: Anthropic, Kind: APIKey}, "/v1/messages?beta=true", map[string]string{"X-Api-Key": token, "Anthropic-Version": "2023-06-01"},
			"/v1/messages?beta=true", map[string]string{"X-Api-Key": testKey, "Authorization": "", "Anthropic-Beta": "", "Anthropic-Version": "2023-06-01"}},
		"anthropic, bearer": {Credential{Provider: Anthropic, Kind: APIKey}, "/v1/messages", map[string]string{"Authorization": "Bearer " + token},
			"/v1/messages", map[string]string{"X-Api-Key": testKey, "Authorization": ""}},
		"anthropic subscription": {Credential{Provider: Anthropic, Kind: OAuthToken}, "/v1/messages", map[string]string{"X-Api-Key": token, "Anthropic-Beta": "a-1,b-2"},
			"/v1/messages", map[string]string{"X-Api-Key": "", "Authorization": "Bearer " + testKey, "Anthropic-Beta": "a-1,b-2,oauth-2025-04-20"}},
		"anthropic subscription, said already": {Credential{Provider: Anthropic, Kind: OAuthToken}, "/v1/messages", map[string]string{"Authorization": "bearer " + token, "Anthropic-Beta": "oauth-2025-04-20"},
			"/v1/messages", map[string]string{"Authorization": "Bearer " + testKey, "Anthropic-Beta": "oauth-2025-04-20"}},
		"openai": {Credential{Provider: OpenAI, Kind: APIKey}, "/v1/responses", map[string]string{"Authorization": "Bearer " + token, "Openai-Organization": "o"},
			"/v1/responses", map[string]string{"Authorization": "Bearer " + testKey, "Openai-Organization": "o"}},
		"compatible": {Credential{Provider: OpenAICompatible, Kind: APIKey}, "/v1/chat/completions", map[string]string{"Authorization": "Bearer " + token},
			"/v1/chat/completions", map[string]string{"Authorization": "Bearer " + testKey}},
		"google, header": {Credential{Provider: Google, Kind: APIKey}, "/v1beta/models/gemini-a:streamGenerateContent?alt=sse", map[string]string{"X-Goog-Api-Key": token},
			"/v1beta/models/gemini-a:streamGenerateContent?alt=sse", map[string]string{"X-Goog-Api-Key": testKey}},
		"google, query": {Credential{Provider: Google, Kind: APIKey}, "/v1beta/models/gemini-a:generateContent?key=" + token + "&also=" + token + "&alt=json", nil,
			"/v1beta/models/gemini-a:generateContent?alt=json", map[string]string{"X-Goog-Api-Key": testKey}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan *http.Request, 1)
			w := newWorld(t, c.cred, func(w http.ResponseWriter, r *http.Request) {
				got <- r
				io.WriteString(w, `{}`)
			}, nil)
			header := map[string]string{"Cookie": "c=1", "X-Odd": "has " + token + " in it", "Proxy-Authorization": "Basic x", "X-Forwarded-For": "10.0.0.1", "Accept-Encoding": "br, gzip", "User-Agent": "claude-cli/2"}
			for k, v := range c.shown {
				header[k] = v
			}
			if resp, body := w.do(http.MethodPost, c.path, `{"model":"m"}`, header); resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			r := <-got
			if r.URL.String() != c.wantPath || "http://"+r.Host != w.upstream.URL {
				t.Errorf("the provider saw %s at %s", r.URL, r.Host)
			}
			for k, want := range c.wantHeader {
				if r.Header.Get(k) != want {
					t.Errorf("%s is %q, want %q", k, r.Header.Get(k), want)
				}
			}
			for k, v := range map[string]string{"Cookie": "", "X-Odd": "", "Proxy-Authorization": "", "X-Forwarded-For": "", "Accept-Encoding": "identity", "User-Agent": "claude-cli/2"} {
				if r.Header.Get(k) != v {
					t.Errorf("%s is %q, want %q", k, r.Header.Get(k), v)
				}
			}
			if all := fmt.Sprint(r.Header, r.URL); strings.Contains(all, token) {
				t.Errorf("the token went out: %s", all)
			}
			row := w.row()
			if row.Decision != journal.Injected || row.Host != "127.0.0.1" || row.Status != 200 || len(row.CredentialKeys) != 1 ||
				row.CredentialKeys[0] != w.grant.Credential.CredentialID.String() || row.ConversationID == nil || *row.ConversationID != w.grant.Conversation {
				t.Errorf("row %+v", row)
			}
		})
	}
}

func TestAnUnknownTokenIsToldInTheProvidersOwnWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Credential{Provider: Anthropic}, unreached(t), nil)
	for _, c := range []struct {
		path   string
		header map[string]string
		want   string // where the text stands
	}{
		{"/v1/messages", map[string]string{"X-Api-Key": "sk-ant-wrong"}, `"type":"authentication_error"`},
		{"/v1/messages", nil, `"type":"authentication_error"`},
		{"/v1/responses", map[string]string{"Authorization": "Bearer wrong"}, `"code":"gateway_token_unknown"`},
		{"/v1beta/models/m:generateContent?key=wrong", nil, `"status":"UNAUTHENTICATED"`},
	} {
		resp, body := w.do(http.MethodPost, c.path, `{"model":"m"}`, c.header)
		if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body, c.want) || !strings.Contains(body, "model gateway") || resp.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %d %s", c.path, resp.StatusCode, body)
		}
		if strings.Contains(body, "wrong") {
			t.Errorf("the answer quotes the key: %s", body)
		}
		if row := w.row(); row.Decision != journal.Denied || row.Rule != journal.RuleUnknownToken || row.ConversationID != nil {
			t.Errorf("row %+v", row)
		}
	}
	w.noUsage()
}

func TestOnlyListedCallsPass(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	reached := map[string]bool{}
	for _, c := range []struct {
		provider, source, method, path string
		status                         int
		code                           string
	}{
		{Anthropic, Own, "POST", "/v1/messages", 200, ""},
		{Anthropic, Own, "POST", "/v1/messages/count_tokens", 200, ""},
		{Anthropic, Own, "GET", "/v1/models", 200, ""},
		{Anthropic, Own, "GET", "/v1/models/claude-a", 200, ""},
		{Anthropic, Own, "POST", "/v1/files", 403, "model_call_not_allowed"},
		{Anthropic, Own, "POST", "/v1/messages/batches", 403, "model_call_not_allowed"},
		{Anthropic, Own, "DELETE", "/v1/messages", 403, "model_call_not_allowed"},
		{Anthropic, Own, "POST", "/v1/messages/", 403, "model_call_not_allowed"},
		{Anthropic, Own, "POST", "/v1//messages", 403, "model_call_not_allowed"},
		{Anthropic, Own, "POST", "/v1/x/../messages", 403, "model_call_not_allowed"},
		{Anthropic, Own, "GET", "/v1/models/..%2Ffiles", 403, "model_call_not_allowed"},
		{Anthropic, Own, "GET", "/v1/models/..", 403, "model_call_not_allowed"},
		{Anthropic, Own, "POST", "/v1/responses", 403, "model_call_not_allowed"},
		{Anthropic, Pool, "POST", "/v1/messages", 200, ""},
		{Anthropic, Pool, "POST", "/v1/messages/count_tokens", 200, ""},
		{Anthropic, Pool, "GET", "/v1/models", 403, "pool_call_not_allowed"},
		{Anthropic, Pool, "GET", "/v1/files", 403, "pool_call_not_allowed"},
		{Anthropic, Pool, "POST", "/v1/messages/batches", 403, "pool_call_not_allowed"},
		{OpenAI, Pool, "POST", "/v1/responses", 200, ""},
		{OpenAI, Pool, "POST", "/v1/chat/completions", 200, ""},
		{OpenAI, Pool, "GET", "/v1/responses/resp_1", 403, "pool_call_not_allowed"},
		{OpenAI, Pool, "POST", "/v1/files", 403, "pool_call_not_allowed"},
		{OpenAI, Own, "GET", "/v1/responses", 403, "model_call_not_allowed"}, // codex tries a websocket first: it must hear no at once
		{OpenAICompatible, Own, "GET", "/v1/models", 200, ""},
		{Google, Pool, "POST", "/v1beta/models/gemini-a:streamGenerateContent", 200, ""},
		{Google, Pool, "POST", "/v1beta/cachedContents", 403, "pool_call_not_allowed"},
		{Google, Pool, "POST", "/v1beta/models/a/b:generateContent", 403, "pool_call_not_allowed"},
		{Google, Own, "POST", "/upload/v1beta/files", 403, "model_call_not_allowed"},
		// asked by runtimes besides model calls, answered here
		{Anthropic, Pool, "HEAD", "/", 200, ""},
		{Anthropic, Own, "GET", "/api/claude_code/policy_limits", 404, "not_a_model_call"},
		{Anthropic, Own, "POST", "/api/event_logging/batch", 404, "not_a_model_call"},
	} {
		t.Run(c.provider+" "+c.source+" "+c.method+" "+c.path, func(t *testing.T) {
			t.Parallel()
			asked := false
			w := newWorld(t, Credential{Provider: c.provider, Source: c.source}, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				asked, reached[r.URL.Path] = true, true
				mu.Unlock()
				io.WriteString(w, "{}")
			}, nil)
			resp, body := w.do(c.method, c.path, `{"model":"m"}`, map[string]string{"Authorization": "Bearer " + token, "X-Api-Key": token})
			local := c.path == "/"
			mu.Lock()
			defer mu.Unlock()
			if resp.StatusCode != c.status || !strings.Contains(body, c.code) || asked != (c.status == 200 && !local) {
				t.Errorf("%d %s, asked %v; want %d %s", resp.StatusCode, body, asked, c.status, c.code)
			}
		})
	}
}

func TestABodyIsCheckedBeforeItGoesOut(t *testing.T) {
	t.Parallel()
	limitModels := func(g *Grant) { g.AllowedModels = []string{"cheap", "gemini-cheap"} }
	for name, c := range map[string]struct {
		cred   Credential
		path   string
		body   string
		change func(*Grant)
		status int
		code   string
	}{
		"an open model":                      {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{"model":"cheap"}`, limitModels, 200, ""},
		"another model":                      {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{"model":"dear"}`, limitModels, 403, "model_not_allowed"},
		"a model in another case":            {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{"model":"dear","Model":"cheap"}`, limitModels, 403, "model_not_allowed"},
		"two models":                         {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{"model":"dear","model":"cheap"}`, limitModels, 400, "invalid_body"},
		"no model":                           {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{}`, limitModels, 403, "model_not_allowed"},
		"a model that is no text":            {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{"model":["cheap"]}`, limitModels, 403, "model_not_allowed"},
		"the path's model counts for Google": {Credential{Provider: Google, Source: Pool}, "/v1beta/models/gemini-dear:generateContent", `{"model":"gemini-cheap"}`, limitModels, 403, "model_not_allowed"},
		"an open model of Google":            {Credential{Provider: Google, Source: Pool}, "/v1beta/models/gemini-cheap:generateContent", `{}`, limitModels, 200, ""},
		"not JSON":                           {Credential{Provider: OpenAI}, "/v1/responses", `hello`, nil, 400, "invalid_body"},
		"nothing":                            {Credential{Provider: OpenAI}, "/v1/responses", ``, nil, 400, "invalid_body"},
		"someone's stored response":          {Credential{Provider: OpenAI, Source: Pool}, "/v1/responses", `{"model":"m","previous_response_id":"resp_1"}`, nil, 403, "pool_call_not_allowed"},
		"no stored response":                 {Credential{Provider: OpenAI, Source: Pool}, "/v1/responses", `{"model":"m","previous_response_id":null,"background":false}`, nil, 200, ""},
		"one's own stored response":          {Credential{Provider: OpenAI, Source: Own}, "/v1/responses", `{"model":"m","previous_response_id":"resp_1"}`, nil, 200, ""},
		"calls from the provider's side":     {Credential{Provider: Anthropic, Source: Pool}, "/v1/messages", `{"model":"m","mcp_servers":[{}]}`, nil, 403, "pool_call_not_allowed"},
		"too large":                          {Credential{Provider: OpenAI}, "/v1/responses", `{"x":"` + strings.Repeat("x", MaxBody) + `"}`, nil, 413, "request_too_large"},
		"no credential":                      {Credential{Provider: OpenAI}, "/v1/responses", `{}`, func(g *Grant) { g.Credential = nil }, 403, "no_model_credential"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{}, 1)
			w := newWorld(t, c.cred, func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				io.WriteString(w, "{}")
			}, c.change)
			resp, body := w.do("POST", c.path, c.body, map[string]string{"Authorization": "Bearer " + token})
			if resp.StatusCode != c.status || !strings.Contains(body, c.code) || len(asked) == 1 != (c.status == 200) {
				t.Errorf("%d %s, asked %d", resp.StatusCode, body, len(asked))
			}
		})
	}
}

func TestABodyOfUnknownLengthIsBoundedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Credential{Provider: OpenAI}, unreached(t), nil)
	body := io.MultiReader(strings.NewReader(`{"x":"`), io.LimitReader(endless{}, MaxBody), strings.NewReader(`"}`))
	req, err := http.NewRequest(http.MethodPost, w.url+"/v1/responses", struct{ io.Reader }{body})
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return // the connection was closed before all was sent, which is as good a no
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d", resp.StatusCode)
	}
}

// A body without a length counts with the most it could be while it comes, and with what it was while its answer streams:
// two streams must not keep a machine's other conversations from their models.
func TestBodiesOfUnknownLengthKeepNoMemoryFromOtherCallsWhileTheirAnswersStream(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	w := newWorld(t, Credential{Provider: OpenAI}, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-gate
	}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 5 { // of which two would fill what a machine may hold
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/responses", struct{ io.Reader }{strings.NewReader(`{"model":"m","stream":true}`)})
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	close(gate)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestBaseURLsOfEveryKindReachTheCall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ provider, base, path, want string }{
		{Anthropic, "", "/v1/messages", "/v1/messages"},
		{Anthropic, "/", "/v1/messages", "/v1/messages"},
		{Anthropic, "/v1", "/v1/messages", "/v1/messages"},
		{Anthropic, "/proxy/anthropic", "/v1/messages", "/proxy/anthropic/v1/messages"},
		{OpenAI, "/v1", "/v1/responses", "/v1/responses"},
		{OpenAICompatible, "/v1/", "/v1/chat/completions", "/v1/chat/completions"},
		{OpenAICompatible, "/v1beta/openai", "/v1/chat/completions", "/v1beta/openai/chat/completions"},
		{OpenAICompatible, "", "/v1/chat/completions", "/chat/completions"},
		{Google, "", "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"},
		{Google, "/v1beta", "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"},
	} {
		if got := upstreamPath(c.provider, c.base, c.path); got != c.want {
			t.Errorf("%s %q + %s = %s, want %s", c.provider, c.base, c.path, got, c.want)
		}
	}
}

func TestAStreamPassesAsItComesAndIsMetered(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	w := newWorld(t, Credential{Provider: Anthropic}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-answered\",\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n")
		http.NewResponseController(w).Flush()
		<-gate
		io.WriteString(w, "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\n")
	}, nil)
	req, err := http.NewRequest(http.MethodPost, w.url+"/v1/messages", strings.NewReader(`{"model":"claude-asked"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	// The first event is here while the provider still waits for us.
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "message_start") {
		t.Fatalf("%q %v", line, err)
	}
	close(gate)
	if rest, err := io.ReadAll(r); err != nil || !strings.Contains(string(rest), "message_delta") {
		t.Fatalf("%q %v", rest, err)
	}
	w.row()
	u := w.onlyUsage()
	if u.ModelRequested != "claude-asked" || u.ModelAnswered != "claude-answered" || u.InputTokens != 10 || u.OutputTokens != 5 || u.Completeness != journal.Complete ||
		u.Call != "messages" || u.Source != Own || u.Status != 200 || u.FirstByteMS <= 0 || u.LatencyMS < u.FirstByteMS || u.CredentialID != w.grant.Credential.CredentialID || u.Error != "" {
		t.Errorf("usage %+v", u)
	}
}

func TestAGzippedAnswerIsReadAndScrubbedAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Credential{Provider: OpenAI}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		zw := gzip.NewWriter(w)
		io.WriteString(zw, `{"model":"m","usage":{"input_tokens":3,"output_tokens":4},"echo":"`+r.Header.Get("Authorization")+`"}`)
		zw.Close()
	}, nil)
	resp, body := w.do("POST", "/v1/responses", `{"model":"m"}`, map[string]string{"Authorization": "Bearer " + token, "Accept-Encoding": "gzip"})
	if resp.Header.Get("Content-Encoding") != "" || !json.Valid([]byte(body)) || strings.Contains(body, testKey) || !strings.Contains(body, "[REDACTED]") {
		t.Errorf("%v %s", resp.Header, body)
	}
	w.row()
	if u := w.onlyUsage(); u.InputTokens != 3 || u.OutputTokens != 4 || u.Completeness != journal.Complete {
		t.Errorf("usage %+v", u)
	}
}

func TestAnEncodingThatCannotBeScrubbedDoesNotPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Credential{Provider: OpenAI}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		io.WriteString(w, "opaque")
	}, nil)
	resp, body := w.do("POST", "/v1/responses", `{"model":"m"}`, map[string]string{"Authorization": "Bearer " + token})
	if resp.StatusCode != http.StatusBadGateway || strings.Contains(body, "opaque") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestAKeyThatTheProviderEchoesNeverReachesTheMachine(t *testing.T) {
	t.Parallel()
	for _, cred := range []Credential{{Provider: Anthropic}, {Provider: Anthropic, Kind: OAuthToken}, {Provider: OpenAI}, {Provider: Google}} {
		w := newWorld(t, cred, func(w http.ResponseWriter, r *http.Request) {
			var all strings.Builder
			r.Header.Write(&all)
			w.Header().Set("X-Echo", strings.ReplaceAll(all.String(), "\r\n", "|"))
			w.Header().Set("Location", "https://elsewhere.example/?key="+testKey)
			w.Header().Set("Set-Cookie", "k="+testKey)
			w.WriteHeader(http.StatusUnauthorized)
			// Cut in the middle of the key, the halves apart in time.
			text := all.String()
			cut := strings.Index(text, testKey) + len(testKey)/2
			io.WriteString(w, text[:cut])
			http.NewResponseController(w).Flush()
			io.WriteString(w, text[cut:])
		}, nil)
		path := map[string]string{Anthropic: "/v1/messages", OpenAI: "/v1/responses", Google: "/v1beta/models/m:generateContent"}[cred.Provider]
		resp, body := w.do("POST", path, `{"model":"m"}`, map[string]string{"Authorization": "Bearer " + token})
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%d", resp.StatusCode)
		}
		all := fmt.Sprint(resp.Header) + body
		if strings.Contains(all, testKey) || strings.Contains(all, testKey[:20]) || !strings.Contains(body, "[REDACTED]") || !strings.Contains(resp.Header.Get("X-Echo"), "[REDACTED]") {
			t.Errorf("%s %s: the key reached the machine: %s", cred.Provider, cred.Kind, all)
		}
		w.row()
		if u := w.onlyUsage(); u.Status != 401 || u.Error != "http_401" || u.Completeness != journal.None {
			t.Errorf("usage %+v", u)
		}
	}
}

func TestAnAnswerThatBreaksOffIsSeenToBreakOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Credential{Provider: Anthropic}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, nil)
	req, err := http.NewRequest(http.MethodPost, w.url+"/v1/messages", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("half an answer looks whole")
	}
	if row := w.row(); row.Error != "answer_broke_off" {
		t.Errorf("row %+v", row)
	}
	if u := w.onlyUsage(); u.Error != "answer_broke_off" {
		t.Errorf("usage %+v", u)
	}
}

func TestAConversationThatEndsTakesItsCallAlong(t *testing.T) {
	t.Parallel()
	live, end := context.WithCancel(t.Context())
	left := make(chan struct{})
	w := newWorld(t, Credential{Provider: Anthropic}, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}, func(g *Grant) { g.Live = live })
	req, err := http.NewRequest(http.MethodPost, w.url+"/v1/messages", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	end()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Fatal("the provider still generates for nobody")
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the answer looks whole")
	}
}

func TestAProviderThatCannotBeReached(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		base, code string
		status     int
		decision   journal.Decision
		usage      bool
	}{
		"nobody listens":    {"http://127.0.0.1:1", "upstream_unreachable", 502, journal.Failed, true},
		"a private address": {"http://private.example", "model_address_not_allowed", 403, journal.Denied, true},
		"no URL":            {"127.0.0.1:80", "base_url_invalid", 502, journal.Denied, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Credential{Provider: Anthropic, BaseURL: c.base}, unreached(t), nil)
			resp, body := w.do("POST", "/v1/messages", `{"model":"m"}`, map[string]string{"X-Api-Key": token})
			row := w.row()
			if resp.StatusCode != c.status || !strings.Contains(body, c.code) || row.Decision != c.decision || row.Error != c.code {
				t.Errorf("%d %s, row %+v", resp.StatusCode, body, row)
			}
			if c.usage {
				if u := w.onlyUsage(); u.Error != c.code || u.Status != 0 {
					t.Errorf("usage %+v", u)
				}
			} else {
				w.noUsage()
			}
		})
	}
}

func TestOpenAIIsAskedForTheUsageOfStreamedChats(t *testing.T) {
	t.Parallel()
	for provider, want := range map[string]bool{OpenAI: true, OpenAICompatible: false} {
		got := make(chan string, 1)
		w := newWorld(t, Credential{Provider: provider}, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- string(body)
		}, nil)
		w.do("POST", "/v1/chat/completions", `{"model":"m","stream":true}`, map[string]string{"Authorization": "Bearer " + token})
		if body := <-got; strings.Contains(body, `"include_usage":true`) != want {
			t.Errorf("%s was sent %s", provider, body)
		}
	}
}
