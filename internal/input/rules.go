package input

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"managoat/internal/refusal"
)

// Limits of what several resources have.
const (
	MaxName        = 200      // characters
	MaxDescription = 10_000   // characters
	MaxMetadata    = 16 << 10 // bytes of its JSON
)

// Name trims the name of a thing and checks it: 1 to MaxName characters on one line that a page can show as they are.
func Name(v *refusal.Validation, field string, name *string) {
	*name = strings.TrimSpace(*name)
	switch n := utf8.RuneCountInString(*name); {
	case n == 0:
		v.Add(field, "must not be empty")
	case n > MaxName:
		v.Add(field, "must have at most %d characters, has %d", MaxName, n)
	}
	if !utf8.ValidString(*name) || strings.ContainsFunc(*name, unprintable) {
		v.Add(field, "must not hold control or direction characters")
	}
}

// unprintable are characters that break a line, do something to a terminal, or turn the text around them.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) || unicode.Is(unicode.Bidi_Control, r)
}

// Text checks a text of several lines. PostgreSQL cannot store NUL, and no program reads it in a script or a prompt: it
// is refused instead of dropped.
func Text(v *refusal.Validation, field, text string, maxBytes int) {
	if !storable(text) {
		v.Add(field, "must be UTF-8 text without NUL characters")
	}
	if len(text) > maxBytes {
		v.Add(field, "must have at most %d bytes, has %d", maxBytes, len(text))
	}
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// Lines makes the line ends of a text that a browser or Windows sent those of the machine that will read it.
func Lines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// Metadata checks what people attach to a resource: an object of at most MaxMetadata bytes. nil becomes {}.
func Metadata(v *refusal.Validation, field string, m *map[string]any) {
	if *m == nil {
		*m = map[string]any{}
	}
	b, err := json.Marshal(*m)
	if err != nil {
		v.Add(field, "must be a JSON object")
		return
	}
	if len(b) > MaxMetadata {
		v.Add(field, "must have at most %d bytes of JSON, has %d", MaxMetadata, len(b))
	}
	if !storableJSON(*m) {
		v.Add(field, "must not hold NUL characters")
	}
}

func storableJSON(x any) bool {
	switch x := x.(type) {
	case string:
		return storable(x)
	case []any:
		return !slices.ContainsFunc(x, func(e any) bool { return !storableJSON(e) })
	case map[string]any:
		for k, e := range x {
			if !storable(k) || !storableJSON(e) {
				return false
			}
		}
	}
	return true
}

// Environment variables that a machine's setup owns: a person's value would cut the machine off from its proxy, its
// certificates or its own programs.
var reservedVariables = []string{
	"PATH", "HOME",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "NODE_USE_ENV_PROXY",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
	"PIP_CERT", "CARGO_HTTP_CAINFO", "NPM_CONFIG_CAFILE", "CODEX_CA_CERTIFICATE", "AWS_CA_BUNDLE", "DENO_CERT",
}

// Prefixes of such variables.
var reservedPrefixes = []string{"LD_", "MANAGOAT_"}

// MaxVariableName is how many characters the name of a variable has at most.
const MaxVariableName = 200

// VariableName says what is wrong with the name of an environment variable or of a secret that becomes one; "" when
// nothing is. The sentence holds the name.
func VariableName(name string) string {
	if !variable(name) {
		return fmt.Sprintf("%q is not a name of a variable: letters, digits and _, not beginning with a digit, at most %d characters", name, MaxVariableName)
	}
	upper := strings.ToUpper(name) // programs read proxies in either case
	if slices.Contains(reservedVariables, upper) || slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(upper, p) }) {
		return fmt.Sprintf("%q is reserved: the machine sets it itself", name)
	}
	return ""
}

func variable(name string) bool {
	for i, r := range []byte(name) {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && len(name) <= MaxVariableName
}

// Changed names the fields in which two values of one struct type differ, by their json names and sorted. For audit
// rows: names, never values.
func Changed(before, after any) []string {
	b, a := fields(before), fields(after)
	out := []string{}
	for name := range a {
		if string(a[name]) != string(b[name]) {
			out = append(out, name)
		}
		delete(b, name)
	}
	out = slices.AppendSeq(out, maps.Keys(b)) // gone, when empty fields are left out
	slices.Sort(out)
	return out
}

func fields(v any) map[string]json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own structs
	}
	var out map[string]json.RawMessage
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

// NameTaken is the refusal of a name that another thing of the account has.
func NameTaken(kind, name string) error {
	message := "is the name of another " + kind
	return refusal.New(refusal.NameTaken, "Another %s of this account is called %q. Choose another name.", kind, name).
		With("errors", map[string][]string{"name": {message}})
}
