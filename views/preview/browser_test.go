package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"managoat/static"
	"managoat/views"
)

// patience bounds every wait for the browser.
const patience = 60 * time.Second

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

// browser starts Chromium for one test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := os.Getenv("CHROMIUM")
	if path == "" {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if found, err := exec.LookPath(name); err == nil {
				path = found
				break
			}
		}
	}
	if path == "" {
		t.Fatal("no Chromium: apt-get install chromium, or name one in CHROMIUM")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, leave := chromedp.NewContext(allocator)
	t.Cleanup(leave)
	if err := chromedp.Do(ctx); err != nil { // the browser starts; its context must not be the one with the deadline
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	t.Cleanup(cancel)
	return ctx
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

func eval[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true. It looks again and again from outside, since a page that is left
// takes what waits inside it along.
func until(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && yes {
			return
		}
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("waiting for %s: %v", expression, err)
		}
	}
}

// complaints collects what the browser's console says: violations of the content security policy, failed
// loads, errors of scripts.
func complaints(t *testing.T, ctx context.Context) func() []string {
	t.Helper()
	var mu sync.Mutex
	var said []string
	err := chromedp.Listen(ctx, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		switch ev := ev.(type) {
		case *log.EventEntryAdded:
			said = append(said, string(ev.Entry.Level)+": "+ev.Entry.Text)
		case *runtime.EventExceptionThrown:
			said = append(said, "exception: "+ev.ExceptionDetails.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		taken := said
		said = nil
		return taken
	}
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
	ctx := browser(t)
	said := complaints(t, ctx)
	base := serve(t, handler(func() time.Time { return moment }))
	dark := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: dark}); err != nil {
		t.Fatal(err)
	}
	for _, e := range examples(moment) {
		do(t, ctx, chromedp.Navigate(base+e.path))
		for _, width := range []int64{390, 800, 1280} {
			do(t, ctx, chromedp.EmulateViewport(width, 844))
			if over := eval[float64](t, ctx, "document.documentElement.scrollWidth - window.innerWidth"); over > 0 {
				t.Errorf("%s is %v px too wide at %d px", e.path, over, width)
			}
			if small := eval[string](t, ctx, tooSmall); small != "" {
				t.Errorf("%s: too small to touch at %d px: %s", e.path, width, small)
			}
		}
		for _, line := range said() {
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
	ctx := browser(t)
	rows := storyRows(moment.Add(-5 * time.Minute))
	base := serve(t, &live{rows: rows, shown: 9, breaks: map[int]bool{14: true, 15: true, 31: true}})
	do(t, ctx, chromedp.Navigate(base+"/page"))
	// What a person opened stays open while its item changes.
	until(t, ctx, `document.querySelector(".thought details")`)
	do(t, ctx, chromedp.Click(chromedp.CSS(".thought summary")))
	until(t, ctx, `document.getElementById("announce").textContent.includes("all rows")`)
	streamed := eval[string](t, ctx, content)
	if !eval[bool](t, ctx, `document.querySelector(".thought details").open`) {
		t.Error("a thought that was opened has closed")
	}
	if !eval[bool](t, ctx, `document.getElementById("live").textContent === ""`) {
		t.Error("the page still says that it reconnects")
	}
	do(t, ctx, chromedp.Navigate(base+"/whole"))
	if whole := eval[string](t, ctx, content); streamed != whole {
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
	ctx := browser(t)
	do(t, ctx, chromedp.EmulateViewport(900, 500))
	rows := storyRows(moment.Add(-5 * time.Minute))
	gate := make(chan struct{})
	base := serve(t, &live{rows: rows, shown: 30, breaks: map[int]bool{}, open: gate})
	do(t, ctx, chromedp.Navigate(base+"/page"))
	bottom := `window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2`
	until(t, ctx, fmt.Sprintf(`document.getElementById("e-%d") && (%s)`, rows[len(rows)-2].Seq-1, bottom))
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`window.scrollTo(0, 200)`))
	until(t, ctx, `window.scrollY === 200`)
	close(gate)
	until(t, ctx, `!document.getElementById("jump").hidden`)
	if got := eval[string](t, ctx, `window.scrollY + " " + document.getElementById("jump").textContent`); got != "200 1 new ↓" {
		t.Fatalf("scrolled and counted %q", got)
	}
	do(t, ctx, chromedp.Click(chromedp.CSS("#jump")))
	until(t, ctx, bottom+` && document.getElementById("jump").hidden`)
}

func TestKeysLeadAround(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	base := serve(t, handler(func() time.Time { return moment }))
	do(t, ctx, chromedp.Navigate(base+"/conversations"), chromedp.KeyEvent("/"))
	until(t, ctx, `document.activeElement.id === "q"`)
	do(t, ctx, chromedp.KeyEvent("g"), chromedp.KeyEvent("w")) // in a field keys are text
	until(t, ctx, `document.getElementById("q").value.endsWith("gw") && location.pathname === "/conversations"`)
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`), chromedp.KeyEvent("g"), chromedp.KeyEvent("w"))
	until(t, ctx, `location.pathname === "/workspaces"`)
	do(t, ctx, chromedp.WaitReady(chromedp.CSS("h1")), chromedp.KeyEvent("n"))
	until(t, ctx, `location.pathname === "/workspaces/new"`)
	do(t, ctx, chromedp.Navigate(base+"/conversations/c5"), chromedp.KeyEvent("\x1b"))
	until(t, ctx, `document.getElementById("interrupt-dialog").open`)
	do(t, ctx, chromedp.KeyEvent("\x1b"))
	until(t, ctx, `!document.getElementById("interrupt-dialog").open`)
}

// A row is added to a list field by the script, and a page without one can still be filled in.
func TestRepositoriesCanBeAdded(t *testing.T) {
	t.Parallel()
	ctx := browser(t)
	base := serve(t, handler(func() time.Time { return moment }))
	do(t, ctx, chromedp.Navigate(base+"/environments/new"), chromedp.Click(chromedp.CSS("[data-add]")))
	until(t, ctx, `document.querySelectorAll("[name='repositories.url']").length === 2 && document.activeElement.name === "repositories.url"`)
}
