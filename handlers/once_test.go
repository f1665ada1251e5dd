package handlers_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/quota"
	"managoat/internal/vault"
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

// lost is a client that is gone when its answer comes.
type lost struct {
	*httptest.ResponseRecorder
	leave func()
}

func (l lost) WriteHeader(status int) {
	l.leave()
	l.ResponseRecorder.WriteHeader(status)
}

// dying is a body whose sender goes when all of it was read.
type dying struct {
	io.Reader
	leave func()
}

func (d dying) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err == io.EOF {
		d.leave()
	}
	return n, err
}

// vaults is an edge with the one route that makes a vault, and a call of it with an Idempotency-Key.
func vaults(t *testing.T, d *identitytest.Instance) (post func(ctx context.Context, w http.ResponseWriter, key string, body io.Reader)) {
	t.Helper()
	routes := handlers.APIRoutes(handlers.JSON{Vaults: api.Vaults{Service: vault.NewService(d.DB, d.Keys)}})
	routes = slices.DeleteFunc(routes, func(r handlers.Route) bool { return r.Method+r.Path != "POST/api/vaults" })
	routes[0].Sandbox = handlers.Own
	e, _ := handlers.New(handlers.Config{DB: d.DB, Auth: d.People, Routes: routes, Log: slog.New(slog.DiscardHandler)})
	return func(ctx context.Context, w http.ResponseWriter, key string, body io.Reader) {
		r := httptest.NewRequestWithContext(ctx, "POST", "/api/vaults", body)
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "once")
		e.ServeHTTP(w, r)
	}
}

// The client that most needs its Idempotency-Key is the one whose connection broke before the answer came.
func TestAClientThatLostTheAnswerGetsItWhenItAsksAgain(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	account := d.Account(t)
	post := vaults(t, d)
	const body = `{"name":"mine"}`
	for name, send := range map[string]func(ctx context.Context, leave func(), w *httptest.ResponseRecorder){
		"at the answer": func(ctx context.Context, leave func(), w *httptest.ResponseRecorder) {
			post(ctx, lost{w, leave}, account.Key, strings.NewReader(body))
		},
		"when all was sent": func(ctx context.Context, leave func(), w *httptest.ResponseRecorder) {
			post(ctx, w, account.Key, dying{strings.NewReader(body), leave})
		},
	} {
		ctx, leave := context.WithCancel(t.Context())
		first, again := httptest.NewRecorder(), httptest.NewRecorder()
		send(ctx, leave, first)
		post(t.Context(), again, account.Key, strings.NewReader(body))
		if ctx.Err() == nil || first.Code != 201 || again.Code != 201 || again.Header().Get("Idempotent-Replay") != "true" || again.Body.String() != first.Body.String() {
			t.Errorf("%s: %d %s, again %d %s", name, first.Code, first.Body, again.Code, again.Body)
		}
		if _, err := d.Owner(t).Exec(t.Context(), "delete from idempotency_keys; delete from vaults"); err != nil {
			t.Fatal(err)
		}
	}
}

// An agent that knows what somebody will send must neither read the answer nor take the key away beforehand.
func TestAMachinesIdempotencyKeysAreNotPeoples(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	account := d.Account(t)
	var sandbox identity.CreatedKey
	if err := d.InTenant(t.Context(), account.TenantID, func(tx db.Tx) (err error) {
		sandbox, err = identity.MintSandboxKey(t.Context(), tx, account.Actor, uuid.New(), time.Hour)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	post := vaults(t, d)
	for _, key := range []string{sandbox.Plain.Reveal(), account.Key} {
		w := httptest.NewRecorder()
		if post(t.Context(), w, key, strings.NewReader(`{"name":"mine"}`)); w.Header().Get("Idempotent-Replay") != "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}
