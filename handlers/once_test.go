package handlers_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/internal/identity/identitytest"
	"managoat/internal/quota"
)

// An answer that holds a new key is not kept for its Idempotency-Key: nobody can read it again, the repetition is refused.
func TestANewKeyIsNotKeptForItsIdempotencyKey(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	account := d.Account(t)
	routes := handlers.APIRoutes(handlers.JSON{Auth: api.Auth{Service: d.People, Quotas: quota.New(d.DB, quota.Defaults{})}})
	e, _ := handlers.New(handlers.Config{DB: d.DB, Auth: d.People, Routes: routes, Log: slog.New(slog.DiscardHandler)})
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	call := func(key string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("POST", srv.URL+"/api/auth/api-keys", strings.NewReader(`{"name":"ci"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+account.Key)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		res, err := http.DefaultClient.Do(req)
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
	if status, body := call("once"); status != 201 || !strings.Contains(body, "mgt_") {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := call("once"); status != 409 || strings.Contains(body, "mgt_") {
		t.Fatalf("the repetition answered %d %s", status, body)
	}
	var kept int
	if err := d.Owner(t).QueryRow(context.Background(), "select count(*) from idempotency_keys where response is not null").Scan(&kept); err != nil || kept != 0 {
		t.Fatalf("%d answers are kept, %v", kept, err)
	}
	for _, bad := range []string{"a\xffb", strings.Repeat("x", 201), "ключ"} {
		if status, body := call(bad); status != 400 {
			t.Errorf("the key %q answered %d %s", bad, status, body)
		}
	}
}
