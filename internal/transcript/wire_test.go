package transcript

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	acp "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"
)

// stored is a row as it comes back from PostgreSQL.
func stored(t *testing.T, r Row) Stored {
	t.Helper()
	c, err := encode(uuid.Nil, []Row{r})
	if err != nil {
		t.Fatal(err)
	}
	turn := uuid.MustParse("0198c0de-0000-7000-8000-000000000001")
	return Stored{ConversationID: uuid.MustParse("0198c0de-0000-7000-8000-000000000002"), Seq: 7, TurnID: &turn, TurnNumber: 3, Type: r.Type,
		Body: c.bodies[0], Raw: c.raws[0], CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))}
}

// The row of every type as clients of the wire see it.
func TestEveryTypeOfRowHasItsPlaceOnTheWire(t *testing.T) {
	t.Parallel()
	exit := 1
	raw := `{"jsonrpc":"2.0","method":"session/update","params":{}}`
	for name, c := range map[string]struct {
		row                        Row
		kind, stream, stage, state string
		block                      string
		line                       string // must be in data
	}{
		"prompt":      {Row{Type: Prompt, Body: PromptBody{TurnNumber: 3, Text: "do it"}}, "stage", "", "turn", "started", "prompt", `"turn_number":3`},
		"message":     {Row{Type: Message, Body: MessageBody{"m", "hi"}}, "output", "acp", "", "", "text", `agent_message_chunk`},
		"thought":     {Row{Type: Thought, Body: ThoughtBody{"m", "hm"}}, "output", "acp", "", "", "thinking", `agent_thought_chunk`},
		"plan":        {Row{Type: Plan, Body: PlanBody{[]PlanEntry{{"a", "pending", "high"}}}}, "output", "acp", "", "", "plan", `"entries"`},
		"tool call":   {Row{Type: ToolCallType, Body: ToolCallBody{ID: "c", Title: "ls", ToolKind: "execute", Status: "running", Input: json.RawMessage(`{"command":"ls"}`)}}, "output", "acp", "", "", "tool_use", `in_progress`},
		"its line":    {Row{Type: ToolCallType, Raw: raw, Body: ToolCallBody{ID: "c"}}, "output", "acp", "", "", "tool_use", raw},
		"tool output": {Row{Type: ToolOutput, Body: ToolOutputBody{"c", "stderr", "oh"}}, "output", "stderr", "", "", "", `oh`},
		"both as one": {Row{Type: ToolOutput, Body: ToolOutputBody{"c", "", "oh"}}, "output", "acp", "", "", "", `tool_call_update`},
		"tool result": {Row{Type: ToolResult, Body: ToolResultBody{ID: "c", Status: "interrupted", ExitCode: &exit, Output: "no"}}, "output", "acp", "", "", "tool_result", `"status":"failed"`},
		"asked":       {Row{Type: PermissionRequest, Raw: raw, Body: PermissionRequestBody{RequestID: "r", Title: "rm", Options: []Option{{"o", "Allow", "allow_once"}}}}, "stage", "", "request", "started", "permission_request", `"request_id":"r"`},
		"answered":    {Row{Type: PermissionResolved, Body: PermissionResolvedBody{RequestID: "r", Outcome: "auto_allow"}}, "stage", "", "request", "done", "", `auto_allow`},
		"stage":       {Row{Type: Stage, Body: StageBody{Stage: "setup_script", State: "failed", Reason: "exit", DurationMS: 1500}}, "stage", "", "setup", "failed", "", `"stage":"setup_script"`},
		"turn's end":  {Row{Type: Stage, Body: StageBody{Stage: "turn", State: "interrupted"}}, "stage", "", "turn", "interrupted", "", `interrupted`},
		"usage":       {Row{Type: Usage, Body: UsageBody{ContextUsed: 5, ContextSize: 10}}, "output", "acp", "", "", "", `usage_update`},
		"notice":      {Row{Type: Notice, Body: NoticeBody{"new_machine", "memory lost"}}, "stage", "", "notice", "done", "", `new_machine`},
		"error":       {Row{Type: Error, Body: ErrorBody{Code: "x", Message: "broken"}}, "stage", "", "notice", "failed", "error", `broken`},
	} {
		r := stored(t, c.row)
		e := Wire(r, View{Raw: true, Blocks: true})
		if e.Kind != c.kind || e.Stream != c.stream || e.Stage != c.stage || e.State != c.state || !strings.Contains(e.Data, c.line) {
			t.Errorf("%s: %+v", name, e)
		}
		block := ""
		if len(e.Blocks) == 1 {
			block = e.Blocks[0].Kind
		}
		if block != c.block || len(e.Blocks) > 1 {
			t.Errorf("%s: blocks %+v", name, e.Blocks)
		}
		if e.ID != 7 || e.Seq != 7 || e.TurnNumber != 3 || e.Type != c.row.Type || !bytes.Equal(e.Body, r.Body) || e.TS.Location() != time.UTC {
			t.Errorf("%s: %+v", name, e)
		}
		if want := map[bool]string{true: "stage", false: c.stream}[c.kind == "stage"]; StreamOf(r) != want {
			t.Errorf("%s is of the stream %q", name, StreamOf(r))
		}
		if e := Wire(r, View{}); e.Data != "" || e.Blocks != nil || e.Kind != c.kind || e.Body == nil {
			t.Errorf("%s without its line: %+v", name, e)
		}
		// A line that is ours reads as the protocol's.
		if c.kind != "output" || c.row.Raw != "" || c.stream != "acp" {
			continue
		}
		var message struct {
			Method string
			Params acp.SessionNotification
		}
		if err := json.Unmarshal([]byte(e.Data), &message); err != nil || message.Method != "session/update" || message.Params.SessionId == "" {
			t.Errorf("%s: %s: %v", name, e.Data, err)
		}
	}
}

func TestTheWiresFieldsAreThereEvenWhenEmpty(t *testing.T) {
	t.Parallel()
	e := Wire(Stored{Seq: 1, Type: Notice, Body: json.RawMessage(`{}`)}, View{})
	out, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"id", "kind", "stream", "turn_id", "ts", "seq", "type", "body"} {
		if _, ok := v[field]; !ok {
			t.Errorf("%s is missing in %s", field, out)
		}
	}
}

// What real adapters say passes the gate as it is: nothing in it looks like a secret or needs a change.
func TestRecordedProtocolLinesPassTheGateUnchanged(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testworld/testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	g := gate(token, "ghp_0123456789abcdefghij")
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if got := g.JSON(lines.Bytes()); !bytes.Equal(got, lines.Bytes()) {
				t.Errorf("%s: %.200s became %.200s", name, lines.Bytes(), got)
			}
			if masked := g.JSON(bytes.ReplaceAll(lines.Bytes(), []byte("session"), []byte(token))); shows(string(masked), token) != "" || !json.Valid(masked) {
				t.Errorf("%s: %.200s", name, masked)
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
}
