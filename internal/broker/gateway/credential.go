// Package gateway answers for model.managoat.internal: it takes a runtime's model calls, puts the real key in,
// and reads the usage out of the answer as it streams by. The key never enters a machine.
package gateway

import (
	"github.com/google/uuid"

	"managoat/internal/secret"
)

// Providers of models.
const (
	Anthropic        = "anthropic"
	OpenAI           = "openai"
	Google           = "google"
	OpenAICompatible = "openai_compatible"
)

// Kinds of credentials.
const (
	APIKey     = "api_key"
	OAuthToken = "oauth_token" // a subscription's token; anthropic only
)

// Sources of credentials.
const (
	Own  = "own"  // the account's
	Pool = "pool" // the operator's: listed generation calls only
)

// Credential is what a conversation's model calls are made with.
type Credential struct {
	CredentialID uuid.UUID
	Source       string // Own, Pool
	Provider     string // Anthropic, OpenAI, Google, OpenAICompatible
	Kind         string // APIKey, OAuthToken
	BaseURL      string // "": the provider's own
	Key          secret.Value
}
