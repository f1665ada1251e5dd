package stream

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/transcript"
	"managoat/queries"
)

// Names of the account's events.
const (
	WorkspaceStatus     = "workspace.status"
	WorkspaceSetup      = "workspace.setup"
	ConversationStatus  = "conversation.status"
	PermissionRequested = "permission.requested"
)

// Account writes the account's own stream.
type Account struct{ hub *Hub }

// NewAccount makes the writer.
func NewAccount(h *Hub) *Account { return &Account{h} }

// Event is what to write.
type Event struct {
	Name        string
	Body        any
	WorkspaceID *uuid.UUID
	SetupID     *uuid.UUID // of a setup's lines, which go when the workspace's next setup begins
}

// AppendTx writes events in the caller's transaction, which keeps the account's counter locked until it ends: write
// them last. Followers are told once it is committed.
func (a *Account) AppendTx(ctx context.Context, tx db.Tx, tenantID uuid.UUID, events ...Event) error {
	for _, e := range events {
		body, err := json.Marshal(e.Body)
		if err != nil {
			return fmt.Errorf("event %s: %w", e.Name, err)
		}
		if err := tx.AppendTenantEvent(ctx, queries.AppendTenantEventParams{Name: e.Name, WorkspaceID: e.WorkspaceID, SetupID: e.SetupID, Body: transcript.Storable(body)}); err != nil {
			return fmt.Errorf("write %s: %w", e.Name, err)
		}
	}
	a.announce(tx, tenantID)
	return nil
}

// ConversationTx writes conversation.status in the caller's transaction: {conversation_id, workspace_id, title, status,
// turn_id, turn_number, turn_status, waiting_for}, the turn being the first that waits or runs; turn_id is null when none
// does. It comes last, like every event.
func (a *Account) ConversationTx(ctx context.Context, tx db.Tx, tenantID, conversationID uuid.UUID) error {
	if err := tx.AppendConversationStatus(ctx, conversationID); err != nil {
		return fmt.Errorf("write %s: %w", ConversationStatus, err)
	}
	a.announce(tx, tenantID)
	return nil
}

func (a *Account) announce(tx db.Tx, tenantID uuid.UUID) {
	tx.OnCommit(func() { a.hub.Account(tenantID) })
}

// BeginSetupTx drops the lines of a workspace's earlier setups.
func (a *Account) BeginSetupTx(ctx context.Context, tx db.Tx, workspaceID, setupID uuid.UUID) error {
	return tx.DeleteSetupEvents(ctx, &workspaceID, &setupID)
}

// MaxLines is how much text one workspace.setup event carries at most, in bytes.
const MaxLines = 8 << 10

// SetupBody is the body of workspace.setup.
type SetupBody struct {
	WorkspaceID uuid.UUID `json:"workspace_id"`
	SetupID     uuid.UUID `json:"setup_id"`
	Step        string    `json:"step"`
	Lines       []string  `json:"lines"`
	Dropped     int64     `json:"dropped"` // bytes left out before these lines
}
