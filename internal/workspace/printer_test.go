package workspace

import (
	"strings"
	"testing"
	"unicode/utf8"

	"managoat/internal/stream"
)

// Whatever is printed, the events of it are small enough, whole, and cut no character in two.
func TestBatchesOfOutputAreItInPieces(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":                  "",
		"one line":                 "a\n",
		"no newline":               "working …",
		"empty lines":              "\n\n\n",
		"many lines":               strings.Repeat("a line of some length\n", 5000),
		"one endless line":         strings.Repeat("é", 20000),
		"long lines":               strings.Repeat(strings.Repeat("日", 5000)+"\n", 3),
		"a line of just the limit": strings.Repeat("x", stream.MaxLines-1) + "\n" + "y",
	} {
		got := ""
		for rest := text; rest != ""; {
			var part string
			part, rest = splitBatch(rest)
			if part == "" || len(part) > stream.MaxLines || !utf8.ValidString(part) {
				t.Fatalf("%s: a batch of %d bytes", name, len(part))
			}
			all := lines(part)
			for i, l := range all {
				if strings.Contains(strings.TrimSuffix(l, "\n"), "\n") || i < len(all)-1 && !strings.HasSuffix(l, "\n") {
					t.Fatalf("%s: line %d is %q", name, i, l)
				}
			}
			got += strings.Join(all, "")
		}
		if got != text {
			t.Errorf("%s: the batches are not the text", name)
		}
	}
}

func TestACutOfOutputBeginsAtALineOrAtLeastACharacter(t *testing.T) {
	t.Parallel()
	if got := lineStart([]byte("one\ntwo\nthree"), 2); got != 4 {
		t.Errorf("cut at %d", got)
	}
	if got := lineStart([]byte("one\ntwo"), 4); got != 4 {
		t.Errorf("a cut at a line's start moves to %d", got)
	}
	if got := lineStart([]byte("日本語"), 1); got != 3 {
		t.Errorf("in the middle of a character: %d", got)
	}
}
