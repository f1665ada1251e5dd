package views

import (
	"fmt"
	"time"

	"managoat/views/markup"
)

// WorkspacesPage lists the account's workspaces.
type WorkspacesPage struct {
	Page
	Rows  []WorkspaceRow
	Pager Pager
}

// WorkspaceRow is one workspace in a list. Its element's id is WorkspaceRowID(ID), for streams.
type WorkspaceRow struct {
	ID            string
	Name          Link
	Environment   Link
	Status        Badge
	Note          string   // the running step, the failed step, "parked"
	Stale         []string // fields that changed since the machine was built
	Conversations int
	ActiveAt      time.Time
}

// WorkspaceRowID is the id of a workspace's row in the list.
func WorkspaceRowID(id string) string { return "w-" + slug(id) }

// WorkspaceFormPage makes a workspace.
type WorkspaceFormPage struct {
	Page
	Name          string
	EnvironmentID string
	VaultID       string
	Provider      string
	Fresh         bool
	Environments  []Option
	Vaults        []Option // the first one is "none"
	Providers     []Option
	Errors        Errors
}

// WorkspacePage shows one workspace; Tab says which of the tabs is filled.
type WorkspacePage struct {
	Page
	Head          WorkspaceHead
	Setup         SetupView
	Tab           string // conversations, files, git, diff, log, egress
	Start         StartForm
	Conversations []Row // that live
	Ended         []Row
	Pager         Pager // of both
	Files         *FilesTab
	Git           *GitTab
	Diff          *DiffTab
	Egress        *EgressTab
	Audit         *AuditTab
	DeleteErrors  Errors
}

// WorkspaceHead is the top of the page.
type WorkspaceHead struct {
	ID, URL       string
	Name          string
	Status        Badge
	Machine       Badge // parked, starting, lost …; empty when the status says it all
	MachineNote   string
	ParksAt       time.Time // when the machine parks if nothing runs until then; zero: not known, or never
	Environment   Link
	Vault         Link
	Provider      string
	DiskBytes     int64
	Use           []MachineUse // of a machine that is up; nil: not known
	Conversations int          // that live
	CreatedAt     time.Time
	Stale         []string // names of changed fields
	RebuildURL    string   // "" when a rebuild is not on offer
	WakeURL       string   // "" when there is nothing to wake
	// DiagnosticsURL leads to the facts of a machine that is not as it should be; "" while it is.
	DiagnosticsURL string
	Problem        *Problem // what keeps it from working, beyond a failed setup
}

// MachineUse is one thing that a machine uses, of how much.
type MachineUse struct {
	Name  string // memory, processors, disk
	Used  string // "412 MiB"
	Limit string // "4 GiB"; "": none
	Full  bool   // it is short of it
}

func (u MachineUse) String() string {
	s := u.Name + " " + u.Used
	if u.Limit != "" {
		s += " of " + u.Limit
	}
	if u.Full {
		s += ", almost full"
	}
	return s
}

// SetupView is the last or the running setup.
type SetupView struct {
	Status         string // provisioning, ready, failed
	Steps          []SetupStep
	Failure        *SetupFailure
	EndedAt        time.Time
	Took           time.Duration
	Open           bool // show the steps of a setup that ended well
	RetryURL       string
	EnvironmentURL string
	DiagnosticsURL string
	LogURL         string
}

// SetupStep is one step of a setup.
type SetupStep struct {
	Name         string // machine, broker, environment, packages, repositories, setup_script
	State        State  // StateOff before it began; StateRunning, StateDone, StateFailed; StateStopped: skipped
	Note         string
	StartedAt    time.Time
	Took         time.Duration
	ExitCode     *int
	Signal       string
	Output       string
	DroppedBytes int64
}

// SetupFailure says what a failed setup failed of.
type SetupFailure struct {
	Step     string
	Message  string
	ExitCode *int
	Signal   string
}

// stepWords are the steps as people read them.
var stepWords = map[string]string{
	"machine": "Create the machine", "broker": "Settle the broker", "environment": "Write the environment",
	"packages": "Install packages", "repositories": "Clone repositories", "setup_script": "Run the setup script",
}

// StepWord is a setup's step as people read it.
func StepWord(name string) string {
	if w, ok := stepWords[name]; ok {
		return w
	}
	return name
}

// SetupStepID and SetupLogID are the ids of a step's row and of what it prints, for streams.
func SetupStepID(step string) string { return "step-" + slug(step) }

// SetupLogID is the id of the element that a running step's lines are appended to.
func SetupLogID(step string) string { return "log-" + slug(step) }

// Verdict is how a failed step ended: "exit 7", "killed by signal KILL", "".
func Verdict(code *int, signal string) string {
	switch {
	case signal != "":
		return "killed by signal " + signal
	case code != nil:
		return fmt.Sprintf("exit %d", *code)
	}
	return ""
}

// FilesTab is a directory or a file of the workspace's disk.
type FilesTab struct {
	Path     string
	Crumbs   []Link
	Entries  []FileEntry
	Cut      bool // the listing was longer
	File     *FileView
	NotReady *NotReady
	Problem  *Problem
}

// NotReady is a disk that cannot be read now.
type NotReady struct {
	Message string
	WakeURL string
}

// FileEntry is one entry of a directory.
type FileEntry struct {
	Name     string
	URL      string
	Kind     string // dir, file, link, other
	Target   string // of a link
	Size     int64
	Modified time.Time
}

// FileView is a file's content.
type FileView struct {
	Name      string
	Size      int64
	Text      string
	Binary    bool
	Truncated bool
	Shown     int64 // bytes of Text
}

// GitTab is the state of one repository.
type GitTab struct {
	Path         string
	Repositories []Option // value is the path
	Branch       string
	Upstream     string
	Ahead        int
	Behind       int
	Operation    string // a merge, rebase … in progress
	Head         string // commit; "" before the first one
	Entries      []GitEntry
	Cut          bool
	NotReady     *NotReady
	Problem      *Problem
}

// GitEntry is one changed path.
type GitEntry struct {
	Path     string
	From     string // of a rename
	Staged   string // word: modified, added, deleted, renamed …; "" none
	Unstaged string
	DiffURL  string
}

// DiffTab is what changed in one repository.
type DiffTab struct {
	Path         string
	Repositories []Option
	Staged       bool
	Files        []markup.FileDiff
	Truncated    bool
	PatchURL     string
	NotReady     *NotReady
	Problem      *Problem
}

// AuditTab is who did what with the workspace, the newest first.
type AuditTab struct {
	Rows []AuditRow
	Pager
}

// EgressTab is what left the machine, and what was not let out.
type EgressTab struct {
	Policy string // one sentence: what the network rule is
	Rows   []EgressRow
	Pager  Pager
}

// EgressRow is one decision of the broker.
type EgressRow struct {
	At           time.Time
	Host         string // with its port
	Method       string
	Decision     State  // StateDone: let out; StateFailed: not, or it failed
	Word         string // "allowed", "denied", "failed"
	Rule         string // which rule decided
	Dropped      int64  // rows lost right before this one
	Status       int    // of the answer, 0 when unknown
	In, Out      int64  // bytes
	Took         time.Duration
	Conversation Link
}

// DiffID is the id of a file's part of the diff.
func DiffID(path string) string { return "d-" + slug(path) }
