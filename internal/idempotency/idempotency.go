// Package idempotency makes a repeated POST with the same Idempotency-Key answer what the first one answered.
//
// The edge puts a Claim into the request's context. Whatever transaction writes the change's audit row takes the
// claim in the same transaction, so that a key is used exactly when the change was made: a crash between the two is
// not possible. The answer is stored afterwards; when that is lost, a repetition is refused instead of run again.
package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/refusal"
	"managoat/queries"
)

// Limits of keys.
const (
	MaxKeyLength = 200
	Retention    = 24 * time.Hour
	// MaxResponse bounds a stored answer; a larger one is not stored and its repetition is refused.
	MaxResponse = 1 << 20
)

// Claim is one request's key.
type Claim struct {
	tenantID uuid.UUID
	route    string
	key      string
	bodyHash []byte
	within   db.Tx // that takes it
	taken    bool  // and is committed
}

type claimKey struct{}

// Response is a stored answer.
type Response struct {
	Status int
	Body   []byte
}

// New makes the claim of one request. route is the route's pattern, so that a key belongs to a kind of call.
func New(tenantID uuid.UUID, route, key string, body []byte) *Claim {
	sum := sha256.Sum256(body)
	return &Claim{tenantID: tenantID, route: route, key: key, bodyHash: sum[:]}
}

// With puts the claim into the context of the call.
func With(ctx context.Context, c *Claim) context.Context {
	return context.WithValue(ctx, claimKey{}, c)
}

// Find looks for an earlier answer: nil when the key is new, a refusal when it was used with another body or its
// first request has not answered.
func (c *Claim) Find(ctx context.Context, d *db.DB) (*Response, error) {
	row, err := d.Tenant(c.tenantID).IdempotencyKey(ctx, queries.IdempotencyKeyParams{Route: c.route, Key: c.key, MaxAge: Retention.Seconds()})
	if db.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(row.BodyHash, c.bodyHash) {
		return nil, refusal.New(refusal.IdempotencyKeyReused, "This Idempotency-Key was used with another body. Use a new key for a new request.")
	}
	if row.Status == nil {
		return nil, unanswered()
	}
	return &Response{Status: int(*row.Status), Body: row.Response}, nil
}

func unanswered() error {
	return refusal.New(refusal.IdempotencyInProgress,
		"The first request with this Idempotency-Key made its change and its answer is not known (yet). Read the resource before sending it with a new key.").RetryAfter(time.Second)
}

// Take uses the key of the context's claim inside the transaction that makes the change. No claim: nothing to do.
func Take(ctx context.Context, tx db.Tx) error {
	c, ok := ctx.Value(claimKey{}).(*Claim)
	if !ok || c.taken || c.within == tx {
		return nil
	}
	c.within = tx
	tx.Refused("idempotency", func(context.Context, *queries.Queries) error { return unanswered() })
	tx.OnCommit(func() { c.taken = true })
	return tx.TakeIdempotencyKey(ctx, queries.TakeIdempotencyKeyParams{Route: c.route, Key: c.key, BodyHash: c.bodyHash, MaxAge: Retention.Seconds()})
}

// Store keeps the answer of a request whose change was made. A refused request uses no key.
func (c *Claim) Store(ctx context.Context, d *db.DB, r Response) error {
	if !c.taken || len(r.Body) > MaxResponse {
		return nil
	}
	status := int32(r.Status)
	return d.Tenant(c.tenantID).StoreIdempotentResponse(ctx, queries.StoreIdempotentResponseParams{
		Route: c.route, Key: c.key, Status: &status, Response: r.Body})
}
