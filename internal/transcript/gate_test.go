package transcript

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"managoat/internal/secret"
)

const token = "sk-live-0123456789abcdefghijABCDEFGHIJ!/" // 40 bytes

func gate(values ...string) *Gate {
	var vs []secret.Value
	for _, v := range values {
		vs = append(vs, secret.New(v))
	}
	return NewGate(NewRedactor(vs...))
}

func through(g *Gate, chunks ...string) string {
	t := g.Stream()
	var b strings.Builder
	for _, c := range chunks {
		b.WriteString(t.WriteString(c))
	}
	b.WriteString(t.Flush())
	return b.String()
}

func TestACharacterSplitBetweenChunksIsOneCharacter(t *testing.T) {
	t.Parallel()
	if got := through(gate(), "a\xe2", "\x80", "\x94b"); got != "a—b" {
		t.Fatalf("%q", got)
	}
	if got := through(gate(), "x\xe2\x80"); got != "x\uFFFD\uFFFD" {
		t.Fatalf("a dangling start became %q", got)
	}
	if got := through(gate(), "\xff\x00ok"); got != "\uFFFD\u2400ok" {
		t.Fatalf("%q", got)
	}
}

func TestAnySplitOfAnyTextJoinsAgain(t *testing.T) {
	t.Parallel()
	text := "aé—𝒳🙂漢字 plain \t\x1b[31mred\x1b[0m\n" + strings.Repeat("ß", 50)
	g := gate(token)
	for range 2000 {
		var chunks []string
		for rest := text; rest != ""; {
			n := min(1+rand.IntN(9), len(rest))
			chunks = append(chunks, rest[:n])
			rest = rest[n:]
		}
		if got := through(g, chunks...); got != text {
			t.Fatalf("%q became %q", chunks, got)
		}
	}
}

// For every split over two and three chunks no piece of eight bytes of the secret is ever shown.
func TestASecretSplitBetweenChunksIsNeverShown(t *testing.T) {
	t.Parallel()
	g := gate(token)
	check := func(chunks ...string) {
		t.Helper()
		got := through(g, chunks...)
		if got != "key="+secret.Mask+" end" {
			t.Fatalf("%q became %q", chunks, got)
		}
	}
	whole := "key=" + token + " end"
	for i := 0; i <= len(whole); i++ {
		check(whole[:i], whole[i:])
		for j := i; j <= len(whole); j++ {
			check(whole[:i], whole[i:j], whole[j:])
		}
	}
}

func TestUnrelatedTextIsNotDelayed(t *testing.T) {
	t.Parallel()
	s := gate(token).Stream()
	if got := s.WriteString("nothing to hide here"); got != "nothing to hide here" || !s.Clean() {
		t.Fatalf("%q, clean %v", got, s.Clean())
	}
	if got := s.WriteString("it begins: sk-li"); got != "it begins: " || s.Clean() {
		t.Fatalf("%q, clean %v", got, s.Clean())
	}
	if got := s.WriteString("kely not"); got != "sk-likely not" || !s.Clean() {
		t.Fatalf("%q, clean %v", got, s.Clean())
	}
}

func TestEveryFormOfASecretIsMasked(t *testing.T) {
	t.Parallel()
	value := "pa\"ss\\wo\nrd&<second line>"
	g := gate(value, token)
	quoted, _ := json.Marshal(value)
	for name, text := range map[string]string{
		"raw":            "x" + token + "y",
		"json":           "x" + strings.Trim(string(quoted), `"`) + "y",
		"query":          "x" + url.QueryEscape(token) + "y",
		"path":           "x" + url.PathEscape(token) + "y",
		"base64":         "x " + base64.StdEncoding.EncodeToString([]byte(token)) + " y",
		"basic auth":     "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+token)),
		"basic auth x":   "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+token)),
		"line of a file": "x rd&<second line> y",
	} {
		got := g.String(text)
		if !strings.Contains(got, secret.Mask) {
			t.Errorf("%s: %q was let through as %q", name, text, got)
		}
		for i := 0; i+MinSecret <= len(token); i++ {
			if strings.Contains(got, token[i:i+MinSecret]) {
				t.Errorf("%s: %q still shows %q", name, got, token[i:i+MinSecret])
			}
		}
	}
}

func TestShortValuesAndIdsAreNotMasked(t *testing.T) {
	t.Parallel()
	const id = "0198c0de-0000-7000-8000-000000000000"
	if got := gate("seven77").String("seven77 " + id); got != "seven77 "+id {
		t.Fatal(got)
	}
}

func TestOverlappingSecretsLeaveNothingOver(t *testing.T) {
	t.Parallel()
	g := gate("abcdefghij", "fghijklmnop", "abcdefghijklmnopqrst")
	if got := g.String("-abcdefghijklmnop-"); got != "-"+secret.Mask+"-" {
		t.Fatal(got)
	}
	for i := range len("-abcdefghijklmnopqrst-") {
		s := "-abcdefghijklmnopqrst-"
		if got := through(g, s[:i], s[i:]); got != "-"+secret.Mask+"-" {
			t.Fatalf("split at %d: %q", i, got)
		}
	}
}

func TestARotatedValueStaysMasked(t *testing.T) {
	t.Parallel()
	r := NewRedactor(secret.New("the-old-value"))
	r.Set([]secret.Value{secret.New("the-new-value")})
	if got := r.Text("the-old-value the-new-value"); got != secret.Mask+" "+secret.Mask {
		t.Fatal(got)
	}
}

func TestAProtocolLineStaysJSONAndLosesWhatItMustNotHold(t *testing.T) {
	t.Parallel()
	g := gate(token, "12345678")
	in := `{"a":"x` + strings.ReplaceAll(token, "/", `\/`) + `","\ud800key":["\u0000","\ud83d\ude42"],"n":12345678,"m":1.5e3,"keep" : "é\u00e9"}`
	out := g.JSON([]byte(in))
	var v map[string]any
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if v["a"] != "x"+secret.Mask || v["n"] != secret.Mask || v["m"] != 1500.0 || v["keep"] != "éé" {
		t.Fatalf("%s", out)
	}
	if list, _ := v["\uFFFDkey"].([]any); len(list) != 2 || list[0] != "\u2400" || list[1] != "🙂" {
		t.Fatalf("%s", out)
	}
	if !strings.Contains(string(out), `"keep" : "é\u00e9"`) {
		t.Fatalf("what needed no change was rewritten: %s", out)
	}
}

func TestATitleIsOneLineWithoutEscapes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"\x1b]0;evil\x07Run\n \x1b[31mtests\x1b[0m\u202e": "Run tests",
		"\u009b31mred\u009b0m":                            "red",
		"\x1bPdevice\x1b\\after":                          "after",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\":        "link",
		"a\x1b":                    "a",
		"a\x1b[":                   "a",
		"a\x1b]never ends":         "a",
		"\x1b(Bplain\x1b(P text":   "plain text",
		"👩\u200d🚀 goes\tup":        "👩\u200d🚀 goes up",
		"\ufeffname\u200b\x00\x7f": "name\u2400",
		"12345678901234567890X":    "1234567890123456789…",
	} {
		if got := gate().OneLine(in, 20); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestABudgetKeepsHeadAndTailAndCountsTheGap(t *testing.T) {
	t.Parallel()
	b := NewBudget(100)
	live := b.Write(strings.Repeat("h", 60))
	for range 1000 {
		live += b.Write(strings.Repeat("m", 997))
	}
	live += b.Write("END")
	got, truncated := b.Output()
	if !truncated || !strings.HasPrefix(got, strings.Repeat("h", 50)) || !strings.HasSuffix(got, "END") || len(got) > 200 {
		t.Fatalf("%q", got)
	}
	if live != strings.Repeat("h", 50) || b.Total() != 60+997000+3 {
		t.Fatalf("live %q, total %d", live, b.Total())
	}
	if !strings.Contains(got, "996963 bytes") {
		t.Fatalf("the gap is not counted: %q", got)
	}
	small := NewBudget(100)
	small.Write("all of it")
	if got, truncated := small.Output(); got != "all of it" || truncated {
		t.Fatalf("%q", got)
	}
}

func FuzzGate(f *testing.F) {
	f.Add([]byte("abc"+token+"def"), 3)
	f.Add([]byte("\xe2\x80"), 1)
	g := gate(token)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		if size <= 0 {
			return
		}
		s := g.Stream()
		var out strings.Builder
		for rest := in; len(rest) > 0; {
			n := min(size, len(rest))
			out.WriteString(s.Write(rest[:n]))
			rest = rest[n:]
		}
		out.WriteString(s.Flush())
		if !utf8.ValidString(out.String()) || strings.ContainsRune(out.String(), 0) || strings.Contains(out.String(), token) {
			t.Fatalf("%q let through %q", in, out.String())
		}
		if whole := g.String(string(in)); whole != out.String() {
			t.Fatalf("in one piece %q, in pieces of %d %q", whole, size, out.String())
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a":"b\u0000","n":-1e5,"x":[true,null]}`))
	g := gate(token, "-1e512345")
	f.Fuzz(func(t *testing.T, in []byte) {
		out := g.JSON(in)
		if json.Valid(in) && !json.Valid(out) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}

func BenchmarkRedact(b *testing.B) {
	var values []secret.Value
	for i := range 50 {
		values = append(values, secret.New(token+string(rune('a'+i%26))+strings.Repeat("z", i)))
	}
	g := NewGate(NewRedactor(values...))
	text := strings.Repeat("ok  \tstorefront/cart\t0.213s some ordinary output\n", 200)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		g.String(text)
	}
}
