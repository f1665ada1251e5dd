// Package tenant says who acts, for which account, and holds what belongs to an account as a whole.
package tenant

import (
	"github.com/google/uuid"
)

// ActorKind is who did something.
type ActorKind string

// Kinds of actors, as in audit_events.
const (
	User     ActorKind = "user"     // a person with a browser session; ID is the identity's
	Key      ActorKind = "key"      // an API key; ID is the key's
	Sandbox  ActorKind = "sandbox"  // a conversation's sandbox key; ID is the key's
	Operator ActorKind = "operator" // a platform operator
	System   ActorKind = "system"   // a job of ours; ID is its name
)

// Scope of what an actor may do.
type Scope string

// Scopes.
const (
	ScopeFull    Scope = "full"
	ScopeSandbox Scope = "sandbox"
)

// Actor is who asks for something, in which account. Every service method that changes anything takes one.
type Actor struct {
	TenantID       uuid.UUID
	Kind           ActorKind
	ID             string
	Scope          Scope
	IdentityID     uuid.UUID // the person, or who made the key; zero for system
	SessionID      uuid.UUID // of a browser; zero otherwise
	ConversationID uuid.UUID // of a sandbox key; zero otherwise
	Email          string    // of a person; "" otherwise
	Role           string    // owner or member, of a person
	Account        string    // the account's name
	RequestID      string
	Address        string // of the client
}

// SystemActor is a job of ours acting for one account.
func SystemActor(tenantID uuid.UUID, job string) Actor {
	return Actor{TenantID: tenantID, Kind: System, ID: job, Scope: ScopeFull}
}

// By names the actor in a row that says who made something: a person's e-mail, else the kind and the id.
func (a Actor) By() string {
	if a.Email != "" {
		return a.Email
	}
	return string(a.Kind) + ":" + a.ID
}
