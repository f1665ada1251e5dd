package web

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/internal/account"
	"managoat/internal/identity"
	"managoat/internal/inference"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/views"
)

// ShowSettings leads to the first part: GET /settings.
func (w *Console) ShowSettings(c echo.Context) error {
	return c.Redirect(http.StatusSeeOther, "/settings/keys")
}

// ShowSetting shows one part of the settings: GET /settings/{part}.
func (w *Console) ShowSetting(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	p := views.SettingsPage{Page: w.page(c, "Settings", "settings"), Tab: c.Param("part")}
	var err error
	switch p.Tab {
	case "keys":
		p.Keys.Rows, err = w.keyRows(ctx, a)
	case "credentials":
		p.Credentials, err = w.credentialsTab(ctx, a)
	case "sessions":
		p.Sessions, err = w.sessionRows(ctx, a)
	case "members":
		p.Members, err = w.memberRows(ctx, a)
	case "account":
		p.Account, err = w.accountTab(ctx, a)
	default:
		err = refusal.NotFoundError()
	}
	if err != nil {
		return err
	}
	return html(c, http.StatusOK, views.Settings(p))
}

func (w *Console) keyRows(ctx context.Context, a tenant.Actor) (rows []views.KeyRow, err error) {
	keys, err := w.Identity.Keys(ctx, a, input.Page{Limit: choices})
	for _, k := range keys.Items {
		scope := "full"
		if len(k.Scopes) > 0 {
			scope = k.Scopes[0]
		}
		rows = append(rows, views.KeyRow{Name: k.Name, Prefix: k.Prefix, Scope: scope, CreatedAt: k.CreatedAt, UsedAt: when(k.LastUsedAt),
			ExpiresAt: when(k.ExpiresAt), DeleteURL: "/settings/keys/" + k.ID.String() + "/delete"})
	}
	return rows, err
}

// CreateKey makes an API key and shows it once, in this answer and never again: POST /settings/keys.
func (w *Console) CreateKey(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	p := views.SettingsPage{Page: w.page(c, "Settings", "settings"), Tab: "keys"}
	status := http.StatusOK
	made, err := w.Identity.CreateKey(ctx, a, identity.KeyInput{Name: c.FormValue("name")})
	if err != nil {
		if p.Keys.Errors, status, err = formErrors(err, "name"); err != nil {
			return err
		}
		p.Keys.Name = c.FormValue("name")
	} else {
		p.Keys.Made = made.Plain.Reveal()
	}
	if p.Keys.Rows, err = w.keyRows(ctx, a); err != nil {
		return err
	}
	return html(c, status, views.Settings(p))
}

// DeleteKey ends a key: POST /settings/keys/{id}/delete.
func (w *Console) DeleteKey(c echo.Context) error {
	key, err := id(c, "id")
	if err == nil {
		err = w.Identity.RevokeKey(c.Request().Context(), actor(c), key)
	}
	if err != nil {
		return err
	}
	return see(c, "/settings/keys", "Deleted the key. Whatever used it is refused from now on.")
}

func (w *Console) credentialsTab(ctx context.Context, a tenant.Actor) (t views.CredentialsTab, err error) {
	for _, p := range inference.Providers {
		t.Providers = append(t.Providers, views.Option{Value: p, Label: views.Words(p)})
	}
	held, err := w.Inference.List(ctx, a, input.Page{Limit: choices})
	for _, k := range held.Items {
		kind := "API key"
		if k.Kind == inference.OAuthToken {
			kind = "subscription token"
		}
		at := "/settings/credentials/" + k.ID.String()
		t.Rows = append(t.Rows, views.CredentialRow{Name: k.Name, Provider: views.Words(k.Provider), Kind: kind, BaseURL: k.BaseURL, Default: k.Default,
			ChangedAt: k.UpdatedAt, DefaultURL: at + "/default", DeleteURL: at + "/delete"})
	}
	return t, err
}

// CreateCredential keeps an inference credential: POST /settings/credentials.
func (w *Console) CreateCredential(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	in := inference.Input{Name: c.FormValue("name"), Provider: c.FormValue("provider"), Kind: c.FormValue("kind"), BaseURL: c.FormValue("base_url"),
		Key: secret.New(c.FormValue("key")), Default: c.FormValue("default") == "true"}
	made, err := w.Inference.Create(ctx, a, in)
	if err == nil {
		return see(c, "/settings/credentials", "Saved the credential "+made.Name+".")
	}
	errs, status, err := formErrors(err, "name", "provider", "kind", "base_url", "key")
	if err != nil {
		return err
	}
	p := views.SettingsPage{Page: w.page(c, "Settings", "settings"), Tab: "credentials"}
	if p.Credentials, err = w.credentialsTab(ctx, a); err != nil {
		return err
	}
	p.Credentials.Form = views.CredentialForm{Name: in.Name, Provider: in.Provider, Kind: in.Kind, BaseURL: in.BaseURL, Default: in.Default, Errors: errs}
	return html(c, status, views.Settings(p))
}

// DefaultCredential makes a credential its provider's default: POST /settings/credentials/{id}/default.
func (w *Console) DefaultCredential(c echo.Context) error {
	credential, err := id(c, "id")
	if err != nil {
		return err
	}
	made, err := w.Inference.Update(c.Request().Context(), actor(c), credential, func(in *inference.Input) error {
		in.Default = true
		return nil
	})
	if err != nil {
		return refuse(c, "/settings/credentials", err)
	}
	return see(c, "/settings/credentials", made.Name+" is used now where a conversation names no credential.")
}

// DeleteCredential removes a credential: POST /settings/credentials/{id}/delete.
func (w *Console) DeleteCredential(c echo.Context) error {
	credential, err := id(c, "id")
	if err == nil {
		err = w.Inference.Delete(c.Request().Context(), actor(c), credential)
	}
	if err != nil {
		return refuse(c, "/settings/credentials", err)
	}
	return see(c, "/settings/credentials", "Deleted the credential. Conversations that were bound to it say so at their next prompt.")
}

func (w *Console) sessionRows(ctx context.Context, a tenant.Actor) (rows []views.SessionRow, err error) {
	sessions, err := w.Identity.Sessions(ctx, a)
	for _, s := range sessions {
		rows = append(rows, views.SessionRow{Browser: s.UserAgent, Address: s.Address, Email: a.Email, Current: s.Current, CreatedAt: s.InsertedAt,
			UsedAt: s.LastUsedAt, DeleteURL: "/settings/sessions/" + s.ID.String() + "/delete"})
	}
	return rows, err
}

// DeleteSession signs another browser out: POST /settings/sessions/{id}/delete.
func (w *Console) DeleteSession(c echo.Context) error {
	session, err := id(c, "id")
	if err == nil {
		err = w.Identity.RevokeSession(c.Request().Context(), actor(c), session)
	}
	if err != nil {
		return err
	}
	return see(c, "/settings/sessions", "Signed that browser out.")
}

func (w *Console) memberRows(ctx context.Context, a tenant.Actor) (rows []views.MemberRow, err error) {
	members, err := w.Identity.Members(ctx, a)
	for _, m := range members {
		rows = append(rows, views.MemberRow{Email: m.Email, Role: m.Role, JoinedAt: m.InsertedAt, You: m.ID == a.IdentityID})
	}
	return rows, err
}

func (w *Console) accountTab(ctx context.Context, a tenant.Actor) (views.AccountTab, error) {
	me, err := w.Identity.Me(ctx, a)
	return views.AccountTab{Name: me.Account, Email: me.Email, Owner: me.Role == identity.RoleOwner}, err
}

// DeleteAccount closes the account and signs everybody out: POST /settings/account/delete.
func (w *Console) DeleteAccount(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	_, err := w.Accounts.Delete(ctx, a, account.DeleteInput{Confirm: c.FormValue("confirm")})
	if err == nil {
		c.SetCookie(cookie(c, w.SessionCookie, "", time.Unix(1, 0)))
		return see(c, "/sign-in", "The account was deleted. Its machines are being destroyed.")
	}
	errs, status, err := formErrors(err, "confirm")
	if err != nil {
		return refuse(c, "/settings/account", err)
	}
	p := views.SettingsPage{Page: w.page(c, "Settings", "settings"), Tab: "account"}
	if p.Account, err = w.accountTab(ctx, a); err != nil {
		return err
	}
	p.Account.Errors = errs
	return html(c, status, views.Settings(p))
}
