package api

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"
)

// ServeDocument answers GET /api/openapi.json with the document of what the server registers.
func ServeDocument(document *huma.OpenAPI) echo.HandlerFunc {
	written, err := json.Marshal(document)
	return func(c echo.Context) error {
		if err != nil {
			return err
		}
		return c.Blob(http.StatusOK, "application/openapi+json", written)
	}
}

// Operation finds an operation of the document; nil: there is none.
func Operation(document *huma.OpenAPI, method, path string) *huma.Operation {
	return Operations(document.Paths[path])[strings.ToUpper(method)]
}

// Operations are those of one path, by method.
func Operations(p *huma.PathItem) map[string]*huma.Operation {
	if p == nil {
		return nil
	}
	all := map[string]*huma.Operation{http.MethodGet: p.Get, http.MethodPost: p.Post, http.MethodPut: p.Put, http.MethodPatch: p.Patch, http.MethodDelete: p.Delete}
	for method, op := range all {
		if op == nil {
			delete(all, method)
		}
	}
	return all
}
