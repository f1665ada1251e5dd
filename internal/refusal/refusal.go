// Package refusal is the one kind of error that people and programs see: a code from one table, a status, a sentence
// with the next step, and the extra fields its code promises.
//
// Services return a *Refusal for what the caller can do something about. Every other error is ours: the edge logs it
// with the request id and answers "internal".
package refusal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Code names a refusal. The constants and what each means are in codes.go, the one table.
type Code string

// Refusal is an answer of no, with its reason and the next step.
type Refusal struct {
	Code    Code
	Message string
	Fields  map[string]any // the extra fields its code promises: errors, status, changed_fields, retry_after_seconds …
}

// New makes a refusal of a code of the table. The message is a sentence that says what was refused, by which rule,
// and what to do; it holds no secret and no other account's data.
func New(code Code, format string, args ...any) *Refusal {
	if _, ok := table[code]; !ok {
		panic("refusal: code " + string(code) + " is not in the table")
	}
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns the refusal with one more field.
func (r *Refusal) With(field string, value any) *Refusal {
	c := *r
	c.Fields = maps.Clone(r.Fields)
	if c.Fields == nil {
		c.Fields = map[string]any{}
	}
	c.Fields[field] = value
	return &c
}

// RetryAfter returns the refusal with the time after which to try again.
func (r *Refusal) RetryAfter(d time.Duration) *Refusal {
	seconds := int((d + time.Second - 1) / time.Second)
	return r.With("retry_after_seconds", max(seconds, 1))
}

func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Message }

// Status is the HTTP status of its code.
func (r *Refusal) Status() int { return table[r.Code].Status }

// RetryAfterSeconds is the value for a Retry-After header; 0: none.
func (r *Refusal) RetryAfterSeconds() int {
	n, _ := r.Fields["retry_after_seconds"].(int)
	return n
}

// MarshalJSON writes {"error": code, "message": …, and the fields}. Key and scope refusals carry the code in
// "reason" too, as clients of the wire expect.
func (r *Refusal) MarshalJSON() ([]byte, error) {
	body := maps.Clone(r.Fields)
	if body == nil {
		body = map[string]any{}
	}
	body["error"], body["message"] = r.Code, r.Message
	if table[r.Code].Reason {
		body["reason"] = r.Code
	}
	return json.Marshal(body)
}

// As returns the refusal in err's chain.
func As(err error) (*Refusal, bool) {
	var r *Refusal
	ok := errors.As(err, &r)
	return r, ok
}

// Is tells whether err is a refusal of that code.
func Is(err error, code Code) bool {
	r, ok := As(err)
	return ok && r.Code == code
}

// Validation collects what is wrong with an input, by field. Its zero value is ready.
type Validation struct{ errors map[string][]string }

// Add notes one problem of one field. The sentence stands beside the field: "must be at least 1".
func (v *Validation) Add(field, format string, args ...any) {
	if v.errors == nil {
		v.errors = map[string][]string{}
	}
	v.errors[field] = append(v.errors[field], fmt.Sprintf(format, args...))
}

// Check notes the problem unless ok.
func (v *Validation) Check(ok bool, field, format string, args ...any) {
	if !ok {
		v.Add(field, format, args...)
	}
}

// Err is nil when nothing was noted, else a validation_failed that names every field.
func (v *Validation) Err() error {
	if len(v.errors) == 0 {
		return nil
	}
	fields := slices.Sorted(maps.Keys(v.errors))
	return New(ValidationFailed, "%s %s", fields[0], v.errors[fields[0]][0]).With("errors", v.errors)
}

// FieldErrors are the problems by field of a validation_failed, for the forms that show them beside the fields.
func FieldErrors(err error) map[string][]string {
	r, ok := As(err)
	if !ok {
		return nil
	}
	m, _ := r.Fields["errors"].(map[string][]string)
	return m
}

// Entry describes a code in the table.
type Entry struct {
	Code    Code
	Status  int
	Meaning string   // one sentence for the documentation
	Fields  []string // extra fields that answers of this code carry
	Reason  bool     // the code stands in "reason" too
}

// Table lists every code, by name: the documentation is made from it.
func Table() []Entry {
	out := make([]Entry, 0, len(table))
	for _, c := range slices.Sorted(maps.Keys(table)) {
		e := table[c]
		e.Code = c
		out = append(out, e)
	}
	return out
}

// Meaning is a sentence for the code; "" when the table does not have it.
func (c Code) Meaning() string { return table[c].Meaning }

// NotFoundError is the one answer for ids that do not exist, are malformed, or are another account's.
func NotFoundError() *Refusal {
	return New(NotFound, "There is nothing here with that id in this account.")
}

// Internal is what the edge answers for an error that is ours.
func Internal(requestID string) *Refusal {
	return New(InternalError, "Something went wrong on the server. Its log has the cause under request id %s.", requestID).
		With("request_id", requestID)
}
