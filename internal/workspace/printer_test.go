package workspace

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"managoat/internal/stream"
	"managoat/sandbox/guest"
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

// What two streams print at once keeps its lines; the start of a line is shown alone when its end does not come.
func TestLinesOfTwoStreamsDoNotMix(t *testing.T) {
	t.Parallel()
	p := &printer{open: map[guest.Stream]openLine{}, wake: make(chan struct{}, 1)}
	p.put(guest.Stdout, "Building dependency tree...")
	p.put(guest.Stderr, "E")
	p.put(guest.Stdout, "\nReading state\nsta")
	p.put(guest.Stderr, ": no such package\n")
	if got := string(p.kept); got != "Building dependency tree...\nReading state\nE: no such package\n" {
		t.Errorf("kept %q", got)
	}
	p.showOpen(time.Hour)
	if got := string(p.kept); strings.HasSuffix(got, "sta") {
		t.Error("the start of a line did not wait")
	}
	p.showOpen(0)
	if got := string(p.kept); !strings.HasSuffix(got, "package\nsta") {
		t.Errorf("kept %q", got)
	}
	p.put(guest.Stdout, strings.Repeat("x", maxLine+1))
	if got := string(p.pending); !strings.HasSuffix(got, "xxx") {
		t.Error("an endless line is waited for without end")
	}
}
