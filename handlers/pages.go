package handlers

import (
	"github.com/labstack/echo/v4"

	"managoat/handlers/web"
	"managoat/internal/audit"
	"managoat/static"
)

// PageRoutes is the console's part of the table: pages, their forms, their streams of fragments.
func PageRoutes(w *web.Console) []Route {
	return []Route{
		page(get, static.Prefix+"*", Public, "The files beside the pages", echo.WrapHandler(static.Handler())),
		page(get, "/setup", Public, "The page behind the one-time link", w.Setup),
		public(form("/setup", audit.AccountCreate, "", "Make the first account", w.UseSetup)),
		page(get, "/sign-in", Public, "Ask who one is", w.SignIn),
		public(form("/sign-in", audit.SessionCreate, "", "Sign in", w.BeginSession)),
		form("/sign-out", audit.SessionDelete, "", "Sign out", w.EndSession),

		// path                                             what it shows                                   handler
		page(get, "/", Signed, "What runs, failed and waits", w.ShowHome),
		page(get, "/stream", Signed, "Keep the home page true", w.HomeStream),
		page(get, "/audit", Signed, "Who changed what", w.ShowAudit),

		page(get, "/workspaces", Signed, "Workspaces", w.ListWorkspaces),
		page(get, "/workspaces/stream", Signed, "Keep the list true", w.WorkspacesStream),
		page(get, "/workspaces/new", Signed, "The form of a workspace", w.NewWorkspace),
		form("/workspaces", audit.WorkspaceCreate, Machines, "Create a workspace", w.CreateWorkspace),
		page(get, "/workspaces/{id}", Signed, "A workspace and its conversations", w.ShowWorkspace),
		page(get, "/workspaces/{id}/stream", Signed, "Keep the page true", w.WorkspaceStream),
		page(get, "/workspaces/{id}/setup-log", Signed, "What the last setup printed", w.ShowSetupLog),
		page(get, "/workspaces/{id}/files", Signed, "A directory or a file of its disk", w.ShowFiles),
		page(get, "/workspaces/{id}/git-status", Signed, "The state of a repository", w.ShowGitStatus),
		page(get, "/workspaces/{id}/diff", Signed, "What changed in a repository", w.ShowDiff),
		page(get, "/workspaces/{id}/patch", Signed, "Download what changed", w.DownloadPatch),
		page(get, "/workspaces/{id}/audit", Signed, "Who did what with it", w.ShowWorkspaceAudit),
		page(get, "/workspaces/{id}/egress", Signed, "What left its machine", w.ShowEgress),
		page(get, "/workspaces/{id}/diagnostics", Signed, "Facts for whoever helps with it", w.DiagnoseWorkspace),
		page(get, "/workspaces/{id}/rebuild", Signed, "What a rebuild would take with it", w.ShowRebuild),
		form("/workspaces/{id}/rebuild", audit.WorkspaceRebuild, Machines, "Build its machine anew", w.RebuildWorkspace),
		form("/workspaces/{id}/retry", audit.WorkspaceRetry, Machines, "Set it up again", w.RetryWorkspace),
		form("/workspaces/{id}/wake", audit.WorkspaceWake, Machines, "Start its parked machine", w.WakeWorkspace),
		form("/workspaces/{id}/delete", audit.WorkspaceDelete, "", "Delete it", w.DeleteWorkspace),

		page(get, "/conversations", Signed, "Conversations", w.ListConversations),
		page(get, "/conversations/stream", Signed, "Keep the list true", w.ConversationsStream),
		page(get, "/conversations/new", Signed, "The form of a conversation", w.NewConversation),
		form("/conversations", audit.ConversationCreate, Prompts, "Start a conversation", w.CreateConversation),
		page(get, "/conversations/{id}", Signed, "A conversation", w.ShowConversation),
		page(get, "/conversations/{id}/stream", Signed, "Keep the page true", w.ConversationStream),
		page(get, "/conversations/{id}/diagnostics", Signed, "The facts of its last turn", w.DiagnoseConversation),
		form("/conversations/{id}/prompts", audit.ConversationPrompt, Prompts, "Send a message", w.SendPrompt),
		form("/conversations/{id}/interrupt", audit.ConversationInterrupt, "", "Interrupt a turn", w.InterruptTurn),
		form("/conversations/{id}/requests/{request}", audit.PermissionAnswer, "", "Answer a permission request", w.AnswerRequest),
		form("/conversations/{id}/rename", audit.ConversationUpdate, "", "Rename it", w.RenameConversation),
		form("/conversations/{id}/terminate", audit.ConversationTerminate, "", "End it", w.EndConversation),
		form("/conversations/{id}/delete", audit.ConversationDelete, "", "Delete it", w.DeleteConversation),

		page(get, "/agents", Signed, "Agents", w.ListAgents),
		page(get, "/agents/new", Signed, "The form of an agent", w.NewAgent),
		form("/agents", audit.AgentCreate, "", "Create an agent", w.CreateAgent),
		page(get, "/agents/{id}", Signed, "An agent", w.ShowAgent),
		page(get, "/agents/{id}/versions", Signed, "Its versions", w.ShowAgentVersions),
		form("/agents/{id}", audit.AgentUpdate, "", "Save its next version", w.UpdateAgent),
		form("/agents/{id}/delete", audit.AgentDelete, "", "Delete it", w.DeleteAgent),

		page(get, "/environments", Signed, "Environments", w.ListEnvironments),
		page(get, "/environments/new", Signed, "The form of an environment", w.NewEnvironment),
		form("/environments", audit.EnvironmentCreate, "", "Create an environment", w.CreateEnvironment),
		page(get, "/environments/{id}", Signed, "An environment and its secrets", w.ShowEnvironment),
		form("/environments/{id}", audit.EnvironmentUpdate, "", "Save it", w.UpdateEnvironment),
		form("/environments/{id}/delete", audit.EnvironmentDelete, "", "Delete it", w.DeleteEnvironment),
		form("/environments/{id}/secrets", audit.EnvironmentPutSecret, "", "Save a secret", w.PutEnvironmentSecret),
		form("/environments/{id}/secrets/{secret}/delete", audit.EnvironmentDeleteSecret, "", "Delete a secret", w.DeleteEnvironmentSecret),

		page(get, "/vaults", Signed, "Vaults", w.ListVaults),
		page(get, "/vaults/new", Signed, "The form of a vault", w.NewVault),
		form("/vaults", audit.VaultCreate, "", "Create a vault", w.CreateVault),
		page(get, "/vaults/{id}", Signed, "A vault and its secrets", w.ShowVault),
		form("/vaults/{id}", audit.VaultUpdate, "", "Save it", w.UpdateVault),
		form("/vaults/{id}/delete", audit.VaultDelete, "", "Delete it", w.DeleteVault),
		form("/vaults/{id}/secrets", audit.VaultPutSecret, "", "Save a secret", w.PutVaultSecret),
		form("/vaults/{id}/secrets/{secret}/delete", audit.VaultDeleteSecret, "", "Delete a secret", w.DeleteVaultSecret),

		page(get, "/settings", Signed, "Settings", w.ShowSettings),
		page(get, "/settings/{part}", Signed, "API keys, inference credentials, sessions or members", w.ShowSetting),
		form("/settings/account/delete", audit.AccountDelete, "", "Delete the account and everything it holds", w.DeleteAccount),
		form("/settings/keys", audit.APIKeyCreate, "", "Make an API key", w.CreateKey),
		form("/settings/keys/{id}/delete", audit.APIKeyRevoke, "", "Delete an API key", w.DeleteKey),
		form("/settings/credentials", audit.CredentialCreate, "", "Save an inference credential", w.CreateCredential),
		form("/settings/credentials/{id}/default", audit.CredentialUpdate, "", "Make it the default", w.DefaultCredential),
		form("/settings/credentials/{id}/delete", audit.CredentialDelete, "", "Delete it", w.DeleteCredential),
		form("/settings/sessions/{id}/delete", audit.SessionDelete, "", "Sign a browser out", w.DeleteSession),
	}
}

// form is a page's action: it changes something and answers with a redirect, the page again, or fragments of it.
func form(path string, action audit.Action, quota Quota, summary string, h echo.HandlerFunc) Route {
	return Route{Method: post, Path: path, Access: Signed, Audit: action, Quota: quota, Summary: summary, Web: h}
}
