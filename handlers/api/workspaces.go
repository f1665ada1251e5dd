package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/files"
	"managoat/internal/input"
	"managoat/internal/ledger"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
)

// Workspaces are the endpoints of workspaces, of their disks, and of the requests that left their machines.
type Workspaces struct {
	Service *workspace.Service
	Files   *files.Service
	Ledger  *ledger.Service
}

// List answers GET /api/workspaces.
func (h Workspaces) List(ctx context.Context, in *struct {
	PageQuery
	Implicit bool `query:"implicit" doc:"also the machines that belong to one conversation"`
}) (*Many[workspace.Workspace], error) {
	return PageOf(h.Service.List(ctx, Actor(ctx), in.Implicit, in.Page()))
}

// Create answers POST /api/workspaces: at once, while the machine is set up.
func (h Workspaces) Create(ctx context.Context, in *Create[workspace.CreateInput]) (*One[workspace.Workspace], error) {
	var w workspace.CreateInput
	if err := in.Body.Over(&w); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Create(ctx, Actor(ctx), w))
}

// Get answers GET /api/workspaces/{id}.
func (h Workspaces) Get(ctx context.Context, in *ByID) (*One[workspace.Workspace], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Get(ctx, Actor(ctx), id))
}

// Patch answers PATCH /api/workspaces/{id}: metadata; what is fixed is refused by name.
func (h Workspaces) Patch(ctx context.Context, in *Change[workspace.PatchInput]) (*One[workspace.Workspace], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var p workspace.PatchInput
	if err := in.Body.Over(&p); err != nil {
		return nil, err
	}
	return OneOf(h.Service.Patch(ctx, Actor(ctx), id, p))
}

// Delete answers DELETE /api/workspaces/{id}.
func (h Workspaces) Delete(ctx context.Context, in *ByID) (*None, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return &None{}, h.Service.Delete(ctx, Actor(ctx), id)
}

// Retry answers POST /api/workspaces/{id}/retry.
func (h Workspaces) Retry(ctx context.Context, in *struct {
	ByID
	Body *Body[workspace.RetryInput]
}) (*One[workspace.Workspace], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var r workspace.RetryInput
	if in.Body != nil {
		if err := in.Body.Over(&r); err != nil {
			return nil, err
		}
	}
	return OneOf(h.Service.Retry(ctx, Actor(ctx), id, r))
}

// Rebuild answers POST /api/workspaces/{id}/rebuild.
func (h Workspaces) Rebuild(ctx context.Context, in *struct {
	ByID
	Body *Body[workspace.RebuildInput]
}) (*One[workspace.Workspace], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	var r workspace.RebuildInput
	if in.Body != nil {
		if err := in.Body.Over(&r); err != nil {
			return nil, err
		}
	}
	return OneOf(h.Service.Rebuild(ctx, Actor(ctx), id, r))
}

// RebuildPreview answers GET /api/workspaces/{id}/rebuild-preview.
func (h Workspaces) RebuildPreview(ctx context.Context, in *ByID) (*One[files.Preview], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Files.RebuildPreview(ctx, Actor(ctx), id))
}

// Diagnostics answers GET /api/workspaces/{id}/diagnostics.
func (h Workspaces) Diagnostics(ctx context.Context, in *ByID) (*One[workspace.Diagnostics], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Diagnose(ctx, Actor(ctx), id))
}

// Wake answers POST /api/workspaces/{id}/wake.
func (h Workspaces) Wake(ctx context.Context, in *ByID) (*One[workspace.Workspace], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return OneOf(h.Service.Wake(ctx, Actor(ctx), id))
}

// SetupLog answers GET /api/workspaces/{id}/setup-log, as JSON or, for Accept: text/plain, as text.
func (h Workspaces) SetupLog(c echo.Context) error {
	ctx := c.Request().Context()
	id, err := uuid.Parse(c.Param("id"))
	if err != nil {
		return refusal.NotFoundError()
	}
	log, err := h.Service.SetupLog(ctx, Actor(ctx), id)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(c.Request().Header.Get(echo.HeaderAccept), echo.MIMETextPlain) {
		return c.JSON(http.StatusOK, Data[workspace.Log]{log})
	}
	var b strings.Builder
	for _, s := range log.Steps {
		fmt.Fprintf(&b, "== %s: %s", s.Step, s.State)
		if s.Note != "" {
			fmt.Fprintf(&b, " (%s)", s.Note)
		}
		if s.ExitCode != nil && *s.ExitCode != 0 {
			fmt.Fprintf(&b, ", exit %d", *s.ExitCode)
		}
		if s.DurationMS != nil {
			fmt.Fprintf(&b, ", %d ms", *s.DurationMS)
		}
		b.WriteString("\n")
		if s.DroppedBytes > 0 {
			fmt.Fprintf(&b, "… %d bytes before this were dropped\n", s.DroppedBytes)
		}
		b.WriteString(s.Output)
		if s.Output != "" && !strings.HasSuffix(s.Output, "\n") {
			b.WriteString("\n")
		}
	}
	return c.String(http.StatusOK, b.String())
}

// DescribeSetupLog documents SetupLog.
func DescribeSetupLog(op *huma.Operation, schemas huma.Registry) {
	pathID(op)
	answers(op, "The log of the running or last setup: JSON, or text for Accept: text/plain.",
		map[string]*huma.Schema{"application/json": schemaOf[Data[workspace.Log]](schemas), "text/plain": {Type: huma.TypeString}})
}

// DiskPath asks for a place on a machine's disk.
type DiskPath struct {
	ByID
	Path string `query:"path" doc:"absolute, or from /home/sprite"`
}

// disk is what the disk reads of workspaces and of sandboxes share: which workspace is meant.
type disk struct {
	Workspaces
	workspaceOf func(ctx context.Context, actor tenant.Actor, id uuid.UUID) (uuid.UUID, error)
}

// Disk are the disk reads by workspace.
func (h Workspaces) Disk() disk {
	return disk{h, func(ctx context.Context, actor tenant.Actor, id uuid.UUID) (uuid.UUID, error) { return id, nil }}
}

// SandboxDisk are the same reads by machine.
func (h Workspaces) SandboxDisk() disk {
	return disk{h, func(ctx context.Context, actor tenant.Actor, id uuid.UUID) (uuid.UUID, error) {
		return h.Service.OfMachine(ctx, actor.TenantID, id)
	}}
}

func (h disk) workspace(ctx context.Context, in ByID) (uuid.UUID, error) {
	id, err := in.id()
	if err != nil {
		return uuid.Nil, err
	}
	return h.workspaceOf(ctx, Actor(ctx), id)
}

// List answers GET …/files.
func (h disk) List(ctx context.Context, in *DiskPath) (*One[files.Listing], error) {
	id, err := h.workspace(ctx, in.ByID)
	if err != nil {
		return nil, err
	}
	return OneOf(h.Files.Files(ctx, Actor(ctx), id, in.Path))
}

// Read answers GET …/file.
func (h disk) Read(ctx context.Context, in *struct {
	DiskPath
	MaxBytes int64 `query:"max_bytes" doc:"default 262144, held to 4194304"`
}) (*One[files.Content], error) {
	id, err := h.workspace(ctx, in.ByID)
	if err != nil {
		return nil, err
	}
	return OneOf(h.Files.File(ctx, Actor(ctx), id, in.Path, in.MaxBytes))
}

// GitStatus answers GET …/git-status.
func (h disk) GitStatus(ctx context.Context, in *struct {
	DiskPath
	Untracked string `query:"untracked" enum:"normal,all,no" default:"normal"`
}) (*One[files.GitStatus], error) {
	id, err := h.workspace(ctx, in.ByID)
	if err != nil {
		return nil, err
	}
	return OneOf(h.Files.GitStatus(ctx, Actor(ctx), id, in.Path, in.Untracked))
}

// Diff answers GET …/diff.
func (h disk) Diff(ctx context.Context, in *struct {
	DiskPath
	Staged    bool   `query:"staged" doc:"the index with the last commit"`
	Ref       string `query:"ref" doc:"one commit, branch or tag to compare with"`
	Untracked bool   `query:"untracked" doc:"new files that git does not know yet count as added"`
	MaxBytes  int64  `query:"max_bytes" doc:"default 262144, held to 4194304"`
}) (*One[files.Diff], error) {
	id, err := h.workspace(ctx, in.ByID)
	if err != nil {
		return nil, err
	}
	return OneOf(h.Files.Diff(ctx, Actor(ctx), id, files.DiffInput{Path: in.Path, Staged: in.Staged, Ref: in.Ref, Untracked: in.Untracked, MaxBytes: in.MaxBytes}))
}

// Patch answers GET /api/workspaces/{id}/patch: everything that differs from the last commit, as git apply takes it.
func (h Workspaces) DownloadPatch(c echo.Context) error {
	ctx := c.Request().Context()
	id, err := uuid.Parse(c.Param("id"))
	if err != nil {
		return refusal.NotFoundError()
	}
	patch, err := h.Files.Patch(ctx, Actor(ctx), id, c.QueryParam("path"))
	if err != nil {
		return err
	}
	defer patch.Close()
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, "text/x-patch; charset=utf-8")
	header.Set(echo.HeaderContentDisposition, fmt.Sprintf("attachment; filename=%q", patch.Name))
	c.Response().WriteHeader(http.StatusOK)
	_, err = io.Copy(c.Response(), patch)
	return err
}

// DescribePatch documents DownloadPatch.
func DescribePatch(op *huma.Operation, _ huma.Registry) {
	pathID(op)
	op.Parameters = append(op.Parameters, query("path", "string", "a path in the repository: absolute, or from /home/sprite"))
	answers(op, "A patch, as an attachment.", map[string]*huma.Schema{"text/x-patch": {Type: huma.TypeString}})
}

// Egress answers GET /api/workspaces/{id}/egress.
func (h Workspaces) Egress(ctx context.Context, in *struct {
	ByID
	BeforeQuery
}) (*Many[ledger.Request], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	if _, err := h.Service.Get(ctx, Actor(ctx), id); err != nil {
		return nil, err
	}
	return PageOf(h.Ledger.EgressOfWorkspace(ctx, Actor(ctx), id, in.Page()))
}

// BeforeQuery asks for a page of a list that begins with the newest.
type BeforeQuery struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"how many at most"`
	Before string `query:"before" doc:"next_cursor of the page before"`
}

// Page is the page that is asked for.
func (q BeforeQuery) Page() input.Page { return input.Page{Limit: q.Limit, Cursor: q.Before} }

// pathID documents the id in the path of a raw endpoint.
func pathID(op *huma.Operation) {
	op.Parameters = append(op.Parameters, &huma.Param{Name: "id", In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
}

// query documents a query parameter of a raw endpoint.
func query(name, kind, doc string) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: doc, Schema: &huma.Schema{Type: kind}}
}
