package runtime

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/sandbox/guest"
)

// claude is Claude Code behind claude-agent-acp. Facts about the pinned version, seen in runs against a scripted model:
//
//   - It uses neither the terminal nor the fs capability: commands and edits happen in the CLI's own process. An exit
//     code stands in the text of a failed call only ("Exit code 3\n…"), output comes at the end, a duration never. The
//     recording shell tells all three: CLAUDE_CODE_SHELL runs the commands of tool calls through it. So it does with what
//     the CLI asks a shell at its start, which is no tool call's. CLAUDE_CODE_SHELL_PREFIX would be for tool calls and also
//     for stdio MCP servers, whose program it takes as one word: "… -c" is found nowhere, and no server starts.
//   - A session starts in mode auto, which asks a model before each tool, and load and resume fall back to it.
//   - It asks for a prompt suggestion with the whole conversation after every turn unless told not to, and for a title
//     once a prompt, which nothing silences: the ledger shows it.
//   - A call that is cancelled gets no last update.
type claude struct{}

func (claude) Name() string     { return Claude }
func (claude) Installs() string { return Claude }
func (claude) Dir() string      { return guest.Home }
func (claude) Template() string { return "claude" }
func (claude) Place() string    { return "" }

// Argv: the adapter itself reaches nothing but the model gateway, which no proxy lies before; without the set-up of one it
// starts some 50 ms earlier. What it starts goes by the environment.
func (claude) Argv(Launch) []string {
	adapter, _ := pinned(Claude)
	return adapter.argv("--no-use-env-proxy")
}

func (claude) Defaults(Launch) map[string]string {
	return map[string]string{
		"CLAUDE_CODE_MAX_RETRIES":                   "0", // a failed model call is seen, not repeated
		"CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1", // nor asked again, and paid again, because its stream broke
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC":  "1",
		"CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION":      "0",
		"DISABLE_AUTOUPDATER":                       "1",
		"SHELL":                                     "/bin/bash",
	}
}

func (claude) Fixed(l Launch) (map[string]string, []string) {
	set, unset := modelEnv(l)
	set["CLAUDE_CONFIG_DIR"] = l.Home
	set["CLAUDE_CODE_SHELL"] = guest.Shell
	return set, append([]string{"CLAUDE_CODE_SHELL_PREFIX", "IS_SANDBOX"}, unset...)
}

func (claude) Files(l Launch) []File {
	return append(instructions("CLAUDE.md", l), skills("", l)...)
}

func (claude) Credentials(Launch) []File { return nil }

// Merges sets the servers of the user's scope: of those the CLI asks nobody for consent, as it does for a project's.
func (claude) Merges(l Launch) []Merge {
	return []Merge{
		{Path: "settings.json", Keys: map[string]any{"showThinkingSummaries": true}},
		{Path: ".claude.json", Keys: map[string]any{"mcpServers": l.MCP.ForFile()}},
	}
}

func (claude) Servers(Launch) []sdk.McpServer { return []sdk.McpServer{} }

func (claude) Capabilities() sdk.ClientCapabilities {
	return sdk.ClientCapabilities{Auth: sdk.AuthCapabilities{Meta: map[string]any{"gateway": true}}}
}

// SessionMeta keeps the CLI from the home's own .claude: as the memory of a project around every folder below, and, where
// the home is the folder itself, as that project's settings. What a conversation is told comes from its config home and its
// folder.
func (claude) SessionMeta(l Launch, cwd string) map[string]any {
	options := map[string]any{"settings": map[string]any{"claudeMdExcludes": []string{guest.Home + "/.claude/**"}}}
	if cwd == guest.Home {
		options["projectConfigRoot"] = l.Home
	}
	return map[string]any{"claudeCode": map[string]any{"options": options}}
}

// AuthMethod gateway without a gateway's address leaves the environment's in place. Without it the adapter runs
// `claude auth status` at every prompt, beside the model's work: 100 MB and up to half a second of CPU.
func (claude) AuthMethod() string { return "gateway" }

// Mode default asks before a tool acts; the answer is the conversation's policy.
func (claude) Mode() string { return "default" }

var claudeExit = regexp.MustCompile(`^Exit code (\d+)(?:\n|$)`)

func (claude) Outcome(t ToolCall) Outcome {
	var response struct {
		Stdout *string `json:"stdout"`
		Stderr string  `json:"stderr"`
	}
	if len(t.Response) > 0 && json.Unmarshal(t.Response, &response) == nil && response.Stdout != nil {
		return Outcome{Output: *response.Stdout + response.Stderr, Told: true}
	}
	o := outcome(t)
	o.ExitCode = nil
	if code := claudeExit.FindStringSubmatch(o.Output); code != nil {
		if n, err := strconv.Atoi(code[1]); err == nil {
			o.ExitCode = &n
			o.Output = o.Output[len(code[0]):]
		}
	}
	return o
}

func (claude) Records() bool { return true }

// Recorded takes the command out of the CLI's wrapper: "… && eval '<command>' < /dev/null && pwd -P >| …". What runs without
// that wrapper is no tool call.
func (claude) Recorded(argv []string) (string, bool) {
	if len(argv) < 2 {
		return "", false
	}
	script := argv[len(argv)-1]
	_, rest, ok := strings.Cut(script, "&& eval ")
	if !ok {
		return "", false
	}
	end := strings.LastIndex(rest, " < /dev/null && pwd -P")
	if end < 0 {
		if end = strings.LastIndex(rest, " && pwd -P"); end < 0 {
			return "", false
		}
	}
	return unquote(rest[:end])
}

// unquote reads one word as a shell does: parts in single quotes, in double quotes, and bare, with backslashes.
func unquote(word string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(word); {
		switch c := word[i]; c {
		case '\'':
			end := strings.IndexByte(word[i+1:], '\'')
			if end < 0 {
				return "", false
			}
			b.WriteString(word[i+1 : i+1+end])
			i += end + 2
		case '"':
			i++
			for i < len(word) && word[i] != '"' {
				if word[i] == '\\' && i+1 < len(word) && strings.IndexByte("\\\"$`\n", word[i+1]) >= 0 {
					i++
				}
				b.WriteByte(word[i])
				i++
			}
			if i == len(word) {
				return "", false
			}
			i++
		case '\\':
			if i+1 == len(word) {
				return "", false
			}
			b.WriteByte(word[i+1])
			i += 2
		case ' ', '\t', '\n', ';', '&', '|', '<', '>':
			return "", false
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String(), true
}
