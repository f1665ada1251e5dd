// Package secret holds what must not be seen: values that mask themselves wherever they are printed, and the
// envelope encryption that keeps them at rest.
package secret

import (
	"encoding/json"
	"log/slog"
)

// Mask stands wherever a secret was.
const Mask = "[REDACTED]"

// Value is a secret string. It masks itself in String, GoString, formatting with any verb, JSON, text and slog; only
// Reveal gives it.
type Value struct{ s string }

// New wraps a secret string.
func New(s string) Value { return Value{s} }

// Reveal returns the secret. Callers hand it to what needs it and to nothing that prints.
func (v Value) Reveal() string { return v.s }

// Empty tells whether there is nothing inside.
func (v Value) Empty() bool { return v.s == "" }

// String masks.
func (v Value) String() string { return Mask }

// GoString masks.
func (v Value) GoString() string { return Mask }

// MarshalJSON masks.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(Mask) }

// MarshalText masks.
func (v Value) MarshalText() ([]byte, error) { return []byte(Mask), nil }

// UnmarshalJSON reads a plain string, so that request bodies can hold secrets.
func (v *Value) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &v.s) }

// LogValue masks.
func (v Value) LogValue() slog.Value { return slog.StringValue(Mask) }

// UnmarshalText reads a plain string.
func (v *Value) UnmarshalText(b []byte) error { v.s = string(b); return nil }
