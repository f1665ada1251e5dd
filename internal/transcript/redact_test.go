package transcript

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"

	"managoat/internal/secret"
)

// shows tells which piece of MinSecret bytes of a secret a text still shows.
func shows(text, value string) string {
	for i := 0; i+MinSecret <= len(value); i++ {
		if piece := value[i : i+MinSecret]; strings.Contains(text, piece) {
			return piece
		}
	}
	return ""
}

func TestEncodersDoNotLetASecretPast(t *testing.T) {
	t.Parallel()
	value := "Pä\"ss\\wörd/+&=?%~🙂 (it's) 0123456789"
	quoted, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	inner := strings.Trim(string(quoted), `"`)
	g := gate(value)
	for name, text := range map[string]string{
		"plain":                            value,
		"json":                             inner,
		"json without html escapes":        strings.NewReplacer(`\u0026`, "&").Replace(inner),
		"json in ASCII":                    strings.NewReplacer("ä", `\u00e4`, "ö", `\u00f6`, "🙂", `\ud83d\ude42`, `\u0026`, "&").Replace(inner),
		"json with escaped slashes":        strings.NewReplacer("/", `\/`, `\u0026`, "&").Replace(inner),
		"form":                             url.QueryEscape(value),
		"path":                             url.PathEscape(value),
		"encodeURIComponent":               strings.NewReplacer("%27", "'", "%28", "(", "%29", ")", "+", "%20").Replace(url.QueryEscape(value)),
		"percent in lower case":            strings.ToLower(strings.NewReplacer("+", "%20").Replace(url.QueryEscape("?"))) + percent(value, "-_.~", "%%%02x"),
		"base64 of a line with a newline":  base64.StdEncoding.EncodeToString([]byte(value + "\n")),
		"base64 of basic auth, user first": base64.StdEncoding.EncodeToString([]byte("someone:" + value)),
		"base64 of basic auth, token user": base64.StdEncoding.EncodeToString([]byte(value + ":x-oauth-basic")),
		"base64 for URLs":                  base64.URLEncoding.EncodeToString([]byte("xy" + value)),
		"surrounded by spaces":             "  " + value + "\r\n",
	} {
		got := g.String("before " + text + " after")
		if !strings.Contains(got, secret.Mask) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%s: %q became %q", name, text, got)
		}
		if piece := shows(got, "0123456789"); piece != "" {
			t.Errorf("%s: %q still shows %q", name, got, piece)
		}
	}
}

// base64 wraps its lines: a long key comes out in pieces of 76 or 64 characters.
func TestALongSecretInWrappedBase64IsMasked(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("0123456789abcdef", 12)
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	for _, width := range []int{64, 76} {
		var lines []string
		for line := range slices.Chunk([]byte(encoded), width) {
			lines = append(lines, string(line))
		}
		got := gate(value).String(strings.Join(lines, "\n"))
		if piece := shows(got, encoded[:len(encoded)-8]); piece != "" {
			t.Errorf("%d columns: %q is shown in %q", width, piece, got)
		}
	}
}

// A PEM key is masked line by line wherever one of its lines stands; the armour, which every key has, is not.
func TestEachLineOfAKeyIsMaskedButNotItsArmour(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nEFAASCBKcwggSjAgEAAoIBAQDh\n-----END PRIVATE KEY-----\n"
	g := gate(key)
	if got := g.String("line: EFAASCBKcwggSjAgEAAoIBAQDh."); got != "line: "+secret.Mask+"." {
		t.Error(got)
	}
	if got := g.String("-----BEGIN PRIVATE KEY-----"); got != "-----BEGIN PRIVATE KEY-----" {
		t.Error(got)
	}
	if got := g.String("> " + strings.ReplaceAll(strings.TrimSpace(key), "\n", "\n> ")); shows(got, "MIIEvQIBADANBgkqhkiG9w0BAQ")+shows(got, "EFAASCBKcwggSjAgEAAoIBAQDh") != "" {
		t.Error(got)
	}
	if got := g.String("x" + key + "y"); got != "x"+secret.Mask+"y" {
		t.Error(got)
	}
}

// Output that is cut inside a secret (a process that was killed, head -c) must not show nearly all of it.
func TestWhatIsMoreThanHalfOfASecretIsMaskedAtTheEnd(t *testing.T) {
	t.Parallel()
	g := gate(token)
	for n := range len(token) {
		got := through(g, "key=", token[:n])
		if whole := g.String("key=" + token[:n]); whole != got {
			t.Fatalf("in one piece %q, in two %q", whole, got)
		}
		want := "key=" + token[:n]
		if 2*n > len(token) {
			want = "key=" + secret.Mask
		}
		if got != want {
			t.Fatalf("%d bytes of %d became %q", n, len(token), got)
		}
	}
}

func TestADroppedValueIsForgotten(t *testing.T) {
	t.Parallel()
	r := NewRedactor(secret.New("the-old-value"), secret.New("the-new-value"))
	r.Drop([]secret.Value{secret.New("the-old-value"), secret.New("never-known")})
	if got := r.Text("the-old-value the-new-value"); got != "the-old-value "+secret.Mask {
		t.Fatal(got)
	}
}

// A secret that arrives while text is held back is known from the next chunk on.
func TestANewSecretIsMaskedInAStreamThatIsOpen(t *testing.T) {
	t.Parallel()
	r := NewRedactor(secret.New("abcdefghijk"))
	s := NewGate(r).Stream()
	shown := s.WriteString("x abcdefgh")
	r.Set([]secret.Value{secret.New("abcdefghXYZ")})
	shown += s.WriteString("XYZ y") + s.Flush()
	if shown != "x "+secret.Mask+" y" {
		t.Fatal(shown)
	}
}

func TestIDsAndSettingsAreNotMaskedAndNotDelayed(t *testing.T) {
	t.Parallel()
	s := gate(token, "short").Stream()
	line := "conversation 0198c0de-0000-7000-8000-000000000000 NODE_ENV=production short\n"
	if got := s.WriteString(line); got != line || !s.Clean() {
		t.Fatalf("%q, clean %v", got, s.Clean())
	}
}

// The automaton finds what comparing every pattern at every place finds.
func TestTheAutomatonFindsWhatANaiveSearchFinds(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte('a' + rng.IntN(3)) // few letters, so that patterns overlap
		}
		return string(b)
	}
	for range 3000 {
		var patterns []string
		for range 1 + rng.IntN(6) {
			patterns = append(patterns, word(1+rng.IntN(7)))
		}
		text := word(rng.IntN(60))
		covered := make([]bool, len(text))
		open := 0
		for _, p := range patterns {
			for i := range text {
				if strings.HasPrefix(text[i:], p) {
					for j := range p {
						covered[i+j] = true
					}
				}
				if strings.HasPrefix(p, text[i:]) {
					open = max(open, len(text)-i)
				}
			}
		}
		a := newAutomaton(slices.Clone(patterns))
		spans, at := a.scan(text)
		got := make([]bool, len(text))
		for i, sp := range spans {
			if i > 0 && spans[i-1].to > sp.from {
				t.Fatalf("%v overlap", spans)
			}
			for j := sp.from; j < sp.to; j++ {
				got[j] = true
			}
		}
		if !slices.Equal(got, covered) || a.depth(at) != open {
			t.Fatalf("%q in %q: %v, open %d, want %v, %d", patterns, text, got, a.depth(at), covered, open)
		}
	}
}

// Whatever the chunks, what is shown of a text in pieces is what is shown of it whole, and nothing is held back for
// longer than it could still become a secret.
func TestHowATextIsCutDoesNotChangeWhatIsShown(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	values := []string{token, "abcabcabcabd", "cabdcabdcabd", "line one of it\nand line two"}
	g := gate(values...)
	longest := g.redact.Longest()
	for range 2000 {
		var b strings.Builder
		for range 1 + rng.IntN(8) {
			v := values[rng.IntN(len(values))]
			switch rng.IntN(4) {
			case 0:
				b.WriteString(v)
			case 1:
				b.WriteString(v[:rng.IntN(len(v))])
			case 2:
				b.WriteString(base64.StdEncoding.EncodeToString([]byte(v)))
			default:
				b.WriteString("é text ")
			}
		}
		text := b.String()
		s := g.Stream()
		var got strings.Builder
		for rest := text; rest != ""; {
			n := min(1+rng.IntN(12), len(rest))
			got.WriteString(s.WriteString(rest[:n]))
			rest = rest[n:]
			if len(s.held) > 2*longest {
				t.Fatalf("%d bytes are held back", len(s.held))
			}
		}
		got.WriteString(s.Flush())
		if whole := g.String(text); got.String() != whole {
			t.Fatalf("%q whole is %q, in pieces %q", text, whole, got.String())
		}
	}
}

func FuzzAutomaton(f *testing.F) {
	f.Add("abcd", "bc", "abcbcd")
	f.Fuzz(func(t *testing.T, p, q, text string) {
		if p == "" || q == "" {
			return
		}
		spans, _ := newAutomaton([]string{p, q}).scan(text)
		if masked := mask(text, spans); strings.ReplaceAll(masked, secret.Mask, "") != "" && !strings.Contains(secret.Mask, p) && !strings.Contains(secret.Mask, q) {
			for i, part := range strings.Split(masked, secret.Mask) {
				if strings.Contains(part, p) || strings.Contains(part, q) {
					t.Fatalf("part %d of %q shows %q or %q", i, masked, p, q)
				}
			}
		}
	})
}

func BenchmarkRedactManySecrets(b *testing.B) {
	var values []secret.Value
	for i := range 200 {
		values = append(values, secret.New(fmt.Sprintf("%c%s-%d", 'a'+i%26, token, i)))
	}
	g := NewGate(NewRedactor(values...))
	text := strings.Repeat("ok  \tstorefront/cart\t0.213s some ordinary output\n", 200)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		g.String(text)
	}
	b.ReportMetric(float64(len(g.redact.find.Load().label)*21)/1024, "KiB/automaton")
}

func BenchmarkNewRedactor(b *testing.B) {
	var values []secret.Value
	for i := range 50 {
		values = append(values, secret.New(fmt.Sprintf("%s-%d", token, i)))
	}
	for b.Loop() {
		NewRedactor(values...)
	}
}
