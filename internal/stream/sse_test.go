package stream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/transcript"
)

// serve is an SSE endpoint as the edge has them.
func serve(tb testing.TB, p *process, tenantID, id uuid.UUID, change ...func(*http.Server)) string {
	tb.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/plain" {
			fmt.Fprint(w, "plain")
			return
		}
		items := p.reader.Follow(r.Context(), stream.Query{TenantID: tenantID, ConversationID: id, After: stream.Cursor(r, 0), Wait: r.URL.Query().Get("wait") != "false"})
		err := stream.ServeSSE(w, r, items, func(i stream.Item) (stream.Frame, bool, error) {
			e := transcript.Wire(i.Event, transcript.View{Raw: true})
			data, err := json.Marshal(e)
			return stream.Frame{ID: e.Seq, Event: e.Kind, Data: data}, true, err
		})
		if refusal.Is(err, refusal.NotFound) {
			http.Error(w, "not found", http.StatusNotFound)
		} else if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	for _, fn := range change {
		fn(srv.Config)
	}
	srv.Start()
	tb.Cleanup(srv.Close)
	return srv.URL
}

// frame is what a client reads.
type frame struct {
	id, event, comment string
	data               transcript.Event
}

// reading is a connection that somebody reads frames from.
type reading struct {
	tb   testing.TB
	resp *http.Response
	r    *bufio.Reader
	cut  context.CancelFunc
}

func get(tb testing.TB, url, lastID string) *reading {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	g := &reading{tb, resp, bufio.NewReader(resp.Body), func() { cancel(); resp.Body.Close() }}
	tb.Cleanup(g.cut)
	return g
}

// next reads a frame; false at the end of the stream.
func (g *reading) next() (f frame, ok bool) {
	g.tb.Helper()
	for {
		line, err := g.r.ReadString('\n')
		if err == io.EOF {
			return frame{}, false
		}
		if err != nil {
			g.tb.Fatal(err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "" && f.id+f.event+f.comment != "":
			return f, true
		case strings.HasPrefix(line, ": "):
			f.comment = line[2:]
		case strings.HasPrefix(line, "id: "):
			f.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			f.event = line[7:]
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[6:]), &f.data); err != nil {
				g.tb.Fatal(err)
			}
		}
	}
}

// row reads up to the next row.
func (g *reading) row() frame {
	g.tb.Helper()
	for {
		f, ok := g.next()
		if !ok {
			g.tb.Fatal("the stream ended")
		}
		if f.id != "" {
			return f
		}
	}
}

func (f frame) said() string { return said(transcript.Stored{Body: f.data.Body}) }

func (p *process) write(tb testing.TB, tenantID, id uuid.UUID, from, to int) {
	tb.Helper()
	for i := from; i < to; i++ {
		if err := p.writer.Append(context.Background(), tenantID, id, notice(i)); err != nil {
			tb.Error(err)
		}
	}
}

// A client that is cut again and again, by header and by query, sees every row once.
func TestACutStreamResumesByHeaderAndByQuery(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	url := serve(t, p, tenantID, id)
	const total = 60
	go p.write(t, tenantID, id, 0, total)
	var got []string
	last := ""
	for round := 0; len(got) < total; round++ {
		at, header := url, last
		if last != "" && round%2 == 0 {
			at, header = url+"?after="+last, ""
		}
		g := get(t, at, header)
		for n := 0; n < 7 && len(got) < total; n++ {
			f := g.row()
			last = f.id
			got = append(got, f.said())
		}
		g.cut()
	}
	inOrder(t, got, 0)
}

func TestOfTwoCursorsTheLargerWins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header, query string
		want          int64
	}{{"", "", -7}, {"5", "", 5}, {"", "5", 5}, {"5", "9", 9}, {"9", "5", 9}, {"x", "3", 3}, {"-4", "", -7}, {"1.5", "99999999999999999999", -7}, {"0", "", 0}} {
		r := httptest.NewRequest("GET", "/?after="+c.query, nil)
		if c.header != "" {
			r.Header.Set("Last-Event-ID", c.header)
		}
		if got := stream.Cursor(r, -7); got != c.want {
			t.Errorf("header %q, query %q: %d, want %d", c.header, c.query, got, c.want)
		}
	}
}

// What is written while nobody is connected comes with the next connection, once.
func TestWhatHappensWhileAClientIsAwayIsNotLost(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	url := serve(t, p, tenantID, id)
	p.write(t, tenantID, id, 0, 3)
	g := get(t, url, "")
	last := ""
	for range 3 {
		last = g.row().id
	}
	g.cut()
	p.write(t, tenantID, id, 3, 53)
	var got []string
	// A connection that dies before its first frame must not cost the cursor.
	get(t, url, last).cut()
	g = get(t, url, last)
	for range 50 {
		got = append(got, g.row().said())
	}
	inOrder(t, got, 3)
	p.write(t, tenantID, id, 53, 54)
	if f := g.row(); f.said() != "53" {
		t.Fatalf("then came %+v", f)
	}
}

// A heartbeat or another frame that is no row must not move a client's cursor: it carries no id.
func TestOnlyRowsCarryIDs(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	p.hub.SetPace(time.Millisecond, time.Minute)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	url := serve(t, p, tenantID, id)
	go p.write(t, tenantID, id, 0, 40)
	g := get(t, url, "12345") // of another stream: a reset comes first
	if f, _ := g.next(); f.event != "reset" || f.id != "" {
		t.Fatalf("%+v", f)
	}
	last, beats := "", 0
	var got []string
	for len(got) < 20 || beats < 3 {
		f, ok := g.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		if f.comment != "" {
			beats++
			if f.id != "" || f.event != "" || f.comment != "heartbeat" {
				t.Fatalf("a heartbeat of %+v", f)
			}
			continue
		}
		if n, err := strconv.Atoi(f.id); err != nil || n != len(got)+1 || f.data.Seq != int64(n) {
			t.Fatalf("row %d has the id %q", len(got), f.id)
		}
		last = f.id
		got = append(got, f.said())
	}
	g.cut()
	g = get(t, url, last)
	for len(got) < 40 {
		got = append(got, g.row().said())
	}
	inOrder(t, got, 0)
}

// Timeouts of the server are for requests that end. A stream outlives them by far, idle or not, and the connection of one
// that ended serves another request.
func TestAStreamOutlivesTheServersTimeouts(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	p.hub.SetPace(40*time.Millisecond, time.Minute)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	url := serve(t, p, tenantID, id, func(s *http.Server) {
		s.ReadTimeout, s.WriteTimeout, s.ReadHeaderTimeout = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	})
	g := get(t, url, "")
	began := time.Now()
	for time.Since(began) < time.Second {
		if f, ok := g.next(); !ok || f.comment != "heartbeat" {
			t.Fatalf("after %s came %+v, %v", time.Since(began), f, ok)
		}
	}
	p.write(t, tenantID, id, 0, 1)
	if f := g.row(); f.said() != "0" {
		t.Fatalf("%+v", f)
	}
	var reused bool
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for _, path := range []string{"/?wait=false", "/plain"} {
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		reused = path == "/plain" && string(body) == "plain"
	}
	if !reused {
		t.Fatal("the connection did not serve another request")
	}
}

// A proxy must neither buffer nor compress nor cache a stream, and its headers come before its first event.
func TestAStreamsHeadersComeAtOnceAndForbidBuffering(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	url := serve(t, p, tenantID, conversation(t, d, tenantID))
	g := get(t, url, "") // returns with the headers: nothing else is said yet
	for name, want := range map[string]string{"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store, no-transform",
		"X-Accel-Buffering": "no", "Content-Encoding": "", "Content-Length": ""} {
		if got := g.resp.Header.Get(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	resp, err := http.Get(serve(t, p, tenantID, uuid.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Fatalf("a stream of nothing answered %s", resp.Status)
	}
}

// A fresh client that replays from the start can show the whole conversation, prompts included.
func TestAReplayHoldsBothSidesOfTheConversation(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	err := p.writer.Append(context.Background(), tenantID, id,
		transcript.Row{Type: transcript.Prompt, Body: transcript.PromptBody{TurnNumber: 1, Text: "hello?"}},
		transcript.Row{Type: transcript.Message, Body: transcript.MessageBody{MessageID: "m", Text: "hello!"}},
		transcript.Row{Type: transcript.Stage, Body: transcript.StageBody{Stage: "turn", State: "done"}})
	if err != nil {
		t.Fatal(err)
	}
	g := get(t, serve(t, p, tenantID, id)+"?wait=false", "")
	prompt, message, done := g.row(), g.row(), g.row()
	if prompt.event != "stage" || prompt.data.Stage != "turn" || prompt.data.State != "started" || prompt.said() != "hello?" || !strings.Contains(prompt.data.Data, "hello?") {
		t.Errorf("%+v", prompt)
	}
	if message.event != "output" || message.data.Stream != "acp" || !strings.Contains(message.data.Data, "agent_message_chunk") {
		t.Errorf("%+v", message)
	}
	if done.data.Stage != "turn" || done.data.State != "done" {
		t.Errorf("%+v", done)
	}
	if f, ok := g.next(); !ok || f.event != "end" || f.id != "" {
		t.Errorf("the end is %+v", f)
	}
	if f, ok := g.next(); ok {
		t.Errorf("after the end came %+v", f)
	}
}

// A reader that takes nothing holds up neither who writes nor who reads beside it.
func TestASlowReaderDelaysNobody(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stopped, wake := make(chan struct{}), make(chan struct{})
	slow := make(chan []string)
	go func() {
		var got []string
		for item, err := range p.reader.Follow(ctx, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}) {
			if err != nil {
				t.Error(err)
				break
			}
			if item.Kind != stream.Row {
				continue
			}
			if got = append(got, item.Event.Type); len(got) == 1 {
				close(stopped)
				<-wake
			}
			if len(got) == 101 {
				break
			}
		}
		slow <- got
	}()
	big := strings.Repeat("x", 32<<10)
	write := func() {
		t.Helper()
		if err := p.writer.Append(ctx, tenantID, id, transcript.Row{Type: transcript.Message, Body: transcript.MessageBody{Text: big}}); err != nil {
			t.Fatal(err)
		}
	}
	write()
	<-stopped
	for range 100 { // more than is kept for those behind
		write()
	}
	if n := len(collect(t, p, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}, 101)); n != 101 {
		t.Fatal(n)
	}
	close(wake)
	if got := <-slow; len(got) != 101 {
		t.Fatalf("the slow reader got %d rows of 101", len(got))
	}
}

// A server that stops does not wait for its clients, and does not say end to them: they come back.
func TestAServerThatStopsEndsItsStreams(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	url := serve(t, p, tenantID, id)
	p.write(t, tenantID, id, 0, 1)
	g := get(t, url, "")
	g.row()
	p.stop()
	if f, ok := g.next(); ok {
		t.Fatalf("a server that stops said %+v, so that its client would not come back", f)
	}
}

// Rows behind the cursor are gone: what follows is not what the client is missing, and it is told so once.
func TestACursorInAPrunedRangeIsReset(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	p.write(t, tenantID, id, 0, 10)
	if _, err := d.Owner(t).Exec(context.Background(), "delete from events where conversation_id = $1 and seq <= 5", id); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[int64]string{0: "5 6 7 8 9", 3: "reset 5 6 7 8 9", 5: "5 6 7 8 9", 8: "8 9", 10: "", 11: "reset 5 6 7 8 9"} {
		var got []string
		for item, err := range p.reader.Follow(context.Background(), stream.Query{TenantID: tenantID, ConversationID: id, After: after}) {
			if err != nil {
				t.Fatal(err)
			}
			switch item.Kind {
			case stream.Reset:
				got = append(got, "reset")
			case stream.Row:
				got = append(got, said(item.Event))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("after %d came %q, want %q", after, strings.Join(got, " "), want)
		}
	}
}

// A stream over many and large rows comes page by page and whole, past rows that a filter leaves out.
func TestALongTranscriptIsReplayedWhole(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx := context.Background()
	var rows []transcript.Row
	for i := range 1700 {
		rows = append(rows, notice(i))
	}
	rows = append(rows, transcript.Row{Type: transcript.Message, Body: transcript.MessageBody{Text: strings.Repeat("é", 3<<20)}})
	for i := range 5 {
		rows = append(rows, transcript.Row{Type: transcript.Message, Body: transcript.MessageBody{Text: strings.Repeat(string(rune('a'+i)), 700<<10)}})
	}
	if err := p.writer.Append(ctx, tenantID, id, rows...); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]stream.Query{"all": {}, "filtered": {Types: []string{transcript.Message}}} {
		q.TenantID, q.ConversationID = tenantID, id
		want := len(rows)
		if name == "filtered" {
			want = 6
		}
		n := 0
		for item, err := range p.reader.Follow(ctx, q) {
			if err != nil {
				t.Fatal(err)
			}
			if item.Kind == stream.Row {
				n++
			}
		}
		list, more, err := p.reader.List(ctx, q, want)
		if err != nil || more || n != want || len(list) != want {
			t.Errorf("%s: %d followed, %d listed of %d, more %v, %v", name, n, len(list), want, more, err)
		}
		if list, more, err = p.reader.List(ctx, q, want-1); err != nil || !more || len(list) != want-1 {
			t.Errorf("%s: %d listed of %d, more %v, %v", name, len(list), want-1, more, err)
		}
	}
}

// What no notification told is found by looking.
func TestARowThatNobodyToldOfIsFoundByLooking(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	p := newProcess(t, d)
	p.hub.SetPace(time.Minute, 20*time.Millisecond)
	tenantID := d.Account(t)
	id := conversation(t, d, tenantID)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wrote := false
	for item, err := range p.reader.Follow(ctx, stream.Query{TenantID: tenantID, ConversationID: id, Wait: true}) {
		if err != nil {
			t.Fatal(err)
		}
		switch item.Kind {
		case stream.Row:
			if !wrote {
				wrote = true // once more, when the room stands and has looked
				if err := untold(ctx, p, tenantID, id); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err := p.InTenant(ctx, tenantID, func(tx db.Tx) error {
				return tx.Exec(ctx, "update conversations set status = 'terminated' where id = $1", id)
			}); err != nil {
				t.Fatal(err)
			}
		case stream.Open:
			if err := untold(ctx, p, tenantID, id); err != nil {
				t.Fatal(err)
			}
		case stream.End:
			return
		}
	}
	t.Fatal("the stream stopped without saying end")
}

// untold commits a row and announces it to nobody.
func untold(ctx context.Context, p *process, tenantID, id uuid.UUID) error {
	return p.InTenant(ctx, tenantID, func(tx db.Tx) error {
		return transcript.NewWriter(p.DB, nil).AppendTx(ctx, tx, tenantID, id, notice(0))
	})
}

// A frame is one line of data a line, whatever stands in it, and cannot forge another field.
func TestAFrameCannotBeForgedByItsData(t *testing.T) {
	t.Parallel()
	items := func(yield func(stream.Item, error) bool) {
		yield(stream.Item{Kind: stream.Row}, nil)
	}
	w := httptest.NewRecorder()
	err := stream.ServeSSE(w, httptest.NewRequest("GET", "/", nil), items, func(stream.Item) (stream.Frame, bool, error) {
		return stream.Frame{ID: 7, Event: "output", Data: []byte("a\r\nid: 99\rid: 98\n\nevent: end")}, true, nil
	})
	want := "id: 7\nevent: output\ndata: a\ndata: id: 99\ndata: id: 98\ndata: \ndata: event: end\n\n"
	if got := w.Body.String(); err != nil || got != want {
		t.Fatalf("%q, %v", got, err)
	}
}
