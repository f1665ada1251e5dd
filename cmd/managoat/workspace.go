package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"managoat/internal/client"
	"managoat/internal/refusal"
)

// workspaceView is what the verbs show of a workspace.
type workspaceView struct {
	ID                string          `json:"id"`
	Name              string          `json:"name"`
	Implicit          bool            `json:"implicit"`
	Status            string          `json:"status"`
	MachineStatus     string          `json:"machine_status"`
	SetupStep         string          `json:"setup_step"`
	EnvironmentID     string          `json:"environment_id"`
	VaultID           *string         `json:"vault_id"`
	SandboxProvider   string          `json:"sandbox_provider"`
	Stale             bool            `json:"stale"`
	ChangedFields     []string        `json:"changed_fields"`
	ConversationCount int             `json:"conversation_count"`
	Error             *setupError     `json:"error"`
	Transition        string          `json:"transition"`
	IdleSince         *time.Time      `json:"idle_since"`
	ParksAt           *time.Time      `json:"parks_at"`
	WaitingReason     string          `json:"waiting_reason"`
	DiskBytes         int64           `json:"disk_bytes"`
	Limits            machineLimits   `json:"limits"`
	Use               *machineUse     `json:"use"`
	Base              machineBase     `json:"base"`
	LastActiveAt      time.Time       `json:"last_active_at"`
	CreatedAt         time.Time       `json:"created_at"`
	raw               json.RawMessage `json:"-"`
}

// machineBase is what a machine's root file system was made from.
type machineBase struct {
	Name string `json:"name"`
}

// machineLimits are what a machine was made with.
type machineLimits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	DiskBytes   int64   `json:"disk_bytes"`
}

// machineUse is what a machine that is up uses.
type machineUse struct {
	MemoryBytes int64    `json:"memory_bytes"`
	MemoryLimit int64    `json:"memory_limit_bytes"`
	CPUs        *float64 `json:"cpus"`
	CPULimit    float64  `json:"cpu_limit"`
	CPUSeconds  float64  `json:"cpu_seconds"`
	DiskBytes   int64    `json:"disk_bytes"`
	DiskLimit   int64    `json:"disk_limit_bytes"`
}

type setupError struct {
	Step       string `json:"step"`
	Message    string `json:"message"`
	ExitCode   *int   `json:"exit_code"`
	OutputTail string `json:"output_tail"`
}

type setupStep struct {
	Step         string     `json:"step"`
	State        string     `json:"state"`
	StartedAt    *time.Time `json:"started_at"`
	DurationMS   *int64     `json:"duration_ms"`
	ExitCode     *int       `json:"exit_code"`
	Note         string     `json:"note"`
	Output       string     `json:"output"`
	DroppedBytes int64      `json:"dropped_bytes"`
}

func workspaceVerbs() *cobra.Command {
	cmd := &cobra.Command{Use: "workspace", Aliases: []string{"workspaces", "ws"}, Short: "Machines you keep: create, list, show, logs, retry, rebuild, wake, delete", GroupID: "use",
		RunE: needsVerb}
	cmd.AddCommand(workspaceCreate(), workspaceList(), workspaceShow(), workspaceLogs(), workspaceRetry(), workspaceRebuild(), workspaceRebuildPreview(), workspaceWake(), workspaceDelete())
	cmd.AddCommand(diskVerbs()...)
	return cmd
}

// sub is verb for a command below another.
func sub(use, short string, args cobra.PositionalArgs, run func(*cobra.Command, *client.Client, []string) error) *cobra.Command {
	return verb("", use, short, args, func(c *cobra.Command, a []string) error {
		cl, err := connect()
		if err != nil {
			return err
		}
		return coded(run(c, cl, a))
	})
}

func workspaceCreate() *cobra.Command {
	var environment, vault, provider string
	var asJSON, follow, fresh bool
	cmd := sub("create NAME --environment ENV", "Build a machine from an environment", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		if environment == "" {
			return &codedError{exitUsage, errors.New("--environment is needed: its name or id")}
		}
		envID, err := find(c, cl, "/api/environments", "environment", environment)
		if err != nil {
			return err
		}
		in := map[string]any{"name": args[0], "environment_id": envID}
		if vault != "" {
			if in["vault_id"], err = find(c, cl, "/api/vaults", "vault", vault); err != nil {
				return err
			}
		}
		if provider != "" {
			in["sandbox_provider"] = provider
		}
		if fresh {
			in["fresh"] = true
		}
		w, err := workspaceCall(c, cl, "POST", "/api/workspaces", in)
		if err != nil {
			return err
		}
		if follow {
			return followSetup(c, cl, w.ID)
		}
		return showWorkspace(w, asJSON)
	})
	cmd.Flags().StringVar(&environment, "environment", "", "the environment's name or id")
	cmd.Flags().StringVar(&vault, "vault", "", "the vault's name or id")
	cmd.Flags().StringVar(&provider, "provider", "", "the sandbox provider (default: the instance's)")
	cmd.Flags().BoolVar(&fresh, "fresh", false, freshHelp)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the setup until it ends")
	return cmd
}

func workspaceList() *cobra.Command {
	var asJSON, implicit bool
	cmd := sub("list", "List workspaces", cobra.NoArgs, func(c *cobra.Command, cl *client.Client, _ []string) error {
		var all []json.RawMessage
		if err := pages(c, cl, "/api/workspaces?implicit="+fmt.Sprint(implicit), func(item json.RawMessage) error {
			all = append(all, item)
			return nil
		}); err != nil {
			return err
		}
		if asJSON {
			return stdout().json(all)
		}
		var rows [][]string
		for _, item := range all {
			var w workspaceView
			if err := json.Unmarshal(item, &w); err != nil {
				return err
			}
			if w.Implicit {
				w.Name += " (a conversation's own)"
			}
			rows = append(rows, []string{w.Name, w.state(), fmt.Sprint(w.ConversationCount), ago(w.LastActiveAt), w.ID})
		}
		return stdout().table([]string{"NAME", "STATUS", "CONVERSATIONS", "LAST ACTIVE", "ID"}, rows)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&implicit, "implicit", false, "also the machines that belong to one conversation")
	return cmd
}

func workspaceLogs() *cobra.Command {
	var asJSON, follow bool
	cmd := sub("logs WORKSPACE", "Show the last setup's log; -f follows one that runs and exits by its outcome", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		w, err := namedWorkspace(c, cl, args[0])
		if err != nil {
			return err
		}
		if follow {
			return followSetup(c, cl, w.ID)
		}
		if asJSON {
			var raw json.RawMessage
			if err := cl.Get(c.Context(), "/api/workspaces/"+w.ID+"/setup-log", &raw); err != nil {
				return err
			}
			stdout().text(string(raw) + "\n")
			return nil
		}
		steps, err := setupLog(c, cl, w.ID)
		if err != nil {
			return err
		}
		p := stdout()
		for _, s := range steps {
			p.text(s.heading() + "\n")
			if s.DroppedBytes > 0 {
				p.text(fmt.Sprintf("… %d bytes before this were dropped\n", s.DroppedBytes))
			}
			p.text(s.Output)
			if s.Output != "" && !strings.HasSuffix(s.Output, "\n") {
				p.text("\n")
			}
		}
		return nil
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow until the setup ends")
	return cmd
}

// freshHelp explains --fresh of what runs a setup.
const freshHelp = "install the packages anew, whatever an earlier setup has left of them"

func workspaceRetry() *cobra.Command {
	return workspaceSetUp("retry", "Set a failed workspace up again, with its environment as it is now", nil)
}

func workspaceRebuild() *cobra.Command {
	var sure func(func() (loss, error)) error
	cmd := workspaceSetUp("rebuild", "Destroy its machine with its disk and build another, from its environment as it is now; see rebuild-preview", func(c *cobra.Command, cl *client.Client, w workspaceView) error {
		return sure(func() (loss, error) {
			_, v, err := previewRebuild(c, cl, w.ID)
			lines := append([]string{"This destroys the machine of " + w.Name + " with its disk. Conversations keep their transcripts, and their agents begin anew."}, v.lines()...)
			if len(v.Turns) > 0 && !c.Flags().Changed("interrupt") {
				lines = append(lines, "While turns run or wait it is refused: --interrupt ends them.")
			}
			return loss{w.Name, lines}, err
		})
	})
	cmd.Flags().Bool("interrupt", false, "end the turns that run or wait, which refuse the rebuild otherwise; transcripts are kept")
	sure = asks(cmd)
	return cmd
}

// workspaceSetUp is a verb that begins another setup of a workspace, once before lets it; nil: at once. Its boolean flags
// --fresh and --interrupt, where it has them, go into the call.
func workspaceSetUp(name, short string, before func(*cobra.Command, *client.Client, workspaceView) error) *cobra.Command {
	var follow, asJSON bool
	cmd := sub(name+" WORKSPACE", short, cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		w, err := namedWorkspace(c, cl, args[0])
		if err != nil {
			return err
		}
		if before != nil {
			if err := before(c, cl, w); err != nil {
				return err
			}
		}
		in := map[string]any{}
		for _, flag := range []string{"fresh", "interrupt"} {
			if f := c.Flags().Lookup(flag); f != nil && f.Value.String() == "true" {
				in[flag] = true
			}
		}
		if w, err = workspaceCall(c, cl, "POST", "/api/workspaces/"+w.ID+"/"+name, in); err != nil {
			var no *client.Refused
			if errors.As(err, &no) && no.Code == string(refusal.TurnsRunning) {
				err = fmt.Errorf("%w (here: --interrupt; `managoat workspace rebuild-preview` names them)", err)
			}
			return err
		}
		if follow {
			return followSetup(c, cl, w.ID)
		}
		return showWorkspace(w, asJSON)
	})
	cmd.Flags().Bool("fresh", false, freshHelp)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the setup until it ends")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// rebuildPreview is what a rebuild would take with it.
type rebuildPreview struct {
	ChangedFields []string `json:"changed_fields"`
	Turns         []struct {
		Title      string `json:"title"`
		TurnNumber int    `json:"turn_number"`
		Status     string `json:"status"`
	} `json:"turns"`
	KnownAt *time.Time `json:"known_at"`
	Work    *struct {
		Repositories []struct {
			Path      string  `json:"path"`
			Branch    *string `json:"branch"`
			Operation string  `json:"operation"`
			Staged    int     `json:"staged"`
			Unstaged  int     `json:"unstaged"`
			Untracked int     `json:"untracked"`
			Files     []struct {
				Path     string `json:"path"`
				Index    string `json:"index"`
				Worktree string `json:"worktree"`
			} `json:"files"`
			Unpushed int `json:"unpushed"`
			Commits  []struct {
				ID      string `json:"id"`
				Subject string `json:"subject"`
			} `json:"commits"`
			Stashes   int    `json:"stashes"`
			Truncated bool   `json:"truncated"`
			Error     string `json:"error"`
		} `json:"repositories"`
		Clean     int  `json:"clean"`
		Truncated bool `json:"truncated"`
	} `json:"work"`
	DiskBytes int64  `json:"disk_bytes"`
	Note      string `json:"note"`
}

func workspaceRebuildPreview() *cobra.Command {
	var asJSON bool
	cmd := sub("rebuild-preview WORKSPACE", "Show what a rebuild would take with it: work that is not pushed, turns", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		id, err := find(c, cl, "/api/workspaces", "workspace", args[0])
		if err != nil {
			return err
		}
		raw, v, err := previewRebuild(c, cl, id)
		if err != nil {
			return err
		}
		p := stdout()
		if asJSON {
			return p.json(raw)
		}
		for _, line := range v.lines() {
			p.text(line + "\n")
		}
		return nil
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func previewRebuild(c *cobra.Command, cl *client.Client, id string) (raw json.RawMessage, v rebuildPreview, err error) {
	var out struct{ Data json.RawMessage }
	if err := cl.Get(c.Context(), "/api/workspaces/"+id+"/rebuild-preview", &out); err != nil {
		return nil, v, err
	}
	return out.Data, v, json.Unmarshal(out.Data, &v)
}

// lines are a preview for people.
func (v rebuildPreview) lines() (lines []string) {
	add := func(format string, args ...any) { // names and titles hold line ends, too
		lines = append(lines, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", `\n`))
	}
	add("%s", v.Note)
	if v.KnownAt != nil {
		add("seen %s", v.KnownAt.Local().Format("Mon 2 Jan 15:04:05"))
	}
	if v.DiskBytes > 0 {
		add("on disk %s", size(v.DiskBytes))
	}
	if len(v.ChangedFields) > 0 {
		add("applies %s", strings.Join(v.ChangedFields, " "))
	}
	for _, t := range v.Turns {
		add("◐ turn %d of %q is %s", t.TurnNumber, t.Title, t.Status)
	}
	if v.Work == nil {
		return lines
	}
	for _, r := range v.Work.Repositories {
		if r.Error != "" {
			add("▲ %s: %s", r.Path, r.Error)
			continue
		}
		branch := "detached"
		if r.Branch != nil {
			branch = *r.Branch
		}
		var holds []string
		for _, part := range []struct {
			n    int
			what string
		}{{r.Staged, "staged"}, {r.Unstaged, "not staged"}, {r.Untracked, "untracked"}, {r.Unpushed, "commits not pushed"}, {r.Stashes, "stashed"}} {
			if part.n > 0 {
				holds = append(holds, fmt.Sprintf("%d %s", part.n, part.what))
			}
		}
		if r.Operation != "" {
			holds = append(holds, r.Operation+" in progress")
		}
		if r.Truncated {
			holds = append(holds, "and more")
		}
		add("▲ %s (%s): %s", r.Path, branch, strings.Join(holds, ", "))
		for _, f := range r.Files {
			add("    %-1s%-1s %s", f.Index, f.Worktree, f.Path)
		}
		for _, c := range r.Commits {
			add("    %s %s", c.ID, c.Subject)
		}
	}
	switch {
	case v.Work.Clean == 1:
		add("● 1 repository holds nothing that is not pushed")
	case v.Work.Clean > 1:
		add("● %d repositories hold nothing that is not pushed", v.Work.Clean)
	}
	if v.Work.Truncated {
		add("There may be more repositories.")
	}
	return lines
}

func workspaceWake() *cobra.Command {
	var asJSON bool
	cmd := sub("wake WORKSPACE", "Start a parked machine without a prompt", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		w, err := namedWorkspace(c, cl, args[0])
		if err != nil {
			return err
		}
		if w, err = workspaceCall(c, cl, "POST", "/api/workspaces/"+w.ID+"/wake", nil); err != nil {
			return err
		}
		return showWorkspace(w, asJSON)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func workspaceDelete() *cobra.Command {
	var sure func(func() (loss, error)) error
	cmd := sub("delete WORKSPACE", "End its conversations and destroy its machine with its disk", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		w, err := namedWorkspace(c, cl, args[0])
		if err != nil {
			return err
		}
		if err := sure(func() (loss, error) {
			lines := []string{fmt.Sprintf("This ends the conversations of %s (%d live), which keep their transcripts, and destroys its machine with its disk.", w.Name, w.ConversationCount)}
			_, v, err := previewRebuild(c, cl, w.ID)
			var no *client.Refused
			if errors.As(err, &no) { // what cannot be rebuilt can be deleted all the same
				return loss{w.Name, lines}, nil
			}
			v.ChangedFields = nil // a rebuild would apply them
			return loss{w.Name, append(lines, v.lines()...)}, err
		}); err != nil {
			return err
		}
		if err := cl.Do(c.Context(), "DELETE", "/api/workspaces/"+w.ID, nil, nil); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "Deleted %s.\n", w.Name)
		return nil
	})
	sure = asks(cmd)
	return cmd
}

func (w workspaceView) state() string {
	s := w.Status
	switch {
	case s != "ready":
	case w.MachineStatus == "suspended":
		s = "parked"
	case w.MachineStatus == "lost":
		s = "machine lost, built again by the next prompt"
	}
	if w.SetupStep != "" && w.Status == "provisioning" {
		s += " (" + w.SetupStep + ")"
	}
	if w.Stale {
		s += ", stale: " + strings.Join(w.ChangedFields, " ")
	}
	return s
}

func (s setupStep) heading() string {
	mark := map[string]string{"done": "✓", "failed": "✕", "running": "◐", "skipped": "–", "pending": "◌"}[s.State]
	out := mark + " " + s.Step
	if s.Note != "" {
		out += "  " + s.Note
	}
	if s.ExitCode != nil && *s.ExitCode != 0 {
		out += fmt.Sprintf("  exit %d", *s.ExitCode)
	}
	if s.DurationMS != nil {
		out += "  " + duration(*s.DurationMS)
	}
	return out
}

// remaining is a time to come: "under a minute", "41 min", "2 h 05 min".
func remaining(d time.Duration) string {
	switch minutes := int(d.Minutes()); {
	case minutes < 1:
		return "under a minute"
	case minutes < 60:
		return fmt.Sprintf("%d min", minutes)
	default:
		return fmt.Sprintf("%d h %02d min", minutes/60, minutes%60)
	}
}

// size is a number of bytes, in powers of 1,000 as the pages show it.
func size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB"} {
		if v /= 1000; v < 999.95 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

func workspaceCall(c *cobra.Command, cl *client.Client, method, path string, in any) (workspaceView, error) {
	var out struct {
		Data json.RawMessage `json:"data"`
	}
	if err := cl.Do(c.Context(), method, path, in, &out); err != nil {
		return workspaceView{}, err
	}
	w := workspaceView{raw: out.Data}
	return w, json.Unmarshal(out.Data, &w)
}

func namedWorkspace(c *cobra.Command, cl *client.Client, ref string) (workspaceView, error) {
	id, err := find(c, cl, "/api/workspaces", "workspace", ref)
	if err != nil {
		return workspaceView{}, err
	}
	return workspaceCall(c, cl, "GET", "/api/workspaces/"+id, nil)
}

func setupLog(c *cobra.Command, cl *client.Client, id string) ([]setupStep, error) {
	var out struct {
		Data struct {
			Steps []setupStep `json:"steps"`
		} `json:"data"`
	}
	err := cl.Get(c.Context(), "/api/workspaces/"+id+"/setup-log", &out)
	return out.Data.Steps, err
}

// followSetup prints the setup's lines as they come and ends with its outcome: nil when the workspace became ready.
func followSetup(c *cobra.Command, cl *client.Client, id string) error {
	p := stdout()
	printed := map[string]int64{} // per step: bytes of its output that were shown
	// catchUp prints what the log has and was not printed; the stream only says when to look.
	catchUp := func() error {
		steps, err := setupLog(c, cl, id)
		if err != nil {
			return err
		}
		for _, s := range steps {
			if s.State == "pending" {
				continue
			}
			shown, seen := printed[s.Step]
			if !seen {
				p.text("◐ " + s.Step + "\n")
			}
			total := s.DroppedBytes + int64(len(s.Output))
			if missing := min(total-shown, int64(len(s.Output))); missing > 0 {
				p.text(s.Output[int64(len(s.Output))-missing:])
			}
			printed[s.Step] = max(shown, total)
		}
		return nil
	}
	ended := func() (bool, error) {
		w, err := workspaceCall(c, cl, "GET", "/api/workspaces/"+id, nil)
		if err != nil {
			return false, err
		}
		if err := catchUp(); err != nil {
			return false, err
		}
		switch {
		case w.Status == "provisioning":
			return false, nil
		case w.Status == "ready":
			p.text("✓ ready\n")
			return true, nil
		case w.Error != nil:
			return true, &codedError{exitRefused, fmt.Errorf("%s failed: %s", w.Error.Step, w.Error.Message)}
		}
		return true, &codedError{exitRefused, fmt.Errorf("the workspace is %s", w.Status)}
	}
	return cl.Follow(c.Context(), "/api/events/stream", "", func(f client.Frame) error {
		var body struct {
			WorkspaceID string `json:"workspace_id"`
		}
		if f.Event != client.Opened && (json.Unmarshal(f.Data, &body) != nil || body.WorkspaceID != id) {
			return nil
		}
		if f.Event == "workspace.setup" {
			return catchUp()
		}
		done, err := ended()
		if done && err == nil {
			return client.ErrStop
		}
		return err
	})
}

// find turns a name or an id into an id.
func find(c *cobra.Command, cl *client.Client, path, what, ref string) (string, error) {
	found := ""
	err := pages(c, cl, path, func(item json.RawMessage) error {
		var row struct{ ID, Name string }
		if err := json.Unmarshal(item, &row); err != nil {
			return err
		}
		if row.ID == ref || row.Name == ref {
			found = row.ID
			return client.ErrStop
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if found == "" {
		return "", &codedError{exitRefused, fmt.Errorf("there is no %s %q in this account", what, ref)}
	}
	return found, nil
}

// pages walks a list to its end.
func pages(c *cobra.Command, cl *client.Client, path string, each func(json.RawMessage) error) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	cursor := ""
	for {
		var page struct {
			Data []json.RawMessage `json:"data"`
			Meta struct {
				HasMore    bool   `json:"has_more"`
				NextCursor string `json:"next_cursor"`
			} `json:"meta"`
		}
		at := path
		if cursor != "" {
			at += sep + "after=" + url.QueryEscape(cursor)
		}
		if err := cl.Get(c.Context(), at, &page); err != nil {
			return err
		}
		for _, item := range page.Data {
			if err := each(item); errors.Is(err, client.ErrStop) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if !page.Meta.HasMore || page.Meta.NextCursor == "" {
			return nil
		}
		cursor = page.Meta.NextCursor
	}
}

func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case t.IsZero():
		return "–"
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}
