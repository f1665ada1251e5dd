package transcript

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"managoat/db"
)

// Types of rows.
const (
	Prompt             = "prompt"
	Message            = "message"
	Thought            = "thought"
	Plan               = "plan"
	ToolCallType       = "tool_call"
	ToolOutput         = "tool_output"
	ToolResult         = "tool_result"
	PermissionRequest  = "permission_request"
	PermissionResolved = "permission_resolved"
	Stage              = "stage"
	Usage              = "usage"
	Notice             = "notice"
	Error              = "error"
)

// Who said a fact about a tool call.
const (
	Protocol = "protocol" // the adapter
	Machine  = "machine"  // our guest, which ran or watched the command
)

// Row is one row to append. Body is marshalled as JSON; its strings have passed the gate.
type Row struct {
	Type   string
	TurnID *uuid.UUID
	Body   any
	Raw    string // the protocol line, redacted; "" for rows of ours. A chunk's is made anew around its text
	// Tool also keeps the tool call's own row, in the same transaction.
	Tool *ToolCall
	// Within runs in the transaction that inserts the row, and may lock the conversation's own row and what belongs to it:
	// a read offset, a permission request. Its error refuses the row; it runs again when the transaction is tried again.
	Within func(context.Context, db.Tx) error
}

// PromptBody is what a person, or an agent above, asked.
type PromptBody struct {
	TurnNumber int    `json:"turn_number"`
	Text       string `json:"text"`
	Images     int    `json:"images,omitempty"`
	By         string `json:"by,omitempty"` // who sent it: an e-mail address, or a kind and an id
}

// MessageBody is a piece of what the agent says; pieces of one message share its id.
type MessageBody struct {
	MessageID string `json:"message_id"`
	Text      string `json:"text"`
}

// ThoughtBody is a piece of what the agent thinks.
type ThoughtBody struct {
	MessageID string `json:"message_id"`
	Text      string `json:"text"`
}

// PlanBody is the agent's plan as it stands.
type PlanBody struct {
	Entries []PlanEntry `json:"entries"`
}

// PlanEntry is one step of a plan.
type PlanEntry struct {
	Content  string `json:"content"`
	Status   string `json:"status"`
	Priority string `json:"priority,omitempty"`
}

// ToolCallBody says that a tool is called, or more of what is known of the call.
type ToolCallBody struct {
	ID        string          `json:"id"`
	Title     string          `json:"title"`
	ToolKind  string          `json:"tool_kind"`
	Status    string          `json:"status"`
	Input     json.RawMessage `json:"input,omitempty"`
	Locations []Location      `json:"locations,omitempty"`
	Diffs     []Diff          `json:"diffs,omitempty"`
}

// Location is a place in a file.
type Location struct {
	Path string `json:"path"`
	Line *int   `json:"line,omitempty"`
}

// Diff is a change of one file. OldText is nil for a new file.
type Diff struct {
	Path    string  `json:"path"`
	OldText *string `json:"old_text"`
	NewText string  `json:"new_text"`
}

// ToolOutputBody is a piece of a tool's output as it runs.
type ToolOutputBody struct {
	ID     string `json:"id"`
	Stream string `json:"stream"` // stdout, stderr, "" when they are one
	Text   string `json:"text"`
}

// ToolResultBody is how a tool call ended.
type ToolResultBody struct {
	ID          string `json:"id"`
	Status      string `json:"status"` // completed, failed, interrupted
	ExitCode    *int   `json:"exit_code"`
	Signal      string `json:"signal,omitempty"`
	DurationMS  int64  `json:"duration_ms"`
	Output      string `json:"output"` // head and tail
	OutputBytes int64  `json:"output_bytes"`
	Truncated   bool   `json:"truncated"`
	FullLogPath string `json:"full_log_path,omitempty"`
	Diffs       []Diff `json:"diffs,omitempty"`
	Source      Source `json:"source"`
}

// Source says who said what of a tool call: Protocol or Machine; "" when nobody did.
type Source struct {
	Output   string `json:"output,omitempty"`
	ExitCode string `json:"exit_code,omitempty"`
	Duration string `json:"duration,omitempty"`
}

// PermissionRequestBody asks whether a tool may run.
type PermissionRequestBody struct {
	RequestID  string          `json:"request_id"`
	ToolCallID string          `json:"tool_call_id"`
	Title      string          `json:"title"`
	ToolKind   string          `json:"tool_kind,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Options    []Option        `json:"options"`
}

// Option is an answer to a permission request.
type Option struct {
	ID   string `json:"option_id"`
	Name string `json:"name"`
	Kind string `json:"kind"` // allow_once, allow_always, reject_once, reject_always
}

// PermissionResolvedBody is the answer.
type PermissionResolvedBody struct {
	RequestID string `json:"request_id"`
	Outcome   string `json:"outcome"` // auto_allow, cancelled, …
	OptionID  string `json:"option_id,omitempty"`
	By        string `json:"by,omitempty"`
}

// StageBody is a step of ours: of a setup, a wake, a turn.
type StageBody struct {
	Stage      string         `json:"stage"`
	State      string         `json:"state"` // started, done, failed, interrupted
	Reason     string         `json:"reason,omitempty"`
	Advice     string         `json:"advice,omitempty"`
	DurationMS int64          `json:"duration_ms,omitempty"`
	Detail     map[string]any `json:"detail,omitempty"`
}

// UsageBody is what a turn has used so far.
type UsageBody struct {
	Model            string `json:"model,omitempty"`
	InputTokens      int64  `json:"input_tokens"`
	OutputTokens     int64  `json:"output_tokens"`
	CacheReadTokens  int64  `json:"cache_read_tokens"`
	CacheWriteTokens int64  `json:"cache_write_tokens"`
	ContextUsed      int64  `json:"context_used,omitempty"`
	ContextSize      int64  `json:"context_size,omitempty"`
}

// NoticeBody is what a person must know in place.
type NoticeBody struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// ErrorBody is what went wrong.
type ErrorBody struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Detail  map[string]any `json:"detail,omitempty"`
}

// ToolCall is a tool call's own row. Zero fields leave what was known before.
type ToolCall struct {
	ID          string
	TurnID      uuid.UUID
	Title       string
	Kind        string
	Status      string // pending, running, completed, failed, interrupted
	Input       json.RawMessage
	ExitCode    *int
	Signal      string
	DurationMS  *int64
	OutputBytes int64
	Truncated   bool
	FullLogPath string
	Source      Source
}
