package conversation

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Filter narrows a list of conversations. A zero field does not narrow.
type Filter struct {
	Status      string
	AgentID     *uuid.UUID
	WorkspaceID *uuid.UUID
	Label       string // key:value
	Text        string // in the title or a prompt
}

// Get shows a conversation.
func (s *Service) Get(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Conversation, error) {
	q := s.db.Tenant(actor.TenantID)
	row, err := q.Conversation(ctx, id)
	if err != nil {
		return Conversation{}, missing(err)
	}
	if err := reach(actor, row.Conversation); err != nil {
		return Conversation{}, err
	}
	views, err := s.views(ctx, q, []conversationRow{{row.Conversation, row.Workspace, row.AgentName, row.FirstPrompt}})
	if err != nil {
		return Conversation{}, err
	}
	v := views[0]
	open, err := q.OpenPermissionRequests(ctx, id)
	if err != nil {
		return Conversation{}, fmt.Errorf("list permission requests: %w", err)
	}
	for _, r := range open {
		v.PendingRequests = append(v.PendingRequests, viewRequest(r))
	}
	return v, nil
}

// List shows conversations, those last active first.
func (s *Service) List(ctx context.Context, actor tenant.Actor, f Filter, page input.Page) (input.List[Conversation], error) {
	p := queries.ConversationsParams{AgentID: f.AgentID, WorkspaceID: f.WorkspaceID, Status: optional(db.SafeText(f.Status)), AtMost: page.Fetch()}
	if text := strings.TrimSpace(f.Text); text != "" {
		p.Text = optional(db.SafeText(text))
	}
	if f.Label != "" {
		key, value, ok := strings.Cut(f.Label, ":")
		if !ok {
			var v refusal.Validation
			v.Add("label", "must be key:value")
			return input.List[Conversation]{}, v.Err()
		}
		b, err := json.Marshal(map[string]string{db.SafeText(key): db.SafeText(value)})
		if err != nil {
			return input.List[Conversation]{}, err
		}
		p.Labels = b
	}
	var err error
	if p.Before, p.BeforeID, err = readCursor(page.Cursor); err != nil {
		return input.List[Conversation]{}, err
	}
	q := s.db.Tenant(actor.TenantID)
	rows, err := q.Conversations(ctx, p)
	if err != nil {
		return input.List[Conversation]{}, fmt.Errorf("list conversations: %w", err)
	}
	all := make([]conversationRow, len(rows))
	for i, r := range rows {
		all[i] = conversationRow{r.Conversation, r.Workspace, r.AgentName, r.FirstPrompt}
	}
	views, err := s.views(ctx, q, all)
	if err != nil {
		return input.List[Conversation]{}, err
	}
	same := func(c Conversation) Conversation { return c }
	return input.Paged(page, views, same, cursorOf), nil
}

// cursorOf names a conversation's place in the list.
func cursorOf(c Conversation) string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.LastActiveAt.UTC().Format(time.RFC3339Nano) + " " + c.ID.String()))
}

func readCursor(s string) (*time.Time, *uuid.UUID, error) {
	if s == "" {
		return nil, nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		at, id, _ := strings.Cut(string(b), " ")
		when, err1 := time.Parse(time.RFC3339Nano, at)
		which, err2 := uuid.Parse(id)
		if err1 == nil && err2 == nil {
			return &when, &which, nil
		}
	}
	var v refusal.Validation
	v.Add("cursor", "is not one that this list gave")
	return nil, nil, v.Err()
}

type conversationRow struct {
	conversation           queries.Conversation
	workspace              queries.Workspace
	agentName, firstPrompt string
}

// views adds open turns and usage to rows, with one query each for all of them.
func (s *Service) views(ctx context.Context, q *queries.Queries, rows []conversationRow) ([]Conversation, error) {
	ids := make([]uuid.UUID, len(rows))
	for i, r := range rows {
		ids[i] = r.conversation.ID
	}
	openTurns, err := q.OpenTurnsOfConversations(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("list open turns: %w", err)
	}
	open := map[uuid.UUID][]queries.Turn{}
	for _, t := range openTurns {
		open[t.ConversationID] = append(open[t.ConversationID], t)
	}
	sums, err := q.UsageOfConversations(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("sum usage: %w", err)
	}
	use := map[uuid.UUID]UsageTotal{}
	for _, u := range sums {
		use[u.ConversationID] = UsageTotal{Input: u.Input, Output: u.Output, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, CostMicros: u.CostMicros}
	}
	gone, err := s.gone(ctx, q, slices.Collect(maps.Keys(open))...)
	if err != nil {
		return nil, err
	}
	views := make([]Conversation, len(rows))
	for i, r := range rows {
		id := r.conversation.ID
		if views[i], err = viewConversation(r.conversation, r.workspace, r.agentName, r.firstPrompt, open[id], use[id]); err != nil {
			return nil, err
		}
		if since, away := gone[id]; away && views[i].CurrentTurn != nil {
			views[i].CurrentTurn.waitForHost(since)
		}
	}
	return views, nil
}

// gone are the conversations whose machine's server is away, since when. Only open turns wait for one.
func (s *Service) gone(ctx context.Context, q *queries.Queries, ids ...uuid.UUID) (map[uuid.UUID]time.Time, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := q.AwayConversations(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look for servers that are away: %w", err)
	}
	since := map[uuid.UUID]time.Time{}
	for _, r := range rows {
		since[r.ID] = r.SeenAt
	}
	return since, nil
}

// Turns shows the turns of a conversation, oldest first. The page's cursor is the number of the last one of the page
// before.
func (s *Service) Turns(ctx context.Context, actor tenant.Actor, id uuid.UUID, page input.Page) (input.List[Turn], error) {
	after, err := page.Number()
	if err != nil {
		return input.List[Turn]{}, err
	}
	q := s.db.Tenant(actor.TenantID)
	if err := s.Reach(ctx, actor, id); err != nil {
		return input.List[Turn]{}, err
	}
	rows, err := q.Turns(ctx, queries.TurnsParams{ConversationID: id, After: after, AtMost: page.Fetch()})
	if err != nil {
		return input.List[Turn]{}, fmt.Errorf("list turns: %w", err)
	}
	open, err := q.OpenTurns(ctx, id)
	if err != nil {
		return input.List[Turn]{}, fmt.Errorf("list open turns: %w", err)
	}
	turns, err := s.viewOpen(ctx, q, rows, open)
	if err != nil {
		return input.List[Turn]{}, err
	}
	same := func(t Turn) Turn { return t }
	return input.Paged(page, turns, same, func(t Turn) string { return input.NumberCursor(t.TurnNumber) }), nil
}

// Turn shows one turn by its number.
func (s *Service) Turn(ctx context.Context, actor tenant.Actor, id uuid.UUID, number int) (Turn, error) {
	q := s.db.Tenant(actor.TenantID)
	if err := s.Reach(ctx, actor, id); err != nil {
		return Turn{}, err
	}
	if number < 1 || number > maxTurns {
		return Turn{}, refusal.NotFoundError()
	}
	row, err := q.TurnByNumber(ctx, id, int32(number))
	if err != nil {
		return Turn{}, missing(err)
	}
	open, err := q.OpenTurns(ctx, id)
	if err != nil {
		return Turn{}, fmt.Errorf("list open turns: %w", err)
	}
	turns, err := s.viewOpen(ctx, q, []queries.Turn{row}, open)
	if err != nil {
		return Turn{}, err
	}
	return turns[0], nil
}

// viewOpen is viewTurns that says of open ones when the machine's server is away.
func (s *Service) viewOpen(ctx context.Context, q *queries.Queries, rows, open []queries.Turn) ([]Turn, error) {
	turns, err := viewTurns(rows, open)
	if err != nil || len(open) == 0 {
		return turns, err
	}
	id := open[0].ConversationID
	gone, err := s.gone(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if since, away := gone[id]; away {
		for i := range turns {
			turns[i].waitForHost(since)
		}
	}
	return turns, nil
}

// maxTurns is the largest number that a turn can have.
const maxTurns = 1<<31 - 1

// missing turns a row that is not there into its refusal.
func missing(err error) error {
	if db.NotFound(err) {
		return refusal.NotFoundError()
	}
	return fmt.Errorf("read the conversation: %w", err)
}
