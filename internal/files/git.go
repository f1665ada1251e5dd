package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"managoat/internal/refusal"
	"managoat/internal/tenant"
	"managoat/sandbox/guest"
)

// Limits of git in a machine.
const (
	gitTimeout   = 20 * time.Second
	patchTimeout = 2 * time.Minute
	maxStatus    = 8 << 20   // bytes of a repository's state that are read
	maxErrors    = 8 << 10   // bytes of what git says on standard error
	maxPatch     = 256 << 20 // bytes of a patch
	hugeFile     = "1m"      // a file larger than this is not compared line by line
	maxParents   = 256       // how far up a path that is not there is followed
	maxFilters   = 64        // drivers of a repository that are switched off by name
)

// patchDir holds patches while they are read.
const patchDir = guest.Home + "/.managoat/tmp"

// inert is the configuration that git runs under: nothing of the repository's is executed, nothing is written, nothing
// leaves the machine, and names come out as they are.
var inert = [][2]string{
	{"core.fsmonitor", "false"}, {"core.hooksPath", "/dev/null"}, {"core.untrackedCache", "false"}, {"core.attributesFile", "/dev/null"},
	{"core.quotePath", "false"}, {"core.pager", "cat"}, {"diff.external", ""}, {"color.ui", "false"}, {"protocol.allow", "never"},
	{"submodule.recurse", "false"}, {"status.relativePaths", "false"}, {"diff.noprefix", "false"}, {"diff.mnemonicPrefix", "false"},
	{"diff.relative", "false"}, {"diff.orderFile", "/dev/null"}, {"diff.submodule", "short"}, {"status.showStash", "false"},
	{"safe.directory", "*"}, {"maintenance.auto", "false"}, {"gc.auto", "0"}, {"advice.statusHints", "false"},
}

// repository is one that was found at or above a path, below a root.
type repository struct {
	*disk
	dir    string // where git runs: the directory that was asked for
	top    string
	gitDir string
	state  string   // merge, rebase, …; "" when nothing is in progress
	only   []string // pathspec
	config [][2]string
	asked  string // the path that was asked for
	absent bool   // nothing is at that path now
}

// findScript prints the root of the work tree, the git directory, what is in progress, and the names of the filters that
// the repository would run, each ended by NUL.
const findScript = `
top=$(git rev-parse --show-toplevel) || exit
dir=$(git rev-parse --absolute-git-dir) || exit
state=
for s in MERGE_HEAD:merge rebase-merge:rebase rebase-apply:rebase CHERRY_PICK_HEAD:cherry-pick REVERT_HEAD:revert BISECT_LOG:bisect; do
	[ -e "$dir/${s%%:*}" ] && state=${s#*:} && break
done
printf '%s\0%s\0%s\0' "$top" "$dir" "$state"
git config --null --name-only --get-regexp '^filter\..*\.(clean|smudge|process|required)$'
exit 0
`

// repository finds the repository of a path.
func (s *Service) repository(ctx context.Context, actor tenant.Actor, id uuid.UUID, p string) (*repository, error) {
	d, p, err := s.open(ctx, actor, id, p)
	if err != nil {
		return nil, err
	}
	return d.repository(ctx, p)
}

// repository finds the repository of an absolute path.
func (d *disk) repository(ctx context.Context, p string) (*repository, error) {
	r := &repository{disk: d, asked: p, config: inert}
	if err := r.locate(ctx, p); err != nil {
		return nil, err
	}
	out, _, err := r.run(ctx, []string{"bash", "-c", findScript}, "", maxErrors, gitTimeout)
	var failed *gitError
	switch {
	case errors.As(err, &failed) && r.absent:
		return nil, r.refuse(&guest.FileError{Code: guest.ErrNotFound}, p)
	case errors.As(err, &failed):
		return nil, r.notARepository(failed)
	}
	if err != nil {
		return nil, err
	}
	fields := strings.Split(string(out), "\x00")
	if len(fields) < 4 {
		return nil, fmt.Errorf("find the repository of %s: git said nothing of it", p)
	}
	r.top, r.gitDir, r.state = fields[0], fields[1], r.name(fields[2])
	if !d.within(r.top) || !d.within(r.gitDir) {
		return nil, r.notARepository(nil) // its own configuration leads out
	}
	for _, name := range fields[3:min(len(fields), 3+maxFilters)] {
		if name != "" {
			value := ""
			if strings.HasSuffix(name, ".required") {
				value = "false"
			}
			r.config = append(slices.Clip(r.config), [2]string{name, value})
		}
	}
	return r, nil
}

// locate sets where git runs and which paths it looks at. A path that is not there may still be one that was deleted: it
// is looked at from the nearest directory above.
func (r *repository) locate(ctx context.Context, p string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	at, rest := p, ""
	for range maxParents {
		e, resolved, err := r.Guest.Stat(ctx, r.roots, at)
		var f *guest.FileError
		switch {
		case errors.As(err, &f) && f.Code == guest.ErrNotFound && slices.ContainsFunc(r.roots, func(root string) bool { return below(at, root) }):
			rest = path.Join(path.Base(at), rest)
			at = path.Dir(at)
			r.absent = true
			continue
		case err != nil:
			return r.refuse(err, p)
		case e.Type == "directory":
			r.dir = resolved
		default:
			r.dir, rest = path.Dir(resolved), path.Base(resolved)
		}
		r.only = []string{"."}
		if rest != "" {
			r.only = []string{rest}
		}
		return nil
	}
	return r.refuse(&guest.FileError{Code: guest.ErrNotFound, Path: p}, p)
}

// below tells whether p lies strictly below the folder.
func below(p, folder string) bool { return strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/") }

// within tells whether p is a root or lies below one.
func (d *disk) within(p string) bool {
	return slices.ContainsFunc(d.roots, func(root string) bool { return p == root || below(p, root) })
}

func (r *repository) notARepository(why *gitError) error {
	if why != nil && !strings.Contains(why.stderr, "not a git repository") && !strings.Contains(why.stderr, "must be run in a work tree") {
		return r.commandFailed(why)
	}
	return refusal.New(refusal.NotARepository, "There is no git repository with a work tree at %s, nor above it in the folders that may be read.", r.gate.OneLine(r.asked, maxPath))
}

// gitError is a git that did not exit with 0.
type gitError struct {
	exit   guest.Exit
	stderr string
}

func (e *gitError) Error() string {
	return fmt.Sprintf("git exited with code %d %s: %s", e.exit.Code, e.exit.Signal, e.stderr)
}

func (r *repository) commandFailed(e *gitError) error {
	said := strings.TrimSpace(r.gate.String(e.stderr))
	message := "git failed in the machine"
	switch {
	case e.exit.TimedOut:
		message = "git did not end in time and was stopped"
	case e.exit.Signal != "":
		message = "git was ended by " + e.exit.Signal
	}
	if said != "" {
		message += ": " + said
	}
	return refusal.New(refusal.CommandFailed, "%s", message).With("exit_code", e.exit.Code).With("output", said)
}

// errEnough ends the reading of an output that is longer than wanted.
var errEnough = errors.New("enough")

// run runs a command in the repository as sprite and returns the first limit bytes of its standard output; more tells
// that there were others. index is a file to use in place of the repository's index ("": its own).
func (r *repository) run(ctx context.Context, argv []string, index string, limit int, timeout time.Duration) (out []byte, more bool, err error) {
	env := map[string]string{
		"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1",
		"GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C.UTF-8",
		"GIT_CONFIG_COUNT": fmt.Sprint(len(r.config)),
	}
	for i, c := range r.config {
		env[fmt.Sprintf("GIT_CONFIG_KEY_%d", i)], env[fmt.Sprintf("GIT_CONFIG_VALUE_%d", i)] = c[0], c[1]
	}
	// A repository above a root is not found: its files were never offered.
	var ceilings []string
	for _, root := range r.roots {
		ceilings = append(ceilings, path.Dir(root))
	}
	env["GIT_CEILING_DIRECTORIES"] = strings.Join(ceilings, ":")
	if index != "" {
		env["GIT_INDEX_FILE"] = index
	}
	ctx, cancel := context.WithTimeout(ctx, timeout+readTimeout) // the guest keeps the time, unless it cannot
	defer cancel()
	id := "read-" + uuid.NewString()
	// The spool never fills before the limit, so nothing waits for an acknowledgement and nothing is dropped.
	e := guest.Exec{ID: id, Argv: argv, Env: env, Dir: r.dir, User: guest.Sprite, Timeout: timeout, Spool: guest.SpoolProtocol, SpoolBytes: int64(limit) + maxErrors + 1}
	if err := r.Guest.Start(ctx, e); err != nil {
		return nil, false, r.refuse(err, r.asked)
	}
	var errs []byte
	exit, err := r.Guest.Follow(ctx, id, guest.Offsets{}, func(c guest.Chunk) error {
		if c.Stream == guest.Stderr {
			errs = append(errs, c.Data[:min(len(c.Data), maxErrors-len(errs))]...)
			return nil
		}
		out = append(out, c.Data...)
		if len(out) > limit {
			return errEnough
		}
		return nil
	})
	defer r.forget(ctx, id, err != nil)
	switch {
	case errors.Is(err, errEnough):
		return out[:limit], true, nil
	case err != nil:
		return nil, false, r.refuse(err, r.asked)
	case exit.StartError != "":
		return nil, false, &gitError{*exit, exit.StartError}
	case exit.Code != 0:
		return nil, false, &gitError{*exit, string(errs)}
	}
	return out, false, nil
}

func (r *repository) forget(ctx context.Context, id string, running bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), gitTimeout)
	defer cancel()
	if running {
		_ = r.Guest.Signal(ctx, id, "SIGKILL") // its own deadline ends it otherwise
	}
	_ = r.Guest.Forget(ctx, id)
}

// git runs git itself; what it fails of is for people.
func (r *repository) git(ctx context.Context, index string, limit int, timeout time.Duration, args ...string) ([]byte, bool, error) {
	out, more, err := r.run(ctx, append([]string{"git", "--no-pager"}, args...), index, limit, timeout)
	var failed *gitError
	if errors.As(err, &failed) {
		return nil, false, r.commandFailed(failed)
	}
	return out, more, err
}

// GitStatus is the state of a repository.
type GitStatus struct {
	Path      string     `json:"path" doc:"the root of the work tree"`
	Branch    *string    `json:"branch" doc:"null when detached"`
	Head      string     `json:"head" doc:"the commit; empty before the first one"`
	Upstream  string     `json:"upstream"`
	Ahead     int        `json:"ahead"`
	Behind    int        `json:"behind"`
	Operation string     `json:"operation" doc:"merge, rebase, cherry-pick, revert or bisect in progress"`
	Entries   []GitEntry `json:"entries"`
	Truncated bool       `json:"truncated" doc:"there are more entries"`
}

// GitStatus tells the state of the repository of a path. untracked is normal (""), all or no.
func (s *Service) GitStatus(ctx context.Context, actor tenant.Actor, id uuid.UUID, p, untracked string) (GitStatus, error) {
	switch untracked {
	case "":
		untracked = "normal"
	case "normal", "all", "no":
	default:
		var v refusal.Validation
		v.Add("untracked", "must be normal, all or no")
		return GitStatus{}, v.Err()
	}
	r, err := s.repository(ctx, actor, id, p)
	if err != nil {
		return GitStatus{}, err
	}
	if r.absent {
		return GitStatus{}, r.refuse(&guest.FileError{Code: guest.ErrNotFound}, r.asked)
	}
	parsed, more, err := r.status(ctx, "--untracked-files="+untracked)
	if err != nil {
		return GitStatus{}, err
	}
	return GitStatus{
		Path: r.name(r.top), Branch: r.branch(parsed), Head: r.name(parsed.oid), Upstream: r.name(parsed.upstream), Ahead: parsed.ahead, Behind: parsed.behind,
		Operation: r.state, Entries: r.entries(parsed, MaxEntries), Truncated: more || parsed.cut,
	}, nil
}

// status reads the state of the repository. more: there is more than was read.
func (r *repository) status(ctx context.Context, flags ...string) (p porcelain, more bool, err error) {
	args := slices.Concat([]string{"status", "--porcelain=v2", "-z", "--branch", "--find-renames"}, flags, []string{"--"}, r.only)
	out, more, err := r.git(ctx, "", maxStatus, gitTimeout, args...)
	return parsePorcelain(string(out)), more, err
}

// branch is the name of the branch; nil when detached.
func (r *repository) branch(p porcelain) *string {
	if p.branch == "" {
		return nil
	}
	name := r.name(p.branch)
	return &name
}

// name is a path or another name as it is shown: no longer than one can be, whatever says that it is git, and in memory of its
// own, so that a few of them do not keep all that was read.
func (d *disk) name(s string) string {
	s = d.gate.String(s)
	return strings.ToValidUTF8(strings.Clone(s[:min(len(s), maxPath)]), "")
}

// entries are the first of what differs.
func (r *repository) entries(p porcelain, most int) []GitEntry {
	all := []GitEntry{}
	for _, e := range p.entries[:min(len(p.entries), most)] {
		e.Path, e.RenamedFrom = r.name(e.Path), r.name(e.RenamedFrom)
		all = append(all, e)
	}
	return all
}

// DiffInput says what to compare.
type DiffInput struct {
	Path      string
	Staged    bool   // the index with the last commit
	Ref       string // the work tree with this commit, branch or tag; with Staged: the index with it
	Untracked bool   // new files that git does not know yet count as added; compared with Ref, or the last commit
	MaxBytes  int64  // 0: DefaultBytes; held to MaxBytes
}

// Diff is what changed, as a unified diff without colours.
type Diff struct {
	Path      string `json:"path" doc:"the root of the work tree"`
	Diff      string `json:"diff"`
	Truncated bool   `json:"truncated" doc:"the diff is longer"`
}

// Diff compares. Binary files, and files larger than a mebibyte, are named and not compared line by line.
func (s *Service) Diff(ctx context.Context, actor tenant.Actor, id uuid.UUID, in DiffInput) (Diff, error) {
	if in.Ref != "" && !validRef(in.Ref) {
		return Diff{}, refusal.New(refusal.InvalidRef, "ref must be one commit, branch or tag.")
	}
	r, err := s.repository(ctx, actor, id, in.Path)
	if err != nil {
		return Diff{}, err
	}
	r.config = append(slices.Clip(r.config), [2]string{"core.bigFileThreshold", hugeFile})
	args := []string{"diff", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames"}
	if in.Staged {
		args = append(args, "--cached")
	}
	index := ""
	if in.Untracked {
		var done func()
		if index, done, err = r.withUntracked(ctx); err != nil {
			return Diff{}, err
		}
		defer done()
	}
	if in.Ref != "" || in.Untracked {
		commit, err := r.commit(ctx, in.Ref)
		if err != nil {
			return Diff{}, err
		}
		args = append(args, commit)
	}
	limit := clamp(in.MaxBytes)
	out, more, err := r.git(ctx, index, int(limit)+r.redact.Longest(), gitTimeout, append(append(args, "--"), r.only...)...)
	if err != nil {
		return Diff{}, err
	}
	if len(out) == 0 && r.absent {
		return Diff{}, r.refuse(&guest.FileError{Code: guest.ErrNotFound}, r.asked)
	}
	shown, cut := r.cut(out, limit)
	text := strings.ReplaceAll(strings.ToValidUTF8(string(trimRune(shown)), "\uFFFD"), "\x00", "\u2400")
	return Diff{Path: r.gate.String(r.top), Diff: text, Truncated: cut || more}, nil
}

// validRef refuses what git could take for an option, a range, or something that is not one name.
func validRef(ref string) bool {
	return len(ref) <= 255 && !strings.HasPrefix(ref, "-") && !strings.Contains(ref, "..") && !strings.Contains(ref, "@{") &&
		!strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`:?*[\^`, r) })
}

// commit resolves a ref ("": HEAD). Before the first commit HEAD is the empty tree.
func (r *repository) commit(ctx context.Context, ref string) (string, error) {
	name := ref
	if name == "" {
		name = "HEAD"
	}
	out, _, err := r.run(ctx, []string{"git", "rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}"}, "", maxErrors, gitTimeout)
	var failed *gitError
	switch {
	case err == nil:
		return strings.TrimSpace(string(out)), nil
	case !errors.As(err, &failed):
		return "", err
	case failed.exit.Code != 1:
		return "", r.commandFailed(failed)
	case name != "HEAD":
		return "", refusal.New(refusal.RefNotFound, "The repository has no commit, branch or tag %q.", r.gate.OneLine(ref, maxPath))
	}
	out, _, err = r.git(ctx, "", maxErrors, gitTimeout, "hash-object", "-t", "tree", "/dev/null")
	return strings.TrimSpace(string(out)), err
}

// indexScript copies the index to $1 and adds to the copy that untracked files will be added. The repository's own is
// not touched.
const indexScript = `
set -e
umask 077
mkdir -p "${1%/*}"
index=$(git rev-parse --git-path index)
[ ! -e "$index" ] || cp -- "$index" "$1"
git ls-files --others --exclude-standard -z -- "$2" | { LC_ALL=C grep -azv '/$' || true; } |
	GIT_INDEX_FILE=$1 git add --intent-to-add --pathspec-from-file=- --pathspec-file-nul
`

// withUntracked makes a copy of the index that knows the untracked files. done removes it.
func (r *repository) withUntracked(ctx context.Context) (index string, done func(), err error) {
	index = path.Join(patchDir, "index-"+uuid.NewString())
	done = func() { r.remove(ctx, index) }
	_, _, err = r.run(ctx, []string{"bash", "-c", indexScript, "index", index, r.only[0]}, "", maxErrors, gitTimeout)
	if err != nil {
		done()
		var failed *gitError
		if errors.As(err, &failed) {
			err = r.commandFailed(failed)
		}
		return "", nil, err
	}
	return index, done, nil
}

func (r *repository) remove(ctx context.Context, file string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), gitTimeout)
	defer cancel()
	_ = r.Guest.Remove(ctx, []string{guest.Home}, file) // it lies in a directory of ours, for nobody's eyes
}

// Patch is everything that differs from the last commit, new files included, in a form that git apply takes.
type Patch struct {
	Name string // of the file to download
	r    *repository
	src  io.ReadCloser
	text func([]byte) []byte
	file string
	ctx  context.Context
	rest []byte
	end  bool
}

// Patch makes a patch of the repository of a path. The caller closes it. A file that holds a secret is redacted in it.
func (s *Service) Patch(ctx context.Context, actor tenant.Actor, id uuid.UUID, p string) (*Patch, error) {
	r, err := s.repository(ctx, actor, id, p)
	if err != nil {
		return nil, err
	}
	if r.absent {
		return nil, r.refuse(&guest.FileError{Code: guest.ErrNotFound}, r.asked)
	}
	// Names that no text can hold are quoted, so that git apply finds them.
	r.config = append(slices.Clip(r.config), [2]string{"core.quotePath", "true"})
	index, done, err := r.withUntracked(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	commit, err := r.commit(ctx, "")
	if err != nil {
		return nil, err
	}
	// It is written whole before its first byte is sent: git that fails half way must not look like a short patch.
	file := path.Join(patchDir, "patch-"+uuid.NewString())
	_, _, err = r.git(ctx, index, maxErrors, patchTimeout, append([]string{
		"diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames", "--output=" + file, commit, "--"}, r.only...)...)
	if err != nil {
		r.remove(ctx, file)
		return nil, err
	}
	src, size, err := r.Guest.OpenFile(ctx, []string{guest.Home}, file)
	if err != nil {
		r.remove(ctx, file)
		return nil, r.refuse(err, file)
	}
	if size > maxPatch {
		src.Close()
		r.remove(ctx, file)
		return nil, refusal.New(refusal.CommandFailed, "The patch has %d bytes; at most %d can be downloaded. Choose a path inside the repository.", size, int64(maxPatch)).
			With("exit_code", 0).With("output", "")
	}
	return &Patch{Name: fileName(path.Base(r.top)) + ".patch", r: r, src: src, file: file, ctx: ctx, text: r.stream()}, nil
}

// stream redacts bytes that come in pieces; nil is the end.
func (d *disk) stream() func([]byte) []byte {
	t := d.gate.Stream()
	return func(b []byte) []byte {
		if b == nil {
			return []byte(t.Flush())
		}
		return []byte(t.Write(b))
	}
}

// Read reads the patch, redacted.
func (p *Patch) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.end {
			return 0, io.EOF
		}
		piece := make([]byte, 64<<10)
		n, err := p.src.Read(piece)
		p.rest = p.text(piece[:n:n])
		if errors.Is(err, io.EOF) {
			p.end = true
			p.rest = append(p.rest, p.text(nil)...)
		} else if err != nil {
			return 0, err
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// Close removes the patch from the machine.
func (p *Patch) Close() error {
	err := p.src.Close()
	p.r.remove(p.ctx, p.file)
	return err
}

// fileName keeps a name that can stand in a header and in any file system.
func fileName(name string) string {
	keep := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}
	name = strings.TrimLeft(strings.Map(keep, name), ".-")
	if name == "" {
		return "changes"
	}
	return name[:min(len(name), 100)]
}
