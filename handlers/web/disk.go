package web

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/broker"
	"managoat/internal/conversation"
	"managoat/internal/files"
	"managoat/internal/input"
	"managoat/internal/ledger"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/views"
	"managoat/views/markup"
)

// home is where relative paths of a machine start.
const home = "/home/sprite"

// cannotRead sorts why a disk read was refused: the machine is not up, and may be woken by wakeURL, or the path is not what was
// asked for.
func cannotRead(wakeURL string, err error) (*views.NotReady, *views.Problem, error) {
	r, ok := refusal.As(err)
	if !ok || r.Code == refusal.NotFound {
		return nil, nil, err
	}
	switch r.Code {
	case refusal.SandboxNotReady, refusal.SandboxUnreachable, refusal.MachineHostUnreachable, refusal.ProviderDisabled:
		return &views.NotReady{Message: r.Message, WakeURL: wakeURL}, nil, nil
	}
	return nil, problem(err), nil
}

// ShowFiles shows a directory or a file: GET /workspaces/{id}/files.
func (w *Console) ShowFiles(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "files", func(ctx context.Context, p *views.WorkspacePage, s workspace.Workspace) error {
		a, asked := actor(c), orElse(c.QueryParam("path"), home)
		tab := views.FilesTab{Path: asked}
		p.Files = &tab
		listing, err := w.Files.Files(ctx, a, s.ID, asked)
		switch {
		case err == nil:
			tab.Path, tab.Cut = listing.Path, listing.Truncated
			for _, e := range listing.Entries {
				tab.Entries = append(tab.Entries, fileEntry(p.Head.URL, listing.Path, e))
			}
		case refusal.Is(err, refusal.NotADirectory):
			var content files.Content
			if content, err = w.Files.File(ctx, a, s.ID, asked, 0); err == nil {
				tab.Path, tab.File = content.Path, fileView(content)
			}
		}
		if err != nil {
			if tab.NotReady, tab.Problem, err = cannotRead(p.Head.WakeURL, err); err != nil {
				return err
			}
		}
		tab.Crumbs = crumbs(p.Head.URL, tab.Path)
		return nil
	})
}

func fileEntry(base, dir string, e files.Entry) views.FileEntry {
	kind := map[string]string{"directory": "dir", "symlink": "link", "file": "file"}[e.Type]
	return views.FileEntry{Name: e.Name, Kind: orElse(kind, "other"), URL: address(base+"/files", "path", path.Join(dir, e.Name)), Target: e.Target, Size: e.Size, Modified: e.ModifiedAt}
}

func fileView(f files.Content) *views.FileView {
	v := &views.FileView{Name: path.Base(f.Path), Size: f.Size, Truncated: f.Truncated, Binary: f.Encoding == "base64"}
	if !v.Binary {
		v.Text, v.Shown = f.Content, int64(len(f.Content))
	}
	return v
}

// crumbs lead from the home directory, or the root, to a path.
func crumbs(base, to string) []views.Link {
	crumb := func(name, path string) views.Link {
		return views.Link{Name: name, URL: address(base+"/files", "path", path)}
	}
	out, rest, prefix := []views.Link{crumb("/", "/")}, strings.Trim(to, "/"), "/"
	if to == home || strings.HasPrefix(to, home+"/") {
		out, rest, prefix = []views.Link{crumb("~", home)}, strings.Trim(strings.TrimPrefix(to, home), "/"), home
	}
	if rest == "" {
		return out
	}
	for part := range strings.SplitSeq(rest, "/") {
		prefix = path.Join(prefix, part)
		out = append(out, crumb(part, prefix))
	}
	return out
}

// repositories are the places of a workspace that a repository is expected at.
func (w *Console) repositories(ctx context.Context, a tenant.Actor, s workspace.Workspace, asked string) (chosen string, options []views.Option, err error) {
	add := func(path string) {
		for _, o := range options {
			if o.Value == path {
				return
			}
		}
		options = append(options, views.Option{Value: path, Label: short(path)})
	}
	if s.EnvironmentID != nil {
		e, err := w.Environments.Get(ctx, a, *s.EnvironmentID)
		if err != nil {
			return "", nil, err
		}
		for _, r := range e.Repositories {
			add(r.MountPath)
		}
	}
	talks, err := w.Conversations.List(ctx, a, conversation.Filter{WorkspaceID: &s.ID}, input.Page{Limit: choices})
	if err != nil {
		return "", nil, err
	}
	for _, t := range talks.Items {
		if t.EndedAt == nil && t.Cwd != home {
			add(t.Cwd)
		}
	}
	if asked == "" && len(options) > 0 {
		asked = options[0].Value
	}
	asked = orElse(asked, home)
	add(asked)
	return asked, options, nil
}

// gitWords are git's letters in words.
var gitWords = map[string]string{"M": "modified", "T": "type changed", "A": "added", "D": "deleted", "R": "renamed", "C": "copied", "U": "unmerged"}

// ShowGitStatus answers GET /workspaces/{id}/git-status.
func (w *Console) ShowGitStatus(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "git", func(ctx context.Context, p *views.WorkspacePage, s workspace.Workspace) error {
		a := actor(c)
		asked, options, err := w.repositories(ctx, a, s, c.QueryParam("path"))
		if err != nil {
			return err
		}
		tab := views.GitTab{Path: asked, Repositories: options}
		p.Git = &tab
		g, err := w.Files.GitStatus(ctx, a, s.ID, asked, "")
		if err != nil {
			tab.NotReady, tab.Problem, err = cannotRead(p.Head.WakeURL, err)
			return err
		}
		tab.Branch, tab.Upstream, tab.Ahead, tab.Behind, tab.Cut, tab.Operation = text(g.Branch), g.Upstream, g.Ahead, g.Behind, g.Truncated, g.Operation
		tab.Head = g.Head[:min(len(g.Head), 12)]
		for _, e := range g.Entries {
			row := gitEntry(e)
			row.DiffURL = address(p.Head.URL+"/diff", "path", asked) + "#" + views.DiffID(e.Path)
			tab.Entries = append(tab.Entries, row)
		}
		return nil
	})
}

// gitEntry is a path that differs, in words.
func gitEntry(e files.GitEntry) views.GitEntry {
	row := views.GitEntry{Path: e.Path, From: e.RenamedFrom, Staged: gitWords[e.Index], Unstaged: gitWords[e.Worktree]}
	if e.Index == "?" {
		row.Staged, row.Unstaged = "", "untracked"
	}
	if e.Conflict {
		row.Unstaged = "conflict"
	}
	return row
}

// ShowDiff answers GET /workspaces/{id}/diff.
func (w *Console) ShowDiff(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "diff", func(ctx context.Context, p *views.WorkspacePage, s workspace.Workspace) error {
		a := actor(c)
		asked, options, err := w.repositories(ctx, a, s, c.QueryParam("path"))
		if err != nil {
			return err
		}
		tab := views.DiffTab{Path: asked, Repositories: options, Staged: c.QueryParam("staged") == "true"}
		p.Diff = &tab
		d, err := w.Files.Diff(ctx, a, s.ID, files.DiffInput{Path: asked, Staged: tab.Staged, Untracked: !tab.Staged})
		if err != nil {
			tab.NotReady, tab.Problem, err = cannotRead(p.Head.WakeURL, err)
			return err
		}
		tab.Files, tab.Truncated, tab.PatchURL = markup.ParseDiff(d.Diff), d.Truncated, address(p.Head.URL+"/patch", "path", asked)
		return nil
	})
}

// DownloadPatch answers GET /workspaces/{id}/patch.
func (w *Console) DownloadPatch(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	patch, err := w.Files.Patch(c.Request().Context(), actor(c), at, orElse(c.QueryParam("path"), home))
	if err != nil {
		return err
	}
	defer patch.Close()
	// The first read may still be refused; after it the answer has begun.
	head := make([]byte, 32<<10)
	n, err := io.ReadFull(patch, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentDisposition, mime.FormatMediaType("attachment", map[string]string{"filename": patch.Name}))
	h.Set(echo.HeaderContentType, "text/x-diff; charset=utf-8")
	c.Response().WriteHeader(http.StatusOK)
	if _, err := c.Response().Write(head[:n]); err != nil {
		return nil // the client is gone
	}
	if _, err := io.Copy(c.Response(), patch); err != nil {
		panic(http.ErrAbortHandler) // the client must see that the patch is not whole
	}
	return nil
}

// egressRow is a decision of the broker as the page shows it.
func egressRow(r ledger.Request, names map[uuid.UUID]views.Link) views.EgressRow {
	row := views.EgressRow{At: r.At, Host: hostOf(r), Method: r.Method, Decision: views.StateDone, Word: r.Decision, Rule: views.Words(r.Rule), Dropped: r.Dropped, Status: r.Status,
		In: r.BytesIn, Out: r.BytesOut, Took: time.Duration(r.DurationMS) * time.Millisecond, Conversation: views.Link{Name: "setup"}}
	if r.Decision == "denied" || r.Decision == "failed" {
		row.Decision = views.StateFailed
	}
	if r.Error != "" {
		row.Rule = strings.TrimPrefix(views.Words(r.Rule)+": "+views.Words(r.Error), ": ")
	}
	if r.ConversationID != nil {
		row.Conversation = names[*r.ConversationID]
		if row.Conversation.Name == "" {
			row.Conversation = views.Link{Name: "a deleted conversation"}
		}
	}
	return row
}

func hostOf(r ledger.Request) string {
	switch r.Host {
	case broker.ModelHost:
		return "model gateway"
	case broker.APIHost:
		return "this server's API"
	}
	if r.Port == 0 {
		return r.Host
	}
	return net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
}

// DiagnoseWorkspace gives the facts of a workspace: GET /workspaces/{id}/diagnostics.
func (w *Console) DiagnoseWorkspace(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	d, err := w.Workspaces.Diagnose(c.Request().Context(), actor(c), at)
	if err != nil {
		return err
	}
	return c.JSONPretty(http.StatusOK, d, "  ")
}

func requestID(c echo.Context) string { return c.Response().Header().Get(echo.HeaderXRequestID) }

func dollars(micros int64) string { return fmt.Sprintf("$%.2f", float64(micros)/1e6) }
