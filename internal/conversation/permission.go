package conversation

import (
	"context"
	"encoding/json"
	"time"

	sdk "github.com/coder/acp-go-sdk"
	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/acp"
	"managoat/internal/transcript"
	"managoat/queries"
)

// Outcomes of permission requests.
const (
	autoAllow = "auto_allow" // by the conversation's policy
	cancelled = "cancelled"  // the turn was interrupted
)

// maxOptions bounds the options of a permission request.
const maxOptions = 20

// request handles a request of the agent.
func (p *process) request(m acp.Message, line []byte) {
	switch m.Method {
	case sdk.ClientMethodSessionRequestPermission:
		p.permission(m, line)
	case sdk.ClientMethodFsReadTextFile:
		p.readFile(m)
	case sdk.ClientMethodFsWriteTextFile:
		p.writeFile(m)
	case sdk.ClientMethodTerminalCreate:
		p.createTerminal(m)
	case sdk.ClientMethodTerminalOutput:
		p.terminalOutput(m)
	case sdk.ClientMethodTerminalWaitForExit:
		p.terminalWait(m)
	case sdk.ClientMethodTerminalKill:
		p.killTerminal(m)
	case sdk.ClientMethodTerminalRelease:
		p.releaseTerminal(m)
	default:
		p.refuse(m.ID, acp.CodeMethodNotFound, "the client does not know "+m.Method)
	}
}

// permission answers a permission request by the policy, and shows both. Every policy of this version allows.
func (p *process) permission(m acp.Message, line []byte) {
	var r sdk.RequestPermissionRequest
	if err := json.Unmarshal(m.Params, &r); err != nil || p.turnID == nil || len(r.Options) > maxOptions {
		p.refuse(m.ID, acp.CodeInvalidParams, "the permission request cannot be read")
		return
	}
	fields := permissionFields(m.Params)
	chosen := allowing(r.Options)
	outcome := autoAllow
	if chosen == "" || p.turn == nil || p.turn.stopping.Load() {
		outcome, chosen = cancelled, ""
	}
	id := uuid.Must(uuid.NewV7())
	asked := transcript.PermissionRequestBody{RequestID: id.String(), ToolCallID: p.gate.OneLine(string(r.ToolCall.ToolCallId), maxToolID), Options: []transcript.Option{}}
	if r.ToolCall.Title != nil {
		asked.Title = p.gate.OneLine(*r.ToolCall.Title, maxTitleLen)
	}
	if r.ToolCall.Kind != nil {
		asked.ToolKind = string(*r.ToolCall.Kind)
	}
	if len(fields) > 0 && len(fields) <= maxInput {
		asked.Input = json.RawMessage(p.gate.JSON(fields))
	}
	for _, o := range r.Options {
		asked.Options = append(asked.Options, transcript.Option{ID: p.gate.OneLine(string(o.OptionId), maxToolID), Name: p.gate.OneLine(o.Name, maxTitleLen), Kind: string(o.Kind)})
	}
	optionID := p.gate.OneLine(string(chosen), maxToolID)
	turnID := *p.turnID
	p.add(transcript.Row{Type: transcript.PermissionRequest, Body: asked, Raw: p.rawOf(line), Within: func(ctx context.Context, tx db.Tx) error {
		tool, err := json.Marshal(map[string]any{"title": asked.Title, "kind": asked.ToolKind, "input": asked.Input})
		if err != nil {
			return err
		}
		options, err := json.Marshal(asked.Options)
		if err != nil {
			return err
		}
		now := time.Now()
		return tx.InsertPermissionRequest(ctx, queries.InsertPermissionRequestParams{ID: id, ConversationID: p.id, TurnID: turnID,
			ToolCallID: asked.ToolCallID, Tool: tool, Options: options, Status: "resolved", Outcome: outcome, OptionID: optionID,
			AnsweredBy: "policy", ResolvedAt: &now})
	}}, true)
	p.add(transcript.Row{Type: transcript.PermissionResolved, Body: transcript.PermissionResolvedBody{RequestID: id.String(), Outcome: outcome, OptionID: optionID, By: "policy"}}, true)
	if outcome == cancelled {
		p.reply(m.ID, map[string]any{"outcome": map[string]any{"outcome": "cancelled"}})
		return
	}
	p.reply(m.ID, map[string]any{"outcome": map[string]any{"outcome": "selected", "optionId": chosen}})
}

// allowing picks the option that allows this call. Once comes before always: what a runtime remembers for always it may
// write into the repository it works in.
func allowing(options []sdk.PermissionOption) sdk.PermissionOptionId {
	for _, kind := range []sdk.PermissionOptionKind{sdk.PermissionOptionKindAllowOnce, sdk.PermissionOptionKindAllowAlways} {
		for _, o := range options {
			if o.Kind == kind {
				return o.OptionId
			}
		}
	}
	return ""
}

// permissionFields is the input of the tool that asks, as it came.
func permissionFields(params json.RawMessage) json.RawMessage {
	var r struct {
		ToolCall struct {
			Input json.RawMessage `json:"rawInput"`
		} `json:"toolCall"`
	}
	if json.Unmarshal(params, &r) != nil || string(r.ToolCall.Input) == "null" {
		return nil
	}
	return r.ToolCall.Input
}
