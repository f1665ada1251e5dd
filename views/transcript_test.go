package views

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/PuerkitoBio/goquery"
	"github.com/a-h/templ"
)

func html(t testing.TB, c templ.Component) string {
	t.Helper()
	var out strings.Builder
	if err := c.Render(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func parse(t testing.TB, text string) *goquery.Document {
	t.Helper()
	doc, err := goquery.NewDocumentFromReader(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// apply does to a document what the swaps do in a browser. A target that is not there is a fragment that
// would be lost.
func apply(t testing.TB, doc *goquery.Document, fragments []Fragment) {
	t.Helper()
	for _, f := range fragments {
		target := doc.Find("#" + f.Target)
		if target.Length() != 1 {
			t.Fatalf("a fragment for #%s finds %d elements", f.Target, target.Length())
		}
		content := ""
		if f.Content != nil {
			content = html(t, f.Content)
		}
		switch f.Swap {
		case SwapAppend:
			target.AppendHtml(content)
		case SwapPrepend:
			target.PrependHtml(content)
		case SwapInner:
			target.SetHtml(content)
		case SwapMorph, SwapReplace:
			target.ReplaceWithHtml(content)
		case SwapDelete:
			target.Remove()
		default:
			t.Fatalf("unknown swap %q", f.Swap)
		}
	}
}

var start = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// randomRows is a plausible and untidy transcript: interleaved calls, results without a call, updates after
// the end, chunks that cut Markdown anywhere.
func randomRows(r *rand.Rand, n int) []TranscriptRow {
	pieces := []string{"word ", "**bold", "** ", "\n", "\n\n", "- item\n", "1", ". one\n", "```", "go\n", "x := 1\n", "> quote\n", "`", "|a|b|\n|-|-|\n", "# head\n", "<b>", "é", "\x1b[31m"}
	text := func() string {
		var out strings.Builder
		for range 1 + r.IntN(4) {
			out.WriteString(pieces[r.IntN(len(pieces))])
		}
		return out.String()
	}
	code := func() *int {
		if r.IntN(3) == 0 {
			return nil
		}
		c := r.IntN(2)
		return &c
	}
	var rows []TranscriptRow
	turn, at := 1, start
	for i := range n {
		at = at.Add(time.Duration(r.IntN(900)) * time.Millisecond)
		id := fmt.Sprint("call ", r.IntN(4))
		var body RowBody
		switch r.IntN(20) {
		case 0:
			body = PromptBody{Text: text(), By: "You"}
		case 1, 2, 3, 4, 5, 6:
			body = MessageBody{ID: fmt.Sprint(r.IntN(2)), Text: text()}
		case 7, 8:
			body = ThoughtBody{Text: text()}
		case 9:
			body = PlanBody{Entries: []PlanEntry{{Text: text(), State: StateDone}, {Text: "next", State: StateRunning}}}
		case 10:
			body = ToolCallBody{ID: id, Title: text(), Kind: "execute", Input: []InputField{{Name: "command", Value: text()}}}
		case 11, 12:
			body = ToolOutputBody{ID: id, Text: text()}
		case 13:
			body = ToolResultBody{ID: id, Status: []string{"completed", "failed", "interrupted"}[r.IntN(3)], ExitCode: code(), Output: strings.Repeat(text(), r.IntN(60)), Duration: time.Second}
		case 14:
			body = PermissionRequestBody{ID: fmt.Sprint(r.IntN(3)), Title: "Run", Detail: text(), Action: "/x", Options: []PermissionOption{{ID: "a", Name: "Allow", Kind: "allow_once"}}}
		case 15:
			body = PermissionResolvedBody{ID: fmt.Sprint(r.IntN(3)), OptionID: []string{"a", "b"}[r.IntN(2)], By: "you"}
		case 16:
			body = StageBody{Stage: []string{"wake", "packages", "turn", "request", "unknown"}[r.IntN(5)], State: []string{"started", "done", "failed", "interrupted"}[r.IntN(4)], Reason: "reason", Output: text()}
			if s := body.(StageBody); s.Stage == "turn" && s.State != "started" {
				turn++
			}
		case 17:
			body = UsageBody{Model: "m", Input: int64(r.IntN(9000)), Output: 2}
		case 18:
			body = NoticeBody{Text: text()}
		case 19:
			body = ErrorBody{Code: "code", Message: text()}
		}
		rows = append(rows, TranscriptRow{Seq: int64(i + 1), Turn: turn, At: at, Body: body})
	}
	return rows
}

func TestAStreamEndsInWhatThePageWouldShow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 1))
		rows := randomRows(r, 150)
		whole := NewTranscript("Builder", "/diagnostics")
		whole.Append(rows)
		want := html(t, parse2(t, html(t, whole.Items())))

		// The page holds the first rows; the rest streams in, in portions of any size.
		live := NewTranscript("Builder", "/diagnostics")
		shown := r.IntN(len(rows))
		live.Append(rows[:shown])
		doc := parse(t, `<ol id="`+IDTranscript+`">`+html(t, live.Items())+`</ol>`)
		for rest := rows[shown:]; len(rest) > 0; {
			n := 1 + r.IntN(min(7, len(rest)))
			apply(t, doc, live.Append(rest[:n]))
			rest = rest[n:]
		}
		got, err := doc.Find("#" + IDTranscript).Html()
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Fatalf("seed %d: the page and the stream part at\n page   …%s\n stream …%s", seed, clip(want, at), clip(got, at))
		}
	}
}

// parse2 is HTML as a parser writes it back.
func parse2(t testing.TB, text string) templ.Component {
	inner, err := parse(t, "<ol>"+text+"</ol>").Find("ol").First().Html()
	if err != nil {
		t.Fatal(err)
	}
	return plainHTML(inner)
}

func plainHTML(text string) templ.Component { return templ.ComponentFunc(writeAs(text)) }

func clip(s string, at int) string { return s[max(0, at-120):min(len(s), at+200)] }

func items(t testing.TB, rows ...TranscriptRow) *goquery.Document {
	t.Helper()
	tr := NewTranscript("Builder", "/diagnostics")
	for i := range rows {
		if rows[i].Seq == 0 {
			rows[i].Seq = int64(i + 1)
		}
		if rows[i].Turn == 0 {
			rows[i].Turn = 1
		}
		if rows[i].At.IsZero() {
			rows[i].At = start.Add(time.Duration(i) * time.Second)
		}
	}
	tr.Append(rows)
	return parse(t, "<ol>"+html(t, tr.Items())+"</ol>")
}

func text(s *goquery.Selection) string { return strings.Join(strings.Fields(s.Text()), " ") }

func TestChunksOfAMessageAreOneMessage(t *testing.T) {
	t.Parallel()
	doc := items(t,
		TranscriptRow{Body: MessageBody{ID: "a", Text: "one **tw"}}, TranscriptRow{Body: MessageBody{ID: "a", Text: "o**"}},
		TranscriptRow{Body: UsageBody{Input: 1}}, TranscriptRow{Body: MessageBody{ID: "a", Text: " three"}},
		TranscriptRow{Body: MessageBody{ID: "b", Text: "other"}},
	)
	if n := doc.Find("li.said").Length(); n != 2 {
		t.Fatalf("%d messages", n)
	}
	if got := text(doc.Find("#e-1-md")); got != "one two three" || doc.Find("#e-1 strong").Length() != 1 {
		t.Fatalf("%q", got)
	}
	if doc.Find(".said .by").Length() != 1 {
		t.Fatal("the agent is named once in a turn")
	}
}

func TestACommandWithoutAnExitCodeIsNotASuccess(t *testing.T) {
	t.Parallel()
	zero, one := 0, 1
	for _, c := range []struct {
		name   string
		call   ToolCallBody
		result ToolResultBody
		class  string
		want   string
	}{
		{"exit 0", ToolCallBody{ID: "x", Kind: "execute"}, ToolResultBody{ID: "x", Status: "completed", ExitCode: &zero}, "ok", "exit 0"},
		{"exit 1 although completed", ToolCallBody{ID: "x", Kind: "execute"}, ToolResultBody{ID: "x", Status: "completed", ExitCode: &one}, "fail", "exit 1"},
		{"no exit code", ToolCallBody{ID: "x", Kind: "execute"}, ToolResultBody{ID: "x", Status: "completed"}, "fail", "no exit code"},
		{"signal", ToolCallBody{ID: "x", Kind: "execute"}, ToolResultBody{ID: "x", Status: "failed", Signal: "KILL"}, "fail", "signal KILL"},
		{"a read has none", ToolCallBody{ID: "x", Kind: "read"}, ToolResultBody{ID: "x", Status: "completed"}, "ok", ""},
		{"interrupted", ToolCallBody{ID: "x", Kind: "execute"}, ToolResultBody{ID: "x", Status: "interrupted"}, "off", ""},
	} {
		doc := items(t, TranscriptRow{Body: c.call}, TranscriptRow{Body: c.result})
		row := doc.Find("#e-1 summary")
		if !row.HasClass(c.class) || text(row.Find(".note")) != c.want {
			t.Errorf("%s: class %q, note %q", c.name, row.AttrOr("class", ""), text(row.Find(".note")))
		}
	}
}

func TestEveryRowOfAToolCallIsSeen(t *testing.T) {
	t.Parallel()
	one := 1
	doc := items(t,
		TranscriptRow{Body: ToolCallBody{ID: "x", Kind: "execute", Title: "`make`", Input: []InputField{{"command", "make all"}, {"timeout", "60"}}}},
		TranscriptRow{Body: ToolOutputBody{ID: "x", Text: "building\n"}},
		TranscriptRow{Body: ToolResultBody{ID: "x", Status: "failed", ExitCode: &one, Duration: 3400 * time.Millisecond, Output: strings.Repeat("line\n", 400) + "last words\n", OutputBytes: 120_314, Truncated: true, FullLogPath: "~/.managoat/logs/x.log", Source: ToolSource{"machine", "machine", "protocol"}}},
		TranscriptRow{Body: ToolResultBody{ID: "unheard of", Status: "completed", Output: "surprise"}},
	)
	if doc.Find("li.tool").Length() != 2 {
		t.Fatal("a result without a call must be a row of its own")
	}
	all := text(doc.Find("#e-1"))
	for _, want := range []string{"Run make all", "exit 1", "3.4 s", "Commandmake all", "timeout60", "… 301 lines not shown …", "last words", "120.3 kB printed", "Kept: head and tail", "~/.managoat/logs/x.log", "Output said by the machine, exit code by the machine, duration by the runtime", "event 1"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in %q", want, all)
		}
	}
	if got := text(doc.Find("#e-1 .peek")); !strings.HasSuffix(got, "last words") {
		t.Errorf("the closed row of a failure shows its last lines, got %q", got)
	}
}

func TestAWaitingRequestCanBeAnsweredAndItsAnswerStays(t *testing.T) {
	t.Parallel()
	ask := PermissionRequestBody{ID: "p", Title: "Run a command", Detail: "rm -rf dist", Action: "/answer", Options: []PermissionOption{{"yes", "Allow once", "allow_once"}, {"no", "Deny", "reject_once"}}}
	doc := items(t, TranscriptRow{Body: ask})
	if n := doc.Find(`form[action="/answer"][method=post] button[name=option_id]`).Length(); n != 2 {
		t.Fatalf("%d answers", n)
	}
	doc = items(t, TranscriptRow{Body: ask}, TranscriptRow{Body: PermissionResolvedBody{ID: "p", By: "policy auto_allow", OptionID: "yes"}})
	if doc.Find("form").Length() != 0 || !strings.Contains(text(doc.Find("#e-1")), "Allowed: Run a command rm -rf dist policy auto_allow") {
		t.Fatalf("%q", text(doc.Find("#e-1")))
	}
}

func TestTheEndOfATurnSumsItsCalls(t *testing.T) {
	t.Parallel()
	doc := items(t,
		TranscriptRow{Body: UsageBody{Model: "m", Source: "own", Input: 14_102, Output: 811}},
		TranscriptRow{Body: UsageBody{Model: "m", Source: "own", Input: 4_102, Output: 311, Attempt: 2}},
		TranscriptRow{Body: StageBody{Stage: "turn", State: "failed", Code: "max_tokens", Duration: 72 * time.Second}},
	)
	all := text(doc.Find("li"))
	for _, want := range []string{"Turn 1 failed", "max_tokens", "1 min 12 s", "18,204 in · 1,122 out · m · own key", "Copy diagnostics", "2 model calls", "attempt 2"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in %q", want, all)
		}
	}
}

func TestInputFieldsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for input, want := range map[string][]InputField{
		`{"z": "text\nlines", "a": {"b": [1, 2]}, "n": null, "t": true}`: {{"z", "text\nlines"}, {"a", `{"b":[1,2]}`}, {"n", ""}, {"t", "true"}},
		`"just text"`: {{"", "just text"}},
		`[1, 2]`:      {{"", "[1,2]"}},
		`null`:        nil,
		``:            nil,
	} {
		if got := InputFields(json.RawMessage(input)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s gives %q, want %q", input, got, want)
		}
	}
}

func TestLongOutputKeepsItsEnds(t *testing.T) {
	t.Parallel()
	parts := headTail(strings.Repeat("x\n", 10_000))
	if len(parts) != 3 || parts[1].gap != "… 9,900 lines not shown …" {
		t.Fatalf("%d parts, gap %q", len(parts), parts[1].gap)
	}
	if got := clipLines(strings.Repeat("é", 5000) + "\nshort\n"); len(got) > 2100 || !strings.Contains(got, "more\nshort\n") {
		t.Fatalf("%d bytes: …%s", len(got), got[len(got)-40:])
	}
	if tail, cut := lastLines("a\nb\nc\n\n", 2); tail != "b\nc" || cut != 1 {
		t.Fatalf("%q, %d", tail, cut)
	}
}

// Ids of items must not collide, whatever ids the rows carry.
func TestIdsOfItemsAreTheirOwn(t *testing.T) {
	t.Parallel()
	doc := items(t,
		TranscriptRow{Turn: 1, Body: ToolCallBody{ID: "x"}}, TranscriptRow{Turn: 1, Body: ToolResultBody{ID: "x", Status: "completed"}},
		TranscriptRow{Turn: 2, Body: ToolCallBody{ID: "x"}}, TranscriptRow{Turn: 2, Body: ToolCallBody{ID: `"><b id="e-1">`}},
	)
	var ids []string
	doc.Find("[id]").Each(func(_ int, s *goquery.Selection) { ids = append(ids, s.AttrOr("id", "")) })
	slices.Sort(ids)
	if !reflect.DeepEqual(ids, []string{"e-1", "e-3", "e-4"}) {
		t.Fatalf("%q", ids)
	}
}
