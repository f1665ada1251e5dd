package web

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/vault"
	"managoat/views"
)

// ListVaults answers GET /vaults.
func (w *Console) ListVaults(c echo.Context) error {
	all, err := w.Vaults.List(c.Request().Context(), actor(c), list(c))
	if err != nil {
		return err
	}
	p := views.VaultsPage{Page: w.page(c, "Vaults", "vaults"), Pager: views.Pager{Older: older(c, all.Next)}}
	for _, v := range all.Items {
		p.Rows = append(p.Rows, views.VaultRow{Name: views.Link{Name: v.Name, URL: "/vaults/" + v.ID.String()}, Description: v.Description, Secrets: v.SecretCount, UpdatedAt: v.UpdatedAt})
	}
	return html(c, http.StatusOK, views.Vaults(p))
}

// NewVault shows the empty form: GET /vaults/new.
func (w *Console) NewVault(c echo.Context) error {
	return html(c, http.StatusOK, views.VaultNew(views.VaultFormPage{Page: w.page(c, "New vault", "vaults")}))
}

// CreateVault keeps a new vault: POST /vaults.
func (w *Console) CreateVault(c echo.Context) error {
	form := views.VaultForm{Name: c.FormValue("name"), Description: c.FormValue("description")}
	made, err := w.Vaults.Create(c.Request().Context(), actor(c), vault.Input{Name: form.Name, Description: input.Lines(form.Description)})
	if err == nil {
		return see(c, "/vaults/"+made.ID.String(), "Created the vault "+made.Name+".")
	}
	errs, status, err := formErrors(err, "name", "description")
	if err != nil {
		return err
	}
	form.Errors = errs
	return html(c, status, views.VaultNew(views.VaultFormPage{Page: w.page(c, "New vault", "vaults"), Form: form}))
}

// ShowVault answers GET /vaults/{id}.
func (w *Console) ShowVault(c echo.Context) error {
	return w.vault(c, http.StatusOK, func(*views.VaultPage) {})
}

// vault shows a vault as it is, with what edit changes on the page.
func (w *Console) vault(c echo.Context, status int, edit func(*views.VaultPage)) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	v, err := w.Vaults.Get(ctx, a, at)
	if err != nil {
		return err
	}
	secrets, err := w.Vaults.ListSecrets(ctx, a, at)
	if err != nil {
		return err
	}
	base := "/vaults/" + at.String()
	p := views.VaultPage{Page: w.page(c, v.Name, "vaults"), URL: base, Name: v.Name, UpdatedAt: v.UpdatedAt,
		Form: views.VaultForm{Name: v.Name, Description: v.Description}, Secrets: secretsPanel(base, secrets)}
	p.Secrets.Expires = true
	edit(&p)
	return html(c, status, views.Vault(p))
}

// UpdateVault saves the form: POST /vaults/{id}.
func (w *Console) UpdateVault(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	form := views.VaultForm{Name: c.FormValue("name"), Description: c.FormValue("description")}
	made, err := w.Vaults.Update(c.Request().Context(), actor(c), at, func(in *vault.Input) error {
		in.Name, in.Description = form.Name, input.Lines(form.Description)
		return nil
	})
	if err == nil {
		return see(c, "/vaults/"+at.String(), "Saved the vault "+made.Name+".")
	}
	errs, status, err := formErrors(err, "name", "description")
	if err != nil {
		return err
	}
	form.Errors = errs
	return w.vault(c, status, func(p *views.VaultPage) { p.Form = form })
}

// DeleteVault removes a vault: POST /vaults/{id}/delete.
func (w *Console) DeleteVault(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	v, err := w.Vaults.Get(ctx, a, at)
	if err != nil {
		return err
	}
	status, errs := http.StatusUnprocessableEntity, checkName(c, v.Name)
	if errs == nil {
		if err = w.Vaults.Delete(ctx, a, at); err == nil {
			return see(c, "/vaults", "Deleted the vault "+v.Name+".")
		}
		if errs, status, err = formErrors(err, "confirm"); err != nil {
			return err
		}
		errs["confirm"] = errs[""]
	}
	return w.vault(c, status, func(p *views.VaultPage) { p.DeleteErrors = errs })
}

// PutVaultSecret saves a secret: POST /vaults/{id}/secrets.
func (w *Console) PutVaultSecret(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	in := vault.SecretInput{Key: c.FormValue("key"), Value: secret.New(input.Lines(c.FormValue("value")))}
	expires, ok := day(c.FormValue("expires_at"))
	if in.ExpiresAt = expires; ok {
		_, err = w.Vaults.PutSecret(c.Request().Context(), actor(c), at, in)
	} else {
		var v refusal.Validation
		v.Add("expires_at", "must be a date, such as 2027-01-31")
		err = v.Err()
	}
	if err == nil {
		return see(c, "/vaults/"+at.String()+"#secrets", "Saved the secret "+in.Key+".")
	}
	errs, status, err := formErrors(err, "key", "value", "expires_at")
	if err != nil {
		return err
	}
	return w.vault(c, status, func(p *views.VaultPage) { p.Secrets.Key, p.Secrets.Errors = in.Key, errs })
}

// DeleteVaultSecret removes a secret: POST /vaults/{id}/secrets/{secret}/delete.
func (w *Console) DeleteVaultSecret(c echo.Context) error {
	at, err := id(c, "id")
	if err == nil {
		err = w.Vaults.DeleteSecret(c.Request().Context(), actor(c), at, c.Param("secret"))
	}
	if err != nil {
		return err
	}
	return see(c, "/vaults/"+at.String()+"#secrets", "Deleted the secret "+c.Param("secret")+".")
}
