package vault_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/identity/identitytest"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/vault"
)

var ctx = context.Background()

func want(t *testing.T, err error, code refusal.Code) *refusal.Refusal {
	t.Helper()
	r, ok := refusal.As(err)
	if !ok || r.Code != code {
		t.Fatalf("got %v, want the refusal %s", err, code)
	}
	return r
}

func patch(body string) func(*vault.Input) error {
	return func(in *vault.Input) error { return input.Decode([]byte(body), in) }
}

func TestAVaultIsKeptChangedAndSeenByItsAccountOnly(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := vault.NewService(d.DB, d.Keys)
	v, err := s.Create(ctx, a.Actor, vault.Input{Name: " team bot ", Description: "a\r\nb", Metadata: map[string]any{"owner": "web"}})
	if err != nil || v.Name != "team bot" || v.Description != "a\nb" {
		t.Fatalf("made %+v, %v", v, err)
	}
	if v, err = s.Update(ctx, a.Actor, v.ID, patch(`{"description":"new"}`)); err != nil || v.Description != "new" || v.Metadata["owner"] != "web" {
		t.Fatalf("changed to %+v, %v", v, err)
	}
	got, err := s.Get(ctx, a.Actor, v.ID)
	asMade, _ := json.Marshal(v)
	asGot, _ := json.Marshal(got)
	if err != nil || string(asMade) != string(asGot) {
		t.Errorf("kept as %s, made as %s, %v", asGot, asMade, err)
	}
	for name, body := range map[string]string{
		"name": `{"name":" "}`, "description": `{"description":"\u0000"}`, "metadata": `{"metadata":{"a":"\u0000"}}`, "sercets": `{"sercets":[]}`,
	} {
		_, err := s.Update(ctx, a.Actor, v.ID, patch(body))
		if fields := refusal.FieldErrors(want(t, err, refusal.ValidationFailed)); len(fields[name]) == 0 {
			t.Errorf("%s: %v", body, fields)
		}
	}
	_, err = s.Create(ctx, a.Actor, vault.Input{Name: "team bot"})
	want(t, err, refusal.NameTaken)
	// Another account.
	if _, err := s.Create(ctx, b.Actor, vault.Input{Name: "team bot"}); err != nil {
		t.Errorf("another account's name stood in the way: %v", err)
	}
	_, err = s.Get(ctx, b.Actor, v.ID)
	want(t, err, refusal.NotFound)
	_, err = s.Update(ctx, b.Actor, v.ID, patch(`{"name":"stolen"}`))
	want(t, err, refusal.NotFound)
	want(t, s.Delete(ctx, b.Actor, v.ID), refusal.NotFound)
	if list, err := s.List(ctx, b.Actor, input.Page{}); err != nil || len(list.Items) != 1 || list.Items[0].ID == v.ID {
		t.Errorf("another account lists %+v, %v", list, err)
	}
	if list, err := s.List(ctx, a.Actor, input.Page{}); err != nil || len(list.Items) != 1 || list.Items[0].ID != v.ID {
		t.Errorf("lists %+v, %v", list, err)
	}
	if err := s.Delete(ctx, a.Actor, v.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(ctx, a.Actor, v.ID)
	want(t, err, refusal.NotFound)
}

func TestAVaultsSecretsCarryAnAdvisoryExpiryAndStayApartFromAnEnvironments(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	s := vault.NewService(d.DB, d.Keys)
	e, err := environment.NewService(d.DB, d.Keys, nil).Create(ctx, a.Actor, func() environment.Input { in := environment.New(); in.Name = "node"; return in }())
	if err != nil {
		t.Fatal(err)
	}
	environments := environment.NewService(d.DB, d.Keys, nil)
	if _, err := environments.PutSecret(ctx, a.Actor, e.ID, environment.SecretInput{Key: "TOKEN", Value: secret.New("the environment's")}); err != nil {
		t.Fatal(err)
	}
	v, err := s.Create(ctx, a.Actor, vault.Input{Name: "bot"})
	if err != nil {
		t.Fatal(err)
	}
	past := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	put, err := s.PutSecret(ctx, a.Actor, v.ID, vault.SecretInput{Key: "TOKEN", Value: secret.New("the vault's"), ExpiresAt: &past})
	if err != nil || !put.ExpiresAt.Equal(past) || *put.VaultID != v.ID || put.EnvironmentID != nil {
		t.Fatalf("put %+v, %v", put, err)
	}
	values, err := s.Secrets(ctx, a.TenantID, v.ID)
	if err != nil || values["TOKEN"].Reveal() != "the vault's" { // past its expiry all the same
		t.Fatalf("opened %v, %v", len(values), err)
	}
	other, err := environments.Secrets(ctx, a.TenantID, e.ID)
	if err != nil || other["TOKEN"].Reveal() != "the environment's" || len(other) != 1 {
		t.Fatalf("the environment's are %d, %v", len(other), err)
	}
	if got, err := s.UpdateSecret(ctx, a.Actor, v.ID, "TOKEN", nil); err != nil || got.ExpiresAt != nil || got.ID != put.ID {
		t.Fatalf("cleared to %+v, %v", got, err)
	}
	if values, err := s.Secrets(ctx, a.TenantID, v.ID); err != nil || values["TOKEN"].Reveal() != "the vault's" {
		t.Fatalf("a new expiry changed the value: %v", err)
	}
	_, err = s.UpdateSecret(ctx, a.Actor, v.ID, "NEVER", nil)
	want(t, err, refusal.NotFound)
	_, err = s.UpdateSecret(ctx, b.Actor, v.ID, "TOKEN", nil)
	want(t, err, refusal.NotFound)
	_, err = s.PutSecret(ctx, b.Actor, v.ID, vault.SecretInput{Key: "TOKEN", Value: secret.New("evil")})
	want(t, err, refusal.NotFound)
	want(t, s.DeleteSecret(ctx, b.Actor, v.ID, "TOKEN"), refusal.NotFound)
	_, err = s.ListSecrets(ctx, b.Actor, v.ID)
	want(t, err, refusal.NotFound)
	if list, err := s.ListSecrets(ctx, a.Actor, v.ID); err != nil || len(list) != 1 {
		t.Errorf("lists %+v, %v", list, err)
	}
	if err := s.DeleteSecret(ctx, a.Actor, v.ID, "TOKEN"); err != nil {
		t.Fatal(err)
	}
	if other, err := environments.Secrets(ctx, a.TenantID, e.ID); err != nil || len(other) != 1 {
		t.Errorf("deleting the vault's took the environment's: %v", err)
	}
}

func TestAVaultHoldsABoundedNumberOfSecrets(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := vault.NewService(d.DB, d.Keys)
	v, err := s.Create(ctx, a.Actor, vault.Input{Name: "bot"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := s.PutSecret(ctx, a.Actor, v.ID, vault.SecretInput{Key: fmt.Sprint("K", i), Value: secret.New("x")}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.PutSecret(ctx, a.Actor, v.ID, vault.SecretInput{Key: "ONE_MORE", Value: secret.New("x")})
	want(t, err, refusal.ValidationFailed)
	if _, err := s.PutSecret(ctx, a.Actor, v.ID, vault.SecretInput{Key: "K7", Value: secret.New("y")}); err != nil {
		t.Errorf("a secret that is there cannot be replaced: %v", err)
	}
}

func TestAVaultInUseIsNotDeleted(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	s := vault.NewService(d.DB, d.Keys)
	v, err := s.Create(ctx, a.Actor, vault.Input{Name: "bot"})
	if err != nil {
		t.Fatal(err)
	}
	in := environment.New()
	in.Name = "node"
	e, err := environment.NewService(d.DB, d.Keys, nil).Create(ctx, a.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Owner(t).Exec(ctx, "insert into workspaces (tenant_id, id, name, environment_id, vault_id, provider, status) values ($1, $2, 'storefront', $3, $4, 'local', 'ready')",
		a.TenantID, uuid.New(), e.ID, v.ID); err != nil {
		t.Fatal(err)
	}
	if r := want(t, s.Delete(ctx, a.Actor, v.ID), refusal.SourceInUse); fmt.Sprint(r.Fields["workspaces"]) != "[storefront]" || !strings.Contains(r.Message, "vault") {
		t.Errorf("says %s, %v", r.Message, r.Fields)
	}
	if _, err := d.Owner(t).Exec(ctx, "update workspaces set status = 'deleted'"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, a.Actor, v.ID); err != nil {
		t.Fatal(err)
	}
}
