// Package secret holds what must not be seen: values that mask themselves wherever they are printed, and the
// envelope encryption that keeps them at rest.
package secret

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// Mask stands wherever a secret was.
const Mask = "[REDACTED]"

// Value is a secret string. It masks itself in every verb of fmt, in JSON, text and slog; only Reveal gives it.
//
// The string lies behind a pointer: fmt calls no method of a value in an unexported field and prints what it finds
// there, which is then an address. Compare with Equal, since == compares the pointers.
type Value struct{ s *string }

// New wraps a secret string.
func New(s string) Value { return Value{&s} }

// Reveal returns the secret. Callers hand it to what needs it and to nothing that prints.
func (v Value) Reveal() string {
	if v.s == nil {
		return ""
	}
	return *v.s
}

// Empty tells whether there is nothing inside.
func (v Value) Empty() bool { return v.Reveal() == "" }

// Equal compares two secrets in time that does not depend on where they differ.
func (v Value) Equal(w Value) bool {
	return subtle.ConstantTimeCompare([]byte(v.Reveal()), []byte(w.Reveal())) == 1
}

// Format masks with any verb and flag.
func (v Value) Format(f fmt.State, _ rune) { io.WriteString(f, Mask) }

// String masks.
func (v Value) String() string { return Mask }

// GoString masks.
func (v Value) GoString() string { return Mask }

// MarshalJSON masks.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(Mask) }

// MarshalText masks.
func (v Value) MarshalText() ([]byte, error) { return []byte(Mask), nil }

// UnmarshalJSON reads a plain string, so that request bodies can hold secrets. Its error does not repeat what it read.
func (v *Value) UnmarshalJSON(b []byte) error {
	var s *string
	if json.Unmarshal(b, &s) != nil {
		return fmt.Errorf("a secret must be a string")
	}
	v.s = s
	return nil
}

// UnmarshalText reads a plain string.
func (v *Value) UnmarshalText(b []byte) error {
	*v = New(string(b))
	return nil
}

// LogValue masks.
func (v Value) LogValue() slog.Value { return slog.StringValue(Mask) }
