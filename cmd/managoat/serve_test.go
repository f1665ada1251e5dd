package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A stream goes on for longer than the server waits for a request to be read, in both versions of HTTP.
func TestAStreamOutlivesTheTimeoutOfReading(t *testing.T) {
	t.Parallel()
	const reading, streaming = 300 * time.Millisecond, time.Second
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end, tick := time.After(streaming), time.NewTicker(reading/3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprint(w, ": heartbeat\n\n")
				if http.NewResponseController(w).Flush() != nil {
					return
				}
			case <-r.Context().Done():
				return
			case <-end:
				fmt.Fprint(w, "end")
				return
			}
		}
	})
	for _, version := range []int{1, 2} {
		s := httptest.NewUnstartedServer(nil)
		s.Config = server(h)
		s.Config.ReadTimeout = reading
		s.EnableHTTP2 = version == 2
		s.StartTLS()
		defer s.Close()
		res, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.ProtoMajor != version || !strings.HasSuffix(string(body), "end") {
			t.Errorf("HTTP/%d: %q, %v", res.ProtoMajor, body, err)
		}
	}
}
