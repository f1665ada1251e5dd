package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"managoat/static"
	"managoat/views"
	"managoat/views/browsertest"
)

func sent(t *testing.T, path string) int {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	static.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: status %d", path, w.Code)
	}
	return w.Body.Len()
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// Every page, in both themes, on a desk and on a phone: nothing sticks out sideways, nothing is refused by
// the content security policy, no script fails.
func TestPagesFitAndLoadCleanly(t *testing.T) {
	t.Parallel()
	b := browsertest.New(t)
	b.Dark(true)
	base := serve(t, handler(moment))
	for _, e := range examples(moment) {
		b.Open(base + e.path)
		for _, width := range []int64{390, 800, 1280} {
			b.Size(width, 844)
			if over := b.Text("String(Math.max(0, document.documentElement.scrollWidth - window.innerWidth))"); over != "0" {
				t.Errorf("%s is %s px too wide at %d px", e.path, over, width)
			}
			if small := b.Text(tooSmall); small != "" {
				t.Errorf("%s: too small to touch at %d px: %s", e.path, width, small)
			}
		}
		for _, line := range b.Complaints() {
			t.Errorf("%s: %s", e.path, line)
		}
	}
}

// tooSmall lists the controls of a phone's page that a finger would miss.
const tooSmall = `innerWidth > 720 ? "" : [...document.querySelectorAll("button, .btn, input:not([type=checkbox], [type=radio], [type=hidden]), select")]
	.filter(n => n.checkVisibility() && !n.closest("details:not([open])") && n.getBoundingClientRect().height < 44 && !n.classList.contains("link"))
	.map(n => n.outerHTML.slice(0, 80)).join(" | ")`

// live is a conversation page whose later rows come by stream, one a message; the stream breaks where told.
type live struct {
	rows   []views.TranscriptRow
	shown  int          // rows on the page when it loads
	breaks map[int]bool // after these rows the connection is cut
	mu     sync.Mutex
	seen   []int64 // the cursors of connections
	open   chan struct{}
}

func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, static.Prefix) {
		static.Handler().ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Security-Policy", policy)
	transcript := views.NewTranscript("Builder", "/conversations/c1/diagnostics")
	switch r.URL.Path {
	case "/page", "/whole":
		p := conversation(moment)
		p.EarlierURL = ""
		n := l.shown
		if r.URL.Path == "/whole" {
			n = len(l.rows)
		} else {
			p.Stream = fmt.Sprintf("/stream?after=%d", l.rows[n-1].Seq)
		}
		transcript.Append(l.rows[:n])
		p.Transcript = transcript
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = views.Conversation(p).Render(r.Context(), w)
	case "/stream":
		after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
		if last, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
			after = max(after, last)
		}
		l.mu.Lock()
		l.seen = append(l.seen, after)
		first := len(l.seen) == 1
		l.mu.Unlock()
		if first { // the very first connection is refused: the page tries again
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		stream := http.NewResponseController(w)
		_, _ = w.Write([]byte(views.Beat))
		for i, row := range l.rows {
			fragments := transcript.Append(l.rows[i : i+1])
			if row.Seq <= after {
				continue
			}
			if len(fragments) > 0 {
				_ = views.WriteMessage(r.Context(), w, fmt.Sprint(row.Seq), fragments)
				_ = stream.Flush()
			}
			l.mu.Lock()
			cut := l.breaks[i]
			delete(l.breaks, i)
			l.mu.Unlock()
			if cut {
				panic(http.ErrAbortHandler)
			}
			if l.open != nil && i == len(l.rows)-2 {
				select {
				case <-l.open:
				case <-r.Context().Done():
					return
				}
			}
		}
		_ = views.WriteMessage(r.Context(), w, "", []views.Fragment{views.Announce("all rows are here")})
		_, _ = w.Write([]byte(views.End))
		_ = stream.Flush()
	}
}

// content is the transcript without what the clock of the browser writes into it.
const content = `(() => { const c = document.getElementById("transcript").cloneNode(true);
	for (const n of c.querySelectorAll("[data-since], [data-until], time")) n.textContent = "";
	for (const n of c.querySelectorAll("*")) { n.removeAttribute("data-htmx-powered"); n.removeAttribute("open"); }
	c.normalize(); return c.innerHTML; })()`

func TestALiveTranscriptEqualsThePageEvenWhenItsStreamBreaks(t *testing.T) {
	t.Parallel()
	b := browsertest.New(t)
	rows := storyRows(moment.Add(-5 * time.Minute))
	base := serve(t, &live{rows: rows, shown: 9, breaks: map[int]bool{14: true, 15: true, 31: true}})
	b.Open(base + "/page")
	// What a person opened stays open while its item changes.
	b.Until(`document.querySelector(".thought details")`)
	b.Click(".thought summary")
	b.Until(`document.getElementById("announce").textContent.includes("all rows")`)
	streamed := b.Text(content)
	if !b.True(`document.querySelector(".thought details").open`) {
		t.Error("a thought that was opened has closed")
	}
	if !b.True(`document.getElementById("live").textContent === ""`) {
		t.Error("the page still says that it reconnects")
	}
	b.Open(base + "/whole")
	if whole := b.Text(content); streamed != whole {
		at := 0
		for at < min(len(streamed), len(whole)) && streamed[at] == whole[at] {
			at++
		}
		t.Fatalf("stream and page part:\n stream …%s\n page   …%s", around(streamed, at), around(whole, at))
	}
}

func around(s string, at int) string { return s[max(0, at-150):min(len(s), at+250)] }

// Reading further up is not disturbed by new rows; at the bottom one stays at the bottom.
func TestNewRowsNeverMoveWhatOneReads(t *testing.T) {
	t.Parallel()
	b := browsertest.New(t)
	b.Size(900, 500)
	rows := storyRows(moment.Add(-5 * time.Minute))
	gate := make(chan struct{})
	base := serve(t, &live{rows: rows, shown: 30, breaks: map[int]bool{}, open: gate})
	b.Open(base + "/page")
	bottom := `window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2`
	b.Until(fmt.Sprintf(`document.getElementById("e-%d") && (%s)`, rows[len(rows)-2].Seq-1, bottom))
	b.Run(`window.scrollTo(0, 200)`)
	b.Until(`window.scrollY === 200`)
	close(gate)
	b.Until(`!document.getElementById("jump").hidden`)
	if got := b.Text(`window.scrollY + " " + document.getElementById("jump").textContent`); got != "200 1 new ↓" {
		t.Fatalf("scrolled and counted %q", got)
	}
	b.Click("#jump")
	b.Until(bottom + ` && document.getElementById("jump").hidden`)
}

func TestKeysLeadAround(t *testing.T) {
	t.Parallel()
	b := browsertest.New(t)
	base := serve(t, handler(moment))
	b.Open(base + "/conversations")
	b.Press("/")
	b.Until(`document.activeElement.id === "q"`)
	b.Press("gw") // in a field keys are text
	b.Until(`document.getElementById("q").value.endsWith("gw") && location.pathname === "/conversations"`)
	b.Run(`document.activeElement.blur()`)
	b.Press("gw")
	b.Until(`location.pathname === "/workspaces"`)
	b.Until(`document.readyState === "complete"`)
	b.Press("n")
	b.Until(`location.pathname === "/workspaces/new"`)
	b.Open(base + "/conversations/c5")
	b.Press("\x1b")
	b.Until(`document.getElementById("interrupt-dialog").open`)
	b.Press("\x1b")
	b.Until(`!document.getElementById("interrupt-dialog").open`)
}

// A row is added to a list field by the script, and a page without one can still be filled in.
func TestRepositoriesCanBeAdded(t *testing.T) {
	t.Parallel()
	b := browsertest.New(t)
	base := serve(t, handler(moment))
	b.Open(base + "/environments/new")
	b.Click("[data-add]")
	b.Until(`document.querySelectorAll("[name='repositories.url']").length === 2 && document.activeElement.name === "repositories.url"`)
}
