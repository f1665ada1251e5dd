package transcript

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Event is a row as the API shows it, in lists and on streams alike: the wire's fields, and ours.
type Event struct {
	ID         int64           `json:"id" doc:"the conversation's sequence number"`
	Kind       string          `json:"kind" enum:"output,stage"`
	Stream     string          `json:"stream" enum:"acp,stdout,stderr,"`
	Data       string          `json:"data,omitempty" doc:"the protocol line, redacted, or the stage's JSON"`
	Stage      string          `json:"stage,omitempty"`
	State      string          `json:"state,omitempty"`
	TurnID     *uuid.UUID      `json:"turn_id"`
	DurationMS *int64          `json:"duration_ms,omitempty"`
	TS         time.Time       `json:"ts"`
	Blocks     []Block         `json:"blocks,omitempty"`
	Seq        int64           `json:"seq"`
	Type       string          `json:"type"`
	TurnNumber int             `json:"turn_number,omitempty"`
	Body       json.RawMessage `json:"body"`
}

// Block is what a row shows, parsed for clients that do not read the protocol.
type Block struct {
	Kind      string   `json:"kind"`
	Body      any      `json:"body,omitempty"`
	ID        string   `json:"id,omitempty"`
	Name      string   `json:"name,omitempty"`
	Summary   string   `json:"summary,omitempty"`
	ToolID    string   `json:"tool_id,omitempty"`
	Error     *bool    `json:"error,omitempty"`
	RequestID string   `json:"request_id,omitempty"`
	Options   []Option `json:"options,omitempty"`
}

// View says how much of a row to show.
type View struct {
	Raw    bool // data and blocks
	Blocks bool
}

// Stored is a row as it is read.
type Stored struct {
	ConversationID uuid.UUID
	Seq            int64
	TurnID         *uuid.UUID
	TurnNumber     int // 0: none
	Type           string
	Body           json.RawMessage
	Raw            string
	CreatedAt      time.Time
}

// Kinds and streams of the wire.
const (
	kindOutput = "output"
	kindStage  = "stage"
	streamACP  = "acp"
)

// wireStages are the wire's names of our stages; those that are missing have the same name.
var wireStages = map[string]string{
	"machine": "provision", "environment": "configuration", "repositories": "clone", "setup_script": "setup", "home": "configuration", "adapter": "session", "snapshot": "checkpoint",
}

// acpStatus are the protocol's names of our statuses of tool calls; those that are missing have the same name.
var acpStatus = map[string]string{"running": "in_progress", "interrupted": "failed"}

func renamed(names map[string]string, name string) string {
	if other, ok := names[name]; ok {
		return other
	}
	return name
}

// bodyOf reads a body. It was written by Row's type, so that it reads; one of another binary leaves fields empty.
func bodyOf[T any](r Stored) (b T) {
	_ = json.Unmarshal(r.Body, &b)
	return b
}

// StreamOf is the wire's stream of a row: what ?streams= filters by.
func StreamOf(r Stored) string {
	switch r.Type {
	case Message, Thought, Plan, ToolCallType, ToolResult, Usage:
		return streamACP
	case ToolOutput:
		return cmp.Or(bodyOf[ToolOutputBody](r).Stream, streamACP)
	}
	return kindStage
}

// Wire makes the API's event of a row.
func Wire(r Stored, v View) Event {
	e := Event{ID: r.Seq, Seq: r.Seq, Type: r.Type, TurnID: r.TurnID, TurnNumber: r.TurnNumber, TS: r.CreatedAt.UTC(), Body: r.Body}
	if s := StreamOf(r); s == kindStage {
		e.Kind = kindStage
		e.Stage, e.State, e.DurationMS = stageOf(r)
	} else {
		e.Kind, e.Stream = kindOutput, s
	}
	if !v.Raw {
		return e
	}
	switch {
	case e.Kind == kindStage:
		e.Data = string(r.Body)
	case r.Raw != "":
		e.Data = r.Raw
	default:
		e.Data = line(r)
	}
	if v.Blocks {
		e.Blocks = blocks(r)
	}
	return e
}

func stageOf(r Stored) (stage, state string, ms *int64) {
	switch r.Type {
	case Prompt:
		return "turn", "started", nil
	case PermissionRequest:
		return "request", "started", nil
	case PermissionResolved:
		return "request", "done", nil
	case Notice:
		return "notice", "done", nil
	case Error:
		return "notice", "failed", nil
	}
	b := bodyOf[StageBody](r)
	if b.DurationMS > 0 {
		ms = &b.DurationMS
	}
	return renamed(wireStages, b.Stage), b.State, ms
}

// line makes the protocol line of a row that has none of its own: joined chunks, and what our guest saw.
func line(r Stored) string {
	type object = map[string]any
	text := func(s string) object { return object{"type": "text", "text": s} }
	chunk := func(kind string, b MessageBody) object {
		u := object{"sessionUpdate": kind, "content": text(b.Text)}
		if b.MessageID != "" {
			u["messageId"] = b.MessageID
		}
		return u
	}
	var update object
	switch r.Type {
	case Message:
		update = chunk("agent_message_chunk", bodyOf[MessageBody](r))
	case Thought:
		update = chunk("agent_thought_chunk", bodyOf[MessageBody](r))
	case ToolOutput:
		b := bodyOf[ToolOutputBody](r)
		if b.Stream != "" {
			return b.Text // stdout and stderr are what was printed
		}
		update = object{"sessionUpdate": "tool_call_update", "toolCallId": b.ID, "content": []object{{"type": "content", "content": text(b.Text)}}}
	case ToolCallType:
		b := bodyOf[ToolCallBody](r)
		update = object{"sessionUpdate": "tool_call", "toolCallId": b.ID, "title": b.Title, "kind": cmp.Or(b.ToolKind, "other"), "status": renamed(acpStatus, b.Status)}
		if b.Input != nil {
			update["rawInput"] = b.Input
		}
		if b.Locations != nil {
			update["locations"] = b.Locations
		}
	case ToolResult:
		b := bodyOf[ToolResultBody](r)
		update = object{"sessionUpdate": "tool_call_update", "toolCallId": b.ID, "status": renamed(acpStatus, b.Status),
			"content": []object{{"type": "content", "content": text(b.Output)}}}
	case Plan:
		update = object{"sessionUpdate": "plan", "entries": bodyOf[PlanBody](r).Entries}
	case Usage:
		b := bodyOf[UsageBody](r)
		update = object{"sessionUpdate": "usage_update", "used": b.ContextUsed, "size": b.ContextSize}
	}
	out, err := json.Marshal(object{"jsonrpc": "2.0", "method": "session/update", "params": object{"sessionId": r.ConversationID, "update": update}})
	if err != nil {
		return "" // plain values
	}
	return string(out)
}

// blocks is at most one block a row; renderers join adjacent text themselves.
func blocks(r Stored) []Block {
	switch r.Type {
	case Prompt:
		return []Block{{Kind: "prompt", Body: bodyOf[PromptBody](r).Text}}
	case Message:
		return []Block{{Kind: "text", Body: bodyOf[MessageBody](r).Text}}
	case Thought:
		return []Block{{Kind: "thinking", Body: bodyOf[ThoughtBody](r).Text}}
	case Plan:
		return []Block{{Kind: "plan", Body: bodyOf[PlanBody](r).Entries}}
	case ToolCallType:
		b := bodyOf[ToolCallBody](r)
		return []Block{{Kind: "tool_use", ID: b.ID, Name: cmp.Or(b.Title, b.ToolKind), Summary: b.Title, Body: b.Input}}
	case ToolResult:
		b := bodyOf[ToolResultBody](r)
		failed := b.Status != "completed"
		return []Block{{Kind: "tool_result", ToolID: b.ID, Body: b.Output, Error: &failed}}
	case PermissionRequest:
		b := bodyOf[PermissionRequestBody](r)
		return []Block{{Kind: "permission_request", RequestID: b.RequestID, Name: b.Title, Options: b.Options}}
	case Error:
		return []Block{{Kind: "error", Body: bodyOf[ErrorBody](r).Message}}
	}
	return nil
}
