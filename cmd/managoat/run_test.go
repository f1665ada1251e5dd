package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"managoat/internal/client"
)

// Whoever runs an agent on a machine that is being set up looks at nothing for minutes; what is over in a moment is not told.
func TestWhatHoldsATurnForLongIsTold(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		`{"status": "running", "waiting_for": {"reason": "setup", "detail": "packages"}}`: "waits for the machine's setup",
		`{"status": "pending", "waiting_for": {"reason": "queue", "detail": "3"}}`:        "waits behind turn 3",
		`{"status": "pending", "waiting_for": {"reason": "queue", "detail": ""}}`:         "",
		`{"status": "running", "waiting_for": {"reason": "session", "detail": ""}}`:       "",
		`{"status": "running", "waiting_for": {"reason": "host", "detail": ""}}`:          "waits for the server whose host runs the machine: it is away",
		`{"status": "completed", "waiting_for": null}`:                                    "",
	} {
		var v turnView
		if err := json.Unmarshal([]byte(state), &v); err != nil {
			t.Fatal(err)
		}
		if got := v.waits(); got != want {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
}

// A prompt that is taken back before its turn begins leaves no row: who waits for one waits for ever.
func TestAPromptThatWasTakenBackEndsTheCommand(t *testing.T) {
	t.Parallel()
	for name, ctrlC := range map[string]bool{"in the console": false, "by Ctrl-C": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var taken atomic.Bool
			interrupted := make(chan string, 1)
			done := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/stream"):
					fmt.Fprint(w, ": beat\n\n")
					w.(http.Flusher).Flush()
					select {
					case <-r.Context().Done():
					case <-done:
					}
				case r.Method == "POST":
					body, _ := io.ReadAll(r.Body)
					interrupted <- string(body)
					taken.Store(true)
					fmt.Fprint(w, `{"data": {}}`)
				case taken.Load():
					fmt.Fprint(w, `{"data": {"id": "t2", "turn_number": 2, "status": "interrupted", "reason": "withdrawn"}}`)
				default:
					fmt.Fprint(w, `{"data": {"id": "t2", "turn_number": 2, "status": "pending", "waiting_for": {"reason": "queue", "detail": "1"}}}`)
				}
			}))
			defer srv.Close()
			defer close(done)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			time.AfterFunc(100*time.Millisecond, func() {
				if taken.Store(!ctrlC); ctrlC {
					cancel()
				}
			})
			err := followTurn(ctx, &client.Client{Base: srv.URL}, "c", 2, true)
			var coded *codedError
			if !errors.As(err, &coded) || coded.code != exitRefused || !strings.Contains(err.Error(), "taken back") {
				t.Errorf("%v", err)
			}
			if ctrlC {
				if got := <-interrupted; got != `{"turn_id":"t2"}` { // the one before it may run
					t.Errorf("interrupted %s", got)
				}
			}
		})
	}
}
