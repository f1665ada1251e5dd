package files

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/sandbox/guest"
)

// Limits of a survey.
const (
	maxRepositories = 50   // of a disk
	maxDepth        = 6    // folders below a root in which repositories are looked for
	maxCommits      = 1000 // that are counted of a repository
	shownFiles      = 20   // of a repository
	shownCommits    = 20
	surveyed        = 4               // repositories that are looked at at once
	findTimeout     = 5 * time.Second // for looking through the folders; what was found by then counts
	surveyTimeout   = 25 * time.Second
)

// Work is what git knows of on a machine's disk that may be nowhere else.
type Work struct {
	Repositories []RepositoryWork `json:"repositories" doc:"those that hold such work, and those that could not be looked at"`
	Clean        int              `json:"clean" doc:"repositories without any"`
	Truncated    bool             `json:"truncated" doc:"there may be more repositories"`
}

// RepositoryWork is the work of one repository.
type RepositoryWork struct {
	Path      string     `json:"path" doc:"the root of the work tree"`
	Branch    *string    `json:"branch" doc:"null when detached"`
	Operation string     `json:"operation" doc:"merge, rebase, cherry-pick, revert or bisect in progress"`
	Staged    int        `json:"staged" doc:"files that differ between the index and the last commit"`
	Unstaged  int        `json:"unstaged" doc:"files that differ from the index"`
	Untracked int        `json:"untracked" doc:"files, and folders of such files, that git does not know and does not ignore"`
	Files     []GitEntry `json:"files" doc:"the first of them"`
	Unpushed  int        `json:"unpushed" doc:"commits of its branches that are on no branch of a remote"`
	Commits   []Commit   `json:"commits" doc:"the newest of them"`
	Stashes   int        `json:"stashes"`
	Truncated bool       `json:"truncated" doc:"the numbers are larger"`
	Error     string     `json:"error" doc:"why it could not be looked at; empty when it was"`
}

// Commit is a commit by its first line.
type Commit struct {
	ID      string `json:"id" doc:"short"`
	Subject string `json:"subject"`
}

func (w RepositoryWork) none() bool {
	return w.Staged+w.Unstaged+w.Untracked+w.Unpushed+w.Stashes == 0 && w.Operation == "" && w.Error == ""
}

// Sources of what a preview says of the disk.
const (
	FromMachine = "machine" // seen just now
	FromPark    = "parked"  // seen before the machine parked
	Unknown     = "unknown" // it cannot be looked at now
	Gone        = "gone"    // there is no disk any more
)

// Preview is what a rebuild would take with it.
type Preview struct {
	WorkspaceID   uuid.UUID            `json:"workspace_id"`
	Status        workspace.Status     `json:"status" enum:"ready,failed"`
	MachineStatus machine.Status       `json:"machine_status" enum:"pending,starting,ready,suspended,terminated,failed,lost"`
	ChangedFields []string             `json:"changed_fields" doc:"names of the environment's fields that the rebuild applies"`
	Turns         []workspace.OpenTurn `json:"turns" doc:"turns that run or wait: they refuse the rebuild, or end with interrupt: true"`
	Source        string               `json:"source" enum:"machine,parked,unknown,gone" doc:"how the work is known: seen just now, seen before the machine parked, not known, or the disk is gone already"`
	KnownAt       *time.Time           `json:"known_at" doc:"when the work was seen"`
	Work          *Work                `json:"work" doc:"null when it is not known"`
	DiskBytes     int64                `json:"disk_bytes" doc:"what the machine wrote to its disk, all of which goes"`
	Note          string               `json:"note" doc:"in a sentence: what is known and what is not"`
}

// RebuildPreview tells what a rebuild of a workspace would take with it. It refuses what a rebuild refuses, turns aside, and
// wakes nothing.
func (s *Service) RebuildPreview(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Preview, error) {
	if err := s.workspaces.Rebuildable(ctx, actor, id); err != nil {
		return Preview{}, err
	}
	work, at, seen := s.seen(ctx, actor, id)
	ws, err := s.workspaces.Get(ctx, actor, id)
	if err != nil {
		return Preview{}, err
	}
	turns, err := s.workspaces.OpenTurns(ctx, actor, id)
	if err != nil {
		return Preview{}, err
	}
	p := Preview{WorkspaceID: id, Status: ws.Status, MachineStatus: ws.MachineStatus, ChangedFields: ws.ChangedFields, Turns: turns, DiskBytes: ws.DiskBytes}
	switch {
	case ws.Status == workspace.Failed || ws.MachineStatus == machine.Lost:
		p.Source, p.DiskBytes, p.Note = Gone, 0, "There is nothing to lose: the machine is gone already, with its disk."
		return p, nil
	case seen == nil:
		p.Source, p.KnownAt, p.Work = FromMachine, &at, &work
		p.Note = "This is what git finds on the machine now. Everything else on its disk goes too."
		return p, nil
	case ctx.Err() != nil:
		return Preview{}, ctx.Err()
	}
	p.Source, p.Note = Unknown, "What lies on the disk is not known: the machine does not answer. Its disk goes with a rebuild."
	if ws.MachineStatus != machine.Suspended {
		return p, nil
	}
	p.Note = "What lies on the disk is not known: nobody looked before the machine stopped, and a look does not wake it. Wake it to see; its disk goes with a rebuild."
	raw, when, err := s.workspaces.LastWork(ctx, actor, id)
	if err != nil || when.IsZero() {
		return p, err
	}
	masks, err := s.workspaces.Masks(ctx, actor.TenantID, id)
	if err != nil {
		return Preview{}, err
	}
	redact, err := s.redactor(ctx, actor.TenantID, id, masks) // what has become a secret since is one
	if err != nil {
		return Preview{}, err
	}
	p.Work = &Work{}
	if err := json.Unmarshal(transcript.NewGate(redact).JSON(raw), p.Work); err != nil {
		return Preview{}, fmt.Errorf("read what was seen on a disk: %w", err)
	}
	p.Source, p.KnownAt, p.Note = FromPark, &when, "This is what git found before the machine parked. Everything else on its disk goes too."
	return p, nil
}

// seen is the work on a machine that is up.
func (s *Service) seen(ctx context.Context, actor tenant.Actor, id uuid.UUID) (Work, time.Time, error) {
	at := time.Now()
	up, err := s.workspaces.Peek(ctx, actor.TenantID, id)
	if err != nil {
		return Work{}, at, err
	}
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	work, err := s.work(ctx, actor.TenantID, up)
	return work, at, err
}

// survey is workspace.Survey.
func (s *Service) survey(ctx context.Context, tenantID uuid.UUID, up *workspace.Up) (json.RawMessage, error) {
	work, err := s.work(ctx, tenantID, up)
	if err != nil {
		return nil, err
	}
	return json.Marshal(work)
}

// work looks at the repositories of a machine: at those of the environment, and at those that are found beside them. One that
// cannot be looked at, or not in time, is told of as such.
func (s *Service) work(ctx context.Context, tenantID uuid.UUID, up *workspace.Up) (Work, error) {
	d, err := s.disk(ctx, tenantID, up)
	if err != nil {
		return Work{}, err
	}
	found, more, err := d.repositories(ctx)
	if err != nil {
		return Work{}, err
	}
	looked := make([]RepositoryWork, len(found))
	tops := make([]string, len(found)) // the roots of their work trees
	var all errgroup.Group
	all.SetLimit(surveyed)
	for i, at := range found {
		all.Go(func() error {
			r, of, err := d.workInTime(ctx, at, i == len(found)-1)
			if err != nil {
				of = RepositoryWork{Path: d.name(at), Files: []GitEntry{}, Commits: []Commit{}, Error: why(err)}
			} else {
				tops[i] = r.top
			}
			looked[i] = of
			return nil
		})
	}
	_ = all.Wait() // each says its own error
	w := Work{Repositories: []RepositoryWork{}, Truncated: more}
	for i, of := range looked {
		switch {
		case tops[i] != "" && slices.Contains(tops[:i], tops[i]): // two ways lead there
		case of.none():
			w.Clean++
		default:
			w.Repositories = append(w.Repositories, of)
		}
	}
	return w, nil
}

// workInTime is workOf in half of the time that is left, unless it is the last: one repository in which git hangs hides no
// other.
func (d *disk) workInTime(ctx context.Context, at string, last bool) (*repository, RepositoryWork, error) {
	if deadline, ok := ctx.Deadline(); ok && !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	if err := ctx.Err(); err != nil {
		return nil, RepositoryWork{}, err
	}
	r, of, err := d.workOf(ctx, at)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return r, of, err
}

// why says to people why a repository could not be looked at.
func why(err error) string {
	if r, ok := refusal.As(err); ok {
		return r.Message
	}
	return "There was no time to look at it."
}

// repositoriesScript prints the folders in and below the given ones that are repositories, each ended by NUL.
const repositoriesScript = `
seconds=$1 depth=$2 most=$3
shift 3
timeout "$seconds" find "$@" -xdev -maxdepth "$depth" \( -name node_modules -o -path '*/.managoat' -o -path '*/.cache' -o -path '*/.npm' \) -prune -o -name .git -printf '%h\0' -prune 2>/dev/null | head -z -n "$most"
exit 0
`

// repositories are the folders of the repositories of a disk, those of the environment first.
func (d *disk) repositories(ctx context.Context) (all []string, more bool, err error) {
	r := &repository{disk: d, dir: guest.Home, asked: guest.Home, config: inert}
	out, _, err := r.run(ctx, append([]string{"bash", "-c", repositoriesScript, "find", strconv.Itoa(int(findTimeout.Seconds())), strconv.Itoa(maxDepth), strconv.Itoa(maxRepositories + 1)}, d.roots...),
		"", (maxRepositories+1)*maxPath, findTimeout+readTimeout)
	if err != nil {
		return nil, false, err
	}
	var below []string
	for at := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		switch {
		case at == "" || slices.Contains(below, at):
		case slices.Contains(d.Repositories, at):
			all = append(all, at)
		default:
			below = append(below, path.Clean(at))
		}
	}
	slices.Sort(below)
	all = append(all, below...)
	return all[:min(len(all), maxRepositories)], len(all) > maxRepositories, nil
}

// workOf looks at the repository of a folder.
func (d *disk) workOf(ctx context.Context, at string) (*repository, RepositoryWork, error) {
	r, err := d.repository(ctx, at)
	if err != nil {
		return nil, RepositoryWork{}, err
	}
	p, more, err := r.status(ctx, "--untracked-files=normal", "--show-stash")
	if err != nil {
		return nil, RepositoryWork{}, err
	}
	w := RepositoryWork{Path: r.name(r.top), Branch: r.branch(p), Operation: r.state, Staged: p.staged, Unstaged: p.unstaged, Untracked: p.untracked,
		Files: r.entries(p, shownFiles), Commits: []Commit{}, Stashes: p.stashes, Truncated: more}
	// rev-list, and not log: that one's configuration can name a program to run.
	args := []string{"rev-list", "--max-count=" + strconv.Itoa(maxCommits+1), "--no-commit-header", "--format=%h %s", "--branches"}
	if p.oid != "" {
		args = append(args, "HEAD")
	}
	out, more, err := r.git(ctx, "", maxStatus, gitTimeout, append(args, "--not", "--remotes")...)
	if err != nil {
		return nil, RepositoryWork{}, err
	}
	for line := range strings.Lines(string(out)) {
		if w.Unpushed++; w.Unpushed <= shownCommits {
			id, subject, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			w.Commits = append(w.Commits, Commit{r.gate.OneLine(id, maxSubject), r.gate.OneLine(subject, maxSubject)})
		}
	}
	w.Truncated = w.Truncated || more || w.Unpushed > maxCommits
	w.Unpushed = min(w.Unpushed, maxCommits)
	return r, w, nil
}

// maxSubject bounds what is shown of the first line of a commit, in characters.
const maxSubject = 200
