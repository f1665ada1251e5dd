package views

import "time"

// SettingsPage is the account's settings; Tab says which part is filled.
type SettingsPage struct {
	Page
	Tab         string // keys, credentials, sessions, members, account
	Keys        KeysTab
	Credentials CredentialsTab
	Sessions    []SessionRow
	Members     []MemberRow
	Account     AccountTab
}

// AccountTab is the account, and its end.
type AccountTab struct {
	Name   string
	Email  string // of who looks
	Owner  bool   // who looks may delete it
	Errors Errors
}

// KeysTab lists API keys and makes new ones.
type KeysTab struct {
	Made   string // the plaintext of a key just made: shown once
	Rows   []KeyRow
	Name   string
	Errors Errors
}

// KeyRow is one API key.
type KeyRow struct {
	Name      string
	Prefix    string
	Scope     string
	CreatedAt time.Time
	UsedAt    time.Time // zero: never
	ExpiresAt time.Time
	DeleteURL string
}

// CredentialsTab lists inference credentials and makes new ones.
type CredentialsTab struct {
	Rows      []CredentialRow
	Form      CredentialForm
	Providers []Option
}

// CredentialRow is one inference credential.
type CredentialRow struct {
	Name       string
	Provider   string
	Kind       string // "API key", "subscription token"
	BaseURL    string
	Default    bool
	ChangedAt  time.Time
	DefaultURL string
	DeleteURL  string
}

// CredentialForm is a credential as it is written; its key is never shown again.
type CredentialForm struct {
	Name, Provider, Kind, BaseURL string
	Default                       bool
	Errors                        Errors
}

// SessionRow is one signed-in browser.
type SessionRow struct {
	Browser   string
	Address   string
	Email     string
	Current   bool
	CreatedAt time.Time
	UsedAt    time.Time
	DeleteURL string
}

// MemberRow is one person of the account.
type MemberRow struct {
	Email    string
	Role     string
	JoinedAt time.Time
	You      bool
}

// AuditPage lists who changed what.
type AuditPage struct {
	Page
	Action, Actor string // filters: an action; a kind of actor
	Actions       []string
	Kinds         []Option
	Rows          []AuditRow
	Pager         Pager
}

// AuditRow is one change.
type AuditRow struct {
	At        time.Time
	Actor     string
	ActorKind string // user, key, sandbox, operator, system
	Action    string
	Resource  Link
	Changed   []string
	RequestID string
	Address   string
}
