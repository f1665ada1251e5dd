package agent

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/mcp"
	"managoat/internal/refusal"
)

// Limits of an agent.
const (
	MaxSystem         = 256 << 10 // bytes
	MaxRuntimeCommand = 4096      // bytes
	MaxModel          = 200       // bytes
	MaxAllowed        = 500       // entries of an allowed list
	MaxModelRetries   = 5
)

// Runtimes.
const (
	Claude   = "claude"
	Codex    = "codex"
	Gemini   = "gemini"
	OpenCode = "opencode"
	ACP      = "acp" // any command in the machine that speaks the Agent Client Protocol
	Native   = "native"
)

// Runtimes that agents can have now, and those that are known and refused not_available_yet.
var (
	Runtimes      = []string{Claude, Codex, Gemini, ACP}
	laterRuntimes = []string{OpenCode, Native}
)

// Values of fields that name a choice.
const (
	Ephemeral  = "ephemeral" // sandbox_mode: a machine that is kept is a workspace
	Always     = "always"    // machine_use: of every runtime but native
	OnDemand   = "on_demand"
	NeverUse   = "never"
	AutoAllow  = "auto_allow"
	AutoDeny   = "auto_deny"
	Ask        = "ask"
	AskTimeout = "ask_timeout" // the one key of a policy that is no tool's
)

// Config is everything an agent is, but its id: what people write, and the snapshot that a version keeps for ever.
type Config struct {
	Name                  string         `json:"name" doc:"1 to 200 characters, unique in the account"`
	Description           string         `json:"description"`
	System                string         `json:"system" doc:"the system prompt"`
	Runtime               string         `json:"runtime" doc:"claude, codex, gemini or acp; conversations of codex and gemini fail with runtime_not_installed until this version has their adapters"`
	RuntimeCommand        string         `json:"runtime_command" doc:"acp only: the command line that the machine runs"`
	Model                 *string        `json:"model" doc:"provider/id; the provider must fit the runtime; optional for acp"`
	Skills                []Skill        `json:"skills" doc:"written into a conversation's config home when that is made; not for acp"`
	MCPServers            mcp.Servers    `json:"mcp_servers" doc:"by name; strings take ${NAME} of the conversation's variables and secrets, $$ is $; those that a conversation runs are the agent's own as they are when its runtime starts"`
	PermissionPolicy      map[string]any `json:"permission_policy" nullable:"true" doc:"auto_allow by tool title, kind, or default; null clears"`
	MachineUse            string         `json:"machine_use" doc:"always"`
	SandboxMode           string         `json:"sandbox_mode" doc:"ephemeral: a machine that is kept is a workspace"`
	SandboxProvider       *string        `json:"sandbox_provider" doc:"null: the instance's default"`
	EnvironmentID         *uuid.UUID     `json:"environment_id" doc:"what conversations without a workspace are built from"`
	AllowedEnvironmentIDs []uuid.UUID    `json:"allowed_environment_ids" doc:"null: any; []: none but its own"`
	AllowedVaultIDs       []uuid.UUID    `json:"allowed_vault_ids" doc:"null: any; []: none"`
	InferenceCredentialID *uuid.UUID     `json:"inference_credential_id" doc:"null: the account's default of the model's provider"`
	ModelRetries          int            `json:"model_retries" doc:"0"`
	ExchangeAccess        string         `json:"exchange_access" doc:"none"`
	Metadata              map[string]any `json:"metadata"`
}

// New is a configuration with the defaults.
func New() Config {
	return Config{MachineUse: Always, SandboxMode: Ephemeral, ExchangeAccess: noExchange}
}

const noExchange = "none"

// Provider is the provider of the model, "" without one.
func (c Config) Provider() string {
	if c.Model == nil {
		return ""
	}
	provider, _, _ := strings.Cut(*c.Model, "/")
	return provider
}

// AllowsEnvironment tells whether a conversation may use the environment: its own always, others by the allowed list.
func (c Config) AllowsEnvironment(id uuid.UUID) bool {
	return c.EnvironmentID != nil && *c.EnvironmentID == id || c.AllowedEnvironmentIDs == nil || slices.Contains(c.AllowedEnvironmentIDs, id)
}

// AllowsVault tells whether a conversation may use the vault.
func (c Config) AllowsVault(id uuid.UUID) bool {
	return c.AllowedVaultIDs == nil || slices.Contains(c.AllowedVaultIDs, id)
}

// Validate brings the configuration into the form that is stored and checks every rule that needs no database. Fields
// whose feature does not act yet are refused with not_available_yet once the rest is right: ignored, they would promise
// what does not happen.
func (c *Config) Validate() error {
	var v refusal.Validation
	input.Name(&v, "name", &c.Name)
	c.Description, c.System = input.Lines(c.Description), input.Lines(c.System)
	input.Text(&v, "description", c.Description, input.MaxDescription)
	input.Text(&v, "system", c.System, MaxSystem)
	input.Metadata(&v, "metadata", &c.Metadata)
	c.validateRuntime(&v)
	c.validatePolicy(&v)
	c.validateMachine(&v)
	v.Check(len(c.AllowedEnvironmentIDs) <= MaxAllowed, "allowed_environment_ids", "must have at most %d entries", MaxAllowed)
	v.Check(len(c.AllowedVaultIDs) <= MaxAllowed, "allowed_vault_ids", "must have at most %d entries", MaxAllowed)
	v.Check(c.ModelRetries >= 0 && c.ModelRetries <= MaxModelRetries, "model_retries", "must be from 0 to %d", MaxModelRetries)
	if c.Skills == nil {
		c.Skills = []Skill{}
	}
	if c.MCPServers == nil {
		c.MCPServers = mcp.Servers{}
	}
	c.validateSkills(&v)
	c.MCPServers.Check(&v, "mcp_servers")
	if c.ExchangeAccess == "" {
		c.ExchangeAccess = noExchange
	}
	if err := v.Err(); err != nil {
		return err
	}
	return c.available()
}

// modelName is provider/id as the wire writes it; ids of compatible servers hold capitals, colons and slashes.
var modelName = regexp.MustCompile(`^[a-z0-9_-]+/[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// providersOf the models that a runtime can run.
var providersOf = map[string][]string{
	Claude:   {inference.Anthropic},
	Codex:    {inference.OpenAI},
	Gemini:   {inference.Google},
	OpenCode: {inference.Anthropic, inference.OpenAI, inference.Google},
	ACP:      inference.Providers,
	Native:   inference.Providers,
}

// CheckModel says what is wrong with a model for a runtime, "" when nothing is.
func CheckModel(runtime, model string) string {
	if len(model) > MaxModel || !modelName.MatchString(model) {
		return "must be provider/id, such as anthropic/claude-sonnet-4-5"
	}
	provider, _, _ := strings.Cut(model, "/")
	if fit := providersOf[runtime]; !slices.Contains(fit, provider) {
		return "must be a model of " + strings.Join(fit, ", ") + " for the runtime " + runtime
	}
	return ""
}

func (c *Config) validateRuntime(v *refusal.Validation) {
	if !slices.Contains(Runtimes, c.Runtime) && !slices.Contains(laterRuntimes, c.Runtime) {
		v.Add("runtime", "must be one of %s", strings.Join(Runtimes, ", "))
		return
	}
	c.RuntimeCommand = strings.TrimSpace(c.RuntimeCommand)
	if (c.RuntimeCommand != "") != (c.Runtime == ACP) {
		if c.Runtime == ACP {
			v.Add("runtime_command", "must be the command line that the machine runs for this agent")
		} else {
			v.Add("runtime_command", "is for the runtime acp only")
		}
	}
	input.Text(v, "runtime_command", c.RuntimeCommand, MaxRuntimeCommand)
	v.Check(!strings.ContainsAny(c.RuntimeCommand, "\r\n"), "runtime_command", "must be one line")
	if c.Model != nil && *c.Model == "" { // what a form sends for none
		c.Model = nil
	}
	if c.Model != nil {
		if problem := CheckModel(c.Runtime, *c.Model); problem != "" {
			v.Add("model", "%s", problem)
		}
	} else if c.Runtime != ACP {
		v.Add("model", "must be provider/id, such as anthropic/claude-sonnet-4-5")
	}
}

// ToolKinds are the kinds of tools in the Agent Client Protocol. A policy's other keys are titles of tools, or default.
var ToolKinds = []string{"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}

// maxAskTimeout of a policy is a year, in seconds.
const maxAskTimeout = 365 * 24 * 3600

func (c *Config) validatePolicy(v *refusal.Validation) {
	if c.PermissionPolicy == nil {
		c.PermissionPolicy = map[string]any{}
	}
	for _, key := range slices.Sorted(maps.Keys(c.PermissionPolicy)) {
		field := "permission_policy." + key
		input.Text(v, "permission_policy", key, input.MaxName)
		value := c.PermissionPolicy[key]
		if key == AskTimeout {
			n, ok := value.(float64)
			v.Check(ok && n >= 1 && n <= maxAskTimeout, field, "must be seconds from 1 to %d", maxAskTimeout)
			continue
		}
		if s, _ := value.(string); !slices.Contains([]string{AutoAllow, Ask, AutoDeny}, s) {
			v.Add(field, "must be %s, %s or %s", AutoAllow, Ask, AutoDeny)
		}
	}
}

func (c *Config) validateMachine(v *refusal.Validation) {
	if c.MachineUse == "" {
		c.MachineUse = Always
	}
	v.Check(slices.Contains([]string{Always, OnDemand, NeverUse}, c.MachineUse), "machine_use", "must be %s, %s or %s", Always, OnDemand, NeverUse)
	if c.SandboxMode == "" {
		c.SandboxMode = Ephemeral
	}
	v.Check(c.SandboxMode == Ephemeral, "sandbox_mode", "must be %s: a machine that is kept is a workspace", Ephemeral)
	if c.SandboxProvider != nil && *c.SandboxProvider == "" {
		c.SandboxProvider = nil
	}
}

func (c *Config) available() error {
	for _, f := range []struct {
		field string
		asked bool
		now   string
	}{
		{"runtime", slices.Contains(laterRuntimes, c.Runtime), "Use " + strings.Join(Runtimes, " or ") + "."},
		{"skills", slices.ContainsFunc(c.Skills, Skill.kept), "Give a skill inline, as name and content."},
		{"machine_use", c.MachineUse != Always, "Every runtime of this version uses a machine: always."},
		{"exchange_access", c.ExchangeAccess != noExchange, "Leave it at none."},
		{"model_retries", c.ModelRetries > 0, "Leave it at 0: a failed model call fails its turn."},
		{"permission_policy", !c.allowsAll(), "Every value must be auto_allow: permission requests are answered so and shown."},
	} {
		if f.asked {
			return refusal.New(refusal.NotAvailableYet, "%s: this part of the field does not act yet, so it is not accepted. %s", f.field, f.now).
				With("field", f.field).With("errors", map[string][]string{f.field: {"is not available yet. " + f.now}})
		}
	}
	return nil
}

func (c *Config) allowsAll() bool {
	for _, value := range c.PermissionPolicy {
		if value != AutoAllow {
			return false
		}
	}
	return true
}
