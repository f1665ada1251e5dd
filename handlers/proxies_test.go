package handlers_test

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"managoat/handlers"
)

// What a client says of its own address counts only when a proxy that the operator named passes it on. A client in a private
// network, or on this host, is not one by itself.
func TestOnlyNamedProxiesAreBelieved(t *testing.T) {
	t.Parallel()
	_, proxy, err := net.ParseCIDR("10.0.0.7/32")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		trusted             []*net.IPNet
		peer, forward, want string
	}{
		{nil, "127.0.0.1", "203.0.113.9", "127.0.0.1"},
		{nil, "10.0.0.7", "203.0.113.9", "10.0.0.7"},
		{[]*net.IPNet{proxy}, "10.0.0.7", "203.0.113.9", "203.0.113.9"},
		{[]*net.IPNet{proxy}, "10.0.0.7", "198.51.100.1, 203.0.113.9", "203.0.113.9"},
		{[]*net.IPNet{proxy}, "10.0.0.7", "198.51.100.1, 192.168.1.4", "192.168.1.4"},
		{[]*net.IPNet{proxy}, "10.0.0.8", "203.0.113.9", "10.0.0.8"},
		{[]*net.IPNet{proxy}, "127.0.0.1", "203.0.113.9", "127.0.0.1"},
		{[]*net.IPNet{proxy}, "192.168.1.4", "203.0.113.9", "192.168.1.4"},
		{[]*net.IPNet{proxy}, "169.254.0.1", "203.0.113.9", "169.254.0.1"},
	} {
		var log bytes.Buffer
		e, _ := handlers.New(handlers.Config{TrustedProxies: c.trusted, Log: slog.New(slog.NewTextHandler(&log, nil))})
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.peer + ":4711"
		r.Header.Set("X-Forwarded-For", c.forward)
		e.ServeHTTP(httptest.NewRecorder(), r)
		if want := " address=" + c.want + " "; !strings.Contains(log.String(), want) {
			t.Errorf("%s that forwards %q: %q is missing in %s", c.peer, c.forward, want, log.String())
		}
	}
}

// Browsers that reach the server by https must never send its cookies over anything else, whoever ends the TLS.
func TestAnHTTPSAddressMakesEveryRequestOneOfHTTPS(t *testing.T) {
	t.Parallel()
	for _, https := range []bool{true, false} {
		var scheme string
		e, _ := handlers.New(handlers.Config{HTTPS: https, Log: slog.New(slog.DiscardHandler), Routes: []handlers.Route{{Method: "GET", Path: "/scheme", Access: handlers.Public,
			Web: func(c echo.Context) error { scheme = c.Scheme(); return nil }}}})
		e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/scheme", nil))
		if want := map[bool]string{true: "https", false: "http"}[https]; scheme != want {
			t.Errorf("HTTPS %t: the scheme is %q", https, scheme)
		}
	}
}
