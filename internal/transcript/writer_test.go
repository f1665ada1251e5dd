package transcript_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/secret"
	"managoat/internal/transcript"
	"managoat/internal/transcript/transcripttest"
)

// bell counts what followers are told.
type bell struct{ rung atomic.Int64 }

func (b *bell) Conversation(uuid.UUID, uuid.UUID) { b.rung.Add(1) }

func newWriter(tb testing.TB, d *db.DB) *transcript.Writer {
	tb.Helper()
	return transcript.NewWriter(d, &bell{})
}

func soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

func note(text string) transcript.Row {
	return transcript.Row{Type: transcript.Notice, Body: transcript.NoticeBody{Code: "test", Text: text}}
}

func said(message, text string) transcript.Row {
	return transcript.Row{Type: transcript.Message, Body: transcript.MessageBody{MessageID: message, Text: text}}
}

func printed(stream, text string) transcript.Row {
	return transcript.Row{Type: transcript.ToolOutput, Body: transcript.ToolOutputBody{ID: "call", Stream: stream, Text: text}}
}

type row struct {
	Seq  int64
	Type string
	Body json.RawMessage
	Raw  string
}

func (r row) text(tb testing.TB) string {
	tb.Helper()
	var b struct{ Text string }
	if err := json.Unmarshal(r.Body, &b); err != nil {
		tb.Fatal(err)
	}
	return b.Text
}

// rows reads a transcript as the owner of the database, past every rule, and checks that its numbers have no gap.
func rows(tb testing.TB, d *dbtest.Database, id uuid.UUID) []row {
	tb.Helper()
	got, err := d.Owner(tb).Query(context.Background(), "select seq, type, body, raw from events where conversation_id = $1 order by seq", id)
	if err != nil {
		tb.Fatal(err)
	}
	all, err := pgx.CollectRows(got, pgx.RowToStructByPos[row])
	if err != nil {
		tb.Fatal(err)
	}
	for i, r := range all {
		if r.Seq != int64(i+1) {
			tb.Fatalf("row %d has the number %d", i+1, r.Seq)
		}
	}
	return all
}

// held locks the counter of a transcript until release is called.
func held(tb testing.TB, d *dbtest.Database, id uuid.UUID) (release func()) {
	tb.Helper()
	tx, err := d.Owner(tb).Begin(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "select 1 from conversation_heads where conversation_id = $1 for update", id); err != nil {
		tb.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil {
			tb.Error(err)
		}
	}
}

// Sequence numbers that are taken in one order and committed in another let a follower's cursor pass over a row. The
// counter's lock makes the second wait for the first, and a transaction that fails leaves no gap.
func TestTheOrderOfNumbersIsTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tenantID := d.Account(t)
	id := transcripttest.Conversation(t, d, tenantID)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	first, second := make(chan error, 1), make(chan error, 1)
	wrote, commit := make(chan struct{}), make(chan error)
	go func() {
		first <- d.InTenant(ctx, tenantID, func(tx db.Tx) error {
			if err := w.AppendTx(ctx, tx, tenantID, id, note("first")); err != nil {
				return err
			}
			if err := tx.Exec(ctx, "select 1"); err != nil { // sends the row too
				return err
			}
			close(wrote)
			return <-commit
		})
	}()
	<-wrote
	go func() {
		err := w.Append(ctx, tenantID, id, note("second"))
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("the second row was committed before the first: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	commit <- nil
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := d.InTenant(ctx, tenantID, func(tx db.Tx) error {
		if err := w.AppendTx(ctx, tx, tenantID, id, note("never")); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if err := w.Append(ctx, tenantID, id, note("third")); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(ctx, tenantID, uuid.New(), note("nowhere")); err == nil {
		t.Fatal("a row of a conversation that is not there was taken")
	}
	got := rows(t, d, id)
	if len(got) != 3 || got[0].text(t) != "first" || got[1].text(t) != "second" || got[2].text(t) != "third" {
		t.Fatalf("%+v", got)
	}
}

// A conversation's own row is locked "for update" by whoever changes it, which also blocks the transcript's foreign key:
// a writer that waited for it with the counter in hand would deadlock with the changer's own row of the transcript.
func TestALockedConversationRowNeitherBlocksNorDeadlocks(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tenantID := d.Account(t)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	ids := transcripttest.Conversations(t, d, tenantID, 12)
	var wg sync.WaitGroup
	for _, id := range ids {
		for range 10 {
			wg.Go(func() {
				err := d.InTenant(ctx, tenantID, func(tx db.Tx) error {
					if err := tx.Exec(ctx, "select 1 from conversations where id = $1 for update", id); err != nil {
						return err
					}
					return w.AppendTx(ctx, tx, tenantID, id, note("changed"))
				})
				if err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if err := w.Append(ctx, tenantID, id, note("said")); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, id := range ids {
		if n := len(rows(t, d, id)); n != 20 {
			t.Fatalf("%d rows of 20", n)
		}
	}
	if n := deadlocks(t, d); n != 0 {
		t.Fatalf("%d deadlocks", n)
	}
}

func deadlocks(tb testing.TB, d *dbtest.Database) (n int64) {
	tb.Helper()
	if err := d.Owner(tb).QueryRow(context.Background(), "select deadlocks from pg_stat_database where datname = current_database()").Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// One NUL or lone surrogate in what a model says must not end the session.
func TestWhatJSONBRefusesIsStoredAllTheSame(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tenantID := d.Account(t)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	id := transcripttest.Conversation(t, d, tenantID)
	turn := uuid.New()
	in := json.RawMessage(`{"nul":"a\u0000b","lone":"\ud800","pair":"\ud83d\ude42","\u0000key\udfff":1,"huge":1e999999,"tiny":[1e-99999],"long":` +
		strings.Repeat("9", 200_000) + `,"escaped":"\\u0000","bytes":"` + "\xff" + `"}`)
	err := w.Append(ctx, tenantID, id,
		transcript.Row{Type: transcript.ToolCallType, Raw: "raw \x00 \xff", Body: transcript.ToolCallBody{ID: "i\x00d", Title: "t\x00", Input: in},
			Tool: &transcript.ToolCall{ID: "i\x00d", TurnID: turn, Title: "t\x00", Status: "running", Input: in}},
		note("a\x00b \\u0000 🙂 \xff"))
	if err != nil {
		t.Fatal(err)
	}
	got := rows(t, d, id)
	var b transcript.ToolCallBody
	if err := json.Unmarshal(got[0].Body, &b); err != nil {
		t.Fatal(err)
	}
	var stored json.RawMessage
	if err := d.Owner(t).QueryRow(ctx, "select input from tool_calls where turn_id = $1", turn).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []json.RawMessage{b.Input, stored} {
		var v map[string]any
		if err := json.Unmarshal(doc, &v); err != nil {
			t.Fatal(err)
		}
		if v["nul"] != "a\u2400b" || v["lone"] != "\uFFFD" || v["pair"] != "🙂" || v["\u2400key\uFFFD"] != 1.0 || v["huge"] != "1e999999" ||
			v["escaped"] != `\u0000` || v["bytes"] != "\uFFFD" {
			t.Errorf("%.300s", doc)
		}
	}
	if got[0].Raw != "raw \u2400 \uFFFD" || got[1].text(t) != "a\u2400b \\u0000 🙂 \uFFFD" {
		t.Errorf("%q, %q", got[0].Raw, got[1].text(t))
	}
}

// A megabyte of noise from a tool: a bounded number of rows, all of it text that PostgreSQL takes.
func TestRandomBytesMakeABoundedNumberOfRows(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tenantID := d.Account(t)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	id := transcripttest.Conversation(t, d, tenantID)
	noise := make([]byte, 1<<20)
	rand.Read(noise)
	text := transcript.NewGate(transcript.NewRedactor(secret.New("sk-something-secret"))).Stream()
	budget := transcript.NewBudget(64 << 10)
	show := func(s string) {
		if live := budget.Write(s); live != "" {
			if err := w.Append(ctx, tenantID, id, printed("stdout", live)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(noise) > 0 {
		n := min(997, len(noise))
		show(text.Write(noise[:n]))
		noise = noise[n:]
	}
	show(text.Flush())
	output, truncated := budget.Output()
	err := w.Append(ctx, tenantID, id, transcript.Row{Type: transcript.ToolResult,
		Body: transcript.ToolResultBody{ID: "call", Status: "completed", Output: output, OutputBytes: budget.Total(), Truncated: truncated}})
	if err != nil {
		t.Fatal(err)
	}
	got := rows(t, d, id)
	if len(got) > 70 {
		t.Errorf("%d rows", len(got))
	}
	if last := got[len(got)-1]; last.Type != transcript.ToolResult || !truncated {
		t.Errorf("%s, truncated %v", last.Type, truncated)
	}
}

// A model says half of a secret in one protocol line and the other half in the next: neither line shows it, both together
// would.
func TestProtocolLinesOfChunksDoNotShowASplitSecret(t *testing.T) {
	t.Parallel()
	const value = "sk-live-0123456789abcdefghijABCDEFGHIJ00"
	d := dbtest.New(t)
	tenantID := d.Account(t)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	id := transcripttest.Conversation(t, d, tenantID)
	g := transcript.NewGate(transcript.NewRedactor(secret.New(value)))
	text := g.Stream()
	chunk := func(shown, raw string) {
		t.Helper()
		line := g.JSON([]byte(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + raw + `"},"_meta":{"kept":true}}}}`))
		r := said("m", shown)
		r.Raw = string(line)
		if err := w.Append(ctx, tenantID, id, r); err != nil {
			t.Fatal(err)
		}
	}
	chunk(text.WriteString("the key is "+value[:20]), "the key is "+value[:20])
	chunk(text.WriteString(value[20:]+" ok"), value[20:]+" ok")
	all := ""
	for _, r := range rows(t, d, id) {
		all += string(r.Body) + r.Raw + "\n"
		if !strings.Contains(r.Raw, `"_meta":{"kept":true}`) || !strings.Contains(r.Raw, `"sessionId":"s"`) {
			t.Errorf("the line lost what was not text: %s", r.Raw)
		}
	}
	for i := 0; i+transcript.MinSecret <= len(value); i++ {
		if strings.Contains(all, value[i:i+transcript.MinSecret]) {
			t.Fatalf("%q is stored in %s", value[i:i+transcript.MinSecret], all)
		}
	}
	if !strings.Contains(all, `the key is `) || !strings.Contains(all, secret.Mask+" ok") {
		t.Fatal(all)
	}
}

// What is told after a turn has ended is told of no turn: it changes neither turns nor the conversation.
func TestMetadataOutsideATurnIsOfNoTurn(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tenantID := d.Account(t)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	id := transcripttest.Conversation(t, d, tenantID)
	state := func() (s string) {
		t.Helper()
		err := d.Owner(t).QueryRow(ctx, `select c.status || ' ' || c.turn_count || ' ' || (select count(*) from turns) || ' ' || (select count(*) from usage_entries)
			from conversations c where id = $1`, id).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := state()
	if err := w.Append(ctx, tenantID, id, transcript.Row{Type: transcript.Usage, Body: transcript.UsageBody{ContextUsed: 10, ContextSize: 100}}, note("info")); err != nil {
		t.Fatal(err)
	}
	if after := state(); after != before {
		t.Fatalf("%q became %q", before, after)
	}
	if n := len(rows(t, d, id)); n != 2 {
		t.Fatalf("%d rows", n)
	}
}

func TestAToolCallKeepsOneRowThatEveryUpdateCompletes(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tenantID := d.Account(t)
	w := newWriter(t, d.DB)
	ctx := soon(t)
	id := transcripttest.Conversation(t, d, tenantID)
	turn, exit, ms := uuid.New(), 3, int64(1250)
	call := func(kind string, c transcript.ToolCall) transcript.Row {
		c.ID, c.TurnID = "call", turn
		return transcript.Row{Type: kind, Body: struct{}{}, Tool: &c}
	}
	err := w.Append(ctx, tenantID, id, call(transcript.ToolCallType, transcript.ToolCall{Title: "ls", Kind: "execute", Status: "running", Input: json.RawMessage(`{"command":"ls"}`)}))
	if err != nil {
		t.Fatal(err)
	}
	err = w.Append(ctx, tenantID, id, printed("stdout", "x"), call(transcript.ToolResult, transcript.ToolCall{Status: "failed", ExitCode: &exit, DurationMS: &ms,
		OutputBytes: 1, Source: transcript.Source{ExitCode: transcript.Machine}}))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := d.Tenant(tenantID).ToolCalls(ctx, id, nil)
	if err != nil || len(calls) != 1 {
		t.Fatalf("%+v, %v", calls, err)
	}
	c := calls[0]
	if c.Title != "ls" || c.Kind != "execute" || c.Status != "failed" || *c.ExitCode != 3 || *c.DurationMs != 1250 || c.FirstSeq != 1 || c.LastSeq != 3 ||
		c.EndedAt == nil || string(c.Input) != `{"command": "ls"}` || !strings.Contains(string(c.Source), "machine") {
		t.Fatalf("%+v", c)
	}
}

// benchRows is how many rows a benchmark of writers appends, from how many conversations at once.
const (
	benchRows          = 6000
	benchConversations = 32
)

// BenchmarkAppend appends from many conversations at once, each row in a transaction of its own. Beside them a transaction
// is open that locks another one's counter (PostgreSQL alone is slower then: it cannot prune); ratio is with a row waiting
// for that one to without.
func BenchmarkAppend(b *testing.B) {
	d := dbtest.New(b)
	tenantID := d.Account(b)
	w := newWriter(b, d.DB)
	ids := transcripttest.Conversations(b, d, tenantID, benchConversations+1)
	stuck := ids[benchConversations]
	add := func(id uuid.UUID) {
		if err := w.Append(context.Background(), tenantID, id, note("a row of a usual length, such as an agent says in one breath")); err != nil {
			b.Error(err)
		}
	}
	rate := func() float64 {
		var next atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for _, id := range ids[:benchConversations] {
			wg.Go(func() {
				for next.Add(1) <= benchRows {
					add(id)
				}
			})
		}
		wg.Wait()
		return benchRows / time.Since(began).Seconds()
	}
	rate() // warms up
	for b.Loop() {
		release := held(b, d, stuck)
		alone := rate()
		var waits sync.WaitGroup
		waits.Go(func() { add(stuck) })
		beside := rate()
		release()
		waits.Wait()
		b.ReportMetric(alone, "rows/s")
		b.ReportMetric(beside, "rows/s-beside-stuck")
		b.ReportMetric(beside/alone, "ratio")
	}
}
