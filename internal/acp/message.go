// Package acp is the client's side of the Agent Client Protocol over an agent's standard streams: lines, JSON-RPC
// messages, and calls. The protocol's types come from the SDK; the raw lines stay beside them, since the transcript
// keeps what really came.
package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// Error codes of JSON-RPC.
const (
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// Message is one JSON-RPC message, still encoded inside.
type Message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Error is an agent's error answer.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string {
	if len(e.Data) > 0 && !bytes.Equal(e.Data, []byte("null")) {
		return fmt.Sprintf("%s (%d): %s", e.Message, e.Code, e.Data)
	}
	return fmt.Sprintf("%s (%d)", e.Message, e.Code)
}

// errNotAMessage says that a line is no JSON-RPC message: something else prints on the agent's standard output.
var errNotAMessage = errors.New("not a JSON-RPC message")

// Parse reads a line.
func Parse(line []byte) (Message, error) {
	var m Message
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) == 0 || trimmed[0] != '{' || json.Unmarshal(trimmed, &m) != nil {
		return Message{}, errNotAMessage
	}
	if bytes.Equal(m.ID, []byte("null")) {
		m.ID = nil
	}
	if m.Method == "" && (m.ID == nil || m.Error == nil && m.Result == nil) {
		return Message{}, errNotAMessage
	}
	return m, nil
}

// Request tells that the sender wants an answer.
func (m Message) Request() bool { return m.Method != "" && m.ID != nil }

// Response tells that it answers a request of ours.
func (m Message) Response() bool { return m.Method == "" }

var (
	longID     = regexp.MustCompile(`"id"\s*:\s*(\d+|"(?:[^"\\]|\\.)*")`)
	longMethod = regexp.MustCompile(`"method"\s*:\s*"([^"\\]*)"`)
)

// Truncated reads what can be known of a message from the first bytes of its line: enough to refuse a request.
func Truncated(start []byte) Message {
	var m Message
	if id := longID.FindSubmatch(start); id != nil {
		m.ID = id[1]
	}
	if method := longMethod.FindSubmatch(start); method != nil {
		m.Method = string(method[1])
	}
	return m
}
