package conversation

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/queries"
)

// What a workspace asks about the conversations in it: the methods of workspace.Occupants.

var _ workspace.Occupants = (*Service)(nil)

// HoldTurns locks the conversations of a workspace in which turns run or wait.
func (s *Service) HoldTurns(ctx context.Context, tx db.Tx, workspaceID uuid.UUID) ([]uuid.UUID, error) {
	return tx.HoldOpenTurns(ctx, workspaceID)
}

// OpenTurns are the turns that run and wait in a workspace.
func (s *Service) OpenTurns(ctx context.Context, q *queries.Queries, workspaceID uuid.UUID) ([]workspace.OpenTurn, error) {
	rows, err := q.OpenTurnsOfWorkspace(ctx, workspaceID)
	turns := make([]workspace.OpenTurn, len(rows))
	for i, r := range rows {
		turns[i] = workspace.OpenTurn{ConversationID: r.ConversationID, Title: r.Title, TurnID: r.ID, TurnNumber: int(r.TurnNumber), Status: r.Status, Sent: r.Sent}
	}
	return turns, err
}

// EndTurns ends turns of conversations that are locked: those that wait are withdrawn, those that run asked to end.
func (s *Service) EndTurns(ctx context.Context, tx db.Tx, tenantID uuid.UUID, turns []workspace.OpenTurn, reason string) error {
	var ids []uuid.UUID
	for len(turns) > 0 {
		id, n := turns[0].ConversationID, 1
		for n < len(turns) && turns[n].ConversationID == id {
			n++
		}
		if _, err := s.endTurns(ctx, tx, tenantID, id, turns[:n], reason); err != nil {
			return err
		}
		ids, turns = append(ids, id), turns[n:]
	}
	for _, id := range ids { // the account's counter is locked last
		if err := s.tell(ctx, tx, tenantID, id); err != nil {
			return err
		}
	}
	return nil
}

// EndingTurns counts the turns of a workspace that run and were asked to end.
func (s *Service) EndingTurns(ctx context.Context, tenantID, workspaceID uuid.UUID) (int, error) {
	n, err := s.db.Tenant(tenantID).CountEndingTurns(ctx, workspaceID)
	return int(n), err
}

// InterruptTurns asks the turns that are on a workspace's machine to end, for a reason that each will carry, and tells how
// many there are still. Those that wait for the machine go on waiting.
func (s *Service) InterruptTurns(ctx context.Context, tenantID, workspaceID uuid.UUID, reason string) (int, error) {
	turns, err := s.db.Tenant(tenantID).TurnsOnMachine(ctx, workspaceID)
	if err != nil {
		return 0, fmt.Errorf("list the turns on a machine: %w", err)
	}
	for _, t := range turns {
		if t.Asked {
			continue
		}
		err := s.db.InTenant(ctx, tenantID, func(tx db.Tx) error {
			if _, err := tx.LockConversationAlways(ctx, t.ConversationID); err != nil {
				return err
			}
			if _, err := tx.AskInterrupt(ctx, reason, t.ID); err != nil {
				return err
			}
			tx.OnCommit(func() { s.ask(tenantID, t.ID) })
			return s.tell(ctx, tx, tenantID, t.ConversationID)
		})
		if err != nil && !db.NotFound(err) { // it has ended meanwhile, or not begun
			return 0, fmt.Errorf("interrupt turn %s: %w", t.ID, err)
		}
	}
	return len(turns), nil
}

// TerminateAll ends every live conversation of a workspace, keeping their transcripts.
func (s *Service) TerminateAll(ctx context.Context, actor tenant.Actor, workspaceID uuid.UUID) error {
	live, err := s.db.Tenant(actor.TenantID).LiveConversations(ctx, workspaceID)
	if err != nil {
		return fmt.Errorf("list live conversations: %w", err)
	}
	for _, c := range live {
		err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
			c, err := tx.LockConversationAlways(ctx, c.ID)
			if err != nil {
				return err
			}
			if err := audit.Write(ctx, tx, actor, audit.ConversationTerminate, resource, c.ID); err != nil {
				return err
			}
			return s.terminate(ctx, tx, actor, c)
		})
		if err != nil {
			return fmt.Errorf("terminate conversation %s: %w", c.ID, err)
		}
		s.kick(actor.TenantID, c.ID)
	}
	return nil
}

// LiveSecrets are the credentials that conversations hold on a workspace's machine: what disk reads must not show.
func (s *Service) LiveSecrets(ctx context.Context, tenantID, workspaceID uuid.UUID) ([]secret.Value, error) {
	all, err := s.db.Tenant(tenantID).WorkspaceConversations(ctx, workspaceID)
	if err != nil {
		return nil, fmt.Errorf("list conversations: %w", err)
	}
	var values []secret.Value
	for _, c := range all {
		a, err := readAdapter(c.Adapter)
		if err != nil {
			return nil, err
		}
		if a == nil {
			continue
		}
		held, err := s.openKeys(ctx, tenantID, *a)
		if err != nil {
			return nil, err
		}
		values = append(values, held...)
	}
	return values, nil
}

// LiveDirs are the working directories of a workspace's live conversations.
func (s *Service) LiveDirs(ctx context.Context, tenantID, workspaceID uuid.UUID) ([]string, error) {
	live, err := s.db.Tenant(tenantID).LiveConversations(ctx, workspaceID)
	if err != nil {
		return nil, fmt.Errorf("list live conversations: %w", err)
	}
	dirs := make([]string, len(live))
	for i, c := range live {
		dirs[i] = c.Cwd
	}
	return dirs, nil
}

// ImplicitStage puts what the setup of a conversation's own workspace does into its transcript.
func (s *Service) ImplicitStage(ctx context.Context, tenantID, workspaceID uuid.UUID, e workspace.StageEvent) error {
	id, err := s.db.Tenant(tenantID).ConversationOfWorkspace(ctx, workspaceID)
	if err != nil {
		return fmt.Errorf("find the conversation of a workspace: %w", err)
	}
	b := transcript.StageBody{Stage: e.Step, State: e.State, DurationMS: e.Duration.Milliseconds(), Detail: map[string]any{}}
	if e.Note != "" {
		b.Detail["note"] = e.Note
	}
	switch e.State {
	case workspace.StagePrinted:
		b.State = "started" // it goes on
		b.Detail["lines"] = e.Lines
		if e.Dropped > 0 {
			b.Detail["dropped"] = e.Dropped
		}
	case workspace.StageSkipped:
		b.State = "done"
		b.Detail["skipped"] = true
	case workspace.StageFailed:
		if e.Error != nil {
			b.Reason = e.Error.Message
			b.Detail["error"] = e.Error
		}
	}
	err = s.o.Writer.Append(ctx, tenantID, id, transcript.Row{Type: transcript.Stage, Body: b})
	return err
}

// ConversationCounts counts the live conversations of workspaces; a workspace without any is not in the answer.
func (s *Service) ConversationCounts(ctx context.Context, tenantID uuid.UUID, workspaces []uuid.UUID) (map[uuid.UUID]int, error) {
	rows, err := s.db.Tenant(tenantID).ConversationCounts(ctx, workspaces)
	if err != nil {
		return nil, fmt.Errorf("count conversations: %w", err)
	}
	counts := make(map[uuid.UUID]int, len(rows))
	for _, r := range rows {
		counts[r.WorkspaceID] = int(r.N)
	}
	return counts, nil
}
