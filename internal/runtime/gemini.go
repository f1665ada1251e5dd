package runtime

import (
	"path"

	sdk "github.com/coder/acp-go-sdk"
)

// gemini is Google's gemini-cli. It takes its home for the person's, and reads what the template holds in a directory of it.
type gemini struct{ later }

const geminiPlace = ".gemini"

func (gemini) Name() string     { return Gemini }
func (gemini) Installs() string { return Gemini }
func (gemini) Dir() string      { return "/tmp/gemini-workspace" }
func (gemini) Template() string { return "gemini" }
func (gemini) Place() string    { return geminiPlace }

func (gemini) Fixed(l Launch) (map[string]string, []string) {
	set, unset := modelEnv(l)
	set["GEMINI_CLI_HOME"] = l.Home
	return set, unset
}

func (gemini) Files(l Launch) []File {
	return append(instructions(path.Join(geminiPlace, "GEMINI.md"), l), skills(geminiPlace, l)...)
}

func (gemini) Credentials(Launch) []File { return nil }

func (gemini) Merges(l Launch) []Merge {
	return []Merge{{Path: path.Join(geminiPlace, "settings.json"), Keys: map[string]any{"mcpServers": l.MCP.ForFile()}}}
}

func (gemini) Servers(Launch) []sdk.McpServer { return []sdk.McpServer{} }
