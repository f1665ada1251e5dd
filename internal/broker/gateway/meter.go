package gateway

import (
	"bytes"
	"encoding/json"
	"strings"

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
	stream   bool // server-sent events; else JSON
	line     []byte
	overflow bool
	body     []byte

	model            string
	input, output    int64
	cacheRead, write int64
	seen, final      bool
	err              string // the provider's own word for what went wrong
}

func newMeter(provider, contentType string) *meter {
	return &meter{provider: provider, stream: strings.HasPrefix(contentType, "text/event-stream")}
}

// add takes the next bytes of the answer.
func (m *meter) add(p []byte) {
	if !m.stream {
		if m.overflow = m.overflow || len(m.body)+len(p) > maxAnswer; !m.overflow {
			m.body = append(m.body, p...)
		}
		return
	}
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			m.hold(p)
			return
		}
		line := p[:i]
		if len(m.line) > 0 || m.overflow {
			m.hold(line)
			line = m.line
		}
		if !m.overflow {
			m.event(line)
		}
		m.line, m.overflow = m.line[:0], false
		p = p[i+1:]
	}
}

func (m *meter) hold(p []byte) {
	if m.overflow = m.overflow || len(m.line)+len(p) > maxEvent; !m.overflow {
		m.line = append(m.line, p...)
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
	if m.stream && len(m.line) > 0 && !m.overflow {
		m.event(m.line)
	}
	if !m.stream && !m.overflow {
		m.decode(m.body)
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
