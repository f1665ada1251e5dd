package docker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
	"managoat/sandbox/docker"
	"managoat/sandbox/docker/dockertest"
	"managoat/sandbox/guest"
)

var serial atomic.Int64

// on is a provider on an engine.
func on(t *testing.T, e *dockertest.Engine) *docker.Provider {
	t.Helper()
	p, err := docker.New(docker.Options{Host: e.Host, Image: dockertest.Image, GuestBinary: conformancetest.GuestBinary(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// engine speaks to the engine behind the provider's back.
func engine(t *testing.T, e *dockertest.Engine) *client.Client {
	t.Helper()
	c, err := e.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// made makes a machine.
func made(t *testing.T, p *docker.Provider) string {
	t.Helper()
	name := fmt.Sprintf("engine-%d", serial.Add(1))
	created, err := p.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "box", Labels: map[string]string{sandbox.LabelInstance: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Destroy(ctx, name); err != nil {
			t.Error(err)
		}
	})
	return created.ID
}

// woken starts a machine and connects to it.
func woken(t *testing.T, p *docker.Provider, id string) *guest.Client {
	t.Helper()
	if err := p.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return dialled(t, p, id)
}

func dialled(t *testing.T, p *docker.Provider, id string) *guest.Client {
	t.Helper()
	conn, err := p.Guest(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	g, err := guest.Dial(t.Context(), conn, guest.RoleServer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// sh runs a script to its end.
func sh(t *testing.T, g *guest.Client, script string) string {
	t.Helper()
	out, errs, exit, err := g.Run(t.Context(), guest.Exec{ID: fmt.Sprintf("e%d", serial.Add(1)), Argv: []string{"sh", "-c", script}})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v %v %s", script, exit, err, errs)
	}
	return string(out)
}

func class(t *testing.T, what string, err error, want sandbox.Class) {
	t.Helper()
	if err == nil || sandbox.ClassOf(err) != want {
		t.Errorf("%s: %v, want an error of class %s", what, err, want)
	}
}

func state(t *testing.T, p *docker.Provider, id string, want sandbox.State) {
	t.Helper()
	if info, err := p.Inspect(t.Context(), id); err != nil || info.State != want {
		t.Errorf("inspect: %+v %v, want %s", info, err, want)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// alone is an engine of its own, which a test may stop.
func alone(t *testing.T) *dockertest.Engine {
	t.Helper()
	e, err := dockertest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := e.Import(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAnEngineThatStopsAndComesBackHasLostNoMachine(t *testing.T) {
	t.Parallel()
	e := alone(t)
	p := on(t, e)
	busy, parked := made(t, p), made(t, p)
	g := woken(t, p, busy)
	sh(t, g, "echo kept > ~/f")
	if err := g.Start(t.Context(), guest.Exec{ID: "long", Argv: []string{"sleep", "600"}}); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func() error{"stopped": e.Stop, "killed": e.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		// Nobody knows of anything now, and nobody may conclude that something is lost.
		for what, call := range map[string]func() error{
			"inspect": func() error { _, err := p.Inspect(t.Context(), busy); return err },
			"start":   func() error { return p.Start(t.Context(), busy) },
			"stop":    func() error { return p.Stop(t.Context(), busy) },
			"destroy": func() error { return p.Destroy(t.Context(), busy) },
			"list":    func() error { _, err := p.List(t.Context(), nil); return err },
			"guest":   func() error { _, err := p.Guest(t.Context(), busy); return err },
			"stats":   func() error { _, err := p.Stats(t.Context(), busy); return err },
			"create":  func() error { _, err := p.Create(t.Context(), sandbox.Spec{Name: "new", Hostname: "box"}); return err },
		} {
			class(t, what+" while the engine is "+name, call(), sandbox.Unavailable)
		}
		if err := e.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(t, p, busy, sandbox.Stopped)
		state(t, p, parked, sandbox.Stopped)
		if got := sh(t, woken(t, p, busy), "cat ~/f"); got != "kept\n" {
			t.Errorf("after the engine was %s the file holds %q", name, got)
		}
	}
	select {
	case <-g.Done():
	case <-time.After(30 * time.Second):
		t.Error("the connection to a machine that ended with its engine stays open")
	}
}

func TestAContainerThatIsRemovedBehindOurBackIsLostAndNothingElse(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	p, c := on(t, e), engine(t, e)
	id, other := made(t, p), made(t, p)
	g := woken(t, p, id)
	woken(t, p, other)
	if _, err := c.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	<-g.Done()
	_, err := p.Inspect(t.Context(), id)
	class(t, "inspect", err, sandbox.NotFound)
	class(t, "start", p.Start(t.Context(), id), sandbox.NotFound)
	_, err = p.Guest(t.Context(), id)
	class(t, "guest", err, sandbox.NotFound)
	state(t, p, other, sandbox.Running)
}

func TestForeignContainersAreNeitherListedNorTouched(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	p, c := on(t, e), engine(t, e)
	name := fmt.Sprintf("foreign-%d", serial.Add(1))
	made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: name, Config: &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "600"}},
		HostConfig: &container.HostConfig{NetworkMode: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
	})
	if _, err := c.ContainerStart(t.Context(), name, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	class(t, "destroy", p.Destroy(t.Context(), name), sandbox.Denied)
	class(t, "stop", p.Stop(t.Context(), name), sandbox.Denied)
	_, err = p.Guest(t.Context(), name)
	class(t, "guest", err, sandbox.Denied)
	_, err = p.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "box"})
	class(t, "create of its name", err, sandbox.Invalid)
	// The engine takes the beginning of an id for a name. To us it is the name of nothing.
	if err := p.Destroy(t.Context(), made.ID[:12]); err != nil {
		t.Errorf("destroy by the beginning of its id: %v", err)
	}
	list, err := p.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Name == name {
			t.Error("it is listed")
		}
	}
	if r, err := c.ContainerInspect(t.Context(), name, client.ContainerInspectOptions{}); err != nil || !r.Container.State.Running {
		t.Errorf("it does not run any more: %v", err)
	}
}

func TestAPausedMachineIsThereAndGoesOn(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	p, c := on(t, e), engine(t, e)
	id := made(t, p)
	g := woken(t, p, id)
	boot := g.Hello().BootID
	if _, err := c.ContainerPause(t.Context(), id, client.ContainerPauseOptions{}); err != nil {
		t.Fatal(err)
	}
	state(t, p, id, sandbox.Running)
	_, err := p.Guest(t.Context(), id)
	class(t, "guest", err, sandbox.Unavailable)
	if again := woken(t, p, id).Hello().BootID; again != boot {
		t.Error("the start of a paused machine began it anew")
	}
	if _, err := c.ContainerPause(t.Context(), id, client.ContainerPauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context(), id); err != nil {
		t.Errorf("stop of a paused machine: %v", err)
	}
	state(t, p, id, sandbox.Stopped)
}

func TestAConnectionThatDropsIsMadeAnewAndTheCommandGoesOn(t *testing.T) {
	t.Parallel()
	p := on(t, dockertest.Shared(t))
	id := made(t, p)
	first := woken(t, p, id) // the guest's own standard input and output
	g := dialled(t, p, id)   // a process beside it
	if err := g.Start(t.Context(), guest.Exec{ID: "count", Argv: []string{"sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done; exit 4"}, Spool: guest.SpoolProtocol}); err != nil {
		t.Fatal(err)
	}
	// The process that the engine started beside the guest is killed by machine root, the most that a machine can do to it.
	out, errs, exit, err := first.Run(t.Context(), guest.Exec{ID: "cut", User: guest.Root, Argv: []string{"sh", "-c", "for p in /proc/[0-9]*; do grep -qa '[b]ridge' $p/cmdline 2>/dev/null && kill -9 ${p#/proc/}; done; true"}})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s %s %+v %v", out, errs, exit, err)
	}
	select {
	case <-g.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("a connection whose process is gone stays open")
	}
	first.Close() // nor does the machine need the one that it was started with
	var said strings.Builder
	ended, err := dialled(t, p, id).Follow(t.Context(), "count", guest.Offsets{}, func(c guest.Chunk) error {
		said.Write(c.Data)
		return nil
	})
	if err != nil || ended.Code != 4 || said.String() != "1\n2\n3\n" {
		t.Errorf("%q %+v %v", said.String(), ended, err)
	}
}

func TestNothingInAMachineCanSpeakToItsGuestAsTheServer(t *testing.T) {
	t.Parallel()
	p := on(t, dockertest.Shared(t))
	g := woken(t, p, made(t, p))
	for _, u := range []guest.User{guest.Sprite, guest.Root} {
		// Neither environment with the key can be read, and without the key the guest hangs up.
		out, errs, exit, err := g.Run(t.Context(), guest.Exec{ID: "try-" + string(u), User: u, Argv: []string{"sh", "-c", `
			for p in /proc/[0-9]*; do grep -sqa MANAGOAT_GUEST_KEY=[0-9a-f] $p/environ && echo "key in $p"; done
			python3 - <<'P'
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("\0managoat-guest")
s.settimeout(20)
try:
    s.sendall(b"0" * 64)
    print("answer", s.recv(1))
except OSError as e:
    print("answer", b"", e.errno)
P`}})
		if err != nil || exit.Code != 0 || !strings.HasPrefix(string(out), "answer b''") {
			t.Errorf("as %s: %q %q %+v %v", u, out, errs, exit, err)
		}
	}
}

func TestAMachineOfAnOlderServerStartsWithTheGuestOfThisOne(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	id := made(t, on(t, e))
	newer, err := docker.New(docker.Options{Host: e.Host, Image: dockertest.Image, GuestBinary: slices.Concat(conformancetest.GuestBinary(t), []byte("later"))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { newer.Close() })
	g := woken(t, newer, id)
	if got := sh(t, g, "tail -c 5 /.managoat/managoat-container"); got != "later" {
		t.Errorf("the guest's binary ends in %q", got)
	}
	if info, err := newer.Inspect(t.Context(), id); err != nil || info.StaleBase {
		t.Errorf("a new guest alone makes the base stale: %+v %v", info, err)
	}
}

func TestWithoutItsImageTheProviderSaysHowToGetIt(t *testing.T) {
	t.Parallel()
	p, err := docker.New(docker.Options{Host: dockertest.Shared(t).Host, Image: "nowhere:latest", GuestBinary: conformancetest.GuestBinary(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	_, err = p.Create(t.Context(), sandbox.Spec{Name: "imageless", Hostname: "box"})
	class(t, "create", err, sandbox.Unavailable)
	if err == nil || !strings.Contains(err.Error(), "make image") {
		t.Errorf("it says %v", err)
	}
}

func TestWhatIsInstalledOnTheHostAppearsInMachinesThatRun(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	write(t, host, "node/1.0/bin/tool", "one")
	p, err := docker.New(docker.Options{Host: dockertest.Shared(t).Host, Image: dockertest.Image, GuestBinary: conformancetest.GuestBinary(t), MountRoots: []string{host}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	name := fmt.Sprintf("share-%d", serial.Add(1))
	t.Cleanup(func() { p.Destroy(context.Background(), name) })
	_, err = p.Create(t.Context(), sandbox.Spec{Name: name, Hostname: "box", Mounts: []sandbox.Mount{
		{Source: host, Target: "/opt/managoat/runtimes"}, {Source: host + "/node", Target: "/opt/managoat/node"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	g := woken(t, p, name)
	if got := sh(t, g, "cat /opt/managoat/node/1.0/bin/tool /opt/managoat/runtimes/node/1.0/bin/tool; touch /opt/managoat/runtimes/x 2>/dev/null || echo closed"); got != "oneoneclosed\n" {
		t.Errorf("%q", got)
	}
	// A server that starts, as this one, leaves what is there in its place: it may be in use.
	write(t, host, "tool", "three")
	if err := os.Symlink("1.0/bin", host+"/node/bin"); err != nil {
		t.Fatal(err)
	}
	inodes := func() string {
		return sh(t, g, "stat -c %i /opt/managoat/runtimes/tool /opt/managoat/runtimes/node/bin")
	}
	var before string
	for range 2 {
		server, err := docker.New(docker.Options{Host: dockertest.Shared(t).Host, Image: dockertest.Image, GuestBinary: conformancetest.GuestBinary(t), MountRoots: []string{host}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(server.Share(t.Context(), host), server.Close()); err != nil {
			t.Fatal(err)
		}
		if now := inodes(); before != "" && now != before {
			t.Errorf("what was there was copied again: %q and %q", before, now)
		} else {
			before = now
		}
	}
	write(t, host, "tool", "four")
	write(t, host, "claude/2.0/index.js", "two")
	if err := p.Share(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, g, "cat /opt/managoat/runtimes/tool"); got != "four" {
		t.Errorf("what changed on the host is %q in the machine", got)
	}
	if got := sh(t, g, "cat /opt/managoat/runtimes/claude/2.0/index.js"); got != "two" {
		t.Errorf("%q", got)
	}
	_, err = p.Create(t.Context(), sandbox.Spec{Name: name + "-no", Hostname: "box", Mounts: []sandbox.Mount{{Source: "/etc", Target: "/opt/etc"}}})
	class(t, "a mount from elsewhere", err, sandbox.Denied)
}

// Servers that start together on an engine that has never seen one of them.
func TestServersThatShareTheSameFilesAtOnce(t *testing.T) {
	t.Parallel()
	for range 3 {
		host := t.TempDir()
		write(t, host, "node/1.0/bin/tool", "one")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				p, err := docker.New(docker.Options{Host: dockertest.Shared(t).Host, Image: dockertest.Image, GuestBinary: conformancetest.GuestBinary(t), MountRoots: []string{host}})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(p.Share(t.Context(), host), p.Close()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// root runs a script as machine root.
func root(t *testing.T, g *guest.Client, script string) string {
	t.Helper()
	out, errs, exit, err := g.Run(t.Context(), guest.Exec{ID: fmt.Sprintf("e%d", serial.Add(1)), User: guest.Root, Argv: []string{"sh", "-c", script}})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v %v %s", script, exit, err, errs)
	}
	return string(out)
}

// mended has machine root spoil a machine, which then starts all the same and is as it was.
func mended(t *testing.T, p *docker.Provider, spoil, check, want string) {
	t.Helper()
	id := made(t, p)
	root(t, woken(t, p, id), spoil)
	if err := p.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Start(ctx, id); err != nil {
		t.Errorf("after %s: %v", spoil, err)
		return
	}
	if got := sh(t, dialled(t, p, id), check); got != want {
		t.Errorf("after %s: %q, want %q", spoil, got, want)
	}
}

func TestAMachineStartsWhateverItsRootPutInTheWayOfItsFiles(t *testing.T) {
	t.Parallel()
	p := on(t, dockertest.Shared(t))
	for _, spoil := range []string{"mkfifo $F", "mkdir -p $F/x", "ln -s /dev/zero $F", "truncate -s 1T $F", "ln -s /nowhere $F", "rm -r ${F%/*}; mkfifo ${F%/*}"} {
		mended(t, p, "F=/etc/apt/apt.conf.d/00managoat; rm $F; "+spoil, "grep -c Acquire /etc/apt/apt.conf.d/00managoat", "2\n")
	}
}

func TestAMachineStartsWhateverItsRootPutInTheWayOfItsGuest(t *testing.T) {
	t.Parallel()
	p := on(t, dockertest.Shared(t))
	for _, spoil := range []string{
		"cp --remove-destination /bin/true managoat-container", "rm managoat-container; printf '#!/bin/sh\nsleep 600\n' >managoat-container; chmod 755 managoat-container",
		"rm managoat-container; mkfifo -m 755 managoat-container", "chmod 644 managoat-container", "cd /; rm -r .managoat; ln -s /nowhere .managoat",
	} {
		mended(t, p, "cd /.managoat; "+spoil, "stat -c %a%s /.managoat/managoat-container", fmt.Sprintf("755%d\n", len(conformancetest.GuestBinary(t))))
	}
}

func TestAMachineWhoseRootSpoiledTheAccountsStartsAndHoldsNoEngine(t *testing.T) {
	t.Parallel()
	p := on(t, dockertest.Shared(t))
	for _, spoil := range []string{"rm /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group", "rm /etc/passwd; mkdir -p /etc/passwd/x", "rm /etc/passwd; ln -s /dev/zero /etc/passwd", "rm /etc/passwd"} {
		mended(t, p, spoil, "id -un 0; id -un; id -gn", "root\nsprite\nsprite\n")
	}
}

func TestAServerThatStartsAMachineWhoseStartIsUnderWayReachesItToo(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	p, q := on(t, e), on(t, e)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 4 {
		id := made(t, p)
		var both sync.WaitGroup
		for i, server := range []*docker.Provider{p, q} {
			both.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				if err := server.Start(ctx, id); err != nil {
					t.Error(err)
					return
				}
				for range 2 {
					conn, err := server.Guest(ctx, id)
					if err != nil {
						t.Error(err)
						return
					}
					g, err := guest.Dial(ctx, conn, guest.RoleServer)
					if err != nil {
						conn.Close()
						t.Error(err)
						return
					}
					if out, _, _, err := g.Run(ctx, guest.Exec{ID: fmt.Sprintf("both%d", serial.Add(1)), Argv: []string{"echo", "here"}}); err != nil || string(out) != "here\n" {
						t.Errorf("%q %v", out, err)
					}
					g.Close()
				}
			})
		}
		both.Wait()
	}
}

// reluctant passes connections on to an engine, and of those that ask for what is in path, which it names on asked, nothing
// any more.
func reluctant(t *testing.T, e *dockertest.Engine, path string) (host string, asked <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	heard := make(chan struct{}, 16)
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				far, err := net.Dial("unix", strings.TrimPrefix(e.Host, "unix://"))
				if err != nil {
					return
				}
				defer far.Close()
				go io.Copy(near, far)
				buf := make([]byte, 64<<10)
				for {
					n, err := near.Read(buf)
					if err != nil {
						return
					}
					if bytes.Contains(buf[:n], []byte(path)) {
						heard <- struct{}{}
						io.Copy(io.Discard, near)
						return
					}
					if _, err := far.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "unix://" + l.Addr().String(), heard
}

func TestAnEngineThatDoesNotAnswerHoldsNoStartLongerThanItsCallerWaits(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	for _, silent := range []string{"/attach?", "/start ", "/exec/"} {
		host, asked := reluctant(t, e, silent)
		p, err := docker.New(docker.Options{Host: host, Image: dockertest.Image, GuestBinary: conformancetest.GuestBinary(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		id := made(t, on(t, e))
		if silent == "/exec/" {
			woken(t, on(t, e), id)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		ended := make(chan error, 1)
		go func() { ended <- p.Start(ctx, id) }()
		select {
		case err := <-ended:
			class(t, "start", err, sandbox.Unavailable)
		case <-time.After(20 * time.Second):
			t.Errorf("with an engine that does not answer %s a start goes on after its caller has gone", silent)
		}
		// Whatever became of that start, the next one succeeds.
		woken(t, on(t, e), id)
	}
}

func TestAStartThatFailsSaysWhyAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ program, want string }{
		{"echo first >/.managoat/guest.log; printf 'no \\033[31mroom\\007\\342\\200\\256 \\377left\\n' >>/.managoat/guest.log; exit 3", "the guest ended at once, with exit code 3: no [31mroom left:"},
		{"exit 4", "with exit code 4:"},
		{"echo of long ago >/.managoat/guest.log; touch -d '2 hours ago' /.managoat/guest.log; exit 5", "with exit code 5:"},
		{"truncate -s 1T /.managoat/guest.log; exit 6", "with exit code 6:"},
		{"ln -s /etc/passwd /.managoat/guest.log; exit 7", "with exit code 7:"},
		{"sleep 600", "the guest does not answer: context deadline exceeded"},
	} {
		p, err := docker.New(docker.Options{Host: dockertest.Shared(t).Host, Image: dockertest.Image, GuestBinary: []byte("#!/bin/sh\n" + c.program + "\n")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		id := made(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		err = p.Start(ctx, id)
		class(t, "start", err, sandbox.Unavailable)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "long ago") {
			t.Errorf("%s: it says %q", c.program, err)
		}
		if took := time.Since(began); took > 13*time.Second {
			t.Errorf("%s: it took %s to say so", c.program, took)
		}
	}
}

func TestMachineRootReadsNothingOfTheGuest(t *testing.T) {
	t.Parallel()
	p := on(t, dockertest.Shared(t))
	g := woken(t, p, made(t, p))
	for _, f := range []string{"environ", "mem", "maps", "auxv", "stack", "syscall"} {
		if got := root(t, g, "head -c1 /proc/1/"+f+" 2>/dev/null | wc -c"); got != "0\n" {
			t.Errorf("machine root reads the guest's %s", f)
		}
	}
	for _, f := range []string{"exe", "root", "cwd", "fd/0", "fd/3", "ns/pid"} {
		if got := root(t, g, "readlink /proc/1/"+f+" || true"); got != "" {
			t.Errorf("machine root reads the guest's %s: %s", f, got)
		}
	}
}

func TestAConnectionThatEndedBeforeAnybodyAskedForItIsGivenToNobody(t *testing.T) {
	t.Parallel()
	e := dockertest.Shared(t)
	p, other := on(t, e), on(t, e)
	id := made(t, p)
	if err := errors.Join(p.Start(t.Context(), id), other.Stop(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	_, err := p.Guest(t.Context(), id)
	class(t, "guest", err, sandbox.Unavailable)
	if err := errors.Join(p.Start(t.Context(), id), other.Stop(t.Context(), id), other.Start(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	sh(t, dialled(t, p, id), "true")
}
