package runtime

import (
	"encoding/json"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/sandbox/guest"
)

// codex is OpenAI's codex. Its config.toml is nobody's but the template's.
type codex struct{ later }

func (codex) Name() string     { return Codex }
func (codex) Installs() string { return Codex }
func (codex) Dir() string      { return guest.Home }
func (codex) Template() string { return "codex" }
func (codex) Place() string    { return "" }

func (codex) Fixed(l Launch) (map[string]string, []string) {
	set, unset := modelEnv(l)
	set["CODEX_HOME"] = l.Home
	return set, unset
}

func (codex) Files(l Launch) []File {
	return append(instructions("AGENTS.md", l), skills("", l)...)
}

// Credentials is the login that codex reads before it looks at its environment: a template's would be another way to a model.
// Before a start it holds no key at all.
func (codex) Credentials(l Launch) []File {
	auth := struct {
		Mode string  `json:"auth_mode"`
		Key  *string `json:"OPENAI_API_KEY"`
	}{Mode: "apikey"}
	if l.Token != "" {
		auth.Key = &l.Token
	}
	data, err := json.Marshal(auth)
	if err != nil {
		panic(err) // two strings
	}
	return []File{{Path: "auth.json", Data: data, Mode: 0o600}}
}

func (codex) Merges(Launch) []Merge { return nil }

func (codex) Servers(l Launch) []sdk.McpServer { return l.MCP.ForSession() }
