// Package transcript is the one gate between bytes and PostgreSQL, and the writers behind it.
//
// Whatever a machine, a model or git prints passes, in this order and once: UTF-8 (a split character waits for its
// rest), control characters, redaction (a tail that could begin a secret waits), budget, numbered rows.
package transcript

import (
	"bytes"
	"encoding/json"
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

// Flush returns what was held back, at the end of the stream: a character that stayed half is U+FFFD.
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
	spans, open := a.scan(s)
	if end {
		open = 0
	}
	// Nothing that begins before the place from which on a secret may still grow is cut in two.
	hold := len(s) - open
	for len(spans) > 0 && spans[len(spans)-1].to > hold {
		hold = min(hold, spans[len(spans)-1].from)
		spans = spans[:len(spans)-1]
	}
	t.held = strings.Clone(s[hold:])
	if len(spans) == 0 {
		return s[:hold]
	}
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

// OneLine passes a title or another field of one line through the gate: no control characters, no ANSI, at most max
// characters.
func (g *Gate) OneLine(s string, max int) string {
	s = stripANSI(g.String(s))
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) }), " ")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, s)
	if runes := []rune(s); len(runes) > max {
		s = string(runes[:max-1]) + "…"
	}
	return s
}

// stripANSI drops escape sequences: CSI, OSC and the two-character ones.
func stripANSI(s string) string {
	if !strings.ContainsRune(s, 0x1b) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != 0x1b {
			b.WriteByte(s[i])
			continue
		}
		if i++; i >= len(s) {
			break
		}
		switch s[i] {
		case '[':
			for i++; i < len(s) && (s[i] < 0x40 || s[i] > 0x7e); i++ {
			}
		case ']':
			for i++; i < len(s) && s[i] != 0x07 && s[i] != 0x1b; i++ {
			}
			if i+1 < len(s) && s[i] == 0x1b && s[i+1] == '\\' {
				i++
			}
		}
	}
	return b.String()
}

// JSON passes a JSON document through the gate and keeps it one: the strings in it (keys too) are cleaned and masked,
// lone surrogates become U+FFFD, a number that is a secret becomes the mask. What needs no change stays byte for byte.
// A document that is not valid JSON is passed as text.
func (g *Gate) JSON(doc []byte) []byte {
	if !json.Valid(doc) {
		return []byte(g.String(string(doc)))
	}
	var out bytes.Buffer
	out.Grow(len(doc))
	for i := 0; i < len(doc); {
		switch c := doc[i]; {
		case c == '"':
			end := i + 1
			for doc[end] != '"' {
				if doc[end] == '\\' {
					end++
				}
				end++
			}
			end++
			out.Write(g.literal(doc[i:end]))
			i = end
		case c == '-' || c >= '0' && c <= '9':
			end := i
			for end < len(doc) && strings.IndexByte("+-.eE0123456789", doc[end]) >= 0 {
				end++
			}
			if number := string(doc[i:end]); g.redact.Text(number) != number {
				out.WriteString(`"[REDACTED]"`)
			} else {
				out.WriteString(number)
			}
			i = end
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.Bytes()
}

func (g *Gate) literal(raw []byte) []byte {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return raw // not possible in a valid document
	}
	t := g.String(s)
	if t == s && !strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(raw, 0) {
		return raw
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(t) != nil {
		return raw
	}
	return bytes.TrimSpace(b.Bytes())
}

// Budget keeps the head and the tail of an output and counts what lies between.
type Budget struct {
	limit   int
	head    strings.Builder
	tail    []byte
	total   int64
	dropped int64
}

// NewBudget keeps limit bytes: half of them from the start, half from the end.
func NewBudget(limit int) *Budget { return &Budget{limit: limit} }

// Write takes text and returns the part of it that is still within the head: what may be shown live.
func (b *Budget) Write(s string) string {
	b.total += int64(len(s))
	shown := ""
	if room := b.limit/2 - b.head.Len(); room > 0 {
		cut := runeCut(s, room)
		shown = s[:cut]
		b.head.WriteString(shown)
		s = s[cut:]
	}
	if s == "" {
		return shown
	}
	b.tail = append(b.tail, s...)
	if keep := b.limit / 2; len(b.tail) > 2*keep { // cut in steps, not at every byte
		b.cut(keep)
	}
	return shown
}

func (b *Budget) cut(keep int) {
	if over := len(b.tail) - keep; over > 0 {
		for over < len(b.tail) && !utf8.RuneStart(b.tail[over]) {
			over++
		}
		b.dropped += int64(over)
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
}

// Output is the head, and the tail behind a line that counts what is missing. truncated tells whether anything is.
func (b *Budget) Output() (text string, truncated bool) {
	b.cut(b.limit / 2)
	if b.dropped == 0 {
		return b.head.String() + string(b.tail), false
	}
	return b.head.String() + gap(b.dropped) + string(b.tail), true
}

// Total is how many bytes came.
func (b *Budget) Total() int64 { return b.total }

func runeCut(s string, room int) int {
	if len(s) <= room {
		return len(s)
	}
	for room > 0 && !utf8.RuneStart(s[room]) {
		room--
	}
	return room
}
