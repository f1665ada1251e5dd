package conversation

import (
	"encoding/json"
	"path"
	"strings"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/internal/acp"
	"managoat/internal/runtime"
	"managoat/internal/transcript"
	"managoat/queries"
)

// Limits of tool calls.
const (
	keptOutput   = 64 << 10 // bytes of a call's output in its result: half from the start, half from the end
	maxTitleLen  = 200      // characters of a call's title
	maxInput     = 256 << 10
	maxToolID    = 200
	maxOpenTools = 1000
)

// tools are the tool calls of a turn.
type tools struct {
	open  map[string]*toolCall
	ended map[string]struct{}
}

func (t *tools) init() { t.open, t.ended = map[string]*toolCall{}, map[string]struct{}{} }

// toolCall is a call as its updates, and what ran for it in the machine, have made it.
type toolCall struct {
	runtime.ToolCall
	started   time.Time
	locs      []sdk.ToolCallLocation
	shown     bool               // its diffs stand in a row
	live      *transcript.Budget // of output that was seen as it came; nil when none was
	ran       *ran               // what our guest saw of its command
	recordSeq int64              // of the record that says so; 0: our guest ran it itself
}

// ran is a command that our guest ran or watched.
type ran struct {
	exitCode  *int
	signal    string
	duration  time.Duration
	bytes     int64
	logPath   string
	ended     bool
	output    *string // all that was recorded of it, through the gate; nil: it was seen as it came
	truncated bool    // and that is not all there was
}

// update handles a session/update.
func (p *process) update(m acp.Message, line []byte) {
	var n sdk.SessionNotification
	if json.Unmarshal(m.Params, &n) != nil || string(n.SessionId) != p.session {
		return // of another version, or of a session that is not ours
	}
	switch u := n.Update; {
	case u.AgentMessageChunk != nil:
		p.chunk(transcript.Message, messageID(u.AgentMessageChunk.MessageId), u.AgentMessageChunk.Content)
	case u.AgentThoughtChunk != nil:
		p.chunk(transcript.Thought, messageID(u.AgentThoughtChunk.MessageId), u.AgentThoughtChunk.Content)
	case u.ToolCall != nil:
		c := u.ToolCall
		status, kind := c.Status, c.Kind
		p.tool(m, line, sdk.SessionToolCallUpdate{ToolCallId: c.ToolCallId, Title: &c.Title, Kind: &kind, Status: &status, Content: c.Content, Locations: c.Locations})
	case u.ToolCallUpdate != nil:
		p.tool(m, line, *u.ToolCallUpdate)
	case u.Plan != nil:
		body := transcript.PlanBody{Entries: []transcript.PlanEntry{}}
		for _, e := range u.Plan.Entries {
			body.Entries = append(body.Entries, transcript.PlanEntry{Content: p.gate.String(e.Content), Status: string(e.Status), Priority: string(e.Priority)})
		}
		p.add(transcript.Row{Type: transcript.Plan, Body: body, Raw: p.rawOf(line)}, true)
	case u.SessionInfoUpdate != nil && u.SessionInfoUpdate.Title != nil:
		p.retitle(p.gate.OneLine(*u.SessionInfoUpdate.Title, maxTitle))
	}
}

func messageID(id *string) string {
	if id == nil {
		return ""
	}
	return *id
}

// chunk is a piece of a message or a thought. When another one begins the ones before it have ended.
func (p *process) chunk(kind, id string, content sdk.ContentBlock) {
	text := "[content that is no text]"
	switch {
	case content.Text != nil:
		text = content.Text.Text
	case content.ResourceLink != nil:
		text = content.ResourceLink.Uri
	case content.Image != nil:
		text = "[an image]"
	}
	p.firstToken()
	key := kind + ":" + id
	if p.texts[key] == nil {
		p.endTexts(key, transcript.Message, transcript.Thought)
	}
	if text == "" {
		return
	}
	id = p.gate.OneLine(id, maxToolID)
	p.say(key, kind, true, func(text string) any {
		if kind == transcript.Thought {
			return transcript.ThoughtBody{MessageID: id, Text: text}
		}
		return transcript.MessageBody{MessageID: id, Text: text}
	}, text)
}

// firstToken notes that the model has begun to answer.
func (p *process) firstToken() {
	if p.turn != nil && !p.turn.spoke {
		p.turn.spoke, p.first = true, true
	}
}

// tool handles what is said about a tool call.
func (p *process) tool(m acp.Message, line []byte, u sdk.SessionToolCallUpdate) {
	p.firstToken()
	p.endTexts("", transcript.Message, transcript.Thought) // what is said after a call is said anew
	id := string(u.ToolCallId)
	if id == "" || len(id) > maxToolID || p.turnID == nil {
		return
	}
	fields := runtime.ReadMessage(m.Params)
	c := p.tools.open[id]
	if c == nil {
		if _, ended := p.tools.ended[id]; ended || len(p.tools.open) >= maxOpenTools {
			return
		}
		c = &toolCall{ToolCall: runtime.ToolCall{ID: id, Status: string(sdk.ToolCallStatusPending)}, started: time.Now()}
		p.tools.open[id] = c
	}
	changed := c.apply(u, fields)
	p.claimRecord(c)
	if changed && !c.done() {
		c.shown = len(diffsOf(c.Content)) > 0
		p.add(transcript.Row{Type: transcript.ToolCallType, Body: p.toolBody(c), Raw: p.rawOf(line), Tool: p.toolRow(c)}, true)
	}
	if t := fields.Meta.TerminalDelta; t != nil {
		p.toolSays(c, "", t.Data, true)
	} else if t := fields.Meta.TerminalOutput; t != nil {
		p.toolSays(c, "", t.Data, true)
	}
	for _, content := range c.Content {
		if content.Terminal != nil {
			p.bind(content.Terminal.TerminalId, c)
		}
	}
	if c.done() && !(p.turn != nil && p.turn.stopping.Load()) { // else its command is still ending: with the turn
		p.result(c, line)
	}
}

func callEnded(s sdk.ToolCallStatus) bool {
	return s == sdk.ToolCallStatusCompleted || s == sdk.ToolCallStatusFailed
}

// apply takes an update over and tells whether what people see of the call has changed.
func (c *toolCall) apply(u sdk.SessionToolCallUpdate, m runtime.Message) (changed bool) {
	changed = c.Title == "" && c.Kind == ""
	set := func(to *string, from string) {
		if from != "" && *to != from {
			*to, changed = from, true
		}
	}
	if u.Title != nil {
		set(&c.Title, *u.Title)
	}
	if u.Kind != nil {
		set(&c.Kind, string(*u.Kind))
	}
	if u.Status != nil {
		set(&c.Status, string(*u.Status))
	}
	if name := m.Meta.Claude.ToolName; name != "" {
		c.Name = name
	} else if m.Name != "" {
		c.Name = m.Name
	}
	if len(m.Input) > 0 && string(m.Input) != "null" && string(m.Input) != string(c.Input) {
		c.Input, changed = m.Input, true
	}
	if len(m.RawOutput) > 0 && string(m.RawOutput) != "null" {
		c.RawOutput = m.RawOutput
	}
	if len(m.Meta.Claude.Response) > 0 {
		c.Response = m.Meta.Claude.Response
	}
	if m.Meta.TerminalExit != nil {
		c.Exit = m.Meta.TerminalExit
	}
	if u.Content != nil {
		if len(diffsOf(u.Content)) > 0 {
			changed = true
		}
		c.Content = u.Content
	}
	if u.Locations != nil {
		c.locs, changed = u.Locations, true
	}
	return changed
}

func (c *toolCall) done() bool { return callEnded(sdk.ToolCallStatus(c.Status)) }

// command is the command line that a call says it runs, for finding its record.
func (c *toolCall) command() string {
	var in struct {
		Command json.RawMessage `json:"command"`
	}
	if json.Unmarshal(c.Input, &in) == nil && len(in.Command) > 0 {
		var s string
		if json.Unmarshal(in.Command, &s) == nil {
			return s
		}
		var argv []string
		if json.Unmarshal(in.Command, &argv) == nil {
			return strings.Join(argv, " ")
		}
	}
	if c.Kind == string(sdk.ToolKindExecute) {
		return c.Title
	}
	return ""
}

func (p *process) inputOf(c *toolCall) json.RawMessage {
	if len(c.Input) == 0 {
		return nil
	}
	if len(c.Input) > maxInput {
		b, err := json.Marshal(map[string]any{"too_large": len(c.Input), "start": p.gate.String(string(c.Input[:maxInput/8]))})
		if err != nil {
			return nil
		}
		return b
	}
	return json.RawMessage(p.gate.JSON(c.Input))
}

func (p *process) toolBody(c *toolCall) transcript.ToolCallBody {
	b := transcript.ToolCallBody{ID: p.gate.OneLine(c.ID, maxToolID), Title: p.titleOf(c), ToolKind: c.Kind, Status: statusOf(c.Status), Input: p.inputOf(c), Diffs: p.diffs(c.Content)}
	for _, l := range c.locs {
		b.Locations = append(b.Locations, transcript.Location{Path: p.gate.OneLine(l.Path, 1000), Line: l.Line})
	}
	return b
}

func (p *process) titleOf(c *toolCall) string {
	if c.Title == "" {
		return p.gate.OneLine(c.Name, maxTitleLen)
	}
	return p.gate.OneLine(c.Title, maxTitleLen)
}

// statusOf is a protocol status in our words.
func statusOf(s string) string {
	if s == string(sdk.ToolCallStatusInProgress) {
		return Running
	}
	return s
}

func (p *process) toolRow(c *toolCall) *transcript.ToolCall {
	return &transcript.ToolCall{ID: p.gate.OneLine(c.ID, maxToolID), TurnID: *p.turnID, Title: p.titleOf(c), Kind: c.Kind, Status: statusOf(c.Status), Input: p.inputOf(c)}
}

func diffsOf(content []sdk.ToolCallContent) []*sdk.ToolCallContentDiff {
	var diffs []*sdk.ToolCallContentDiff
	for _, c := range content {
		if c.Diff != nil {
			diffs = append(diffs, c.Diff)
		}
	}
	return diffs
}

// diffs are the changes that a call shows, each within the bound of an output.
func (p *process) diffs(content []sdk.ToolCallContent) []transcript.Diff {
	var out []transcript.Diff
	for _, d := range diffsOf(content) {
		t := transcript.Diff{Path: p.gate.OneLine(d.Path, 1000), NewText: p.bounded(d.NewText)}
		if d.OldText != nil {
			old := p.bounded(*d.OldText)
			t.OldText = &old
		}
		out = append(out, t)
	}
	return out
}

func (p *process) bounded(s string) string {
	b := transcript.NewBudget(keptOutput)
	b.Write(p.gate.String(s))
	text, _ := b.Output()
	return text
}

// toolSays is output of a tool as it runs.
func (p *process) toolSays(c *toolCall, stream, text string, fromLine bool) {
	if text == "" {
		return
	}
	if c.live == nil {
		c.live = transcript.NewBudget(keptOutput)
	}
	id := p.gate.OneLine(c.ID, maxToolID)
	key := "tool:" + c.ID + ":" + stream
	p.say(key, transcript.ToolOutput, fromLine, func(text string) any {
		if text = c.live.Write(text); text == "" {
			return nil // past what is shown live: the result has the end of it
		}
		return transcript.ToolOutputBody{ID: id, Stream: stream, Text: text}
	}, text)
}

// result ends a call: with what our guest saw of its command where there was one, else with what the runtime says.
func (p *process) result(c *toolCall, line []byte) {
	p.awaitRecord(c)
	delete(p.tools.open, c.ID)
	p.tools.ended[c.ID] = struct{}{}
	for key := range p.texts {
		if strings.HasPrefix(key, "tool:"+c.ID+":") {
			p.endText(key)
		}
	}
	p.terms.unbind(c)
	told := p.runtime.Outcome(c.ToolCall)
	b := transcript.ToolResultBody{ID: p.gate.OneLine(c.ID, maxToolID), Status: statusOf(c.Status),
		DurationMS: time.Since(c.started).Milliseconds(), Source: transcript.Source{Duration: transcript.Protocol}}
	if !c.shown {
		b.Diffs = p.diffs(c.Content)
	}
	if b.Status == Pending || b.Status == Running || b.Status == Failed && p.turn != nil && p.turn.stopping.Load() {
		b.Status = Interrupted
	}
	if told.ExitCode != nil || told.Signal != "" {
		b.ExitCode, b.Signal, b.Source.ExitCode = told.ExitCode, told.Signal, transcript.Protocol
	}
	kept := c.live
	if kept != nil {
		b.Source.Output = transcript.Protocol
		if c.ran != nil {
			b.Source.Output = transcript.Machine
		}
	} else if told.Told {
		kept = transcript.NewBudget(keptOutput)
		kept.Write(p.gate.String(told.Output))
		b.Source.Output = transcript.Protocol
	}
	if kept != nil {
		b.Output, b.Truncated = kept.Output()
		b.OutputBytes = kept.Total()
	}
	if r := c.ran; r != nil && r.output != nil {
		kept := transcript.NewBudget(keptOutput)
		kept.Write(*r.output)
		b.Output, b.Truncated = kept.Output()
		b.Truncated = b.Truncated || r.truncated
		b.OutputBytes, b.Source.Output = r.bytes, transcript.Machine
	}
	if r := c.ran; r != nil && r.ended {
		b.ExitCode, b.Signal, b.Source.ExitCode = r.exitCode, r.signal, transcript.Machine
		b.DurationMS, b.Source.Duration = r.duration.Milliseconds(), transcript.Machine
		b.OutputBytes = max(b.OutputBytes, r.bytes)
		b.FullLogPath = r.logPath
	}
	duration := b.DurationMS
	row := p.toolRow(c)
	row.Status, row.ExitCode, row.Signal, row.DurationMS, row.OutputBytes, row.Truncated, row.FullLogPath, row.Source =
		b.Status, b.ExitCode, b.Signal, &duration, b.OutputBytes, b.Truncated, b.FullLogPath, b.Source
	raw := ""
	if line != nil {
		raw = p.rawOf(line)
	}
	p.add(transcript.Row{Type: transcript.ToolResult, Body: b, Raw: raw, Tool: row}, line != nil)
}

// closeTools ends the calls that the runtime has not: it forgot them, or was stopped.
func (p *process) closeTools() {
	for _, c := range p.tools.open {
		p.result(c, nil)
	}
}

// restore takes up the calls of a turn that another server followed before.
func (p *process) restore(rows []queries.ToolCall) {
	for _, r := range rows {
		status := r.Status
		if status == Running {
			status = string(sdk.ToolCallStatusInProgress)
		}
		p.tools.open[r.ID] = &toolCall{started: r.StartedAt,
			ToolCall: runtime.ToolCall{ID: r.ID, Title: r.Title, Kind: r.Kind, Status: status, Input: r.Input}}
	}
}

// logPath is where the whole output of a command lies on the machine.
func (p *process) logPath(name string) string {
	return path.Join(logsDir, p.id.String(), name+".log")
}
