package local

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"managoat/sandbox/guest"
)

// packageScript is what packages do when they are configured: make system users, set owners and modes, ask for
// the full host name, try to start a service.
const packageScript = `#!/bin/sh
set -e
addgroup --system managoat-test
adduser --system --ingroup managoat-test --no-create-home managoat-test
chown managoat-test:managoat-test /var/lib/managoat-test
chown root:managoat-test /usr/bin/managoat-hello
chmod 2755 /usr/bin/managoat-hello
hostname --fqdn > /var/lib/managoat-test/fqdn
update-alternatives --install /usr/bin/managoat-hi managoat-hi /usr/bin/managoat-hello 10
invoke-rc.d managoat-test start || true
`

// repository makes a Debian repository of one package.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	for name, f := range map[string]struct {
		data string
		mode os.FileMode
	}{
		"DEBIAN/control":             {"Package: managoat-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: says hello\n", 0o644},
		"DEBIAN/postinst":            {packageScript, 0o755},
		"usr/bin/managoat-hello":     {"#!/bin/sh\necho hello\n", 0o755},
		"etc/init.d/managoat-test":   {"#!/bin/sh\ntouch /var/lib/managoat-test/started\n", 0o755},
		"var/lib/managoat-test/keep": {"", 0o644},
	} {
		name = filepath.Join(tree, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(f.data), f.mode), os.Chmod(name, f.mode)); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(dir, "managoat-hello_1.0_all.deb")
	if out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", tree, deb).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	data, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	index := fmt.Sprintf("Package: managoat-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nFilename: ./%s\nSize: %d\nSHA256: %x\nDescription: says hello\n",
		filepath.Base(deb), len(data), sha256.Sum256(data))
	release := fmt.Sprintf("Date: %s\nSHA256:\n %x %d Packages\n", time.Now().UTC().Format(time.RFC1123), sha256.Sum256([]byte(index)), len(index))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "Packages"), []byte(index), 0o644), os.WriteFile(filepath.Join(dir, "Release"), []byte(release), 0o644), os.RemoveAll(tree)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// machineListener accepts the connections made in a machine.
type machineListener struct {
	t *testing.T
	c *guest.Client
}

func (l machineListener) Accept() (net.Conn, error) {
	conn, _, err := l.c.Accept(l.t.Context())
	return conn, err
}
func (l machineListener) Close() error   { return l.c.Close() }
func (l machineListener) Addr() net.Addr { return &net.TCPAddr{} }

// proxyFor serves a machine's proxy listener: one host is known, everything else is refused.
func proxyFor(t *testing.T, p *Provider, machine, host, dir string) {
	t.Helper()
	conn, err := p.Guest(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	c, err := guest.Dial(t.Context(), conn, guest.RoleEgress)
	if err != nil {
		t.Fatal(err)
	}
	files := http.FileServer(http.Dir(dir))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host != host {
			http.Error(w, "not allowed", http.StatusForbidden)
			return
		}
		files.ServeHTTP(w, r)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(machineListener{t, c})
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
}

func TestAptInstallsThroughTheEgressListenerAndKeepsWhatItInstalled(t *testing.T) {
	t.Parallel()
	const host = "deb.example"
	p := open(t, func(o *Options) { o.AptSources = []byte("deb [trusted=yes] http://" + host + "/ ./\n") })
	makeMachine(t, p, spec("apt"))
	c := connect(t, p, "apt")
	proxyFor(t, p, "apt", host, repository(t))
	before := hostState(t)
	out := sh(t, c, guest.Root, "export DEBIAN_FRONTEND=noninteractive; apt-get update 2>&1 && apt-get install -y managoat-hello 2>&1")
	if got := sh(t, c, guest.Sprite, "managoat-hello; managoat-hi; cat /var/lib/managoat-test/fqdn; stat -c '%U %G %a' /usr/bin/managoat-hello /var/lib/managoat-test"); got !=
		"hello\nhello\nbox.internal\nroot managoat-test 2755\nmanagoat-test managoat-test 755\n" {
		t.Errorf("after the installation: %q\n%s", got, out)
	}
	sh(t, c, guest.Root, "test ! -e /var/lib/managoat-test/started && test -z \"$(dpkg --audit)\"")
	if now := hostState(t); now != before {
		t.Error("the host's packages changed")
	}
	if err := p.Stop(t.Context(), "apt"); err != nil {
		t.Fatal(err)
	}
	c = connect(t, p, "apt")
	proxyFor(t, p, "apt", host, repository(t))
	if got := sh(t, c, guest.Sprite, "dpkg-query -W -f '${Status} ${Version}' managoat-hello; managoat-hello"); got != "install ok installed 1.0hello\n" {
		t.Errorf("after a stop: %q", got)
	}
	// Another host is refused by the proxy, and apt says so instead of waiting.
	if got := sh(t, c, guest.Root, "echo 'deb [trusted=yes] http://elsewhere.example/ ./' > /etc/apt/sources.list.d/managoat.list; apt-get update 2>&1 || true"); got == "" || !strings.Contains(got, "403") {
		t.Errorf("apt of a host that is not allowed: %q", got)
	}
	// A setup's own user installs by sudo.
	sh(t, c, guest.Root, "apt-get purge -y managoat-hello 2>&1")
	stdout, stderr, exit, err := c.Run(t.Context(), guest.Exec{ID: "sudo", Sudo: true, Argv: []string{"bash", "-c",
		"echo 'deb [trusted=yes] http://" + host + "/ ./' | sudo tee /etc/apt/sources.list.d/managoat.list >/dev/null && sudo apt-get update && sudo apt-get install -y managoat-hello && managoat-hello"}})
	if err != nil || exit.Code != 0 || !strings.Contains(string(stdout), "hello\n") {
		t.Errorf("apt through sudo: %+v %v\n%s%s", exit, err, stdout, stderr)
	}
}

// hostState changes when the host's packages do.
func hostState(t *testing.T) [32]byte {
	t.Helper()
	data, err := os.ReadFile("/var/lib/dpkg/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/usr/bin", "/etc", "/etc/passwd", "/usr/sbin"} {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		data = fmt.Append(data, name, st.ModTime(), st.Size())
	}
	return sha256.Sum256(data)
}
