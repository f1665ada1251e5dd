package views

import (
	"time"

	"managoat/views/markup"
)

// AgentsPage lists agents.
type AgentsPage struct {
	Page
	Rows  []AgentRow
	Pager Pager
}

// AgentRow is one agent in the list.
type AgentRow struct {
	Name        Link
	Description string
	Runtime     string
	Model       string
	Version     int
	UpdatedAt   time.Time
}

// AgentForm is an agent as it is written; every save makes a new version.
type AgentForm struct {
	Name           string
	Description    string
	System         string
	Runtime        string
	RuntimeCommand string // of runtime acp
	Model          string
	EnvironmentID  string // the default
	AnyEnvironment bool   // may be used with every environment; else only with Environments
	AllowedEnvs    []string
	AnyVault       bool
	AllowedVaults  []string
	CredentialID   string
	MCPServers     string // JSON, by name
	Skills         []SkillForm

	Runtimes     []Option
	Environments []Option // the first one is "none"
	Vaults       []Option
	Models       []Option // suggestions
	Errors       Errors
}

// SkillForm is one skill of an agent.
type SkillForm struct{ Name, Content string }

// AgentFormPage makes an agent.
type AgentFormPage struct {
	Page
	Form AgentForm
}

// AgentPage is one agent: its newest version as a form, its versions, the difference between two.
type AgentPage struct {
	Page
	URL           string
	Name          string
	Tab           string // edit, versions
	Form          AgentForm
	Version       int
	UpdatedAt     time.Time
	Versions      []AgentVersion
	From, To      int // compared versions
	VersionsPager Pager
	Diff          markup.FileDiff
	StartURL      string
	DeleteErrors  Errors
}

// AgentVersion is one version in the list.
type AgentVersion struct {
	Number  int
	At      time.Time
	By      string
	Changed []string // names of fields
	DiffURL string   // against the one before; "" for the first
}
