package runtime

import sdk "github.com/coder/acp-go-sdk"

// later is what a runtime without a pinned adapter has of one. Its conversations have their config homes, and end there.
type later struct{}

func (later) Argv(Launch) []string                      { return nil }
func (later) Defaults(Launch) map[string]string         { return map[string]string{} }
func (later) Capabilities() sdk.ClientCapabilities      { return sdk.ClientCapabilities{} }
func (later) SessionMeta(Launch, string) map[string]any { return nil }
func (later) AuthMethod() string                        { return "" }
func (later) Mode() string                              { return "" }
func (later) Outcome(t ToolCall) Outcome                { return outcome(t) }
func (later) Records() bool                             { return false }
func (later) Recorded([]string) (string, bool)          { return "", false }
