package testworld

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Model is a model behind the Anthropic Messages API, over HTTPS under its name and over HTTP on loopback. It
// says what its scripts say: Script for the turns of conversations; what a client asks on the side (titles,
// suggestions, quota checks) gets a plain answer.
type Model struct {
	*service
	LoopbackURL string // the same model over HTTP at an address, for clients without a resolver

	report Reporter
	ids    atomic.Int64

	mu      sync.Mutex
	keys    []string
	scripts []*script
	calls   []ModelCall
}

// ModelCall is one generation that was asked of the model.
type ModelCall struct {
	Request
	Model  string // as asked
	Marker string // of the script that answered; "" for a side request
	Reply  int    // index of the reply in its script
}

type script struct {
	marker  string
	replies []Reply
}

// ModelIDs are the models that it lists. It answers for any name.
var ModelIDs = []string{"claude-opus-4-8", "claude-sonnet-4-8"}

func (w *World) openModel() error {
	service, listener, err := w.listen(ModelName, true)
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	w.Model = &Model{service: service, LoopbackURL: "http://" + plain.Addr().String(), report: w.report}
	w.serve(listener, w.Model)
	w.serve(plain, w.Model)
	return nil
}

// Script answers the turns whose prompt (else whose system prompt) contains the marker: the turn's first model
// call gets the first reply, the call that follows its tool results the second, and so on. Which reply is due is
// read from the conversation itself, so a repeated call gets the same reply again, and any number of
// conversations may play one script. A call for which no script or no reply is left fails the test. Of several
// markers in one prompt the longest counts.
func (m *Model) Script(marker string, replies ...Reply) {
	m.report.Helper()
	if marker == "" || len(replies) == 0 {
		m.report.Fatalf("a script needs a marker and a reply")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scripts = slices.DeleteFunc(m.scripts, func(s *script) bool { return s.marker == marker })
	m.scripts = append(m.scripts, &script{marker, replies})
}

// RequireKey makes the model refuse every other key with 401. Called again, it takes each key it was given.
func (m *Model) RequireKey(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = append(m.keys, key)
}

// Calls are the generations asked so far that a script answered, in order of arrival.
func (m *Model) Calls() []ModelCall {
	return m.filter(func(c ModelCall) bool { return c.Marker != "" })
}

// SideCalls are the generations that clients asked beside their conversations.
func (m *Model) SideCalls() []ModelCall {
	return m.filter(func(c ModelCall) bool { return c.Marker == "" })
}

func (m *Model) filter(keep func(ModelCall) bool) []ModelCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []ModelCall
	for _, call := range m.calls {
		if keep(call) {
			out = append(out, call)
		}
	}
	return out
}

// Heard tells whether the text reached the model in any request's path, headers or body: for what must not
// leave, such as a placeholder or a gateway token.
func (m *Model) Heard(text string) bool {
	for _, r := range m.Requests() {
		if strings.Contains(r.Path, text) || bytes.Contains(r.Body, []byte(text)) {
			return true
		}
		for _, values := range r.Header {
			if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, text) }) {
				return true
			}
		}
	}
	return false
}

// ServeHTTP speaks the Messages API.
func (m *Model) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	kept := m.record(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		writeJSON(rw, http.StatusRequestEntityTooLarge, apiError(http.StatusRequestEntityTooLarge).body(err.Error()))
		return
	}
	m.service.mu.Lock()
	kept.Body = body
	request := *kept
	m.service.mu.Unlock()

	rw.Header().Set("Request-Id", m.id("req"))
	switch route := r.Method + " " + r.URL.Path; {
	case r.URL.Path == "/": // clients warm their connection up with it
		rw.WriteHeader(http.StatusOK)
	case !m.knows(request.Key()):
		writeJSON(rw, http.StatusUnauthorized, apiError(http.StatusUnauthorized).body("invalid x-api-key"))
	case route == "POST /v1/messages":
		m.generate(rw, r.Context(), request)
	case route == "POST /v1/messages/count_tokens":
		writeJSON(rw, http.StatusOK, map[string]int{"input_tokens": DefaultTokens.Input})
	case route == "GET /v1/models":
		writeJSON(rw, http.StatusOK, modelList())
	default:
		writeJSON(rw, http.StatusNotFound, apiError(http.StatusNotFound).body("no such route: "+route))
	}
}

func (m *Model) knows(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys) == 0 || slices.ContainsFunc(m.keys, func(known string) bool {
		return subtle.ConstantTimeCompare([]byte(known), []byte(key)) == 1
	})
}

// id makes an identifier that no other answer of this model has.
func (m *Model) id(prefix string) string { return fmt.Sprintf("%s_test%06d", prefix, m.ids.Add(1)) }

func modelList() any {
	models := make([]map[string]string, len(ModelIDs))
	for i, id := range ModelIDs {
		models[i] = map[string]string{"type": "model", "id": id, "display_name": id, "created_at": "2025-01-01T00:00:00Z"}
	}
	return map[string]any{"data": models, "has_more": false, "first_id": ModelIDs[0], "last_id": ModelIDs[len(ModelIDs)-1]}
}

// generate finds what the conversation is due and plays it.
func (m *Model) generate(rw http.ResponseWriter, ctx context.Context, request Request) {
	var ask ask
	if err := json.Unmarshal(request.Body, &ask); err != nil {
		writeJSON(rw, http.StatusBadRequest, apiError(http.StatusBadRequest).body(err.Error()))
		return
	}
	call := ModelCall{Request: request, Model: ask.Model}
	var reply Reply
	var fault error
	if ask.isSide() {
		reply = Reply{Say(ask.sideText())}
	} else {
		reply, fault = m.due(&ask, &call)
	}
	m.mu.Lock()
	m.calls = append(m.calls, call)
	m.mu.Unlock()
	if fault != nil {
		m.fault(rw, fault, false)
		return
	}
	a := &answer{
		ctx: ctx, rw: rw, ask: &ask, tokens: DefaultTokens,
		id: func(prefix string) string { return m.id(prefix) },
	}
	if err := a.play(reply); err != nil {
		m.fault(rw, fmt.Errorf("script %q, reply %d: %w", call.Marker, call.Reply, err), a.begun)
	}
}

// due is the reply that the conversation is at.
func (m *Model) due(ask *ask, call *ModelCall) (Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, prompt := range ask.prompts() {
		var found *script
		for _, s := range m.scripts {
			if strings.Contains(prompt.text, s.marker) && (found == nil || len(s.marker) > len(found.marker)) {
				found = s
			}
		}
		if found == nil {
			continue
		}
		call.Marker, call.Reply = found.marker, ask.repliesAfter(prompt.message)
		if call.Reply >= len(found.replies) {
			return nil, fmt.Errorf("script %q has %d replies, and the conversation asks for one more; its last message is %s",
				found.marker, len(found.replies), ask.tail())
		}
		return found.replies[call.Reply], nil
	}
	return nil, fmt.Errorf("no script's marker is in the conversation; its last message is %s", ask.tail())
}

// fault fails the test, and the client's call: a stream that has begun breaks off.
func (m *Model) fault(rw http.ResponseWriter, err error, begun bool) {
	m.report.Errorf("scripted model: %v", err)
	if begun {
		panic(http.ErrAbortHandler)
	}
	http.Error(rw, "scripted model: "+err.Error(), http.StatusInternalServerError)
}
