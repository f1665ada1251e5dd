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

// keep writes the tool calls' own rows, after the rows.
func (c columns) keep(ctx context.Context, tx db.Tx) error {
	for _, t := range c.tools {
		t.row.Back = int32(len(c.types) - 1 - t.at)
		if err := tx.UpsertToolCall(ctx, t.row); err != nil {
			return fmt.Errorf("keep tool call %s: %w", t.row.ID, err)
		}
	}
	return nil
}
