package transcript

import (
	"encoding/json"
	"strings"
	"testing"

	"managoat/internal/secret"
)

// A secret can be JSON itself (a service account's key): then it stands in a document not as a string but as the document.
func TestASecretThatIsJSONIsMaskedInADocument(t *testing.T) {
	t.Parallel()
	value := `{"type":"service_account","key_id":"k1234567","nested":{"deep":[1,2,3]}}`
	g := gate(value)
	for name, c := range map[string]struct{ in, want string }{
		"as a value":  {`{"a":1,"b":` + value + `,"c":[2]}`, `{"a":1,"b":"[REDACTED]","c":[2]}`},
		"in a list":   {`[` + value + `,` + value + `]`, `["[REDACTED]","[REDACTED]"]`},
		"the whole":   {value, `"[REDACTED]"`},
		"as a string": {`{"b":` + string(quote(value)) + `}`, `{"b":"[REDACTED]"}`},
	} {
		if got := string(g.JSON([]byte(c.in))); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	// One that crosses the structure takes the smallest value around it.
	g = gate(`","second":"start`)
	if got := string(g.JSON([]byte(`{"x":{"first":"end","second":"start"},"y":2}`))); got != `{"x":"[REDACTED]","y":2}` {
		t.Error(got)
	}
}

func TestADocumentFullOfSecretsIsMaskedInLinearTime(t *testing.T) {
	t.Parallel()
	g := gate(`1,2,3,4,5,6,7`)
	doc := "[" + strings.Repeat("1,2,3,4,5,6,7,[0],", 100_000) + "0]"
	if got := string(g.JSON([]byte(doc))); got != `"[REDACTED]"` {
		t.Fatalf("%.100s", got)
	}
}

func TestWhatIsNoJSONPassesAsText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"{not json " + token: "{not json " + secret.Mask,
		"":                   "",
		`{"a":1} trailing`:   `{"a":1} trailing`,
		"\"\x00\"":           "\"\u2400\"",
	} {
		if got := string(gate(token).JSON([]byte(in))); got != want {
			t.Errorf("%q became %q", in, got)
		}
	}
}

// jsonb writes a number out digit by digit: a few bytes of exponent must not become megabytes.
func TestNumbersThatJSONBBlowsUpAreKeptAsStrings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"1e131071": `"1e131071"`, "-1E-9999": `"-1E-9999"`, "1e+400": "1e+400", "1e401": `"1e401"`, "12.5": "12.5", "-0.0e10": "-0.0e10",
		"1e99999999999999999999": `"1e99999999999999999999"`, strings.Repeat("1", 401): `"` + strings.Repeat("1", 401) + `"`,
	} {
		if got := string(Storable(json.RawMessage(in))); got != want {
			t.Errorf("%s became %s", in, got)
		}
	}
}

func TestEscapesAreFollowedToTheirEnd(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"\\u0000"`:         `"\\u0000"`,
		`"\\\u0000"`:        `"\\` + "\u2400" + `"`,
		`"\"\\"`:            `"\"\\"`,
		`"\ud83d\ude42"`:    `"\ud83d\ude42"`,
		`"\ude42\ud83d"`:    `"` + "\uFFFD\uFFFD" + `"`,
		`{"\ud800":"\\"}`:   `{"` + "\uFFFD" + `":"\\"}`,
		`["<&>","\u003c"]`:  `["<&>","\u003c"]`,
		`["<\u0000>"]`:      `["<` + "\u2400" + `>"]`,
		"[ 1 , 2 ]\n":       "[ 1 , 2 ]\n",
		`[true,false,null]`: `[true,false,null]`,
	} {
		if got := string(Storable(json.RawMessage(in))); got != want {
			t.Errorf("%s became %s", in, got)
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	g := gate(token)
	doc := []byte(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"6de6fe97","update":{"sessionUpdate":"tool_call_update","toolCallId":"t1","rawInput":{"command":"go test ./..."},"content":[{"type":"content","content":{"type":"text","text":"` +
		strings.Repeat(`ok  \tstorefront/cart\t0.213s\n`, 100) + `"}}]}}}`)
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		g.JSON(doc)
	}
}
