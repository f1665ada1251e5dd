package mcp_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"managoat/internal/mcp"
	"managoat/internal/refusal"
)

func read(t *testing.T, body string) mcp.Servers {
	t.Helper()
	var s mcp.Servers
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsWrongWithAServerIsSaidByServerAndField(t *testing.T) {
	t.Parallel()
	many := map[string]mcp.Server{}
	for i := range mcp.MaxServers + 1 {
		many[fmt.Sprint("s", i)] = mcp.Server{Command: "x"}
	}
	tooMany, _ := json.Marshal(many)
	for body, want := range map[string]string{
		`{}`: "",
		`{"a":{"command":"npx","args":["-y","x"],"env":{"TOKEN":"${TOKEN}"}}}`:                     "",
		`{"a":{"type":"stdio","command":"x"}}`:                                                     "",
		`{"a":{"type":"http","url":"https://example.com/mcp","headers":{"X-Key":"${K}"}}}`:         "",
		`{"A-b_9":{"type":"sse","url":"http://127.0.0.1:3000/sse?x=1"}}`:                           "",
		`{"a":{"type":"http","url":"https://${HOST}/mcp"},"b":{"type":"http","url":"${ADDRESS}"}}`: "",
		`{"a":{"command":"x","args":["$5","$$5","$${X}","a$"]}}`:                                   "",

		`{"a b":{"command":"x"}}`:                        "s",
		`{"":{"command":"x"}}`:                           "s",
		`{"__proto__":{"command":"x"}}`:                  "s",
		`{"` + strings.Repeat("a", 65) + `":{}}`:         "s",
		string(tooMany):                                  "s",
		`{"a":{"command":"` + long(mcp.MaxBytes) + `"}}`: "s",
		`{"a":{}}`:                                                                          "s.a.command",
		`{"a":{"command":"  "}}`:                                                            "s.a.command",
		`{"a":{"args":["x"]}}`:                                                              "s.a.command",
		`{"a":{"command":"a\u0000"}}`:                                                       "s.a.command",
		`{"a":{"command":"x","args":["ok","\u0000"]}}`:                                      "s.a.args[1]",
		`{"a":{"command":"x","env":{"1A":"x"}}}`:                                            "s.a.env",
		`{"a":{"command":"x","env":{"A-B":"x"}}}`:                                           "s.a.env",
		`{"a":{"command":"x","env":{"A":"${B\u0000}"}}}`:                                    "s.a.env.A",
		`{"a":{"command":"x","env":{"A":"${B}\u0000"}}}`:                                    "s.a.env.A",
		`{"a":{"command":"x","headers":{"A":"b"}}}`:                                         "s.a.headers",
		`{"a":{"command":"x","args":["${"]}}`:                                               "s.a.args[0]",
		`{"a":{"command":"x","args":["${}"]}}`:                                              "s.a.args[0]",
		`{"a":{"command":"x","args":["${A:-b}"]}}`:                                          "s.a.args[0]",
		`{"a":{"url":"https://example.com"}}`:                                               "s.a.type",
		`{"a":{"type":"ws","url":"https://example.com"}}`:                                   "s.a.type",
		`{"a":{"type":"http"}}`:                                                             "s.a.url",
		`{"a":{"type":"http","url":"https://example.com","command":"x"}}`:                   "s.a",
		`{"a":{"type":"http","url":"https://example.com","env":{"A":"b"}}}`:                 "s.a",
		`{"a":{"type":"http","url":"example.com"}}`:                                         "s.a.url",
		`{"a":{"type":"http","url":"ftp://example.com"}}`:                                   "s.a.url",
		`{"a":{"type":"http","url":"file:///etc/passwd"}}`:                                  "s.a.url",
		`{"a":{"type":"http","url":"https://"}}`:                                            "s.a.url",
		`{"a":{"type":"http","url":"https://u:p@example.com"}}`:                             "s.a.url",
		`{"a":{"type":"http","url":"https://example.com/#x"}}`:                              "s.a.url",
		`{"a":{"type":"http","url":"https://example.com:port/"}}`:                           "s.a.url",
		`{"a":{"type":"http","url":"https://example.com/` + long(mcp.MaxURL) + `"}}`:        "s.a.url",
		`{"a":{"type":"http","url":"https://example.com","headers":{"A b":"c"}}}`:           "s.a.headers",
		`{"a":{"type":"http","url":"https://example.com","headers":{"A":"c","a":"d"}}}`:     "s.a.headers",
		`{"a":{"type":"http","url":"https://example.com","headers":{"A":"c\r\nB: d"}}}`:     "s.a.headers.A",
		`{"a":{},"b":{"type":"http"},"c":{"command":"x"}}`:                                  "s.a.command s.b.url",
		`{"a":{"command":"$s3cr3t{\u0000","args":["${s3cr3t"],"env":{"s3cr3t!":"s3cr3t"}}}`: "s.a.args[0] s.a.command s.a.env",
	} {
		var v refusal.Validation
		read(t, body).Check(&v, "s")
		fields := refusal.FieldErrors(v.Err())
		if got := strings.Join(slices.Sorted(maps.Keys(fields)), " "); got != want {
			t.Errorf("%.200s: %s, want %q", body, fields, want)
		}
		if said, _ := json.Marshal(fields); strings.Contains(string(said), "s3cr3t") {
			t.Errorf("%s: the refusal repeats what was sent: %s", body, said)
		}
	}
	var v refusal.Validation
	s := read(t, `{"a":{"type":"stdio","command":"x"}}`)
	if s.Check(&v, "s"); s["a"].Type != "" {
		t.Errorf("kept as %+v", s)
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func TestVariablesGetTheirValuesAndAllThatLackOneAreNamed(t *testing.T) {
	t.Parallel()
	values := map[string]string{"A": "a", "DOLLARS": "$${A}", "EMPTY": "", "HOST": "example.com", "LINES": "x\r\ny", "NUL": "\x00"}
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	for in, want := range map[string]string{
		"plain": "plain", "${A}": "a", "x${A}${A}y": "xaay", "$A": "$A", "$$A": "$A", "$${A}": "${A}", "$$${A}": "$a", "$$$$": "$$", "$": "$", "5$": "5$", "a$b$$c": "a$b$c",
		"${DOLLARS}": "$${A}", // what a value holds is not looked at again
		"<${EMPTY}>": "<>", "}{${A}}": "}{a}",
	} {
		got, missing, err := mcp.Servers{"s": {Command: in, Args: []string{in}, Env: map[string]string{"E": in}}}.Resolve(lookup)
		if s := got["s"]; err != nil || len(missing) != 0 || s.Command != want || s.Args[0] != want || s.Env["E"] != want {
			t.Errorf("%s became %+v, %v, %v", in, s, missing, err)
		}
	}
	all := mcp.Servers{
		"a": {Command: "${Z}", Args: []string{"${A}", "${Y}"}, Env: map[string]string{"${NO}": "${X}"}},
		"b": {Type: mcp.HTTP, URL: "https://${HOST}/${W}", Headers: map[string]string{"H": "${Z}"}},
	}
	before, _ := json.Marshal(all)
	if _, missing, _ := all.Resolve(lookup); !slices.Equal(missing, []string{"W", "X", "Y", "Z"}) {
		t.Errorf("missing %v", missing)
	}
	if after, _ := json.Marshal(all); string(after) != string(before) {
		t.Errorf("changed in place: %s", after)
	}
	for field, s := range map[string]mcp.Server{
		"s.url":       {Type: mcp.HTTP, URL: "${A}"},
		"s.headers.H": {Type: mcp.HTTP, URL: "https://${HOST}", Headers: map[string]string{"H": "${LINES}"}},
		"s.command":   {Command: "${NUL}"},
	} {
		_, missing, err := mcp.Servers{"s": s}.Resolve(lookup)
		if fields := refusal.FieldErrors(err); len(missing) != 0 || len(fields) != 1 || len(fields[field]) != 1 {
			t.Errorf("%s: %v %v", field, missing, fields)
		}
	}
}

// Else an agent of a few kilobytes would be gigabytes in the server.
func TestValuesThatAreNamedOftenDoNotMultiplyWithoutBound(t *testing.T) {
	t.Parallel()
	often := strings.Repeat("${A}", mcp.MaxBytes/8)
	s := mcp.Servers{"s": {Command: "x", Args: []string{"${A}", often, often, "${A}"}}}
	value := strings.Repeat("$", 32<<10)
	got, missing, err := s.Resolve(func(string) (string, bool) { return value, true })
	if fields := refusal.FieldErrors(err); len(missing) != 0 || len(fields) != 1 || len(fields["s.args[1]"]) != 1 {
		t.Errorf("%v %v", missing, fields)
	}
	if raw, err := json.Marshal(got); err != nil || len(raw) > 2*mcp.MaxValues {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

func TestARuntimeReadsServersInItsOwnForm(t *testing.T) {
	t.Parallel()
	s := mcp.Servers{
		"b": {Command: "x", Args: []string{"$5", "${A}"}, Env: map[string]string{"K": "v", "J": "u"}},
		"a": {Type: mcp.SSE, URL: "https://example.com", Headers: map[string]string{"H": "v"}},
		"c": {Command: "y"},
	}
	for want, v := range map[string]any{
		`{"a":{"type":"sse","url":"https://example.com","headers":{"H":"v"}},"b":{"command":"x","args":["${MANAGOAT_DOLLAR:-$}5","${MANAGOAT_DOLLAR:-$}{A}"],"env":{"J":"u","K":"v"}},"c":{"command":"y"}}`:                                                    s.ForFile(),
		`[{"headers":[{"name":"H","value":"v"}],"name":"a","type":"sse","url":"https://example.com"},{"args":["$5","${A}"],"command":"x","env":[{"name":"J","value":"u"},{"name":"K","value":"v"}],"name":"b"},{"args":[],"command":"y","env":[],"name":"c"}]`: s.ForSession(),
		`{}`: mcp.Servers(nil).ForFile(),
		`[]`: mcp.Servers(nil).ForSession(),
	} {
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("%s %v\nwant %s", got, err, want)
		}
	}
}
