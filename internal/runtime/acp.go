package runtime

import (
	sdk "github.com/coder/acp-go-sdk"

	"managoat/sandbox/guest"
)

// command is any command line that a shell in the machine finds and that speaks the protocol on its standard streams. It
// has no template, and no variable tells it of its config home.
type command struct{}

func (command) Name() string     { return Command }
func (command) Installs() string { return "" }
func (command) Dir() string      { return guest.Home }
func (command) Template() string { return "" }
func (command) Place() string    { return "" }

// Argv lets a shell read the command line; a simple command takes the shell's place.
func (command) Argv(l Launch) []string { return []string{"/bin/bash", "-c", l.CommandLine} }

func (command) Defaults(Launch) map[string]string { return map[string]string{"SHELL": guest.Shell} }

func (command) Fixed(l Launch) (map[string]string, []string) { return modelEnv(l) }

func (command) Files(Launch) []File       { return nil }
func (command) Credentials(Launch) []File { return nil }
func (command) Merges(Launch) []Merge     { return nil }

func (command) Servers(l Launch) []sdk.McpServer { return l.MCP.ForSession() }

// Capabilities are all we have: the agent's commands then run under our guest, which sees their output as it comes, their
// exit code and their time.
func (command) Capabilities() sdk.ClientCapabilities {
	return sdk.ClientCapabilities{Fs: sdk.FileSystemCapabilities{ReadTextFile: true, WriteTextFile: true}, Terminal: true}
}

func (command) SessionMeta(Launch, string) map[string]any { return nil }

func (command) AuthMethod() string { return "" }

func (command) Mode() string { return "" }

func (command) Outcome(t ToolCall) Outcome { return outcome(t) }

// Records is not known of a command that we do not know.
func (command) Records() bool { return false }

// Recorded takes a shell's -c script as the command.
func (command) Recorded(argv []string) (string, bool) {
	for i := 1; i+1 < len(argv); i++ {
		if argv[i] == "-c" || argv[i] == "-lc" {
			return argv[i+1], true
		}
	}
	return "", false
}
