package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
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
