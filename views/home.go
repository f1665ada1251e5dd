package views

import (
	"slices"
	"time"
)

// HomePage is where a person starts: what waits for them, what runs, what failed, and one field to begin.
type HomePage struct {
	Page
	Overview Overview
	Start    StartForm
	Steps    []FirstStep // what a new account still lacks; empty when nothing
}

// Overview is the live part of the home page.
type Overview struct {
	Waiting []Row // for a person: permission requests, stale workspaces
	Running []Row
	Failed  []Row
	Recent  []Row
}

// Row is one line of a list: what it is in, what it is, a note, and when.
type Row struct {
	Badge Badge
	Title Link
	Note  string
	At    time.Time // last activity; not shown when the badge has a clock
}

// FirstStep is one thing to do before the first conversation.
type FirstStep struct {
	Done bool
	Text string
	Link Link
}

// StartForm starts a conversation with one field.
type StartForm struct {
	Prompt      string
	AgentID     string
	WorkspaceID string
	Cwd         string
	Agents      []Option
	Workspaces  []Option // the first one is "a machine of its own"; empty inside a workspace
	Fixed       string   // id of the workspace when it is given
	Folders     []string // to choose a working directory from
	CwdHint     string
	Closed      string // why nothing can be started here, whatever the agent
	Errors      Errors
}

// choice tells whether any of the agents can be chosen.
func (f StartForm) choice() bool {
	return slices.ContainsFunc(f.Agents, func(o Option) bool { return !o.Disabled })
}
