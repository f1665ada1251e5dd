// Package broker is the only way out of a machine. It has two halves that speak over a unix socket in a
// private directory: Serve is the egress process, one per host, which outlives the server; Client is the
// server's side, which tells it about machines and tokens and stores the rows it reports.
//
// What the traffic itself needs lies in the subpackages: rule (who may go where), forward (the proxy), gateway
// (model calls), journal (rows and their spool).
package broker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"

	"github.com/google/uuid"

	"managoat/internal/broker/gateway"
	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
	"managoat/internal/netguard"
	"managoat/sandbox/guest"
)

// Names the broker answers itself; they are dialled nowhere.
const (
	ModelHost = guest.ModelHost // the model gateway
	APIHost   = guest.APIHost   // the server, for keys that live in a machine
)

// Policy says which hosts may be reached.
type Policy = rule.Policy

// ModelCredential is what a conversation's model calls are made with.
type ModelCredential = gateway.Credential

// RequestRow is one row of the request log.
type RequestRow = journal.Request

// UsageRow is the metering record of one model call.
type UsageRow = journal.Usage

// Machine is one running machine whose traffic the egress process carries.
type Machine struct {
	ID          uuid.UUID `json:"id"`
	TenantID    uuid.UUID `json:"tenant_id"`
	WorkspaceID uuid.UUID `json:"workspace_id"`
	Provider    string    `json:"provider"` // sandbox provider's name
	Ref         string    `json:"ref"`      // the provider's id of the machine
	Policy      Policy    `json:"policy"`   // for requests without a token
}

// Token is what a conversation's processes show in their proxy URL and as their model key.
type Token struct {
	ID             uuid.UUID
	Hash           [32]byte // SHA-256 of the plaintext
	MachineID      uuid.UUID
	ConversationID uuid.UUID
	Policy         Policy
	Model          *ModelCredential // nil: this conversation makes no model calls through the gateway
	AllowedModels  []string         // exact model ids; nil: any
}

// Settings are the operator's, pushed to the egress process whenever the server connects to it.
type Settings struct {
	Resolve      map[string][]netip.Addr `json:"resolve"`       // MANAGOAT_RESOLVE, see netguard.ParseResolve
	AllowPrivate []netguard.Allowance    `json:"allow_private"` // MANAGOAT_ALLOW_PRIVATE, see netguard.ParseAllowances
	ExtraCA      []byte                  `json:"extra_ca"`      // PEM, trusted beside the host's roots
	Ports        []int                   `json:"ports"`         // open to unrestricted policies; nil: rule.OpenPorts
	// API is the unix socket on which the server answers for APIHost, absolute. The egress process names the
	// machine there in MachineHeader; nobody else can reach the socket.
	API string `json:"api"`
	// DockerHost is the engine's address of the docker provider, as docker.Options.Host.
	DockerHost string `json:"docker_host,omitempty"`
}

// MachineHeader carries the machine's ID on requests for APIHost. The server trusts it on the socket of
// Settings.API only.
const MachineHeader = "X-Managoat-Machine"

// Explanation says which rule decides about a host and why.
type Explanation = rule.Verdict

// Explain says what a policy makes of a host under the default settings.
func Explain(p Policy, host string, port int) Explanation { return Settings{}.Explain(p, host, port) }

// Explain says what a policy makes of a host under these settings, exactly as the egress process decides
// before it resolves the name.
func (s Settings) Explain(p Policy, host string, port int) Explanation {
	return s.decide(rule.Compile(p), host, port)
}

func (s Settings) decide(p *rule.Compiled, host string, port int) rule.Verdict {
	ports := s.Ports
	if ports == nil {
		ports = rule.OpenPorts
	}
	return p.Decide(host, port, ports, netguard.Allows(s.AllowPrivate, netguard.Machine, host, port))
}

// TokenPrefix marks the plaintext of a token.
const TokenPrefix = "mgw_"

// NewToken makes a token's plaintext (256 random bits) and the hash that stands for it everywhere else.
func NewToken() (plaintext string, hash [32]byte) {
	var raw [32]byte
	rand.Read(raw[:])
	plaintext = TokenPrefix + base64.RawURLEncoding.EncodeToString(raw[:])
	return plaintext, HashToken(plaintext)
}

// HashToken is the hash of a token's plaintext.
func HashToken(plaintext string) [32]byte { return sha256.Sum256([]byte(plaintext)) }

// ProxyEnv is the environment that sends a process's traffic through the broker under a token; "" is for
// processes that have none, which get the machine's policy.
//
// GIT_HTTP_PROXY_AUTHMETHOD makes git show the token at once: by default it waits for a 407 that never comes,
// because requests without a token are served too.
func ProxyEnv(token string) map[string]string {
	url := "http://" + guest.ProxyAddr
	if token != "" {
		url = "http://managoat:" + token + "@" + guest.ProxyAddr
	}
	const direct = "localhost,127.0.0.1,::1," + ModelHost + "," + APIHost
	return map[string]string{
		"HTTP_PROXY": url, "http_proxy": url,
		"HTTPS_PROXY": url, "https_proxy": url,
		"NO_PROXY": direct, "no_proxy": direct,
		"NODE_USE_ENV_PROXY":        "1",
		"GIT_HTTP_PROXY_AUTHMETHOD": "basic",
	}
}
