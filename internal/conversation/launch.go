package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/environment"
	"managoat/internal/inference"
	"managoat/internal/refusal"
	"managoat/internal/runtime"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/queries"
)

// Limits of a launch. A conversation that an agent starts has a parent; how deep and how many is bounded.
const (
	maxTitle      = 120 // characters
	maxLabels     = 32
	maxLabelKey   = 64  // bytes
	maxLabelValue = 256 // bytes
	maxDepth      = 2
	maxChildren   = 8
)

// Values of sandbox_api_access.
const (
	AccessOwner = "owner" // the machine gets a key for this API
	AccessNone  = "none"  // it gets none, and no address
)

// CreateInput is what people write of a conversation.
type CreateInput struct {
	AgentID               uuid.UUID         `json:"agent_id"`
	WorkspaceID           *uuid.UUID        `json:"workspace_id" doc:"null: a workspace of its own"`
	EnvironmentID         *uuid.UUID        `json:"environment_id" doc:"without a workspace; null: the agent's"`
	VaultID               *uuid.UUID        `json:"vault_id" doc:"without a workspace"`
	Cwd                   string            `json:"cwd" doc:"/home/sprite, a repository's mount path, or below; empty: the runtime's own"`
	Prompt                *string           `json:"prompt" doc:"the first prompt; null: none yet"`
	Images                []ImageInput      `json:"images"`
	ClientRequestID       string            `json:"client_request_id"`
	Title                 string            `json:"title" doc:"up to 120 characters; empty: from the first prompt"`
	Model                 string            `json:"model" doc:"provider/id; empty: the agent's"`
	PermissionPolicy      map[string]any    `json:"permission_policy" nullable:"true" doc:"may only narrow the agent's"`
	Labels                map[string]string `json:"labels"`
	SandboxAPIAccess      string            `json:"sandbox_api_access" doc:"owner (default) or none"`
	InferenceCredentialID *uuid.UUID        `json:"inference_credential_id" doc:"null: the agent's, else the account's default"`
}

// launch is a checked CreateInput with what it refers to.
type launch struct {
	in       CreateInput
	agent    agent.Agent
	runtime  runtime.Runtime
	policy   map[string]any
	model    string
	provider string
	bound    *inference.Bound // nil: it makes no model calls through the gateway
	prompt   *PromptInput
}

// Create starts a conversation, with its first prompt where it has one. A workspace of its own begins its setup at once.
func (s *Service) Create(ctx context.Context, actor tenant.Actor, in CreateInput) (Conversation, error) {
	l, err := s.checkLaunch(ctx, actor, in)
	if err != nil {
		return Conversation{}, err
	}
	id := uuid.Must(uuid.NewV7())
	err = s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		return s.create(ctx, tx, actor, id, l)
	})
	if err != nil {
		return Conversation{}, fmt.Errorf("create a conversation: %w", err)
	}
	return s.show(ctx, actor.TenantID, id)
}

func (s *Service) checkLaunch(ctx context.Context, actor tenant.Actor, in CreateInput) (launch, error) {
	if actor.Scope == tenant.ScopeSandbox && in.WorkspaceID != nil {
		return launch{}, refusal.New(refusal.InsufficientScope, "A sandbox key launches conversations with a machine of their own only: leave workspace_id out, or use a key of scope full.").
			With("required_scope", string(tenant.ScopeFull))
	}
	var v refusal.Validation
	in.Title = strings.TrimSpace(db.SafeText(in.Title))
	v.Check(utf8.RuneCountInString(in.Title) <= maxTitle, "title", "must have at most %d characters", maxTitle)
	checkLabels(&v, &in.Labels)
	v.Check(in.AgentID != uuid.Nil, "agent_id", "must be given")
	if in.SandboxAPIAccess == "" {
		in.SandboxAPIAccess = AccessOwner
	}
	v.Check(in.SandboxAPIAccess == AccessOwner || in.SandboxAPIAccess == AccessNone, "sandbox_api_access", "must be %s or %s", AccessOwner, AccessNone)
	if err := v.Err(); err != nil {
		return launch{}, err
	}
	if in.SandboxAPIAccess == AccessNone && in.WorkspaceID != nil {
		return launch{}, refusal.New(refusal.InvalidAPIAccess, "sandbox_api_access \"none\" says that no Managoat key is on the machine, and other conversations of a workspace hold theirs there. Launch without workspace_id for a machine of its own.")
	}
	l := launch{in: in}
	if in.Prompt != nil {
		p := PromptInput{Prompt: *in.Prompt, Images: in.Images, ClientRequestID: in.ClientRequestID}
		if err := p.validate(); err != nil {
			return launch{}, err
		}
		l.prompt = &p
	} else if len(in.Images) > 0 {
		return launch{}, refusal.New(refusal.InvalidImages, "Images come with a prompt, and this launch has none.")
	}
	var err error
	if l.agent, err = s.o.Agents.Get(ctx, actor, in.AgentID); refusal.Is(err, refusal.NotFound) {
		return launch{}, refusal.New(refusal.AgentNotFound, "There is no agent with that id in this account.")
	} else if err != nil {
		return launch{}, err
	}
	var ok bool
	if l.runtime, ok = runtime.Get(l.agent.Runtime); !ok {
		return launch{}, refusal.New(refusal.NotAvailableYet, "The runtime %q cannot be launched yet. Use one of %s.", l.agent.Runtime, strings.Join(runtime.Names(), ", ")).With("field", "runtime")
	}
	if err := l.checkPolicy(); err != nil {
		return launch{}, err
	}
	return l, s.bind(ctx, actor, &l)
}

// checkPolicy takes the stricter of the agent's policy and the launch's, by the agent's rules.
func (l *launch) checkPolicy() error {
	l.policy = l.agent.PermissionPolicy
	if l.in.PermissionPolicy != nil {
		narrowed := l.agent.Config
		narrowed.PermissionPolicy = l.in.PermissionPolicy
		if err := narrowed.Validate(); err != nil {
			return err
		}
		l.policy = narrowed.PermissionPolicy
	}
	return nil
}

// bind decides the model and whose key calls it.
func (s *Service) bind(ctx context.Context, actor tenant.Actor, l *launch) error {
	if l.agent.Model != nil {
		l.model = *l.agent.Model
	}
	if l.in.Model != "" {
		if problem := agent.CheckModel(l.runtime.Name(), l.in.Model); problem != "" {
			return refusal.New(refusal.ModelInvalid, "model %s.", problem).With("errors", map[string][]string{"model": {problem}})
		}
		l.model = l.in.Model
	}
	l.provider, _, _ = strings.Cut(l.model, "/")
	named := l.in.InferenceCredentialID
	if named == nil {
		named = l.agent.InferenceCredentialID
	}
	if l.model == "" && named == nil {
		return nil // a command that brings its own model, or needs none
	}
	bound, err := s.o.Inference.Resolve(ctx, actor.TenantID, l.in.InferenceCredentialID, l.agent.InferenceCredentialID, l.provider)
	if err != nil {
		return err
	}
	l.bound = &bound
	return nil
}

func (s *Service) create(ctx context.Context, tx db.Tx, actor tenant.Actor, id uuid.UUID, l launch) error {
	parent, err := parentOf(ctx, tx, actor)
	if err != nil {
		return err
	}
	place, err := s.place(ctx, tx, actor, l)
	if err != nil {
		return err
	}
	cwd, err := cwdOf(l.in.Cwd, l.runtime.Dir(), place.mounts)
	if err != nil {
		return err
	}
	policy, err := json.Marshal(l.policy)
	if err != nil {
		return err
	}
	labels, err := json.Marshal(l.in.Labels)
	if err != nil {
		return err
	}
	p := queries.InsertConversationParams{ID: id, AgentID: l.agent.ID, AgentVersion: int32(l.agent.Version), WorkspaceID: place.workspace,
		Title: l.in.Title, Runtime: l.runtime.Name(), Model: l.model, Cwd: cwd, PermissionPolicy: policy, Labels: labels,
		SandboxApiAccess: l.in.SandboxAPIAccess, Source: sourceOf(actor), ParentID: parent, CreatedBy: actor.By()}
	if l.in.Title != "" {
		p.TitleSource = titleByPerson
	}
	if l.bound != nil {
		// Held against a delete until the conversation that is bound to it stands.
		if _, err := inference.Hold(ctx, tx, l.bound.CredentialID); err != nil {
			return err
		}
		p.InferenceCredentialID, p.CredentialRevision = &l.bound.CredentialID, l.bound.Revision
	}
	if err := tx.InsertConversation(ctx, p); err != nil {
		return err
	}
	if err := tx.InsertConversationHead(ctx, id); err != nil {
		return err
	}
	if err := audit.Write(ctx, tx, actor, audit.ConversationCreate, resource, id); err != nil {
		return err
	}
	if l.prompt == nil {
		return s.tell(ctx, tx, actor.TenantID, id)
	}
	c, err := tx.LockConversation(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.accept(ctx, tx, actor, c, *l.prompt)
	return err
}

// place is where a conversation runs.
type place struct {
	workspace uuid.UUID
	mounts    []string // of the environment's repositories
}

// place finds the workspace that the launch names, or makes one of its own.
func (s *Service) place(ctx context.Context, tx db.Tx, actor tenant.Actor, l launch) (place, error) {
	if l.in.WorkspaceID != nil {
		return s.named(ctx, tx, l)
	}
	env := l.in.EnvironmentID
	if env == nil {
		env = l.agent.EnvironmentID
	}
	if err := allowed(l.agent.Config, env, l.in.VaultID); err != nil {
		return place{}, err
	}
	mounts, err := mountsOf(ctx, tx, env)
	if err != nil {
		return place{}, err
	}
	in := workspace.ImplicitInput{Name: l.title(), EnvironmentID: env, VaultID: l.in.VaultID}
	if l.agent.SandboxProvider != nil {
		in.Provider = *l.agent.SandboxProvider
	}
	id, err := s.o.Workspaces.CreateImplicitTx(ctx, tx, actor, in)
	if err != nil {
		return place{}, err
	}
	return place{workspace: id, mounts: mounts}, nil
}

func (s *Service) named(ctx context.Context, tx db.Tx, l launch) (place, error) {
	row, err := tx.LockWorkspace(ctx, *l.in.WorkspaceID)
	if db.NotFound(err) || err == nil && row.Status == "deleted" {
		return place{}, refusal.New(refusal.WorkspaceNotFound, "There is no workspace with that id in this account.")
	}
	switch {
	case err != nil:
		return place{}, err
	case row.Implicit:
		return place{}, refusal.New(refusal.ImplicitWorkspace, "That workspace is another conversation's own machine. Create a workspace, or launch without workspace_id.")
	case row.Status == "deleting":
		return place{}, refusal.New(refusal.WorkspaceDeleting, "The workspace %q is being deleted. Create another one.", row.Name)
	case differs(l.in.EnvironmentID, row.EnvironmentID), differs(l.in.VaultID, row.VaultID):
		return place{}, refusal.New(refusal.WorkspaceFixesEnvironment, "The workspace %q fixes the environment and the vault: leave environment_id and vault_id out, or create a workspace from those.", row.Name)
	}
	if err := allowed(l.agent.Config, row.EnvironmentID, row.VaultID); err != nil {
		return place{}, err
	}
	mounts, err := mountsOf(ctx, tx, row.EnvironmentID)
	return place{workspace: row.ID, mounts: mounts}, err
}

// title is the conversation's, or what its own workspace is called until it has one.
func (l launch) title() string {
	switch {
	case l.in.Title != "":
		return l.in.Title
	case l.prompt != nil:
		return titleOf(l.prompt.Prompt)
	}
	return l.agent.Name
}

// differs tells whether a launch names something other than what is there.
func differs(named, there *uuid.UUID) bool {
	return named != nil && (there == nil || *named != *there)
}

func allowed(c agent.Config, env, vault *uuid.UUID) error {
	if env != nil && !c.AllowsEnvironment(*env) {
		return refusal.New(refusal.EnvironmentNotAllowed, "The agent %q may not run in the environment %s: its allowed_environment_ids do not hold it.", c.Name, *env)
	}
	if vault != nil && !c.AllowsVault(*vault) {
		return refusal.New(refusal.VaultNotAllowed, "The agent %q may not use the vault %s: its allowed_vault_ids do not hold it.", c.Name, *vault)
	}
	return nil
}

func mountsOf(ctx context.Context, tx db.Tx, env *uuid.UUID) ([]string, error) {
	if env == nil {
		return nil, nil
	}
	row, err := tx.Environment(ctx, *env)
	if db.NotFound(err) {
		return nil, refusal.New(refusal.EnvironmentNotFound, "There is no environment with that id in this account.")
	}
	if err != nil {
		return nil, err
	}
	var repositories []environment.Repository
	if err := json.Unmarshal(row.Environment.Repositories, &repositories); err != nil {
		return nil, fmt.Errorf("read the environment's repositories: %w", err)
	}
	mounts := make([]string, len(repositories))
	for i, r := range repositories {
		mounts[i] = r.MountPath
	}
	return mounts, nil
}

// parentOf is the conversation whose agent launches, when one does: never deeper and never more than agreed.
func parentOf(ctx context.Context, tx db.Tx, actor tenant.Actor) (*uuid.UUID, error) {
	if actor.Scope != tenant.ScopeSandbox {
		return nil, nil
	}
	parent, err := tx.LockConversation(ctx, actor.ConversationID)
	if err != nil {
		return nil, missing(err)
	}
	if parent.Status == Terminated || parent.Status == Failed {
		return nil, ended(parent)
	}
	family, err := tx.Family(ctx, parent.ID)
	if err != nil {
		return nil, err
	}
	if family.Depth >= maxDepth || family.Children >= maxChildren {
		return nil, refusal.New(refusal.QuotaExceeded, "A conversation that an agent started may be %d levels deep and have %d live children; this one is at level %d with %d.",
			maxDepth, maxChildren, family.Depth, family.Children).With("quota", "child_conversations").With("limit", maxChildren).With("used", int(family.Children))
	}
	return &parent.ID, nil
}

func sourceOf(actor tenant.Actor) string {
	switch {
	case actor.Scope == tenant.ScopeSandbox:
		return "agent"
	case actor.Kind == tenant.User:
		return "ui"
	}
	return "api"
}

func checkLabels(v *refusal.Validation, labels *map[string]string) {
	if *labels == nil {
		*labels = map[string]string{}
	}
	v.Check(len(*labels) <= maxLabels, "labels", "must have at most %d entries", maxLabels)
	for key, value := range *labels {
		v.Check(key != "" && len(key) <= maxLabelKey && db.SafeText(key) == key, "labels", "must have keys of 1 to %d bytes", maxLabelKey)
		v.Check(len(value) <= maxLabelValue && db.SafeText(value) == value, "labels", "must have values of at most %d bytes", maxLabelValue)
	}
}
