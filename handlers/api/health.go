package api

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// Health answers whether the server lives, and whether it can work.
type Health struct {
	// Checks are what must work, by name.
	Checks map[string]func(context.Context) error
}

// checkTimeout bounds one look at everything.
const checkTimeout = 3 * time.Second

// Live answers GET /health.
func (Health) Live(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

// Ready answers GET /health/ready: 200, or 503 with what is not ready.
func (h Health) Ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), checkTimeout)
	defer cancel()
	status, word := http.StatusOK, "ok"
	checks := map[string]string{}
	for name, check := range h.Checks {
		checks[name] = "ok"
		if check(ctx) != nil {
			checks[name], status, word = "failed", http.StatusServiceUnavailable, "not_ready"
		}
	}
	return c.JSON(status, map[string]any{"status": word, "checks": checks})
}
