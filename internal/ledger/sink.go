// Package ledger keeps what was used: the requests that left machines, the model calls as the gateway metered them, and
// the append-only usage entries that turns are accounted by. Numbers come from the broker, never from a machine.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/queries"
)

// Service stores what the egress process reports and settles it on turns. It is the broker's Sink.
type Service struct {
	db  *db.DB
	log *slog.Logger

	mu sync.Mutex
	// arrived is closed and replaced whenever usage rows were stored: what Await waits for.
	arrived chan struct{}
}

var _ broker.Sink = (*Service)(nil)

// New makes the service.
func New(d *db.DB, log *slog.Logger) *Service {
	return &Service{db: d, log: log, arrived: make(chan struct{})}
}

// Requests stores rows of the request log. A row that comes again changes nothing.
func (s *Service) Requests(ctx context.Context, rows []broker.RequestRow) error {
	return store(ctx, s, rows, func(r broker.RequestRow) uuid.UUID { return r.TenantID }, func(ctx context.Context, tx db.Tx, rows []broker.RequestRow) error {
		for _, r := range rows {
			keys := r.CredentialKeys
			if keys == nil {
				keys = []string{}
			}
			if err := tx.InsertEgressRequest(ctx, queries.InsertEgressRequestParams{
				ID: r.ID, At: r.At, WorkspaceID: r.WorkspaceID, MachineID: r.MachineID, ConversationID: r.ConversationID, Listener: string(r.Listener),
				Method: db.SafeText(r.Method), Host: db.SafeText(r.Host), Port: int32(r.Port), Decision: string(r.Decision), Rule: r.Rule,
				CredentialKeys: keys, Status: int32(r.Status), BytesIn: r.BytesIn, BytesOut: r.BytesOut,
				LatencyMs: milliseconds(r.LatencyMS), DurationMs: milliseconds(r.DurationMS), Dropped: r.Dropped, Error: db.SafeText(r.Error),
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Usage stores metered model calls. One that arrives after its turn ended is settled at once, as an entry of its own.
func (s *Service) Usage(ctx context.Context, rows []broker.UsageRow) error {
	err := store(ctx, s, rows, func(r broker.UsageRow) uuid.UUID { return r.TenantID }, insertUsage)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.arrived)
	s.arrived = make(chan struct{})
	return nil
}

func insertUsage(ctx context.Context, tx db.Tx, rows []broker.UsageRow) error {
	late := map[uuid.UUID]time.Time{} // conversations with new rows, and when the last of each began
	for _, r := range rows {
		var credential *uuid.UUID
		if r.CredentialID != uuid.Nil {
			credential = &r.CredentialID
		}
		n, err := tx.InsertModelRequest(ctx, queries.InsertModelRequestParams{
			ID: r.ID, At: r.At, ConversationID: r.ConversationID, CredentialID: credential, Source: r.Source, Provider: r.Provider,
			ModelRequested: db.SafeText(r.ModelRequested), ModelAnswered: db.SafeText(r.ModelAnswered), Status: int32(r.Status),
			InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, CacheReadTokens: r.CacheReadTokens, CacheWriteTokens: r.CacheWriteTokens,
			FirstByteMs: milliseconds(r.FirstByteMS), LatencyMs: milliseconds(r.LatencyMS), Completeness: string(r.Completeness),
			Dropped: r.Dropped, Error: db.SafeText(r.Error),
		})
		if err != nil {
			return err
		}
		if n > 0 && r.At.After(late[r.ConversationID]) {
			late[r.ConversationID] = r.At
		}
	}
	for conversation, at := range late {
		if err := settleLate(ctx, tx, conversation, at); err != nil {
			return err
		}
	}
	return nil
}

// settleLate gives requests that no running turn will settle to the turn they belong to.
func settleLate(ctx context.Context, tx db.Tx, conversation uuid.UUID, at time.Time) error {
	if _, err := tx.LockForSettling(ctx, conversation); db.NotFound(err) {
		return nil // purged meanwhile: the requests stay, nobody's turn
	} else if err != nil {
		return err
	}
	if _, err := tx.RunningTurn(ctx, conversation); err == nil {
		return nil
	} else if !db.NotFound(err) {
		return err
	}
	turn, err := tx.LateTurn(ctx, conversation, at)
	if db.NotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	use, err := Settle(ctx, tx, conversation, turn.ID, int(turn.Attempts), 0)
	if err != nil {
		return err
	}
	return tx.SetTurnUsage(ctx, use.JSON(), turn.ID)
}

// store writes rows account by account. A row that can never be stored must not hold up the others: a batch that fails
// for its data is written row by row, and what cannot be written is logged and let go.
func store[R any](ctx context.Context, s *Service, rows []R, tenant func(R) uuid.UUID, insert func(context.Context, db.Tx, []R) error) error {
	byTenant := map[uuid.UUID][]R{}
	for _, r := range rows {
		byTenant[tenant(r)] = append(byTenant[tenant(r)], r)
	}
	for id, rows := range byTenant {
		err := s.insert(ctx, id, func(tx db.Tx) error { return insert(ctx, tx, rows) })
		if err == nil {
			continue
		}
		if !unstorable(err) {
			return fmt.Errorf("store the broker's rows: %w", err)
		}
		for _, r := range rows {
			err := s.insert(ctx, id, func(tx db.Tx) error { return insert(ctx, tx, []R{r}) })
			switch {
			case err == nil:
			case unstorable(err):
				s.log.Error("a row of the broker cannot be stored", "tenant", id, "error", err)
			default:
				return fmt.Errorf("store the broker's rows: %w", err)
			}
		}
	}
	return nil
}

func (s *Service) insert(ctx context.Context, tenant uuid.UUID, fn func(db.Tx) error) error {
	if tenant == uuid.Nil {
		return errNoAccount
	}
	return s.db.InTenant(ctx, tenant, fn)
}

var errNoAccount = errors.New("the row names no account")

// unstorable tells that trying again cannot help: the account is gone, or a value breaks a rule of the table.
func unstorable(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		class := pg.Code[:2]
		return class == "22" || class == "23"
	}
	return errors.Is(err, errNoAccount)
}

func milliseconds(ms float64) int64 { return int64(math.Round(ms)) }
