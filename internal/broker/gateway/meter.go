package gateway

import (
	"bytes"
	"encoding/json"
	"strings"

	"golang.org/x/sync/semaphore"

	"managoat/internal/broker/journal"
)

// Sizes of what the meter holds, in bytes. An answer beyond them passes, but is not metered.
const (
	maxEvent  = 4 << 20  // one line of an event stream: the last one of OpenAI's repeats the whole answer
	maxAnswer = 16 << 20 // one answer that does not stream
)

// meter reads the usage out of an answer as it goes by.
type meter struct {
	provider string
	stream   bool                // server-sent events; else JSON
	memory   *semaphore.Weighted // what a machine's providers may make us hold together; nil: no bound but one answer's
	taken    int64               // of memory
	held     []byte              // the beginning of a line, or of the answer
	overflow bool                // it was too long

	model            string
	input, output    int64
	cacheRead, write int64
	seen, final      bool
	err              string // the provider's own word for what went wrong
}

func newMeter(provider, contentType string, memory *semaphore.Weighted) *meter {
	return &meter{provider: provider, memory: memory, stream: strings.HasPrefix(contentType, "text/event-stream")}
}

// add takes the next bytes of the answer.
func (m *meter) add(p []byte) {
	if !m.stream {
		m.hold(p, maxAnswer)
		return
	}
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			m.hold(p, maxEvent)
			return
		}
		line := p[:i]
		if len(m.held) > 0 || m.overflow {
			m.hold(line, maxEvent)
			line = m.held
		}
		if !m.overflow {
			m.event(line)
		}
		m.held, m.overflow = m.held[:0], false
		p = p[i+1:]
	}
}

// hold keeps a piece of a line or of an answer until the rest is there, within what the machine may make us hold.
func (m *meter) hold(p []byte, most int) {
	need := int64(len(m.held) + len(p))
	if need > int64(most) {
		m.overflow = true
	}
	if need > m.taken && m.memory != nil && !m.overflow {
		more := max(need-m.taken, holdStep)
		if m.overflow = !m.memory.TryAcquire(more); !m.overflow {
			m.taken += more
		}
	}
	if !m.overflow {
		m.held = append(m.held, p...)
	}
}

// holdStep is how much of a machine's memory is taken at once, in bytes.
const holdStep = 64 << 10

// close gives back what was held.
func (m *meter) close() {
	m.held = nil
	if m.taken > 0 {
		m.memory.Release(m.taken)
		m.taken = 0
	}
}

// event reads one line of an event stream. Most lines are pieces of text: only those that can hold something to
// count are decoded.
func (m *meter) event(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok || !(bytes.Contains(data, []byte(`"usage`)) || bytes.Contains(data, []byte(`"error"`))) {
		return
	}
	m.decode(data)
}

// end tells that the answer ended, in order or not, and completes a usage row.
func (m *meter) end(inOrder bool, row *journal.Usage) {
	switch {
	case m.overflow:
	case m.stream:
		m.event(m.held)
	default:
		m.decode(m.held)
		m.final = m.final || m.seen
	}
	if m.provider == Google && inOrder && m.seen {
		m.final = true // every piece has the numbers so far; the last one's are final
	}
	row.ModelAnswered = m.model
	row.InputTokens, row.OutputTokens, row.CacheReadTokens, row.CacheWriteTokens = m.input, m.output, m.cacheRead, m.write
	switch {
	case m.final:
		row.Completeness = journal.Complete
	case m.seen:
		row.Completeness = journal.Partial
	default:
		row.Completeness = journal.None
	}
	if row.Error == "" {
		row.Error = m.err
	}
}

// answer is what any of the APIs says about its usage, in one piece of a stream or in a whole answer.
type answer struct {
	Type         string       `json:"type"`
	Model        string       `json:"model"`
	ModelVersion string       `json:"modelVersion"` // Gemini
	Usage        *usage       `json:"usage"`
	Gemini       *geminiUsage `json:"usageMetadata"`
	Error        *apiError    `json:"error"`
	Message      *struct {    // Anthropic's message_start
		Model string `json:"model"`
		Usage *usage `json:"usage"`
	} `json:"message"`
	Response *struct { // OpenAI's response.* events
		Model string    `json:"model"`
		Usage *usage    `json:"usage"`
		Error *apiError `json:"error"`
	} `json:"response"`
}

// usage is Anthropic's and both of OpenAI's forms. Absent numbers leave what is known.
type usage struct {
	Input      *int64   `json:"input_tokens"`
	Output     *int64   `json:"output_tokens"`
	CacheRead  *int64   `json:"cache_read_input_tokens"`
	CacheWrite *int64   `json:"cache_creation_input_tokens"`
	InputPart  *details `json:"input_tokens_details"`
	Prompt     *int64   `json:"prompt_tokens"`
	Completion *int64   `json:"completion_tokens"`
	PromptPart *details `json:"prompt_tokens_details"`
}

type details struct {
	Cached int64 `json:"cached_tokens"`
}

// geminiUsage is Gemini's: the prompt includes what was cached, the candidates leave thoughts out.
type geminiUsage struct {
	Prompt     int64 `json:"promptTokenCount"`
	ToolPrompt int64 `json:"toolUsePromptTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
}

// apiError is any provider's; the first of its words that is a word names it. Its message is not kept: it may quote the
// request.
type apiError struct {
	Code   any    `json:"code"`
	Type   string `json:"type"`
	Status string `json:"status"`
}

func (e *apiError) name() string {
	if s, ok := e.Code.(string); ok && s != "" {
		return s
	}
	if e.Type != "" {
		return e.Type
	}
	if e.Status != "" {
		return e.Status
	}
	return "error"
}

func (m *meter) decode(text []byte) {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && text[0] == '[' { // Gemini's stream without alt=sse
		var all []answer
		if json.Unmarshal(text, &all) == nil {
			for _, a := range all {
				m.take(a)
			}
		}
		return
	}
	var a answer
	if json.Unmarshal(text, &a) == nil {
		m.take(a)
	}
}

func (m *meter) take(a answer) {
	m.named(a.Model)
	m.named(a.ModelVersion)
	m.failed(a.Error)
	if a.Message != nil {
		m.named(a.Message.Model)
		m.count(a.Message.Usage)
	}
	if a.Response != nil {
		m.named(a.Response.Model)
		m.failed(a.Response.Error)
		m.final = m.count(a.Response.Usage) || m.final
	}
	if m.count(a.Usage) && (a.Type == "" || a.Type == "message_delta") {
		m.final = true
	}
	if g := a.Gemini; g != nil {
		m.seen = true
		m.input, m.cacheRead = g.Prompt+g.ToolPrompt-g.Cached, g.Cached
		m.output = g.Candidates + g.Thoughts
	}
}

func (m *meter) named(model string) {
	if model != "" {
		m.model = strings.TrimPrefix(model, "models/")
	}
}

func (m *meter) failed(e *apiError) {
	if e != nil && m.err == "" {
		m.err = e.name()
	}
}

// count takes the numbers that are there.
func (m *meter) count(u *usage) bool {
	if u == nil {
		return false
	}
	m.seen = true
	set := func(to *int64, v *int64) {
		if v != nil && *v >= 0 {
			*to = *v
		}
	}
	set(&m.input, u.Input)
	set(&m.output, u.Output)
	set(&m.cacheRead, u.CacheRead)
	set(&m.write, u.CacheWrite)
	set(&m.input, u.Prompt)
	set(&m.output, u.Completion)
	for _, part := range []*details{u.InputPart, u.PromptPart} {
		if part != nil && m.provider != Anthropic {
			m.cacheRead = min(max(part.Cached, 0), m.input)
			m.input -= m.cacheRead
		}
	}
	return true
}
