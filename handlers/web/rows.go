package web

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"managoat/internal/conversation"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/views"
	"managoat/views/markup"
)

// maxDiffed is the size in bytes of a file's two texts past which its change is named and not compared.
const maxDiffed = 512 << 10

// rows makes view models of stored rows. you is the address of whoever looks; answers is the URL under which permission
// requests are answered, "" when this person cannot.
type rowViews struct {
	you     string
	answers string
	files   string // URL of the workspace's files, "" when its disk cannot be looked at
}

func (v rowViews) of(stored []transcript.Stored) []views.TranscriptRow {
	rows := make([]views.TranscriptRow, 0, len(stored))
	for _, s := range stored {
		if body := v.body(s); body != nil {
			rows = append(rows, views.TranscriptRow{Seq: s.Seq, Turn: int(s.TurnNumber), At: s.CreatedAt, Body: body})
		}
	}
	return rows
}

// as decodes a row's body; a body that cannot be read is shown as what it is rather than left out.
func as[T any](s transcript.Stored, make func(T) views.RowBody) views.RowBody {
	var b T
	if err := json.Unmarshal(s.Body, &b); err != nil {
		return views.NoticeBody{Text: fmt.Sprintf("Event %d (%s) cannot be shown: %s", s.Seq, s.Type, s.Body)}
	}
	return make(b)
}

func (v rowViews) body(s transcript.Stored) views.RowBody {
	switch s.Type {
	case transcript.Prompt:
		return as(s, func(b transcript.PromptBody) views.RowBody {
			by := b.By
			switch {
			case by == v.you:
				by = "You"
			case strings.HasPrefix(by, string(tenant.Key)+":"):
				by = "API key"
			}
			return views.PromptBody{Text: b.Text, By: by, Images: b.Images}
		})
	case transcript.Message:
		return as(s, func(b transcript.MessageBody) views.RowBody { return views.MessageBody{ID: b.MessageID, Text: b.Text} })
	case transcript.Thought:
		return as(s, func(b transcript.ThoughtBody) views.RowBody { return views.ThoughtBody{ID: b.MessageID, Text: b.Text} })
	case transcript.Plan:
		return as(s, planBody)
	case transcript.ToolCallType:
		return as(s, toolCallBody)
	case transcript.ToolOutput:
		return as(s, func(b transcript.ToolOutputBody) views.RowBody {
			return views.ToolOutputBody{ID: b.ID, Stream: b.Stream, Text: b.Text}
		})
	case transcript.ToolResult:
		return as(s, v.toolResultBody)
	case transcript.PermissionRequest:
		return as(s, v.permissionBody)
	case transcript.PermissionResolved:
		return as(s, func(b transcript.PermissionResolvedBody) views.RowBody {
			by := orElse(conversation.Meaning(b.Outcome), views.Words(b.Outcome))
			if b.By == v.you && b.By != "" {
				by = "you"
			}
			return views.PermissionResolvedBody{ID: b.RequestID, OptionID: b.OptionID, Allowed: b.Outcome == "auto_allow", By: by}
		})
	case transcript.Stage:
		return as(s, stageBody)
	case transcript.Usage:
		return as(s, func(b transcript.UsageBody) views.RowBody {
			return views.UsageBody{Model: b.Model, Input: b.InputTokens, Output: b.OutputTokens, CacheRead: b.CacheReadTokens, CacheWrite: b.CacheWriteTokens}
		})
	case transcript.Notice:
		return as(s, func(b transcript.NoticeBody) views.RowBody { return views.NoticeBody{Text: b.Text} })
	case transcript.Error:
		return as(s, errorBody)
	}
	return views.NoticeBody{Text: fmt.Sprintf("Event %d of the unknown kind %s", s.Seq, s.Type)}
}

func planBody(b transcript.PlanBody) views.RowBody {
	var p views.PlanBody
	for _, e := range b.Entries {
		state := map[string]views.State{"completed": views.StateDone, "in_progress": views.StateRunning}[e.Status]
		if state == "" {
			state = views.StateOff
		}
		p.Entries = append(p.Entries, views.PlanEntry{Text: e.Content, State: state})
	}
	return p
}

func toolCallBody(b transcript.ToolCallBody) views.RowBody {
	call := views.ToolCallBody{ID: b.ID, Title: b.Title, Kind: b.ToolKind, Input: views.InputFields(b.Input), Diffs: diffs(b.Diffs)}
	for _, l := range b.Locations {
		place := l.Path
		if l.Line != nil {
			place += fmt.Sprintf(":%d", *l.Line)
		}
		call.Locations = append(call.Locations, place)
	}
	return call
}

func diffs(all []transcript.Diff) (out []markup.FileDiff) {
	for _, d := range all {
		before := ""
		if d.OldText != nil {
			before = *d.OldText
		}
		if len(before)+len(d.NewText) > maxDiffed {
			out = append(out, markup.FileDiff{Path: d.Path, Note: "too long to compare"})
			continue
		}
		change := markup.Changes(d.Path, before, d.NewText)
		if d.OldText == nil {
			change.Note = "new file"
		}
		out = append(out, change)
	}
	return out
}

func (v rowViews) toolResultBody(b transcript.ToolResultBody) views.RowBody {
	r := views.ToolResultBody{ID: b.ID, Status: b.Status, ExitCode: b.ExitCode, Signal: b.Signal, Duration: time.Duration(b.DurationMS) * time.Millisecond,
		Output: b.Output, OutputBytes: b.OutputBytes, Truncated: b.Truncated, FullLogPath: b.FullLogPath,
		Source: views.ToolSource{Output: b.Source.Output, ExitCode: b.Source.ExitCode, Duration: b.Source.Duration}, Diffs: diffs(b.Diffs)}
	if v.files != "" && b.FullLogPath != "" {
		r.FullLogURL = address(v.files, "path", strings.Replace(b.FullLogPath, "~", home, 1))
	}
	return r
}

func (v rowViews) permissionBody(b transcript.PermissionRequestBody) views.RowBody {
	ask := views.PermissionRequestBody{ID: b.RequestID, Title: b.Title}
	for _, f := range views.InputFields(b.Input) {
		if f.Name == "command" && !strings.Contains(b.Title, f.Value) {
			ask.Detail = f.Value
		}
	}
	for _, o := range b.Options {
		ask.Options = append(ask.Options, views.PermissionOption{ID: o.ID, Name: o.Name, Kind: o.Kind})
	}
	if v.answers != "" {
		ask.Action = v.answers + "/" + b.RequestID
	}
	return ask
}

// quiet are the details of a stage that its row says already, or that say nothing to people.
var quiet = []string{"lines", "dropped", "line", "output", "error", "turn_number", "attempts", "path", "reason"}

func stageBody(b transcript.StageBody) views.RowBody {
	s := views.StageBody{Stage: b.Stage, State: b.State, Reason: b.Reason, Advice: b.Advice, Duration: time.Duration(b.DurationMS) * time.Millisecond}
	if m := conversation.Meaning(b.Reason); m != "" {
		s.Reason, s.Code = m, b.Reason
	}
	if printed, ok := b.Detail["lines"].([]any); ok {
		for _, l := range printed {
			s.Output += fmt.Sprint(l)
		}
	}
	for _, name := range []string{"line", "output"} {
		if said, ok := b.Detail[name].(string); ok && said != "" {
			s.Output += strings.TrimSuffix(said, "\n") + "\n"
		}
	}
	if failed, ok := b.Detail["error"].(map[string]any); ok && s.Output == "" {
		s.Output, _ = failed["output_tail"].(string)
	}
	s.Detail = details(b.Detail)
	return s
}

// details are the facts of a stage in a line.
func details(all map[string]any) string {
	var parts []string
	for _, name := range sorted(all) {
		if slices.Contains(quiet, name) {
			continue
		}
		switch value := all[name].(type) {
		case bool:
			if value {
				parts = append(parts, name)
			}
		case string:
			if value == "" {
				continue
			}
			if name == "note" || name == "runtime" || name == "version" || name == "session" {
				parts = append(parts, value)
			} else {
				parts = append(parts, strings.ReplaceAll(name, "_", " ")+" "+value)
			}
		case float64:
			parts = append(parts, fmt.Sprintf("%s %v", strings.ReplaceAll(name, "_", " "), value))
		}
	}
	return strings.Join(parts, " · ")
}

func sorted(all map[string]any) []string {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func errorBody(b transcript.ErrorBody) views.RowBody {
	e := views.ErrorBody{Code: b.Code, Message: b.Message}
	for _, name := range sorted(b.Detail) {
		value, ok := b.Detail[name].(string)
		if !ok {
			raw, err := json.Marshal(b.Detail[name])
			if err != nil {
				continue
			}
			value = string(raw)
		}
		switch {
		case value == "" || value == "null":
		case name == "stderr" || name == "output" || name == "output_tail" || strings.Contains(value, "\n"):
			e.Output += strings.TrimSuffix(value, "\n") + "\n"
		default:
			e.Facts = append(e.Facts, views.InputField{Name: strings.ReplaceAll(name, "_", " "), Value: value})
		}
	}
	return e
}
