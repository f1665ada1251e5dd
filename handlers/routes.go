package handlers

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"managoat/handlers/api"
	"managoat/handlers/web"
	"managoat/internal/audit"
)

// JSON are the handlers of the JSON API.
type JSON struct {
	Health        api.Health
	Auth          api.Auth
	Quotas        api.Quotas
	Audit         api.Audit
	Catalog       api.Catalog
	Environments  api.Environments
	Vaults        api.Vaults
	Agents        api.Agents
	Credentials   api.Credentials
	Workspaces    api.Workspaces
	Conversations api.Conversations
	Account       api.Account
}

const (
	get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	created, accepted, none    = http.StatusCreated, http.StatusAccepted, http.StatusNoContent
)

// APIRoutes is the JSON API's part of the table.
func APIRoutes(h JSON) []Route {
	disk, machine := h.Workspaces.Disk(), h.Workspaces.SandboxDisk()
	e, w, c := h.Environments, h.Workspaces, h.Conversations
	return []Route{
		page(get, "/health", Public, "The server lives", h.Health.Live),
		page(get, "/health/ready", Public, "The server can work", h.Health.Ready),
		about("/api/openapi.json", "This API as an OpenAPI document", api.ServeDocument),
		about("/api/docs", "This API, readable", web.ShowReference),
		about("/llms.txt", "This API on one page, for programs that read", web.ShowSummary),
		about("/skill", "A skill that teaches an agent to work here", web.ShowSkill),

		// method path                                          sandbox key  audit row of the change        status    quota     what it does                                handler
		public(row(post, "/api/auth/token", Never, audit.APIKeyCreate, 0, "", "Make an API key with a password", api.JSON(h.Auth.Token))),
		row(get, "/api/auth/me", Reads, "", 0, "", "Who calls", api.JSON(h.Auth.Me)),
		row(get, "/api/auth/api-keys", Never, "", 0, "", "List API keys", api.JSON(h.Auth.ListKeys)),
		shownOnce(row(post, "/api/auth/api-keys", Never, audit.APIKeyCreate, created, "", "Make an API key", api.JSON(h.Auth.CreateKey))),
		row(del, "/api/auth/api-keys/{id}", Never, audit.APIKeyRevoke, none, "", "Revoke an API key", api.JSON(h.Auth.RevokeKey)),
		row(del, "/api/account", Never, audit.AccountDelete, 0, "", "Delete the account and everything it holds", api.JSON(h.Auth.DeleteAccount)),
		row(get, "/api/members", Never, "", 0, "", "List the account's people", api.JSON(h.Auth.ListMembers)),
		row(get, "/api/sessions", Never, "", 0, "", "List your browser sessions", api.JSON(h.Auth.ListSessions)),
		row(del, "/api/sessions/{id}", Never, audit.SessionDelete, none, "", "End a browser session", api.JSON(h.Auth.RevokeSession)),
		row(get, "/api/catalog", Never, "", 0, "", "What this instance offers", api.JSON(h.Catalog.Get)),
		row(get, "/api/quotas", Never, "", 0, "", "Quotas: limit, use, reset", api.JSON(h.Quotas.List)),
		row(get, "/api/audit", Never, "", 0, "", "The audit trail", api.JSON(h.Audit.List)),
		row(get, "/api/ledger", Never, "", 0, "", "What turns used", api.JSON(c.Entries)),
		row(get, "/api/events/stream", Never, "", 0, "", "Follow the account", api.Raw(h.Account.Stream, api.DescribeAccountStream)),

		row(get, "/api/environments", Reads, "", 0, "", "List environments", api.JSON(e.List)),
		row(post, "/api/environments", Never, audit.EnvironmentCreate, created, "", "Make an environment", api.JSON(e.Create)),
		row(get, "/api/environments/{id}", Reads, "", 0, "", "Show an environment", api.JSON(e.Get)),
		row(patch, "/api/environments/{id}", Never, audit.EnvironmentUpdate, 0, "", "Change an environment", api.JSON(e.Update)),
		row(del, "/api/environments/{id}", Never, audit.EnvironmentDelete, none, "", "Delete an environment", api.JSON(e.Delete)),
		row(get, "/api/environments/{id}/secrets", Never, "", 0, "", "List an environment's secrets, without values", api.JSON(e.ListSecrets)),
		row(post, "/api/environments/{id}/secrets", Never, audit.EnvironmentPutSecret, created, "", "Set a secret of an environment", api.JSON(e.PutSecret)),
		row(del, "/api/environments/{id}/secrets/{secret}", Never, audit.EnvironmentDeleteSecret, none, "", "Delete a secret of an environment", api.JSON(e.DeleteSecret)),

		row(get, "/api/vaults", Never, "", 0, "", "List vaults", api.JSON(h.Vaults.List)),
		row(post, "/api/vaults", Never, audit.VaultCreate, created, "", "Make a vault", api.JSON(h.Vaults.Create)),
		row(get, "/api/vaults/{id}", Never, "", 0, "", "Show a vault", api.JSON(h.Vaults.Get)),
		row(patch, "/api/vaults/{id}", Never, audit.VaultUpdate, 0, "", "Change a vault", api.JSON(h.Vaults.Update)),
		row(del, "/api/vaults/{id}", Never, audit.VaultDelete, none, "", "Delete a vault", api.JSON(h.Vaults.Delete)),
		row(get, "/api/vaults/{id}/secrets", Never, "", 0, "", "List a vault's secrets, without values", api.JSON(h.Vaults.ListSecrets)),
		row(post, "/api/vaults/{id}/secrets", Never, audit.VaultPutSecret, created, "", "Set a secret of a vault", api.JSON(h.Vaults.PutSecret)),
		row(patch, "/api/vaults/{id}/secrets/{secret}", Never, audit.VaultUpdateSecret, 0, "", "Change a secret's expiry", api.JSON(h.Vaults.UpdateSecret)),
		row(del, "/api/vaults/{id}/secrets/{secret}", Never, audit.VaultDeleteSecret, none, "", "Delete a secret of a vault", api.JSON(h.Vaults.DeleteSecret)),

		row(get, "/api/agents", Reads, "", 0, "", "List agents", api.JSON(h.Agents.List)),
		row(post, "/api/agents", Never, audit.AgentCreate, created, "", "Make an agent", api.JSON(h.Agents.Create)),
		row(get, "/api/agents/{id}", Reads, "", 0, "", "Show an agent", api.JSON(h.Agents.Get)),
		row(patch, "/api/agents/{id}", Never, audit.AgentUpdate, 0, "", "Change an agent: a new version", api.JSON(h.Agents.Update)),
		row(del, "/api/agents/{id}", Never, audit.AgentDelete, none, "", "Delete an agent; transcripts stay", api.JSON(h.Agents.Delete)),
		row(get, "/api/agents/{id}/versions", Reads, "", 0, "", "List an agent's versions", api.JSON(h.Agents.Versions)),
		row(get, "/api/agents/{id}/versions/{version}", Reads, "", 0, "", "Show a version of an agent", api.JSON(h.Agents.Version)),

		row(get, "/api/inference-credentials", Never, "", 0, "", "List inference credentials", api.JSON(h.Credentials.List)),
		row(post, "/api/inference-credentials", Never, audit.CredentialCreate, created, "", "Add an inference credential", api.JSON(h.Credentials.Create)),
		row(get, "/api/inference-credentials/{id}", Never, "", 0, "", "Show an inference credential, without its key", api.JSON(h.Credentials.Get)),
		row(patch, "/api/inference-credentials/{id}", Never, audit.CredentialUpdate, 0, "", "Change an inference credential", api.JSON(h.Credentials.Update)),
		row(del, "/api/inference-credentials/{id}", Never, audit.CredentialDelete, none, "", "Delete an inference credential", api.JSON(h.Credentials.Delete)),
		row(get, "/api/account/inference-credentials", Never, "", 0, "", "List the default credentials", api.JSON(h.Credentials.ListDefaults)),
		row(put, "/api/account/inference-credentials/{provider}", Never, audit.CredentialUpdate, 0, "", "Set a provider's default key", api.JSON(h.Credentials.PutDefault)),
		row(del, "/api/account/inference-credentials/{provider}", Never, audit.CredentialDelete, none, "", "Delete a provider's default key", api.JSON(h.Credentials.DeleteDefault)),

		row(get, "/api/workspaces", Never, "", 0, "", "List workspaces", api.JSON(w.List)),
		row(post, "/api/workspaces", Never, audit.WorkspaceCreate, created, Machines, "Build a machine from an environment", api.JSON(w.Create)),
		row(get, "/api/workspaces/{id}", Never, "", 0, "", "Show a workspace", api.JSON(w.Get)),
		row(patch, "/api/workspaces/{id}", Never, audit.WorkspaceUpdate, 0, "", "Change a workspace's metadata", api.JSON(w.Patch)),
		row(del, "/api/workspaces/{id}", Never, audit.WorkspaceDelete, none, "", "End its conversations and destroy its machine", api.JSON(w.Delete)),
		row(post, "/api/workspaces/{id}/retry", Never, audit.WorkspaceRetry, accepted, Machines, "Set a failed workspace up again", api.JSON(w.Retry)),
		row(post, "/api/workspaces/{id}/rebuild", Never, audit.WorkspaceRebuild, accepted, Machines, "Build its machine anew; the disk goes", api.JSON(w.Rebuild)),
		row(get, "/api/workspaces/{id}/rebuild-preview", Never, "", 0, "", "What a rebuild would take with it", api.JSON(w.RebuildPreview)),
		row(post, "/api/workspaces/{id}/wake", Never, audit.WorkspaceWake, accepted, Machines, "Start its parked machine", api.JSON(w.Wake)),
		row(get, "/api/workspaces/{id}/setup-log", Never, "", 0, "", "What the last setup printed", api.Raw(w.SetupLog, api.DescribeSetupLog)),
		row(get, "/api/workspaces/{id}/diagnostics", Never, "", 0, "", "Facts for whoever helps with it, redacted", api.JSON(w.Diagnostics)),
		row(get, "/api/workspaces/{id}/egress", Never, "", 0, "", "Requests that left its machines", api.JSON(w.Egress)),
		row(get, "/api/workspaces/{id}/files", Never, "", 0, "", "List a directory", api.JSON(disk.List)),
		row(get, "/api/workspaces/{id}/file", Never, "", 0, "", "Read a file", api.JSON(disk.Read)),
		row(get, "/api/workspaces/{id}/git-status", Never, "", 0, "", "The state of a repository", api.JSON(disk.GitStatus)),
		row(get, "/api/workspaces/{id}/diff", Never, "", 0, "", "What changed in a repository", api.JSON(disk.Diff)),
		row(get, "/api/workspaces/{id}/patch", Never, "", 0, "", "Download what changed as a patch", api.Raw(w.DownloadPatch, api.DescribePatch)),
		row(get, "/api/sandboxes/{id}/files", Never, "", 0, "", "List a directory of a machine", api.JSON(machine.List)),
		row(get, "/api/sandboxes/{id}/file", Never, "", 0, "", "Read a file of a machine", api.JSON(machine.Read)),
		row(get, "/api/sandboxes/{id}/git-status", Never, "", 0, "", "The state of a repository of a machine", api.JSON(machine.GitStatus)),
		row(get, "/api/sandboxes/{id}/diff", Never, "", 0, "", "What changed in a repository of a machine", api.JSON(machine.Diff)),

		row(get, "/api/conversations", Never, "", 0, "", "List conversations", api.JSON(c.List)),
		row(post, "/api/conversations", Own, audit.ConversationCreate, created, Prompts, "Start a conversation", api.JSON(c.Create)),
		row(get, "/api/conversations/{id}", Own, "", 0, "", "Show a conversation", api.JSON(c.Get)),
		row(patch, "/api/conversations/{id}", Never, audit.ConversationUpdate, 0, "", "Change a conversation's title or labels", api.JSON(c.Patch)),
		row(del, "/api/conversations/{id}", Never, audit.ConversationDelete, none, "", "End a conversation and hide it", api.JSON(c.Delete)),
		row(post, "/api/conversations/{id}/prompts", Own, audit.ConversationPrompt, accepted, Prompts, "Open the next turn", api.JSON(c.Prompt)),
		row(post, "/api/conversations/{id}/interrupt", Own, audit.ConversationInterrupt, accepted, "", "End a turn", api.JSON(c.Interrupt)),
		row(post, "/api/conversations/{id}/terminate", Never, audit.ConversationTerminate, accepted, "", "End a conversation; the transcript stays", api.JSON(c.Terminate)),
		row(post, "/api/conversations/{id}/read", Never, audit.ConversationRead, none, "", "Mark as read", api.JSON(c.MarkRead)),
		row(post, "/api/conversations/{id}/requests/{request}", Never, audit.PermissionAnswer, 0, "", "Answer a permission request", api.JSON(c.Answer)),
		row(get, "/api/conversations/{id}/turns", Own, "", 0, "", "List turns", api.JSON(c.Turns)),
		row(get, "/api/conversations/{id}/turns/{number}", Own, "", 0, "", "Show a turn", api.JSON(c.Turn)),
		row(get, "/api/conversations/{id}/events", Own, "", 0, "", "List the transcript's rows", api.JSON(c.Events)),
		row(get, "/api/conversations/{id}/stream", Own, "", 0, "", "Follow the transcript", api.Raw(c.Stream, api.DescribeStream)),
		row(get, "/api/conversations/{id}/egress", Never, "", 0, "", "Requests that the conversation made", api.JSON(c.Egress)),
	}
}

// row is a route of the JSON API that needs a signed-in person or a key.
func row(method, path string, sandbox SandboxRule, action audit.Action, status int, quota Quota, summary string, e api.Endpoint) Route {
	return Route{Method: method, Path: path, Access: Signed, Sandbox: sandbox, Audit: action, Quota: quota, Summary: summary, Status: status, API: &e}
}

// shownOnce marks a route whose answer is kept nowhere.
func shownOnce(r Route) Route {
	r.Secret = true
	return r
}

// public opens a route to everybody.
func public(r Route) Route {
	r.Access = Public
	return r
}

// about is a public page about the table itself.
func about(path, summary string, h func(*huma.OpenAPI) echo.HandlerFunc) Route {
	return Route{Method: get, Path: path, Access: Public, Summary: summary, About: h}
}

// page is a route that is no JSON endpoint.
func page(method, path string, access Access, summary string, h echo.HandlerFunc) Route {
	return Route{Method: method, Path: path, Access: access, Summary: summary, Web: h}
}
