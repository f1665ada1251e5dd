package views

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"managoat/views/markup"
)

// What an item shows of a long output. The whole stands in the log that the item names.
const (
	headLines    = 40   // from the start
	tailLines    = 60   // from the end
	peekLines    = 6    // under the row of a call that runs or failed
	maxLineBytes = 2000 // of one line; minified files come as one
)

// TranscriptRow is one row of a conversation's events.
type TranscriptRow struct {
	Seq  int64
	Turn int // number of its turn; 0 outside of any
	At   time.Time
	Body RowBody
}

// RowBody is what a row says: one of the …Body types of this package.
type RowBody interface{ rowBody() }

// PromptBody is what a person, or another agent, asked.
type PromptBody struct {
	Text   string
	By     string // "You", "deploy key", "conversation Fix the build"
	Images int
}

// MessageBody is a part of what the agent says; parts with the same ID that follow each other are one.
type MessageBody struct{ ID, Text string }

// ThoughtBody is a part of what the agent thinks aloud.
type ThoughtBody struct{ ID, Text string }

// PlanBody is the agent's plan as it is now; it replaces the turn's earlier one.
type PlanBody struct{ Entries []PlanEntry }

// PlanEntry is one step of a plan.
type PlanEntry struct {
	Text  string
	State State // StateDone, StateRunning or StateOff
}

// ToolCallBody begins a tool call, or says more about one that began.
type ToolCallBody struct {
	ID        string
	Title     string
	Kind      string // of the Agent Client Protocol: read, edit, execute …
	Input     []InputField
	Locations []string
	Diffs     []markup.FileDiff
}

// InputField is one argument of a tool call.
type InputField struct{ Name, Value string }

// ToolOutputBody is what a running call printed.
type ToolOutputBody struct{ ID, Stream, Text string }

// ToolResultBody ends a tool call.
type ToolResultBody struct {
	ID          string
	Status      string // completed, failed, interrupted
	ExitCode    *int   // nil: there is none, which for a command is an error of its own
	Signal      string
	Duration    time.Duration
	Output      string // head and tail
	OutputBytes int64  // of all that was printed
	Truncated   bool
	FullLogPath string
	FullLogURL  string
	Source      ToolSource
	Diffs       []markup.FileDiff
}

// ToolSource tells who said it: "protocol" (the adapter) or "machine" (our guest).
type ToolSource struct{ Output, ExitCode, Duration string }

// PermissionRequestBody asks a person whether a call may run.
type PermissionRequestBody struct {
	ID       string
	Title    string
	Detail   string // the command or the input
	Options  []PermissionOption
	Deadline time.Time
	Action   string // URL that answers are posted to; "" when this viewer cannot answer
}

// PermissionOption is one answer.
type PermissionOption struct {
	ID, Name string
	Kind     string // allow_once, allow_always, reject_once, reject_always
}

// PermissionResolvedBody is the answer. Whether it allows is read from the option that was chosen; Allowed counts when
// that option is not known.
type PermissionResolvedBody struct {
	ID       string
	OptionID string
	Allowed  bool
	By       string // "you", "policy auto_allow", "timeout"
}

// StageBody is a step of the runtime around the agent.
type StageBody struct {
	Stage    string // machine, broker, …, wake, reattach, turn, session, snapshot
	State    string // started, done, failed, interrupted
	Reason   string // in words
	Code     string // of the reason, where it has one
	Advice   string // says more than the reason
	Detail   string
	Output   string // what the step printed since its last row
	Duration time.Duration
}

// UsageBody is what one call of a model used.
type UsageBody struct {
	Model, Source                        string
	Attempt                              int
	Input, Output, CacheRead, CacheWrite int64
}

// NoticeBody is what a person must know in place: a new machine, a rotated secret.
type NoticeBody struct{ Text string }

// ErrorBody is what went wrong.
type ErrorBody struct {
	Code, Message string
	Facts         []InputField // what is known beside: exit code, signal
	Output        string       // what the failing program said last
}

func (PromptBody) rowBody()             {}
func (MessageBody) rowBody()            {}
func (ThoughtBody) rowBody()            {}
func (PlanBody) rowBody()               {}
func (ToolCallBody) rowBody()           {}
func (ToolOutputBody) rowBody()         {}
func (ToolResultBody) rowBody()         {}
func (PermissionRequestBody) rowBody()  {}
func (PermissionResolvedBody) rowBody() {}
func (StageBody) rowBody()              {}
func (UsageBody) rowBody()              {}
func (NoticeBody) rowBody()             {}
func (ErrorBody) rowBody()              {}

// Transcript folds rows into the items a page shows. The page and the stream use the same fold: rendering
// all rows at once (Items) and swapping the fragments of Append in, in whatever portions, end in the same
// elements. It does no I/O and asks no clock; it is not safe for concurrent use.
type Transcript struct {
	Now         time.Time // what running clocks show until the script counts on; zero: they start at 0:00
	agent       string    // who speaks
	diagnostics string    // URL of the conversation's diagnostics
	items       []*item
	open        map[string]*item // what later rows may change: "tool 3 call_1", "stage 3 wake", "ask id", "plan 3"
	spoken      int              // the turn in which the agent was last named
	usage       map[int][]UsageBody
}

// NewTranscript begins an empty transcript of an agent of that name. diagnostics is the URL behind "Copy
// diagnostics".
func NewTranscript(agent, diagnostics string) *Transcript {
	return &Transcript{agent: agent, diagnostics: diagnostics, open: map[string]*item{}, usage: map[int][]UsageBody{}}
}

// item is one element of the list. Its element's id is e-<seq of its first row>.
type item struct {
	seq  int64
	turn int
	at   time.Time // of the first row
	last time.Time // of the newest row
	body RowBody   // what it is; the first row's body, completed by later ones

	now    time.Time
	named  bool     // a message that says who speaks
	blocks []string // of a message: Markdown, cut
	text   string   // of a message or thought, joined
	tool   *toolItem
	answer *PermissionResolvedBody
	usage  []UsageBody // of the end of a turn
}

// toolItem is a tool call with all that is known about it.
type toolItem struct {
	call   ToolCallBody
	live   string // the end of what it printed so far
	result *ToolResultBody
}

func (it *item) id() string { return fmt.Sprintf("e-%d", it.seq) }

// change collects what Append did to an item that was on the page before.
type change struct {
	created   bool
	oldBlocks []string // of a message, as the page has them
	added     string   // to a thought
}

// Append takes rows in order and returns what changes on a page that shows all earlier ones. Rows that
// change the same item are one fragment.
func (t *Transcript) Append(rows []TranscriptRow) []Fragment {
	changes := map[*item]*change{}
	var order []*item
	touch := func(it *item, created bool) *change {
		c := changes[it]
		if c == nil {
			c = &change{created: created, oldBlocks: it.blocks}
			changes[it] = c
			order = append(order, it)
		}
		return c
	}
	for _, row := range rows {
		t.fold(row, touch)
	}
	var fragments []Fragment
	for _, it := range order {
		fragments = append(fragments, t.fragments(it, changes[it])...)
	}
	return fragments
}

func (t *Transcript) fold(row TranscriptRow, touch func(*item, bool) *change) {
	add := func(body RowBody) *item {
		it := &item{seq: row.Seq, turn: row.Turn, at: row.At, last: row.At, body: body}
		t.items = append(t.items, it)
		touch(it, true)
		return it
	}
	key := func(kind, id string) string { return fmt.Sprintf("%s %d %s", kind, row.Turn, id) }
	switch body := row.Body.(type) {
	case MessageBody:
		it := t.last()
		if it != nil && it.turn == row.Turn {
			if m, ok := it.body.(MessageBody); !ok || m.ID != body.ID {
				it = nil
			}
		} else {
			it = nil
		}
		if it == nil {
			it = add(body)
			it.named = t.spoken != row.Turn
			t.spoken = row.Turn
		}
		touch(it, false)
		it.last = row.At
		it.text += body.Text
		it.blocks = markup.Blocks(it.text)
	case ThoughtBody:
		it := t.last()
		if it != nil {
			if m, ok := it.body.(ThoughtBody); !ok || m.ID != body.ID || it.turn != row.Turn {
				it = nil
			}
		}
		if it == nil {
			it = add(body)
		}
		touch(it, false).added += body.Text
		it.last = row.At
		it.text += body.Text
	case PlanBody:
		it := t.open[key("plan", "")]
		if it == nil {
			it = add(body)
			t.open[key("plan", "")] = it
		}
		it.body = body
		touch(it, false)
	case ToolCallBody:
		it := t.toolCall(key("tool", body.ID), body.ID, add)
		it.tool.call.merge(body)
		touch(it, false)
	case ToolOutputBody:
		it := t.toolCall(key("tool", body.ID), body.ID, add)
		it.tool.live = keepTail(it.tool.live + body.Text)
		touch(it, false)
	case ToolResultBody:
		it := t.toolCall(key("tool", body.ID), body.ID, add)
		it.tool.result, it.last, it.tool.live = &body, row.At, ""
		touch(it, false)
	case PermissionRequestBody:
		t.open[key("ask", body.ID)] = add(body)
	case PermissionResolvedBody:
		it := t.open[key("ask", body.ID)]
		if it == nil { // the request was before the page's first row
			it = add(PermissionRequestBody{ID: body.ID})
		}
		delete(t.open, key("ask", body.ID))
		it.answer, it.last = &body, row.At
		touch(it, false)
	case StageBody:
		t.foldStage(row, body, key("stage", body.Stage), add, touch)
	case UsageBody:
		t.usage[row.Turn] = append(t.usage[row.Turn], body)
	default: // prompts, notices, errors: a row is an item
		add(body)
	}
}

func (t *Transcript) foldStage(row TranscriptRow, body StageBody, key string, add func(RowBody) *item, touch func(*item, bool) *change) {
	switch body.Stage {
	case "request": // the permission rows say it
		return
	case "turn":
		if body.State == "started" { // the prompt says it
			return
		}
		add(body).usage = t.usage[row.Turn]
		delete(t.usage, row.Turn)
		return
	}
	it := t.open[key]
	if it == nil {
		it = add(body)
	}
	it.body, it.last = body, row.At
	it.text = keepTail(it.text + body.Output)
	touch(it, false)
	if body.State == "started" {
		t.open[key] = it
	} else {
		delete(t.open, key)
	}
}

// keepTail is the end of what something prints while it runs.
func keepTail(output string) string {
	tail, _ := lastLines(output, tailLines)
	if tail != "" && strings.HasSuffix(output, "\n") {
		tail += "\n"
	}
	return tail
}

// Changes are the files that a turn's tool calls changed, in the order of their first change.
func (t *Transcript) Changes(turn int) (changes []FileChange) {
	at := map[string]int{}
	for _, it := range t.items {
		if it.turn != turn || it.tool == nil || it.tool.result == nil || it.tool.result.Status != "completed" {
			continue
		}
		for _, d := range it.tool.diffs() {
			i, ok := at[d.Path]
			if !ok {
				i = len(changes)
				at[d.Path] = i
				changes = append(changes, FileChange{File: Link{Name: d.Path}})
			}
			changes[i].Added += d.Added
			changes[i].Deleted += d.Deleted
		}
	}
	return changes
}

func (t *Transcript) last() *item {
	if len(t.items) == 0 {
		return nil
	}
	return t.items[len(t.items)-1]
}

// toolCall finds the item of a call; the first row that names a call makes one, whichever kind it is, so
// that nothing a machine did goes unseen.
func (t *Transcript) toolCall(key, id string, add func(RowBody) *item) *item {
	it := t.open[key]
	if it == nil {
		call := ToolCallBody{ID: id}
		it = add(call)
		it.tool = &toolItem{call: call}
		t.open[key] = it
	}
	return it
}

// merge completes a call with what a later row says; what it does not say stays.
func (c *ToolCallBody) merge(more ToolCallBody) {
	if more.Title != "" {
		c.Title = more.Title
	}
	if more.Kind != "" {
		c.Kind = more.Kind
	}
	if len(more.Input) > 0 {
		c.Input = more.Input
	}
	if len(more.Locations) > 0 {
		c.Locations = more.Locations
	}
	if len(more.Diffs) > 0 {
		c.Diffs = more.Diffs
	}
}

func (t *Transcript) fragments(it *item, c *change) []Fragment {
	if c.created {
		return []Fragment{{Target: IDTranscript, Swap: SwapAppend, Content: t.item(it)}}
	}
	switch it.body.(type) {
	case MessageBody:
		var out []Fragment
		for i, block := range it.blocks {
			switch {
			case i >= len(c.oldBlocks):
				out = append(out, Fragment{Target: it.id() + "-md", Swap: SwapAppend, Content: messageBlock(it.id(), i, block)})
			case block != c.oldBlocks[i]:
				out = append(out, Fragment{Target: blockID(it.id(), i), Swap: SwapMorph, Content: messageBlock(it.id(), i, block)})
			}
		}
		for i := len(it.blocks); i < len(c.oldBlocks); i++ { // what looked like a new block was not
			out = append(out, Fragment{Target: blockID(it.id(), i), Swap: SwapDelete})
		}
		return out
	case ThoughtBody:
		return []Fragment{
			{Target: it.id() + "-text", Swap: SwapAppend, Content: plainText(c.added)},
			{Target: it.id() + "-took", Swap: SwapInner, Content: plainText(took(it.last.Sub(it.at)))},
		}
	}
	return []Fragment{{Target: it.id(), Swap: SwapMorph, Content: t.item(it)}}
}

func blockID(id string, i int) string { return fmt.Sprintf("%s-b%d", id, i) }

// Items renders everything that was appended, for the page.
func (t *Transcript) Items() templ.Component {
	parts := make([]templ.Component, len(t.items))
	for i, it := range t.items {
		parts[i] = t.item(it)
	}
	return templ.Join(parts...)
}

// Asked tells whether the prompt of a turn is shown.
func (t *Transcript) Asked(turn int) bool {
	for _, it := range slices.Backward(t.items) {
		if _, ok := it.body.(PromptBody); ok && it.turn <= turn {
			return it.turn == turn
		}
	}
	return false
}

// Empty tells whether there is nothing to show.
func (t *Transcript) Empty() bool { return len(t.items) == 0 }

// item renders one item as a list element.
func (t *Transcript) item(it *item) templ.Component {
	it.now = it.at
	if t.Now.After(it.at) {
		it.now = t.Now
	}
	switch body := it.body.(type) {
	case PromptBody:
		return promptItem(it, body)
	case MessageBody:
		by := ""
		if it.named {
			by = t.agent
		}
		return messageItem(it, by)
	case ThoughtBody:
		return thoughtItem(it)
	case PlanBody:
		return planItem(it, body)
	case ToolCallBody:
		return toolCallItem(it, it.tool.view())
	case PermissionRequestBody:
		return permissionItem(it, body)
	case StageBody:
		if body.Stage == "turn" {
			return turnEndItem(it, body, t.diagnostics)
		}
		return stageItem(it, body, t.diagnostics)
	case NoticeBody:
		return noticeItem(it, body)
	case ErrorBody:
		return errorItem(it, body, t.diagnostics)
	}
	return templ.NopComponent
}

// toolView is a tool call as its row shows it.
type toolView struct {
	state    State
	word     string // of the state, for those who do not see the shape
	verb     string // "Run"
	title    string
	note     string // "exit 1", "signal KILL", "84 lines"
	took     string
	command  string // what a shell ran
	peek     string // the end of the output, under the row
	running  bool
	out      []outPart
	outLabel string
	diffs    []markup.FileDiff
	added    int
	deleted  int
}

// outPart is a piece of output, or the gap between two.
type outPart struct {
	text string
	gap  string
}

// diffs are what the call changed: as its end says, else as its start announced.
func (t *toolItem) diffs() []markup.FileDiff {
	if t.result != nil && len(t.result.Diffs) > 0 {
		return t.result.Diffs
	}
	return t.call.Diffs
}

// verbs are the tool kinds of the Agent Client Protocol as people say them.
var verbs = map[string]string{
	"read": "Read", "edit": "Edit", "delete": "Delete", "move": "Move", "search": "Search",
	"execute": "Run", "think": "Think", "fetch": "Fetch", "switch_mode": "Switch mode",
}

func (t *toolItem) view() toolView {
	v := toolView{state: StateRunning, word: "running", verb: verbs[t.call.Kind], running: t.result == nil, diffs: t.diffs()}
	v.title = strings.Trim(strings.TrimSpace(markup.Plain(t.call.Title)), "`")
	for _, field := range t.call.Input {
		if field.Name == "command" {
			v.command = field.Value
			if t.call.Kind == "execute" {
				v.title = field.Value
			}
		}
	}
	v.title = strings.Join(strings.Fields(v.title), " ")
	if v.verb != "" {
		if rest, ok := strings.CutPrefix(v.title, v.verb+" "); ok {
			v.title = rest
		}
	}
	if v.title == "" {
		v.title = t.call.ID
	}
	output := t.live
	v.outLabel = "Output so far"
	if r := t.result; r != nil {
		output = r.Output
		v.took = took(r.Duration)
		v.outLabel = "Output"
		switch r.Status {
		case "completed":
			v.state, v.word = StateDone, "completed"
		case "interrupted":
			v.state, v.word = StateStopped, "interrupted"
		default:
			v.state, v.word = StateFailed, "failed"
		}
		switch {
		case r.Signal != "":
			v.note, v.state, v.word = "signal "+r.Signal, StateFailed, "killed"
		case r.ExitCode != nil:
			v.note = fmt.Sprintf("exit %d", *r.ExitCode)
			if *r.ExitCode != 0 {
				v.state, v.word = StateFailed, "failed"
			}
		case t.call.Kind == "execute" && r.Status == "completed":
			v.note, v.state, v.word = "no exit code", StateFailed, "unknown outcome"
		}
	}
	for _, d := range v.diffs {
		v.added, v.deleted = v.added+d.Added, v.deleted+d.Deleted
	}
	if v.state == StateFailed || v.running {
		v.peek, _ = lastLines(output, peekLines)
		v.peek = clipLines(v.peek)
	}
	v.out = headTail(output)
	return v
}

// headTail cuts an output to its first and last lines, with the gap counted.
func headTail(output string) []outPart {
	if output == "" {
		return nil
	}
	lines := slices.Collect(strings.Lines(output))
	if len(lines) <= headLines+tailLines+1 {
		return []outPart{{text: clipLines(output)}}
	}
	cut := len(lines) - headLines - tailLines
	return []outPart{
		{text: clipLines(strings.Join(lines[:headLines], ""))},
		{gap: fmt.Sprintf("… %s not shown …", Plural(cut, "line"))},
		{text: clipLines(strings.Join(lines[len(lines)-tailLines:], ""))},
	}
}

// clipLines shortens lines nobody can read; how much is missing is said in place.
func clipLines(text string) string {
	if len(text) <= maxLineBytes {
		return text
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if len(line) > maxLineBytes {
			keep := strings.ToValidUTF8(line[:maxLineBytes], "")
			end := ""
			if strings.HasSuffix(line, "\n") {
				end = "\n"
			}
			line = keep + fmt.Sprintf(" … %s more", Size(int64(len(line)-len(keep)))) + end
		}
		out.WriteString(line)
	}
	return out.String()
}

// took is Took, and nothing for what took no time.
func took(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return Took(d)
}

// InputFields makes the arguments of a tool call readable: the members of a JSON object in their order,
// strings as they are, everything else as compact JSON. What is no object is one field without a name.
func InputFields(input json.RawMessage) []InputField {
	trimmed := bytes.TrimSpace(input)
	if len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null")) {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(trimmed))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return []InputField{{Value: inputValue(trimmed)}}
	}
	var fields []InputField
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return fields
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return fields
		}
		fields = append(fields, InputField{Name: fmt.Sprint(name), Value: inputValue(value)})
	}
	return fields
}

func inputValue(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return string(raw)
	}
	return compact.String()
}

// stageWords say what a stage does, did and failed to do.
var stageWords = map[string][3]string{
	"machine":      {"Creating the machine", "Created the machine", "Could not create the machine"},
	"broker":       {"Settling the broker", "Settled the broker", "Could not settle the broker"},
	"environment":  {"Writing the environment", "Wrote the environment", "Could not write the environment"},
	"packages":     {"Installing packages", "Installed packages", "Could not install packages"},
	"repositories": {"Cloning repositories", "Cloned repositories", "Could not clone repositories"},
	"setup_script": {"Running the setup script", "Ran the setup script", "The setup script failed"},
	"home":         {"Preparing the config home", "Prepared the config home", "Could not prepare the config home"},
	"adapter":      {"Starting the runtime", "Started the runtime", "Could not start the runtime"},
	"wake":         {"Waking the machine", "Woke the machine", "Could not wake the machine"},
	"rebuild":      {"Building the lost machine again", "Built the lost machine again", "Could not build the lost machine again"},
	"reattach":     {"Reattaching to the runtime", "Reattached to the runtime", "Could not reattach to the runtime"},
	"model":        {"Choosing the model", "Chose the model", "The model could not be used"},
	"session":      {"Opening the session", "Opened the session", "Could not open the session"},
	"snapshot":     {"Saving files", "Saved files", "Could not save files"},
	"terminate":    {"Ending the conversation", "Ended the conversation", "Could not end the conversation"},
}

// stageText is the sentence of a stage's row.
func stageText(b StageBody) string {
	words, ok := stageWords[b.Stage]
	if !ok {
		words = [3]string{b.Stage, b.Stage, b.Stage + " failed"}
	}
	switch b.State {
	case "started":
		return words[0]
	case "done":
		return words[1]
	case "interrupted":
		return words[0] + ": interrupted"
	}
	return words[2]
}

func stageState(state string) State {
	switch state {
	case "started":
		return StateRunning
	case "done":
		return StateDone
	case "interrupted":
		return StateStopped
	}
	return StateFailed
}

// turnEndText is the verdict on a turn.
func turnEndText(turn int, b StageBody) string {
	verdict := map[string]string{"done": "completed", "failed": "failed", "interrupted": "interrupted"}[b.State]
	if verdict == "" {
		verdict = b.State
	}
	return fmt.Sprintf("Turn %d %s", turn, verdict)
}

// usageTotal sums what a turn's calls used.
func usageTotal(rows []UsageBody) (total UsageBody) {
	for _, u := range rows {
		total.Input += u.Input
		total.Output += u.Output
		total.CacheRead += u.CacheRead
		total.CacheWrite += u.CacheWrite
		total.Model, total.Source = u.Model, u.Source
	}
	return total
}
