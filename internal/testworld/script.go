package testworld

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Reply is the model's answer to one call: what it does, in order. Its stop reason is tool_use if it called a
// tool and end_turn if not, unless Stop says otherwise.
type Reply []Step

// Step is one thing that a reply does. An error ends the reply: an errClient is the client's doing or the
// script's wish, any other is a fault of the script, which fails the test.
type Step func(*answer) error

// Input is the input of a tool.
type Input map[string]any

// Say streams text, each chunk as an event of its own.
func Say(chunks ...string) Step {
	return func(a *answer) error {
		for _, chunk := range chunks {
			if err := a.text(chunk); err != nil {
				return err
			}
		}
		return nil
	}
}

// SayPaced is Say with a pause before each chunk.
func SayPaced(pace time.Duration, chunks ...string) Step {
	return func(a *answer) error {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for _, chunk := range chunks {
			select {
			case <-tick.C:
			case <-a.ctx.Done():
				return errHungUp
			}
			if err := a.text(chunk); err != nil {
				return err
			}
		}
		return nil
	}
}

// SayJSON streams text given as the inside of a JSON string, unchecked: `\ud800` is a lone surrogate, "\xff" a
// byte that is no UTF-8.
func SayJSON(escaped string) Step {
	return func(a *answer) error { return a.rawText(escaped, len(escaped)) }
}

// SaySplit streams text in one event that is written in two pieces, the second one after the reader had time to
// take the first, cut so that the text's first `at` bytes are in the first piece: for a cut inside a character
// or a secret.
func SaySplit(text string, at int) Step {
	return func(a *answer) error { return a.rawText(text, at) }
}

// Think streams a thought.
func Think(text string) Step {
	return func(a *answer) error { return a.thought(text) }
}

// Call calls a tool of the client, with its input in two pieces.
func Call(tool string, input Input) Step {
	return func(a *answer) error {
		if !a.ask.hasTool(tool) {
			return fmt.Errorf("the client offers no tool %s, it has %s", tool, strings.Join(a.ask.toolNames(), ", "))
		}
		encoded, err := json.Marshal(input)
		if err != nil {
			return err
		}
		return a.tool(tool, encoded)
	}
}

// Stop ends the reply with another stop reason: max_tokens, refusal, pause_turn.
func Stop(reason string) Step {
	return func(a *answer) error {
		a.stop = reason
		return nil
	}
}

// Tokens are the usage that a reply reports.
type Tokens struct {
	Input      int `json:"input_tokens"`
	Output     int `json:"output_tokens"`
	CacheRead  int `json:"cache_read_input_tokens"`
	CacheWrite int `json:"cache_creation_input_tokens"`
}

// DefaultTokens are the usage of a reply that says none.
var DefaultTokens = Tokens{Input: 1200, Output: 34, CacheRead: 1000, CacheWrite: 10}

// Use sets the usage of the reply. It comes first: the stream opens with it.
func Use(tokens Tokens) Step {
	return func(a *answer) error {
		a.tokens = tokens
		return nil
	}
}

// Gate holds a reply until the test opens it.
type Gate struct {
	reached, open         chan struct{}
	reachedOnce, openOnce sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{reached: make(chan struct{}), open: make(chan struct{})} }

// Open lets everything through from now on.
func (g *Gate) Open() { g.openOnce.Do(func() { close(g.open) }) }

// Reached is closed when the first reply stands before the gate.
func (g *Gate) Reached() <-chan struct{} { return g.reached }

// Wait holds the reply until the gate is open. What the reply said before is with the client by then.
func Wait(g *Gate) Step {
	return func(a *answer) error {
		if err := a.begin(); err != nil {
			return err
		}
		g.reachedOnce.Do(func() { close(g.reached) })
		select {
		case <-g.open:
			return nil
		case <-a.ctx.Done():
			return errHungUp
		}
	}
}

// HangUp drops the connection, in the middle of the stream if the reply has begun.
func HangUp() Step {
	return func(*answer) error { return errHungUp }
}

// Fail answers with an error of the API: 400, 401, 403, 404, 413, 429, 500 or 529. In the middle of a reply it is an
// event of the stream.
func Fail(status int) Step {
	return func(*answer) error { return apiError(status) }
}

// FailFirst is Fail for the first n times that it is asked, and nothing afterwards: what a retry sees.
func FailFirst(n int, status int) Step {
	var asked atomic.Int64
	return func(*answer) error {
		if asked.Add(1) <= int64(n) {
			return apiError(status)
		}
		return nil
	}
}

// ToolSaid checks that the result of the last tool call contains the text. A script that goes on without what
// it went for would prove nothing.
func ToolSaid(text string) Step {
	return func(a *answer) error {
		if result := a.ask.lastResult(); !strings.Contains(result, text) {
			return fmt.Errorf("the last tool result lacks %q, it is %q", text, result)
		}
		return nil
	}
}

// errHungUp ends the connection without another byte.
var errHungUp = errors.New("connection dropped")

// apiError is an error status of the model's API.
type apiError int

func (e apiError) Error() string { return fmt.Sprintf("scripted error %d", int(e)) }

// kind is the API's name of the error.
func (e apiError) kind() string {
	switch e {
	case http.StatusBadRequest:
		return "invalid_request_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case 529:
		return "overloaded_error"
	}
	return "api_error"
}

func (e apiError) body(message string) any {
	return map[string]any{
		"type":  "error",
		"error": map[string]string{"type": e.kind(), "message": message},
	}
}
