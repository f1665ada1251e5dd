package web

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"managoat/handlers/api"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/views"
)

// headings are the few words over an error page, by status.
var headings = map[int]string{
	http.StatusNotFound: "Not found", http.StatusForbidden: "Not allowed", http.StatusUnauthorized: "Sign in first",
	http.StatusTooManyRequests: "Too much at once", http.StatusServiceUnavailable: "Not now", http.StatusConflict: "Not in this state",
	http.StatusInternalServerError: "Something broke on our side",
}

// ErrorPage answers a refusal of any page: whoever is not signed in is led to the sign-in and back, htmx gets the sentence
// for the place where it asked, everybody else a page.
func (w *Console) ErrorPage(c echo.Context, r *refusal.Refusal) error {
	if r.Code == refusal.SignInRequired {
		to := address("/sign-in", "next", back(c))
		if inPlace(c) {
			c.Response().Header().Set("HX-Redirect", to)
			return c.NoContent(http.StatusUnauthorized)
		}
		if c.Request().Method == http.MethodGet {
			return c.Redirect(http.StatusSeeOther, to)
		}
	}
	p := views.Problem{Code: string(r.Code), Message: r.Message, RequestID: api.RequestID(c.Request().Context())}
	if inPlace(c) {
		return fragments(c, r.Status(), views.Fragment{Target: views.IDComposerNote, Swap: views.SwapMorph, Content: views.ComposerNote(&p)}, views.Announce(r.Message))
	}
	page := views.ErrorPage{
		Page: views.Page{Now: time.Now()}, Status: r.Status(), Heading: orElse(headings[r.Status()], "This was refused"), Problem: p,
		Technical: r.Status() >= http.StatusInternalServerError, Back: views.Link{Name: "Home", URL: "/"},
	}
	if _, ok := tenant.ActorFrom(c.Request().Context()); ok {
		page.Page, page.SignedIn = w.page(c, "", ""), true
	} else if r.Code == refusal.SignInRequired {
		page.Back = views.Link{Name: "Sign in", URL: "/sign-in"}
	}
	page.Title = page.Heading
	return html(c, r.Status(), views.Error(page))
}

// back is the path that was asked for, to come back to.
func back(c echo.Context) string {
	u := c.Request().URL
	if c.Request().Method != http.MethodGet || u.Path == "/" || strings.HasSuffix(u.Path, "/stream") {
		return ""
	}
	return u.RequestURI()
}

// local is a path of this console to go on to; anything else is its home.
func local(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") || strings.Contains(next, `\`) {
		return "/"
	}
	return u.RequestURI()
}
