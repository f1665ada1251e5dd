package handlers

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/internal/idempotency"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

// onceTimeout is how long a request with an Idempotency-Key may take, answer stored and all.
const onceTimeout = time.Minute

// once answers a repeated POST with the first one's answer. The key is taken in the transaction that makes the change
// (see package idempotency); a request that changed nothing uses none.
func (g *edge) once(c echo.Context, actor tenant.Actor, route Route, key string, next echo.HandlerFunc) error {
	if len(key) > idempotency.MaxKeyLength || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return refusal.New(refusal.BadRequest, "An Idempotency-Key has at most %d characters, all of them printable ASCII.", idempotency.MaxKeyLength)
	}
	body, err := io.ReadAll(c.Request().Body) // bounded by the body limit
	if err != nil {
		return err
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(body))
	// From here on it is done whether the client stays or not: one whose connection broke is the one that asks again, and
	// a change without its answer could not be answered then.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), onceTimeout)
	defer cancel()
	// The path, not only its pattern: the same key on another conversation is another request.
	place := route.Method + " " + c.Request().URL.Path
	if actor.Scope == tenant.ScopeSandbox {
		// An agent's keys are its own: it must neither read nor foretell the answers to what people send.
		place = "conversation " + actor.ConversationID.String() + ": " + place
	}
	claim := idempotency.New(actor.TenantID, place, key, body)
	earlier, err := claim.Find(ctx, g.cfg.DB)
	if err != nil {
		return err
	}
	if earlier != nil {
		c.Response().Header().Set("Idempotent-Replay", "true")
		return c.Blob(earlier.Status, echo.MIMEApplicationJSON, earlier.Body)
	}
	record := &recorder{ResponseWriter: c.Response().Writer}
	c.Response().Writer = record
	c.SetRequest(c.Request().WithContext(idempotency.With(ctx, claim)))
	if err := next(c); err != nil {
		return err
	}
	if c.Response().Status >= 300 || route.Secret {
		return nil // a repetition of the latter is refused: it cannot be shown again
	}
	if err := claim.Store(ctx, g.cfg.DB, idempotency.Response{Status: c.Response().Status, Body: record.body.Bytes()}); err != nil {
		g.cfg.Log.Warn("an answer was not kept for its Idempotency-Key", "err", err)
	}
	return nil
}

// recorder keeps a copy of what is answered, up to what may be stored.
type recorder struct {
	http.ResponseWriter
	body bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	if room := idempotency.MaxResponse + 1 - r.body.Len(); room > 0 {
		r.body.Write(b[:min(room, len(b))])
	}
	return r.ResponseWriter.Write(b)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
