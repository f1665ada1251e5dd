package input_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
)

type inner struct {
	Hosts []string `json:"hosts"`
}

type sample struct {
	Name  string            `json:"name"`
	Count int               `json:"count"`
	Vars  map[string]string `json:"vars"`
	List  []inner           `json:"list"`
	Deep  inner             `json:"deep"`
	Named map[string]inner  `json:"named"`
	ID    *uuid.UUID        `json:"id"`
	Plain uuid.UUID         `json:"plain"`
	Key   secret.Value      `json:"key"`
	Off   string            `json:"-"`
}

func present() sample {
	id := uuid.New()
	return sample{Name: "old", Count: 3, Vars: map[string]string{"A": "1"}, List: []inner{{Hosts: []string{"a"}}}, Deep: inner{Hosts: []string{"d"}}, ID: &id, Off: "kept"}
}

func TestDecodingReplacesWhatIsNamedAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	v := present()
	v.Named = map[string]inner{"old": {}, "a": {Hosts: []string{"x"}}}
	if err := input.Decode([]byte(`{"vars":{"B":"2"},"list":[{}],"id":null,"key":"k","named":{"a":{}}}`), &v); err != nil {
		t.Fatal(err)
	}
	if v.Name != "old" || v.Count != 3 || v.Deep.Hosts[0] != "d" || v.Off != "kept" {
		t.Errorf("changed what was not named: %+v", v)
	}
	if !maps.Equal(v.Vars, map[string]string{"B": "2"}) {
		t.Errorf("a map was merged: %v", v.Vars)
	}
	if len(v.Named) != 1 || v.Named["a"].Hosts != nil {
		t.Errorf("a map of things was merged: %v", v.Named)
	}
	if len(v.List) != 1 || v.List[0].Hosts != nil {
		t.Errorf("a list's element kept what it was: %+v", v.List)
	}
	if v.ID != nil || v.Key.Reveal() != "k" {
		t.Errorf("null did not clear, or the key is %q", v.Key.Reveal())
	}
}

func TestDecodingNamesEveryFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]string{
		`{"nmae":"x"}`:                         {"nmae"},
		`{"Name":"x"}`:                         {"Name"}, // no second spelling
		`{"Off":"x"}`:                          {"Off"},
		`{"-":"x"}`:                            {"-"},
		`{"deep":{"host":[]}}`:                 {"deep.host"},
		`{"list":[{"hosts":[],"x":1}]}`:        {"list.x"},
		`{"name":1,"count":"x","vars":[]}`:     {"count", "name", "vars"},
		`{"count":1.5}`:                        {"count"},
		`{"count":99999999999999999999}`:       {"count"},
		`{"deep":{"hosts":"x"}}`:               {"deep.hosts"},
		`{"vars":{"A":1}}`:                     {"vars"},
		`{"named":{"a":{},"b":{"host":[]}}}`:   {"named.b.host"},
		`{"named":{"a":{"hosts":"x"}}}`:        {"named.a.hosts"},
		`{"named":{"a":["s3cr3t"]}}`:           {"named.a"},
		`{"named":["s3cr3t"]}`:                 {"named"},
		`{"id":7}`:                             {"id"},
		`{"key":{"s3cr3t":true}}`:              {"key"},
		`{"key":["s3cr3t"],"name":["s3cr3t"]}`: {"key", "name"},
	} {
		v := present()
		err := input.Decode([]byte(body), &v)
		fields := refusal.FieldErrors(err)
		if got := slices.Sorted(maps.Keys(fields)); !refusal.Is(err, refusal.ValidationFailed) || !slices.Equal(got, want) {
			t.Errorf("%s: %v, want fields %v", body, err, want)
		}
		if strings.Contains(err.Error()+flat(fields), "s3cr3t") {
			t.Errorf("%s: the refusal repeats what was sent: %v", body, fields)
		}
	}
	for _, body := range []string{``, `{`, `{"name":"x"`, `[]`, `null`, `"x"`, `{"name":"x"} {}`, `{"name":"x"}x`, "\x00"} {
		v := present()
		if err := input.Decode([]byte(body), &v); !refusal.Is(err, refusal.BadRequest) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func flat(m map[string][]string) string {
	b, _ := json.Marshal(m)
	return string(b)
}

func TestAMalformedIDIsOneThatNothingHas(t *testing.T) {
	t.Parallel()
	v := present()
	if err := input.Decode([]byte(`{"id":"../../etc","plain":"x"}`), &v); err != nil {
		t.Fatal(err)
	}
	if v.ID == nil || *v.ID != uuid.Max || v.Plain != uuid.Max {
		t.Errorf("became %v and %v", v.ID, v.Plain)
	}
}

func TestNamesAreTrimmedAndRefusedWhenAPageCannotShowThem(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "node 22", "äöü", "名前", "👩‍👩‍👧", "a/b:c'\"<script>", strings.Repeat("ü", 200)} {
		var v refusal.Validation
		name := "  " + good + "\t"
		if input.Name(&v, "name", &name); v.Err() != nil || name != good {
			t.Errorf("%q: %v, became %q", good, v.Err(), name)
		}
	}
	for _, bad := range []string{"", "   ", "a\nb", "a\x00b", "a\x1b[31mb", "a\u202eb", "a\u2028b", "\xff\xfe", strings.Repeat("a", 201)} {
		var v refusal.Validation
		name := bad
		if input.Name(&v, "name", &name); v.Err() == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestMetadataIsABoundedObjectThatCanBeStored(t *testing.T) {
	t.Parallel()
	var none map[string]any
	var v refusal.Validation
	if input.Metadata(&v, "metadata", &none); v.Err() != nil || none == nil {
		t.Errorf("none: %v", v.Err())
	}
	for name, bad := range map[string]map[string]any{
		"NUL in a key":   {"a\x00": 1},
		"NUL in a value": {"a": []any{map[string]any{"b": "\x00"}}},
		"too large":      {"a": strings.Repeat("x", 16<<10)},
	} {
		var v refusal.Validation
		if input.Metadata(&v, "metadata", &bad); v.Err() == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestVariableNamesAreTheShellsAndReservedOnesAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"A", "_", "a1", "NODE_ENV", "PATH_PREFIX", "LDFLAGS", "ENV", "ANTHROPIC_API_KEY", "GITHUB_TOKEN"} {
		if problem := input.VariableName(good); problem != "" {
			t.Errorf("%s: %s", good, problem)
		}
	}
	for _, bad := range []string{"", "1ABC", "a-b", "A B", "A=B", "Ä", "A\n", "A\x00", "$A", strings.Repeat("A", 201),
		"PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "MANAGOAT_TOKEN", "MANAGOAT_X", "HTTP_PROXY", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "NPM_CONFIG_CAFILE", "npm_config_cafile"} {
		problem := input.VariableName(bad)
		quoted, _ := json.Marshal(bad)
		if problem == "" || len(bad) < 50 && bad == strings.ToValidUTF8(bad, "") && !strings.Contains(problem, strings.Trim(string(quoted), `"`)) && !strings.Contains(bad, "\x00") {
			t.Errorf("%q: %q", bad, problem)
		}
	}
}

func TestChangedNamesFieldsAndNoValues(t *testing.T) {
	t.Parallel()
	before, after := present(), present()
	after.ID = before.ID
	after.Vars = map[string]string{"A": "2"}
	after.Name = "new"
	if got := input.Changed(before, after); !slices.Equal(got, []string{"name", "vars"}) {
		t.Errorf("changed %v", got)
	}
	if got := input.Changed(before, before); len(got) != 0 {
		t.Errorf("nothing changed, and yet %v", got)
	}
}

func TestPagesHoldWhatWasAskedForAndSayWhetherThereIsMore(t *testing.T) {
	t.Parallel()
	same := func(n int) int { return n }
	for _, c := range []struct{ limit, rows, items int }{{0, 100, 100}, {0, 101, 100}, {2, 3, 2}, {2, 2, 2}, {2, 0, 0}, {9999, 501, 500}, {-1, 1, 1}} {
		p := input.Page{Limit: c.limit}
		if int(p.Fetch()) != p.Size()+1 {
			t.Errorf("limit %d fetches %d", c.limit, p.Fetch())
		}
		got := input.Paged(p, make([]int, c.rows), same, input.NumberCursor)
		if len(got.Items) != c.items || got.HasMore != (c.rows > c.items) || (got.Next != "") != got.HasMore || got.Items == nil {
			t.Errorf("%+v gave %d items, more %v, next %q", c, len(got.Items), got.HasMore, got.Next)
		}
	}
	name := "ä/b 👩"
	if got, err := (input.Page{Cursor: input.NameCursor(name)}).Name(); err != nil || *got != name {
		t.Errorf("the cursor of %q is %v, %v", name, got, err)
	}
	for _, bad := range []string{"%", "AA", "not an id", "9999999999"} {
		p := input.Page{Cursor: bad}
		_, idErr := p.ID()
		_, numberErr := p.Number()
		if !refusal.Is(idErr, refusal.BadRequest) || !refusal.Is(numberErr, refusal.BadRequest) {
			t.Errorf("cursor %q: %v, %v", bad, idErr, numberErr)
		}
	}
	if _, err := (input.Page{Cursor: "AA"}).Name(); !refusal.Is(err, refusal.BadRequest) { // a NUL
		t.Errorf("a cursor with NUL: %v", err)
	}
}
