package views

import "time"

// EnvironmentsPage lists environments.
type EnvironmentsPage struct {
	Page
	Rows  []EnvironmentRow
	Pager Pager
}

// EnvironmentRow is one environment in the list.
type EnvironmentRow struct {
	Name       Link
	Holds      string // "apt 3, npm 1 · 2 repositories · setup script"
	Network    string
	Workspaces int
	UpdatedAt  time.Time
}

// EnvironmentForm is an environment as it is written. Lists are text, one entry a line, so that they can be
// pasted.
type EnvironmentForm struct {
	Name         string
	Apt          string
	Npm          string
	Pip          string
	Repositories []RepositoryForm
	EnvVars      string // KEY=value, one a line
	Networking   string // unrestricted, limited
	AllowedHosts string
	SetupScript  string
	SetupTimeout string // seconds
	Errors       Errors
}

// RepositoryForm is one repository to clone.
type RepositoryForm struct {
	URL, MountPath, Ref, SecretKey string
}

// EnvironmentFormPage makes an environment.
type EnvironmentFormPage struct {
	Page
	Form EnvironmentForm
}

// EnvironmentPage is one environment with its secrets.
type EnvironmentPage struct {
	Page
	URL          string
	Name         string
	UpdatedAt    time.Time
	Workspaces   []Link // that are built from it
	Form         EnvironmentForm
	Secrets      SecretsPanel
	DeleteErrors Errors
}

// SecretsPanel lists the secrets of an environment or a vault. Values are never shown.
type SecretsPanel struct {
	URL     string // new ones are posted here; URL/<key>/delete removes one
	Hint    string
	Rows    []SecretRow
	Key     string // what was typed, after a refusal
	Expires bool   // the form asks for an expiry
	Errors  Errors
}

// SecretRow is one secret.
type SecretRow struct {
	Key       string
	ChangedAt time.Time
	ExpiresAt time.Time // advisory; zero: none
	DeleteURL string
}

// VaultsPage lists vaults.
type VaultsPage struct {
	Page
	Rows  []VaultRow
	Pager Pager
}

// VaultRow is one vault in the list.
type VaultRow struct {
	Name        Link
	Description string
	Secrets     int
	UpdatedAt   time.Time
}

// VaultForm is a vault as it is written.
type VaultForm struct {
	Name, Description string
	Errors            Errors
}

// VaultFormPage makes a vault.
type VaultFormPage struct {
	Page
	Form VaultForm
}

// VaultPage is one vault with its secrets.
type VaultPage struct {
	Page
	URL          string
	Name         string
	UpdatedAt    time.Time
	Form         VaultForm
	Secrets      SecretsPanel
	DeleteErrors Errors
}
