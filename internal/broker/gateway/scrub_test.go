package gateway

import (
	"bytes"
	"strings"
	"testing"
)

const testKey = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz012345"

func scrubAll(key string, chunks ...string) string {
	s := newScrubber(key)
	var out bytes.Buffer
	for _, c := range chunks {
		out.Write(s.next([]byte(c)))
	}
	out.Write(s.end())
	return out.String()
}

func TestAKeyCutAnywhereIsScrubbed(t *testing.T) {
	t.Parallel()
	text := "before " + testKey + " after " + testKey + "x"
	for i := range len(text) {
		for j := i; j <= len(text); j += 7 {
			got := scrubAll(testKey, text[:i], text[i:j], text[j:])
			if len(got) != len(text) || !strings.HasPrefix(got, "before [REDACTED]***") || !strings.HasSuffix(got, "*x") {
				t.Fatalf("cut at %d and %d: %q", i, j, got)
			}
			for k := 0; k+8 <= len(testKey); k++ {
				if strings.Contains(got, testKey[k:k+8]) {
					t.Fatalf("cut at %d and %d: %q holds a piece of the key", i, j, got)
				}
			}
		}
	}
}

func TestNothingButTheBeginningOfAKeyWaits(t *testing.T) {
	t.Parallel()
	s := newScrubber(testKey)
	for _, piece := range []string{"data: {}\n\n", "s", "k", "-x", "sk-ant-api03-AbC", "sk-ant"} {
		got := string(s.next([]byte(piece)))
		switch piece {
		case "s", "k":
			if got != "" {
				t.Errorf("%q went on although the key may have begun", got)
			}
		case "-x":
			if got != "sk-x" {
				t.Errorf("got %q when the key had not come", got)
			}
		case "sk-ant-api03-AbC":
			if got != "" {
				t.Errorf("got %q", got)
			}
		case "sk-ant":
			if got != "sk-ant-api03-AbC" {
				t.Errorf("got %q", got)
			}
		default:
			if got != piece {
				t.Errorf("%q became %q", piece, got)
			}
		}
	}
	if got := string(s.end()); got != "sk-ant" {
		t.Errorf("the end gave %q", got)
	}
}

func FuzzScrub(f *testing.F) {
	f.Add("aab", "xaaabaab", uint8(2), uint8(5))
	f.Add(testKey, testKey+testKey, uint8(10), uint8(60))
	f.Add("", "text", uint8(1), uint8(2))
	f.Fuzz(func(t *testing.T, key, text string, i, j uint8) {
		a := min(int(i), len(text))
		b := min(a+int(j), len(text))
		got := scrubAll(key, text[:a], text[a:b], text[b:])
		if len(got) != len(text) {
			t.Fatalf("%d bytes became %d", len(text), len(got))
		}
		if whole := scrubAll(key, text); got != whole {
			t.Fatalf("in pieces %q, at once %q", got, whole)
		}
		if key != "" && !strings.Contains(text, key) && got != text {
			t.Fatalf("%q became %q without the key %q in it", text, got, key)
		}
	})
}
