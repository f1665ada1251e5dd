// Package markup turns text that nobody vouches for into HTML that is safe to show: what an agent wrote
// (Markdown), what a program printed (ANSI), what changed (Diff), what a file holds (Code).
//
// It is the only place of the console where HTML is made without templ's escaping, and Markdown holds the
// only templ.Raw of the project. Nothing here does I/O.
package markup

import (
	"io"
	"strings"
	"unicode/utf8"
)

// escaper escapes for text and for quoted attribute values.
var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

// visible writes text escaped, with every character that would act instead of being read shown as a symbol:
// control characters as their pictures (U+2400…), the overrides of writing direction, which can make text
// read differently from what it is, as their code points.
func visible(w io.Writer, text string) error {
	start := 0
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		shown := ""
		switch {
		case r == '\n' || r == '\t':
		case r < 0x20:
			shown = string(rune(0x2400 + r))
		case r == 0x7f:
			shown = "\u2421"
		case r == utf8.RuneError && size == 1:
			shown = "\uFFFD"
		case r >= 0x80 && r <= 0x9f:
			shown = "\uFFFD"
		case (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069):
			shown = "<U+" + strings.ToUpper(hex(r)) + ">"
		}
		if shown != "" {
			if _, err := escaper.WriteString(w, text[start:i]); err != nil {
				return err
			}
			if _, err := escaper.WriteString(w, shown); err != nil {
				return err
			}
			start = i + size
		}
		i += size
	}
	_, err := escaper.WriteString(w, text[start:])
	return err
}

func hex(r rune) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15]})
}
