package files_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/files"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/testworld"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox/guest"
)

func TestMain(m *testing.M) { os.Exit(workspacetest.Main(m)) }

// desk is a workspace that is up, and what reads its disk.
type desk struct {
	*workspacetest.World
	*files.Service
	id uuid.UUID
}

const (
	envSecret  = "hush-of-the-environment"
	liveSecret = "hush-of-a-conversation-token"
)

func newDesk(t *testing.T, change func(*workspacetest.World, *environment.Input), options ...workspacetest.Option) *desk {
	t.Helper()
	w := workspacetest.New(t, options...)
	w.Occupants.Set(nil, secret.New(liveSecret))
	in := environment.New()
	in.Name = "env"
	if change != nil {
		change(w, &in)
	}
	env, err := w.Environments.Create(t.Context(), w.Owner.Actor, in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Environments.PutSecret(t.Context(), w.Owner.Actor, env.ID, environment.SecretInput{Key: "HUSH", Value: secret.New(envSecret)}); err != nil {
		t.Fatal(err)
	}
	ws, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: "ws", EnvironmentID: env.ID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Workspaces.Ensure(t.Context(), w.Owner.TenantID, ws.ID, workspace.Caller{}); err != nil {
		t.Fatal(err)
	}
	return &desk{World: w, Service: files.New(w.Workspaces, w.Occupants), id: ws.ID}
}

// sh runs a script in the machine.
func (d *desk) sh(t *testing.T, script string) string {
	t.Helper()
	return d.as(t, guest.Sprite, script)
}

func (d *desk) as(t *testing.T, user guest.User, script string) string {
	t.Helper()
	up, err := d.Workspaces.Peek(t.Context(), d.Owner.TenantID, d.id)
	if err != nil {
		t.Fatal(err)
	}
	out, errs, exit, err := up.Guest.Run(t.Context(), guest.Exec{
		ID: uuid.NewString(), Argv: []string{"bash", "-ec", script}, User: user, Spool: guest.SpoolLog, Dir: guest.Home,
		Env: map[string]string{"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com",
			"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "init.defaultBranch", "GIT_CONFIG_VALUE_0": "main"},
	})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%v, exit %d %s\n%s%s", err, exit.Code, exit.Signal, out, errs)
	}
	return string(out)
}

func code(err error) refusal.Code {
	if r, ok := refusal.As(err); ok {
		return r.Code
	}
	if err != nil {
		return refusal.Code("not a refusal: " + err.Error())
	}
	return ""
}

func TestADirectoryIsListedWithDirectoriesFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `mkdir -p d/zdir d/adir && cd d && echo 12345 > file && chmod 640 file && ln -s /etc/passwd link && mkfifo pipe && echo x > hush-of-the-environment && touch .hidden`)
	l, err := d.Files(t.Context(), d.Owner.Actor, d.id, "d")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range l.Entries {
		got = append(got, e.Name+":"+e.Type+":"+e.Target)
		if e.ModifiedAt.IsZero() || e.ModifiedAt.Before(time.Now().Add(-time.Hour)) {
			t.Errorf("%s was modified at %s", e.Name, e.ModifiedAt)
		}
	}
	want := []string{"adir:directory:", "zdir:directory:", ".hidden:file:", "file:file:", "[REDACTED]:file:", "link:symlink:/etc/passwd", "pipe:other:"}
	if !slices.Equal(got, want) || l.Truncated || l.Path != "/home/sprite/d" {
		t.Errorf("%v, truncated %v, path %s", got, l.Truncated, l.Path)
	}
	i := slices.IndexFunc(l.Entries, func(e files.Entry) bool { return e.Name == "file" })
	if e := l.Entries[i]; e.Size != 6 || e.Mode != "-rw-r-----" {
		t.Errorf("%+v", e)
	}
	d.sh(t, `mkdir many && cd many && for i in $(seq 2003); do : > f$i; done; mkdir last`)
	if l, err = d.Files(t.Context(), d.Owner.Actor, d.id, "many"); err != nil || len(l.Entries) != files.MaxEntries || !l.Truncated || l.Entries[0].Name != "last" {
		t.Errorf("%d entries, truncated %v, %v", len(l.Entries), l.Truncated, err)
	}
	if l, err = d.Files(t.Context(), d.Owner.Actor, d.id, ""); err != nil || l.Path != "/home/sprite" {
		t.Errorf("no path: %s %v", l.Path, err)
	}
}

// Nothing outside of the roots can be read, whatever the path says and wherever links lead.
func TestPathsNeverLeadOut(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(w *workspacetest.World, in *environment.Input) {
		repo := w.Outside.Git.Add("repo", testworld.Files{"README": "x\n"})
		in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: "/srv/app"}}
	})
	d.as(t, guest.Root, `mkdir -p /srv/other /srv/live && echo secret > /srv/other/file && chmod 777 /srv/live && echo live > /srv/live/file && mkdir /home/sprite/locked && chmod 700 /home/sprite/locked && echo x > /home/sprite/rootonly && chmod 600 /home/sprite/rootonly`)
	d.sh(t, `ln -s / root; ln -s /srv/other/file direct; ln -s root nested; mkdir dir; ln -s ../../../etc dir/up; ln -s loop loop; echo in > dir/file; ln -s dir/file fine; ln -s /srv/app/README mount; mkfifo pipe`)
	d.Occupants.Set([]string{"/srv/live"})
	for p, want := range map[string]refusal.Code{
		"../../etc/passwd": refusal.PathOutside, "/etc/passwd": refusal.PathOutside, "root/etc/passwd": refusal.PathOutside, "nested/etc/passwd": refusal.PathOutside,
		"direct": refusal.PathOutside, "dir/up/passwd": refusal.PathOutside, "/srv/other/file": refusal.PathOutside, "/proc/self/environ": refusal.PathOutside,
		"/home/sprite2/x": refusal.PathOutside, "..%2f..%2fetc/passwd": refusal.PathNotFound, "dir/file\x00.txt": refusal.InvalidPath, "a\xffb": refusal.InvalidPath,
		strings.Repeat("a/", 3000): refusal.InvalidPath, "dir": refusal.IsADirectory, "dir/file/x": refusal.NotADirectory, "nothing": refusal.PathNotFound,
		"rootonly": refusal.PathUnreadable, "fine": "", "dir/../dir/file": "", "/srv/app/README": "", "mount": "", "/srv/live/file": "", "/home/sprite/dir/./file": "",
	} {
		_, err := d.File(t.Context(), d.Owner.Actor, d.id, p, 0)
		if got := code(err); got != want {
			t.Errorf("file %q: %s, want %q", p, got, want)
		}
	}
	for p, want := range map[string]refusal.Code{
		"/": refusal.PathOutside, "/srv": refusal.PathOutside, "root": refusal.PathOutside, "dir/up": refusal.PathOutside, "dir/file": refusal.NotADirectory,
		"locked": refusal.PathUnreadable, "/srv/app": "", "/srv/live": "",
	} {
		_, err := d.Files(t.Context(), d.Owner.Actor, d.id, p)
		if got := code(err); got != want {
			t.Errorf("files %q: %s, want %q", p, got, want)
		}
	}
	for _, p := range []string{"loop", "pipe"} {
		if _, err := d.File(t.Context(), d.Owner.Actor, d.id, p, 0); err == nil {
			t.Errorf("%s was read", p)
		}
	}
	_, err := d.File(t.Context(), d.Owner.Actor, d.id, "/etc/passwd", 0)
	if r, _ := refusal.As(err); !slices.Equal(r.Fields["roots"].([]string), []string{"/home/sprite", "/srv/app", "/srv/live"}) {
		t.Errorf("the refusal names %v", r.Fields["roots"])
	}
	if _, err := d.File(t.Context(), d.Account(t).Actor, d.id, "fine", 0); code(err) != refusal.NotFound {
		t.Errorf("another account: %v", err)
	}
}

func TestAFileSaysWhatItIsAndHowMuchOfItIsShown(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `printf 'héllo\n' > text; printf 'a\0b' > nul; printf '\377\376' > latin; : > empty; head -c 300000 /dev/zero | tr '\0' x > long; head -c 5000000 /dev/zero | tr '\0' y > huge; printf 'ab\303\251cd' > split`)
	for _, c := range []struct {
		path      string
		max       int64
		encoding  string
		content   string
		size      int64
		truncated bool
	}{
		{"text", 0, "utf-8", "héllo\n", 7, false},
		{"text", 7, "utf-8", "héllo\n", 7, false},
		{"text", 6, "utf-8", "héllo", 7, true},
		{"split", 3, "utf-8", "ab", 6, true}, // never half a character
		{"split", 4, "utf-8", "abé", 6, true},
		{"empty", 0, "utf-8", "", 0, false},
		{"nul", 0, "base64", "YQBi", 3, false},
		{"latin", 0, "base64", "//4=", 2, false},
		{"long", 0, "utf-8", strings.Repeat("x", 256<<10), 300000, true},
		{"huge", 1 << 40, "utf-8", strings.Repeat("y", 4<<20), 5000000, true},
		{"long", -5, "utf-8", strings.Repeat("x", 256<<10), 300000, true},
	} {
		got, err := d.File(t.Context(), d.Owner.Actor, d.id, c.path, c.max)
		if err != nil || got.Encoding != c.encoding || got.Content != c.content || got.Size != c.size || got.Truncated != c.truncated {
			t.Errorf("%s, at most %d: %s, %d bytes shown of %d, truncated %v, %v", c.path, c.max, got.Encoding, len(got.Content), got.Size, got.Truncated, err)
		}
	}
}

// Wherever the cut falls, no piece of a secret is shown: not in text, not in binary.
func TestACutNeverShowsTheStartOfASecret(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `printf 'before `+envSecret+` between `+liveSecret+` after' > text; printf 'before `+envSecret+`\0 between `+liveSecret+` after' > binary`)
	whole := len("before " + envSecret + " between " + liveSecret + " after")
	for _, p := range []string{"text", "binary"} {
		for n := 1; n <= whole+2; n++ {
			got, err := d.File(t.Context(), d.Owner.Actor, d.id, p, int64(n))
			if err != nil {
				t.Fatal(err)
			}
			shown := got.Content
			if got.Encoding == "base64" {
				raw, err := base64.StdEncoding.DecodeString(shown)
				if err != nil {
					t.Fatal(err)
				}
				shown = string(raw)
			}
			for _, s := range []string{envSecret, liveSecret} {
				if strings.Contains(shown, s[:6]) {
					t.Fatalf("%s cut at %d shows %q", p, n, shown)
				}
			}
			if !strings.HasPrefix("before [REDACTED]", shown[:min(len(shown), len("before [REDACTED]"))]) {
				t.Fatalf("%s cut at %d shows %q", p, n, shown)
			}
		}
	}
	got, err := d.File(t.Context(), d.Owner.Actor, d.id, "text", 0)
	if err != nil || got.Content != "before [REDACTED] between [REDACTED] after" || got.Truncated {
		t.Errorf("%+v %v", got, err)
	}
}

// A machine holds what its secrets were as it was built, whatever has become of them, until it is built anew.
func TestASecretThatWasReplacedOrDeletedStaysMaskedUntilARebuild(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	ctx, actor := t.Context(), d.Owner.Actor
	d.sh(t, `mkdir r && cd r && git init -q && echo a > hush-of-the-environment-file && git add . && git commit -qm 'hush-of-the-environment here' && echo hush-of-the-environment >> hush-of-the-environment-file`)
	ws, err := d.Workspaces.Get(ctx, actor, d.id)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := d.Instance.Owner(t).Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`update machines set error = '{"message":"hush-of-the-environment is refused"}'`)
	// shown is all that is told of the disk.
	shown := func() string {
		t.Helper()
		var out bytes.Buffer
		add := func(what any, err error) {
			t.Helper()
			b, failed := json.Marshal(what)
			if err != nil || failed != nil {
				t.Fatal(err, failed)
			}
			out.Write(b)
		}
		add(d.File(ctx, actor, d.id, ".env", 0))
		add(d.Files(ctx, actor, d.id, "r"))
		add(d.GitStatus(ctx, actor, d.id, "r", ""))
		add(d.Diff(ctx, actor, d.id, files.DiffInput{Path: "r"}))
		add(d.RebuildPreview(ctx, actor, d.id))
		add(d.Workspaces.Diagnose(ctx, actor, d.id))
		return out.String()
	}
	check := func(when string) {
		t.Helper()
		if got := shown(); strings.Contains(got, "hush-of") || strings.Count(got, secret.Mask) != 11 {
			t.Errorf("%s: %d masks in %s", when, strings.Count(got, secret.Mask), got)
		}
	}
	check("as it is")
	put := environment.SecretInput{Key: "HUSH", Value: secret.New("another-of-the-environment")}
	if _, err := d.Environments.PutSecret(ctx, actor, *ws.EnvironmentID, put); err != nil {
		t.Fatal(err)
	}
	check("replaced")
	if err := d.Environments.DeleteSecret(ctx, actor, *ws.EnvironmentID, "HUSH"); err != nil {
		t.Fatal(err)
	}
	check("deleted")
	// The rebuild's own log masks it too, and then it is forgotten: the machine was made long after.
	if _, err := d.Environments.Update(ctx, actor, *ws.EnvironmentID, func(in *environment.Input) error {
		in.SetupScript = "echo it was hush-of-the-environment; cat ~/.env"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	exec("update retired_secrets set retired_at = retired_at - interval '1 hour'")
	if _, err := d.Workspaces.Rebuild(ctx, actor, d.id, workspace.RebuildInput{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Workspaces.Ensure(ctx, d.Owner.TenantID, d.id, workspace.Caller{}); err != nil {
		t.Fatal(err)
	}
	log, err := d.Workspaces.SetupLog(ctx, actor, d.id)
	if err != nil || !strings.HasPrefix(log.Steps[len(log.Steps)-1].Output, "it was "+secret.Mask+"\n") {
		t.Errorf("the log: %+v, %v", log, err)
	}
	if masks, err := d.Workspaces.Masks(ctx, d.Owner.TenantID, d.id); err != nil || len(masks) != 0 {
		t.Errorf("%d masks after the rebuild, %v", len(masks), err)
	}
}

func TestAReadOfAMachineThatIsNotUpSaysItsStatus(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	ws, err := d.Workspaces.Get(t.Context(), d.Owner.Actor, d.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Provider.Stop(t.Context(), "mg-"+ws.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	_, list := d.Files(t.Context(), d.Owner.Actor, d.id, "")
	_, file := d.File(t.Context(), d.Owner.Actor, d.id, "x", 0)
	_, status := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "", "")
	_, diff := d.Diff(t.Context(), d.Owner.Actor, d.id, files.DiffInput{})
	_, patch := d.Patch(t.Context(), d.Owner.Actor, d.id, "")
	for i, err := range []error{list, file, status, diff, patch} {
		if r, _ := refusal.As(err); code(err) != refusal.SandboxNotReady || r.Fields["status"] != "suspended" {
			t.Errorf("read %d: %v", i, err)
		}
	}
	info, err := d.Provider.Inspect(t.Context(), "mg-"+ws.SandboxID.String())
	if err != nil || info.State != "stopped" {
		t.Errorf("a read woke it: %+v %v", info, err)
	}
	if all, err := d.Workspaces.List(t.Context(), d.Owner.Actor, false, input.Page{}); err != nil || all.Items[0].MachineStatus != "suspended" {
		t.Errorf("%+v %v", all, err)
	}
}

// repositories lays out repositories of every awkward kind.
const repositories = `
mkdir -p git && cd git
new() { git init -q "$1"; cd "$1"; }
commit() { git add -A; git commit -qm "$1"; }

(new plain; printf 'one\ntwo\n' > a; echo b > b; printf 'bin\0ary' > bin; commit first
 printf 'one\nTWO\n' > a; git mv b 'renamed -> b'; rm bin; echo new > 'un tracked'; printf 'x' > "$(printf 'new\nline')"; printf 'x' > "$(printf 'inv\377alid')"; echo staged > staged; git add staged; echo more >> staged)
(new empty; echo first > file; git add file; echo other > untracked)
(new detached; echo a > a; commit one; git checkout -q --detach)
(new conflict; echo base > f; commit base; git checkout -qb side; echo side > f; commit side; git checkout -q main; echo main > f; commit main; git merge side >/dev/null 2>&1 || true)
git init -q --bare bare.git
(new linked; echo a > a; commit one; git worktree add -q ../tree)
(cd tree; echo changed > a)
(new super; git -c protocol.file.allow=always submodule --quiet add ../plain sub 2>/dev/null; commit sub; cd sub; echo dirty > dirty)
(new corrupt; echo a > a; commit one; printf 'garbage' > .git/index)
(new tracking; echo a > a; commit one; git clone -q . ../clone)
(cd clone; echo b > b; commit two; echo c > c)
(new ignoring; printf '*.log\n' > .gitignore; commit one; touch x.log y)
`

func TestTheStateOfEveryKindOfRepository(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, repositories)
	d.as(t, guest.Root, `git init -q /home/sprite/git/owned && chmod -R a+rX /home/sprite/git/owned`)
	type state struct {
		branch    string // "-": detached
		noCommit  bool
		operation string
		entries   string
	}
	for p, want := range map[string]state{
		"plain":      {"main", false, "", "M:worktree a | D:worktree bin | R:index renamed -> b < b | AM staged | ?? inv\uFFFDalid | ?? new\nline | ?? un tracked"},
		"empty":      {"main", true, "", "A:index file | ?? untracked"},
		"detached":   {"-", false, "", ""},
		"conflict":   {"main", false, "merge", "UU f !"},
		"tree":       {"tree", false, "", "M:worktree a"},
		"super":      {"main", false, "", "M:worktree sub submodule"},
		"clone":      {"main", false, "", "?? c"},
		"ignoring":   {"main", false, "", "?? y"},
		"owned":      {"main", true, "", ""},
		"plain/a":    {"main", false, "", "M:worktree a"},
		"plain/.git": {},
	} {
		got, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "git/"+p, "")
		if p == "plain/.git" {
			if code(err) != refusal.NotARepository {
				t.Errorf("inside of .git: %v", err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		branch := "-"
		if got.Branch != nil {
			branch = *got.Branch
		}
		var entries []string
		for _, e := range got.Entries {
			s := e.Index + e.Worktree
			if e.Index == "" {
				s = e.Worktree + ":worktree"
			} else if e.Worktree == "" {
				s = e.Index + ":index"
			}
			s += " " + e.Path
			if e.RenamedFrom != "" {
				s += " < " + e.RenamedFrom
			}
			if e.Conflict {
				s += " !"
			}
			if e.Submodule {
				s += " submodule"
			}
			entries = append(entries, s)
		}
		if text := strings.Join(entries, " | "); branch != want.branch || (got.Head == "") != want.noCommit || got.Operation != want.operation || text != want.entries {
			t.Errorf("%s: branch %s, head %q, operation %q, entries %q", p, branch, got.Head, got.Operation, text)
		}
		if p == "clone" && (got.Upstream != "origin/main" || got.Ahead != 1 || got.Behind != 0 || got.Path != "/home/sprite/git/clone") {
			t.Errorf("clone: %+v", got)
		}
	}
	for p, want := range map[string]refusal.Code{
		"git": refusal.NotARepository, "git/bare.git": refusal.NotARepository, "git/nothing": refusal.PathNotFound, "git/corrupt": refusal.CommandFailed, "/etc": refusal.PathOutside,
	} {
		_, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, p, "")
		if got := code(err); got != want {
			t.Errorf("%s: %s, want %s", p, got, want)
		}
		if r, _ := refusal.As(err); want == refusal.CommandFailed && (r.Fields["exit_code"] != 128 || !strings.Contains(r.Fields["output"].(string), "index file")) {
			t.Errorf("%s: %+v", p, r)
		}
	}
	if got, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "git/plain", "no"); err != nil || len(got.Entries) != 4 {
		t.Errorf("without untracked files: %+v %v", got.Entries, err)
	}
	if _, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "git/plain", "some"); code(err) != refusal.ValidationFailed {
		t.Errorf("untracked=some: %v", err)
	}
	// A repository above a root was never offered.
	d.as(t, guest.Root, `mkdir -p /srv/repo/sub && cd /srv/repo && git init -q . && chmod -R a+rwX /srv/repo`)
	d.Occupants.Set([]string{"/srv/repo/sub"})
	if _, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "/srv/repo/sub", ""); code(err) != refusal.NotARepository {
		t.Errorf("a repository above the root: %v", err)
	}
}

func TestMoreChangesThanAreShownAreSaid(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `git init -q r && cd r && for i in $(seq 2005); do : > f$i; done`)
	got, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "r", "all")
	if err != nil || len(got.Entries) != files.MaxEntries || !got.Truncated {
		t.Errorf("%d entries, truncated %v, %v", len(got.Entries), got.Truncated, err)
	}
}

func TestDiffsShowWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, repositories+`
cd plain; head -c 3000000 /dev/zero | tr '\0' z > big; git add big; git commit -qm big big; echo >> big
git tag v1 HEAD~1; git branch other`)
	diff := func(in files.DiffInput) string {
		t.Helper()
		in.Path = "git/" + in.Path
		got, err := d.Diff(t.Context(), d.Owner.Actor, d.id, in)
		if err != nil {
			t.Fatalf("%+v: %v", in, err)
		}
		if got.Truncated {
			t.Errorf("%+v is truncated", in)
		}
		return got.Diff
	}
	for _, c := range []struct {
		in    files.DiffInput
		want  []string
		never []string
	}{
		{files.DiffInput{Path: "plain"}, []string{"-two\n+TWO\n", "+more\n", "Binary files a/bin and /dev/null differ", "Binary files a/big and b/big differ"}, []string{"un tracked", "rename from", "zzzz"}},
		{files.DiffInput{Path: "plain", Staged: true}, []string{"rename from b\nrename to renamed -> b", "+staged\n"}, []string{"+TWO", "+more"}},
		{files.DiffInput{Path: "plain", Ref: "v1"}, []string{"-two\n+TWO\n", "+++ b/staged\n", "Binary files /dev/null and b/big differ"}, []string{"un tracked"}},
		{files.DiffInput{Path: "plain", Ref: "HEAD"}, []string{"-two\n+TWO\n", "+staged\n+more\n"}, []string{"un tracked"}},
		{files.DiffInput{Path: "plain", Untracked: true}, []string{"-two\n+TWO\n", "+++ b/un tracked\t\n", "+new\n", "+staged\n+more\n", "rename to renamed -> b", "inv\uFFFDalid"}, nil},
		{files.DiffInput{Path: "plain/a"}, []string{"-two\n+TWO\n"}, []string{"bin", "more"}},
		{files.DiffInput{Path: "plain/bin"}, []string{"deleted file mode"}, []string{"TWO"}}, // it is not there any more
		{files.DiffInput{Path: "empty"}, nil, []string{"diff"}},
		{files.DiffInput{Path: "empty", Staged: true}, []string{"new file mode 100644", "+first\n"}, []string{"untracked"}},
		{files.DiffInput{Path: "empty", Untracked: true}, []string{"+first\n", "+++ b/untracked\n", "+other\n"}, nil},
		{files.DiffInput{Path: "empty", Ref: "HEAD"}, []string{"+first\n"}, []string{"untracked"}},
		{files.DiffInput{Path: "conflict"}, []string{"diff --cc f"}, nil},
	} {
		got := diff(c.in)
		for _, s := range c.want {
			if !strings.Contains(got, s) {
				t.Errorf("%+v: no %q in\n%s", c.in, s, got)
			}
		}
		for _, s := range c.never {
			if strings.Contains(got, s) {
				t.Errorf("%+v: %q in\n%s", c.in, s, got)
			}
		}
	}
	for ref, want := range map[string]refusal.Code{
		"nothing": refusal.RefNotFound, "--output=/tmp/x": refusal.InvalidRef, "a..b": refusal.InvalidRef, "HEAD^": refusal.InvalidRef, "v1:a": refusal.InvalidRef,
		"@{1}": refusal.InvalidRef, "a b": refusal.InvalidRef, "other": "",
	} {
		if _, err := d.Diff(t.Context(), d.Owner.Actor, d.id, files.DiffInput{Path: "git/plain", Ref: ref}); code(err) != want {
			t.Errorf("ref %q: %v, want %q", ref, err, want)
		}
	}
	for p, want := range map[string]refusal.Code{"git/plain/nothing": refusal.PathNotFound, "git/corrupt": refusal.CommandFailed, "git": refusal.NotARepository} {
		if _, err := d.Diff(t.Context(), d.Owner.Actor, d.id, files.DiffInput{Path: p}); code(err) != want {
			t.Errorf("%s: %v, want %s", p, err, want)
		}
	}
	// The repository's own index is as it was.
	if got := d.sh(t, "cd git/plain && git diff --cached --name-only"); got != "renamed -> b\nstaged\n" {
		t.Errorf("the index holds %q", got)
	}
	if got := d.sh(t, "ls -A ~/.managoat/tmp"); got != "" {
		t.Errorf("left behind: %s", got)
	}
}

func TestALongDiffIsCutAndSaysSoWithoutAPieceOfASecret(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `git init -q r && cd r && git commit -q --allow-empty -m x && (echo start; echo `+envSecret+`; seq 100000) > f && git add f`)
	got, err := d.Diff(t.Context(), d.Owner.Actor, d.id, files.DiffInput{Path: "r", Staged: true, MaxBytes: 4 << 20})
	if err != nil || got.Truncated || !strings.HasSuffix(got.Diff, "+100000\n") {
		t.Errorf("whole: truncated %v, %v", got.Truncated, err)
	}
	at := int64(strings.Index(got.Diff, "[REDACTED]"))
	if at < 0 {
		t.Fatal("the secret is not where this test looks for it")
	}
	seen := false
	for n := at - 1; n < at+int64(len(envSecret))+12; n += 3 {
		got, err := d.Diff(t.Context(), d.Owner.Actor, d.id, files.DiffInput{Path: "r", Staged: true, MaxBytes: n})
		if err != nil || !got.Truncated {
			t.Fatalf("at most %d: truncated %v, %v", n, got.Truncated, err)
		}
		if strings.Contains(got.Diff, envSecret[:6]) {
			t.Fatalf("cut at %d shows %q", n, got.Diff)
		}
		seen = seen || strings.Contains(got.Diff, "[REDACTED]")
	}
	if !seen {
		t.Error("no cut came after the secret: this test looks in the wrong place")
	}
}

// Nothing that a repository configures is run by looking at it.
func TestAHostileRepositoryRunsNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `
mkdir evil && cd evil && git init -q . && echo a > a && echo b > b.evil && git add -A && git commit -qm one
cat > /home/sprite/trap <<'X'
#!/bin/sh
touch "/home/sprite/sprung-$1"
cat 2>/dev/null
X
chmod +x /home/sprite/trap
trap=/home/sprite/trap
git config core.fsmonitor "$trap fsmonitor"; git config diff.external "$trap external"; git config core.pager "$trap pager"; git config core.sshCommand "$trap ssh"
git config diff.evil.textconv "$trap textconv"; git config diff.evil.command "$trap driver"
git config filter.evil.clean "$trap clean"; git config filter.evil.smudge "$trap smudge"; git config filter.evil.process "$trap process"; git config filter.evil.required true
git config 'filter.e.v=il.clean' "$trap odd"; git config alias.status "!$trap alias"; git config core.hooksPath /home/sprite/hooks
mkdir -p /home/sprite/hooks; for h in post-index-change pre-commit fsmonitor-watchman; do printf '#!/bin/sh\n/home/sprite/trap %s\n' $h > /home/sprite/hooks/$h; chmod +x /home/sprite/hooks/$h; done
printf '*.evil filter=evil diff=evil\na filter=e.v=il diff=evil\n' > .gitattributes
git config --global core.fsmonitor "$trap global"
rm -f /home/sprite/sprung-*
echo changed > a; echo changed > b.evil; echo new > new.evil`)
	d.sh(t, "rm -f ~/sprung-*")
	if _, err := d.GitStatus(t.Context(), d.Owner.Actor, d.id, "evil", ""); err != nil {
		t.Error(err)
	}
	for _, in := range []files.DiffInput{{}, {Staged: true}, {Ref: "HEAD"}, {Untracked: true}} {
		in.Path = "evil"
		if got, err := d.Diff(t.Context(), d.Owner.Actor, d.id, in); err != nil || !in.Staged && !strings.Contains(got.Diff, "+changed") {
			t.Errorf("%+v: %q %v", in, got.Diff, err)
		}
	}
	if _, err := d.Patch(t.Context(), d.Owner.Actor, d.id, "evil"); err != nil {
		t.Error(err)
	}
	if got := d.sh(t, "ls ~ | grep sprung || true"); got != "" {
		t.Errorf("was run: %s", got)
	}
	// A work tree or a git directory that leads out is not shown.
	d.sh(t, `mkdir out && cd out && git init -q . && git config core.worktree /etc; mkdir ~/out2 && cp -r ~/evil/.git /tmp/elsewhere && echo 'gitdir: /tmp/elsewhere' > ~/out2/.git`)
	for _, p := range []string{"out", "out2"} {
		if got, err := d.Diff(t.Context(), d.Owner.Actor, d.id, files.DiffInput{Path: p}); code(err) != refusal.NotARepository {
			t.Errorf("%s: %q %v", p, got.Diff, err)
		}
	}
}

// The patch holds all that changed: applied to the commit it makes the same tree.
func TestThePatchMakesTheSameTreeAgain(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.sh(t, `git init -q r && cd r && mkdir sub && printf 'one\ntwo\n' > a && echo gone > gone && head -c 3000 /dev/urandom > bin && echo x > sub/x && git add -A && git commit -qm one
printf 'one\nTWO' > a; rm gone; head -c 200000 /dev/urandom > bin; git mv sub/x sub/y; echo 'new file' > 'new é'; head -c 1500000 /dev/urandom > newbin; echo s > staged; git add staged; chmod +x sub/y; echo i > "$(printf 'inv\377alid')"`)
	tree := func(dir string) string {
		return d.sh(t, "cd "+dir+" && cp .git/index /tmp/i && GIT_INDEX_FILE=/tmp/i git add -A && GIT_INDEX_FILE=/tmp/i git write-tree")
	}
	p, err := d.Patch(t.Context(), d.Owner.Actor, d.id, "r")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil || p.Name != "r.patch" {
		t.Errorf("%q %v", p.Name, err)
	}
	up, err := d.Workspaces.Peek(t.Context(), d.Owner.TenantID, d.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Guest.WriteFile(t.Context(), []string{guest.Home}, filepath.Join(guest.Home, "the.patch"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	d.sh(t, `git clone -q r again && cd again && git apply ../the.patch`)
	if a, b := tree("r"), tree("again"); a != b {
		t.Errorf("trees %s and %s\n%s", a, b, data[:min(len(data), 2000)])
	}
	if got := d.sh(t, "ls -A ~/.managoat/tmp; cd r; git diff --cached --name-only"); got != "staged\nsub/y\n" && !strings.HasSuffix(got, "staged\nsub/x\nsub/y\n") {
		t.Errorf("left behind: %q", got)
	}
	d.sh(t, `cd r && echo `+envSecret+` > secret`)
	if p, err = d.Patch(t.Context(), d.Owner.Actor, d.id, "r/secret"); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if data, err = io.ReadAll(p); err != nil || bytes.Contains(data, []byte(envSecret)) || !bytes.Contains(data, []byte("[REDACTED]")) {
		t.Errorf("%v\n%s", err, data)
	}
}
