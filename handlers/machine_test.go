package handlers_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/internal/broker"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/quota"
	"managoat/internal/tenant"
)

// inside serves an edge on a private socket, as the server does for the egress process, and calls it as a machine.
func inside(t *testing.T, e http.Handler) (call func(machine uuid.UUID, method, path, key, body string) (int, string)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mgt") // the test's own is too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "api.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: e}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(l)
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-served
	})
	return func(machine uuid.UUID, method, path, key, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+broker.APIHost+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		req.Header.Set(broker.MachineHeader, machine.String())
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
}

// All machines come over one socket. One that asks without end must not use up the others' share.
func TestAMachineThatFloodsTheServerLeavesTheOthersTheirShare(t *testing.T) {
	t.Parallel()
	e, _ := handlers.New(handlers.Config{Log: slog.New(slog.DiscardHandler)})
	call := inside(t, e)
	loud, quiet := uuid.New(), uuid.New()
	status := 0
	for i := 0; i < 13_000 && status != http.StatusTooManyRequests; i++ { // the limit is 6,000, of each minute
		status, _ = call(loud, "GET", "/api/nothing", "", "")
	}
	if status != http.StatusTooManyRequests {
		t.Fatalf("the loud machine got %d", status)
	}
	if status, body := call(quiet, "GET", "/api/nothing", "", ""); status != http.StatusNotFound {
		t.Errorf("the quiet machine got %d %s", status, body)
	}
}

func TestAMachineSpeaksWithItsConversationsKeyAndNoPersons(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	account := d.Account(t)
	var sandbox identity.CreatedKey
	if err := d.DB.InTenant(t.Context(), account.TenantID, func(tx db.Tx) (err error) {
		sandbox, err = identity.MintSandboxKey(t.Context(), tx, account.Actor, uuid.New(), time.Hour)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	routes := handlers.APIRoutes(handlers.JSON{Auth: api.Auth{Service: d.People, Quotas: quota.New(d.DB, quota.Defaults{})}})
	e, _ := handlers.New(handlers.Config{DB: d.DB, Auth: d.People, Routes: routes, Log: slog.New(slog.DiscardHandler)})
	call := inside(t, e)
	machine := uuid.New()
	password := `{"email":"` + account.Email + `","password":"` + identitytest.Password + `"}`
	for name, c := range map[string]struct {
		method, path, key, body string
		status                  int
	}{
		"its own key":          {"GET", "/api/auth/me", sandbox.Plain.Reveal(), "", 200},
		"a person's key":       {"GET", "/api/auth/me", account.Key, "", 403},
		"a person's password":  {"POST", "/api/auth/token", "mgt_x", password, 403},
		"what is for everyone": {"GET", "/health", "mgt_x", "", 200},
	} {
		status, body := call(machine, c.method, c.path, c.key, c.body)
		if status != c.status || status == 403 && !strings.Contains(body, `"required_scope":"`+string(tenant.ScopeSandbox)+`"`) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}
