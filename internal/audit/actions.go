package audit

// Action is what was done: noun.verb, of the closed vocabulary below. Write refuses any other.
type Action string

// Actions.
const (
	AccountCreate Action = "account.create"
	AccountDelete Action = "account.delete"

	APIKeyCreate  Action = "api_key.create"
	APIKeyRevoke  Action = "api_key.revoke"
	MemberCreate  Action = "member.create"
	SessionCreate Action = "session.create"
	SessionDelete Action = "session.delete"

	EnvironmentCreate       Action = "environment.create"
	EnvironmentUpdate       Action = "environment.update"
	EnvironmentDelete       Action = "environment.delete"
	EnvironmentPutSecret    Action = "environment.put_secret"
	EnvironmentDeleteSecret Action = "environment.delete_secret"

	VaultCreate       Action = "vault.create"
	VaultUpdate       Action = "vault.update"
	VaultDelete       Action = "vault.delete"
	VaultPutSecret    Action = "vault.put_secret"
	VaultUpdateSecret Action = "vault.update_secret"
	VaultDeleteSecret Action = "vault.delete_secret"

	AgentCreate Action = "agent.create"
	AgentUpdate Action = "agent.update"
	AgentDelete Action = "agent.delete"

	CredentialCreate Action = "inference_credential.create"
	CredentialUpdate Action = "inference_credential.update"
	CredentialDelete Action = "inference_credential.delete"

	WorkspaceCreate  Action = "workspace.create"
	WorkspaceUpdate  Action = "workspace.update"
	WorkspaceRetry   Action = "workspace.retry"
	WorkspaceRebuild Action = "workspace.rebuild"
	WorkspaceDelete  Action = "workspace.delete"
	WorkspaceWake    Action = "workspace.wake"
	WorkspacePark    Action = "workspace.park"
	WorkspaceDispose Action = "workspace.dispose" // of its machine, at the end of a lifetime

	ConversationCreate    Action = "conversation.create"
	ConversationUpdate    Action = "conversation.update"
	ConversationDelete    Action = "conversation.delete"
	ConversationPrompt    Action = "conversation.prompt"
	ConversationInterrupt Action = "conversation.interrupt"
	ConversationTerminate Action = "conversation.terminate"
	ConversationRead      Action = "conversation.read"

	PermissionAnswer Action = "permission.answer"
)

// Actions lists the whole vocabulary, by name.
var Actions = []Action{
	AccountCreate, AccountDelete,
	AgentCreate, AgentDelete, AgentUpdate,
	APIKeyCreate, APIKeyRevoke,
	ConversationCreate, ConversationDelete, ConversationInterrupt, ConversationPrompt, ConversationRead, ConversationTerminate, ConversationUpdate,
	EnvironmentCreate, EnvironmentDelete, EnvironmentDeleteSecret, EnvironmentPutSecret, EnvironmentUpdate,
	CredentialCreate, CredentialDelete, CredentialUpdate,
	MemberCreate,
	PermissionAnswer,
	SessionCreate, SessionDelete,
	VaultCreate, VaultDelete, VaultDeleteSecret, VaultPutSecret, VaultUpdate, VaultUpdateSecret,
	WorkspaceCreate, WorkspaceDelete, WorkspaceDispose, WorkspacePark, WorkspaceRebuild, WorkspaceRetry, WorkspaceUpdate, WorkspaceWake,
}
