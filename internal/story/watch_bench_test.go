package story

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"managoat/internal/client"
	"managoat/views/browsertest"
)

// Sizes of what is watched.
const (
	benchSetups = 5
	benchLines  = 4 // a setup prints, at a pace that no two of them come together
)

// printed is a line that says when it was printed, in nanoseconds of the host's clock.
var printed = regexp.MustCompile(`printed at (\d+)`)

// arrivals are the times of lines, by what they say, at one who watches.
type arrivals struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (a *arrivals) see(text string) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range printed.FindAllStringSubmatch(text, -1) {
		if _, ok := a.at[m[1]]; !ok {
			a.at[m[1]] = now
		}
	}
}

// BenchmarkSetupWatch is the time from a line's being printed by a setup script until those who watch have it: on the
// account's stream, on the command line, in two browsers on the workspace's page. All of them watch at once.
func BenchmarkSetupWatch(b *testing.B) {
	s, _ := own(b)
	a := s.account(b)
	env := a.environment(body{"setup_script": fmt.Sprintf("sleep 3; for i in {1..%d}; do echo printed at $(date +%%s%%N); sleep 0.4; done; sleep 1", benchLines)})
	var browsers [2]*console
	for i := range browsers {
		c := &console{browsertest.New(b), s.url, b}
		c.open("/sign-in")
		c.fill([2]string{"email", a.Email}, [2]string{"password", a.Password})
		c.submit("Sign in")
		browsers[i] = c
	}
	for b.Loop() {
		var stream, command, page, apart []time.Duration
		for range benchSetups {
			w := a.workspace(env)
			streamed, shown := &arrivals{at: map[string]time.Time{}}, &arrivals{at: map[string]time.Time{}}
			ctx, stop := context.WithCancel(b.Context())
			var watching sync.WaitGroup
			watching.Go(func() {
				err := a.Follow(ctx, "/api/events/stream", "", func(f client.Frame) error {
					if f.Event == "workspace.setup" {
						streamed.see(string(f.Data))
					}
					return nil
				})
				if err != nil && ctx.Err() == nil {
					b.Error(err)
				}
			})
			out, wait := a.follow("workspace", "logs", w.ID, "-f")
			watching.Go(func() {
				for ctx.Err() == nil {
					grown := out.Grown()
					shown.see(out.String())
					select {
					case <-grown:
					case <-ctx.Done():
					}
				}
			})
			for _, c := range browsers {
				c.open("/workspaces/" + w.ID)
				c.Run(`window.at = {}; const note = () => { for (const m of document.querySelector("#setup").innerText.matchAll(/printed at (\d+)/g)) window.at[m[1]] ??= Date.now(); };
					note(); new MutationObserver(note).observe(document.body, {subtree: true, childList: true, characterData: true})`)
			}
			a.ready(w.ID)
			if code := wait(); code != 0 {
				b.Fatalf("logs -f: exit %d\n%s", code, out)
			}
			stop()
			watching.Wait()
			var pages [2]map[string]float64
			for i, c := range browsers {
				if err := json.Unmarshal([]byte(c.Text("JSON.stringify(window.at)")), &pages[i]); err != nil {
					b.Fatal(err)
				}
			}
			first := slices.Min(slices.Collect(maps.Keys(streamed.at)))
			for said := range streamed.at {
				ns, err := strconv.ParseInt(said, 10, 64)
				if err != nil || len(streamed.at) != benchLines || len(shown.at) != benchLines || len(pages[0]) != benchLines || len(pages[1]) != benchLines {
					b.Fatalf("%v, %d lines on the stream, %d on the command line, %d and %d in the browsers", err, len(streamed.at), len(shown.at), len(pages[0]), len(pages[1]))
				}
				apart = append(apart, time.Duration(math.Abs(pages[0][said]-pages[1][said]))*time.Millisecond)
				if said != first {
					continue
				}
				at := time.Unix(0, ns)
				stream = append(stream, streamed.at[said].Sub(at))
				command = append(command, shown.at[said].Sub(at))
				page = append(page, time.UnixMilli(int64(pages[0][said])).Sub(at))
			}
			a.do("DELETE", "/api/workspaces/"+w.ID, nil)
		}
		b.ReportMetric(milliseconds(median(stream)), "ms-to-stream")
		b.ReportMetric(milliseconds(median(command)), "ms-to-command")
		b.ReportMetric(milliseconds(median(page)), "ms-to-page")
		b.ReportMetric(milliseconds(slices.Max(slices.Concat(stream, command, page))), "ms-at-most")
		b.ReportMetric(milliseconds(slices.Max(apart)), "ms-apart")
	}
}
