package peer_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/netguard"
	"managoat/internal/peer"
	"managoat/internal/refusal"
)

// pair is a client of one server and another server that answers it.
func pair(t *testing.T, answer http.HandlerFunc) (*peer.Client, peer.Server) {
	t.Helper()
	key := peer.NewKey([]byte("the master key"))
	from, to := uuid.New(), uuid.New()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if caller, err := key.Check(r, to, time.Now()); err != nil || caller != from {
			t.Errorf("the call of %s: %v", caller, err)
		}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	c := peer.NewClient(key, from, netguard.Options{})
	t.Cleanup(c.Close)
	return c, peer.Server{ID: to, URL: server.URL}
}

func TestOnlyWhatIsAboutTheMachineIsPassedOn(t *testing.T) {
	t.Parallel()
	var body atomic.Value
	var status atomic.Int64
	c, to := pair(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(status.Load()))
		io.WriteString(w, body.Load().(string))
	})
	ask := func(code int, answer string) error {
		status.Store(int64(code))
		body.Store(answer)
		return c.Call(t.Context(), to, "GET", "/internal/x", nil)
	}
	err := ask(503, `{"error": "sandbox_unreachable", "message": "Not now.", "retry_after_seconds": 7}`)
	if r, ok := refusal.As(err); !ok || r.Code != refusal.SandboxUnreachable || r.Message != "Not now." || r.RetryAfterSeconds() != 7 {
		t.Errorf("a refusal about the machine: %v", err)
	}
	for code, answer := range map[int]string{401: `{"error": "api_key_invalid", "message": "No."}`, 404: `{"error": "not_found", "message": "No."}`, 500: `{"error": "internal", "message": "No."}`,
		502: "<html>a proxy", 302: "", 429: `{"error": "rate_limited", "message": "No."}`, 599: strings.Repeat("{", 1<<20)} {
		if err := ask(code, answer); !errors.Is(err, peer.ErrAway) {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// The signature goes to the address in the row, and not to where that one points.
func TestASignatureFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var caught atomic.Bool
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { caught.Store(true) }))
	t.Cleanup(thief.Close)
	c, to := pair(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	})
	if err := c.Call(t.Context(), to, "POST", "/internal/x", nil); !errors.Is(err, peer.ErrAway) || caught.Load() {
		t.Errorf("%v, and the other server heard of it: %v", err, caught.Load())
	}
	for _, address := range []string{"http://169.254.169.254", "ftp://127.0.0.1", "http://", "::", "http://nowhere.invalid"} {
		if err := c.Call(t.Context(), peer.Server{ID: to.ID, URL: address}, "GET", "/x", nil); !errors.Is(err, peer.ErrAway) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestAStreamCarriesBytesBothWaysAndEndsForBoth(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	c, to := pair(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != peer.Protocol || r.URL.Path != "/internal/stream" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		conn, in, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+peer.Protocol+"\r\n\r\nwelcome\n")
		line, err := in.ReadString('\n')
		if err == nil {
			io.WriteString(conn, "you said "+line)
			_, err = in.ReadString('\n')
		}
		ended <- err
	})
	if _, err := c.Open(t.Context(), to, "/internal/none"); !errors.Is(err, peer.ErrAway) {
		t.Errorf("a path that leads to no stream: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.Open(ctx, to, "/internal/stream")
	if err != nil {
		t.Fatal(err)
	}
	cancel() // of the opening only
	in := bufio.NewReader(stream)
	if _, err := io.WriteString(stream, "hello\n"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"welcome\n", "you said hello\n"} {
		if line, err := in.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q %v, want %q", line, err, want)
		}
	}
	stream.Close()
	if err := <-ended; err == nil {
		t.Error("the other end goes on")
	}
}
