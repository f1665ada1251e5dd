package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/internal/runtime"
	"managoat/internal/transcript"
	"managoat/sandbox/guest"
)

// How long a call's end waits for the machine's record of its command, which comes another way: where there surely is
// one, where there may be one, and until a command that was told to stop has had the time to.
const (
	recordWait      = time.Second
	recordMaybeWait = 100 * time.Millisecond
	recordStopWait  = 3 * time.Second
)

// maxRecords bounds the records that wait for the tool call they belong to.
const maxRecords = 256

// records are what the machine's recording shell saw of the commands that the runtime ran itself. Each belongs to the
// tool call of the same command, oldest first; one that belongs to none is a row of its own.
type records struct {
	waiting []guest.Record
	seen    int64 // Seq of the last that came
}

// followRecords hands the records of this process to the pump.
func (p *process) followRecords(after int64) {
	for {
		err := p.client().Records(p.ctx, p.execID, after, func(r guest.Record) error {
			after = r.Seq
			select {
			case p.recorded <- r:
				return nil
			case <-p.ctx.Done():
				return p.ctx.Err()
			}
		})
		if p.ctx.Err() != nil {
			return
		}
		if errors.Is(err, guest.ErrGone) {
			if p.reconnect() == nil {
				continue
			}
			return // the follower of the output says what became of the machine
		}
		if err != nil {
			p.s.log.Warn("a machine's records cannot be read", "conversation", p.id, "error", err)
		}
		return
	}
}

// record takes one record. What the runtime runs beside tool calls (hooks, servers) is none of ours.
func (p *process) record(r guest.Record) {
	p.records.seen = r.Seq
	command, ok := p.runtime.Recorded(r.Argv)
	if !ok {
		return
	}
	if c := p.tools.of(command); c != nil {
		p.ranAs(c, r)
		return
	}
	if len(p.records.waiting) == maxRecords {
		p.ownRow(p.records.waiting[0])
		p.records.waiting = p.records.waiting[1:]
	}
	p.records.waiting = append(p.records.waiting, r)
}

// of finds the open call that runs a command and has no record yet: of several the one that began first.
func (t *tools) of(command string) *toolCall {
	var first *toolCall
	for _, c := range t.open {
		if c.ran == nil && sameCommand(c.command(), command) && (first == nil || c.started.Before(first.started)) {
			first = c
		}
	}
	return first
}

func sameCommand(a, b string) bool { return a != "" && strings.TrimSpace(a) == strings.TrimSpace(b) }

// claimRecord gives a call the record that came before it said what it runs.
func (p *process) claimRecord(c *toolCall) {
	if c.ran != nil {
		return
	}
	for i, r := range p.records.waiting {
		if command, ok := p.runtime.Recorded(r.Argv); ok && sameCommand(c.command(), command) {
			p.records.waiting = append(p.records.waiting[:i:i], p.records.waiting[i+1:]...)
			p.ranAs(c, r)
			return
		}
	}
}

// awaitRecord waits a moment for what the machine's recording shell saw of a call's command.
func (p *process) awaitRecord(c *toolCall) {
	if c.Kind != string(sdk.ToolKindExecute) || c.ran != nil || p.env[guest.RecordTag] == "" || p.broken != nil {
		return
	}
	p.claimRecord(c)
	wait := recordMaybeWait
	switch sure := p.runtime.Records() || p.records.seen > 0; {
	case sure && p.turn != nil && p.turn.stopping.Load():
		wait = recordStopWait
	case sure:
		wait = recordWait
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for c.ran == nil {
		select {
		case r := <-p.recorded:
			p.record(r)
		case <-timer.C:
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// ranAs tells a call what was seen of its command.
func (p *process) ranAs(c *toolCall, r guest.Record) {
	c.ran = &ran{ended: true, duration: r.Duration, signal: r.Signal, bytes: r.Stdout.Bytes + r.Stderr.Bytes, output: p.recordedText(r)}
	c.ran.truncated = cutShort(r.Stdout) || cutShort(r.Stderr)
	if r.Signal == "" && !r.Lost {
		code := r.Code
		c.ran.exitCode = &code
	}
	c.recordSeq = r.Seq
}

func cutShort(s guest.Recorded) bool { return int64(len(s.Head)+len(s.Tail)) < s.Bytes }

// recordedText is a record's output, through the gate.
func (p *process) recordedText(r guest.Record) *string {
	text := p.recordedStream(r.Stdout) + p.recordedStream(r.Stderr)
	return &text
}

func (p *process) recordedStream(s guest.Recorded) string {
	if !cutShort(s) {
		return p.gate.String(string(s.Head) + string(s.Tail))
	}
	// At the cut no part of a secret shows: what could begin one is left out before it, a line that began earlier after it.
	head := p.gate.Stream().Write(s.Head)
	_, tail, _ := strings.Cut(string(s.Tail), "\n")
	return head + fmt.Sprintf("\n… %d bytes are not shown here …\n", s.Bytes-int64(len(s.Head)+len(tail))) + p.gate.String(tail)
}

// ownRows shows the commands that belong to no tool call of the turn that ends.
func (p *process) ownRows() {
	for _, r := range p.records.waiting {
		p.ownRow(r)
	}
	p.records.waiting = nil
}

func (p *process) ownRow(r guest.Record) {
	command, ok := p.runtime.Recorded(r.Argv)
	if !ok || p.turnID == nil {
		return
	}
	input, err := json.Marshal(map[string]any{"command": command})
	if err != nil {
		return
	}
	c := &toolCall{started: time.Now(), ToolCall: runtime.ToolCall{ID: fmt.Sprintf("command-%s-%d", p.execID, r.Seq), Title: command,
		Kind: string(sdk.ToolKindExecute), Status: string(sdk.ToolCallStatusCompleted), Input: input}}
	p.ranAs(c, r)
	if c.ran.exitCode == nil || *c.ran.exitCode != 0 {
		c.Status = string(sdk.ToolCallStatusFailed)
	}
	p.add(transcript.Row{Type: transcript.ToolCallType, Body: p.toolBody(c), Tool: p.toolRow(c)}, false)
	p.result(c, nil)
}

// settledRecords is how far the records are dealt with: what comes after is read again by the next server.
func (p *process) settledRecords() int64 {
	settled := p.records.seen
	for _, r := range p.records.waiting {
		settled = min(settled, r.Seq-1)
	}
	for _, c := range p.tools.open {
		if c.ran != nil && c.recordSeq > 0 {
			settled = min(settled, c.recordSeq-1)
		}
	}
	return max(settled, p.committed.Records)
}
