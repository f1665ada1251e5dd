package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"managoat/internal/client"
)

// shownConversations is how many conversations `workspace show` lists.
const shownConversations = 10

// workspaceFacts are all that is shown of one workspace.
type workspaceFacts struct {
	Workspace workspaceView
	Machine   struct {
		HostID string `json:"host_id"`
	}
	Setup struct{ Steps []setupStep }

	environment, vault string // names
	talks              []talk // those last active
	more               bool
}

// talk is what a workspace shows of a conversation.
type talk struct {
	ID           string    `json:"id"`
	Title        string    `json:"title"`
	FirstPrompt  string    `json:"first_prompt"`
	Status       string    `json:"status"`
	AgentName    string    `json:"agent_name"`
	Runtime      string    `json:"runtime"`
	CurrentTurn  *turnView `json:"current_turn"`
	LastActiveAt time.Time `json:"last_active_at"`
}

func (t talk) state() string {
	switch {
	case t.CurrentTurn != nil && t.CurrentTurn.Status == "pending":
		return fmt.Sprintf("◌ turn %d waits", t.CurrentTurn.TurnNumber)
	case t.CurrentTurn != nil:
		return fmt.Sprintf("◐ turn %d", t.CurrentTurn.TurnNumber)
	case t.Status == "terminated":
		return "– ended"
	case t.Status == "failed":
		return "✕ failed"
	case t.Status == "pending":
		return "◌ not begun"
	}
	return "● idle"
}

func workspaceShow() *cobra.Command {
	var asJSON bool
	cmd := sub("show WORKSPACE", "Show one workspace: its state, its machine, its last setup, its conversations", cobra.ExactArgs(1), func(c *cobra.Command, cl *client.Client, args []string) error {
		w, err := namedWorkspace(c, cl, args[0])
		if err != nil {
			return err
		}
		p := stdout()
		if asJSON {
			return p.json(w.raw)
		}
		f, err := factsOf(c, cl, w)
		if err != nil {
			return err
		}
		return f.show(p, time.Now())
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// factsOf gathers what is known of a workspace beside its row.
func factsOf(c *cobra.Command, cl *client.Client, w workspaceView) (f workspaceFacts, err error) {
	get := func(path string, into any) {
		if err == nil {
			err = cl.Get(c.Context(), path, &struct{ Data any }{into})
		}
	}
	get("/api/workspaces/"+w.ID+"/diagnostics", &f)
	f.Workspace = w // what its machine uses is in this one alone
	var environment, vault struct{ Name string }
	if w.EnvironmentID != "" {
		get("/api/environments/"+w.EnvironmentID, &environment)
	}
	if w.VaultID != nil {
		get("/api/vaults/"+*w.VaultID, &vault)
	}
	f.environment, f.vault = environment.Name, vault.Name
	var page struct {
		Data []talk
		Meta struct {
			HasMore bool `json:"has_more"`
		}
	}
	if err == nil {
		err = cl.Get(c.Context(), fmt.Sprintf("/api/conversations?workspace_id=%s&limit=%d", w.ID, shownConversations), &page)
	}
	f.talks, f.more = page.Data, page.Meta.HasMore
	return f, err
}

func (f workspaceFacts) show(p printer, now time.Time) error {
	w := f.Workspace
	p.text(w.Name + "  " + w.state() + "\n")
	environment := f.environment
	if w.Stale {
		environment += ", changed since the machine was built"
	}
	place := w.SandboxProvider
	if f.Machine.HostID != "" {
		place += ", host " + f.Machine.HostID
	}
	if w.Base.Name != "" {
		place += ", base " + w.Base.Name
	}
	facts := [][]string{{"id", w.ID}, {"environment", environment}, {"vault", f.vault}, {"provider", place}}
	facts = append(facts, w.facts(now)...)
	facts = append(facts, []string{"made", ago(w.CreatedAt) + ", last active " + ago(w.LastActiveAt)})
	if err := p.pairs(facts); err != nil {
		return err
	}
	f.showSetup(p)
	if len(f.talks) == 0 {
		p.text("\nNo conversation yet.\n")
		return nil
	}
	p.text("\n")
	rows := make([][]string, len(f.talks))
	for i, t := range f.talks {
		rows[i] = []string{t.state(), cmp.Or(t.Title, t.FirstPrompt, "–"), cmp.Or(t.AgentName, "deleted agent") + ", " + t.Runtime, ago(t.LastActiveAt), t.ID}
	}
	if err := p.table([]string{"STATE", "CONVERSATION", "AGENT", "LAST ACTIVE", "ID"}, rows); err != nil {
		return err
	}
	if f.more {
		p.text("There are older ones.\n")
	}
	return nil
}

// showSetup shows the steps of the last setup, or of the one that runs, with their times.
func (f workspaceFacts) showSetup(p printer) {
	if len(f.Setup.Steps) == 0 {
		return
	}
	var took int64
	for _, s := range f.Setup.Steps {
		if s.DurationMS != nil {
			took += *s.DurationMS
		}
	}
	head := "\nsetup"
	if began := f.Setup.Steps[0].StartedAt; began != nil {
		head += ", begun " + ago(*began)
	}
	if f.Workspace.Status != "provisioning" {
		head += ", took " + duration(took)
	}
	p.text(head + "\n")
	for _, s := range f.Setup.Steps {
		p.text(s.heading() + "\n")
	}
	f.Workspace.showError(p)
}

// showWorkspace shows a workspace after something was done with it.
func showWorkspace(w workspaceView, asJSON bool) error {
	p := stdout()
	if asJSON {
		return p.json(w.raw)
	}
	p.text(w.Name + "  " + w.state() + "\n")
	if err := p.pairs(append([][]string{{"id", w.ID}}, w.facts(time.Now())...)); err != nil {
		return err
	}
	w.showError(p)
	return nil
}

func (w workspaceView) showError(p printer) {
	if w.Error != nil {
		p.text(fmt.Sprintf("✕ %s: %s\n%s\n", w.Error.Step, w.Error.Message, strings.TrimRight(w.Error.OutputTail, "\n")))
	}
}

// facts say how a workspace's machine does.
func (w workspaceView) facts(now time.Time) (facts [][]string) {
	add := func(name, text string) { facts = append(facts, []string{name, text}) }
	if w.WaitingReason != "" {
		add("waits", w.WaitingReason)
	}
	switch {
	case w.Transition != "" && w.Status != "provisioning":
		add("machine", w.Transition)
	case w.ParksAt != nil:
		add("machine", "up, parks in "+remaining(w.ParksAt.Sub(now))+" if nothing runs")
	case w.IdleSince != nil:
		add("machine", "up, idle since "+w.IdleSince.Local().Format("Mon 15:04"))
	case w.Status == "ready" && w.MachineStatus == "ready":
		add("machine", "up")
	case w.Status == "ready" && w.MachineStatus == "suspended":
		add("machine", "parked, the next prompt wakes it")
	}
	of := func(name string, used, limit int64) {
		text := size(used)
		if limit > 0 {
			text += " of " + size(limit)
		}
		add(name, text)
	}
	u := w.Use
	if u == nil {
		if w.Limits.MemoryBytes > 0 {
			add("memory", size(w.Limits.MemoryBytes)+" at most")
		}
		if w.Limits.CPUs > 0 {
			add("processors", fmt.Sprintf("%g at most", w.Limits.CPUs))
		}
		if w.DiskBytes > 0 || w.Limits.DiskBytes > 0 {
			of("disk", w.DiskBytes, w.Limits.DiskBytes)
		}
		return facts
	}
	of("memory", u.MemoryBytes, u.MemoryLimit)
	cpu := fmt.Sprintf("%.1f s used", u.CPUSeconds)
	if u.CPUs != nil && u.CPULimit > 0 {
		cpu = fmt.Sprintf("%.1f of %g, %s", *u.CPUs, u.CPULimit, cpu)
	}
	add("processors", cpu)
	of("disk", u.DiskBytes, u.DiskLimit)
	return facts
}
