package conformance

import (
	"strings"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// setup runs a script the way a setup step does.
func (m *machine) setup(script string) result {
	m.t.Helper()
	return m.exec(guest.Exec{Argv: []string{"bash", "-c", script}, Sudo: true})
}

var sudoChecks = []Check{
	{Name: "sudo works in a setup and nowhere else", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if !m.caps.Root {
			if r := m.setup("sudo id -u"); r.Code == 0 || !strings.Contains(r.err, "sudo") {
				t.Errorf("sudo without root: %+v %q", r.Exit, r.err)
			}
			return
		}
		for _, c := range []struct {
			script, out string
			code        int
		}{
			{"sudo id -u", "0\n", 0},
			{"sudo -u sprite id -u", "1000\n", 0},
			{"sudo -n -E -H sh -c 'echo $HOME $USER $SUDO_USER'", "/root root sprite\n", 0},
			{"X=kept DEBIAN_FRONTEND=noninteractive sudo sh -c 'echo $X $DEBIAN_FRONTEND'", "kept noninteractive\n", 0},
			{"sudo X=set sh -c 'echo $X'", "set\n", 0},
			{"cd /tmp && sudo pwd", "/tmp\n", 0},
			{"echo in | sudo cat", "in\n", 0},
			{"sudo sh -c 'exit 9'", "", 9},
			{"sudo sh -c 'kill -TERM $$'", "", 143},
			{"sudo sh -c 'sudo id -u; sudo -u sprite id -u'", "0\n1000\n", 0},
			{"sudo -s 'echo' 'a b'", "a b\n", 0},
			{"sudo -i pwd", "/root\n", 0},
			{"sudo -v && sudo -k && sudo true && echo fine", "fine\n", 0},
			{"echo text | sudo tee /etc/by-sudo", "text\n", 0},
			{"for i in 1 2 3 4 5; do sudo sh -c \"echo $i\" & done; wait", "", 0},
		} {
			r := m.setup(c.script)
			if r.Code != c.code || (c.out != "" && r.out != c.out) || r.err != "" {
				t.Errorf("%s: %q %q %+v", c.script, r.out, r.err, r.Exit)
			}
		}
		if r := m.setup("sudo no-such-program"); r.Code == 0 || !strings.Contains(r.err, "executable not found") {
			t.Errorf("an unknown program: %q %+v", r.err, r.Exit)
		}
		if r := m.setup("sudo -u nobody true"); r.Code == 0 || !strings.Contains(r.err, "no user nobody") {
			t.Errorf("an unknown user: %q %+v", r.err, r.Exit)
		}
		if r := m.sh("sudo id -u"); r.Code == 0 || !strings.Contains(r.err, "setup only") {
			t.Errorf("sudo of an agent: %q %q %+v", r.out, r.err, r.Exit)
		}
		if r := m.sh("MANAGOAT_SUDO_FD=240 sudo id -u; MANAGOAT_SUDO_FD=0 sudo id -u"); r.Code == 0 || r.out != "" {
			t.Errorf("sudo of an agent that pretends: %q %q %+v", r.out, r.err, r.Exit)
		}
	}},
	{Name: "what sudo runs ends with the setup that asked for it", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		if !m.caps.Root {
			return
		}
		r := m.exec(guest.Exec{Argv: []string{"bash", "-c", "sudo sh -c 'setsid sleep 2221 & sleep 2222'"}, Sudo: true, Timeout: 500 * time.Millisecond})
		if !r.TimedOut {
			t.Errorf("exit: %+v", r.Exit)
		}
		count := func(mark string) int {
			out := m.mustAs(guest.Root, "ps ax -o args | grep -c '["+mark[:1]+"]"+mark[1:]+"' || true")
			return len(strings.TrimSpace(strings.ReplaceAll(out, "0", "")))
		}
		equal(t, "processes left", count("sleep 222"), 0)
		// A sudo that is killed takes its command along.
		if r := m.setup("sudo sleep 2223 & sleep 0.3; kill -9 $!; sleep 0.3; true"); r.Code != 0 {
			t.Errorf("%+v %s", r.Exit, r.err)
		}
		eventually(t, "end", func() bool { return count("sleep 2223") == 0 })
		// A daemon that a setup leaves behind has lost the way to root.
		m.setup("(sleep 1; sudo id -u > /tmp/late 2>&1; echo $? >> /tmp/late) > /dev/null 2>&1 &")
		eventually(t, "late sudo", func() bool { return strings.HasSuffix(m.must("cat /tmp/late 2>/dev/null || true"), "1\n") })
		if out := m.must("cat /tmp/late"); strings.HasPrefix(out, "0\n") {
			t.Errorf("a daemon of a setup that has ended became root: %q", out)
		}
	}},
}
