package conversation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"managoat/internal/ledger"
	"managoat/queries"
)

// Status of a conversation.
const (
	Pending    = "pending" // no turn has run yet
	Running    = "running"
	Idle       = "idle"
	Failed     = "failed"     // its own machine's setup, or its config home, failed
	Terminated = "terminated" // ended by a person, or with its workspace
)

// Status of a turn; it shares Pending, Running and Failed with conversations.
const (
	Completed   = "completed"
	Interrupted = "interrupted"
)

// What a turn waits for.
const (
	ForQueue   = "queue"   // the turns before it
	ForHost    = "host"    // the server of the machine's host, which is away
	ForSetup   = "setup"   // the workspace's setup
	ForMachine = "machine" // the machine to start or wake
	ForHome    = "home"    // its config home to be made
	ForAdapter = "adapter" // the runtime to be installed or started
	ForSession = "session" // the runtime's session to be made or loaded
	ForModel   = "model"   // the first of the answer
)

// Conversation is a conversation as it is shown.
type Conversation struct {
	ID                    uuid.UUID         `json:"id"`
	Title                 string            `json:"title"`
	Status                string            `json:"status" enum:"pending,running,idle,failed,terminated"`
	AgentID               uuid.UUID         `json:"agent_id"`
	AgentVersion          int               `json:"agent_version"`
	AgentName             string            `json:"agent_name" doc:"empty when the agent was deleted"`
	WorkspaceID           uuid.UUID         `json:"workspace_id"`
	Workspace             WorkspaceRef      `json:"workspace"`
	SandboxID             *uuid.UUID        `json:"sandbox_id" doc:"the workspace's machine as it is now"`
	EnvironmentID         *uuid.UUID        `json:"environment_id"`
	VaultID               *uuid.UUID        `json:"vault_id"`
	Runtime               string            `json:"runtime"`
	ACP                   bool              `json:"acp"`
	Model                 string            `json:"model" doc:"provider/id; empty is the runtime's own"`
	Cwd                   string            `json:"cwd"`
	PermissionPolicy      json.RawMessage   `json:"permission_policy"`
	Labels                map[string]string `json:"labels"`
	SandboxAPIAccess      string            `json:"sandbox_api_access" enum:"owner,none"`
	Source                string            `json:"source" enum:"ui,api,agent"`
	ParentConversationID  *uuid.UUID        `json:"parent_conversation_id"`
	InferenceCredentialID *uuid.UUID        `json:"inference_credential_id"`
	RuntimeSessionID      *string           `json:"runtime_session_id"`
	TurnCount             int               `json:"turn_count"`
	FirstPrompt           string            `json:"first_prompt"`
	CurrentTurn           *Turn             `json:"current_turn" doc:"the turn that runs, or is next"`
	QueuedTurns           int               `json:"queued_turns" doc:"turns behind the current one"`
	Queue                 []Turn            `json:"-"` // those turns, in order
	PendingRequests       []Request         `json:"pending_requests" doc:"open permission requests; only in the answer for one conversation"`
	UsageTotal            UsageTotal        `json:"usage_total"`
	Error                 *Problem          `json:"error"`
	Unread                bool              `json:"unread"`
	LastActiveAt          time.Time         `json:"last_active_at"`
	LastReadAt            *time.Time        `json:"last_read_at"`
	EndedAt               *time.Time        `json:"ended_at"`
	CreatedBy             string            `json:"created_by"`
	InsertedAt            time.Time         `json:"inserted_at"`
	UpdatedAt             time.Time         `json:"updated_at"`
}

// WorkspaceRef is what a conversation shows of its workspace.
type WorkspaceRef struct {
	ID       uuid.UUID `json:"id"`
	Name     string    `json:"name"`
	Implicit bool      `json:"implicit" doc:"the conversation's own, ended with it"`
	Status   string    `json:"status"`
}

// UsageTotal sums what all turns used.
type UsageTotal struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cache_read"`
	CacheWrite int64 `json:"cache_write"`
	CostMicros int64 `json:"cost_micros"`
}

// Problem is why something failed: a code, a sentence with the next step, and what the code promises beside them.
type Problem struct {
	Code    string
	Message string
	Fields  map[string]any
}

// MarshalJSON writes {"code", "message", and the fields}.
func (p Problem) MarshalJSON() ([]byte, error) {
	all := make(map[string]any, len(p.Fields)+2)
	for k, v := range p.Fields {
		all[k] = v
	}
	all["code"], all["message"] = p.Code, p.Message
	return json.Marshal(all)
}

// UnmarshalJSON reads it back.
func (p *Problem) UnmarshalJSON(b []byte) error {
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	p.Code, _ = all["code"].(string)
	p.Message, _ = all["message"].(string)
	delete(all, "code")
	delete(all, "message")
	p.Fields = all
	return nil
}

// Turn is one prompt and everything until the agent stopped.
type Turn struct {
	ID              uuid.UUID     `json:"id"`
	ConversationID  uuid.UUID     `json:"conversation_id"`
	TurnNumber      int           `json:"turn_number"`
	Status          string        `json:"status" enum:"pending,running,completed,failed,interrupted"`
	Prompt          string        `json:"prompt"`
	ImageCount      int           `json:"image_count"`
	ClientRequestID *string       `json:"client_request_id"`
	Origin          string        `json:"origin" enum:"user,autonomous"`
	Waiting         bool          `json:"waiting" doc:"completed with an open permission request"`
	WaitingFor      *Waiting      `json:"waiting_for" doc:"what it waits for at this moment"`
	QueuePosition   int           `json:"queue_position" doc:"turns before it; 0 when it runs or has ended"`
	Attempts        int           `json:"attempts"`
	Model           string        `json:"model"`
	Source          string        `json:"source" doc:"whose key paid: own or pool; empty when no key of ours is used"`
	CredentialID    *uuid.UUID    `json:"inference_credential_id"`
	StopReason      *string       `json:"stop_reason" doc:"as the agent gave it"`
	Reason          *string       `json:"reason" doc:"why it was interrupted"`
	Error           *Problem      `json:"error"`
	ExitCode        *int          `json:"exit_code" doc:"of the runtime, when it ended during the turn"`
	Usage           *ledger.Usage `json:"usage"`
	ToolCallCount   int           `json:"tool_call_count"`
	FirstTokenAt    *time.Time    `json:"first_token_at"`
	StartedAt       *time.Time    `json:"started_at"`
	EndedAt         *time.Time    `json:"ended_at"`
	InsertedAt      time.Time     `json:"inserted_at"`
}

// Waiting says what a turn waits for, and since when.
type Waiting struct {
	Reason string    `json:"reason" enum:"queue,host,setup,machine,home,adapter,session,model"`
	Detail string    `json:"detail" doc:"the setup's step, or the number of the turn before it"`
	Since  time.Time `json:"since"`
}

// Request is a permission request.
type Request struct {
	ID         uuid.UUID       `json:"request_id"`
	TurnID     uuid.UUID       `json:"turn_id"`
	ToolCallID string          `json:"tool_call_id"`
	Tool       json.RawMessage `json:"tool"`
	Options    json.RawMessage `json:"options"`
	Status     string          `json:"status" enum:"open,resolved"`
	Outcome    string          `json:"outcome"`
	OptionID   string          `json:"option_id"`
	AnsweredBy string          `json:"answered_by"`
	AskedAt    time.Time       `json:"asked_at"`
	Deadline   *time.Time      `json:"deadline"`
	ResolvedAt *time.Time      `json:"resolved_at"`
}

func viewTurn(t queries.Turn) (Turn, error) {
	v := Turn{ID: t.ID, ConversationID: t.ConversationID, TurnNumber: int(t.TurnNumber), Status: t.Status, Prompt: t.Prompt,
		ClientRequestID: optional(t.ClientRequestID), Origin: t.Origin, Waiting: t.Waiting, Attempts: int(t.Attempts), Model: t.Model, Source: t.Source,
		CredentialID: t.CredentialID, StopReason: optional(t.StopReason), Reason: optional(t.Reason), ToolCallCount: int(t.ToolCallCount),
		FirstTokenAt: t.FirstTokenAt, StartedAt: t.StartedAt, EndedAt: t.EndedAt, InsertedAt: t.InsertedAt}
	if t.ExitCode != nil {
		code := int(*t.ExitCode)
		v.ExitCode = &code
	}
	var images []image
	if err := json.Unmarshal(t.Images, &images); err != nil {
		return Turn{}, fmt.Errorf("read turn %s: images: %w", t.ID, err)
	}
	v.ImageCount = len(images)
	if t.WaitingFor != "" && t.WaitingSince != nil {
		reason, detail := splitWaiting(t.WaitingFor)
		v.WaitingFor = &Waiting{Reason: reason, Detail: detail, Since: *t.WaitingSince}
	}
	if t.EndedAt != nil {
		v.Usage = new(ledger.Usage)
		if err := json.Unmarshal(t.Usage, v.Usage); err != nil {
			return Turn{}, fmt.Errorf("read turn %s: usage: %w", t.ID, err)
		}
	}
	var err error
	if v.Error, err = problemOf(t.Error); err != nil {
		return Turn{}, fmt.Errorf("read turn %s: %w", t.ID, err)
	}
	return v, nil
}

// viewTurns shows turns of a conversation, with the place of those that wait among its open ones.
func viewTurns(rows, open []queries.Turn) ([]Turn, error) {
	turns := make([]Turn, len(rows))
	for i, r := range rows {
		var err error
		if turns[i], err = viewTurn(r); err != nil {
			return nil, err
		}
		if r.Status != Pending {
			continue
		}
		if n := slices.IndexFunc(open, func(t queries.Turn) bool { return t.ID == r.ID }); n > 0 {
			turns[i].QueuePosition = n
			if w := turns[i].WaitingFor; w != nil && w.Reason == ForQueue {
				w.Detail = strconv.Itoa(int(open[n-1].TurnNumber))
			}
		}
	}
	return turns, nil
}

// waitForHost says of an open turn that it waits for the server of its machine's host, which is away since then. What waits
// behind another turn waits for that one.
func (t *Turn) waitForHost(since time.Time) {
	if t.EndedAt != nil || t.QueuePosition > 0 {
		return
	}
	if t.InsertedAt.After(since) {
		since = t.InsertedAt
	}
	t.WaitingFor = &Waiting{Reason: ForHost, Since: since}
}

func problemOf(raw json.RawMessage) (*Problem, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	p := new(Problem)
	if err := json.Unmarshal(raw, p); err != nil {
		return nil, fmt.Errorf("error: %w", err)
	}
	return p, nil
}

func viewConversation(c queries.Conversation, w queries.Workspace, agentName, firstPrompt string, open []queries.Turn, use UsageTotal) (Conversation, error) {
	v := Conversation{ID: c.ID, Title: c.Title, Status: c.Status, AgentID: c.AgentID, AgentVersion: int(c.AgentVersion), AgentName: agentName,
		WorkspaceID: c.WorkspaceID, Workspace: WorkspaceRef{ID: w.ID, Name: w.Name, Implicit: w.Implicit, Status: w.Status}, SandboxID: w.MachineID,
		EnvironmentID: w.EnvironmentID, VaultID: w.VaultID, Runtime: c.Runtime, ACP: true, Model: c.Model, Cwd: c.Cwd, PermissionPolicy: c.PermissionPolicy,
		Labels: map[string]string{}, SandboxAPIAccess: c.SandboxApiAccess, Source: c.Source, ParentConversationID: c.ParentID,
		InferenceCredentialID: c.InferenceCredentialID, RuntimeSessionID: optional(c.RuntimeSessionID), TurnCount: int(c.TurnCount),
		FirstPrompt: firstPrompt, PendingRequests: []Request{}, UsageTotal: use, LastActiveAt: c.LastActiveAt, LastReadAt: c.LastReadAt,
		Unread:  c.TurnCount > 0 && (c.LastReadAt == nil || c.LastReadAt.Before(c.LastActiveAt)),
		EndedAt: c.EndedAt, CreatedBy: c.CreatedBy, InsertedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt}
	if err := json.Unmarshal(c.Labels, &v.Labels); err != nil {
		return Conversation{}, fmt.Errorf("read conversation %s: labels: %w", c.ID, err)
	}
	turns, err := viewTurns(open, open)
	if err != nil {
		return Conversation{}, err
	}
	if len(turns) > 0 {
		v.CurrentTurn, v.Queue, v.QueuedTurns = &turns[0], turns[1:], len(turns)-1
	}
	if v.Error, err = problemOf(c.Error); err != nil {
		return Conversation{}, fmt.Errorf("read conversation %s: %w", c.ID, err)
	}
	return v, nil
}

func viewRequest(r queries.PermissionRequest) Request {
	return Request{ID: r.ID, TurnID: r.TurnID, ToolCallID: r.ToolCallID, Tool: r.Tool, Options: r.Options, Status: r.Status, Outcome: r.Outcome,
		OptionID: r.OptionID, AnsweredBy: r.AnsweredBy, AskedAt: r.CreatedAt, Deadline: r.Deadline, ResolvedAt: r.ResolvedAt}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
