package api_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"managoat/db/dbtest"
	"managoat/internal/identity/identitytest"
)

func TestWithoutItsDatabaseEveryCallSaysSoAndWhenToTryAgain(t *testing.T) {
	t.Parallel()
	d, postgres := dbtest.Own(t, 0)
	s := newServerOn(t, identitytest.On(t, slog.New(slog.DiscardHandler), d))
	postgres.Kill(t)
	for _, call := range []string{"GET /api/vaults", "POST /api/vaults", "GET /api/auth/me"} {
		body := ""
		if strings.HasPrefix(call, "POST") {
			body = `{"name":"v"}`
		}
		status, answer, header := s.send("a", call, body)
		if status != http.StatusServiceUnavailable || !strings.Contains(answer, `"error":"database_away"`) || header.Get("Retry-After") != "5" {
			t.Errorf("%s: %d %s, Retry-After %q", call, status, answer, header.Get("Retry-After"))
		}
	}
	if strings.Contains(s.log.String(), "level=ERROR") {
		t.Errorf("the server takes it for a fault of its own: %s", s.log)
	}
	postgres.Start(t)
	for deadline := time.Now().Add(30 * time.Second); ; {
		status, answer, _ := s.send("a", "GET /api/vaults", "")
		if status == http.StatusOK {
			return
		}
		if status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("when it is back: %d %s", status, answer)
		}
		<-time.After(20 * time.Millisecond)
	}
}
