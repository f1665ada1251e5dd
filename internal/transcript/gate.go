// Package transcript is the one gate between bytes and PostgreSQL, and the writers behind it.
//
// Whatever a machine, a model or git prints passes, in this order and once: UTF-8 (a split character waits for its
// rest), control characters, redaction (a tail that could begin a secret waits), budget, numbered rows.
package transcript

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Gate makes streams whose text may be stored and shown.
type Gate struct{ redact *Redactor }

// NewGate makes a gate that masks what the redactor knows.
func NewGate(r *Redactor) *Gate { return &Gate{redact: r} }

// Text is one logical stream: a message, a tool call's stdout, a setup step. It holds back at most what could be part
// of a character or of a secret. Not safe for concurrent use.
type Text struct {
	gate    *Gate
	partial []byte // the start of a character
	held    string // text that could begin a secret
}

// Stream makes a stream.
func (g *Gate) Stream() *Text { return &Text{gate: g} }

// Write takes bytes and returns what may be shown of all that came.
func (t *Text) Write(p []byte) string {
	if len(t.partial) > 0 {
		p = append(t.partial, p...)
		t.partial = nil
	}
	cut := len(p) - incomplete(p)
	t.partial = append(t.partial, p[cut:]...)
	return t.show(clean(string(p[:cut])), false)
}

// WriteString is Write.
func (t *Text) WriteString(s string) string { return t.Write([]byte(s)) }

// Flush returns what was held back, at the end of the stream: a character that stayed half is U+FFFD. What is more than
// half of a secret is masked, so that a cut does not show nearly all of one.
func (t *Text) Flush() string {
	rest := ""
	if len(t.partial) > 0 {
		rest, t.partial = clean(string(t.partial)), nil
	}
	return t.show(rest, true)
}

// Clean tells whether nothing is held back: the place up to which the source was read may be stored.
func (t *Text) Clean() bool { return len(t.partial) == 0 && t.held == "" }

func (t *Text) show(s string, end bool) string {
	s = t.held + s
	t.held = ""
	a := t.gate.redact.find.Load()
	spans, state := a.scan(s)
	if end {
		return mask(s, a.most(spans, state, len(s)))
	}
	// Nothing that begins before the place from which on a secret may still grow is cut in two.
	hold := len(s) - a.depth(state)
	for len(spans) > 0 && spans[len(spans)-1].to > hold {
		hold = min(hold, spans[len(spans)-1].from)
		spans = spans[:len(spans)-1]
	}
	t.held = strings.Clone(s[hold:])
	return mask(s[:hold], spans)
}

// incomplete is how many bytes at the end are the start of a character that more bytes could complete.
func incomplete(p []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(p)); n++ {
		if b := p[len(p)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// clean makes text storable: bytes that are no UTF-8 are U+FFFD, NUL is its picture U+2400. Everything else stays as data.
func clean(s string) string {
	if !utf8.ValidString(s) {
		s = string([]rune(s)) // one U+FFFD a byte, so that the result does not depend on how the text was split
	}
	return strings.ReplaceAll(s, "\x00", "\u2400")
}

// String passes a whole text through the gate.
func (g *Gate) String(s string) string { return g.redact.Text(clean(s)) }

// JSON passes a JSON document through the gate and keeps it one: see rewriteJSON. A secret is masked in the text that a
// string means, and where it is written out in the document itself. What is no JSON is passed as text.
func (g *Gate) JSON(doc []byte) []byte {
	out, ok := rewriteJSON(doc, g.redact.Text)
	if !ok {
		return []byte(g.String(string(doc)))
	}
	return g.maskValues(out)
}

// OneLine passes a title or another field of one line through the gate: no control characters, no escape sequences,
// nothing that turns the direction of text, at most most characters.
func (g *Gate) OneLine(s string, most int) string {
	s = strings.Join(strings.Fields(withoutEscapes(g.String(s))), " ")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner {
			return -1
		}
		return r
	}, s)
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most-1]) + "…"
	}
	return s
}

const zeroWidthJoiner = '\u200d' // joins emoji

// withoutEscapes drops terminal sequences (ECMA-48): CSI, the strings OSC, DCS, SOS, PM and APC, and the short
// ones, each with ESC or as a C1 control.
func withoutEscapes(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == '\x1b' || r >= 0x80 && r < 0xa0 }) {
		return s
	}
	var out strings.Builder
	runes := []rune(s)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		if r == '\x1b' && i+1 < len(runes) {
			i++
			short := i
			for i+1 < len(runes) && runes[i] >= ' ' && runes[i] <= '/' { // intermediate characters
				i++
			}
			if r = runes[i]; i > short || r < '@' || r > '_' {
				continue
			}
			r += 0x40 // the C1 control that it stands for
		}
		switch r {
		case 0x9b: // CSI: parameters, then one final character
			for i++; i < len(runes) && (runes[i] < '@' || runes[i] > '~'); i++ {
			}
		case 0x90, 0x98, 0x9d, 0x9e, 0x9f: // strings, up to ST or BEL
			for i++; i < len(runes) && runes[i] != 0x9c && runes[i] != '\a'; i++ {
				if runes[i] == '\x1b' && i+1 < len(runes) && runes[i+1] == '\\' {
					i++
					break
				}
			}
		default:
			if r < 0x80 || r >= 0xa0 {
				out.WriteRune(r)
			}
		}
	}
	return out.String()
}
