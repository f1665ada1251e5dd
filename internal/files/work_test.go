package files_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/internal/files"
	"managoat/internal/machine"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/testworld"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox/guest"
)

// A preview names what a rebuild takes with it: of a machine that is up what is there now, of a parked one what was there when
// it parked, and of one that is gone, that it is.
func TestAPreviewOfARebuildNamesTheWorkThatIsNowhereElse(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(w *workspacetest.World, in *environment.Input) {
		repo := w.Outside.Git.Add("repo", testworld.Files{"README": "x\n", "gone": "y\n"})
		in.Repositories = []environment.Repository{{URL: repo.URL, MountPath: "/srv/app"}, {URL: repo.URL, MountPath: "/home/sprite/clean"}}
	}, func(h *workspacetest.Host) { h.Lives = workspace.Lifetimes{Idle: time.Hour} })
	d.sh(t, `
cd /srv/app
echo stash >> README; git stash -q
echo committed > one; git add one; git commit -qm 'first that only lies here'
git checkout -qb side; echo side > side; git add side; git commit -qm 'hush-of-the-environment and more'; git checkout -q -
echo changed >> README; git rm -q gone; echo new > 'a new file'; mkdir folder; echo x > folder/x
printf '#!/bin/sh\ntouch /tmp/executed\n' > /tmp/evil; chmod +x /tmp/evil
for key in core.fsmonitor gpg.program diff.external core.pager core.sshCommand uploadpack.packObjectsHook; do git config $key /tmp/evil; done
git config log.showSignature true; git config status.showStash true
ln -s /tmp/evil .git/hooks/post-index-change
mkdir ~/made; cd ~/made; git init -q; echo a > a; git add a; git commit -qm alone; git checkout -q --detach
mkdir -p ~/damaged/deep; cd ~/damaged/deep; git init -q; echo a > a; git add a; git commit -qm one; printf garbage > .git/index
mkdir -p ~/clean/node_modules/lib; git init -q ~/clean/node_modules/lib; echo node_modules >> ~/clean/.git/info/exclude
ln -s /srv/app ~/app`)
	turn := workspace.OpenTurn{ConversationID: uuid.New(), Title: "Mend the cart", TurnID: uuid.New(), TurnNumber: 4, Status: workspace.TurnRunning}
	d.Occupants.Open(turn)
	preview := func() files.Preview {
		t.Helper()
		p, err := d.RebuildPreview(t.Context(), d.Owner.Actor, d.id)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	check := func(p files.Preview, source string) {
		t.Helper()
		if p.Source != source || p.Work == nil || p.KnownAt == nil || time.Since(*p.KnownAt).Abs() > time.Hour || p.Note == "" || p.DiskBytes == 0 {
			t.Fatalf("%+v", p)
		}
		w := p.Work
		if len(w.Repositories) != 3 || w.Clean != 1 || w.Truncated {
			t.Fatalf("%+v", w)
		}
		app, damaged, made := w.Repositories[0], w.Repositories[1], w.Repositories[2]
		if app.Path != "/srv/app" || *app.Branch != "main" || app.Staged != 1 || app.Unstaged != 1 || app.Untracked != 2 || app.Unpushed != 2 || app.Stashes != 1 || app.Truncated || app.Error != "" {
			t.Errorf("the clone: %+v", app)
		}
		var names, subjects []string
		for _, f := range app.Files {
			names = append(names, f.Index+f.Worktree+" "+f.Path)
		}
		for _, c := range app.Commits {
			subjects = append(subjects, c.Subject)
		}
		slices.Sort(subjects)
		if !slices.Equal(names, []string{"M README", "D gone", "?? a new file", "?? folder/"}) || !slices.Equal(subjects, []string{"[REDACTED] and more", "first that only lies here"}) {
			t.Errorf("its files %q, its commits %q", names, subjects)
		}
		if damaged.Path != "/home/sprite/damaged/deep" || !strings.Contains(damaged.Error, "index file") {
			t.Errorf("one that is damaged: %+v", damaged)
		}
		if made.Path != "/home/sprite/made" || made.Branch != nil || made.Unpushed != 1 || len(made.Commits) != 1 || made.Commits[0].Subject != "alone" || made.Staged+made.Unstaged+made.Untracked+made.Stashes != 0 {
			t.Errorf("one without a remote: %+v", made)
		}
	}
	p := preview()
	check(p, files.FromMachine)
	if len(p.Turns) != 1 || p.Turns[0] != turn || len(p.ChangedFields) != 0 {
		t.Errorf("turns %+v, fields %v", p.Turns, p.ChangedFields)
	}
	if got := d.sh(t, "ls /tmp/executed 2>/dev/null || true"); got != "" {
		t.Error("something of a repository was executed")
	}
	if _, err := d.RebuildPreview(t.Context(), d.Account(t).Actor, d.id); code(err) != refusal.NotFound {
		t.Errorf("another account: %v", err)
	}

	// Parked: what it was then, however it is looked at, and nothing wakes.
	ws, err := d.Workspaces.Get(t.Context(), d.Owner.Actor, d.id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Environments.Update(t.Context(), d.Owner.Actor, *ws.EnvironmentID, func(in *environment.Input) error {
		in.EnvVars = map[string]string{"A": "b"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := d.Instance.Owner(t).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	is := func(status machine.Status) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); ; {
			ws, err := d.Workspaces.Get(t.Context(), d.Owner.Actor, d.id)
			if err == nil && ws.MachineStatus == status && ws.Transition == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v %v; want %s", ws, err, status)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	d.sh(t, "git init -q ~/a-pipe; mkfifo ~/a-pipe/.git/index")
	exec("update machines set woken_at = woken_at - interval '1 hour'")
	if err := d.Workspaces.ParkDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	is(machine.Suspended)
	// What has become a secret since is masked as one.
	if _, err := d.Environments.PutSecret(t.Context(), d.Owner.Actor, *ws.EnvironmentID, environment.SecretInput{Key: "LATER", Value: secret.New("that only lies here")}); err != nil {
		t.Fatal(err)
	}
	if p = preview(); !strings.Contains(fmt.Sprintf("%+v", p.Work), "first "+secret.Mask) {
		t.Errorf("a later secret: %+v", p.Work)
	}
	if err := d.Environments.DeleteSecret(t.Context(), d.Owner.Actor, *ws.EnvironmentID, "LATER"); err != nil {
		t.Fatal(err)
	}
	exec("delete from retired_secrets")
	p = preview()
	// One in which git hangs hides no other.
	if hangs := p.Work.Repositories[1]; hangs.Path != "/home/sprite/a-pipe" || !strings.Contains(hangs.Error, "no time") {
		t.Errorf("one in which git hangs: %+v", hangs)
	}
	p.Work.Repositories = slices.Delete(p.Work.Repositories, 1, 2)
	check(p, files.FromPark)
	if !slices.Equal(p.ChangedFields, []string{"env_vars"}) {
		t.Errorf("fields %v", p.ChangedFields)
	}
	is(machine.Suspended)

	// Woken, and stopped by itself: nobody looked.
	if _, err := d.Workspaces.Wake(t.Context(), d.Owner.Actor, d.id); err != nil {
		t.Fatal(err)
	}
	is(machine.Ready)
	d.sh(t, "rm -rf ~/a-pipe ~/damaged ~/made; git -C /srv/app stash drop -q")
	if p = preview(); p.Source != files.FromMachine || len(p.Work.Repositories) != 1 || p.Work.Repositories[0].Stashes != 0 {
		t.Errorf("woken: %+v", p)
	}
	// A program in git's place says what it likes: nothing of it is shown that may not be, nor keeps a park from writing it down.
	d.as(t, guest.Root, `
mv /usr/bin/git /usr/bin/git.real
cat > /usr/bin/git <<'END'
#!/bin/sh
case "$*" in
*rev-list*) printf 'hush-of-the-environment\0 x\n' ;;
*status*) printf '# branch.oid x\0# branch.head %01000000d\0' 1 ;;
*) exec git.real "$@" ;;
esac
END
chmod 755 /usr/bin/git`)
	if p = preview(); len(p.Work.Repositories) != 2 || p.Work.Repositories[0].Commits[0].ID != "[REDACTED]␀" || len(*p.Work.Repositories[0].Branch) > 4096 {
		t.Errorf("another git: %.2000s", fmt.Sprintf("%+v", p.Work))
	}
	d.as(t, guest.Root, "mv /usr/bin/git.real /usr/bin/git")
	if err := d.Provider.Stop(t.Context(), "mg-"+ws.SandboxID.String()); err != nil {
		t.Fatal(err)
	}
	if p = preview(); p.Source != files.Unknown || p.Work != nil || !strings.Contains(p.Note, "nobody looked") {
		t.Errorf("stopped: %+v", p)
	}

	// Lost.
	exec("update machines set status = 'lost'")
	if p = preview(); p.Source != files.Gone || p.Work != nil || p.DiskBytes != 0 || len(p.Turns) != 1 {
		t.Errorf("lost: %+v", p)
	}
	if _, err := d.Workspaces.Rebuild(t.Context(), d.Owner.Actor, d.id, workspace.RebuildInput{Interrupt: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RebuildPreview(t.Context(), d.Owner.Actor, d.id); code(err) != refusal.RebuildInProgress {
		t.Errorf("while it is rebuilt: %v", err)
	}
}
