// Package inference keeps the keys that models are called with, and decides which one a conversation is bound to: the
// launch's, else the agent's, else the account's default for the provider. A binding names a revision: once what it
// names was changed or deleted, it opens no more, so that no conversation goes on with another key unasked.
package inference

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/audit"
	"managoat/internal/input"
	"managoat/internal/netguard"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/queries"
)

// Providers of models. A model's name begins with one: provider/id.
const (
	Anthropic        = "anthropic"
	OpenAI           = "openai"
	Google           = "google"
	OpenAICompatible = "openai_compatible" // any server that speaks OpenAI's API, named by its base URL
)

// Providers lists them.
var Providers = []string{Anthropic, OpenAI, Google, OpenAICompatible}

// Kinds of credentials.
const (
	APIKey     = "api_key"
	OAuthToken = "oauth_token" // of a claude subscription
)

// SourceOwn says that the account's own key pays.
const SourceOwn = "own"

// Credential is a credential as it is shown: never its key.
type Credential struct {
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Provider   string    `json:"provider" enum:"anthropic,openai,google,openai_compatible"`
	Kind       string    `json:"kind" enum:"api_key,oauth_token"`
	BaseURL    string    `json:"base_url" doc:"empty: the provider's own"`
	Default    bool      `json:"default" doc:"what conversations of this provider use that name no other"`
	Revision   int       `json:"revision" doc:"grows with every change that conversations bound to it notice"`
	InsertedAt time.Time `json:"inserted_at"`
	UpdatedAt  time.Time `json:"updated_at"`
}

// Bound is what a conversation calls models with.
type Bound struct {
	CredentialID uuid.UUID
	Revision     int32
	Source       string // SourceOwn
	Provider     string
	Kind         string
	BaseURL      string // "": the provider's own
	Key          secret.Value
}

// Service keeps the credentials of every account.
type Service struct {
	db         *db.DB
	keys       *secret.Keyring
	allowances []netguard.Allowance
}

// NewService makes the service. allowances are the operator's: they say which base URLs may be plain http.
func NewService(d *db.DB, keys *secret.Keyring, allowances []netguard.Allowance) *Service {
	return &Service{db: d, keys: keys, allowances: allowances}
}

// Create keeps a new credential. The first of a provider becomes its default.
func (s *Service) Create(ctx context.Context, actor tenant.Actor, in Input) (Credential, error) {
	if err := s.validate(&in, true); err != nil {
		return Credential{}, err
	}
	var out queries.InferenceCredential
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) (err error) {
		if err := tx.LockCredentials(ctx); err != nil {
			return err
		}
		out, err = s.insert(ctx, tx, actor, in)
		return err
	})
	if err != nil {
		return Credential{}, fmt.Errorf("create an inference credential: %w", err)
	}
	return credential(out), nil
}

func (s *Service) insert(ctx context.Context, tx db.Tx, actor tenant.Actor, in Input) (queries.InferenceCredential, error) {
	var none queries.InferenceCredential
	all, err := tx.CountCredentials(ctx, "")
	if err != nil {
		return none, err
	}
	if all >= MaxCredentials {
		var v refusal.Validation
		v.Add("name", "would be one more than the %d credentials an account may have", MaxCredentials)
		return none, v.Err()
	}
	peers, err := tx.CountCredentials(ctx, in.Provider)
	if err != nil {
		return none, err
	}
	if in.Default && peers > 0 {
		if err := tx.UndefaultCredentials(ctx, in.Provider); err != nil {
			return none, err
		}
	}
	id := uuid.Must(uuid.NewV7())
	sealed, version, err := s.keys.Seal(ctx, tx.Queries, actor.TenantID, id, in.Key)
	if err != nil {
		return none, fmt.Errorf("seal the key: %w", err)
	}
	row, err := tx.InsertCredential(ctx, queries.InsertCredentialParams{
		ID: id, Name: in.Name, Provider: in.Provider, Kind: in.Kind, BaseUrl: in.BaseURL, Sealed: sealed, KeyVersion: version,
		IsDefault: in.Default || peers == 0,
	})
	if err != nil {
		return none, named(in.Name, err)
	}
	return row, audit.Write(ctx, tx, actor, audit.CredentialCreate, resource, id, in.fields()...)
}

// Get shows a credential.
func (s *Service) Get(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Credential, error) {
	row, err := s.db.Tenant(actor.TenantID).Credential(ctx, id)
	if err != nil {
		return Credential{}, missing(err)
	}
	return credential(row), nil
}

// List shows the credentials of the account, by name.
func (s *Service) List(ctx context.Context, actor tenant.Actor, page input.Page) (input.List[Credential], error) {
	after, err := page.Name()
	if err != nil {
		return input.List[Credential]{}, err
	}
	rows, err := s.db.Tenant(actor.TenantID).Credentials(ctx, after, page.Fetch())
	if err != nil {
		return input.List[Credential]{}, fmt.Errorf("list the inference credentials: %w", err)
	}
	return input.Paged(page, rows, credential, func(c Credential) string { return input.NameCursor(c.Name) }), nil
}

// Update changes a credential: edit gets its present input, without the key, and changes it; a key that it leaves empty
// stays. A change of the key, its kind or the base URL is a new revision.
func (s *Service) Update(ctx context.Context, actor tenant.Actor, id uuid.UUID, edit func(*Input) error) (Credential, error) {
	var out queries.InferenceCredential
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) (err error) {
		if err := tx.LockCredentials(ctx); err != nil {
			return err
		}
		out, err = s.update(ctx, tx, actor, id, edit)
		return err
	})
	if err != nil {
		return Credential{}, fmt.Errorf("update an inference credential: %w", err)
	}
	return credential(out), nil
}

func (s *Service) update(ctx context.Context, tx db.Tx, actor tenant.Actor, id uuid.UUID, edit func(*Input) error) (queries.InferenceCredential, error) {
	row, err := tx.LockCredential(ctx, id)
	if err != nil {
		return row, missing(err)
	}
	before := Input{Name: row.Name, Provider: row.Provider, Kind: row.Kind, BaseURL: row.BaseUrl, Default: row.IsDefault}
	in := before
	if err := edit(&in); err != nil {
		return row, err
	}
	if err := s.validate(&in, false); err != nil {
		return row, err
	}
	switch {
	case in.Provider != before.Provider:
		var v refusal.Validation
		v.Add("provider", "cannot change: make another credential")
		return row, v.Err()
	case before.Default && !in.Default:
		return row, refusal.New(refusal.CannotUndefault, "A provider has exactly one default. Make another credential of %s the default instead.", in.Provider).
			With("errors", map[string][]string{"default": {"is the only default of its provider"}})
	}
	fields := input.Changed(before, in) // the key masks itself on both sides
	sealed, version, revision := row.Sealed, row.KeyVersion, row.Revision
	if !in.Key.Empty() {
		if sealed, version, err = s.keys.Seal(ctx, tx.Queries, actor.TenantID, id, in.Key); err != nil {
			return row, fmt.Errorf("seal the key: %w", err)
		}
		fields = append(fields, "key")
	}
	if len(fields) == 0 {
		return row, nil
	}
	if !in.Key.Empty() || in.Kind != before.Kind || in.BaseURL != before.BaseURL {
		revision++
	}
	if in.Default && !before.Default {
		if err := tx.UndefaultCredentials(ctx, in.Provider); err != nil {
			return row, err
		}
	}
	row, err = tx.UpdateCredential(ctx, queries.UpdateCredentialParams{
		ID: id, Name: in.Name, Kind: in.Kind, BaseUrl: in.BaseURL, Sealed: sealed, KeyVersion: version, Revision: revision, IsDefault: in.Default,
	})
	if err != nil {
		return row, named(in.Name, err)
	}
	return row, audit.Write(ctx, tx, actor, audit.CredentialUpdate, resource, id, fields...)
}

// PutDefault sets the key of a provider's default credential, and makes one when there is none.
func (s *Service) PutDefault(ctx context.Context, actor tenant.Actor, provider, kind string, key secret.Value) (Credential, error) {
	in := Input{Name: provider, Provider: provider, Kind: kind, Key: key, Default: true}
	if err := s.validate(&in, true); err != nil {
		return Credential{}, err
	}
	var out queries.InferenceCredential
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := tx.LockCredentials(ctx); err != nil {
			return err
		}
		present, err := tx.DefaultCredential(ctx, provider)
		switch {
		case db.NotFound(err):
			out, err = s.insert(ctx, tx, actor, in)
		case err == nil:
			out, err = s.update(ctx, tx, actor, present.ID, func(i *Input) error {
				i.Kind, i.Key = kind, key
				return nil
			})
		}
		return err
	})
	if err != nil {
		return Credential{}, fmt.Errorf("set the default inference credential: %w", err)
	}
	return credential(out), nil
}

// maxNamed is how many users of a credential a refusal names.
const maxNamed = 20

// Delete removes a credential that no agent names. A default goes only as the last one of its provider.
func (s *Service) Delete(ctx context.Context, actor tenant.Actor, id uuid.UUID) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := tx.LockCredentials(ctx); err != nil {
			return err
		}
		return s.delete(ctx, tx, actor, id)
	})
	if err != nil {
		return fmt.Errorf("delete an inference credential: %w", err)
	}
	return nil
}

// DeleteDefault removes the default credential of a provider, as Delete does.
func (s *Service) DeleteDefault(ctx context.Context, actor tenant.Actor, provider string) error {
	err := s.db.InTenant(ctx, actor.TenantID, func(tx db.Tx) error {
		if err := tx.LockCredentials(ctx); err != nil {
			return err
		}
		row, err := tx.DefaultCredential(ctx, provider)
		if err != nil {
			return missing(err)
		}
		return s.delete(ctx, tx, actor, row.ID)
	})
	if err != nil {
		return fmt.Errorf("delete the default inference credential: %w", err)
	}
	return nil
}

func (s *Service) delete(ctx context.Context, tx db.Tx, actor tenant.Actor, id uuid.UUID) error {
	row, err := tx.LockCredential(ctx, id)
	if err != nil {
		return missing(err)
	}
	agents, err := tx.AgentsOfCredential(ctx, id.String(), maxNamed)
	if err != nil {
		return err
	}
	if len(agents) > 0 {
		names := make([]string, len(agents))
		for i, a := range agents {
			names[i] = a.Name
		}
		return refusal.New(refusal.InUse, "Agent %q names this credential. Give the agent another one, or none, first.", names[0]).With("used_by", names)
	}
	peers, err := tx.CountCredentials(ctx, row.Provider)
	if err != nil {
		return err
	}
	if row.IsDefault && peers > 1 {
		return refusal.New(refusal.CredentialIsDefault, "This is the default of %s. Make another credential of it the default first.", row.Provider).
			With("provider", row.Provider)
	}
	if err := tx.DeleteCredential(ctx, id); err != nil {
		return err
	}
	return audit.Write(ctx, tx, actor, audit.CredentialDelete, resource, id)
}

// Hold checks that the credential is there and keeps it from being deleted until tx ends; it returns its provider.
func Hold(ctx context.Context, tx db.Tx, id uuid.UUID) (provider string, err error) {
	provider, err = tx.HoldCredential(ctx, id)
	if db.NotFound(err) {
		return "", notFound(id)
	}
	if err != nil {
		return "", fmt.Errorf("hold the inference credential: %w", err)
	}
	return provider, nil
}

// Resolve decides what a new conversation calls models of the provider with: the launch's credential, else the agent's,
// else the account's default. provider "" (a command that names no model) takes a named credential of any provider.
func (s *Service) Resolve(ctx context.Context, tenantID uuid.UUID, launch, agent *uuid.UUID, provider string) (Bound, error) {
	q := s.db.Tenant(tenantID)
	id := launch
	if id == nil {
		id = agent
	}
	if id == nil {
		row, err := q.DefaultCredential(ctx, provider)
		if db.NotFound(err) {
			return Bound{}, refusal.New(refusal.CredentialMissing, "This account has no key for %s. Add one in the settings, under inference credentials.", provider).
				With("provider", provider)
		}
		if err != nil {
			return Bound{}, fmt.Errorf("find the default inference credential: %w", err)
		}
		return s.bind(ctx, q, row)
	}
	row, err := q.Credential(ctx, *id)
	if db.NotFound(err) {
		return Bound{}, notFound(*id)
	}
	if err != nil {
		return Bound{}, fmt.Errorf("find the inference credential: %w", err)
	}
	if provider != "" && row.Provider != provider {
		var v refusal.Validation
		v.Add("inference_credential_id", "is a key for %s; the model needs one for %s", row.Provider, provider)
		return Bound{}, v.Err()
	}
	return s.bind(ctx, q, row)
}

// Open opens what a conversation is bound to. inference_source_changed when it is not what it was at that revision.
func (s *Service) Open(ctx context.Context, q *queries.Queries, id uuid.UUID, revision int32) (Bound, error) {
	row, err := q.Credential(ctx, id)
	switch {
	case db.NotFound(err):
		return Bound{}, refusal.New(refusal.InferenceSourceChanged, "The inference credential this conversation is bound to was deleted. Start a new conversation.")
	case err != nil:
		return Bound{}, fmt.Errorf("open the inference credential: %w", err)
	case row.Revision != revision:
		return Bound{}, refusal.New(refusal.InferenceSourceChanged, "The inference credential %q was changed since this conversation was bound to it. Start a new conversation.", row.Name)
	}
	return s.bind(ctx, q, row)
}

func (s *Service) bind(ctx context.Context, q *queries.Queries, row queries.InferenceCredential) (Bound, error) {
	key, err := s.keys.Unseal(ctx, q, row.TenantID, row.ID, row.Sealed, row.KeyVersion)
	if err != nil {
		return Bound{}, fmt.Errorf("open the inference credential: %w", err)
	}
	return Bound{
		CredentialID: row.ID, Revision: row.Revision, Source: SourceOwn, Provider: row.Provider, Kind: row.Kind, BaseURL: row.BaseUrl, Key: key,
	}, nil
}

// resource is the type of a credential in audit rows.
const resource = "inference_credential"

func missing(err error) error {
	if db.NotFound(err) {
		return refusal.NotFoundError()
	}
	return fmt.Errorf("read the inference credential: %w", err)
}

func notFound(id uuid.UUID) error {
	return refusal.New(refusal.CredentialNotFound, "There is no inference credential with that id in this account.")
}

// named turns the violation of the unique name into its refusal.
func named(name string, err error) error {
	if db.IsUnique(err, "inference_credentials_tenant_id_name_key") {
		return input.NameTaken("inference credential", name)
	}
	return err
}

func credential(r queries.InferenceCredential) Credential {
	return Credential{
		ID: r.ID, Name: r.Name, Provider: r.Provider, Kind: r.Kind, BaseURL: r.BaseUrl, Default: r.IsDefault, Revision: int(r.Revision),
		InsertedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
}
