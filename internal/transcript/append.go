package transcript

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/queries"
)

// columns are rows as the insert statements take them.
type columns struct {
	turns  []uuid.UUID // uuid.Nil: none
	types  []string
	bodies []json.RawMessage
	raws   []string
	tools  []tool
}

// tool is a tool call's own row and which of the rows tells of it.
type tool struct {
	at  int
	row queries.UpsertToolCallParams
}

// encode turns rows into columns. What PostgreSQL cannot hold is made storable here too, for rows of ours that did not
// pass the gate.
func encode(conversationID uuid.UUID, rows []Row) (columns, error) {
	var c columns
	for i, r := range rows {
		body, err := json.Marshal(r.Body)
		if err != nil {
			return c, fmt.Errorf("a %s row cannot be written: %w", r.Type, err)
		}
		turn := uuid.Nil
		if r.TurnID != nil {
			turn = *r.TurnID
		}
		c.turns, c.types = append(c.turns, turn), append(c.types, r.Type)
		c.bodies, c.raws = append(c.bodies, Storable(body)), append(c.raws, clean(lineOf(r)))
		if r.Tool != nil {
			row, err := toolRow(conversationID, *r.Tool)
			if err != nil {
				return c, err
			}
			c.tools = append(c.tools, tool{i, row})
		}
	}
	return c, nil
}

// size is about how much memory rows take.
func (c columns) size() int {
	n := rowOverhead * len(c.types)
	for i := range c.bodies {
		n += len(c.bodies[i]) + len(c.raws[i])
	}
	return n
}

func toolRow(conversationID uuid.UUID, t ToolCall) (queries.UpsertToolCallParams, error) {
	source, err := json.Marshal(t.Source)
	if err != nil {
		return queries.UpsertToolCallParams{}, err
	}
	p := queries.UpsertToolCallParams{
		ConversationID: conversationID, TurnID: t.TurnID, ID: clean(t.ID), Title: clean(t.Title), Kind: clean(t.Kind), Status: t.Status,
		Signal: t.Signal, DurationMs: t.DurationMS, OutputBytes: t.OutputBytes, Truncated: t.Truncated, FullLogPath: clean(t.FullLogPath),
		Source: source,
	}
	if t.ExitCode != nil {
		n := int32(*t.ExitCode)
		p.ExitCode = &n
	}
	if t.Input != nil {
		p.Input = Storable(t.Input)
	}
	return p, nil
}

// keep writes the tool calls' own rows; the first row of all has the number base+1.
func (c columns) keep(ctx context.Context, tx db.Tx, base int64) error {
	for _, t := range c.tools {
		t.row.Seq = base + int64(t.at) + 1
		if err := tx.UpsertToolCall(ctx, t.row); err != nil {
			return fmt.Errorf("keep tool call %s: %w", t.row.ID, err)
		}
	}
	return nil
}

// Pending are rows that a caller wrote in a transaction of its own.
type Pending struct {
	notify                   Notifier
	tenantID, conversationID uuid.UUID
	LastSeq                  int64
}

// AppendTx appends rows in the caller's transaction, which keeps the transcript's counter locked until it ends. Call
// Announce once it is committed. Chunks that were queued before must be synced before: rows are in the order of commits.
func (w *Writer) AppendTx(ctx context.Context, tx db.Tx, tenantID, conversationID uuid.UUID, rows ...Row) (Pending, error) {
	for _, r := range rows {
		if r.Fence != nil {
			if err := hold(ctx, tx, *r.Fence); err != nil {
				return Pending{}, err
			}
		}
		if r.Within != nil {
			if err := r.Within(ctx, tx); err != nil {
				return Pending{}, err
			}
		}
	}
	c, err := encode(conversationID, rows)
	if err != nil {
		return Pending{}, err
	}
	base, err := tx.AppendEvents(ctx, queries.AppendEventsParams{ConversationID: conversationID, N: int32(len(rows)),
		TurnIds: c.turns, Types: c.types, Bodies: c.bodies, Raws: c.raws})
	if db.NotFound(err) {
		return Pending{}, noTranscript(conversationID)
	}
	if err != nil {
		return Pending{}, fmt.Errorf("append to conversation %s: %w", conversationID, err)
	}
	return Pending{w.notify, tenantID, conversationID, base + int64(len(rows))}, c.keep(ctx, tx, base)
}

// Announce tells followers.
func (p Pending) Announce() {
	if p.notify != nil {
		p.notify.Conversation(p.tenantID, p.conversationID)
	}
}

// hold makes sure that an owner holds its operation until the transaction ends.
func hold(ctx context.Context, tx db.Tx, f Fence) error {
	_, err := tx.HoldOperation(ctx, queries.HoldOperationParams{ID: f.OperationID, Owner: f.Owner, Epoch: f.Epoch})
	if db.NotFound(err) {
		return ErrFenced
	}
	return err
}

func noTranscript(conversationID uuid.UUID) error {
	return fmt.Errorf("conversation %s has no transcript", conversationID)
}
