package testworld_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"managoat/internal/testworld"
)

// faults collects what the world reports instead of failing the test.
type faults struct {
	mu    sync.Mutex
	texts []string
}

func (*faults) Helper() {}

func (f *faults) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func (f *faults) reported() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.texts)
}

func (f *faults) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// openFaulty is a world whose faults are the test's to look at.
func openFaulty(t *testing.T) (*testworld.World, *faults) {
	t.Helper()
	f := &faults{}
	w := testworld.Open(f, t.TempDir())
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, f
}

// user is a request body of one prompt, with more fields.
func user(prompt, more string) string {
	return fmt.Sprintf(`{"model":"claude-x","max_tokens":100,"messages":[{"role":"user","content":%q}]%s}`, prompt, more)
}

// post sends a body to the model and returns the status and what came of the answer.
func post(t *testing.T, w *testworld.World, path, body string) (int, string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Model.LoopbackURL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Api-Key", apiKey)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, string(answer), err
}

// eventNames are the names of a stream's events in order.
func eventNames(stream string) string {
	var names []string
	for line := range strings.Lines(stream) {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimSuffix(strings.TrimSpace(name), "_block_delta"))
		}
	}
	return strings.Join(names, " ")
}

func TestModelStreamsAndAnswersWholeAlike(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	w.Model.Script("go", testworld.Reply{
		testworld.Use(testworld.Tokens{Input: 5, Output: 7}),
		testworld.Think("hm"), testworld.Say("a", "b"), testworld.Call("Bash", testworld.Input{"command": "ls"}),
	})
	tools := `,"tools":[{"name":"Bash"}]`
	status, stream, err := post(t, w, "/v1/messages", user("go", tools+`,"stream":true`))
	if status != http.StatusOK || err != nil {
		t.Fatalf("%d, %v: %s", status, err, stream)
	}
	want := "message_start content_block_start content content content_block_stop " + // the thought and its signature
		"content_block_start content content content_block_stop " +
		"content_block_start content content content_block_stop message_delta message_stop"
	if got := eventNames(stream); got != want {
		t.Errorf("events: %s\nwant:   %s", got, want)
	}
	status, whole, err := post(t, w, "/v1/messages", user("go", tools))
	if status != http.StatusOK || err != nil {
		t.Fatalf("%d, %v: %s", status, err, whole)
	}
	var message struct {
		Content []struct{ Type, Text, Thinking, Name string }
		Stop    string           `json:"stop_reason"`
		Usage   testworld.Tokens `json:"usage"`
	}
	if err := json.Unmarshal([]byte(whole), &message); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(message); got != "{[{thinking  hm } {text ab  } {tool_use   Bash}] tool_use {5 7 0 0}}" {
		t.Errorf("the whole answer: %s", got)
	}
	if !strings.Contains(stream, `"stop_reason":"tool_use"`) || !strings.Contains(stream, `{"output_tokens":7}`) {
		t.Errorf("the stream's end: %s", stream)
	}
}

func TestModelFollowsTheConversation(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	w.Model.Script("task", testworld.Reply{testworld.Say("short marker")})
	w.Model.Script("task A", testworld.Reply{testworld.Say("first")}, testworld.Reply{testworld.ToolSaid("42"), testworld.Say("second")})
	w.Model.Script("from the system", testworld.Reply{testworld.Say("by system")})
	const (
		ask    = `{"role":"user","content":[{"type":"text","text":"<system-reminder>from the system</system-reminder>"},{"type":"text","text":"task A"}]}`
		answer = `{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"Bash","input":{}}]}`
		result = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":"42"}]}`
	)
	for _, test := range []struct{ name, messages, more, want string }{
		{"the longest marker of a first prompt", ask, "", "first"},
		{"the reply after a tool result", ask + "," + answer + "," + result, "", "second"},
		{"the same call again", ask + "," + answer + "," + result, "", "second"},
		{"an answer in two messages is one reply", ask + "," + answer + "," + answer + "," + result, "", "second"},
		{"a newer prompt starts over", ask + "," + answer + "," + result + "," + answer + `,{"role":"user","content":"task B"}`, "", "short marker"},
		{"the system prompt, when no prompt has a marker", `{"role":"user","content":"hello"}`, `,"system":[{"type":"text","text":"You are from the system."}]`, "by system"},
	} {
		status, body, err := post(t, w, "/v1/messages", `{"model":"m","max_tokens":50,"messages":[`+test.messages+`]`+test.more+`}`)
		if status != http.StatusOK || err != nil || !strings.Contains(body, `"text":"`+test.want+`"`) {
			t.Errorf("%s: %d, %v: %s, want %q", test.name, status, err, body, test.want)
		}
	}
}

func TestModelAnswersSideRequestsWithoutAScript(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	for _, test := range []struct{ name, body, want string }{
		{"output in a schema", user("a title", `,"output_config":{"format":{"type":"json_schema","schema":{"properties":{"title":{"type":"string"}}}}}`), `{\"title\":\"scripted title\"}`},
		{"a suggestion of the next prompt", user("[SUGGESTION MODE: what next?]", ""), `"text":"ok"`},
		{"a look whether the key works", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"quota"}]}`, `"text":"ok"`},
	} {
		if status, body, err := post(t, w, "/v1/messages", test.body); status != http.StatusOK || err != nil || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d, %v: %s", test.name, status, err, body)
		}
	}
	if got := len(w.Model.SideCalls()); got != 3 || len(w.Model.Calls()) != 0 {
		t.Errorf("%d side calls and %d calls, want 3 and none", got, len(w.Model.Calls()))
	}
	if status, body, _ := post(t, w, "/v1/messages/count_tokens", user("count", "")); status != http.StatusOK || !strings.Contains(body, `"input_tokens":`) {
		t.Errorf("count_tokens: %d %s", status, body)
	}
	if status, body, _ := post(t, w, "/v1/files", "{}"); status != http.StatusNotFound || !strings.Contains(body, "not_found_error") {
		t.Errorf("an unknown route: %d %s", status, body)
	}
}

func TestModelTellsWhatItWasSentAndRefusesOtherKeys(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	w.Model.Script("hello", testworld.Reply{testworld.Say("hi")})
	w.Model.RequireKey("another key")
	if status, body, _ := post(t, w, "/v1/messages", user("hello", "")); status != http.StatusUnauthorized || !strings.Contains(body, "authentication_error") {
		t.Errorf("with an unknown key: %d %s", status, body)
	}
	w.Model.RequireKey(apiKey)
	if status, body, _ := post(t, w, "/v1/messages?beta=true", user("hello", "")); status != http.StatusOK {
		t.Errorf("with its key: %d %s", status, body)
	}
	calls := w.Model.Calls()
	if len(calls) != 1 || calls[0].Key() != apiKey || calls[0].Model != "claude-x" || calls[0].Marker != "hello" || calls[0].Path != "/v1/messages?beta=true" {
		t.Errorf("calls: %+v", calls)
	}
	if len(w.Model.Requests()) != 2 {
		t.Errorf("%d requests, want the refused one too", len(w.Model.Requests()))
	}
	for text, want := range map[string]bool{apiKey: true, `"hello"`: true, "beta=true": true, "__api_key__": false} {
		if w.Model.Heard(text) != want {
			t.Errorf("Heard(%q) = %v", text, !want)
		}
	}
}

func TestModelFaultsAreLoud(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, body, want string
		reply            testworld.Reply
	}{
		{"no script", user("something else", ""), "no script's marker", testworld.Reply{}},
		{"no reply left", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"go"},{"role":"assistant","content":"x"},{"role":"user","content":"more"}]}`, "asks for one more", testworld.Reply{}},
		{"a tool the client has not", user("go", `,"tools":[{"name":"Read"}]`), "offers no tool Bash, it has Read", testworld.Reply{testworld.Call("Bash", nil)}},
		{"another tool result than expected", user("go", ""), "lacks", testworld.Reply{testworld.ToolSaid("passed")}},
		{"raw text in a whole answer", user("go", ""), "streams only", testworld.Reply{testworld.SayJSON("x")}},
	} {
		w, f := openFaulty(t)
		w.Model.Script("go", test.reply)
		status, body, err := post(t, w, "/v1/messages", test.body)
		if status != http.StatusInternalServerError || err != nil || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d, %v: %s", test.name, status, err, body)
		}
		if reported := f.reported(); len(reported) != 1 || !strings.Contains(reported[0], test.want) {
			t.Errorf("%s: reported %q", test.name, reported)
		}
	}
	// In a stream that has begun, the client sees it break off.
	w, f := openFaulty(t)
	w.Model.Script("go", testworld.Reply{testworld.Say("half"), testworld.ToolSaid("passed")})
	if _, stream, err := post(t, w, "/v1/messages", user("go", `,"stream":true`)); err == nil || !strings.Contains(stream, "half") || len(f.reported()) != 1 {
		t.Errorf("in mid-stream: %v, reported %q, stream %s", err, f.reported(), stream)
	}
}

func TestModelMisbehavesAsScripted(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	stream := func(prompt string) (int, string, error) {
		return post(t, w, "/v1/messages", user(prompt, `,"stream":true`))
	}
	w.Model.Script("overloaded once", testworld.Reply{testworld.FailFirst(1, 529), testworld.Say("now")})
	if status, body, _ := stream("overloaded once"); status != 529 || !strings.Contains(body, "overloaded_error") {
		t.Errorf("the first try: %d %s", status, body)
	}
	if status, body, _ := stream("overloaded once"); status != http.StatusOK || !strings.Contains(body, "now") {
		t.Errorf("the second try: %d %s", status, body)
	}
	w.Model.Script("breaks off", testworld.Reply{testworld.Say("half"), testworld.HangUp()})
	if _, body, err := stream("breaks off"); err == nil || !strings.Contains(body, "half") {
		t.Errorf("a hang-up: %v %s", err, body)
	}
	w.Model.Script("fails late", testworld.Reply{testworld.Say("half"), testworld.Fail(500)})
	if status, body, err := stream("fails late"); status != http.StatusOK || err != nil || !strings.HasPrefix(body[strings.LastIndex(body, "event: "):], "event: error\n") || !strings.Contains(body, "api_error") {
		t.Errorf("an error in mid-stream: %d %v %s", status, err, body)
	}
	w.Model.Script("odd text", testworld.Reply{testworld.SayJSON(`\ud800`), testworld.Say("\x00"), testworld.Stop("max_tokens")})
	if _, body, _ := stream("odd text"); !strings.Contains(body, `"text":"\ud800"`) || !strings.Contains(body, `"text":"\u0000"`) || !strings.Contains(body, `"max_tokens"`) {
		t.Errorf("odd text: %s", body)
	}
	w.Model.Script("paced", testworld.Reply{testworld.SayPaced(20*time.Millisecond, "a", "b", "c")})
	start := time.Now()
	if _, body, _ := stream("paced"); time.Since(start) < 60*time.Millisecond || strings.Count(body, "text_delta") != 3 {
		t.Errorf("paced text took %v: %s", time.Since(start), body)
	}
}

func TestModelSplitsACharacterBetweenTwoWrites(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	w.Model.Script("split", testworld.Reply{testworld.SaySplit("grüße", len("gr")+1)})
	connection, err := net.Dial("tcp", strings.TrimPrefix(w.Model.LoopbackURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	body := user("split", `,"stream":true`)
	if _, err := fmt.Fprintf(connection, "POST /v1/messages HTTP/1.1\r\nHost: model\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(connection)
	if err != nil {
		t.Fatal(err)
	}
	// A write is a chunk of the transfer encoding: one ends inside the character, the next starts there.
	if !strings.Contains(string(raw), "gr\xc3\r\n") || !strings.Contains(string(raw), "\r\n\xbc\xc3\x9fe\"") {
		t.Errorf("not cut inside the character: %q", raw)
	}
}
