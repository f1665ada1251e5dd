package refusal

import "net/http"

// Codes. A code's meaning, status and fields are in the table below; the wire's names are kept.
const (
	InternalError             Code = "internal"
	BadRequest                Code = "bad_request"
	NotFound                  Code = "not_found"
	MethodNotAllowed          Code = "method_not_allowed"
	PayloadTooLarge           Code = "payload_too_large"
	UnsupportedMedia          Code = "unsupported_media_type"
	ValidationFailed          Code = "validation_failed"
	NotAvailableYet           Code = "not_available_yet"
	Unauthenticated           Code = "api_key_invalid"
	KeyRevoked                Code = "api_key_revoked"
	KeyExpired                Code = "api_key_expired"
	KeyInQuery                Code = "api_key_in_query"
	AccountSuspended          Code = "account_unavailable"
	InsufficientScope         Code = "insufficient_scope"
	OwnerRequired             Code = "owner_required"
	CrossOrigin               Code = "cross_origin_refused"
	SignInFailed              Code = "sign_in_failed"
	SignInRequired            Code = "sign_in_required"
	RateLimited               Code = "rate_limited"
	SetupLinkInvalid          Code = "setup_link_invalid"
	IdempotencyKeyReused      Code = "idempotency_key_reused"
	IdempotencyInProgress     Code = "idempotency_in_progress"
	NameTaken                 Code = "name_taken"
	EmailTaken                Code = "email_taken"
	VersionConflict           Code = "version_conflict"
	SourceInUse               Code = "source_in_use_by_workspace"
	InUse                     Code = "in_use"
	EnvironmentNotAllowed     Code = "environment_not_allowed"
	VaultNotAllowed           Code = "vault_not_allowed"
	EnvironmentNotFound       Code = "environment_not_found"
	VaultNotFound             Code = "vault_not_found"
	AgentNotFound             Code = "agent_not_found"
	WorkspaceNotFound         Code = "workspace_not_found"
	CredentialNotFound        Code = "inference_credential_not_found"
	CredentialMissing         Code = "inference_credential_missing"
	CredentialIsDefault       Code = "inference_credential_is_default"
	CannotUndefault           Code = "cannot_undefault"
	InferenceSourceChanged    Code = "inference_source_changed"
	WorkspaceFieldFixed       Code = "workspace_field_fixed"
	WorkspaceFixesEnvironment Code = "workspace_fixes_environment"
	WorkspaceNotFailed        Code = "workspace_not_failed"
	WorkspaceDeleting         Code = "workspace_deleting"
	ImplicitWorkspace         Code = "implicit_workspace"
	RebuildInProgress         Code = "rebuild_in_progress"
	TurnsRunning              Code = "turns_running"
	ProviderDisabled          Code = "sandbox_provider_disabled"
	ProviderUnable            Code = "sandbox_provider_unable"
	SandboxNotReady           Code = "sandbox_not_ready"
	SandboxUnreachable        Code = "sandbox_unreachable"
	MachineHostUnreachable    Code = "machine_host_unreachable"
	QuotaExceeded             Code = "quota_exceeded"
	SandboxQuotaExceeded      Code = "sandbox_quota_exceeded"
	FleetFull                 Code = "fleet_full"
	NoHost                    Code = "no_host_available"
	HostDraining              Code = "host_draining"
	SetupFailed               Code = "setup_failed"
	InvalidAPIAccess          Code = "invalid_sandbox_api_access"
	CwdNotAllowed             Code = "cwd_not_allowed"
	InvalidPrompt             Code = "invalid_prompt"
	InvalidImages             Code = "invalid_images"
	ModelInvalid              Code = "model_invalid"
	ConversationBusy          Code = "conversation_busy"
	ConversationTerminated    Code = "conversation_terminated"
	NoTurnRunning             Code = "no_turn_running"
	PermissionResolved        Code = "permission_request_resolved"
	UnknownOption             Code = "unknown_option"
	PolicyWidens              Code = "permission_policy_widens"
	PathNotFound              Code = "path_not_found"
	PathOutside               Code = "path_outside_sandbox"
	InvalidPath               Code = "invalid_path"
	NotADirectory             Code = "not_a_directory"
	IsADirectory              Code = "is_a_directory"
	PathUnreadable            Code = "path_unreadable"
	NotARepository            Code = "not_a_repository"
	InvalidRef                Code = "invalid_ref"
	RefNotFound               Code = "ref_not_found"
	CommandFailed             Code = "sandbox_command_failed"
	TooManyStreams            Code = "too_many_streams"
	DatabaseAway              Code = "database_away"
	Unavailable               Code = "unavailable"
)

var table = map[Code]Entry{
	InternalError:             {Status: 500, Meaning: "A fault of the server. The log has the cause under the request id.", Fields: []string{"request_id"}},
	BadRequest:                {Status: 400, Meaning: "The request cannot be read: its JSON is malformed, or a query value has the wrong form."},
	NotFound:                  {Status: 404, Meaning: "Nothing with that id exists in this account. Foreign and malformed ids answer the same."},
	MethodNotAllowed:          {Status: 405, Meaning: "This path does not know that method."},
	PayloadTooLarge:           {Status: 413, Meaning: "The body is larger than this route takes.", Fields: []string{"limit"}},
	UnsupportedMedia:          {Status: 415, Meaning: "This route takes another content type."},
	ValidationFailed:          {Status: 422, Meaning: "Fields are missing, unknown or out of their rules.", Fields: []string{"errors"}},
	NotAvailableYet:           {Status: 422, Meaning: "The field is known and its feature does not act yet, so it is refused instead of ignored.", Fields: []string{"field"}},
	Unauthenticated:           {Status: 401, Meaning: "No key or session, or one that is not known.", Reason: true},
	KeyRevoked:                {Status: 401, Meaning: "The key was revoked.", Reason: true},
	KeyExpired:                {Status: 401, Meaning: "The key has expired.", Reason: true},
	KeyInQuery:                {Status: 400, Meaning: "Keys travel in the Authorization header only, never in an address."},
	AccountSuspended:          {Status: 401, Meaning: "The account is suspended.", Reason: true},
	InsufficientScope:         {Status: 403, Meaning: "The key's scope does not reach this.", Fields: []string{"required_scope"}, Reason: true},
	OwnerRequired:             {Status: 403, Meaning: "Only an owner of the account may do this."},
	CrossOrigin:               {Status: 403, Meaning: "A browser sent this write from another site."},
	SignInFailed:              {Status: 401, Meaning: "E-mail or password are not right."},
	SignInRequired:            {Status: 401, Meaning: "The session has ended: sign in again."},
	RateLimited:               {Status: 429, Meaning: "Too many requests from this key or address.", Fields: []string{"retry_after_seconds"}},
	SetupLinkInvalid:          {Status: 410, Meaning: "The set-up link was used or has expired. Restart the server for a new one."},
	IdempotencyKeyReused:      {Status: 422, Meaning: "That Idempotency-Key came before with another body."},
	IdempotencyInProgress:     {Status: 409, Meaning: "The first request with that Idempotency-Key still runs.", Fields: []string{"retry_after_seconds"}},
	NameTaken:                 {Status: 422, Meaning: "Another one of this account has that name.", Fields: []string{"errors"}},
	EmailTaken:                {Status: 422, Meaning: "Somebody with that e-mail address has an account here.", Fields: []string{"errors"}},
	VersionConflict:           {Status: 409, Meaning: "It was changed meanwhile: read it again."},
	SourceInUse:               {Status: 409, Meaning: "A workspace was made from it: delete the workspace first.", Fields: []string{"workspaces"}},
	InUse:                     {Status: 409, Meaning: "Something else refers to it.", Fields: []string{"used_by"}},
	EnvironmentNotAllowed:     {Status: 422, Meaning: "The agent's allowed_environment_ids do not hold this environment."},
	VaultNotAllowed:           {Status: 422, Meaning: "The agent's allowed_vault_ids do not hold this vault."},
	EnvironmentNotFound:       {Status: 404, Meaning: "The named environment does not exist in this account."},
	VaultNotFound:             {Status: 404, Meaning: "The named vault does not exist in this account."},
	AgentNotFound:             {Status: 404, Meaning: "The named agent does not exist in this account."},
	WorkspaceNotFound:         {Status: 404, Meaning: "The named workspace does not exist in this account."},
	CredentialNotFound:        {Status: 404, Meaning: "The named inference credential does not exist in this account."},
	CredentialMissing:         {Status: 422, Meaning: "No inference credential fits the agent's model: add one in the settings.", Fields: []string{"provider"}},
	CredentialIsDefault:       {Status: 409, Meaning: "It is the default of its provider and there are others: make another one the default first.", Fields: []string{"provider"}},
	CannotUndefault:           {Status: 422, Meaning: "A provider has exactly one default: make another credential the default instead.", Fields: []string{"errors"}},
	InferenceSourceChanged:    {Status: 409, Meaning: "The credential this conversation is bound to was changed or deleted."},
	WorkspaceFieldFixed:       {Status: 422, Meaning: "Name, environment, vault and provider are fixed at creation.", Fields: []string{"field"}},
	WorkspaceFixesEnvironment: {Status: 422, Meaning: "The workspace gives environment and vault; a launch cannot name others."},
	WorkspaceNotFailed:        {Status: 409, Meaning: "Only a failed workspace can be retried.", Fields: []string{"status"}},
	WorkspaceDeleting:         {Status: 409, Meaning: "The workspace is being deleted."},
	ImplicitWorkspace:         {Status: 422, Meaning: "This is a conversation's own machine: act on the conversation."},
	RebuildInProgress:         {Status: 409, Meaning: "A rebuild or setup runs already."},
	TurnsRunning:              {Status: 409, Meaning: "Turns run or wait in this workspace; pass interrupt: true to end them.", Fields: []string{"running", "pending", "turns"}},
	ProviderDisabled:          {Status: 422, Meaning: "This instance does not offer that sandbox provider.", Fields: []string{"provider", "enabled"}},
	ProviderUnable:            {Status: 422, Meaning: "The provider cannot do this on this host; the message says what is missing.", Fields: []string{"provider"}},
	SandboxNotReady:           {Status: 409, Meaning: "The machine is not up; reads never wake it.", Fields: []string{"status"}},
	SandboxUnreachable:        {Status: 503, Meaning: "The machine does not answer now. Its disk is untouched.", Fields: []string{"retry_after_seconds"}},
	MachineHostUnreachable:    {Status: 503, Meaning: "The server whose host runs the machine is away.", Fields: []string{"retry_after_seconds"}},
	QuotaExceeded:             {Status: 429, Meaning: "A quota of the account is used up.", Fields: []string{"quota", "limit", "used", "retry_after_seconds"}},
	SandboxQuotaExceeded:      {Status: 429, Meaning: "The account runs as many machines as it may.", Fields: []string{"active_sandboxes", "limit", "retry_after_seconds"}},
	FleetFull:                 {Status: 503, Meaning: "The instance, or the host that has the machine's disk, runs as many machines as it may.", Fields: []string{"retry_after_seconds"}},
	NoHost:                    {Status: 503, Meaning: "No host takes another machine: each is away, full, being drained, or does not offer the provider.", Fields: []string{"retry_after_seconds"}},
	HostDraining:              {Status: 503, Meaning: "The machine's host is being taken out of service: nothing new begins there. The machine and its disk are kept.", Fields: []string{"retry_after_seconds"}},
	SetupFailed:               {Status: 409, Meaning: "The workspace's setup failed; its error names the step.", Fields: []string{"step", "exit_code", "output_tail"}},
	InvalidAPIAccess:          {Status: 422, Meaning: "sandbox_api_access \"none\" needs a machine of its own."},
	CwdNotAllowed:             {Status: 422, Meaning: "cwd must be /home/sprite, a repository's mount path, or below either.", Fields: []string{"roots"}},
	InvalidPrompt:             {Status: 422, Meaning: "A prompt is text of 1 to 200,000 characters."},
	InvalidImages:             {Status: 422, Meaning: "Images are PNG, JPEG, GIF or WebP of at most 10 MB, and need a prompt."},
	ModelInvalid:              {Status: 422, Meaning: "The model must be provider/id and its provider must fit the runtime."},
	ConversationBusy:          {Status: 400, Meaning: "A turn runs or waits in this conversation.", Fields: []string{"turn_number"}},
	ConversationTerminated:    {Status: 410, Meaning: "The conversation has ended; it takes no prompt."},
	NoTurnRunning:             {Status: 409, Meaning: "There is no turn to interrupt."},
	PermissionResolved:        {Status: 409, Meaning: "The permission request was answered already."},
	UnknownOption:             {Status: 422, Meaning: "The permission request has no such option.", Fields: []string{"options"}},
	PolicyWidens:              {Status: 422, Meaning: "A launch may only narrow the agent's permission policy."},
	PathNotFound:              {Status: 404, Meaning: "There is nothing at that path."},
	PathOutside:               {Status: 422, Meaning: "The path leads out of the folders that may be read.", Fields: []string{"roots"}},
	InvalidPath:               {Status: 422, Meaning: "The path cannot be one."},
	NotADirectory:             {Status: 422, Meaning: "The path is not a directory."},
	IsADirectory:              {Status: 422, Meaning: "The path is a directory."},
	PathUnreadable:            {Status: 422, Meaning: "The sandbox user may not read it."},
	NotARepository:            {Status: 422, Meaning: "There is no git repository at that path."},
	InvalidRef:                {Status: 422, Meaning: "A ref is one commit, branch or tag."},
	RefNotFound:               {Status: 404, Meaning: "The repository has no such ref."},
	CommandFailed:             {Status: 422, Meaning: "A command in the machine failed.", Fields: []string{"exit_code", "output"}},
	TooManyStreams:            {Status: 429, Meaning: "This session, or this account, holds as many streams as it may."},
	DatabaseAway:              {Status: http.StatusServiceUnavailable, Meaning: "The database does not answer now. A change may have been made in its last moment: ask again with the same Idempotency-Key.", Fields: []string{"retry_after_seconds"}},
	Unavailable:               {Status: http.StatusServiceUnavailable, Meaning: "Not possible at this moment; nothing was changed.", Fields: []string{"retry_after_seconds"}},
}
