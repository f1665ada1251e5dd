package broker

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"managoat/internal/secret"
)

// The control protocol is HTTP with JSON over a unix socket in the egress directory. The server is the client.
//
//	GET    /hello                    who the process is
//	POST   /state                    settings and the set of machines and tokens; complete: and no others
//	PUT    /machines/{id}            adds or changes one; DELETE removes it
//	PUT    /tokens/{id}              adds or changes one; DELETE removes it
//	GET    /machines/{id}/probe      waits for the machine's guest connection
//	GET    /rows/{requests|usage}    ?after=N acknowledges rows up to N and waits for the next ones
//	POST   /stop                     ends the process gracefully
//
// Every request but /hello and /stop names the boot it is meant for; another process answers 412, and the
// server sends its whole state again. That makes each exchange safe against a process that was replaced
// behind the same path.

// ControlVersion of the protocol. It grows by additions only; another number is another protocol.
const ControlVersion = 1

// bootHeader names the process a request is meant for.
const bootHeader = "Managoat-Egress-Boot"

// Files of the egress directory.
const (
	socketName = "egress.sock"
	lockName   = "egress.lock"
	logName    = "egress.log"
	spoolName  = "spool"
)

// maxSocketPath is what a unix socket's address holds on Linux, without its final NUL.
const maxSocketPath = 107

func socketPath(dir string) (string, error) {
	path := filepath.Join(dir, socketName)
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("the egress directory's path is too long for a unix socket (%d bytes of %d): %s", len(path), maxSocketPath, path)
	}
	return path, nil
}

type hello struct {
	Version   int       `json:"version"`
	Boot      uuid.UUID `json:"boot"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
	Build     string    `json:"build"` // of the binary it runs; "" of those that did not say
}

// retired answers a request to end that holds only while nothing goes through the process.
type retired struct {
	Ends bool `json:"ends"`
}

type state struct {
	Settings Settings  `json:"settings"`
	Machines []Machine `json:"machines"`
	Tokens   []Token   `json:"tokens"`
	Complete bool      `json:"complete"` // what is not named is to be removed
}

type probeAnswer struct {
	Connected bool   `json:"connected"`
	Error     string `json:"error"` // why the last attempt to connect failed
}

type rowBatch struct {
	Rows []json.RawMessage `json:"rows"`
	Last uint64            `json:"last"` // sequence number of the last row; what to acknowledge
}

// tokenWire is a Token as it crosses the control socket, the only place where its key is written out.
type tokenWire struct {
	ID             uuid.UUID       `json:"id"`
	Hash           []byte          `json:"hash"`
	MachineID      uuid.UUID       `json:"machine_id"`
	ConversationID uuid.UUID       `json:"conversation_id"`
	Policy         Policy          `json:"policy"`
	Model          *credentialWire `json:"model,omitempty"`
	AllowedModels  []string        `json:"allowed_models"`
}

type credentialWire struct {
	CredentialID uuid.UUID `json:"credential_id"`
	Source       string    `json:"source"`
	Provider     string    `json:"provider"`
	Kind         string    `json:"kind"`
	BaseURL      string    `json:"base_url"`
	Key          string    `json:"key"`
}

// tokenOnWire gives the key away; it exists so that a Token printed anywhere else cannot.
func tokenOnWire(t Token) tokenWire {
	w := tokenWire{ID: t.ID, Hash: t.Hash[:], MachineID: t.MachineID, ConversationID: t.ConversationID,
		Policy: t.Policy, AllowedModels: t.AllowedModels}
	if m := t.Model; m != nil {
		w.Model = &credentialWire{m.CredentialID, m.Source, m.Provider, m.Kind, m.BaseURL, m.Key.Reveal()}
	}
	return w
}

func (w tokenWire) token() (Token, error) {
	t := Token{ID: w.ID, MachineID: w.MachineID, ConversationID: w.ConversationID, Policy: w.Policy, AllowedModels: w.AllowedModels}
	if copy(t.Hash[:], w.Hash) != len(t.Hash) || len(w.Hash) != len(t.Hash) {
		return Token{}, fmt.Errorf("token %s: its hash has %d bytes, want %d", w.ID, len(w.Hash), len(t.Hash))
	}
	if m := w.Model; m != nil {
		t.Model = &ModelCredential{CredentialID: m.CredentialID, Source: m.Source, Provider: m.Provider,
			Kind: m.Kind, BaseURL: m.BaseURL, Key: secret.New(m.Key)}
	}
	return t, nil
}

type stateWire struct {
	Settings Settings    `json:"settings"`
	Machines []Machine   `json:"machines"`
	Tokens   []tokenWire `json:"tokens"`
	Complete bool        `json:"complete"`
}

func stateOnWire(s state) stateWire {
	w := stateWire{Settings: s.Settings, Machines: s.Machines, Complete: s.Complete}
	for _, t := range s.Tokens {
		w.Tokens = append(w.Tokens, tokenOnWire(t))
	}
	return w
}

func (w stateWire) state() (state, error) {
	s := state{Settings: w.Settings, Machines: w.Machines, Complete: w.Complete}
	for _, tw := range w.Tokens {
		t, err := tw.token()
		if err != nil {
			return state{}, err
		}
		s.Tokens = append(s.Tokens, t)
	}
	return s, nil
}
