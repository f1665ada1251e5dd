package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/input"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Usage is what a turn used, over all its attempts and models, as the broker metered it.
type Usage struct {
	Input          int64      `json:"input" doc:"tokens, without what was read from or written to a cache"`
	Output         int64      `json:"output"`
	CacheRead      int64      `json:"cache_read"`
	CacheWrite     int64      `json:"cache_write"`
	CostMicros     int64      `json:"cost_micros"`
	Requests       int        `json:"requests" doc:"model requests, an adapter's own retries among them"`
	FailedRequests int        `json:"failed_requests"`
	Accounting     Accounting `json:"accounting"`
}

// Accounting says where the numbers come from.
type Accounting struct {
	Version      int    `json:"version"`
	Source       string `json:"source" doc:"gateway: metered on the way, not told by the machine"`
	Scope        string `json:"scope"`
	Completeness string `json:"completeness" enum:"reported,partial"`
}

const accountingVersion = 1

// JSON is the usage as turns keep it.
func (u Usage) JSON() json.RawMessage {
	b, err := json.Marshal(u)
	if err != nil {
		panic(err) // numbers and constants
	}
	return b
}

// Settle makes the conversation's open model requests the turn's, with one usage entry a model, and returns what the
// turn has used in all. It belongs into the transaction that ends the attempt; the caller holds the conversation's lock.
// machine is how long the attempt held the machine.
func Settle(ctx context.Context, tx db.Tx, conversation, turn uuid.UUID, attempt int, machine time.Duration) (Usage, error) {
	sums, err := tx.SettleModelRequests(ctx, turn, conversation)
	if err != nil {
		return Usage{}, fmt.Errorf("settle model requests: %w", err)
	}
	for _, m := range sums {
		if err := tx.InsertUsageEntry(ctx, queries.InsertUsageEntryParams{
			ID: uuid.Must(uuid.NewV7()), ConversationID: conversation, TurnID: turn, Attempt: int32(attempt), Source: m.Source, CredentialID: m.CredentialID,
			Provider: m.Provider, Model: m.Model, InputTokens: m.InputTokens, OutputTokens: m.OutputTokens, CacheReadTokens: m.CacheReadTokens,
			CacheWriteTokens: m.CacheWriteTokens, Requests: m.Requests, FailedRequests: m.FailedRequests, MachineMs: machine.Milliseconds(),
		}); err != nil {
			return Usage{}, fmt.Errorf("write a usage entry: %w", err)
		}
		machine = 0 // counted once an attempt
	}
	sum, err := tx.UsageOfTurn(ctx, turn)
	if err != nil {
		return Usage{}, fmt.Errorf("sum the turn's usage: %w", err)
	}
	u := Usage{Input: sum.Input, Output: sum.Output, CacheRead: sum.CacheRead, CacheWrite: sum.CacheWrite, CostMicros: sum.CostMicros,
		Requests: int(sum.Requests), FailedRequests: int(sum.FailedRequests),
		Accounting: Accounting{Version: accountingVersion, Source: "gateway", Scope: "turn", Completeness: "reported"}}
	if !sum.Complete {
		u.Accounting.Completeness = "partial"
	}
	return u, nil
}

// Await waits until the running turn's metered output has reached what its adapter says it used, so that the turn's end
// carries the whole of it. The rows come from another process: when ctx ends first they are settled as they arrive.
func (s *Service) Await(ctx context.Context, tenantID, conversation uuid.UUID, outputTokens int64) {
	for {
		s.mu.Lock()
		arrived := s.arrived
		s.mu.Unlock()
		use, err := s.db.Tenant(tenantID).OpenModelUse(ctx, conversation)
		if err != nil || use.OutputTokens >= outputTokens {
			return
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return
		}
	}
}

// Entry is one row of the ledger: an attempt and a model. Entries are never changed.
type Entry struct {
	ID               uuid.UUID  `json:"id"`
	At               time.Time  `json:"at"`
	ConversationID   uuid.UUID  `json:"conversation_id"`
	TurnID           uuid.UUID  `json:"turn_id"`
	Attempt          int        `json:"attempt"`
	Source           string     `json:"source" enum:"own,pool"`
	CredentialID     *uuid.UUID `json:"credential_id"`
	Provider         string     `json:"provider"`
	Model            string     `json:"model"`
	InputTokens      int64      `json:"input_tokens"`
	OutputTokens     int64      `json:"output_tokens"`
	CacheReadTokens  int64      `json:"cache_read_tokens"`
	CacheWriteTokens int64      `json:"cache_write_tokens"`
	CostMicros       int64      `json:"cost_micros"`
	Requests         int        `json:"requests"`
	FailedRequests   int        `json:"failed_requests"`
	MachineMS        int64      `json:"machine_ms"`
}

// Filter narrows a look at the ledger. A nil field does not narrow.
type Filter struct {
	ConversationID *uuid.UUID
	TurnID         *uuid.UUID
}

// Entries lists the ledger, oldest first. The page's cursor is the id of the last entry of the page before.
func (s *Service) Entries(ctx context.Context, actor tenant.Actor, f Filter, page input.Page) (input.List[Entry], error) {
	after, err := page.ID()
	if err != nil {
		return input.List[Entry]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).UsageEntries(ctx, queries.UsageEntriesParams{
		ConversationID: f.ConversationID, TurnID: f.TurnID, After: after, AtMost: page.Fetch()})
	if err != nil {
		return input.List[Entry]{}, fmt.Errorf("list the ledger: %w", err)
	}
	return input.Paged(page, rows, func(r queries.UsageEntry) Entry {
		return Entry{ID: r.ID, At: r.At, ConversationID: r.ConversationID, TurnID: r.TurnID, Attempt: int(r.Attempt), Source: r.Source,
			CredentialID: r.CredentialID, Provider: r.Provider, Model: r.Model, InputTokens: r.InputTokens, OutputTokens: r.OutputTokens,
			CacheReadTokens: r.CacheReadTokens, CacheWriteTokens: r.CacheWriteTokens, CostMicros: r.CostMicros, Requests: int(r.Requests),
			FailedRequests: int(r.FailedRequests), MachineMS: r.MachineMs}
	}, func(e Entry) string { return e.ID.String() }), nil
}

// Request is one row of the request log: what left a machine, or tried to. Never a path, a query, a header or a body.
type Request struct {
	ID             uuid.UUID  `json:"id"`
	At             time.Time  `json:"at"`
	WorkspaceID    uuid.UUID  `json:"workspace_id"`
	SandboxID      uuid.UUID  `json:"sandbox_id"`
	ConversationID *uuid.UUID `json:"conversation_id" doc:"null: the setup, or a program that carried no token"`
	Method         string     `json:"method"`
	Host           string     `json:"host"`
	Port           int        `json:"port"`
	Decision       string     `json:"decision" enum:"allowed,injected,denied,failed"`
	Rule           string     `json:"rule"`
	CredentialKeys []string   `json:"credential_keys"`
	Status         int        `json:"status"`
	BytesIn        int64      `json:"bytes_in"`
	BytesOut       int64      `json:"bytes_out"`
	LatencyMS      int64      `json:"latency_ms"`
	DurationMS     int64      `json:"duration_ms"`
	Dropped        int64      `json:"dropped" doc:"rows lost right before this one"`
	Error          string     `json:"error"`
}

// EgressOfConversation lists a conversation's requests, newest first. The caller has checked that it is there.
func (s *Service) EgressOfConversation(ctx context.Context, actor tenant.Actor, id uuid.UUID, page input.Page) (input.List[Request], error) {
	return s.egress(page, func(before *uuid.UUID) ([]queries.EgressRequest, error) {
		return s.db.Tenant(actor.TenantID).EgressOfConversation(ctx, queries.EgressOfConversationParams{ConversationID: &id, Before: before, AtMost: page.Fetch()})
	})
}

// EgressOfWorkspace lists the requests of a workspace's machines, newest first. The caller has checked that it is there.
func (s *Service) EgressOfWorkspace(ctx context.Context, actor tenant.Actor, id uuid.UUID, page input.Page) (input.List[Request], error) {
	return s.egress(page, func(before *uuid.UUID) ([]queries.EgressRequest, error) {
		return s.db.Tenant(actor.TenantID).EgressOfWorkspace(ctx, queries.EgressOfWorkspaceParams{WorkspaceID: id, Before: before, AtMost: page.Fetch()})
	})
}

func (s *Service) egress(page input.Page, read func(before *uuid.UUID) ([]queries.EgressRequest, error)) (input.List[Request], error) {
	before, err := page.ID()
	if err != nil {
		return input.List[Request]{}, err
	}
	rows, err := read(before)
	if err != nil {
		return input.List[Request]{}, fmt.Errorf("list egress requests: %w", err)
	}
	return input.Paged(page, rows, func(r queries.EgressRequest) Request {
		return Request{ID: r.ID, At: r.At, WorkspaceID: r.WorkspaceID, SandboxID: r.MachineID, ConversationID: r.ConversationID, Method: r.Method,
			Host: r.Host, Port: int(r.Port), Decision: r.Decision, Rule: r.Rule, CredentialKeys: r.CredentialKeys, Status: int(r.Status),
			BytesIn: r.BytesIn, BytesOut: r.BytesOut, LatencyMS: r.LatencyMs, DurationMS: r.DurationMs, Dropped: r.Dropped, Error: r.Error}
	}, func(r Request) string { return r.ID.String() }), nil
}
