package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"

	"managoat/internal/acp"
	"managoat/internal/runtime"
	"managoat/internal/transcript"
	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
)

// Limits of what an agent asks its client to do.
const (
	maxTerminals    = 64       // of one agent at once
	terminalOutput  = 1 << 20  // bytes of output that the agent can read again, unless it asks for less
	fullLog         = 64 << 20 // bytes of a command's full log on the machine
	maxTextFile     = 4 << 20  // bytes of a file that the agent reads or writes through us
	requestTimeout  = 10 * time.Second
	newFileMode     = 0o644
	unboundOutput   = 256 << 10 // bytes of a terminal that belongs to no tool call yet
	maxTerminalArgs = 256
)

// agentRoots are what an agent may name a file under: it runs as the same user, so the kernel decides.
var agentRoots = []string{"/"}

// terminals are the commands that the agent asked us to run: our guest runs them, so that their output is seen as it
// comes, and their exit code and time are what they are.
type terminals struct{ open map[string]*terminal }

func (t *terminals) init() { t.open = map[string]*terminal{} }

type terminal struct {
	id        string // of its command in the guest, and for the agent
	argv      []string
	call      *toolCall // that shows it; nil until one names it
	unbound   []byte    // output before that
	out       []byte    // what the agent can read: the end of the output
	limit     int
	truncated bool
	exit      *guest.Exit
	waiters   []json.RawMessage // requests that wait for the exit
	logPath   string
	shown     bool // a tool call has named it
}

// bind shows a terminal's command in a tool call, with what it printed, and how it ended, before the call named it.
func (p *process) bind(id string, c *toolCall) {
	if t := p.terms.open[id]; t != nil && t.call == nil {
		t.call, t.shown = c, true
		p.showUnbound(t)
		c.note(t)
	}
}

func (t *terminals) unbind(c *toolCall) {
	for _, term := range t.open {
		if term.call == c {
			term.call = nil
		}
	}
}

type createTerminal struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     []sdk.EnvVariable `json:"env"`
	Cwd     *string           `json:"cwd"`
	Limit   *int              `json:"outputByteLimit"`
}

func (p *process) createTerminal(m acp.Message) {
	var in createTerminal
	if json.Unmarshal(m.Params, &in) != nil || in.Command == "" || len(in.Args) > maxTerminalArgs {
		p.refuse(m.ID, acp.CodeInvalidParams, "terminal/create needs a command")
		return
	}
	if len(p.terms.open) >= maxTerminals {
		p.refuse(m.ID, acp.CodeInvalidRequest, "there are too many terminals: release some")
		return
	}
	argv := append([]string{in.Command}, in.Args...)
	if len(in.Args) == 0 && strings.ContainsAny(in.Command, " \t\n;|&<>$\"'") {
		argv = []string{"/bin/bash", "-c", in.Command} // a command line, which some agents send
	}
	// Named by the request, so that one that is read again after a restart starts nothing twice.
	t := &terminal{id: uuid.NewSHA1(p.exec, m.ID).String(), argv: argv, limit: terminalOutput}
	if in.Limit != nil && *in.Limit >= 0 && *in.Limit < t.limit {
		t.limit = *in.Limit
	}
	t.logPath = p.logPath(t.id)
	env := maps.Clone(p.env)
	delete(env, guest.RecordTag) // our guest sees it already
	for _, v := range in.Env {
		env[v.Name] = v.Value
	}
	dir := p.cwd
	if in.Cwd != nil {
		dir = *in.Cwd
	}
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
	defer cancel()
	err := p.client().Start(ctx, guest.Exec{ID: t.id, Argv: argv, Env: env, Dir: dir, User: guest.Sprite, Spool: guest.SpoolLog, LogPath: t.logPath, LogBytes: fullLog})
	var refused *guest.Refused
	if err != nil && !(errors.As(err, &refused) && refused.Code == wire.CodeExists) {
		p.s.log.Warn("start a command of a terminal", "conversation", p.id, "error", err)
		p.refuse(m.ID, acp.CodeInternal, "the command could not be started: "+err.Error())
		return
	}
	p.terms.open[t.id] = t
	p.owned.Go(func() { p.followTerminal(t.id) })
	p.reply(m.ID, map[string]any{"terminalId": t.id})
}

// followTerminal hands a command's output and its exit to the pump.
func (p *process) followTerminal(id string) {
	var at guest.Offsets
	for {
		exit, err := p.client().Follow(p.ctx, id, at, func(c guest.Chunk) error {
			end := c.Offset + int64(len(c.Data))
			if c.Stream == guest.Stdout {
				at.Stdout = end
			} else {
				at.Stderr = end
			}
			p.tell(func() { p.terminalSays(id, c) })
			return p.ctx.Err()
		})
		if p.ctx.Err() != nil {
			return
		}
		if errors.Is(err, guest.ErrGone) && p.reconnect() == nil {
			continue
		}
		if err != nil {
			exit = &guest.Exit{Code: -1, Signal: "LOST"}
		}
		p.tell(func() { p.terminalEnded(id, *exit) })
		return
	}
}

func (p *process) terminalSays(id string, c guest.Chunk) {
	t := p.terms.open[id]
	if t == nil {
		return
	}
	t.out = append(t.out, c.Data...)
	if over := len(t.out) - t.limit; over > 0 {
		for over < len(t.out) && !utf8.RuneStart(t.out[over]) {
			over++
		}
		t.out, t.truncated = append(t.out[:0], t.out[over:]...), true
	}
	switch {
	case t.call == nil && t.shown:
		return // its call has ended
	case t.call == nil:
		t.unbound = append(t.unbound, c.Data[:min(len(c.Data), max(0, unboundOutput-len(t.unbound)))]...)
		return
	}
	p.toolSays(t.call, string(c.Stream), string(c.Data), false)
	t.call.note(t)
}

func (p *process) showUnbound(t *terminal) {
	if len(t.unbound) > 0 {
		p.toolSays(t.call, string(guest.Stdout), string(t.unbound), false)
		t.unbound = nil
	}
}

// note tells the call that our guest runs its command.
func (c *toolCall) note(t *terminal) {
	if c.ran == nil {
		c.ran = &ran{logPath: t.logPath}
	}
	if e := t.exit; e != nil && !c.ran.ended {
		c.ran.ended, c.ran.signal, c.ran.duration, c.ran.bytes = true, e.Signal, e.Duration, e.StdoutBytes+e.StderrBytes
		if e.Signal == "" {
			code := e.Code
			c.ran.exitCode = &code
		}
	}
}

func (p *process) terminalEnded(id string, exit guest.Exit) {
	t := p.terms.open[id]
	if t == nil {
		return
	}
	t.exit = &exit
	if t.call != nil {
		t.call.note(t)
	}
	for _, waiter := range t.waiters {
		p.reply(waiter, t.status())
	}
	t.waiters = nil
}

func (t *terminal) status() map[string]any {
	s := map[string]any{}
	if t.exit == nil {
		return s
	}
	if t.exit.Signal != "" {
		s["signal"] = t.exit.Signal
	} else {
		s["exitCode"] = t.exit.Code
	}
	return s
}

// terminalOf finds the terminal that a request names, or refuses it.
func (p *process) terminalOf(m acp.Message) *terminal {
	var in struct {
		ID string `json:"terminalId"`
	}
	if json.Unmarshal(m.Params, &in) == nil && p.terms.open[in.ID] != nil {
		return p.terms.open[in.ID]
	}
	p.refuse(m.ID, acp.CodeInvalidParams, "there is no such terminal")
	return nil
}

func (p *process) terminalOutput(m acp.Message) {
	if t := p.terminalOf(m); t != nil {
		out := map[string]any{"output": strings.ToValidUTF8(string(t.out), "\uFFFD"), "truncated": t.truncated}
		if t.exit != nil {
			out["exitStatus"] = t.status()
		}
		p.reply(m.ID, out)
	}
}

func (p *process) terminalWait(m acp.Message) {
	switch t := p.terminalOf(m); {
	case t == nil:
	case t.exit != nil:
		p.reply(m.ID, t.status())
	default:
		t.waiters = append(t.waiters, m.ID)
	}
}

func (p *process) killTerminal(m acp.Message) {
	if t := p.terminalOf(m); t != nil {
		p.stopTerminal(t)
		p.reply(m.ID, map[string]any{})
	}
}

func (p *process) releaseTerminal(m acp.Message) {
	if t := p.terminalOf(m); t != nil {
		p.stopTerminal(t)
		p.dropTerminal(t)
		p.reply(m.ID, map[string]any{})
	}
}

func (p *process) stopTerminal(t *terminal) {
	if t.exit != nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
	defer cancel()
	if err := p.client().Signal(ctx, t.id, "SIGKILL"); err != nil {
		p.s.log.Warn("end a terminal's command", "conversation", p.id, "error", err)
	}
}

// dropTerminal forgets a terminal. A command that no tool call showed is a row of its own: none is hidden.
func (p *process) dropTerminal(t *terminal) {
	if t.exit == nil { // killed a moment ago: what its end says comes from the guest's answer, not from the follower
		ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
		if st, err := p.client().Status(ctx, t.id); err == nil {
			t.exit = st.Exit
		}
		cancel()
		if t.call != nil && t.exit != nil {
			t.call.note(t)
		}
	}
	for _, waiter := range t.waiters {
		p.reply(waiter, t.status())
	}
	if !t.shown {
		p.unmatched(t)
	}
	delete(p.terms.open, t.id)
}

// unmatched shows a command that ran for no tool call.
func (p *process) unmatched(t *terminal) {
	if p.turnID == nil {
		return
	}
	input, err := json.Marshal(map[string]any{"command": t.argv})
	if err != nil {
		return
	}
	c := &toolCall{ToolCall: runtime.ToolCall{ID: "command-" + t.id, Title: strings.Join(t.argv, " "), Kind: string(sdk.ToolKindExecute), Status: string(sdk.ToolCallStatusCompleted), Input: input}, started: time.Now()}
	c.note(t)
	if c.ran.ended && (c.ran.exitCode == nil || *c.ran.exitCode != 0) {
		c.Status = string(sdk.ToolCallStatusFailed)
	}
	p.add(transcript.Row{Type: transcript.ToolCallType, Body: p.toolBody(c), Tool: p.toolRow(c)}, false)
	if out := append(t.unbound, []byte(nil)...); len(out) > 0 {
		p.toolSays(c, string(guest.Stdout), string(out), false)
	}
	p.result(c, nil)
}

// closeTerminals ends what commands still run for a turn that has ended.
func (p *process) closeTerminals() {
	for _, t := range p.terms.open {
		p.stopTerminal(t)
		p.dropTerminal(t)
	}
}

func (p *process) readFile(m acp.Message) {
	var in struct {
		Path  string `json:"path"`
		Line  *int   `json:"line"`
		Limit *int   `json:"limit"`
	}
	if json.Unmarshal(m.Params, &in) != nil || !strings.HasPrefix(in.Path, "/") {
		p.refuse(m.ID, acp.CodeInvalidParams, "fs/read_text_file needs an absolute path")
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
	defer cancel()
	data, size, err := p.client().ReadFile(ctx, agentRoots, in.Path, maxTextFile)
	switch {
	case err != nil:
		p.refuse(m.ID, acp.CodeInternal, fileProblem(err))
	case size > maxTextFile:
		p.refuse(m.ID, acp.CodeInvalidParams, "the file is too large to be read through the client")
	default:
		p.reply(m.ID, map[string]any{"content": lineRange(strings.ToValidUTF8(string(data), "\uFFFD"), in.Line, in.Limit)})
	}
}

// lineRange cuts a text to some lines: from the 1-based first, at most limit of them.
func lineRange(text string, first, limit *int) string {
	if first == nil && limit == nil {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	from := 0
	if first != nil {
		from = min(max(*first-1, 0), len(lines))
	}
	to := len(lines)
	if limit != nil {
		to = min(from+max(*limit, 0), to)
	}
	return strings.Join(lines[from:to], "")
}

func (p *process) writeFile(m acp.Message) {
	var in struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	if json.Unmarshal(m.Params, &in) != nil || !strings.HasPrefix(in.Path, "/") || len(in.Content) > maxTextFile {
		p.refuse(m.ID, acp.CodeInvalidParams, "fs/write_text_file needs an absolute path, and content of at most 4 MiB")
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
	defer cancel()
	mode := uint32(newFileMode)
	if entry, _, err := p.client().Stat(ctx, agentRoots, in.Path); err == nil {
		mode = uint32(entry.Mode.Perm())
	}
	if err := p.client().WriteFile(ctx, agentRoots, in.Path, []byte(in.Content), mode); err != nil {
		p.refuse(m.ID, acp.CodeInternal, fileProblem(err))
		return
	}
	p.reply(m.ID, map[string]any{})
}

func fileProblem(err error) string {
	var file *guest.FileError
	if errors.As(err, &file) {
		return file.Error()
	}
	return "the machine does not answer"
}
