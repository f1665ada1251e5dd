package api

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/conversation"
	"managoat/internal/ledger"
	"managoat/internal/refusal"
	"managoat/internal/stream"
	"managoat/internal/transcript"
)

// Conversations are the endpoints of conversations, their turns and their transcripts.
type Conversations struct {
	Service *conversation.Service
	Reader  *stream.Reader
	Ledger  *ledger.Service
}

// List answers GET /api/conversations.
func (h Conversations) List(ctx context.Context, in *struct {
	PageQuery
	Status      string `query:"status" doc:"pending, running, idle, failed or terminated"`
	AgentID     string `query:"agent_id"`
	WorkspaceID string `query:"workspace_id"`
	Label       string `query:"label" doc:"key:value"`
	Q           string `query:"q" doc:"text in the title or a prompt"`
}) (*Many[conversation.Conversation], error) {
	f := conversation.Filter{Status: in.Status, Label: in.Label, Text: in.Q}
	for _, id := range []struct {
		text string
		into **uuid.UUID
	}{{in.AgentID, &f.AgentID}, {in.WorkspaceID, &f.WorkspaceID}} {
		if id.text == "" {
			continue
		}
		v, err := uuid.Parse(id.text)
		if err != nil {
			return ListOf[conversation.Conversation](nil, Meta{Limit: in.Limit}), nil // nothing has such an id
		}
		*id.into = &v
	}
	return PageOf(h.Service.List(ctx, Actor(ctx), f, in.Page()))
}

// Create answers POST /api/conversations.
func (h Conversations) Create(ctx context.Context, in *Create[conversation.CreateInput]) (*One[conversation.Conversation], error) {
	var c conversation.CreateInput
	if err := in.Body.Over(&c); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Create(ctx, Actor(ctx), c))
}

// Get answers GET /api/conversations/{id}.
func (h Conversations) Get(ctx context.Context, in *ByID) (*One[conversation.Conversation], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Get(ctx, Actor(ctx), id))
}

// Patch answers PATCH /api/conversations/{id}.
func (h Conversations) Patch(ctx context.Context, in *Change[conversation.PatchInput]) (*One[conversation.Conversation], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var p conversation.PatchInput
	if err := in.Body.Over(&p); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Patch(ctx, Actor(ctx), id, p))
}

// Delete answers DELETE /api/conversations/{id}.
func (h Conversations) Delete(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.Delete(ctx, Actor(ctx), id)
}

// Prompted is the answer to a prompt.
type Prompted struct {
	Status          string            `json:"status" enum:"queued"`
	ClientRequestID string            `json:"client_request_id"`
	Data            conversation.Turn `json:"data"`
}

// Prompt answers POST /api/conversations/{id}/prompts.
func (h Conversations) Prompt(ctx context.Context, in *Change[conversation.PromptInput]) (*struct{ Body Prompted }, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var p conversation.PromptInput
	if err := in.Body.Over(&p); err != nil {
		return nil, err
	}
	turn, err := h.Service.Prompt(ctx, Actor(ctx), id, p)
	if err != nil {
		return nil, err
	}
	return &struct{ Body Prompted }{Prompted{Status: "queued", ClientRequestID: p.ClientRequestID, Data: turn}}, nil
}

// InterruptInput names the turn to end.
type InterruptInput struct {
	TurnID *uuid.UUID `json:"turn_id" doc:"null: the one that runs, else the next that waits"`
}

// Interrupt answers POST /api/conversations/{id}/interrupt.
func (h Conversations) Interrupt(ctx context.Context, in *struct {
	ByID
	Body *Body[InterruptInput]
}) (*One[conversation.Turn], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var i InterruptInput
	if in.Body != nil {
		if err := in.Body.Over(&i); err != nil {
			return nil, err
		}
	}
	return OneOf(h.Service.Interrupt(ctx, Actor(ctx), id, i.TurnID))
}

// Terminate answers POST /api/conversations/{id}/terminate.
func (h Conversations) Terminate(ctx context.Context, in *ByID) (*One[conversation.Conversation], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Terminate(ctx, Actor(ctx), id))
}

// MarkRead answers POST /api/conversations/{id}/read.
func (h Conversations) MarkRead(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.MarkRead(ctx, Actor(ctx), id)
}

// Turns answers GET /api/conversations/{id}/turns.
func (h Conversations) Turns(ctx context.Context, in *struct {
	ByID
	PageQuery
}) (*Many[conversation.Turn], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return PageOf(h.Service.Turns(ctx, Actor(ctx), id, in.Page()))
}

// Turn answers GET /api/conversations/{id}/turns/{number}.
func (h Conversations) Turn(ctx context.Context, in *struct {
	ByID
	Number int `path:"number" minimum:"1"`
}) (*One[conversation.Turn], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Turn(ctx, Actor(ctx), id, in.Number))
}

// Answer is a person's answer to a permission request.
type Answer struct {
	OptionID string `json:"option_id"`
}

// Answer answers POST /api/conversations/{id}/requests/{request}.
func (h Conversations) Answer(ctx context.Context, in *struct {
	ByID
	Request string `path:"request"`
	Body    Body[Answer]
}) (*One[conversation.Request], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	request, err := uuid.Parse(in.Request)
	if err != nil {
		return nil, refusal.NotFoundError()
	}
	var a Answer
	if err := in.Body.Over(&a); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Answer(ctx, Actor(ctx), id, request, a.OptionID))
}

// Egress answers GET /api/conversations/{id}/egress.
func (h Conversations) Egress(ctx context.Context, in *struct {
	ByID
	BeforeQuery
}) (*Many[ledger.Request], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	if err := h.Service.Reach(ctx, Actor(ctx), id); err != nil {
		return nil, err
	}
	return PageOf(h.Ledger.EgressOfConversation(ctx, Actor(ctx), id, in.Page()))
}

// Ledger answers GET /api/ledger.
func (h Conversations) Entries(ctx context.Context, in *struct {
	PageQuery
	ConversationID string `query:"conversation_id"`
	TurnID         string `query:"turn_id"`
}) (*Many[ledger.Entry], error) {
	var f ledger.Filter
	for _, id := range []struct {
		text string
		into **uuid.UUID
	}{{in.ConversationID, &f.ConversationID}, {in.TurnID, &f.TurnID}} {
		if id.text == "" {
			continue
		}
		v, err := uuid.Parse(id.text)
		if err != nil {
			return nil, refusal.NotFoundError()
		}
		*id.into = &v
	}
	return PageOf(h.Ledger.Entries(ctx, Actor(ctx), f, in.Page()))
}

// Events answers GET /api/conversations/{id}/events.
func (h Conversations) Events(ctx context.Context, in *struct {
	ByID
	After   int64    `query:"after" minimum:"0" doc:"rows with a greater number"`
	Limit   int      `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Types   []string `query:"types" doc:"types of rows, comma separated"`
	Streams []string `query:"streams" doc:"acp, stdout, stderr, stage, comma separated"`
	Blocks  bool     `query:"blocks" doc:"also the rows' parsed blocks"`
	Raw     bool     `query:"raw" default:"true" doc:"false leaves out data and blocks"`
	Prompts bool     `query:"prompts" doc:"accepted: prompts are always there"`
}) (*Many[transcript.Event], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	actor := Actor(ctx)
	if err := h.Service.Reach(ctx, actor, id); err != nil {
		return nil, err
	}
	rows, more, err := h.Reader.List(ctx, stream.Query{TenantID: actor.TenantID, ConversationID: id, After: in.After, Types: in.Types, Streams: in.Streams}, in.Limit)
	if err != nil {
		return nil, err
	}
	events := make([]transcript.Event, len(rows))
	for i, r := range rows {
		events[i] = transcript.Wire(r, transcript.View{Raw: in.Raw, Blocks: in.Blocks})
	}
	meta := Meta{Limit: in.Limit, HasMore: more}
	if len(rows) > 0 {
		meta.NextCursor = number(rows[len(rows)-1].Seq)
	}
	return ListOf(events, meta), nil
}

// Stream answers GET /api/conversations/{id}/stream: the transcript from a cursor on, then live, as server-sent events.
func (h Conversations) Stream(c echo.Context) error {
	r := c.Request()
	actor := Actor(r.Context())
	id, err := uuid.Parse(c.Param("id"))
	if err != nil {
		return refusal.NotFoundError()
	}
	if err := h.Service.Reach(r.Context(), actor, id); err != nil {
		return err
	}
	q := stream.Query{
		TenantID: actor.TenantID, ConversationID: id, After: stream.Cursor(r, 0), Types: split(c.QueryParam("types")), Streams: split(c.QueryParam("streams")),
		Wait: c.QueryParam("wait") != "false",
	}
	view := transcript.View{Raw: c.QueryParam("raw") != "false", Blocks: c.QueryParam("blocks") == "true"}
	return stream.ServeSSE(c.Response(), r, h.Reader.Follow(r.Context(), q), func(i stream.Item) (stream.Frame, bool, error) {
		e := transcript.Wire(i.Event, view)
		data, err := json.Marshal(e)
		return stream.Frame{ID: e.Seq, Event: e.Kind, Data: data}, true, err
	})
}

// DescribeStream documents Stream.
func DescribeStream(op *huma.Operation, schemas huma.Registry) {
	pathID(op)
	cursorParams(op)
	op.Parameters = append(op.Parameters,
		query("types", "string", "types of rows, comma separated"), query("streams", "string", "acp, stdout, stderr, stage, comma separated"),
		query("blocks", "boolean", "also the rows' parsed blocks"), query("raw", "boolean", "false leaves out data and blocks"))
	sseAnswer(op, "a row's number", "its kind", schemaOf[transcript.Event](schemas))
}

// Account is the endpoint of the account's own stream.
type Account struct{ Reader *stream.Reader }

// Stream answers GET /api/events/stream.
func (h Account) Stream(c echo.Context) error {
	r := c.Request()
	items := h.Reader.FollowAccount(r.Context(), Actor(r.Context()).TenantID, stream.Cursor(r, stream.FromNow), c.QueryParam("wait") != "false")
	return stream.ServeSSE(c.Response(), r, items, func(i stream.Item) (stream.Frame, bool, error) {
		return stream.Frame{ID: i.Account.Seq, Event: i.Account.Name, Data: i.Account.Body}, true, nil
	})
}

// DescribeAccountStream documents it.
func DescribeAccountStream(op *huma.Operation, _ huma.Registry) {
	cursorParams(op)
	sseAnswer(op, "an event's number", "its name", &huma.Schema{Type: huma.TypeObject, Description: "of the event's name", AdditionalProperties: true})
}

func cursorParams(op *huma.Operation) {
	op.Parameters = append(op.Parameters,
		&huma.Param{Name: "Last-Event-ID", In: "header", Description: "the id of the last frame that came: the stream goes on after it", Schema: &huma.Schema{Type: "string"}},
		query("after", "integer", "as Last-Event-ID; the larger wins"), query("wait", "boolean", "false ends the stream after what is there"))
}

func sseAnswer(op *huma.Operation, id, event string, data *huma.Schema) {
	answers(op, "Server-sent events.", map[string]*huma.Schema{"text/event-stream": {Type: huma.TypeString,
		Description: "Frames: id is " + id + ", event is " + event + ", data is JSON. Lines that begin with a colon keep the connection alive.",
		Extensions:  map[string]any{"contentMediaType": "application/json", "contentSchema": data}}})
}

func split(list string) []string {
	var out []string
	for _, s := range strings.Split(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
