// Package api is the JSON edge: decode, call a service, encode. Each file holds one resource.
//
// The shape of a request is checked from the handler's types (unknown fields included); rules live in the services, so
// that forms pass the same ones. Endpoints are put on paths by the one table in package handlers.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

// Endpoint is a JSON handler that can be bound to a path and described in the OpenAPI document.
type Endpoint struct {
	bind func(huma.API, *echo.Echo, huma.Operation)
}

// Bind puts the endpoint on its path.
func (e Endpoint) Bind(a huma.API, r *echo.Echo, op huma.Operation) { e.bind(a, r, op) }

// JSON makes an endpoint of a typed handler. The input's path, query and header parameters and its Body are checked
// before the handler runs; the handler's error answers as a refusal, or as ours with the request id.
func JSON[I, O any](fn func(context.Context, *I) (*O, error)) Endpoint {
	return Endpoint{func(a huma.API, _ *echo.Echo, op huma.Operation) {
		huma.Register(a, op, func(ctx context.Context, in *I) (*O, error) {
			out, err := fn(ctx, in)
			if err != nil {
				return nil, problem(ctx, err)
			}
			return out, nil
		})
	}}
}

// Raw makes an endpoint of a plain Echo handler, for streams and downloads. describe adds its parameters and answers
// to the OpenAPI document; schemas has the forms of Go types.
func Raw(fn echo.HandlerFunc, describe func(op *huma.Operation, schemas huma.Registry)) Endpoint {
	return Endpoint{func(a huma.API, r *echo.Echo, op huma.Operation) {
		describe(&op, a.OpenAPI().Components.Schemas)
		a.OpenAPI().AddOperation(&op)
		r.Add(op.Method, EchoPath(op.Path), fn)
	}}
}

// answers documents an answer with a body of these media types.
func answers(op *huma.Operation, description string, bodies map[string]*huma.Schema) {
	content := map[string]*huma.MediaType{}
	for media, schema := range bodies {
		content[media] = &huma.MediaType{Schema: schema}
	}
	op.Responses = map[string]*huma.Response{"200": {Description: description, Content: content}}
}

// schemaOf is the form of a Go type as JSON.
func schemaOf[T any](schemas huma.Registry) *huma.Schema {
	return schemas.Schema(reflect.TypeFor[T](), true, "")
}

// EchoPath writes /a/{id} as Echo does: /a/:id.
func EchoPath(path string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// Data is the envelope of one thing.
type Data[T any] struct {
	Data T `json:"data"`
}

// One answers {"data": …}.
type One[T any] struct {
	Body Data[T]
}

// Of wraps one thing.
func Of[T any](v T) *One[T] { return &One[T]{Body: Data[T]{Data: v}} }

// Meta tells how a list goes on.
type Meta struct {
	Limit      int    `json:"limit"`
	HasMore    bool   `json:"has_more"`
	NextCursor string `json:"next_cursor,omitempty" doc:"pass it as the list's cursor parameter to go on"`
}

// Many answers {"data": […], "meta": …}.
type Many[T any] struct {
	Body List[T]
}

// List is the envelope of a list or a page of one.
type List[T any] struct {
	Data []T  `json:"data"`
	Meta Meta `json:"meta"`
}

// ListOf wraps a whole list, or a page of one.
func ListOf[T any](items []T, meta Meta) *Many[T] {
	out := &Many[T]{}
	out.Body.Data = items
	if items == nil {
		out.Body.Data = []T{} // arrays are [], never null
	}
	if meta.Limit == 0 {
		meta.Limit = len(items)
	}
	out.Body.Meta = meta
	return out
}

// None answers 204.
type None struct{}

// ByID is the input of an endpoint that names one thing in its path. The id is read as text: a malformed one answers
// like a missing one.
type ByID struct {
	ID string `path:"id" doc:"id"`
}

// Actor is who calls. The edge put it there; a route that is not public cannot run without one.
func Actor(ctx context.Context) tenant.Actor {
	a, ok := tenant.ActorFrom(ctx)
	if !ok {
		panic("api: no actor on a route that needs one")
	}
	return a
}

// statusError lets huma answer a refusal as it is.
type statusError struct{ *refusal.Refusal }

func (e statusError) GetStatus() int { return e.Status() }

func (e statusError) GetHeaders() http.Header {
	h := http.Header{}
	if s := e.RetryAfterSeconds(); s > 0 {
		h.Set("Retry-After", strconv.Itoa(s))
	}
	return h
}

func problem(ctx context.Context, err error) error {
	if r, ok := refusal.As(err); ok {
		return statusError{r}
	}
	id := RequestID(ctx)
	slog.ErrorContext(ctx, "request failed", "request_id", id, "err", err)
	return statusError{refusal.Internal(id)}
}

type requestIDKey struct{}

// WithRequestID puts the request's id into its context.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID is the id of the request that runs.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

func init() {
	// huma's own complaints (malformed JSON, shapes) answer in our one format.
	huma.NewErrorWithContext = func(ctx huma.Context, status int, message string, errs ...error) huma.StatusError {
		return statusError{shape(ctx, status, message, errs)}
	}
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		return statusError{shape(nil, status, message, errs)}
	}
}

// shape turns huma's validation result into a refusal.
func shape(ctx huma.Context, status int, message string, errs []error) *refusal.Refusal {
	switch {
	case status == http.StatusRequestEntityTooLarge, tooLarge(errs):
		return refusal.New(refusal.PayloadTooLarge, "The body is larger than this route takes.")
	case status == http.StatusUnsupportedMediaType:
		return refusal.New(refusal.UnsupportedMedia, "Send JSON with Content-Type: application/json.")
	case status == http.StatusUnprocessableEntity:
		var v refusal.Validation
		for _, err := range errs {
			d, ok := err.(huma.ErrorDetailer)
			if !ok {
				v.Add("body", "%s", err.Error())
				continue
			}
			detail := d.ErrorDetail()
			field := strings.TrimPrefix(strings.TrimPrefix(detail.Location, "body."), "query.")
			if field == "" {
				field = "body"
			}
			v.Add(field, "%s", sentence(detail.Message))
		}
		if err := v.Err(); err != nil {
			r, _ := refusal.As(err)
			return r
		}
		return refusal.New(refusal.ValidationFailed, "%s", message).With("errors", map[string][]string{})
	case status >= 500:
		id := ""
		if ctx != nil {
			id = RequestID(ctx.Context())
		}
		slog.Error("request failed", "request_id", id, "message", message, "errs", errs)
		return refusal.Internal(id)
	}
	for _, err := range errs {
		// An error's own text repeats the body, which may hold a secret; its message is one of unmarshal's.
		if d, ok := err.(huma.ErrorDetailer); ok {
			return refusal.New(refusal.BadRequest, "The body %s.", d.ErrorDetail().Message)
		}
	}
	return refusal.New(refusal.BadRequest, "There is no body. Send a JSON object; /api/docs lists its fields.") // huma's only other one
}

// tooLarge tells whether reading the body met its limit.
func tooLarge(errs []error) bool {
	return slices.ContainsFunc(errs, func(err error) bool {
		var he *echo.HTTPError
		return errors.As(err, &he) && he.Code == http.StatusRequestEntityTooLarge
	})
}

// sentence rewrites huma's words for the one case people meet most.
func sentence(message string) string {
	if message == "unexpected property" {
		return "is not a field of this resource"
	}
	return message
}

// number writes a cursor that is a number.
func number(n int64) string { return strconv.FormatInt(n, 10) }
