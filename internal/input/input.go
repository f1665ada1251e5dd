// Package input reads what people send: strict JSON, partial changes of a resource, pages of a list, and the rules that
// several resources share. Rules of one resource live in its package.
package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"managoat/internal/refusal"
)

// Decode reads one JSON object into v, a pointer to a struct whose fields have json tags. What is wrong is said by field,
// all of it at once: unknown fields, values of another type. An error never repeats what was sent.
//
// A field that the object names replaces what v held, maps and lists as a whole; null clears it. A field that it does
// not name stays: decoding over the present state of a resource is a partial change of it. A malformed id becomes
// uuid.Max, which nothing has, so that it answers like another account's; one that was not given is uuid.Nil.
func Decode(body []byte, v any) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil || object == nil {
		var kind *json.UnmarshalTypeError
		if object == nil && err == nil || errors.As(err, &kind) {
			return refusal.New(refusal.BadRequest, "The body must be a JSON object.")
		}
		return refusal.New(refusal.BadRequest, "The body is not valid JSON.")
	}
	var problems refusal.Validation
	into := reflect.ValueOf(v).Elem()
	for name, raw := range object {
		field, ok := fieldByTag(into, name)
		if !ok {
			problems.Add(name, "is not a field of this resource")
			continue
		}
		fresh := reflect.New(field.Type())
		if at, problem := decodeValue(raw, fresh.Interface()); problem != "" {
			problems.Add(strings.TrimSuffix(name+"."+at, "."), "%s", problem)
			continue
		}
		field.Set(fresh.Elem())
	}
	return problems.Err()
}

func fieldByTag(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			if inner, ok := fieldByTag(v.Field(i), name); ok {
				return inner, true
			}
			continue
		}
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name && tag != "-" {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// decodeValue reads one field's value and says what is wrong with it, and at which field inside.
func decodeValue(raw json.RawMessage, v any) (at, problem string) {
	if into := reflect.ValueOf(v).Elem(); into.Kind() == reflect.Map && into.Type().Elem().Kind() == reflect.Struct {
		return decodeMap(raw, into)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &kind):
		return kind.Field, "must be " + article(kind.Type)
	case strings.HasPrefix(err.Error(), unknownField):
		return strings.Trim(strings.TrimPrefix(err.Error(), unknownField), `"`), "is not a field of this resource"
	}
	switch v := v.(type) {
	case *uuid.UUID:
		*v = uuid.Max
		return "", ""
	case **uuid.UUID:
		nothing := uuid.Max
		*v = &nothing
		return "", ""
	}
	return "", "has the wrong form"
}

// decodeMap reads things by name, so that what is wrong is said with the name of the thing.
func decodeMap(raw json.RawMessage, into reflect.Value) (at, problem string) {
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return "", "must be an object"
	}
	if all == nil {
		return "", ""
	}
	into.Set(reflect.MakeMapWithSize(into.Type(), len(all)))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		one := reflect.New(into.Type().Elem())
		if inside, problem := decodeValue(all[name], one.Interface()); problem != "" {
			return strings.TrimSuffix(name+"."+inside, "."), problem
		}
		into.SetMapIndex(reflect.ValueOf(name), one.Elem())
	}
	return "", ""
}

// unknownField begins encoding/json's error of a field that no struct has.
const unknownField = "json: unknown field "

func article(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	default:
		return "a number"
	}
}
