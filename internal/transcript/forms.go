package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
)

// forms are the texts that give a secret away: itself and each line of it, as they are, JSON-escaped (with and without
// the optional escapes), URL-encoded, base64 at any alignment (so inside basic auth too) and wrapped as base64 tools do.
func forms(value string) []string {
	parts := []string{value, strings.TrimSpace(value)}
	for line := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") { // the armour of a key is the same everywhere
			parts = append(parts, line)
		}
	}
	slices.Sort(parts)
	var out []string
	for _, p := range slices.Compact(parts) {
		if len(p) < MinSecret {
			continue
		}
		out = append(out, p, clean(p))
		out = append(out, jsonForms(p)...)
		out = append(out, urlForms(p)...)
		out = append(out, base64Forms(p)...)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(s string) bool { return len(s) < MinSecret })
}

// jsonForms are how JSON encoders write a string.
func jsonForms(s string) []string {
	encode := func(html bool) string {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(html)
		if enc.Encode(s) != nil {
			return "" // a string always encodes
		}
		return strings.Trim(strings.TrimSpace(b.String()), `"`)
	}
	plain := encode(false)
	return []string{plain, encode(true), ascii(plain), strings.ReplaceAll(plain, "/", `\/`)}
}

// ascii writes what is not ASCII as \u escapes.
func ascii(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}

// urlForms are how a value is written in a URL or a form: libraries differ in what they leave as it is.
func urlForms(s string) []string {
	out := []string{url.QueryEscape(s), url.PathEscape(s)}
	for _, kept := range []string{"", "/", "!'()*"} {
		upper := percent(s, "-_.~"+kept, "%%%02X")
		out = append(out, upper, percent(s, "-_.~"+kept, "%%%02x"), strings.ReplaceAll(upper, "%20", "+"))
	}
	return out
}

func percent(s, kept, format string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.IndexByte(kept, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, format, c)
		}
	}
	return b.String()
}

// base64Forms are what base64 shows of s wherever it begins, and the lines that tools of 76 and 64 columns make of it.
func base64Forms(s string) (out []string) {
	for shift := range 3 {
		std := base64Form(base64.RawStdEncoding, s, shift)
		out = append(out, std, base64Form(base64.RawURLEncoding, s, shift))
		if shift > 0 {
			continue
		}
		for _, width := range []int{76, 64} {
			if len(std) > width {
				for line := range slices.Chunk([]byte(std), width) {
					out = append(out, string(line))
				}
			}
		}
	}
	return out
}

// base64Form is what base64 shows of s when shift bytes stand before it: the characters that s alone decides.
func base64Form(enc *base64.Encoding, s string, shift int) string {
	all := enc.EncodeToString(append(make([]byte, shift), s...))
	from, to := (shift*8+5)/6, (shift+len(s))*8/6
	return all[from:to]
}
