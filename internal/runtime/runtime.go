package runtime

import (
	"encoding/json"
	"maps"
	"path"
	"slices"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"

	"managoat/internal/mcp"
	"managoat/sandbox/guest"
)

// Names of the runtimes.
const (
	Claude  = "claude"
	Codex   = "codex"
	Gemini  = "gemini"
	Command = "acp" // any command line found in the machine that speaks the protocol
)

// Runtime is one kind of agent.
type Runtime interface {
	// Name is the runtime's name in agents and conversations.
	Name() string
	// Installs names what Install must have installed before it starts; "" when it needs nothing of ours.
	Installs() string
	// Dir is the working directory of conversations that name none.
	Dir() string
	// Template is its directory in the runtime template, from which config homes are copied; "" when it has none.
	Template() string
	// Place is where in the config home it looks for what the template's directory holds; "" is the home itself.
	Place() string
	// Argv is the command line, as the machine sees it.
	Argv(Launch) []string
	// Defaults is the environment that everything else overrides.
	Defaults(Launch) map[string]string
	// Fixed is the environment that nothing overrides, and the names that must not be set at all: other ways to a model
	// than the gateway, and other places for the config home.
	Fixed(Launch) (set map[string]string, unset []string)
	// Files are ours in the config home, in place of a template's, written when the home is made.
	Files(Launch) []File
	// Credentials are such files that hold the token of a start: each start writes them again.
	Credentials(Launch) []File
	// Merges are the keys we set in JSON files of the config home that a template may fill.
	Merges(Launch) []Merge
	// Servers are the MCP servers that a session's request names. A runtime that reads them in a file has none.
	Servers(Launch) []sdk.McpServer
	// Capabilities of the client, that it makes use of.
	Capabilities() sdk.ClientCapabilities
	// SessionMeta goes with session/new, load and resume in a working directory; nil for none.
	SessionMeta(l Launch, cwd string) map[string]any
	// AuthMethod is the method of the protocol's authenticate that tells an agent that its keys are a gateway's; "" for none.
	AuthMethod() string
	// Mode is set by session/set_mode after each new, load and resume; "" leaves the agent's own.
	Mode() string
	// Outcome reads what the runtime's own fields say about a tool call that has ended.
	Outcome(ToolCall) Outcome
	// Records tells that its commands surely pass through the machine's recording shell: a call's end waits for its record.
	Records() bool
	// Recorded is the command of a tool call in a record of the recording shell; false when the record is none.
	Recorded(argv []string) (command string, ok bool)
}

// Launch is what one agent process is started from.
type Launch struct {
	ConversationID uuid.UUID
	Home           string // its config home
	CommandLine    string // of the runtime acp
	System         string // the agent's system prompt
	Model          string // the model's id without its provider; "" is the runtime's own
	Provider       string // whose models the gateway answers for; "" when it makes no model calls
	Token          string // the conversation's gateway token, which stands for the key
	Skills         []Skill
	MCP            mcp.Servers // with every variable's value
}

// Skill is an agent's text about how something is done.
type Skill struct{ Name, Content string }

// File is a file of ours in a config home, by its path below it. Replaces is what goes before it is written, a directory with
// all it holds; "" is the file itself.
type File struct {
	Path     string
	Data     []byte
	Mode     uint32
	Replaces string
}

// skills are the agent's skills below a runtime's place in a config home.
func skills(place string, l Launch) []File {
	files := make([]File, len(l.Skills))
	for i, s := range l.Skills {
		dir := path.Join(place, "skills", s.Name)
		files[i] = File{Path: path.Join(dir, "SKILL.md"), Data: []byte(s.Content), Mode: 0o644, Replaces: dir}
	}
	return files
}

// instructions are the agent's system prompt as a runtime's file. Without one, a template's stays.
func instructions(file string, l Launch) []File {
	if l.System == "" {
		return nil
	}
	return []File{{Path: file, Data: []byte(l.System), Mode: 0o644}}
}

// Merge sets top-level keys of a JSON file in a config home; whatever else is in the file stays.
type Merge struct {
	Path string
	Keys map[string]any
}

// ToolCall is a tool call as its updates have made it.
type ToolCall struct {
	ID        string
	Name      string // of the tool, where the runtime says it
	Title     string
	Kind      string
	Status    string // pending, in_progress, completed, failed
	Input     json.RawMessage
	RawOutput json.RawMessage
	Response  json.RawMessage // the runtime's own field with the tool's result, where it has one
	Content   []sdk.ToolCallContent
	Exit      *Exit // from terminal_exit, where the runtime sends it
}

// Exit is how a command ended, as a protocol field told it.
type Exit struct {
	Code   *int   `json:"exit_code"`
	Signal string `json:"signal"`
}

// Outcome of a tool call. What the runtime does not say stays unset: nothing is made up.
type Outcome struct {
	Output   string
	Told     bool // Output is what the runtime gave, even when it is empty
	ExitCode *int
	Signal   string
}

// all runtimes that conversations can have.
var all = map[string]Runtime{Claude: claude{}, Codex: codex{}, Gemini: gemini{}, Command: command{}}

// Get finds a runtime by its name.
func Get(name string) (Runtime, bool) {
	r, ok := all[name]
	return r, ok
}

// Names of all runtimes.
func Names() []string { return slices.Sorted(maps.Keys(all)) }

// ModelURL is the model gateway as a machine sees it.
const ModelURL = "http://" + guest.ModelHost

// modelKeys are the variables through which programs find a provider's API: what is ours to set is set, and nothing
// that an environment brings along may lead around the gateway.
var modelKeys = map[string]struct {
	url, key, model string
	suffix          string // of the gateway's URL
	unset           []string
}{
	"anthropic":         {"ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL", "", []string{"ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"}},
	"openai":            {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "/v1", nil},
	"openai_compatible": {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "/v1", nil},
	"google":            {"GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "GEMINI_MODEL", "", []string{"GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"}},
}

func modelEnv(l Launch) (set map[string]string, unset []string) {
	set = map[string]string{}
	keys, ok := modelKeys[l.Provider]
	if !ok || l.Token == "" {
		return set, nil
	}
	set[keys.url], set[keys.key] = ModelURL+keys.suffix, l.Token
	if l.Model != "" {
		set[keys.model] = l.Model
	}
	return set, keys.unset
}

// Message reads the fields of a tool call's update that the SDK's types would not keep as they came.
type Message struct {
	Input     json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
	Name      string          `json:"name"`
	Meta      struct {
		Claude struct {
			ToolName string          `json:"toolName"`
			Response json.RawMessage `json:"toolResponse"`
		} `json:"claudeCode"`
		TerminalExit   *Exit         `json:"terminal_exit"`
		TerminalOutput *TerminalData `json:"terminal_output"`
		TerminalDelta  *TerminalData `json:"terminal_output_delta"`
	} `json:"_meta"`
}

// TerminalData is output of a terminal that the agent runs itself.
type TerminalData struct {
	Data string `json:"data"`
}

// ReadMessage reads them; a message that cannot be read has none.
func ReadMessage(params json.RawMessage) Message {
	var m struct {
		Update Message `json:"update"`
	}
	if json.Unmarshal(params, &m) != nil {
		return Message{}
	}
	return m.Update
}
