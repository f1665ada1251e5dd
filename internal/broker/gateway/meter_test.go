package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"

	"managoat/internal/broker/journal"
)

const sse = "text/event-stream; charset=utf-8"

func meterAll(provider, contentType, text string, piece int, inOrder bool) journal.Usage {
	m := newMeter(provider, contentType, semaphore.NewWeighted(heldMemory))
	for len(text) > 0 {
		n := min(piece, len(text))
		m.add([]byte(text[:n]))
		text = text[n:]
	}
	var row journal.Usage
	m.end(inOrder, &row)
	return row
}

func TestUsageIsReadFromEveryProvidersAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		provider, contentType, text string
		brokeOff                    bool
		want                        journal.Usage
	}{
		"anthropic stream": {Anthropic, sse, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-a\",\"usage\":{\"input_tokens\":100,\"cache_creation_input_tokens\":20,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"say \\\"usage\\\":{\\\"output_tokens\\\":9}\"}}\n\n" +
			"event: message_delta\r\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":34}}\r\n\r\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", false,
			journal.Usage{ModelAnswered: "claude-a", InputTokens: 100, OutputTokens: 34, CacheReadTokens: 1000, CacheWriteTokens: 20, Completeness: journal.Complete}},
		"anthropic stream that breaks off": {Anthropic, sse, "data: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-a\",\"usage\":{\"input_tokens\":100,\"output_tokens\":1}}}\n\n", true,
			journal.Usage{ModelAnswered: "claude-a", InputTokens: 100, OutputTokens: 1, Completeness: journal.Partial}},
		"anthropic stream with an error in it": {Anthropic, sse, "data: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-a\",\"usage\":{\"input_tokens\":100,\"output_tokens\":1}}}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"secret words\"}}\n\n", false,
			journal.Usage{ModelAnswered: "claude-a", InputTokens: 100, OutputTokens: 1, Completeness: journal.Partial, Error: "overloaded_error"}},
		"anthropic at once": {Anthropic, "application/json", `{"type":"message","model":"claude-a","usage":{"input_tokens":7,"output_tokens":8,"cache_read_input_tokens":9,"cache_creation_input_tokens":10}}`, false,
			journal.Usage{ModelAnswered: "claude-a", InputTokens: 7, OutputTokens: 8, CacheReadTokens: 9, CacheWriteTokens: 10, Completeness: journal.Complete}},
		"anthropic error": {Anthropic, "application/json", `{"type":"error","error":{"type":"rate_limit_error","message":"secret words"}}`, false,
			journal.Usage{Completeness: journal.None, Error: "rate_limit_error"}},
		"responses stream": {OpenAI, sse, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"gpt-a\",\"usage\":null,\"error\":null}}\n\n" +
			"data: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-a-2026\",\"usage\":{\"input_tokens\":50,\"input_tokens_details\":{\"cached_tokens\":30},\"output_tokens\":12,\"output_tokens_details\":{\"reasoning_tokens\":4},\"total_tokens\":62}}}\n\n", false,
			journal.Usage{ModelAnswered: "gpt-a-2026", InputTokens: 20, OutputTokens: 12, CacheReadTokens: 30, Completeness: journal.Complete}},
		"responses stream that fails": {OpenAI, sse, "data: {\"type\":\"response.failed\",\"response\":{\"model\":\"gpt-a\",\"usage\":null,\"error\":{\"code\":\"server_error\",\"message\":\"secret\"}}}\n\n", false,
			journal.Usage{ModelAnswered: "gpt-a", Completeness: journal.None, Error: "server_error"}},
		"chat stream": {OpenAICompatible, sse, "data: {\"model\":\"m\",\"choices\":[{}],\"usage\":null}\n\ndata: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n", false,
			journal.Usage{ModelAnswered: "m", InputTokens: 6, OutputTokens: 5, CacheReadTokens: 4, Completeness: journal.Complete}},
		"chat stream without usage": {OpenAICompatible, sse, "data: {\"model\":\"m\",\"choices\":[{}]}\n\ndata: [DONE]\n\n", false,
			journal.Usage{Completeness: journal.None}},
		"chat at once": {OpenAI, "application/json", `{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}`, false,
			journal.Usage{ModelAnswered: "m", InputTokens: 3, OutputTokens: 2, Completeness: journal.Complete}},
		"gemini stream": {Google, sse, "data: {\"modelVersion\":\"gemini-a\",\"usageMetadata\":{\"promptTokenCount\":40}}\n\ndata: {\"modelVersion\":\"gemini-a\",\"usageMetadata\":{\"promptTokenCount\":40,\"cachedContentTokenCount\":10,\"candidatesTokenCount\":6,\"thoughtsTokenCount\":3}}", false,
			journal.Usage{ModelAnswered: "gemini-a", InputTokens: 30, OutputTokens: 9, CacheReadTokens: 10, Completeness: journal.Complete}},
		"gemini stream that breaks off": {Google, sse, "data: {\"modelVersion\":\"gemini-a\",\"usageMetadata\":{\"promptTokenCount\":40}}\n\n", true,
			journal.Usage{ModelAnswered: "gemini-a", InputTokens: 40, Completeness: journal.Partial}},
		"gemini array": {Google, "application/json", "[{\"usageMetadata\":{\"promptTokenCount\":4}},\n{\"modelVersion\":\"gemini-a\",\"usageMetadata\":{\"promptTokenCount\":4,\"candidatesTokenCount\":2}}]", false,
			journal.Usage{ModelAnswered: "gemini-a", InputTokens: 4, OutputTokens: 2, Completeness: journal.Complete}},
		"gemini error": {Google, "application/json", `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"secret"}}`, false,
			journal.Usage{Completeness: journal.None, Error: "RESOURCE_EXHAUSTED"}},
		"not JSON": {OpenAI, "text/html", "<html>", false, journal.Usage{Completeness: journal.None}},
		"nothing":  {OpenAI, "", "", false, journal.Usage{Completeness: journal.None}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, piece := range []int{1, 7, 1 << 20} {
				got := meterAll(c.provider, c.contentType, c.text, piece, !c.brokeOff)
				if a, b := text(t, got), text(t, c.want); a != b {
					t.Errorf("in pieces of %d:\n got %s\nwant %s", piece, a, b)
				}
			}
		})
	}
}

func text(t *testing.T, row journal.Usage) string {
	t.Helper()
	b, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A hostile provider must not make the meter hold the stream.
func TestALineThatNeverEndsIsNotHeld(t *testing.T) {
	t.Parallel()
	m := newMeter(Anthropic, sse, semaphore.NewWeighted(heldMemory))
	piece := []byte(strings.Repeat("x", 1<<20))
	for range 3 * maxEvent >> 20 {
		m.add(piece)
	}
	if len(m.held) > maxEvent {
		t.Errorf("%d bytes are held", len(m.held))
	}
	m.add([]byte("\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":3}}\n"))
	var row journal.Usage
	m.end(true, &row)
	if row.OutputTokens != 3 || row.Completeness != journal.Complete {
		t.Errorf("after it: %+v", row)
	}
	memory := semaphore.NewWeighted(heldMemory)
	j := newMeter(OpenAI, "application/json", memory)
	for range 2 * maxAnswer >> 20 {
		j.add(piece)
	}
	if len(j.held) > maxAnswer {
		t.Errorf("%d bytes are held", len(j.held))
	}
	// Many answers at once share what the machine may make us hold.
	for range 10 {
		more := newMeter(OpenAI, "application/json", memory)
		defer more.close()
		for range maxAnswer >> 20 {
			more.add(piece)
		}
		more.add([]byte("}"))
	}
	if memory.TryAcquire(maxAnswer) {
		t.Error("ten large answers were held as if each were the only one")
	}
	j.close()
	if !memory.TryAcquire(maxAnswer - holdStep) {
		t.Error("what was held is not given back")
	}
}
