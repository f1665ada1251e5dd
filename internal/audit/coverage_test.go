package audit_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/agent"
	"managoat/internal/audit"
	"managoat/internal/environment"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/internal/vault"
)

// world is one account with one of everything, for one method to change.
type world struct {
	*identitytest.Instance
	t            *testing.T
	account      identitytest.Account
	environments *environment.Service
	vaults       *vault.Service
	agents       *agent.Service
	credentials  *inference.Service
	environment  environment.Environment
	vault        vault.Vault
	agent        agent.Agent
	credential   inference.Credential
}

func newWorld(t *testing.T, i *identitytest.Instance) *world {
	t.Helper()
	w := &world{
		Instance: i, t: t, account: i.Account(t), environments: environment.NewService(i.DB, i.Keys, nil), vaults: vault.NewService(i.DB, i.Keys),
		agents: agent.NewService(i.DB, []string{"local"}), credentials: inference.NewService(i.DB, i.Keys, nil),
	}
	w.environment = must(w.environments.Create(ctx, w.account.Actor, w.newEnvironment("first")))
	w.vault = must(w.vaults.Create(ctx, w.account.Actor, vault.Input{Name: "first"}))
	w.agent = must(w.agents.Create(ctx, w.account.Actor, w.newAgent("first")))
	w.credential = must(w.credentials.Create(ctx, w.account.Actor, inference.Input{Name: "first", Provider: inference.OpenAI, Key: secret.New("k")}))
	must(w.environments.PutSecret(ctx, w.account.Actor, w.environment.ID, environment.SecretInput{Key: "FIRST", Value: secret.New("x")}))
	must(w.vaults.PutSecret(ctx, w.account.Actor, w.vault.ID, vault.SecretInput{Key: "FIRST", Value: secret.New("x")}))
	return w
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w *world) newEnvironment(name string) environment.Input {
	in := environment.New()
	in.Name = name
	return in
}

func (w *world) newAgent(name string) agent.Config {
	c := agent.New()
	c.Name, c.Runtime, c.RuntimeCommand = name, agent.ACP, "agent"
	return c
}

func (w *world) session() tenant.Actor {
	s := must(w.People.SignIn(ctx, w.account.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"}))
	return must(w.People.AuthenticateSession(ctx, s.Token.Reveal()))
}

func second[A, B any](_ A, b B) B { return b }

// mutating are the methods that change something, each with the row it must write and a call that changes something.
var mutating = map[string]struct {
	action audit.Action
	call   func(w *world) error
}{
	"environment.Create": {audit.EnvironmentCreate, func(w *world) error {
		return second(w.environments.Create(ctx, w.account.Actor, w.newEnvironment("second")))
	}},
	"environment.Update": {audit.EnvironmentUpdate, func(w *world) error {
		return second(w.environments.Update(ctx, w.account.Actor, w.environment.ID, func(in *environment.Input) error { in.SetupScript = "true"; return nil }))
	}},
	"environment.Delete": {audit.EnvironmentDelete, func(w *world) error { return w.environments.Delete(ctx, w.account.Actor, w.environment.ID) }},
	"environment.PutSecret": {audit.EnvironmentPutSecret, func(w *world) error {
		return second(w.environments.PutSecret(ctx, w.account.Actor, w.environment.ID, environment.SecretInput{Key: "K", Value: secret.New("x")}))
	}},
	"environment.DeleteSecret": {audit.EnvironmentDeleteSecret, func(w *world) error {
		return w.environments.DeleteSecret(ctx, w.account.Actor, w.environment.ID, "FIRST")
	}},
	"vault.Create": {audit.VaultCreate, func(w *world) error {
		return second(w.vaults.Create(ctx, w.account.Actor, vault.Input{Name: "second"}))
	}},
	"vault.Update": {audit.VaultUpdate, func(w *world) error {
		return second(w.vaults.Update(ctx, w.account.Actor, w.vault.ID, func(in *vault.Input) error { in.Description = "x"; return nil }))
	}},
	"vault.Delete": {audit.VaultDelete, func(w *world) error { return w.vaults.Delete(ctx, w.account.Actor, w.vault.ID) }},
	"vault.PutSecret": {audit.VaultPutSecret, func(w *world) error {
		return second(w.vaults.PutSecret(ctx, w.account.Actor, w.vault.ID, vault.SecretInput{Key: "K", Value: secret.New("x")}))
	}},
	"vault.UpdateSecret": {audit.VaultUpdateSecret, func(w *world) error {
		now := time.Now()
		return second(w.vaults.UpdateSecret(ctx, w.account.Actor, w.vault.ID, "FIRST", &now))
	}},
	"vault.DeleteSecret": {audit.VaultDeleteSecret, func(w *world) error { return w.vaults.DeleteSecret(ctx, w.account.Actor, w.vault.ID, "FIRST") }},
	"agent.Create": {audit.AgentCreate, func(w *world) error {
		return second(w.agents.Create(ctx, w.account.Actor, w.newAgent("second")))
	}},
	"agent.Update": {audit.AgentUpdate, func(w *world) error {
		return second(w.agents.Update(ctx, w.account.Actor, w.agent.ID, 0, func(c *agent.Config) error { c.System = "x"; return nil }))
	}},
	"agent.Delete": {audit.AgentDelete, func(w *world) error { return w.agents.Delete(ctx, w.account.Actor, w.agent.ID) }},
	"inference.Create": {audit.CredentialCreate, func(w *world) error {
		return second(w.credentials.Create(ctx, w.account.Actor, inference.Input{Name: "second", Provider: inference.OpenAI, Key: secret.New("k")}))
	}},
	"inference.Update": {audit.CredentialUpdate, func(w *world) error {
		return second(w.credentials.Update(ctx, w.account.Actor, w.credential.ID, func(in *inference.Input) error { in.Key = secret.New("new"); return nil }))
	}},
	"inference.Delete": {audit.CredentialDelete, func(w *world) error { return w.credentials.Delete(ctx, w.account.Actor, w.credential.ID) }},
	"inference.PutDefault": {audit.CredentialUpdate, func(w *world) error {
		return second(w.credentials.PutDefault(ctx, w.account.Actor, inference.OpenAI, inference.APIKey, secret.New("new")))
	}},
	"inference.DeleteDefault": {audit.CredentialDelete, func(w *world) error {
		return w.credentials.DeleteDefault(ctx, w.account.Actor, inference.OpenAI)
	}},
	"identity.CreateOwner": {audit.AccountCreate, func(w *world) error {
		_, _, err := w.People.CreateOwner(ctx, "ada", identity.OwnerInput{Email: "new@example.com", Password: secret.New("long enough")})
		return err
	}},
	"identity.UseSetupLink": {audit.AccountCreate, func(w *world) error {
		token, _, err := w.People.SetupLink(ctx)
		if err != nil {
			return err
		}
		return second(w.People.UseSetupLink(ctx, token.Reveal(), identity.OwnerInput{Email: "new@example.com", Password: secret.New("long enough")}, identity.Client{}))
	}},
	"identity.SignIn":  {audit.SessionCreate, func(w *world) error { w.session(); return nil }},
	"identity.SignOut": {audit.SessionDelete, func(w *world) error { return w.People.SignOut(ctx, w.session()) }},
	"identity.RevokeSession": {audit.SessionDelete, func(w *world) error {
		s := w.session()
		return w.People.RevokeSession(ctx, w.account.Actor, s.SessionID)
	}},
	"identity.Token": {audit.APIKeyCreate, func(w *world) error {
		return second(w.People.Token(ctx, w.account.Email, secret.New(identitytest.Password), identity.Client{}))
	}},
	"identity.CreateKey": {audit.APIKeyCreate, func(w *world) error {
		return second(w.People.CreateKey(ctx, w.account.Actor, identity.KeyInput{Name: "second"}))
	}},
	"identity.RevokeKey": {audit.APIKeyRevoke, func(w *world) error {
		return w.People.RevokeKey(ctx, w.account.Actor, uuid.MustParse(w.account.ID))
	}},
	"identity.MintSandboxKey": {audit.APIKeyCreate, func(w *world) error {
		return w.InTenant(ctx, w.account.TenantID, func(tx db.Tx) error {
			return second(identity.MintSandboxKey(ctx, tx, w.account.Actor, uuid.New(), time.Hour))
		})
	}},
	"identity.RevokeSandboxKeys": {audit.APIKeyRevoke, func(w *world) error {
		return w.InTenant(ctx, w.account.TenantID, func(tx db.Tx) error {
			id := uuid.New()
			if _, err := identity.MintSandboxKey(ctx, tx, w.account.Actor, id, time.Hour); err != nil {
				return err
			}
			return identity.RevokeSandboxKeys(ctx, tx, w.account.Actor, id)
		})
	}},
}

// reading are the methods that change nothing of an account.
var reading = []string{
	"environment.Get", "environment.List", "environment.Hold", "environment.ListSecrets", "environment.Secrets", "environment.Masks",
	"vault.Get", "vault.List", "vault.Hold", "vault.ListSecrets", "vault.Secrets", "vault.Masks",
	"agent.Get", "agent.List", "agent.Version", "agent.Versions",
	"inference.Get", "inference.List", "inference.Resolve", "inference.Open",
	"identity.AuthenticateKey", "identity.AuthenticateSession", "identity.Members", "identity.Me", "identity.Sessions", "identity.Keys",
	"identity.HasAccounts", "identity.CheckSetupLink", "identity.CheckMasterKey",
	"identity.SetupLink", // before there is an account; the platform's access row tells of it
	"identity.Run",       // writes last uses, which nobody asked for
}

// Every exported method of a service is known here as one that changes something or as one that does not, and each that
// does writes its row.
func TestEveryMethodThatChangesSomethingWritesItsRow(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for name, service := range map[string]any{
		"environment": &environment.Service{}, "vault": &vault.Service{}, "agent": &agent.Service{}, "inference": &inference.Service{}, "identity": &identity.Service{},
	} {
		typ := reflect.TypeOf(service)
		for i := range typ.NumMethod() {
			method := name + "." + typ.Method(i).Name
			known[method] = true
			if _, changes := mutating[method]; changes == slices.Contains(reading, method) {
				t.Errorf("%s: say whether it changes something, in one of the two lists", method)
			}
		}
	}
	for _, method := range reading {
		if !known[method] {
			t.Errorf("%s is listed and does not exist", method)
		}
	}
	shared := identitytest.New(t)
	for method, m := range mutating {
		t.Run(method, func(t *testing.T) {
			instance := shared
			if m.action == audit.AccountCreate { // its row is in the new account
				instance = identitytest.New(t)
			}
			w := newWorld(t, instance)
			conn := w.Owner(t)
			rows := func() (n int) {
				t.Helper()
				if err := conn.QueryRow(ctx, "select count(*) from audit_events where action = $1", m.action).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := rows()
			if err := m.call(w); err != nil {
				t.Fatal(err)
			}
			if after := rows(); after != before+1 {
				t.Errorf("wrote %d rows of %s", after-before, m.action)
			}
			// What the trail holds is names: no value that was sent.
			list, err := audit.New(w.DB).List(ctx, w.account.Actor, audit.Filter{}, input.Page{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list.Items {
				for _, field := range e.Metadata.ChangedFields {
					if slices.Contains([]string{"x", "k", "new", "second", identitytest.Password}, field) {
						t.Errorf("the row of %s holds the value %q", e.Action, field)
					}
				}
			}
		})
	}
}
