package story

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/client"
	"managoat/internal/testworld"
)

// Account is an account of a server, used with its owner's key.
type Account struct {
	*client.Client
	Email    string
	Password string
	ModelKey string // of its default credential; "" until Credential made one

	tb     testing.TB
	server *Server
	home   string // the command line's XDG_CONFIG_HOME, signed in
}

// account makes an account with the operator's verb, and signs the command line in to it.
func (s *Server) account(tb testing.TB) *Account {
	tb.Helper()
	a := &Account{Email: "owner-" + uuid.NewString()[:8] + "@example.test", Password: "a long password of " + uuid.NewString(), tb: tb, server: s, home: tb.TempDir()}
	stdout, stderr, code := s.operator(tb, a.Password+"\n", "admin", "create-owner", "--email", a.Email, "--password-stdin")
	key := strings.TrimSuffix(stdout, "\n")
	if code != 0 || !strings.HasPrefix(key, "mgt_") || strings.ContainsAny(key, " \n") || !strings.Contains(stderr, a.Email) || strings.Contains(stderr, key) {
		tb.Fatalf("create-owner: exit %d, printed %q, said %q", code, stdout, stderr)
	}
	a.Client = &client.Client{Base: s.url, Key: key}
	if _, stderr, code := run(tb, a.environ(), key+"\n", "login", s.url, "--key-stdin"); code != 0 {
		tb.Fatalf("login: exit %d, %s", code, stderr)
	}
	return a
}

func (a *Account) environ() []string { return append(a.server.environ(), "XDG_CONFIG_HOME="+a.home) }

// moved follows the server to the address it has after a start.
func (a *Account) moved() {
	a.tb.Helper()
	a.Base = a.server.url
	if _, stderr, code := run(a.tb, a.environ(), a.Key+"\n", "login", a.Base, "--key-stdin"); code != 0 {
		a.tb.Fatalf("login: exit %d, %s", code, stderr)
	}
}

// cli runs a verb of the command line to its end.
func (a *Account) cli(args ...string) (stdout, stderr string, code int) {
	a.tb.Helper()
	return run(a.tb, a.environ(), "", args...)
}

// follow starts a verb that goes on: out grows as it prints, and wait is its exit code.
func (a *Account) follow(args ...string) (out *output, wait func() int) {
	a.tb.Helper()
	out = new(output)
	cmd := exec.CommandContext(a.tb.Context(), common.binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = a.environ(), out, out
	if err := cmd.Start(); err != nil {
		a.tb.Fatal(err)
	}
	return out, func() int {
		a.tb.Helper()
		late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() < 0 {
			a.tb.Errorf("managoat %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return cmd.ProcessState.ExitCode()
	}
}

// call is an endpoint's answer, which must be a yes.
func call[T any](a *Account, method, path string, in any) T {
	a.tb.Helper()
	var out struct{ Data T }
	if err := a.Do(a.tb.Context(), method, path, in, &out); err != nil {
		a.tb.Fatalf("%s %s: %v", method, path, err)
	}
	return out.Data
}

func get[T any](a *Account, path string) T { a.tb.Helper(); return call[T](a, "GET", path, nil) }

// do is call for endpoints whose answer nobody needs.
func (a *Account) do(method, path string, in any) {
	a.tb.Helper()
	if err := a.Do(a.tb.Context(), method, path, in, nil); err != nil {
		a.tb.Fatalf("%s %s: %v", method, path, err)
	}
}

// refused is an endpoint's no.
func (a *Account) refused(method, path string, in any) client.Refused {
	a.tb.Helper()
	var no *client.Refused
	if err := a.Do(a.tb.Context(), method, path, in, nil); !errors.As(err, &no) {
		a.tb.Fatalf("%s %s was not refused: %v", method, path, err)
	}
	return *no
}

// body is a JSON object in the making.
type body map[string]any

// with is the body with more fields.
func (b body) with(more body) body {
	all := body{}
	for _, m := range []body{b, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// Workspace is what the tests look at of a workspace.
type Workspace struct {
	ID            string
	Name          string
	Implicit      bool
	Status        string
	MachineStatus string  `json:"machine_status"`
	SetupStep     string  `json:"setup_step"`
	SandboxID     *string `json:"sandbox_id"`
	Error         *struct {
		Step       string
		Message    string
		ExitCode   *int `json:"exit_code"`
		Signal     string
		OutputTail string `json:"output_tail"`
	}
}

// Step is one of a setup log.
type Step struct {
	Step         string
	State        string
	Note         string
	DurationMS   *int64 `json:"duration_ms"`
	ExitCode     *int   `json:"exit_code"`
	Output       string
	DroppedBytes int64 `json:"dropped_bytes"`
}

// Conversation is what the tests look at of a conversation.
type Conversation struct {
	ID          string
	Status      string
	WorkspaceID string `json:"workspace_id"`
}

// Turn is what the tests look at of a turn.
type Turn struct {
	ID         string
	TurnNumber int `json:"turn_number"`
	Status     string
	StopReason string `json:"stop_reason"`
	Reason     string
	Error      *struct{ Code, Message string }
	WaitingFor *struct{ Reason, Detail string } `json:"waiting_for"`
	EndedAt    *time.Time                       `json:"ended_at"`
}

// Event is a row of a transcript.
type Event struct {
	Seq        int64
	Type       string
	Kind       string
	Stream     string
	TurnNumber int `json:"turn_number"`
	Body       struct {
		ID         string
		Text       string
		Title      string
		Status     string
		Stage      string
		State      string
		Reason     string
		Code       string
		Message    string
		Output     string
		ExitCode   *int `json:"exit_code"`
		Signal     string
		DurationMS int64 `json:"duration_ms"`
		Outcome    string
		Input      json.RawMessage
		Detail     struct{ Lines []string }
		Source     struct {
			Output   string
			ExitCode string `json:"exit_code"`
		}
	}
	raw string // as it came
}

func (e *Event) UnmarshalJSON(b []byte) error {
	type plain Event
	if err := json.Unmarshal(b, (*plain)(e)); err != nil {
		return err
	}
	e.raw = string(b)
	return nil
}

// credential gives the account a key for the scripted model, which takes no other.
func (a *Account) credential(w *testworld.World) {
	a.tb.Helper()
	a.ModelKey = "sk-ant-api03-" + strings.ReplaceAll(uuid.NewString(), "-", "")
	w.Model.RequireKey(a.ModelKey)
	a.do("POST", "/api/inference-credentials", body{"name": "the model's", "provider": "anthropic", "base_url": w.Model.URL, "key": a.ModelKey, "default": true})
}

// environment makes an environment of a name of its own, unless the fields give one.
func (a *Account) environment(fields body) string {
	a.tb.Helper()
	return call[struct{ ID string }](a, "POST", "/api/environments", body{"name": "environment " + uuid.NewString()[:8]}.with(fields)).ID
}

// claude makes an agent with the claude adapter.
func (a *Account) claude(fields body) string {
	a.tb.Helper()
	return call[struct{ ID string }](a, "POST", "/api/agents", body{"name": "builder " + uuid.NewString()[:8], "runtime": "claude", "model": "anthropic/claude-test-1"}.with(fields)).ID
}

// workspace starts a workspace.
func (a *Account) workspace(environmentID string) Workspace {
	a.tb.Helper()
	return call[Workspace](a, "POST", "/api/workspaces", body{"name": "workspace " + uuid.NewString()[:8], "environment_id": environmentID})
}

// settled waits for the end of a workspace's setup, good or bad.
func (a *Account) settled(id string) Workspace {
	a.tb.Helper()
	var w Workspace
	until(a.tb, "the setup to end", func() bool {
		w = get[Workspace](a, "/api/workspaces/"+id)
		return w.Status != "provisioning"
	})
	return w
}

// ready waits for a workspace's setup, which must end well.
func (a *Account) ready(id string) Workspace {
	a.tb.Helper()
	w := a.settled(id)
	if w.Status != "ready" {
		a.tb.Fatalf("the workspace is %s: %+v", w.Status, w.Error)
	}
	return w
}

// launch starts a conversation.
func (a *Account) launch(agentID string, fields body) Conversation {
	a.tb.Helper()
	return call[Conversation](a, "POST", "/api/conversations", body{"agent_id": agentID}.with(fields))
}

// prompt opens the next turn of a conversation.
func (a *Account) prompt(id, text string) Turn {
	a.tb.Helper()
	return call[Turn](a, "POST", "/api/conversations/"+id+"/prompts", body{"prompt": text})
}

func (a *Account) turn(id string, number int) Turn {
	a.tb.Helper()
	return get[Turn](a, fmt.Sprintf("/api/conversations/%s/turns/%d", id, number))
}

// ended waits for a turn's end.
func (a *Account) ended(id string, number int) Turn {
	a.tb.Helper()
	var t Turn
	until(a.tb, fmt.Sprintf("turn %d of %s to end", number, id), func() bool {
		t = a.turn(id, number)
		return t.EndedAt != nil
	})
	return t
}

// completed waits for a turn's end, which must be a good one.
func (a *Account) completed(id string, number int) Turn {
	a.tb.Helper()
	t := a.ended(id, number)
	if t.Status != "completed" {
		a.tb.Fatalf("turn %d is %s (%s): %+v", number, t.Status, t.Reason, t.Error)
	}
	return t
}

// events reads a conversation's whole transcript, page by page.
func (a *Account) events(id string, limit int, query ...string) []Event {
	a.tb.Helper()
	var all []Event
	cursor := "0"
	for {
		var page struct {
			Data []Event
			Meta struct {
				HasMore    bool   `json:"has_more"`
				NextCursor string `json:"next_cursor"`
			}
		}
		path := fmt.Sprintf("/api/conversations/%s/events?limit=%d&after=%s", id, limit, url.QueryEscape(cursor))
		for _, q := range query {
			path += "&" + q
		}
		if err := a.Get(a.tb.Context(), path, &page); err != nil {
			a.tb.Fatal(err)
		}
		if len(page.Data) > limit {
			a.tb.Fatalf("%d rows on a page of %d", len(page.Data), limit)
		}
		all = append(all, page.Data...)
		if !page.Meta.HasMore {
			return all
		}
		cursor = page.Meta.NextCursor
	}
}

// rows are a conversation's rows of some types.
func (a *Account) rows(id string, types ...string) []Event {
	a.tb.Helper()
	return a.events(id, 500, "types="+strings.Join(types, ","))
}

// said is all that the agent said in a conversation.
func (a *Account) said(id string) string {
	a.tb.Helper()
	var b strings.Builder
	for _, e := range a.rows(id, "message") {
		b.WriteString(e.Body.Text)
	}
	return b.String()
}

// download reads an endpoint that answers with a file.
func (a *Account) download(path string) []byte {
	a.tb.Helper()
	var b bytes.Buffer
	if err := a.Download(a.tb.Context(), path, "*/*", &b); err != nil {
		a.tb.Fatalf("GET %s: %v", path, err)
	}
	return b.Bytes()
}

// file reads a text file of a workspace's disk.
func (a *Account) file(workspaceID, path string) string {
	a.tb.Helper()
	return get[struct{ Content string }](a, "/api/workspaces/"+workspaceID+"/file?path="+url.QueryEscape(path)).Content
}

// gone tells whether there is nothing to read at a path of the API.
func (a *Account) gone(path string) bool {
	a.tb.Helper()
	err := a.Get(a.tb.Context(), path, nil)
	var no *client.Refused
	if errors.As(err, &no) && no.Status == 404 {
		return true
	}
	if err != nil {
		a.tb.Fatalf("GET %s: %v", path, err)
	}
	return false
}

// has tells whether a file is on a workspace's disk.
func (a *Account) has(workspaceID, path string) bool {
	a.tb.Helper()
	return !a.gone("/api/workspaces/" + workspaceID + "/file?path=" + url.QueryEscape(path))
}

// git runs git on this host and returns what it printed.
func git(tb testing.TB, dir string, args ...string) string {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		tb.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// checkout clones a repository of the world afresh.
func checkout(tb testing.TB, repo *testworld.Repository) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "clone")
	git(tb, "/", "clone", "--quiet", repo.Dir, dir)
	return dir
}
