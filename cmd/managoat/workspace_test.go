package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// Else a file's name could say what the preview says.
func TestAPreviewKeepsANameInItsLine(t *testing.T) {
	t.Parallel()
	var v rebuildPreview
	if err := json.Unmarshal([]byte(`{"note": "This.", "work": {"repositories": [{"path": "/a\n● b", "branch": "main", "untracked": 1, "files": [{"index": "?", "worktree": "?", "path": "x\n● 9 repositories hold nothing"}]}]}}`), &v); err != nil {
		t.Fatal(err)
	}
	if got := v.lines(); !slices.Equal(got, []string{"This.", `▲ /a\n● b (main): 1 untracked`, `    ?? x\n● 9 repositories hold nothing`}) {
		t.Errorf("%q", got)
	}
}

// What somebody on the command line must open the page for is missing here.
func TestAWorkspaceIsShownAsItsPageShowsIt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var f workspaceFacts
	if err := json.Unmarshal([]byte(`{"machine": {"host_id": "h1"}, "setup": {"steps": [{"step": "machine", "state": "done", "duration_ms": 20}, {"step": "packages", "state": "skipped", "note": "no packages"},
		{"step": "setup_script", "state": "done", "duration_ms": 61400}]}}`), &f); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{"id": "w1", "name": "shop", "status": "ready", "machine_status": "ready", "sandbox_provider": "local", "stale": true, "changed_fields": ["packages", "env_vars"],
		"waiting_reason": "The server whose host runs the machine is away.", "base": {"name": "bookworm"},
		"use": {"memory_bytes": 412000000, "memory_limit_bytes": 4300000000, "cpus": 0.4, "cpu_limit": 2, "cpu_seconds": 12.5, "disk_bytes": 1400000000, "disk_limit_bytes": 21000000000}}`), &f.Workspace); err != nil {
		t.Fatal(err)
	}
	parks := now.Add(41*time.Minute + time.Second)
	f.Workspace.ParksAt, f.Workspace.CreatedAt, f.Workspace.LastActiveAt = &parks, now.Add(-72*time.Hour), now.Add(-4*time.Minute)
	f.environment, f.vault = "node-22", "team-bot"
	f.talks = []talk{{ID: "c1", Title: "Fix the cart", AgentName: "Builder", Runtime: "claude", CurrentTurn: &turnView{TurnNumber: 4, Status: "running"}, LastActiveAt: now},
		{ID: "c2", FirstPrompt: "Review it\nall", Runtime: "acp", Status: "terminated", LastActiveAt: now.Add(-3 * time.Hour)}}
	var out strings.Builder
	if err := f.show(printer{w: &out}, now); err != nil {
		t.Fatal(err)
	}
	const want = `shop  ready, stale: packages env_vars
id            w1
environment   node-22, changed since the machine was built
vault         team-bot
provider      local, host h1, base bookworm
waits         The server whose host runs the machine is away.
machine       up, parks in 41 min if nothing runs
memory        412.0 MB of 4.3 GB
processors    0.4 of 2, 12.5 s used
disk          1.4 GB of 21.0 GB
made          3 days ago, last active 4 min ago

setup, took 1 m 01 s
✓ machine  20 ms
– packages  no packages
✓ setup_script  1 m 01 s

STATE      CONVERSATION    AGENT                LAST ACTIVE   ID
◐ turn 4   Fix the cart    Builder, claude      just now      c1
– ended    Review it all   deleted agent, acp   3 h ago       c2
`
	if out.String() != want {
		t.Errorf("shown as\n%s", out.String())
	}
}
