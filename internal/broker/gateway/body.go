package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

var (
	errNotObject = errors.New("the body is not a JSON object")
	errTwice     = errors.New("a field of the body stands twice")
)

// span is where a value lies in a body.
type span struct{ from, to int }

// fields finds the top-level fields of a JSON object without decoding their values. Names are compared as a strict
// reader does: escapes decoded, case kept, none twice; a looser reader could be shown one model and the provider
// another.
func fields(body []byte) (map[string]span, error) {
	if !json.Valid(body) {
		return nil, errNotObject
	}
	found := map[string]span{}
	i := skipSpace(body, 0)
	if body[i] != '{' {
		return nil, errNotObject
	}
	for i = skipSpace(body, i+1); body[i] != '}'; i = skipSpace(body, i) {
		if body[i] == ',' {
			i = skipSpace(body, i+1)
		}
		end := skipString(body, i)
		var name string
		if err := json.Unmarshal(body[i:end], &name); err != nil {
			return nil, errNotObject
		}
		from := skipSpace(body, skipSpace(body, end)+1) // past the colon
		i = skipValue(body, from)
		if _, twice := found[name]; twice {
			return nil, fmt.Errorf("%w: %q", errTwice, name)
		}
		found[name] = span{from, i}
	}
	return found, nil
}

// The skip functions walk valid JSON only.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipValue(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\r', '\t':
			i++
			continue // between values
		default:
			for i < len(b) && bytes.IndexByte([]byte(",:]} \n\r\t"), b[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// textField reads a top-level string.
func textField(body []byte, found map[string]span, name string) string {
	var s string
	if at, ok := found[name]; ok && json.Unmarshal(body[at.from:at.to], &s) != nil {
		return ""
	}
	return s
}

// set tells whether a field is there and neither null nor false.
func set(body []byte, found map[string]span, name string) bool {
	at, ok := found[name]
	if !ok {
		return false
	}
	v := string(body[at.from:at.to])
	return v != "null" && v != "false"
}

// withUsage asks for the usage of a streamed chat completion, which OpenAI leaves out otherwise. All else of the body
// stays byte for byte.
func withUsage(body []byte, found map[string]span) []byte {
	if !set(body, found, "stream") {
		return body
	}
	at, there := found["stream_options"]
	if !there || !set(body, found, "stream_options") {
		const field = `"stream_options":{"include_usage":true}`
		if there {
			return slices.Concat(body[:at.from], []byte(`{"include_usage":true}`), body[at.to:])
		}
		open := bytes.IndexByte(body, '{') + 1
		return slices.Concat(body[:open], []byte(field+","), body[open:]) // "stream" is there, so more follows
	}
	var options map[string]json.RawMessage
	if json.Unmarshal(body[at.from:at.to], &options) != nil {
		return body // the provider says what is wrong with it
	}
	options["include_usage"] = json.RawMessage("true")
	text, err := json.Marshal(options)
	if err != nil {
		return body
	}
	return slices.Concat(body[:at.from], text, body[at.to:])
}
