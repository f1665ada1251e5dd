package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/guest"
)

// spec is a machine's that a test does not care about.
func spec(name string) sandbox.Spec {
	return sandbox.Spec{Name: name, Hostname: "box", Labels: map[string]string{sandbox.LabelInstance: "test"}}
}

// make makes a machine that is destroyed at the end of the test.
func makeMachine(t testing.TB, p *Provider, s sandbox.Spec) {
	t.Helper()
	t.Cleanup(func() {
		if err := p.Destroy(context.Background(), s.Name); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	if _, err := p.Create(t.Context(), s); err != nil {
		t.Fatalf("create: %v", err)
	}
}

// connect starts a machine when it does not run and connects to it.
func connect(t testing.TB, p *Provider, name string) *guest.Client {
	t.Helper()
	c, err := tryConnect(t, p, name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tryConnect is connect for a goroutine that is not the test's own.
func tryConnect(t testing.TB, p *Provider, name string) (*guest.Client, error) {
	if err := p.Start(t.Context(), name); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	conn, err := p.Guest(t.Context(), name)
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	c, err := guest.Dial(t.Context(), conn, guest.RoleServer)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	t.Cleanup(func() { c.Close() })
	return c, nil
}

// sh runs a script inside; it has to succeed.
func sh(t testing.TB, c *guest.Client, user guest.User, script string) string {
	t.Helper()
	out, errs, exit, err := c.Run(t.Context(), guest.Exec{ID: fmt.Sprint(time.Now().UnixNano()), User: user, Argv: []string{"bash", "-c", script}})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v %v\n%s%s", script, exit, err, out, errs)
	}
	return string(out)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 30 s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// own starts a machine, says so and waits to be killed. It has a descriptor open that would leak.
func own() error {
	leak, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // no CLOEXEC
	if err != nil {
		return err
	}
	if err := unix.Dup3(leak, 77, 0); err != nil {
		return err
	}
	p, err := openChild()
	if err != nil {
		return err
	}
	if _, err := p.Create(context.Background(), spec("owned")); err != nil {
		return err
	}
	if err := p.Start(context.Background(), "owned"); err != nil {
		return err
	}
	fmt.Println("started")
	select {}
}

func TestAMachineOutlivesTheServerThatStartedIt(t *testing.T) {
	t.Parallel()
	for name, uid := range map[string]uint32{"as root": 0, "without root": unprivilegedUID} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, data := child(t, "own", uid)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			word := make([]byte, 16)
			n, _ := out.Read(word)
			if string(word[:n]) != "started\n" {
				t.Fatalf("the owner said %q: %v", word[:n], cmd.Wait())
			}
			if uid != 0 {
				// Another process of the same user adopts it.
				cmd.Process.Kill()
				cmd.Wait()
				adopter, _ := child(t, "adopt", uid)
				adopter.Dir = filepath.Dir(data)
				if err := adopter.Run(); err != nil {
					t.Errorf("the adopter: %v", err)
				}
				return
			}
			before := attachAndAsk(t, data)
			cmd.Process.Kill()
			cmd.Wait()
			p, err := New(Options{Dir: data, GuestBinary: conformancetest.GuestBinary(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Destroy(context.Background(), "owned"); err != nil {
					t.Error(err)
				}
				p.Close()
			})
			info, err := p.Inspect(t.Context(), "owned")
			if err != nil || info.State != sandbox.Running {
				t.Fatalf("inspect: %+v %v", info, err)
			}
			c := connect(t, p, "owned")
			if c.Hello().BootID != before {
				t.Error("it is not the same machine")
			}
			if got := sh(t, c, guest.Sprite, "ls -l /proc/self/fd | grep -c passwd || true"); got != "0\n" {
				t.Errorf("a descriptor of whoever started the server leaked into the machine")
			}
			if err := p.Stop(t.Context(), "owned"); err != nil {
				t.Error(err)
			}
			if got := connect(t, p, "owned").Hello().BootID; got == before {
				t.Error("stop did not stop it")
			}
		})
	}
}

// attachAndAsk connects like the egress process does and returns the boot's id.
func attachAndAsk(t *testing.T, data string) string {
	t.Helper()
	g, err := Attach(data)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := g.Guest(t.Context(), "owned")
	if err != nil {
		t.Fatal(err)
	}
	c, err := guest.Dial(t.Context(), conn, guest.RoleEgress)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Hello().BootID
}

// adopt takes over what own left, uses it, and removes it.
func adopt() error {
	ctx := context.Background()
	p, err := openChild()
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Inspect(ctx, "owned")
	if err != nil || info.State != sandbox.Running {
		return fmt.Errorf("inspect: %+v %w", info, err)
	}
	conn, err := p.Guest(ctx, "owned")
	if err != nil {
		return err
	}
	c, err := guest.Dial(ctx, conn, guest.RoleServer)
	if err != nil {
		return err
	}
	defer c.Close()
	if out, _, exit, err := c.Run(ctx, guest.Exec{ID: "a", Argv: []string{"echo", "here"}}); err != nil || exit.Code != 0 || string(out) != "here\n" {
		return fmt.Errorf("run: %q %+v %w", out, exit, err)
	}
	return p.Destroy(ctx, "owned")
}

// ours is a name that no other run of the tests gives: what a killed run left on this host is not this one's.
func ours(name string) string {
	return name + "-" + strings.ToLower(rand.Text()[:8])
}

// leftoverGroups lists the cgroups of machines whose names begin with prefix.
func leftoverGroups(prefix string) []string {
	var all []string
	for _, pattern := range []string{filepath.Join(cgroupRoot, cgroupParent, prefix+"*"), filepath.Join(cgroupRoot, "*", cgroupParent, prefix+"*")} {
		groups, _ := filepath.Glob(pattern)
		all = append(all, groups...)
	}
	return all
}

// leftovers counts what machines of this directory have on the host.
func leftovers(t *testing.T, p *Provider, prefix string) string {
	t.Helper()
	var found []string
	for _, d := range []string{"machines", "making", "trash", "ranges"} {
		entries, err := os.ReadDir(filepath.Join(p.dir, d))
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 0 {
			found = append(found, d)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mounts, []byte(p.dir)) || bytes.Contains(mounts, []byte(scratch)) {
		found = append(found, "mounts")
	}
	found = append(found, leftoverGroups(prefix)...)
	procs, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range procs {
		if target, err := os.Readlink(exe); err == nil && strings.HasPrefix(target, p.dir) {
			found = append(found, exe)
		}
	}
	return strings.Join(found, " ")
}

func TestFiftyLivesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	p := open(t)
	prefix := ours("leftover")
	live := func(name string, started bool) error {
		if _, err := p.Create(t.Context(), spec(name)); err != nil {
			return err
		}
		if started {
			c, err := tryConnect(t, p, name)
			if err != nil {
				return err
			}
			out, errs, exit, err := c.Run(t.Context(), guest.Exec{ID: "leave", User: guest.Root, Argv: []string{"bash", "-c",
				"setsid sleep 1000 >/dev/null 2>&1 & mkdir /closed && chmod 0 /closed && touch /usr/bin/x"}})
			if err != nil || exit.Code != 0 {
				return fmt.Errorf("exit %d, %w: %s%s", exit.Code, err, out, errs)
			}
		}
		return p.Destroy(t.Context(), name)
	}
	var lives sync.WaitGroup
	for i := range 5 { // names come again, while others live
		lives.Go(func() {
			for j := range 10 {
				if err := live(fmt.Sprintf("%s-%d", prefix, i), j%5 != 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	lives.Wait()
	p.kids.reap()
	if left := leftovers(t, p, prefix); left != "" {
		t.Errorf("left: %s", left)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatACrashLeftIsClearedAndNeverAdopted(t *testing.T) {
	t.Parallel()
	p := open(t)
	makeMachine(t, p, spec("kept"))
	p.Close()
	for _, d := range []string{"making/half-0123", "trash/gone-0123/root/upper"} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("half", p.rangeLink(5)); err != nil {
		t.Fatal(err)
	}
	again, err := New(p.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Inspect(t.Context(), "half"); sandbox.ClassOf(err) != sandbox.NotFound {
		t.Errorf("inspect of half a machine: %v", err)
	}
	for _, d := range []string{"making", "trash"} {
		if entries, err := os.ReadDir(filepath.Join(p.dir, d)); err != nil || len(entries) > 0 {
			t.Errorf("%s holds %v %v", d, entries, err)
		}
	}
	if links, err := os.ReadDir(filepath.Join(p.dir, "ranges")); err != nil || len(links) != 1 {
		t.Errorf("ranges: %v %v, want the kept machine's", links, err)
	}
	created, err := again.Create(t.Context(), spec("kept"))
	if err != nil || !created.Adopted {
		t.Errorf("create of a whole machine: %+v %v", created, err)
	}
}

func TestAMachineWhoseProcessDiedIsStoppedAndStartsAgain(t *testing.T) {
	t.Parallel()
	p := open(t)
	makeMachine(t, p, spec("died"))
	c := connect(t, p, "died")
	sh(t, c, guest.Sprite, "echo kept > ~/f")
	m, err := p.load("test", "died")
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := p.lastLife(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(l.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	eventually(t, "stopped", func() bool {
		info, err := p.Inspect(t.Context(), "died")
		return err == nil && info.State == sandbox.Stopped
	})
	if _, err := p.Guest(t.Context(), "died"); sandbox.ClassOf(err) != sandbox.Unavailable || sandbox.Lost(err) {
		t.Errorf("guest: %v", err)
	}
	if got := sh(t, connect(t, p, "died"), guest.Sprite, "cat ~/f"); got != "kept\n" {
		t.Errorf("the file holds %q", got)
	}
}

func TestAServerKilledWhileItStartedAMachineLeavesOneThatCanBeEnded(t *testing.T) {
	t.Parallel()
	p := open(t)
	makeMachine(t, p, spec("unnoted"))
	connect(t, p, "unnoted")
	m, err := p.load("test", "unnoted")
	if err != nil {
		t.Fatal(err)
	}
	var l life
	if err := readJSON(m.path("run.json"), &l); err != nil {
		t.Fatal(err)
	}
	// Killed between making the first process and writing down which it is.
	if err := writeJSON(m.path("run.json"), life{Group: l.Group}); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context(), "unnoted"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of its first process", func() bool {
		p.kids.reap()
		_, err := bornAt(l.Pid)
		return err != nil
	})
}

func TestAStopDoesNotWaitForTheHostsDisk(t *testing.T) {
	t.Parallel()
	p := open(t)
	name := ours("quickstop")
	makeMachine(t, p, spec(name))
	m, err := p.load("test", name)
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, p, name)
	sh(t, c, guest.Sprite, "echo kept > ~/f; setsid sleep 1000 >/dev/null 2>&1 &")
	if err := p.Stop(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if info, err := p.Inspect(t.Context(), name); err != nil || info.State != sandbox.Stopped {
		t.Errorf("inspect: %+v %v", info, err)
	}
	// Started at once, it waits for what the kernel still does with the old one.
	if got := sh(t, connect(t, p, name), guest.Sprite, "cat ~/f; ps ax | grep -c '[s]leep 1000' || true"); got != "kept\n0\n" {
		t.Errorf("after a restart: %q", got)
	}
	if err := p.Stop(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "clean-up", func() bool { return !exists(m.path("run.json")) && leftoverGroups(name+".") == nil })
}

func TestAMachineThatLostItsDescriptionIsBrokenAndCanBeDestroyed(t *testing.T) {
	t.Parallel()
	p := open(t)
	makeMachine(t, p, spec("broken"))
	if err := os.Remove(filepath.Join(p.dir, "machines", "broken", "machine.json")); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), "broken"); sandbox.ClassOf(err) != sandbox.Broken || !sandbox.Lost(err) {
		t.Errorf("start: %v", err)
	}
	if list, err := p.List(t.Context(), nil); err != nil || len(list) != 0 {
		t.Errorf("list: %v %v", list, err)
	}
	if err := p.Destroy(t.Context(), "broken"); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func TestAStartThatFailsLeavesNothingAndSaysWhy(t *testing.T) {
	t.Parallel()
	mounts := t.TempDir()
	p := open(t, func(o *Options) { o.MountRoots = []string{mounts} })
	source := filepath.Join(mounts, "adapters")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	name := ours("nostart")
	s := spec(name)
	s.Mounts = []sandbox.Mount{{Source: source, Target: "/opt/managoat/adapters"}}
	makeMachine(t, p, s)
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	err := p.Start(t.Context(), name)
	var e *sandbox.Error
	if !errors.As(err, &e) || sandbox.Lost(err) || !strings.Contains(err.Error(), "source does not exist") {
		t.Errorf("start: %v", err)
	}
	if info, err := p.Inspect(t.Context(), name); err != nil || info.State != sandbox.Stopped {
		t.Errorf("inspect: %+v %v", info, err)
	}
	if groups := leftoverGroups(name + "."); len(groups) > 0 {
		t.Errorf("cgroups are left: %v", groups)
	}
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	connect(t, p, name)
}

func TestMountsAreReadOnlyBelowTheirRootsAndNameNothingOfTheHost(t *testing.T) {
	t.Parallel()
	mounts, outside := t.TempDir(), t.TempDir()
	p := open(t, func(o *Options) { o.MountRoots = []string{mounts} })
	node := filepath.Join(mounts, "node-v22")
	if err := os.MkdirAll(filepath.Join(node, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(node, "bin", "our-node"), []byte("#!/bin/sh\necho ours\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(mounts, "link")); err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct {
		mount sandbox.Mount
		class sandbox.Class
	}{
		{sandbox.Mount{Source: outside, Target: "/opt/x"}, sandbox.Denied},
		{sandbox.Mount{Source: filepath.Join(mounts, "link"), Target: "/opt/x"}, sandbox.Denied},
		{sandbox.Mount{Source: mounts + "/../" + filepath.Base(outside), Target: "/opt/x"}, sandbox.Denied},
		{sandbox.Mount{Source: filepath.Join(mounts, "none"), Target: "/opt/x"}, sandbox.Invalid},
		{sandbox.Mount{Source: node, Target: "/etc"}, sandbox.Invalid},
		{sandbox.Mount{Source: node, Target: "/opt/../etc"}, sandbox.Invalid},
		{sandbox.Mount{Source: node, Target: "opt/x"}, sandbox.Invalid},
	} {
		s := spec("refused")
		s.Mounts = []sandbox.Mount{m.mount}
		if _, err := p.Create(t.Context(), s); sandbox.ClassOf(err) != m.class {
			t.Errorf("%+v: %v, want %s", m.mount, err, m.class)
		}
	}
	s := spec("mounted")
	s.Mounts = []sandbox.Mount{{Source: node, Target: "/opt/managoat/node"}}
	makeMachine(t, p, s)
	c := connect(t, p, "mounted")
	if got := sh(t, c, guest.Sprite, "our-node; echo $PATH"); got != "ours\n"+guest.SearchPath+":"+guest.NodePath+"\n" {
		t.Errorf("got %q", got)
	}
	for _, u := range []guest.User{guest.Sprite, guest.Root} {
		sh(t, c, u, "! touch /opt/managoat/node/bin/x && ! rm /opt/managoat/node/bin/our-node && ! grep -q "+mounts+" /proc/self/mountinfo")
	}
	if _, err := os.Stat(filepath.Join(node, "bin", "our-node")); err != nil {
		t.Error(err)
	}
}

func TestABaseThatChangedMakesMachinesStale(t *testing.T) {
	t.Parallel()
	p := open(t)
	makeMachine(t, p, spec("stale"))
	changed := p.opts
	changed.AptSources = []byte("deb http://deb.example stable main\n")
	p.Close()
	again, err := New(changed)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	info, err := again.Inspect(t.Context(), "stale")
	if err != nil || !info.StaleBase {
		t.Errorf("inspect: %+v %v", info, err)
	}
	// It starts all the same, from the base it was made from.
	connect(t, again, "stale")
	makeMachine(t, again, spec("fresh"))
	c := connect(t, again, "fresh")
	if got := sh(t, c, guest.Sprite, "cat /etc/apt/sources.list.d/*; ls /etc/apt/sources.list.d"); got != string(changed.AptSources)+"managoat.list\n" {
		t.Errorf("package sources: %q", got)
	}
}

func TestAMachineMadeFromAnUnpackedRootHasNothingOfTheHost(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	unpack(t, root, "bash", "cat", "ls", "id")
	p := open(t, func(o *Options) {
		o.Rootfs = root
		o.ExtraCA = []byte("OURS\n")
	})
	makeMachine(t, p, spec("image"))
	if info, err := p.Inspect(t.Context(), "image"); err != nil || info.Base.Name != filepath.Base(root) {
		t.Errorf("base: %+v %v", info.Base, err)
	}
	c := connect(t, p, "image")
	if got := sh(t, c, guest.Sprite, "id -un; ls /usr/bin; cat "+guest.CABundle); got != "sprite\nbash\ncat\nid\nls\nOURS\n" {
		t.Errorf("got %q", got)
	}
	if got := sh(t, c, guest.Root, "echo x > /usr/bin/new; echo x > /etc/new; ls /usr/local/bin"); got != "managoat\nsudo\n" {
		t.Errorf("/usr/local/bin: %q", got)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/new")); err == nil {
		t.Error("a machine wrote to the unpacked root")
	}
}

// unpack makes a root file system of a few programs and the libraries they need.
func unpack(t *testing.T, root string, programs ...string) {
	t.Helper()
	copyFile := func(name string) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, "usr", strings.TrimPrefix(name, "/usr"))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range programs {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if program, err = filepath.EvalSymlinks(program); err != nil {
			t.Fatal(err)
		}
		copyFile(program)
		libs, err := exec.Command("ldd", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(libs)) {
			if strings.HasPrefix(f, "/") {
				copyFile(f)
			}
		}
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", l), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestUidRangesDoNotMeetThoseOfPeople(t *testing.T) {
	t.Parallel()
	taken := spans{{100000, 165536}, {firstUID + 3*rangeSize + 5, firstUID + 3*rangeSize + 10}}
	for n, want := range map[int]bool{0: false, 2: false, 3: true, 4: false} {
		first := firstUID + n*rangeSize
		if got := taken.overlap(first, first+rangeSize); got != want {
			t.Errorf("range %d: %v, want %v", n, got, want)
		}
	}
	if last := firstUID + ranges*rangeSize - 1; last >= 1<<31 {
		t.Errorf("the last uid is %d", last)
	}
}

func TestAProviderThatClosesLeavesNothingOfMachinesThatStopped(t *testing.T) {
	t.Parallel()
	p := open(t)
	name := ours("stopclose")
	makeMachine(t, p, spec(name))
	m, err := p.load("test", name)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if left := leftoverGroups(name + "."); left != nil || exists(m.path("run.json")) {
		t.Errorf("left: %v", left)
	}
}
