package handlers_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"managoat/handlers"
)

// ask calls the edge from an address and answers the status.
func ask(e http.Handler, address, authorization string) int {
	r := httptest.NewRequest("GET", "/api/nothing", nil)
	r.RemoteAddr = address
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w.Code
}

func TestAKeyThatIsWrittenDifferentlyEachTimeHasOneShare(t *testing.T) {
	t.Parallel()
	e, _ := handlers.New(handlers.Config{Log: slog.New(slog.DiscardHandler)})
	refused := 0
	const calls = 2000 // in at most two minutes of the clock, each with 600
	for i := range calls {
		if ask(e, "192.0.2.1:1", []string{"Bearer ", "bearer ", "BEARER "}[i%3]+strings.Repeat(" ", i%50)+"mgt_one") == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused < calls-1200 {
		t.Errorf("%d of %d calls of one key were refused", refused, calls)
	}
}

func TestTheAddressesOfOneIPv6NetworkHaveOneShare(t *testing.T) {
	t.Parallel()
	e, _ := handlers.New(handlers.Config{Log: slog.New(slog.DiscardHandler)})
	refused := 0
	const calls = 13_000
	for i := range calls {
		if ask(e, "[2001:db8::"+string("0123456789abcdef"[i%16])+"]:1", "") == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused < calls-12_000 {
		t.Errorf("%d of %d calls of one network were refused", refused, calls)
	}
	if got := ask(e, "[2001:db8:0:1::1]:1", ""); got != http.StatusNotFound {
		t.Errorf("another network got %d", got)
	}
}
