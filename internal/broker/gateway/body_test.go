package gateway

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestFieldsFindsTheTopLevelOnly(t *testing.T) {
	t.Parallel()
	body := []byte(" {\n\"messages\":[{\"model\":\"inner\",\"content\":\"a \\\"model\\\":\\\"x\\\" \\\\\"}] , \"m\\u006fdel\" : \"outer\",\"n\":-1.5e3,\"stream\":true,\"o\":{},\"z\":null}\n")
	found, err := fields(body)
	if err != nil {
		t.Fatal(err)
	}
	if got := textField(body, found, "model"); got != "outer" {
		t.Errorf("model is %q", got)
	}
	for name, want := range map[string]string{"n": "-1.5e3", "stream": "true", "o": "{}", "z": "null"} {
		if at := found[name]; string(body[at.from:at.to]) != want {
			t.Errorf("%s is %q, want %s", name, body[at.from:at.to], want)
		}
	}
	if len(found) != 6 {
		t.Errorf("found %v", found)
	}
}

// A reader that ignores case or takes the last of two could be shown one model and the provider another.
func TestTheModelIsReadAsAStrictReaderDoes(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"model":"dear","model":"cheap"}`, `{"model":"dear","m\u006fdel":"cheap"}`} {
		if _, err := fields([]byte(body)); !errors.Is(err, errTwice) {
			t.Errorf("%s: %v", body, err)
		}
	}
	body := []byte(`{"model":"dear","Model":"cheap","MODEL":"cheap"}`)
	found, err := fields(body)
	if err != nil || textField(body, found, "model") != "dear" {
		t.Errorf("%v %v", found, err)
	}
	for _, body := range []string{``, `[]`, `"x"`, `1`, `{`, `{"a":1}}`, `{"a" 1}`, "{\"a\":\"\x01\"}", `{} {}`, `null`} {
		if _, err := fields([]byte(body)); err == nil {
			t.Errorf("%q is an object", body)
		}
	}
}

func TestUsageIsAskedForWithoutTouchingTheRest(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"stream":true,"x":[1]}`:                                        `{"stream_options":{"include_usage":true},"stream":true,"x":[1]}`,
		`{"x":[1],"stream":true,"stream_options":null}`:                  `{"x":[1],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream_options":{"include_usage":false,"a":1},"stream":true}`: `{"stream_options":{"a":1,"include_usage":true},"stream":true}`,
		`{"stream":false}`:                                               `{"stream":false}`,
		`{"model":"m"}`:                                                  `{"model":"m"}`,
		`{"stream":true,"stream_options":"odd"}`:                         `{"stream":true,"stream_options":"odd"}`,
	} {
		found, err := fields([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(withUsage([]byte(in), found)); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

func FuzzFields(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":{"c":"}"}}`, `{"a\"":"\\"}`, ` { } `, `{"a":[],"b":"\ud83d\ude00"}`, `{"a":1.0e-5 , "b":false}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		found, err := fields(body)
		var want map[string]json.RawMessage
		wantErr := json.Unmarshal(body, &want)
		if err == nil && (wantErr != nil || len(want) != len(found)) {
			t.Fatalf("found %v in %q, the decoder %v, %v", found, body, want, wantErr)
		}
		if err != nil {
			if wantErr == nil && want != nil && !errors.Is(err, errTwice) {
				t.Fatalf("%v in %q, which decodes to %v", err, body, want)
			}
			return
		}
		for name, at := range found {
			if got := string(body[at.from:at.to]); got != strings.TrimSpace(string(want[name])) {
				t.Fatalf("%q is %q, the decoder says %q", name, got, want[name])
			}
		}
		if out := withUsage(body, found); !json.Valid(out) {
			t.Fatalf("%q became %q", body, out)
		}
	})
}
