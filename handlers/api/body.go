package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/google/uuid"

	"managoat/internal/identity"
	"managoat/internal/input"
	"managoat/internal/refusal"
)

// Format reads and writes every body of the JSON API.
var Format = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshal}

// unmarshal is json.Unmarshal for what people send. It refuses text that is no Unicode, as bytes or as escapes: Go would
// mend it in silence, and a secret or a script would not be what was sent. Its errors, which go on after "The body",
// repeat nothing of it.
func unmarshal(body []byte, v any) error {
	if !utf8.Valid(body) {
		return errors.New("is not valid UTF-8")
	}
	err := json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		if at := halfCharacter(body); at >= 0 {
			return fmt.Errorf("holds half a character: the \\u escape at byte %d lacks the other half of its surrogate pair", at)
		}
		return nil
	case errors.As(err, &syntax):
		return fmt.Errorf("is not valid JSON: byte %d does not fit", syntax.Offset)
	}
	return errors.New("holds a value of the wrong form")
}

// halfCharacter finds a \u escape of valid JSON that is half of a surrogate pair without its other half, -1 for none.
func halfCharacter(body []byte) int {
	unit := func(i int) rune { // the code unit of the escape at i, -1 when there is none
		if i+6 > len(body) || body[i] != '\\' || body[i+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(body[i+2:i+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' { // JSON has backslashes in strings only
			continue
		}
		switch first := unit(i); {
		case first < 0:
			i++ // an escape of two bytes
		case !utf16.IsSurrogate(first):
			i += 5
		case utf16.DecodeRune(first, unit(i+6)) == utf8.RuneError:
			return i
		default:
			i += 11
		}
	}
	return -1
}

// Body is a JSON object with fields of T, any of which may be left out: the whole of a new thing, or a change of one
// that is there. Its shape is checked from T's; it is decoded over a value by Over.
type Body[T any] struct{ raw []byte }

// UnmarshalJSON keeps the body as it came.
func (b *Body[T]) UnmarshalJSON(p []byte) error {
	b.raw = bytes.Clone(p)
	return nil
}

// Over decodes the body over v: what it names replaces what v held, the rest stays. See input.Decode.
func (b Body[T]) Over(v *T) error { return input.Decode(b.raw, v) }

// Schema describes T with every field optional, those of its inner objects too: what is missing is for the rules of the
// resource to say, by field.
func (Body[T]) Schema(huma.Registry) *huma.Schema {
	own := huma.NewMapRegistry("#/", huma.DefaultSchemaNamer) // apart from the document's: there the same types are answers
	return optional(own, huma.SchemaFromType(own, reflect.TypeFor[T]()))
}

// optional copies a schema with its references put in and nothing required.
func optional(r huma.Registry, s *huma.Schema) *huma.Schema {
	for s.Ref != "" {
		s = r.SchemaFromRef(s.Ref)
	}
	out := *s
	out.Required = nil
	if s.Properties != nil {
		out.Properties = make(map[string]*huma.Schema, len(s.Properties))
		for name, property := range s.Properties {
			out.Properties[name] = optional(r, property)
		}
	}
	if s.Items != nil {
		out.Items = optional(r, s.Items)
	}
	if inner, ok := s.AdditionalProperties.(*huma.Schema); ok {
		out.AdditionalProperties = optional(r, inner)
	}
	out.PrecomputeMessages()
	return &out
}

// Create is the input of an endpoint that makes a thing.
type Create[T any] struct{ Body Body[T] }

// Change is the input of an endpoint that changes a thing.
type Change[T any] struct {
	ByID
	Body Body[T]
}

// PageQuery asks for a page of a list.
type PageQuery struct {
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"how many at most"`
	After string `query:"after" doc:"next_cursor of the page before"`
}

// Page is the page that is asked for.
func (q PageQuery) Page() input.Page { return input.Page{Limit: q.Limit, Cursor: q.After} }

// PageOf answers a page of a list.
func PageOf[T any](list input.List[T], err error) (*Many[T], error) {
	if err != nil {
		return nil, err
	}
	return ListOf(list.Items, Meta{Limit: list.Limit, HasMore: list.HasMore, NextCursor: list.Next}), nil
}

// AllOf answers a whole list.
func AllOf[T any](items []T, err error) (*Many[T], error) {
	if err != nil {
		return nil, err
	}
	return ListOf(items, Meta{}), nil
}

// OneOf answers one thing.
func OneOf[T any](v T, err error) (*One[T], error) {
	if err != nil {
		return nil, err
	}
	return Of(v), nil
}

// id reads an id of a path. A malformed one answers like a missing one.
func (in ByID) id() (uuid.UUID, error) {
	id, err := uuid.Parse(in.ID)
	if err != nil {
		return uuid.Nil, refusal.NotFoundError()
	}
	return id, nil
}

// FromClient is part of the input of public endpoints, which have no actor: it says where the request comes from.
type FromClient struct{ client identity.Client }

// Resolve is called by huma once the input was read.
func (f *FromClient) Resolve(ctx huma.Context) []error {
	c := humaecho.Unwrap(ctx)
	f.client = identity.Client{Address: c.RealIP(), UserAgent: c.Request().UserAgent(), RequestID: RequestID(c.Request().Context())}
	return nil
}

// change runs an update of one thing with the body as its edit.
func change[T, R any](ctx context.Context, in *Change[T], update func(ctx context.Context, id uuid.UUID, edit func(*T) error) (R, error)) (*One[R], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(update(ctx, id, in.Body.Over))
}
