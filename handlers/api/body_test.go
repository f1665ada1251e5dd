package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// What is no JSON object is refused with the next step, and nothing of it is repeated: a body can hold a secret.
func TestBodiesThatCannotBeReadAreRefusedUnrepeated(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	unreadable := func(body, says string) step {
		return step{as: "a", call: "POST /api/environments", body: body, status: 400, has: []string{`"error":"bad_request"`, says}, hasNot: []string{"s3cr3t"}}
	}
	s.run([]step{
		unreadable("name: s3cr3t", "not valid JSON: byte 2 does not fit"), // the n of null, and then an a
		unreadable(`{"name": "s3cr3t"`, "not valid JSON"),
		unreadable(`{"name": "x"} s3cr3t`, "not valid JSON"),
		unreadable("{\"name\": \"s3cr3t\xc3\"}", "The body is not valid UTF-8."),
		unreadable("{\"s3cr3t\xff\": \"x\"}", "The body is not valid UTF-8."),
		unreadable(`{"name": "s3cr3t\ud800"}`, "escape at byte 16 lacks the other half"),
		unreadable(`{"\udc00s3cr3t": "x"}`, "The body holds half a character"),
		unreadable(`{"metadata": {"a": ["\ud83d\\ude00 s3cr3t"]}}`, "The body holds half a character"),
		unreadable(`{"name": "s3cr3t\ud83d\ud83d\ude00"}`, "The body holds half a character"),
		unreadable(`{"name": 1e999, "setup_script": "s3cr3t"}`, "The body holds a value of the wrong form."),
		unreadable("", "There is no body. Send a JSON object"),
		{as: "", call: "POST /api/auth/token", body: "{\"email\":\"a@b.example\",\"password\":\"s3cr3t\xff\"}", status: 400, has: []string{"UTF-8"}, hasNot: []string{"s3cr3t"}},
		{as: "", call: "POST /api/auth/token", body: `{"email":"a@b.example","password":{"s3cr3t":1}}`, status: 422, hasNot: []string{"s3cr3t"}},
		{as: "a", call: "POST /api/environments", body: "{\"name\": \"na\u00efve \ufffd\"}", status: 201, has: []string{"na\u00efve \ufffd"}},
		{as: "a", call: "POST /api/environments", body: `{"name": "\ud83d\ude00 \\ud800 \uFFFD"}`, status: 201, has: []string{`"name":"😀 \\ud800 �"`}},
	})
	if strings.Contains(s.log.String(), "s3cr3t") {
		t.Errorf("the log says %s", s.log)
	}
}

// A body whose length is not announced meets the same limit.
func TestABodyThatGrowsTooLargeIsRefusedAsSuch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	req, err := http.NewRequest("POST", s.http.URL+"/api/environments", io.LimitReader(spaces{}, 2<<20))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.keys["a"])
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(answer), "payload_too_large") {
		t.Errorf("%d %s, %v", res.StatusCode, answer, err)
	}
}

// spaces is a body without an end.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A path that is known says which methods it takes; one that is not stays not found, to everybody alike.
func TestAnUnknownMethodIsToldFromAnUnknownAddress(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, who := range []string{"a", "sandbox", ""} {
		for call, methods := range map[string]string{
			"PUT /api/environments":                  "OPTIONS, GET, POST",
			"POST /api/environments/nonsense":        "OPTIONS, DELETE, GET, PATCH",
			"DELETE /api/auth/me":                    "OPTIONS, GET",
			"POST /api/environments/x/secrets/TOKEN": "OPTIONS, DELETE",
		} {
			status, answer, header := s.send(who, call, `{}`)
			if status != 405 || header.Get("Allow") != methods || !strings.Contains(answer, `"error":"method_not_allowed"`) || !strings.Contains(answer, methods) {
				t.Errorf("%q %s: %d, Allow %q, %s", who, call, status, header.Get("Allow"), answer)
			}
		}
		for _, call := range []string{"GET /api/nothing", "PUT /api", "GET /api/", "DELETE /api/environments/x/nothing", "GET /nothing"} {
			if status, answer, _ := s.send(who, call, ""); status != 404 || !strings.Contains(answer, "There is nothing at this address.") {
				t.Errorf("%q %s: %d %s", who, call, status, answer)
			}
		}
	}
	if status, answer, _ := s.send("", "GET /api/nothing?token=mgt_x", ""); status != 400 || !strings.Contains(answer, "api_key_in_query") {
		t.Errorf("a key in the address of nothing: %d %s", status, answer)
	}
}
