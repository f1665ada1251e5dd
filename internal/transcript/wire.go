package transcript

import (
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

// StreamOf is the wire's stream of a row: what ?streams= filters by.
func StreamOf(r Stored) string {
	switch r.Type {
	case Message, Thought, Plan, ToolCallType, ToolResult, Usage:
		return streamACP
	case ToolOutput:
		var b ToolOutputBody
		if json.Unmarshal(r.Body, &b) == nil && b.Stream != "" {
			return b.Stream
		}
		return streamACP
	}
	return kindStage
}

// Wire makes the API's event of a row.
func Wire(r Stored, v View) Event {
	e := Event{ID: r.Seq, Seq: r.Seq, Type: r.Type, TurnID: r.TurnID, TurnNumber: r.TurnNumber, TS: r.CreatedAt.UTC(), Body: r.Body}
	switch s := StreamOf(r); s {
	case kindStage:
		e.Kind = kindStage
		e.Stage, e.State, e.DurationMS = stageOf(r)
		e.Data = r.Raw
		if e.Data == "" {
			e.Data = string(r.Body)
		}
	default:
		e.Kind, e.Stream = kindOutput, s
		e.Data = r.Raw
		if e.Data == "" {
			e.Data = line(r)
		}
	}
	if !v.Raw {
		e.Data = ""
		return e
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
	case Notice, Error:
		return "notice", "done", nil
	}
	var b StageBody
	if json.Unmarshal(r.Body, &b) != nil {
		return "", "", nil
	}
	stage = b.Stage
	if name, ok := wireStages[stage]; ok {
		stage = name
	}
	if b.DurationMS > 0 {
		ms = &b.DurationMS
	}
	return stage, b.State, ms
}

// line makes the protocol line of a row that has none of its own: joined chunks, and output that our guest saw.
func line(r Stored) string {
	content := func(text string) map[string]any { return map[string]any{"type": "text", "text": text} }
	update := map[string]any{}
	switch r.Type {
	case Message, Thought:
		var b MessageBody
		if json.Unmarshal(r.Body, &b) != nil {
			return ""
		}
		update["sessionUpdate"] = map[string]string{Message: "agent_message_chunk", Thought: "agent_thought_chunk"}[r.Type]
		update["content"] = content(b.Text)
		if b.MessageID != "" {
			update["messageId"] = b.MessageID
		}
	case ToolOutput:
		var b ToolOutputBody
		if json.Unmarshal(r.Body, &b) != nil {
			return ""
		}
		if b.Stream != "" {
			return b.Text // stdout and stderr are what was printed
		}
		update["sessionUpdate"], update["toolCallId"] = "tool_call_update", b.ID
		update["content"] = []any{map[string]any{"type": "content", "content": content(b.Text)}}
	case ToolResult:
		var b ToolResultBody
		if json.Unmarshal(r.Body, &b) != nil {
			return ""
		}
		status := b.Status
		if status != "completed" {
			status = "failed"
		}
		update["sessionUpdate"], update["toolCallId"], update["status"] = "tool_call_update", b.ID, status
		update["content"] = []any{map[string]any{"type": "content", "content": content(b.Output)}}
	case ToolCallType:
		var b ToolCallBody
		if json.Unmarshal(r.Body, &b) != nil {
			return ""
		}
		update["sessionUpdate"], update["toolCallId"], update["title"], update["kind"], update["status"] = "tool_call", b.ID, b.Title, b.ToolKind, b.Status
		if b.Input != nil {
			update["rawInput"] = b.Input
		}
	case Plan:
		var b PlanBody
		if json.Unmarshal(r.Body, &b) != nil {
			return ""
		}
		update["sessionUpdate"], update["entries"] = "plan", b.Entries
	case Usage:
		var b UsageBody
		if json.Unmarshal(r.Body, &b) != nil {
			return ""
		}
		update["sessionUpdate"], update["used"], update["size"] = "usage_update", b.ContextUsed, b.ContextSize
	default:
		return ""
	}
	out, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": "session/update", "params": map[string]any{"update": update}})
	if err != nil {
		return ""
	}
	return string(out)
}

// blocks is at most one block a row; renderers join adjacent text themselves.
func blocks(r Stored) []Block {
	switch r.Type {
	case Prompt:
		var b PromptBody
		if json.Unmarshal(r.Body, &b) == nil {
			return []Block{{Kind: "prompt", Body: b.Text}}
		}
	case Message:
		var b MessageBody
		if json.Unmarshal(r.Body, &b) == nil {
			return []Block{{Kind: "text", Body: b.Text}}
		}
	case Thought:
		var b ThoughtBody
		if json.Unmarshal(r.Body, &b) == nil {
			return []Block{{Kind: "thinking", Body: b.Text}}
		}
	case Plan:
		var b PlanBody
		if json.Unmarshal(r.Body, &b) == nil {
			return []Block{{Kind: "plan", Body: b.Entries}}
		}
	case ToolCallType:
		var b ToolCallBody
		if json.Unmarshal(r.Body, &b) == nil {
			name := b.Title
			if name == "" {
				name = b.ToolKind
			}
			return []Block{{Kind: "tool_use", ID: b.ID, Name: name, Summary: b.Title, Body: b.Input}}
		}
	case ToolResult:
		var b ToolResultBody
		if json.Unmarshal(r.Body, &b) == nil {
			failed := b.Status != "completed"
			return []Block{{Kind: "tool_result", ToolID: b.ID, Body: b.Output, Error: &failed}}
		}
	case PermissionRequest:
		var b PermissionRequestBody
		if json.Unmarshal(r.Body, &b) == nil {
			return []Block{{Kind: "permission_request", RequestID: b.RequestID, Name: b.Title, Options: b.Options}}
		}
	case Error:
		var b ErrorBody
		if json.Unmarshal(r.Body, &b) == nil {
			return []Block{{Kind: "error", Body: b.Message}}
		}
	}
	return nil
}
