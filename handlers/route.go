// Package handlers is the HTTP edge. routes.go lists every route on one screen; the rest of the package is what all of
// them pass through: who is calling, what they may do, how refusals answer.
package handlers

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"managoat/handlers/api"
	"managoat/internal/audit"
)

// Access is who may call a route.
type Access string

// Kinds of access.
const (
	Public Access = "public" // no sign-in: health, sign-in itself, assets
	Signed Access = "signed" // a person's session or an API key of scope full
	Peers  Access = "peers"  // another server of the instance, by its signature (package peer); no person, no key
)

// SandboxRule is what a sandbox key may do with a route.
type SandboxRule string

// Rules for sandbox keys. Whatever is not allowed is 403 insufficient_scope.
const (
	Never SandboxRule = ""      // refused
	Reads SandboxRule = "reads" // allowed: reading what the account's agents need
	Own   SandboxRule = "own"   // allowed for its own conversation and its children; the service checks
)

// Quota names the quota that a call uses. It is checked by the service, in the transaction that would use it.
type Quota string

// Quotas.
const (
	NoQuota  Quota = ""
	Machines Quota = "running_machines"
	Prompts  Quota = "prompts_per_minute"
)

// Route is one row of the table. It drives Echo and the OpenAPI document, who may call, the audit row that a change
// must write, and the quota it uses; the isolation walk, the audit test and the documentation read the same rows.
type Route struct {
	Method  string
	Path    string // in OpenAPI's form: /api/workspaces/{id}
	Access  Access
	Sandbox SandboxRule
	Audit   audit.Action // of the row that the change writes; "" for what changes nothing
	Quota   Quota
	Summary string
	Status  int           // of success; 0: 200
	Secret  bool          // the answer holds something shown once: it is never kept for an Idempotency-Key
	API     *api.Endpoint // exactly one of API, Web and About
	Web     echo.HandlerFunc
	About   func(*huma.OpenAPI) echo.HandlerFunc // answers from the finished document of the table's other rows
}

// Mutates tells whether the route changes something.
func (r Route) Mutates() bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead
}

// status of success.
func (r Route) status() int {
	if r.Status == 0 {
		return http.StatusOK
	}
	return r.Status
}
