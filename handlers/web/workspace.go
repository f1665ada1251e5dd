package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/internal/audit"
	"managoat/internal/conversation"
	"managoat/internal/environment"
	"managoat/internal/files"
	"managoat/internal/input"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/workspace"
	"managoat/views"
)

func unmarshal(raw json.RawMessage, into any) bool { return json.Unmarshal(raw, into) == nil }

// ShowWorkspace answers GET /workspaces/{id}.
func (w *Console) ShowWorkspace(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "conversations", func(context.Context, *views.WorkspacePage, workspace.Workspace) error { return nil })
}

// workspace shows a workspace with one of its tabs, which fill fills.
func (w *Console) workspace(c echo.Context, status int, tab string, fill func(context.Context, *views.WorkspacePage, workspace.Workspace) error) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	s, err := w.Workspaces.Get(ctx, a, at)
	if err != nil {
		return err
	}
	p := views.WorkspacePage{Page: w.page(c, s.Name, "workspaces"), Tab: tab}
	p.Page.Stream = address("/workspaces/"+at.String()+"/stream", "tab", tab, "after", c.QueryParam("after"))
	if p.Head, err = w.workspaceHead(ctx, a, s); err != nil {
		return err
	}
	log, err := w.Workspaces.SetupLog(ctx, a, at)
	if err != nil {
		return err
	}
	p.Setup = setupView(s, log)
	p.Setup.Open = tab == "log"
	p.Head.Status.Since = since(s, log)
	if tab == "conversations" {
		if p.Start, err = w.startForm(ctx, a, &s); err != nil {
			return err
		}
		if s.EnvironmentID != nil {
			e, err := w.Environments.Get(ctx, a, *s.EnvironmentID)
			if err != nil {
				return err
			}
			for _, r := range e.Repositories {
				p.Start.Folders = append(p.Start.Folders, r.MountPath)
			}
			if len(p.Start.Folders) > 0 {
				p.Start.Cwd = p.Start.Folders[0]
			}
		}
		var next string
		if p.Conversations, p.Ended, next, err = w.conversationLines(ctx, a, at, list(c)); err != nil {
			return err
		}
		p.Pager.Older = older(c, next)
	}
	if err := fill(ctx, &p, s); err != nil {
		return err
	}
	return html(c, status, views.Workspace(p))
}

func (w *Console) workspaceHead(ctx context.Context, a tenant.Actor, s workspace.Workspace) (views.WorkspaceHead, error) {
	h := views.WorkspaceHead{ID: s.ID.String(), URL: "/workspaces/" + s.ID.String(), Name: s.Name, Status: workspaceBadge(s), Provider: s.SandboxProvider,
		DiskBytes: s.DiskBytes, Conversations: s.ConversationCount, CreatedAt: s.CreatedAt, Stale: s.ChangedFields}
	if s.Status == workspace.Ready {
		switch s.MachineStatus {
		case machine.Ready:
			if s.ParksAt != nil {
				h.ParksAt = *s.ParksAt
			}
		case machine.Suspended:
			h.MachineNote = "wakes on the next prompt"
			if s.Transition == "" && !s.Implicit {
				h.WakeURL = h.URL + "/wake"
			}
		case machine.Lost, machine.Terminated, machine.Failed:
			h.MachineNote = "the next prompt builds a new one; transcripts are kept, the disk is gone"
		}
	}
	if s.WaitingReason != "" {
		h.MachineNote = s.WaitingReason
	}
	if s.Status == workspace.Ready && !s.Implicit { // a failed one is retried, which is the same with nothing to lose
		h.RebuildURL = h.URL + "/rebuild"
	}
	if s.MachineStatus == machine.Lost || s.Status == workspace.Deleting && s.WaitingReason != "" {
		h.DiagnosticsURL = h.URL + "/diagnostics"
	}
	h.Use = machineUse(s.Use)
	if s.EnvironmentID != nil {
		e, err := w.Environments.Get(ctx, a, *s.EnvironmentID)
		if err != nil {
			return h, err
		}
		h.Environment = environmentLink(e)
	}
	if s.VaultID != nil {
		v, err := w.Vaults.Get(ctx, a, *s.VaultID)
		if err != nil {
			return h, err
		}
		h.Vault = views.Link{Name: v.Name, URL: "/vaults/" + v.ID.String()}
	}
	return h, nil
}

// scarce is the share of a limit from which on a machine is shown to be short of something.
const scarce = 0.9

// machineUse shows what a machine that is up uses.
func machineUse(u *machine.Use) []views.MachineUse {
	if u == nil {
		return nil
	}
	of := func(name string, used, limit int64) views.MachineUse {
		m := views.MachineUse{Name: name, Used: views.Size(used)}
		if limit > 0 {
			m.Limit, m.Full = views.Size(limit), float64(used) >= scarce*float64(limit)
		}
		return m
	}
	cpu := views.MachineUse{Name: "processors", Used: views.Took(time.Duration(u.CPUSeconds*float64(time.Second))) + " used"}
	if u.CPUs != nil {
		cpu.Used = strconv.FormatFloat(*u.CPUs, 'f', 1, 64)
		if u.CPULimit > 0 {
			cpu.Limit = strconv.FormatFloat(u.CPULimit, 'f', -1, 64)
		}
	}
	return []views.MachineUse{of("memory", u.MemoryBytes, u.MemoryLimit), cpu, of("disk", u.DiskBytes, u.DiskLimit)}
}

// since is when a setup that runs began; zero when none runs.
func since(s workspace.Workspace, log workspace.Log) time.Time {
	if s.Status != workspace.Provisioning || len(log.Steps) == 0 {
		return time.Time{}
	}
	return when(log.Steps[0].StartedAt)
}

// conversationLines are a page of a workspace's conversations: those that live, and those that have ended.
func (w *Console) conversationLines(ctx context.Context, a tenant.Actor, workspaceID uuid.UUID, page input.Page) (live, ended []views.Row, next string, err error) {
	all, err := w.Conversations.List(ctx, a, conversation.Filter{WorkspaceID: &workspaceID}, page)
	for _, t := range all.Items {
		if t.EndedAt != nil {
			ended = append(ended, conversationLine(t))
		} else {
			live = append(live, conversationLine(t))
		}
	}
	return live, ended, all.Next, err
}

// stepStates are the states of setup steps as the page shows them.
var stepStates = map[string]views.State{"running": views.StateRunning, "done": views.StateDone, "failed": views.StateFailed, "skipped": views.StateStopped}

func setupView(s workspace.Workspace, log workspace.Log) views.SetupView {
	base := "/workspaces/" + s.ID.String()
	v := views.SetupView{Status: string(s.Status), LogURL: base + "/setup-log", DiagnosticsURL: base + "/diagnostics"}
	if s.Status == workspace.Failed {
		v.RetryURL = base + "/retry"
		if s.EnvironmentID != nil {
			v.EnvironmentURL = "/environments/" + s.EnvironmentID.String()
		}
	}
	if s.Error != nil {
		v.Failure = &views.SetupFailure{Step: s.Error.Step, Message: s.Error.Message, ExitCode: s.Error.ExitCode, Signal: s.Error.Signal}
	}
	for _, l := range log.Steps {
		step := views.SetupStep{Name: l.Step, State: stepStates[l.State], Note: l.Note, StartedAt: when(l.StartedAt), ExitCode: l.ExitCode, Signal: l.Signal,
			Output: l.Output, DroppedBytes: l.DroppedBytes}
		if step.State == "" {
			step.State = views.StateOff
		}
		if l.DurationMS != nil {
			step.Took = time.Duration(*l.DurationMS) * time.Millisecond
			v.Took += step.Took
			if l.StartedAt != nil {
				v.EndedAt = l.StartedAt.Add(step.Took)
			}
		}
		v.Steps = append(v.Steps, step)
	}
	return v
}

// WorkspaceStream keeps the page of a workspace true: its head, its setup with every line, its conversations:
// GET /workspaces/{id}/stream.
//
// What a step printed since is known from how much it printed in all, which the setup's log says: a line is sent once, in
// order, and none is missed when the page connects again. A step whose state changed is sent whole.
func (w *Console) WorkspaceStream(c echo.Context) error {
	a := actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	tab, page := c.QueryParam("tab"), list(c)
	var shown setupShown
	return w.live(c, about(at), true, func(ctx context.Context) ([]views.Fragment, error) {
		s, err := w.Workspaces.Get(ctx, a, at)
		if refusal.Is(err, refusal.NotFound) && shown.steps != nil {
			return []views.Fragment{views.Announce("This workspace was deleted."), {Target: views.IDWorkspace, Swap: views.SwapInner, Content: views.WorkspaceGone()}}, nil
		}
		if err != nil {
			return nil, err
		}
		head, err := w.workspaceHead(ctx, a, s)
		if err != nil {
			return nil, err
		}
		log, err := w.Workspaces.SetupLog(ctx, a, at)
		if err != nil {
			return nil, err
		}
		head.Status.Since = since(s, log)
		now := time.Now()
		f := []views.Fragment{{Target: views.IDWorkspace, Swap: views.SwapMorph, Content: views.WorkspaceTop(head, now)},
			{Target: views.IDTabs, Swap: views.SwapMorph, Content: views.WorkspaceTabs(head, tab)}}
		setup := setupView(s, log)
		setup.Open = tab == "log"
		f = append(f, shown.fragments(log.SetupID, setup, now)...)
		if tab == "conversations" {
			live, ended, _, err := w.conversationLines(ctx, a, at, page)
			if err != nil {
				return nil, err
			}
			f = append(f, views.Fragment{Target: views.IDList, Swap: views.SwapMorph, Content: views.ConversationLines(live, ended, now)})
		}
		return f, nil
	})
}

// setupShown is what a page shows of a setup.
type setupShown struct {
	setup  uuid.UUID
	status string
	steps  map[string]stepShown
}

type stepShown struct {
	state   views.State
	note    string
	printed int64 // bytes in all, of which the page shows the last
}

// fragments brings a page from what it shows to v.
func (s *setupShown) fragments(setup uuid.UUID, v views.SetupView, now time.Time) (f []views.Fragment) {
	before := *s
	*s = setupShown{setup, v.Status, map[string]stepShown{}}
	for _, step := range v.Steps {
		s.steps[step.Name] = stepShown{step.State, step.Note, step.DroppedBytes + int64(len(step.Output))}
	}
	if before.setup != setup || before.status != v.Status || len(before.steps) != len(s.steps) {
		f = []views.Fragment{{Target: views.IDSetup, Swap: views.SwapReplace, Content: views.SetupRegion(v, now)}}
		if before.steps != nil && before.status == string(workspace.Provisioning) {
			f = append(f, views.Announce(map[string]string{"ready": "The workspace is ready.", "failed": "The setup failed."}[v.Status]))
		}
		return f
	}
	for _, step := range v.Steps {
		was, is := before.steps[step.Name], s.steps[step.Name]
		more := is.printed - was.printed
		switch {
		case was.state != is.state || was.note != is.note || more > int64(len(step.Output)) || more < 0 || was.printed == 0 && more > 0:
			f = append(f, views.Fragment{Target: views.SetupStepID(step.Name), Swap: views.SwapReplace, Content: views.SetupStepItem(v, step, now)})
		case more > 0:
			f = append(f, views.Fragment{Target: views.SetupLogID(step.Name), Swap: views.SwapAppend, Content: views.SetupLines(step.Output[int64(len(step.Output))-more:])})
		}
	}
	return f
}

// RetryWorkspace sets a failed workspace up again: POST /workspaces/{id}/retry.
func (w *Console) RetryWorkspace(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	page := "/workspaces/" + at.String()
	if _, err := w.Workspaces.Retry(c.Request().Context(), actor(c), at, workspace.RetryInput{Fresh: c.FormValue("fresh") != ""}); err != nil {
		return refuse(c, page, err)
	}
	return see(c, page, "")
}

// ShowRebuild shows what a rebuild would take with it, and offers it: GET /workspaces/{id}/rebuild.
func (w *Console) ShowRebuild(c echo.Context) error {
	return w.rebuild(c, http.StatusOK, views.RebuildPage{})
}

// RebuildWorkspace builds a workspace's machine anew: POST /workspaces/{id}/rebuild.
func (w *Console) RebuildWorkspace(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	in := workspace.RebuildInput{Interrupt: c.FormValue("interrupt") != "", Fresh: c.FormValue("fresh") != ""}
	if _, err = w.Workspaces.Rebuild(c.Request().Context(), actor(c), at, in); err == nil {
		return see(c, "/workspaces/"+at.String(), "")
	}
	errs, status, err := formErrors(err)
	if err != nil {
		return err
	}
	return w.rebuild(c, status, views.RebuildPage{Fresh: in.Fresh, Interrupt: in.Interrupt, Errors: errs})
}

// rebuild shows the page of a rebuild. One that cannot be had is refused on it, and not offered.
func (w *Console) rebuild(c echo.Context, status int, p views.RebuildPage) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	s, err := w.Workspaces.Get(ctx, a, at)
	if err != nil {
		return err
	}
	p.Page, p.Workspace = w.page(c, "Rebuild "+s.Name, "workspaces"), views.Link{Name: s.Name, URL: "/workspaces/" + at.String()}
	preview, err := w.Files.RebuildPreview(ctx, a, at)
	if r, refused := refusal.As(err); refused && r.Code != refusal.NotFound {
		p.Problem = problem(err)
		return html(c, r.Status(), views.Rebuild(p))
	}
	if err != nil {
		return err
	}
	p.Fields, p.Note, p.Gone, p.DiskBytes = preview.ChangedFields, preview.Note, preview.Source == files.Gone, preview.DiskBytes
	if preview.KnownAt != nil {
		p.KnownAt = *preview.KnownAt
	}
	if s.MachineStatus == machine.Suspended && s.Status == workspace.Ready {
		p.WakeURL = p.Workspace.URL + "/wake"
	}
	for _, t := range preview.Turns {
		row := views.Row{Title: views.Link{Name: t.Title, URL: "/conversations/" + t.ConversationID.String() + "#end"}, Note: fmt.Sprintf("turn %d", t.TurnNumber),
			Badge: views.Badge{State: views.StateWaiting, Label: "waiting"}}
		if t.Status == workspace.TurnRunning {
			row.Badge = views.Badge{State: views.StateRunning, Label: "running"}
		}
		p.Turns = append(p.Turns, row)
	}
	if preview.Work != nil {
		p.Clean, p.Cut = preview.Work.Clean, preview.Work.Truncated
		for _, r := range preview.Work.Repositories {
			v := views.RepositoryWork{Path: short(r.Path), Branch: text(r.Branch), Operation: r.Operation, Staged: r.Staged, Unstaged: r.Unstaged, Untracked: r.Untracked,
				Unpushed: r.Unpushed, Stashes: r.Stashes, Cut: r.Truncated, Error: r.Error}
			if preview.Source == files.FromMachine && r.Error == "" && r.Staged+r.Unstaged+r.Untracked > 0 {
				v.DiffURL, v.PatchURL = address(p.Workspace.URL+"/diff", "path", r.Path), address(p.Workspace.URL+"/patch", "path", r.Path)
			}
			for _, e := range r.Files {
				v.Files = append(v.Files, gitEntry(e))
			}
			for _, commit := range r.Commits {
				v.Commits = append(v.Commits, views.Commit{ID: commit.ID, Subject: commit.Subject})
			}
			p.Repositories = append(p.Repositories, v)
		}
	}
	return html(c, status, views.Rebuild(p))
}

// WakeWorkspace starts a parked machine: POST /workspaces/{id}/wake.
func (w *Console) WakeWorkspace(c echo.Context) error {
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	page := "/workspaces/" + at.String()
	if _, err := w.Workspaces.Wake(c.Request().Context(), actor(c), at); err != nil {
		return refuse(c, page, err)
	}
	return see(c, page, "")
}

// DeleteWorkspace ends everything in a workspace: POST /workspaces/{id}/delete.
func (w *Console) DeleteWorkspace(c echo.Context) error {
	ctx, a := c.Request().Context(), actor(c)
	at, err := id(c, "id")
	if err != nil {
		return err
	}
	s, err := w.Workspaces.Get(ctx, a, at)
	if err != nil {
		return err
	}
	status, errs := http.StatusUnprocessableEntity, checkName(c, s.Name)
	if errs == nil {
		if err = w.Workspaces.Delete(ctx, a, at); err == nil {
			return see(c, "/workspaces", "Deleting "+s.Name+": its conversations end, its machine and disk go.")
		}
		if errs, status, err = formErrors(err, "confirm"); err != nil {
			return err
		}
		errs["confirm"] = errs[""]
	}
	return w.workspace(c, status, "conversations", func(_ context.Context, p *views.WorkspacePage, _ workspace.Workspace) error {
		p.DeleteErrors = errs
		return nil
	})
}

// ShowSetupLog answers GET /workspaces/{id}/setup-log.
func (w *Console) ShowSetupLog(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "log", func(context.Context, *views.WorkspacePage, workspace.Workspace) error { return nil })
}

// ShowWorkspaceAudit lists who did what with the workspace: GET /workspaces/{id}/audit.
func (w *Console) ShowWorkspaceAudit(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "audit", func(ctx context.Context, p *views.WorkspacePage, s workspace.Workspace) error {
		a := actor(c)
		trail, err := w.Audit.List(ctx, a, audit.Filter{ResourceType: "workspace", ResourceID: s.ID.String()}, list(c))
		if err != nil {
			return err
		}
		names, err := w.names(c, a)
		p.Audit = &views.AuditTab{Rows: auditRows(trail.Items, names), Pager: views.Pager{Older: older(c, trail.Next)}}
		return err
	})
}

// ShowEgress lists what left the machine: GET /workspaces/{id}/egress.
func (w *Console) ShowEgress(c echo.Context) error {
	return w.workspace(c, http.StatusOK, "egress", func(ctx context.Context, p *views.WorkspacePage, s workspace.Workspace) error {
		a := actor(c)
		rows, err := w.Ledger.EgressOfWorkspace(ctx, a, s.ID, list(c))
		if err != nil {
			return err
		}
		talks, err := w.Conversations.List(ctx, a, conversation.Filter{WorkspaceID: &s.ID}, input.Page{Limit: choices})
		if err != nil {
			return err
		}
		names := map[uuid.UUID]views.Link{}
		for _, t := range talks.Items {
			names[t.ID] = views.Link{Name: titleOf(t), URL: "/conversations/" + t.ID.String() + "#end"}
		}
		tab := views.EgressTab{Pager: views.Pager{Older: older(c, rows.Next)}, Policy: "A machine without an environment reaches every public host."}
		if s.EnvironmentID != nil {
			e, err := w.Environments.Get(ctx, a, *s.EnvironmentID)
			if err != nil {
				return err
			}
			tab.Policy = policySentence(e)
		}
		for _, r := range rows.Items {
			tab.Rows = append(tab.Rows, egressRow(r, names))
		}
		p.Egress = &tab
		return nil
	})
}

func policySentence(e environment.Environment) string {
	if e.NetworkingType != "limited" {
		return "Unrestricted: every public host may be reached. Private addresses never."
	}
	if len(e.NetworkingConfig.AllowedHosts) == 0 {
		return "Limited, with no host allowed: nothing may be reached but the model."
	}
	return "Limited to " + strings.Join(e.NetworkingConfig.AllowedHosts, ", ") + ". The model's own traffic goes through the gateway."
}
