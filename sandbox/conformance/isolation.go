package conformance

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"managoat/sandbox"
	"managoat/sandbox/guest"
	"managoat/sandbox/guest/probe"
)

// probed runs the probe inside as a user.
func (m *machine) probed(u guest.User) map[string]string {
	m.t.Helper()
	r := m.exec(guest.Exec{User: u, Argv: []string{"bash", "-c", "exec -a " + probe.Name + " " + filepath.Dir(guest.Shell) + "/managoat"}})
	var results map[string]string
	if err := json.Unmarshal([]byte(r.out), &results); err != nil {
		m.t.Fatalf("probe as %s: %v: %q %q", u, err, r.out, r.err)
	}
	return results
}

var isolation = []Check{
	{Name: "what reaches for the kernel, the guest or the hypervisor is refused", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		for _, u := range m.users() {
			results := m.probed(u)
			want := map[string]string{
				"socket inet": probe.OK, "socket unix": probe.OK,
				"socket vsock": "EAFNOSUPPORT", "socket packet": "EAFNOSUPPORT", "socket alg": "EAFNOSUPPORT",
				"clone3":       "ENOSYS",
				"inject input": "EPERM",
			}
			for _, a := range []string{"guest memory", "guest environment", "guest descriptors", "guest program"} {
				want[a] = "EACCES"
			}
			// The kernel drops signals from inside to pid 1, whatever it answers to those who may send them.
			switch {
			case m.caps.UIDRange:
				want["become guest"] = "EINVAL" // there is no such uid where commands run
				if u == guest.Root {
					want["chroot"] = probe.OK
				}
			case !m.caps.Root: // one uid, which is the guest's
				want["become guest"], want["kill guest"], want["terminate guest"] = "EINVAL", probe.OK, probe.OK
			case u == guest.Root: // whose uid the guest has, but not its capabilities
				want["become guest"], want["kill guest"], want["terminate guest"] = probe.OK, probe.OK, probe.OK
			}
			for attempt, got := range results {
				expected, ok := want[attempt]
				if !ok {
					expected = "EPERM"
				}
				if got != expected {
					t.Errorf("%s, as %s: %s, want %s", attempt, u, got, expected)
				}
			}
			if len(results) < 35 {
				t.Errorf("the probe tried %d things only", len(results))
			}
		}
		if _, err := m.Status(t.Context(), "none"); err == nil {
			t.Errorf("the guest knows a command that never was")
		}
		m.must("true") // it is still there
	}},
	{Name: "an agent's processes have no capability, no way to new privileges, and a filter", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		for _, u := range m.users() {
			status := make(map[string]string)
			for _, line := range strings.Split(m.mustAs(u, "cat /proc/self/status"), "\n") {
				k, v, _ := strings.Cut(line, ":")
				status[k] = strings.TrimSpace(v)
			}
			equal(t, "NoNewPrivs", status["NoNewPrivs"], "1")
			equal(t, "Seccomp", status["Seccomp"], "2")
			if u == guest.Sprite {
				for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
					equal(t, set, status[set], "0000000000000000")
				}
				equal(t, "Uid", status["Uid"], "1000\t1000\t1000\t1000")
				if m.caps.UIDRange {
					equal(t, "Groups", status["Groups"], "1000")
				}
			}
			equal(t, "oom score", m.mustAs(u, "cat /proc/self/oom_score_adj"), "500\n")
			// The listing's own descriptor is the fourth.
			equal(t, "descriptors", m.mustAs(u, "ls /proc/self/fd | wc -l"), "4\n")
		}
		if r := m.sh("echo 5 > /proc/sys/user/max_user_namespaces"); r.Code == 0 && m.sh("unshare -U true").Code == 0 {
			t.Errorf("an agent can allow itself user namespaces")
		}
	}},
	{Name: "a command is its user's by name, and closed to others where they can be told apart", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		equal(t, "the groups' names", m.must("id -un; id -gn"), "sprite\nsprite\n")
		if !m.caps.UIDRange {
			return // they are one user's, and the provider's notes say so
		}
		const secret = "of-another-command"
		if err := m.Start(t.Context(), guest.Exec{ID: "other", Argv: []string{"sleep", "600"}, Env: map[string]string{"SECRET": secret}}); err != nil {
			t.Fatalf("start: %v", err)
		}
		if r := m.sh("cat /proc/[0-9]*/environ 2>/dev/null; true"); strings.Contains(r.out, secret) {
			t.Errorf("a command reads the environment of another")
		}
		equal(t, "of its own", m.must("SECRET=mine sleep 60 & while ! grep -qa SECRET=mine /proc/$!/environ; do sleep 0.1; done; grep -a -o SECRET=mine /proc/$!/environ; kill $!"), "SECRET=mine\n")
	}},
	{Name: "nothing of the host shows", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		for _, u := range m.users() {
			if r := m.exec(guest.Exec{User: u, Argv: []string{"cat", "/proc/cmdline"}}); r.out != "" {
				t.Errorf("the host's boot line shows: %q", r.out)
			}
			// Besides its own control group, which a container engine shows.
			equal(t, "/sys", m.mustAs(u, "find /sys ! -type d ! -path '/sys/fs/cgroup/*' | wc -l"), "0\n")
			equal(t, "homes", m.mustAs(u, "ls /home"), "sprite\n")
			equal(t, "interfaces", strings.Join(strings.Fields(m.mustAs(u, "tail -n +3 /proc/net/dev | cut -d: -f1")), " "), "lo")
			equal(t, "host name", m.mustAs(u, "cat /proc/sys/kernel/hostname"), "box\n")
			equal(t, "cgroup", strings.TrimSpace(m.mustAs(u, "cut -d: -f3 /proc/self/cgroup | sort -u")), "/")
		}
		secret := filepath.Join(os.TempDir(), newName())
		if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
			t.Fatalf("write: %v", err)
		}
		t.Cleanup(func() { os.Remove(secret) })
		if r := m.sh("test -e " + secret); r.Code == 0 {
			t.Errorf("the host's temporary directory shows")
		}
		if m.caps.UIDRange {
			for _, line := range strings.Split(strings.TrimSpace(m.must("cat /proc/self/mountinfo")), "\n") {
				f := strings.Fields(line)
				if root := f[3]; root != "/" && strings.Count(root, "/") > 1 {
					t.Errorf("a mount names a path of the host: %s", line)
				}
				for _, kind := range []string{os.TempDir() + "/", "/var/lib/", "/home/", "/root/", "/opt/"} {
					if strings.Contains(line, "="+kind) {
						t.Errorf("a mount's options name a path of the host: %s", line)
					}
				}
			}
		}
	}},
	{Name: "machines see nothing of each other", Full: true, Run: func(t T, p sandbox.Provider) {
		a, b := start(t, p), start(t, p)
		a.must("echo secret > /tmp/secret; echo secret > ~/secret")
		a.begin(guest.Exec{Argv: []string{"sleep", "3331"}})
		id := a.begin(guest.Exec{Argv: []string{"perl", "-MIO::Socket::INET", "-e",
			`my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:7070") or die; print "up\n"; $| = 1; STDOUT->flush; sleep 9996`}})
		eventually(t, "listener", func() bool {
			return a.exec(guest.Exec{Argv: tcp("127.0.0.1", 7070, "true")}).Code == 0
		})
		_ = id
		equal(t, "processes", b.running("sleep 3331"), 0)
		if r := b.sh("test -e /tmp/secret || test -e ~/secret"); r.Code == 0 {
			t.Errorf("another machine's files show")
		}
		if r := b.exec(guest.Exec{Argv: tcp("127.0.0.1", 7070, "true")}); r.Code == 0 {
			t.Errorf("another machine's listener can be reached")
		}
	}},
	{Name: "a machine reaches no network", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("listen: %v", err)
		}
		t.Cleanup(func() { l.Close() })
		port := l.Addr().(*net.TCPAddr).Port
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatalf("addresses: %v", err)
		}
		hosts := []string{"192.0.2.1", "169.254.169.254"}
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
				hosts = append(hosts, ip.IP.String())
			}
		}
		for _, h := range hosts {
			if r := m.exec(guest.Exec{Timeout: 5e9, Argv: tcp(h, port, "true")}); r.Code == 0 || r.TimedOut {
				t.Errorf("connecting to %s:%d: %+v", h, port, r.Exit)
			}
		}
	}},
	{Name: "machine root may do what packages need, in its machine", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if !m.caps.Root {
			err := m.Start(t.Context(), guest.Exec{ID: ids(), User: guest.Root, Argv: []string{"true"}})
			var r *guest.Refused
			if !asError(err, &r) || r.Code != "unsupported" || !strings.Contains(r.Message, "root") {
				t.Errorf("a command as root: %v, want a refusal that says why", err)
			}
			return
		}
		equal(t, "root's work", m.mustAs(guest.Root, `set -e
			touch /usr/bin/mine; install -o 33 -g 42 -m 4755 /bin/true /usr/local/bin/suid; mkdir -p /etc/mine /opt/mine
			chown 1000:1000 /opt/mine; ln -s true /usr/bin/mine-too; rm /usr/bin/mine-too; stat -c '%u %g %a' /usr/local/bin/suid`), "33 42 4755\n")
		if r := m.sh("touch /usr/bin/other || touch /etc/other || touch /usr/local/bin/other"); r.Code == 0 {
			t.Errorf("the sandbox's user may write the system")
		}
		if _, err := os.Stat("/usr/bin/mine"); err == nil {
			t.Errorf("the host's /usr was written")
		}
		other := start(t, p)
		if r := other.sh("test -e /usr/bin/mine"); r.Code == 0 {
			t.Errorf("another machine sees what root wrote here")
		}
		if err := p.Stop(t.Context(), m.id); err != nil {
			t.Fatalf("stop: %v", err)
		}
		equal(t, "after a stop", wake(t, p, m.id).must("stat -c '%u %g %a' /usr/local/bin/suid; stat -c %U /opt/mine"), "33 42 4755\nsprite\n")
	}},
	{Name: "root that rearranges its machine harms its machine alone", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if !m.caps.Root {
			return
		}
		victim := filepath.Join(os.TempDir(), newName())
		m.mustAs(guest.Root, fmt.Sprintf(`mv /usr/local/lib /usr/local/lib2 && ln -s %s /usr/local/lib; mv /opt /opt2; ln -s / /opt; rm -rf /etc/hosts; ln -s /proc/1/root /srv/x; rm -f /usr/local/bin/sudo`, victim))
		if err := p.Stop(t.Context(), m.id); err != nil {
			t.Fatalf("stop: %v", err)
		}
		again := wake(t, p, m.id)
		again.must("test -x " + guest.Shell)
		if _, err := os.Lstat(victim); err == nil {
			t.Errorf("a link inside led the provider to make %s on the host", victim)
		}
	}},
}
