package story

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"managoat/internal/testworld"
)

// A turn is in the middle of the model's answer, and a command of another one runs, when the server is stopped and the next
// version's is started on its directory: both go on in their machine, and nothing is lost or doubled.
func TestAnUpgradeWithMachinesRunningLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	common.open(t)
	old, is := previous(t)
	t.Logf("upgraded is %s", is)
	versions := [2]string{}
	for i, binary := range []string{old, common.binary} {
		out, err := exec.Command(binary, "--version").Output()
		if versions[i] = strings.TrimSpace(string(out)); err != nil || versions[i] == "" {
			t.Fatal(err)
		}
	}
	if versions[0] == versions[1] {
		t.Fatalf("both are %s: nothing would be upgraded", versions[0])
	}
	s, world := ownOf(t, old)
	a := s.account(t)
	a.credential(world)
	w := a.workspace(a.environment(body{"setup_script": "echo built > /home/sprite/built\n"}))
	gate := testworld.NewGate()
	defer gate.Open()
	world.Model.Script("half an answer", testworld.Reply{testworld.Say("one "), testworld.Wait(gate), testworld.Say("two.")})
	world.Model.Script("hello again", testworld.Reply{testworld.Say("Again.")})
	id := a.launch(a.claude(nil), body{"workspace_id": w.ID, "prompt": "half an answer"}).ID
	until(t, "the first words", func() bool { return a.said(id) == "one " })
	w = a.ready(w.ID)
	guest, err := s.firstProcess(machine(*w.SandboxID))
	if err != nil {
		t.Fatal(err)
	}
	egress := s.egress(t)
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.binary = common.binary
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	a.moved()
	if now := s.egress(t); now != egress {
		t.Errorf("the egress process is %d, was %d: it carried a model's answer", now, egress)
	}
	gate.Open()
	a.completed(id, 1)
	if said, calls := a.said(id), len(world.Model.Calls()); said != "one two." || calls != 1 {
		t.Errorf("it said %q after %d calls of the model", said, calls)
	}
	if pid, err := s.firstProcess(machine(*w.SandboxID)); err != nil || pid != guest || !slices.Contains(running(machine(*w.SandboxID)), strconv.Itoa(guest)) {
		t.Errorf("the machine's first process is %d, was %d: %v", pid, guest, err)
	}
	if now := a.file(w.ID, "built"); now != "built\n" {
		t.Errorf("the disk holds %q", now)
	}
	a.prompt(id, "Say hello again.")
	a.completed(id, 2)
	// The conversation's agent keeps its connection for a while. Without it the egress process is replaced; one that is too
	// old for that is said to be.
	a.do("POST", "/api/conversations/"+id+"/terminate", nil)
	until(t, "an egress process of this version", func() bool {
		return s.egress(t) != egress || strings.Contains(s.log.String(), "cannot be replaced while it runs")
	})
}

// egress is the process of the server's egress.
func (s *Server) egress(t *testing.T) (found int) {
	t.Helper()
	processes(func(pid string, read func(string) []byte) {
		argv := strings.Split(string(read("cmdline")), "\x00")
		if len(argv) > 3 && argv[1] == "egress" && argv[3] == s.dir {
			found, _ = strconv.Atoi(pid)
		}
	})
	return found
}

// previous is a binary of the commit before, or where there is no history, as in a shallow clone, of this tree under another
// version; and which it is.
func previous(t *testing.T) (binary, is string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(common.dir, "previous")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	version, tree, is := "previous", root, "this tree under another version: the history is not here"
	if head, err := exec.Command("git", "-C", root, "rev-parse", "--short", "--verify", "--quiet", "HEAD^{commit}^").Output(); err == nil {
		version = strings.TrimSpace(string(head))
		tree, is = filepath.Join(dir, "tree"), "the commit before, "+version
		if out, err := exec.Command("git", "clone", "--quiet", "--shared", "--no-checkout", root, tree).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		if out, err := exec.Command("git", "-C", tree, "checkout", "--quiet", version).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	if binary, err = build(tree, dir, version+"-before"); err != nil {
		t.Fatal(err)
	}
	return binary, is
}
