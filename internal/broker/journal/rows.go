// Package journal holds what the egress process remembers of the traffic it carried: its two kinds of rows, and
// the bounded spool on disk that keeps them until the server has stored them.
package journal

import (
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// Listener of the guest where a request was made.
type Listener string

// Listeners.
const (
	Proxy Listener = "proxy" // the proxy's port
	Model Listener = "model" // the model gateway's name
	API   Listener = "api"   // the server's name
)

// Decision about one request.
type Decision string

// Decisions.
const (
	Allowed  Decision = "allowed"  // went out as it was
	Injected Decision = "injected" // went out with a credential put in
	Denied   Decision = "denied"   // refused by a rule
	Failed   Decision = "failed"   // allowed, but the other side could not be reached or broke off
)

// Names of rules that decide about a request besides those of package rule.
const (
	RuleMachine      = "machine"       // no token: the machine's own policy decided
	RuleUnknownToken = "unknown_token" // a token that is not, or no longer, one of this machine's
	RulePrivate      = "private_address"
	RuleSNI          = "sni_mismatch"  // the TLS client asked for another name than the tunnel's
	RuleProtocol     = "protocol"      // not a request a proxy can carry
	RuleGateway      = "model_gateway" // the model gateway's own rules
	RuleAPI          = "managoat_api"
	RuleConnections  = "connection_limit"
)

// Request is one row of the request log. It never holds a path, a query, a header value or a body.
type Request struct {
	ID             uuid.UUID  `json:"id"` // rows may be delivered again after a crash, with the same ID
	At             time.Time  `json:"at"` // when the request began, by the clock of the egress host
	TenantID       uuid.UUID  `json:"tenant_id"`
	WorkspaceID    uuid.UUID  `json:"workspace_id"`
	MachineID      uuid.UUID  `json:"machine_id"`
	ConversationID *uuid.UUID `json:"conversation_id,omitempty"` // nil: a request without a token
	TokenID        *uuid.UUID `json:"token_id,omitempty"`
	Listener       Listener   `json:"listener"`
	Method         string     `json:"method"`
	Host           string     `json:"host"`
	Port           int        `json:"port"`
	Decision       Decision   `json:"decision"`
	Rule           string     `json:"rule"`
	CredentialKeys []string   `json:"credential_keys,omitempty"` // names of what was put in, never values
	Status         int        `json:"status"`                    // what the machine was answered; 0: nothing
	BytesOut       int64      `json:"bytes_out"`                 // machine → host
	BytesIn        int64      `json:"bytes_in"`                  // host → machine
	LatencyMS      float64    `json:"latency_ms"`                // until the answer began, or the tunnel stood
	DurationMS     float64    `json:"duration_ms"`               // until it ended
	Error          string     `json:"error,omitempty"`
	Dropped        int64      `json:"dropped,omitempty"` // rows lost right before this one because the spool was full
}

// Completeness of a usage row's numbers.
type Completeness string

// How much of the provider's own numbers were read.
const (
	Complete Completeness = "complete" // the provider's final numbers
	Partial  Completeness = "partial"  // the stream broke off before them: a lower bound
	None     Completeness = "none"     // the provider gave none
)

// Usage is the metering record of one model call that went, or was to go, to a provider.
type Usage struct {
	ID             uuid.UUID `json:"id"`
	At             time.Time `json:"at"`
	TenantID       uuid.UUID `json:"tenant_id"`
	WorkspaceID    uuid.UUID `json:"workspace_id"`
	MachineID      uuid.UUID `json:"machine_id"`
	ConversationID uuid.UUID `json:"conversation_id"`
	TokenID        uuid.UUID `json:"token_id"`
	CredentialID   uuid.UUID `json:"credential_id"`
	Source         string    `json:"source"` // own, pool
	Provider       string    `json:"provider"`
	Call           string    `json:"call"` // "messages", "responses", "chat_completions", "generate_content" …
	ModelRequested string    `json:"model_requested"`
	ModelAnswered  string    `json:"model_answered"` // "" when the provider named none
	Status         int       `json:"status"`         // the provider's; 0: it was not reached
	// Tokens as the provider counted them, in one meaning for all: InputTokens leaves out what was read from or
	// written to a cache; OutputTokens includes reasoning.
	InputTokens      int64        `json:"input_tokens"`
	OutputTokens     int64        `json:"output_tokens"`
	CacheReadTokens  int64        `json:"cache_read_tokens"`
	CacheWriteTokens int64        `json:"cache_write_tokens"`
	Completeness     Completeness `json:"completeness"`
	FirstByteMS      float64      `json:"first_byte_ms"` // until the first byte of the answer's body; 0: none came
	LatencyMS        float64      `json:"latency_ms"`    // until it ended
	Error            string       `json:"error,omitempty"`
	Dropped          int64        `json:"dropped,omitempty"`
}

// Origin is the machine that a row is about.
type Origin struct {
	TenantID    uuid.UUID
	WorkspaceID uuid.UUID
	MachineID   uuid.UUID
}

// NewRequest begins the row of a request that is made at a listener of o now.
func NewRequest(o Origin, at Listener, method string) Request {
	return Request{ID: uuid.Must(uuid.NewV7()), At: time.Now(), TenantID: o.TenantID, WorkspaceID: o.WorkspaceID,
		MachineID: o.MachineID, Listener: at, Method: method}
}

// Since is the time that passed since a row began, in milliseconds.
func Since(at time.Time) float64 { return float64(time.Since(at).Microseconds()) / 1000 }

// Sizes of texts in a row, in bytes. What is longer is cut: machines choose most of these texts.
const (
	maxName  = 255
	maxError = 512
)

// Clean makes the texts of a row fit to be stored: no control characters, no more than their size.
func (r *Request) Clean() {
	r.Method, r.Host = clean(r.Method, maxName), clean(r.Host, maxName)
	r.Rule, r.Error = clean(r.Rule, maxName), clean(r.Error, maxError)
}

// Clean makes the texts of a row fit to be stored.
func (u *Usage) Clean() {
	u.ModelRequested, u.ModelAnswered = clean(u.ModelRequested, maxName), clean(u.ModelAnswered, maxName)
	u.Error = clean(u.Error, maxError)
}

func clean(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}
