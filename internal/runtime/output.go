package runtime

import (
	"encoding/json"
	"strings"

	sdk "github.com/coder/acp-go-sdk"
)

// text joins the text blocks of a tool call's content.
func text(content []sdk.ToolCallContent) (string, bool) {
	var b strings.Builder
	told := false
	for _, c := range content {
		if c.Content != nil && c.Content.Content.Text != nil {
			b.WriteString(c.Content.Content.Text.Text)
			told = true
		}
	}
	return b.String(), told
}

// outcome reads the fields that adapters use for a command's end, whichever they are: a terminal's exit, or a raw output
// that is a string or an object with the output and the code under one of the usual names.
func outcome(t ToolCall) Outcome {
	var o Outcome
	if t.Exit != nil {
		o.ExitCode, o.Signal = t.Exit.Code, t.Exit.Signal
	}
	var s string
	if json.Unmarshal(t.RawOutput, &s) == nil && len(t.RawOutput) > 0 {
		o.Output, o.Told = s, true
		return o
	}
	var fields struct {
		Output   *string `json:"output"`
		Stdout   *string `json:"stdout"`
		Stderr   *string `json:"stderr"`
		Exit     *int    `json:"exit_code"`
		ExitCode *int    `json:"exitCode"`
		Metadata struct {
			Exit *int `json:"exit"`
		} `json:"metadata"`
	}
	if len(t.RawOutput) > 0 && json.Unmarshal(t.RawOutput, &fields) == nil {
		for _, part := range []*string{fields.Output, fields.Stdout, fields.Stderr} {
			if part != nil {
				o.Output += *part
				o.Told = true
			}
		}
		for _, code := range []*int{fields.Exit, fields.ExitCode, fields.Metadata.Exit} {
			if o.ExitCode == nil {
				o.ExitCode = code
			}
		}
	}
	if !o.Told {
		o.Output, o.Told = text(t.Content)
	}
	return o
}
