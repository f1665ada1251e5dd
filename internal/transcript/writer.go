package transcript

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/queries"
)

// Notifier is told which conversations have new rows, after their commit.
type Notifier interface {
	Conversation(tenantID, conversationID uuid.UUID)
}

// Writer appends rows to transcripts. A conversation's rows are numbered by its own counter, which a transaction keeps
// locked from its first row to its commit: the order of numbers is the order of commits, and one conversation holds up no
// other. Who writes many rows writes them together. Safe for concurrent use.
type Writer struct {
	db     *db.DB
	notify Notifier
}

// NewWriter makes a writer.
func NewWriter(d *db.DB, notify Notifier) *Writer { return &Writer{d, notify} }

// Append appends rows in a transaction of their own.
func (w *Writer) Append(ctx context.Context, tenantID, conversationID uuid.UUID, rows ...Row) error {
	return w.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
		// The conversation before its counter, as everybody does: its rows refer to it.
		if _, err := tx.LockConversationAlways(ctx, conversationID); err != nil {
			return fmt.Errorf("append to conversation %s: %w", conversationID, err)
		}
		return w.AppendTx(ctx, tx, tenantID, conversationID, rows...)
	})
}

// Announce tells followers to look.
func (w *Writer) Announce(tenantID, conversationID uuid.UUID) {
	if w.notify != nil {
		w.notify.Conversation(tenantID, conversationID)
	}
}

// AppendTx appends rows in the caller's transaction; followers are told once it is committed. Who changes the conversation's
// own row in the same transaction does that before.
func (w *Writer) AppendTx(ctx context.Context, tx db.Tx, tenantID, conversationID uuid.UUID, rows ...Row) error {
	for _, r := range rows {
		if r.Within != nil {
			if err := r.Within(ctx, tx); err != nil {
				return err
			}
		}
	}
	c, err := encode(conversationID, rows)
	if err != nil {
		return err
	}
	err = tx.AppendEvents(ctx, queries.AppendEventsParams{ConversationID: conversationID, N: int32(len(rows)),
		TurnIds: c.turns, Types: c.types, Bodies: c.bodies, Raws: c.raws})
	if err != nil {
		return fmt.Errorf("append to conversation %s: %w", conversationID, err)
	}
	tx.OnCommit(func() { w.Announce(tenantID, conversationID) })
	return c.keep(ctx, tx)
}
