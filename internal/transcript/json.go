package transcript

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"managoat/internal/secret"
)

// What PostgreSQL's jsonb holds of numbers grows with the exponent: eight bytes can become 131,072 digits. Numbers that
// no reader means are kept as strings.
const (
	maxDigits   = 400
	maxExponent = 400
)

// maxSpans is how many places of a document are masked one by one; past it all of the document is.
const maxSpans = 64

// rewriteJSON makes a JSON document storable and keeps it valid: strings and keys are cleaned (NUL is U+2400, what is no
// UTF-8 and lone surrogates are U+FFFD) and passed through text, numbers too, which become strings when they change or
// when jsonb should not hold them. What needs no change stays byte for byte. false: it is no JSON.
func rewriteJSON(doc []byte, text func(string) string) ([]byte, bool) {
	if !json.Valid(doc) {
		return nil, false
	}
	var out bytes.Buffer
	out.Grow(len(doc))
	for i := 0; i < len(doc); {
		switch c := doc[i]; {
		case c == '"':
			end := endOfString(doc, i)
			out.Write(rewriteString(doc[i:end], text))
			i = end
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(doc) && strings.IndexByte("+-.eE0123456789", doc[end]) >= 0 {
				end++
			}
			number := string(doc[i:end])
			if shown := text(number); shown != number || !meant(number) {
				out.Write(quote(shown))
			} else {
				out.WriteString(number)
			}
			i = end
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.Bytes(), true
}

// endOfString is the place after a string that begins at i, in a valid document.
func endOfString(doc []byte, i int) int {
	for i++; doc[i] != '"'; i++ {
		if doc[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func rewriteString(raw []byte, text func(string) string) []byte {
	s := string(raw[1 : len(raw)-1])
	if bytes.IndexByte(raw, '\\') >= 0 || !utf8.Valid(raw) {
		if json.Unmarshal(raw, &s) != nil {
			return []byte(`""`) // not in a valid document
		}
	}
	if t := text(clean(s)); t != s || strings.ContainsRune(s, utf8.RuneError) {
		return quote(t)
	}
	return raw
}

func quote(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(s) != nil {
		return []byte(`""`) // a string always encodes
	}
	return bytes.TrimSpace(b.Bytes())
}

// meant tells whether a number is of a size that somebody could mean.
func meant(number string) bool {
	digits, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	if len(digits) > maxDigits {
		return false
	}
	if exponent == "" {
		return true
	}
	n, err := strconv.Atoi(exponent)
	return err == nil && n >= -maxExponent && n <= maxExponent
}

// Storable makes a document of ours one that jsonb takes.
func Storable(doc json.RawMessage) json.RawMessage {
	if out, ok := rewriteJSON(doc, func(s string) string { return s }); ok {
		return out
	}
	return doc
}

// maskValues masks what the text of a document still shows of secrets when its strings do not: a secret that is JSON
// itself. The smallest value around each is replaced, so that the document stays valid.
func (g *Gate) maskValues(doc []byte) []byte {
	spans, _ := g.redact.find.Load().scan(string(doc))
	if len(spans) == 0 {
		return doc
	}
	values := valuesOf(doc)
	whole := values[len(values)-1]
	if len(spans) > maxSpans {
		values = nil
	}
	var hidden []span
	for _, sp := range spans {
		around := whole
		for _, v := range values {
			if v.from <= sp.from && sp.to <= v.to && v.to-v.from < around.to-around.from {
				around = v
			}
		}
		hidden = append(hidden, around)
	}
	var out bytes.Buffer
	at := 0
	for _, h := range outermost(hidden) {
		out.Write(doc[at:h.from])
		out.Write(quote(secret.Mask))
		at = h.to
	}
	out.Write(doc[at:])
	return out.Bytes()
}

// valuesOf are the places of all values in a valid document, the whole of it last.
func valuesOf(doc []byte) (values []span) {
	var open []int
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '"':
			end := endOfString(doc, i)
			values = append(values, span{i, end})
			i = end - 1
		case '{', '[':
			open = append(open, i)
		case '}', ']':
			values = append(values, span{open[len(open)-1], i + 1})
			open = open[:len(open)-1]
		}
	}
	from := len(doc) - len(bytes.TrimLeft(doc, " \t\r\n"))
	return append(values, span{from, len(bytes.TrimRight(doc, " \t\r\n"))})
}

// outermost are those ranges that lie in no other, in order.
func outermost(spans []span) (out []span) {
	for _, sp := range spans {
		for len(out) > 0 && out[len(out)-1].from >= sp.from {
			out = out[:len(out)-1]
		}
		if len(out) == 0 || out[len(out)-1].to <= sp.from {
			out = append(out, sp)
		}
	}
	return out
}
