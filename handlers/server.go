package handlers

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"managoat/db"
	"managoat/handlers/api"
	"managoat/internal/broker"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
)

// maxBody bounds every request body but those of routes that stream files.
const maxBody = "1M"

// SessionCookie is the name of the browser's session cookie.
const SessionCookie = "managoat_session"

// Authenticator finds out who calls.
type Authenticator interface {
	// AuthenticateKey knows the actor of an API key, or answers with the refusal that says why not.
	AuthenticateKey(ctx context.Context, key string) (tenant.Actor, error)
	// AuthenticateSession knows the actor of a browser's session token.
	AuthenticateSession(ctx context.Context, token string) (tenant.Actor, error)
}

// Config of the edge.
type Config struct {
	DB     *db.DB
	Auth   Authenticator
	Routes []Route
	Log    *slog.Logger
	// TrustedProxies whose X-Forwarded-For is believed. Empty: the peer's address is the client's.
	TrustedProxies []*net.IPNet
	// HTTPS tells that browsers reach the server by https, whoever ends the TLS: cookies then go over nothing else.
	HTTPS bool
	// ErrorPage renders a refusal for a browser.
	ErrorPage func(echo.Context, *refusal.Refusal) error
	// Peer is what other servers may ask. nil: nothing.
	Peer    *Host
	Version string
}

// New builds the server's handler from the table.
func New(cfg Config) (*echo.Echo, huma.API) {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = (&edge{cfg}).onError
	e.IPExtractor = echo.ExtractIPDirect()
	if len(cfg.TrustedProxies) > 0 {
		// Only the named ones: a client in a private network is no proxy.
		trust := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
		for _, n := range cfg.TrustedProxies {
			trust = append(trust, echo.TrustIPRange(n))
		}
		e.IPExtractor = echo.ExtractIPFromXFFHeader(trust...)
		e.SchemeExtractor = echo.ExtractSchemeFromHeaders(trust...)
	}
	if cfg.HTTPS {
		e.SchemeExtractor = func(*http.Request) string { return "https" }
	}
	outside := e.IPExtractor
	e.IPExtractor = func(r *http.Request) string {
		if id, ok := machineOf(r); ok {
			return "machine " + id // each its own share of the limits that go by address
		}
		return outside(r)
	}
	g := &edge{cfg}
	table := map[string]Route{}
	// huma writes its own answers, so our middleware runs around it. None of it belongs to a group of routes: a group with
	// middleware catches every path below it, and a method that a path does not know would answer 404.
	e.Use(g.requestID, g.log, middleware.RecoverWithConfig(middleware.RecoverConfig{
		LogErrorFunc: func(c echo.Context, err error, stack []byte) error {
			cfg.Log.ErrorContext(c.Request().Context(), "panic", "request_id", api.RequestID(c.Request().Context()), "err", err, "stack", string(stack))
			return err
		},
	}), g.headers, middleware.BodyLimit(maxBody), crossOrigin(), newLimits().middleware, g.admit(table))

	document := humaecho.New(e, documentConfig(cfg.Version))
	if cfg.Peer != nil {
		cfg.Routes = append(slices.Clip(cfg.Routes), PeerRoutes(*cfg.Peer)...)
	}

	for _, r := range cfg.Routes {
		table[r.Method+" "+api.EchoPath(r.Path)] = r
		switch {
		case r.API != nil:
			r.API.Bind(document, e, operation(r))
		case r.Web != nil:
			e.Add(r.Method, api.EchoPath(r.Path), r.Web)
		}
	}
	finish(document.OpenAPI(), cfg.Routes)
	for _, r := range cfg.Routes {
		if r.About != nil {
			e.Add(r.Method, api.EchoPath(r.Path), r.About(document.OpenAPI()))
		}
	}
	return e, document
}

// edge holds what every request passes through.
type edge struct{ cfg Config }

func (g *edge) requestID(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get("X-Request-Id")
		if !validRequestID(id) {
			id = uuid.Must(uuid.NewV7()).String()
		}
		c.Response().Header().Set("X-Request-Id", id)
		c.SetRequest(c.Request().WithContext(api.WithRequestID(c.Request().Context(), id)))
		return next(c)
	}
}

// validRequestID keeps what callers send out of logs unless it is plainly an id.
func validRequestID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for _, r := range id {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return false
		}
	}
	return true
}

// log writes one line a request: ids, never values. The query's values stay out.
func (g *edge) log(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		r := c.Request()
		g.cfg.Log.InfoContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", c.Response().Status,
			"ms", time.Since(start).Milliseconds(), "address", c.RealIP(), "request_id", api.RequestID(r.Context()))
		return nil
	}
}

// contentSecurity lets a page load our own assets and talk to our own origin, nothing else.
const contentSecurity = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func (g *edge) headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Content-Security-Policy", contentSecurity)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		return next(c)
	}
}

// crossOrigin refuses writes that a browser sends from another site. Calls with a key carry no cookie and pass.
func crossOrigin() echo.MiddlewareFunc {
	protection := http.NewCrossOriginProtection()
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if c.Request().Header.Get("Authorization") == "" && protection.Check(c.Request()) != nil {
				return refusal.New(refusal.CrossOrigin, "This write came from another site. Open this server's own page and do it there.")
			}
			return next(c)
		}
	}
}

// admit finds out who calls and whether the table lets them.
func (g *edge) admit(table map[string]Route) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			for _, name := range []string{"token", "api_key", "apikey", "access_token", "key"} {
				if strings.HasPrefix(c.QueryParam(name), "mgt_") {
					return refusal.New(refusal.KeyInQuery, "Send the key in the Authorization header. This one stood in an address, where logs keep it: revoke it.")
				}
			}
			route, ok := table[c.Request().Method+" "+c.Path()]
			_, inside := machineOf(c.Request())
			switch {
			case inside && route.Access == Public && route.Audit != "": // sign-in, the first account
				return fromInside()
			case !ok || route.Access == Public:
				return next(c)
			case inside && route.Access == Peers:
				return refusal.New(refusal.NotFound, "There is nothing at this address.")
			case route.Access == Peers:
				if err := g.check(c); err != nil {
					return err
				}
				return next(c)
			}
			actor, err := g.authenticate(c)
			if err != nil {
				return err
			}
			if inside && actor.Scope != tenant.ScopeSandbox {
				return fromInside()
			}
			if actor.Scope == tenant.ScopeSandbox && route.Sandbox == Never {
				return refusal.New(refusal.InsufficientScope, "A sandbox key cannot do this. It needs a key that a person made.").
					With("required_scope", tenant.ScopeFull)
			}
			actor.RequestID = api.RequestID(c.Request().Context())
			actor.Address = c.RealIP()
			c.SetRequest(c.Request().WithContext(tenant.WithActor(c.Request().Context(), actor)))
			if key := c.Request().Header.Get("Idempotency-Key"); key != "" && c.Request().Method == http.MethodPost {
				return g.once(c, actor, route, key, next)
			}
			return next(c)
		}
	}
}

// machineOf names the machine that a request comes from: the egress process says it on the server's private socket, and
// nobody else can reach that.
func machineOf(r *http.Request) (id string, ok bool) {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || at.Network() != "unix" {
		return "", false
	}
	return r.Header.Get(broker.MachineHeader), true
}

// fromInside refuses what a machine asks with more than its conversation's key: whatever an agent finds or guesses
// there must not become a person.
func fromInside() error {
	return refusal.New(refusal.InsufficientScope, "From inside a machine only the key of its own conversation works (MANAGOAT_TOKEN).").
		With("required_scope", tenant.ScopeSandbox)
}

// bearer reads the key out of the Authorization header, however it is written.
func bearer(r *http.Request) (key string, ok bool) {
	scheme, key, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	key = strings.TrimSpace(key)
	return key, key != "" && strings.EqualFold(scheme, "Bearer")
}

func (g *edge) authenticate(c echo.Context) (tenant.Actor, error) {
	ctx := c.Request().Context()
	if c.Request().Header.Get("Authorization") != "" {
		key, ok := bearer(c.Request())
		if !ok {
			return tenant.Actor{}, refusal.New(refusal.Unauthenticated, "Send an API key as Authorization: Bearer mgt_….")
		}
		return g.cfg.Auth.AuthenticateKey(ctx, key)
	}
	cookie, err := c.Cookie(SessionCookie)
	if err != nil {
		if isAPI(c) {
			return tenant.Actor{}, refusal.New(refusal.Unauthenticated, "Send an API key as Authorization: Bearer mgt_….")
		}
		return tenant.Actor{}, refusal.New(refusal.SignInRequired, "Sign in to see this.")
	}
	return g.cfg.Auth.AuthenticateSession(ctx, cookie.Value)
}

func isAPI(c echo.Context) bool {
	return strings.HasPrefix(c.Request().URL.Path, "/api/") || strings.HasPrefix(c.Request().URL.Path, "/internal/")
}

// onError answers with the refusal in err, or with ours and the request id.
func (g *edge) onError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	r := g.refusalOf(err, c)
	if s := r.RetryAfterSeconds(); s > 0 {
		c.Response().Header().Set("Retry-After", strconv.Itoa(s))
	}
	if isAPI(c) || g.cfg.ErrorPage == nil {
		err = c.JSON(r.Status(), r)
	} else {
		err = g.cfg.ErrorPage(c, r)
	}
	if err != nil {
		g.cfg.Log.Error("an error could not be answered", "err", err)
	}
}

// databaseRetry is after how long to ask again when the database was away: a restart takes about as long.
const databaseRetry = 5 * time.Second

func (g *edge) refusalOf(err error, c echo.Context) *refusal.Refusal {
	if r, ok := refusal.As(err); ok {
		return r
	}
	var he *echo.HTTPError
	if errors.As(err, &he) {
		switch he.Code {
		case http.StatusNotFound:
			return refusal.New(refusal.NotFound, "There is nothing at this address.")
		case http.StatusMethodNotAllowed:
			return refusal.New(refusal.MethodNotAllowed, "This address does not know %s. It takes %s.", c.Request().Method, c.Response().Header().Get(echo.HeaderAllow))
		case http.StatusRequestEntityTooLarge:
			return refusal.New(refusal.PayloadTooLarge, "The body is larger than %s.", maxBody).With("limit", 1<<20)
		case http.StatusUnsupportedMediaType:
			return refusal.New(refusal.UnsupportedMedia, "Send JSON, or the form of a page.")
		case http.StatusBadRequest:
			return refusal.New(refusal.BadRequest, "The request cannot be read.")
		}
	}
	if db.Away(err) {
		g.cfg.Log.Warn("a request met a database that is away", "request_id", api.RequestID(c.Request().Context()), "err", err)
		return refusal.New(refusal.DatabaseAway, "The database does not answer now. Try again in a moment.").RetryAfter(databaseRetry)
	}
	id := api.RequestID(c.Request().Context())
	if !errors.Is(err, context.Canceled) {
		g.cfg.Log.Error("request failed", "request_id", id, "err", err)
	}
	return refusal.Internal(id)
}
