package views

import (
	"fmt"
	"strings"
	"time"
)

// RebuildPage shows what a rebuild of a workspace's machine would take with it, and offers it.
type RebuildPage struct {
	Page
	Workspace    Link
	Problem      *Problem // why there can be no rebuild now; nothing else is shown then
	Fields       []string // of the environment that changed since the machine was built
	Note         string   // what is known of the disk
	KnownAt      time.Time
	Gone         bool // the disk is, already
	Repositories []RepositoryWork
	Clean        int    // repositories that hold nothing that is nowhere else
	Cut          bool   // there may be more repositories
	DiskBytes    int64  // of all that goes; 0: not known
	WakeURL      string // "" when there is nothing to wake
	Turns        []Row  // that run or wait
	Interrupt    bool   // their end was asked for
	Fresh        bool
	Errors       Errors
}

// RepositoryWork is what one repository holds that may be nowhere else.
type RepositoryWork struct {
	Path      string
	Branch    string // "": detached
	Operation string
	Staged    int
	Unstaged  int
	Untracked int
	Files     []GitEntry // the first of them
	Unpushed  int
	Commits   []Commit // the newest of them
	Stashes   int
	Cut       bool // the numbers are larger
	DiffURL   string
	PatchURL  string
	Error     string // why it could not be looked at
}

// Commit is a commit by its first line.
type Commit struct{ ID, Subject string }

// summary counts what a repository holds.
func (r RepositoryWork) summary() string {
	if r.Error != "" {
		return "could not be looked at"
	}
	var parts []string
	add := func(n int, text string) {
		if n > 0 {
			parts = append(parts, text)
		}
	}
	add(r.Staged, Count(r.Staged)+" staged")
	add(r.Unstaged, Count(r.Unstaged)+" not staged")
	add(r.Untracked, Count(r.Untracked)+" untracked")
	add(r.Unpushed, Plural(r.Unpushed, "commit")+" not pushed")
	add(r.Stashes, Count(r.Stashes)+" stashed")
	if r.Operation != "" {
		parts = append(parts, r.Operation+" in progress")
	}
	if r.Cut {
		parts = append(parts, "and more")
	}
	return strings.Join(parts, ", ")
}

// repositories counts them.
func repositories(n int, which string) string {
	if n == 1 {
		return "1 " + which + "repository"
	}
	return Count(n) + " " + which + "repositories"
}

// more says how much of something is not shown.
func more(all, shown int, what string) string {
	if all <= shown {
		return ""
	}
	return fmt.Sprintf("and %s more", Plural(all-shown, what))
}
