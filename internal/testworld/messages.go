package testworld

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// Beginnings of texts that a client puts into user messages by itself.
	reminder   = "<system-reminder>"
	suggestion = "[SUGGESTION MODE:"

	thoughtSignature = "c2NyaXB0ZWQ="        // clients send it back with the thought
	quotaCheckTokens = 1                     // max_tokens of a client that only looks whether its key works
	splitPause       = 20 * time.Millisecond // between the pieces of SaySplit, so that they arrive apart
	tailLength       = 400                   // bytes of a message in an error
)

// ask is a request of the Messages API, as far as scripts look at it.
type ask struct {
	Model        string    `json:"model"`
	MaxTokens    int       `json:"max_tokens"`
	Stream       bool      `json:"stream"`
	System       content   `json:"system"`
	Messages     []message `json:"messages"`
	Tools        []tool    `json:"tools"`
	OutputConfig struct {
		Format *struct {
			Schema struct {
				Properties map[string]json.RawMessage `json:"properties"`
			} `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

type tool struct {
	Name string `json:"name"`
}

type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a list of blocks; on the wire a string stands for one text block.
type content []block

type block struct {
	Type    string          `json:"type"`
	Text    string          `json:"text,omitempty"`
	Think   string          `json:"thinking,omitempty"`
	Signed  string          `json:"signature,omitempty"`
	ID      string          `json:"id,omitempty"`
	Name    string          `json:"name,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
	Content content         `json:"content,omitempty"` // of a tool_result
}

func (c *content) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte(`"`)) {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*c = content{{Type: "text", Text: text}}
		return nil
	}
	return json.Unmarshal(data, (*[]block)(c))
}

func (c content) text() string {
	var parts []string
	for _, b := range c {
		if b.Text != "" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// isSide tells the requests that a client makes for itself from those of a conversation: for output in a
// schema, for a guess at the next prompt, to see whether a key works.
func (a *ask) isSide() bool {
	if a.OutputConfig.Format != nil || a.MaxTokens <= quotaCheckTokens || len(a.Messages) == 0 {
		return true
	}
	last := a.Messages[len(a.Messages)-1]
	return last.Role == "user" && strings.HasPrefix(last.Content.text(), suggestion)
}

// sideText answers a side request: an object in its schema, else a word.
func (a *ask) sideText() string {
	if a.OutputConfig.Format == nil {
		return "ok"
	}
	object := map[string]string{}
	for name := range a.OutputConfig.Format.Schema.Properties {
		object[name] = "scripted " + name
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		panic(err) // a map of strings encodes
	}
	return string(encoded)
}

// prompt is a text that may hold a script's marker, and the message at which its turn starts.
type prompt struct {
	text    string
	message int
}

// prompts are what people typed, newest first, and then the system prompt for the newest turn.
func (a *ask) prompts() []prompt {
	var out []prompt
	for i, m := range slices.Backward(a.Messages) {
		if m.Role != "user" {
			continue
		}
		for _, b := range slices.Backward(m.Content) {
			if b.Type == "text" && !strings.HasPrefix(strings.TrimSpace(b.Text), reminder) {
				out = append(out, prompt{b.Text, i})
			}
		}
	}
	if len(out) > 0 {
		out = append(out, prompt{a.System.text(), out[0].message})
	}
	return out
}

// repliesAfter counts the model's answers since a message; messages of the assistant in a row are one answer.
func (a *ask) repliesAfter(start int) int {
	n, inAnswer := 0, false
	for _, m := range a.Messages[start:] {
		switch m.Role {
		case "assistant":
			if !inAnswer {
				n++
			}
			inAnswer = true
		case "user":
			inAnswer = false
		}
	}
	return n
}

// lastResult is the text of the newest tool result.
func (a *ask) lastResult() string {
	for _, m := range slices.Backward(a.Messages) {
		for _, b := range slices.Backward(m.Content) {
			if b.Type == "tool_result" {
				return b.Content.text()
			}
		}
	}
	return ""
}

func (a *ask) hasTool(name string) bool { return slices.Contains(a.toolNames(), name) }

func (a *ask) toolNames() []string {
	names := make([]string, len(a.Tools))
	for i, t := range a.Tools {
		names[i] = t.Name
	}
	return names
}

// tail shows the last message in an error.
func (a *ask) tail() string {
	encoded, err := json.Marshal(a.Messages[len(a.Messages)-1])
	if err != nil {
		return err.Error()
	}
	return string(encoded[:min(len(encoded), tailLength)])
}

// answer is one reply on its way: streamed as it is played, or collected and sent whole.
type answer struct {
	ctx    context.Context
	rw     http.ResponseWriter
	ask    *ask
	id     func(prefix string) string
	tokens Tokens
	stop   string // "" until a step decides

	begun  bool
	blocks []block // the last one is open if opened
	opened bool
}

// play runs the steps. Its error is a fault of the script; the rest it has answered itself.
func (a *answer) play(reply Reply) error {
	err := a.run(reply)
	var scripted apiError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &scripted):
		if !a.begun || !a.ask.Stream {
			writeJSON(a.rw, int(scripted), scripted.body(scripted.Error()))
			return nil
		}
		if err := a.event("error", scripted.body(scripted.Error())); err != nil {
			return nil // gone: nobody to tell
		}
		return nil
	case errors.Is(err, errHungUp), a.ctx.Err() != nil:
		panic(http.ErrAbortHandler)
	}
	return err
}

func (a *answer) run(reply Reply) error {
	for _, step := range reply {
		if err := step(a); err != nil {
			return err
		}
	}
	if err := a.begin(); err != nil {
		return err
	}
	if err := a.closeBlock(); err != nil {
		return err
	}
	if a.stop == "" {
		a.stop = "end_turn"
		if slices.ContainsFunc(a.blocks, func(b block) bool { return b.Type == "tool_use" }) {
			a.stop = "tool_use"
		}
	}
	if !a.ask.Stream {
		whole := a.envelope()
		whole["content"], whole["stop_reason"], whole["usage"] = append([]block{}, a.blocks...), a.stop, a.tokens
		writeJSON(a.rw, http.StatusOK, whole)
		return nil
	}
	if err := a.event("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": a.stop, "stop_sequence": nil},
		"usage": map[string]int{"output_tokens": a.tokens.Output},
	}); err != nil {
		return err
	}
	return a.event("message_stop", map[string]any{})
}

func (a *answer) envelope() map[string]any {
	return map[string]any{
		"id": a.id("msg"), "type": "message", "role": "assistant", "model": a.ask.Model,
		"content": []block{}, "stop_reason": nil, "stop_sequence": nil,
	}
}

// begin sends the head of a stream, once.
func (a *answer) begin() error {
	if a.begun || !a.ask.Stream {
		return nil
	}
	a.begun = true
	a.rw.Header().Set("Content-Type", "text/event-stream")
	a.rw.Header().Set("Cache-Control", "no-cache")
	message, usage := a.envelope(), a.tokens
	usage.Output = 1
	message["usage"] = usage
	return a.event("message_start", map[string]any{"message": message})
}

func (a *answer) text(text string) error {
	return a.delta("text", map[string]any{"type": "text_delta", "text": text}, func(b *block) { b.Text += text })
}

func (a *answer) thought(text string) error {
	return a.delta("thinking", map[string]any{"type": "thinking_delta", "thinking": text}, func(b *block) { b.Think += text })
}

// rawText streams a text delta whose string is put in without a check, in two writes if the cut lies inside.
func (a *answer) rawText(escaped string, cut int) error {
	if cut < 0 || cut > len(escaped) {
		return fmt.Errorf("a text of %d bytes cannot be cut at %d", len(escaped), cut)
	}
	if !a.ask.Stream {
		return errors.New("raw text exists in streams only")
	}
	if err := a.open("text"); err != nil {
		return err
	}
	head := fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"text_delta\",\"text\":\"", len(a.blocks)-1)
	if err := a.write(head + escaped[:cut]); err != nil {
		return err
	}
	if cut < len(escaped) {
		select {
		case <-time.After(splitPause):
		case <-a.ctx.Done():
			return errHungUp
		}
	}
	return a.write(escaped[cut:] + "\"}}\n\n")
}

// delta adds to the open block of its kind, or opens one.
func (a *answer) delta(kind string, delta map[string]any, keep func(*block)) error {
	if err := a.open(kind); err != nil {
		return err
	}
	keep(&a.blocks[len(a.blocks)-1])
	return a.event("content_block_delta", map[string]any{"index": len(a.blocks) - 1, "delta": delta})
}

// open makes sure that the last block is open and of the kind.
func (a *answer) open(kind string) error {
	if a.opened && a.blocks[len(a.blocks)-1].Type == kind {
		return nil
	}
	start := map[string]any{"type": kind}
	switch kind {
	case "text":
		start["text"] = ""
	case "thinking":
		start["thinking"], start["signature"] = "", ""
	}
	return a.start(block{Type: kind}, start)
}

func (a *answer) start(b block, start map[string]any) error {
	if err := a.begin(); err != nil {
		return err
	}
	if err := a.closeBlock(); err != nil {
		return err
	}
	a.blocks, a.opened = append(a.blocks, b), true
	return a.event("content_block_start", map[string]any{"index": len(a.blocks) - 1, "content_block": start})
}

func (a *answer) closeBlock() error {
	if !a.opened {
		return nil
	}
	a.opened = false
	if last := &a.blocks[len(a.blocks)-1]; last.Type == "thinking" {
		last.Signed = thoughtSignature
		signature := map[string]string{"type": "signature_delta", "signature": last.Signed}
		if err := a.event("content_block_delta", map[string]any{"index": len(a.blocks) - 1, "delta": signature}); err != nil {
			return err
		}
	}
	return a.event("content_block_stop", map[string]any{"index": len(a.blocks) - 1})
}

func (a *answer) tool(name string, input []byte) error {
	b := block{Type: "tool_use", ID: a.id("toolu"), Name: name, Input: input}
	if err := a.start(b, map[string]any{"type": b.Type, "id": b.ID, "name": name, "input": map[string]any{}}); err != nil {
		return err
	}
	half := len(input) / 2
	for _, piece := range []string{string(input[:half]), string(input[half:])} {
		delta := map[string]string{"type": "input_json_delta", "partial_json": piece}
		if err := a.event("content_block_delta", map[string]any{"index": len(a.blocks) - 1, "delta": delta}); err != nil {
			return err
		}
	}
	return a.closeBlock()
}

// event writes one event of the stream; an answer that is sent whole has none.
func (a *answer) event(name string, data any) error {
	if !a.ask.Stream {
		return nil
	}
	if fields, ok := data.(map[string]any); ok {
		fields["type"] = name
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return a.write("event: " + name + "\ndata: " + string(encoded) + "\n\n")
}

// write sends text at once. A client that is gone ends the reply.
func (a *answer) write(text string) error {
	if _, err := a.rw.Write([]byte(text)); err != nil {
		return errHungUp
	}
	if err := http.NewResponseController(a.rw).Flush(); err != nil {
		return errHungUp
	}
	return nil
}
