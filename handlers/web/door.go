package web

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/handlers/api"
	"managoat/internal/identity"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/views"
)

// Setup shows the page behind the one-time link of the first start: GET /setup.
func (w *Console) Setup(c echo.Context) error {
	token := c.QueryParam("token")
	if err := w.Identity.CheckSetupLink(c.Request().Context(), token); err != nil {
		return linkGone(c, err)
	}
	return html(c, http.StatusOK, views.Setup(views.SetupPage{Now: time.Now(), Token: token}))
}

// UseSetup makes the first account and signs its owner in: POST /setup.
func (w *Console) UseSetup(c echo.Context) error {
	form := views.SetupPage{Now: time.Now(), Token: c.FormValue("token"), Account: c.FormValue("account"), Email: c.FormValue("email")}
	in := identity.OwnerInput{Account: form.Account, Email: form.Email, Password: secret.New(c.FormValue("password"))}
	session, err := w.Identity.UseSetupLink(c.Request().Context(), form.Token, in, client(c))
	if err != nil {
		if refusal.Is(err, refusal.SetupLinkInvalid) {
			return linkGone(c, err)
		}
		errs, status, err := formErrors(err, "account", "email", "password")
		if err != nil {
			return err
		}
		form.Errors = errs
		return html(c, status, views.Setup(form))
	}
	w.begin(c, session)
	return c.Redirect(http.StatusSeeOther, "/")
}

func linkGone(c echo.Context, err error) error {
	r, ok := refusal.As(err)
	if !ok {
		return err
	}
	return html(c, r.Status(), views.LinkGone(views.LinkGonePage{Now: time.Now(), Reason: r.Message}))
}

// SignIn asks who one is: GET /sign-in. Whoever is signed in goes on.
func (w *Console) SignIn(c echo.Context) error {
	next := local(c.QueryParam("next"))
	if held, err := c.Cookie(w.SessionCookie); err == nil {
		if _, err := w.Identity.AuthenticateSession(c.Request().Context(), held.Value); err == nil {
			return c.Redirect(http.StatusSeeOther, next)
		}
	}
	has, err := w.Identity.HasAccounts(c.Request().Context())
	if err != nil {
		return err
	}
	return html(c, http.StatusOK, views.SignIn(views.SignInPage{Now: time.Now(), Next: next, First: !has, Flash: takeFlash(c)}))
}

// BeginSession signs in: POST /sign-in.
func (w *Console) BeginSession(c echo.Context) error {
	form := views.SignInPage{Now: time.Now(), Email: c.FormValue("email"), Next: local(c.FormValue("next"))}
	session, err := w.Identity.SignIn(c.Request().Context(), form.Email, secret.New(c.FormValue("password")), client(c))
	if err != nil {
		errs, status, err := formErrors(err, "email", "password")
		if err != nil {
			return err
		}
		form.Errors = errs
		return html(c, status, views.SignIn(form))
	}
	w.begin(c, session)
	return c.Redirect(http.StatusSeeOther, form.Next)
}

// EndSession signs out: POST /sign-out.
func (w *Console) EndSession(c echo.Context) error {
	if err := w.Identity.SignOut(c.Request().Context(), actor(c)); err != nil {
		return err
	}
	c.SetCookie(cookie(c, w.SessionCookie, "", time.Unix(1, 0)))
	return c.Redirect(http.StatusSeeOther, "/sign-in")
}

func (w *Console) begin(c echo.Context, s identity.NewSession) {
	c.SetCookie(cookie(c, w.SessionCookie, s.Token.Reveal(), s.ExpiresAt))
}

func client(c echo.Context) identity.Client {
	return identity.Client{Address: c.RealIP(), UserAgent: c.Request().UserAgent(), RequestID: api.RequestID(c.Request().Context())}
}
