package account_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"managoat/internal/account"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/sandbox"
)

func TestMain(m *testing.M) { os.Exit(conversationtest.Main(m)) }

func TestADeletedAccountLeavesNothingAndTouchesNoOther(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t)
	other := w.Account(t)
	owner, err := w.People.AuthenticateKey(t.Context(), w.Owner.Key)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := w.People.AuthenticateKey(t.Context(), other.Key)
	if err != nil {
		t.Fatal(err)
	}
	accounts := account.New(w.DB, w.People, w.Workspaces, slog.New(slog.NewTextHandler(t.Output(), nil)))

	env := w.Environment(nil)
	kept := w.Ready(w.Workspace(env).ID)
	prompt := "sleep 600000"
	running := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &kept.ID, Prompt: &prompt})
	alone := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), EnvironmentID: &env})
	w.Until("both machines are up", func() bool {
		up, err := w.Workspaces.Get(t.Context(), w.Owner.Actor, alone.WorkspaceID)
		return err == nil && up.Status == "ready" && w.Turn(running.ID, 1).Status == conversation.Running
	})
	session, err := w.People.SignIn(t.Context(), w.Owner.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}

	for who, confirm := range map[*tenant.Actor]string{&owner: "", &stranger: w.Owner.Email} {
		if _, err := accounts.Delete(t.Context(), *who, account.DeleteInput{Confirm: confirm}); !refusal.Is(err, refusal.ValidationFailed) {
			t.Errorf("confirmed with %q: %v", confirm, err)
		}
	}
	member := owner
	member.Kind, member.Email, member.Role = tenant.User, w.Owner.Email, "member"
	if _, err := accounts.Delete(t.Context(), member, account.DeleteInput{Confirm: w.Owner.Email}); !refusal.Is(err, refusal.OwnerRequired) {
		t.Errorf("a member deletes: %v", err)
	}

	done, err := accounts.Delete(t.Context(), owner, account.DeleteInput{Confirm: " " + strings.ToUpper(w.Owner.Email)})
	if err != nil || !done.Deleted || done.SpritesDestroyed != 2 {
		t.Fatalf("%+v %v", done, err)
	}
	if _, err := w.People.AuthenticateKey(t.Context(), w.Owner.Key); !refusal.Is(err, refusal.KeyRevoked) {
		t.Errorf("its key: %v", err)
	}
	if _, err := w.People.AuthenticateSession(t.Context(), session.Token.Reveal()); err == nil {
		t.Error("its session works on")
	}
	if _, err := w.People.SignIn(t.Context(), w.Owner.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"}); !refusal.Is(err, refusal.SignInFailed) {
		t.Errorf("somebody signs in: %v", err)
	}

	if _, err := w.Workspaces.EndAll(t.Context(), tenant.SystemActor(w.Owner.TenantID, "account.delete")); err != nil {
		t.Fatal(err)
	}
	w.Until("its conversations have ended", func() bool {
		for _, c := range []conversation.Conversation{running, alone} {
			if got, err := w.Conversations.Get(t.Context(), w.Owner.Actor, c.ID); err != nil || got.Status != conversation.Terminated {
				return false
			}
		}
		return true
	})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- accounts.Run(ctx) }()
	db := w.Database.Owner(t)
	rows := func() (left map[string]int) {
		tables, err := db.Query(t.Context(), "select table_name from information_schema.columns where table_schema = 'public' and column_name = 'tenant_id'")
		if err != nil {
			t.Fatal(err)
		}
		defer tables.Close()
		var names []string
		for tables.Next() {
			var name string
			if err := tables.Scan(&name); err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
		left = map[string]int{}
		for _, name := range names {
			var n int
			if err := db.QueryRow(t.Context(), "select count(*) from "+name+" where tenant_id = $1", w.Owner.TenantID).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				left[name] = n
			}
		}
		return left
	}
	w.Until("nothing is left of it", func() bool { return len(rows()) == 0 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	machines, err := w.Provider.List(t.Context(), map[string]string{sandbox.LabelTenant: w.Owner.TenantID.String()})
	if err != nil || len(machines) != 0 {
		t.Errorf("machines are left: %v %v", machines, err)
	}
	if _, err := w.Workspaces.List(t.Context(), other.Actor, true, input.Page{Limit: 10}); err != nil {
		t.Errorf("the other account: %v", err)
	}
	if _, err := w.People.AuthenticateKey(t.Context(), other.Key); err != nil {
		t.Errorf("the other account's key: %v", err)
	}
	if _, _, err := w.People.CreateOwner(t.Context(), "operator", identity.OwnerInput{Email: w.Owner.Email, Password: secret.New(identitytest.Password)}); err != nil {
		t.Errorf("the address cannot be used again: %v", err)
	}
}
