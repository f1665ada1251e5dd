package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// A server that cuts the stream after every second frame: the client sees each frame once, in order.
func TestACutStreamGoesOnFromTheLastIDWithNothingLostOrDoubled(t *testing.T) {
	t.Parallel()
	const total = 7
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var last int
		fmt.Sscan(r.Header.Get("Last-Event-ID"), &last)
		for sent := 0; last < total && sent < 2; sent++ {
			last++
			fmt.Fprintf(w, ": beat\n\nid: %d\nevent: output\ndata: a%d\ndata: b\n\n", last, last)
		}
		if last == total {
			fmt.Fprint(w, "event: end\ndata: {}\n\n")
		}
	}))
	defer srv.Close()
	var got []string
	c := &Client{Base: srv.URL}
	if err := c.Follow(context.Background(), "/s", "", func(f Frame) error {
		if f.Event != Opened {
			got = append(got, f.ID+"="+string(f.Data))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := 1; i <= total; i++ {
		want = append(want, fmt.Sprintf("%d=a%d\nb", i, i))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestARefusalKeepsItsCodeAndEndsAFollow(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		fmt.Fprint(w, `{"error":"not_found","message":"There is nothing here."}`)
	}))
	defer srv.Close()
	c := &Client{Base: srv.URL}
	err := c.Follow(context.Background(), "/s", "", func(Frame) error { t.Error("a frame came"); return nil })
	var refused *Refused
	if !errors.As(err, &refused) || refused.Code != "not_found" || refused.Status != 404 {
		t.Fatalf("%v", err)
	}
	srv.Close()
	var gone *Unreachable
	if err := c.Get(context.Background(), "/x", nil); !errors.As(err, &gone) {
		t.Fatalf("a closed server answered %v", err)
	}
}

// A connection that breaks after the request was sent leaves the caller without an answer, not with a second act.
func TestAPostWhoseAnswerIsLostIsAskedForItAgainUnderItsKey(t *testing.T) {
	t.Parallel()
	var keys []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch len(keys) {
		case 1:
			panic(http.ErrAbortHandler) // it acted, and the line breaks
		case 2:
			w.WriteHeader(409)
			fmt.Fprint(w, `{"error":"idempotency_in_progress"}`)
		default:
			fmt.Fprint(w, `{"data":{"n":7}}`)
		}
	}))
	defer srv.Close()
	c := &Client{Base: srv.URL, Key: "mgt_x"}
	var out struct{ Data struct{ N int } }
	if err := c.Do(t.Context(), "POST", "/x", map[string]any{}, &out); err != nil || out.Data.N != 7 {
		t.Fatalf("%v %v", out, err)
	}
	if len(keys) != 3 || keys[0] == "" || keys[1] != keys[0] || keys[2] != keys[0] {
		t.Errorf("the keys were %q", keys)
	}
	if err := c.Do(t.Context(), "POST", "/x", map[string]any{}, nil); err != nil || keys[3] == keys[0] {
		t.Errorf("another request came with the key of the first, %v", err)
	}
}

// Whoever watches a stream must be able to tell a server that is away from an agent that says nothing.
func TestAServerThatIsAwayIsToldOnceAndSoIsItsReturn(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch calls.Add(1) {
		case 1, 2: // cut, and there again
			fmt.Fprint(w, "id: 1\nevent: output\ndata: a\n\n")
		case 3, 4, 6:
			w.WriteHeader(503)
			fmt.Fprint(w, `{"error":"database_away","message":"Away."}`)
		case 5:
		default:
			fmt.Fprint(w, "event: end\ndata: {}\n\n")
		}
	}))
	defer srv.Close()
	var told []string
	c := &Client{Base: srv.URL, Away: func(cause error) { told = append(told, fmt.Sprint(cause)) }}
	if err := c.Follow(t.Context(), "/s", "", func(Frame) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"Away. (database_away)", "<nil>", "Away. (database_away)", "<nil>"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// A proxy that buffers takes the connection and passes nothing on.
func TestAStreamWhoseAnswerIsHeldBackIsGivenUpAndOpenedAgain(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			select {
			case <-r.Context().Done():
			case <-done:
			}
			return
		}
		fmt.Fprint(w, "event: end\ndata: {}\n\n")
	}))
	defer srv.Close()
	defer close(done)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := &Client{Base: srv.URL, silence: 50 * time.Millisecond}
	if err := c.Follow(ctx, "/s", "", func(Frame) error { return nil }); err != nil || calls.Load() < 2 {
		t.Errorf("%v after %d connections", err, calls.Load())
	}
}
