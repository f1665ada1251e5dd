package handlers_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/handlers"
	"managoat/handlers/api"
	"managoat/internal/account"
	"managoat/internal/audit"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/files"
	"managoat/internal/quota"
	"managoat/internal/refusal"
	"managoat/internal/transcript/transcripttest"
)

func TestMain(m *testing.M) { os.Exit(conversationtest.Main(m)) }

var placeholder = regexp.MustCompile(`\{\w+\}`)

// Every operation of the document, called with ids that are nobody's or no ids at all, and with bodies that are missing,
// empty or something else, does its work or refuses with a code of the table, and never breaks.
func TestEveryOperationRefusesNonsenseByTheTable(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	quotas := quota.New(w.DB, quota.Defaults{RunningMachines: 20, PromptsPerMinute: 60})
	var log strings.Builder
	e, document := handlers.New(handlers.Config{DB: w.DB, Auth: w.People, Log: slog.New(slog.NewTextHandler(&log, nil)), Routes: handlers.APIRoutes(handlers.JSON{
		Auth: api.Auth{Service: w.People, Quotas: quotas, Accounts: account.New(w.DB, w.People, w.Workspaces, slog.New(slog.DiscardHandler))}, Quotas: api.Quotas{Service: quotas}, Audit: api.Audit{Service: audit.New(w.DB)},
		Catalog: api.Catalog{Providers: []string{"local"}, Default: "local"}, Environments: api.Environments{Service: w.Environments},
		Vaults: api.Vaults{Service: w.Vaults}, Agents: api.Agents{Service: w.Agents}, Credentials: api.Credentials{Service: w.Inference},
		Workspaces:    api.Workspaces{Service: w.Workspaces, Files: files.New(w.Workspaces, w.Conversations), Ledger: w.Ledger},
		Conversations: api.Conversations{Service: w.Conversations, Reader: w.Reader, Ledger: w.Ledger}, Account: api.Account{Reader: w.Reader},
	})})
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	statuses := map[refusal.Code]int{}
	for _, entry := range refusal.Table() {
		statuses[entry.Code] = entry.Status
	}
	calls := 0
	for path, item := range document.OpenAPI().Paths {
		for method, op := range api.Operations(item) {
			for _, id := range []string{uuid.NewString(), "nonsense", "..%2f..%2fetc", "%00", "%ff"} {
				bodies := []string{"", "{}", "[]", "null", `{"colour":"nonsense"}`, `{"name":"\u0000"}`}
				if method == http.MethodGet || method == http.MethodDelete {
					bodies = bodies[:1]
				}
				if !strings.Contains(path, "{") && id == "nonsense" {
					break // there is no id to vary
				}
				for _, body := range bodies {
					calls++
					at := placeholder.ReplaceAllString(path, id)
					if strings.HasSuffix(at, "/stream") {
						at += "?wait=false"
					}
					req, err := http.NewRequest(method, server.URL+at, strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Authorization", "Bearer "+w.Owner.Key)
					req.Header.Set("Content-Type", "application/json")
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					answer, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil {
						t.Fatal(err)
					}
					if res.StatusCode < 300 {
						if strings.Contains(path, "{id}") || op.RequestBody != nil && (body == "" || strings.Contains(body, "nonsense")) {
							t.Errorf("%s %s %q: %d %s", method, at, body, res.StatusCode, answer)
						}
						continue
					}
					var no struct {
						Error   refusal.Code
						Message string
					}
					if err := json.Unmarshal(answer, &no); err != nil || no.Message == "" || statuses[no.Error] != res.StatusCode || res.StatusCode >= 500 {
						t.Errorf("%s %s %q: %d %s", method, at, body, res.StatusCode, answer)
					}
					if strings.Contains(no.Message, "nonsense") || strings.Contains(no.Message, uuid.Nil.String()) {
						t.Errorf("%s %s %q: %s repeats or makes up what was sent", method, at, body, answer)
					}
				}
			}
		}
	}
	if calls < 400 {
		t.Errorf("only %d calls were made", calls)
	}
	// What stands behind the question mark reaches the database too, which cannot read every text.
	other := w.Account(t)
	talk := transcripttest.Conversation(t, w.Database, other.TenantID).String()
	asked := 0
	for path, item := range document.OpenAPI().Paths {
		for method, op := range api.Operations(item) {
			if method != http.MethodGet || strings.HasSuffix(path, "events/stream") {
				continue
			}
			for _, p := range op.Parameters {
				if p.In != "query" || p.Name == "wait" { // a stream that waits would not end
					continue
				}
				for _, value := range []string{"%00", "%ff", "%ed%a0%80", "-1"} {
					asked++
					at := placeholder.ReplaceAllString(path, talk) + "?" + p.Name + "=" + value
					if strings.HasSuffix(path, "/stream") {
						at += "&wait=false"
					}
					req, err := http.NewRequest(method, server.URL+at, nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Authorization", "Bearer "+other.Key)
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					answer, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests {
						t.Errorf("%s %s: %d %s, %v", method, at, res.StatusCode, answer, err)
					}
				}
			}
		}
	}
	if asked < 150 {
		t.Errorf("only %d questions were asked", asked)
	}
	if strings.Contains(log.String(), "request failed") {
		t.Error(log.String())
	}
}
