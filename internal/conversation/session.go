package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/internal/acp"
	"managoat/internal/mcp"
	"managoat/queries"
)

// Patience with a runtime. A machine that is short of memory or CPU starts slowly; a runtime that does not answer at all
// must not hold its turn for ever.
const (
	initializeTimeout = 3 * time.Minute
	sessionTimeout    = 5 * time.Minute
	loadTimeout       = 10 * time.Minute // a long history is replayed
)

// client is how we name ourselves to agents.
var client = sdk.Implementation{Name: "managoat", Version: "1"}

// sessionState tells what became of the runtime's session.
type sessionState string

const (
	sessionNew     sessionState = "new"
	sessionResumed sessionState = "resumed"
	sessionLoaded  sessionState = "loaded"
	sessionLost    sessionState = "lost" // there was one, and the runtime does not have it any more: a new one was made
)

// initialize opens the protocol.
func (p *process) initialize(ctx context.Context) (sdk.AgentCapabilities, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, initializeTimeout, silent("initialize", initializeTimeout))
	defer cancel()
	var answer struct {
		ProtocolVersion   int                   `json:"protocolVersion"`
		AgentCapabilities sdk.AgentCapabilities `json:"agentCapabilities"`
	}
	err := p.peer.Call(ctx, sdk.AgentMethodInitialize, sdk.InitializeRequest{ProtocolVersion: sdk.ProtocolVersionNumber,
		ClientCapabilities: p.runtime.Capabilities(), ClientInfo: &client}, &answer)
	if err != nil {
		return sdk.AgentCapabilities{}, handshake("initialize", err)
	}
	if answer.ProtocolVersion != sdk.ProtocolVersionNumber {
		return sdk.AgentCapabilities{}, fail(CodeAdapterProtocol, "The runtime speaks version %d of the Agent Client Protocol; this server speaks %d.", answer.ProtocolVersion, sdk.ProtocolVersionNumber)
	}
	return answer.AgentCapabilities, nil
}

func (p *process) authenticate(ctx context.Context) error {
	method := p.runtime.AuthMethod()
	if method == "" {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, initializeTimeout, silent("authenticate", initializeTimeout))
	defer cancel()
	return handshake("authenticate", p.peer.Call(ctx, sdk.AgentMethodAuthenticate, sdk.AuthenticateRequest{MethodId: method}, nil))
}

func silent(method string, after time.Duration) error {
	return fail(CodeAdapterSilent, "The runtime did not answer %s within %s.", method, after)
}

// handshake keeps what went wrong before the first prompt apart from what the agent said to one.
func handshake(method string, err error) error {
	var agent *acp.Error
	if errors.As(err, &agent) {
		return fail(CodeAdapterProtocol, "The runtime refused %s: %s", method, agent.Message).with("agent_code", agent.Code).because(err)
	}
	return err
}

// openSession makes the runtime's session, or takes up the one that the conversation had.
func (p *process) openSession(ctx context.Context, c queries.Conversation, caps sdk.AgentCapabilities) (id string, state sessionState, err error) {
	servers := p.runtime.Servers(p.launch)
	if err := takes(servers, caps.McpCapabilities); err != nil {
		return "", "", err
	}
	if c.RuntimeSessionID != "" {
		state, err := p.resume(ctx, c.RuntimeSessionID, caps, servers)
		var agent *acp.Error
		switch {
		case err == nil && state != "":
			return c.RuntimeSessionID, state, p.setUp(ctx, c.RuntimeSessionID)
		case err != nil && !errors.As(err, &agent):
			return "", "", err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sessionTimeout, silent("session/new", sessionTimeout))
	defer cancel()
	var answer struct {
		SessionID string `json:"sessionId"`
	}
	if err := p.peer.Call(ctx, sdk.AgentMethodSessionNew, sdk.NewSessionRequest{Meta: p.runtime.SessionMeta(p.launch, p.cwd), Cwd: p.cwd, McpServers: servers}, &answer); err != nil {
		return "", "", handshake("session/new", err)
	}
	if answer.SessionID == "" || len(answer.SessionID) > maxSessionID {
		return "", "", fail(CodeAdapterProtocol, "The runtime answered session/new without the id of a session.")
	}
	state = sessionNew
	if c.RuntimeSessionID != "" {
		state = sessionLost
	}
	return answer.SessionID, state, p.setUp(ctx, answer.SessionID)
}

// takes refuses servers of a type that the runtime does not take: it would leave them out in silence.
func takes(servers []sdk.McpServer, caps sdk.McpCapabilities) error {
	for _, s := range servers {
		switch {
		case s.Http != nil && !caps.Http:
			return notTaken(s.Http.Name, mcp.HTTP)
		case s.Sse != nil && !caps.Sse:
			return notTaken(s.Sse.Name, mcp.SSE)
		}
	}
	return nil
}

func notTaken(name, kind string) error {
	return fail(CodeMCPTransport, "This runtime takes no MCP servers of the type %s, as the agent's %s is. Give the agent's mcp_servers a command in its place, and send the prompt again.", kind, name).
		with("server", name).with("type", kind)
}

// maxSessionID bounds a runtime's session id, in bytes.
const maxSessionID = 500

// resume takes up a session; "" when the runtime has no way to. What it replays of the history is
// stored already, and dropped: until the process knows its session's id, no update is of it.
func (p *process) resume(ctx context.Context, id string, caps sdk.AgentCapabilities, servers []sdk.McpServer) (sessionState, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, loadTimeout, silent("session/load", loadTimeout))
	defer cancel()
	switch {
	case caps.SessionCapabilities.Resume != nil:
		err := p.peer.Call(ctx, sdk.AgentMethodSessionResume, sdk.ResumeSessionRequest{Meta: p.runtime.SessionMeta(p.launch, p.cwd), SessionId: sdk.SessionId(id), Cwd: p.cwd, McpServers: servers}, nil)
		return sessionResumed, err
	case caps.LoadSession:
		err := p.peer.Call(ctx, sdk.AgentMethodSessionLoad, sdk.LoadSessionRequest{Meta: p.runtime.SessionMeta(p.launch, p.cwd), SessionId: sdk.SessionId(id), Cwd: p.cwd, McpServers: servers}, nil)
		return sessionLoaded, err
	}
	return "", nil
}

// setUp brings a session into the mode that the conversation's policy is made for. Load and resume forget it.
func (p *process) setUp(ctx context.Context, id string) error {
	mode := p.runtime.Mode()
	if mode == "" {
		return nil
	}
	err := p.peer.Call(ctx, sdk.AgentMethodSessionSetMode, sdk.SetSessionModeRequest{SessionId: sdk.SessionId(id), ModeId: sdk.SessionModeId(mode)}, nil)
	if err != nil {
		return handshake("session/set_mode", err)
	}
	return nil
}

// promptParams is a prompt as the protocol carries it.
func promptParams(session string, t queries.Turn, caps sdk.PromptCapabilities) (map[string]any, error) {
	blocks := []map[string]any{{"type": "text", "text": t.Prompt}}
	var images []image
	if err := json.Unmarshal(t.Images, &images); err != nil {
		return nil, fmt.Errorf("read the prompt's images: %w", err)
	}
	if len(images) > 0 && !caps.Image {
		return nil, fail(CodeImagesUnsupported, "This runtime takes no images. Send the prompt without them, or put them into files of the workspace.")
	}
	for _, i := range images {
		blocks = append(blocks, map[string]any{"type": "image", "data": i.Data, "mimeType": i.MediaType})
	}
	return map[string]any{"sessionId": session, "prompt": blocks}, nil
}
