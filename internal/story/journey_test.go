package story

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"managoat/internal/testworld"
)

// shop is where the tests' environments mount the shop.
const shop = "/home/sprite/shop"

// waitForBranch is a piece of a setup script that goes on when the repository has a branch.
func waitForBranch(branch string) string {
	return "until git -C " + shop + " ls-remote --exit-code origin refs/heads/" + branch + " >/dev/null; do sleep 0.1; done\n"
}

// shopEnvironment builds a machine with everything that a setup can hold. Its script waits for the branch go.
func shopEnvironment(repo *testworld.Repository) body {
	return body{
		"packages":     body{"apt": []string{testworld.HelloPackage.Name}, "npm": []string{testworld.GreetPackage.Name}},
		"repositories": []body{{"url": repo.URL, "mount_path": shop}},
		"setup_script": "set -e\nmanagoat-hello\nmanagoat-greet\n" +
			"cd " + shop + "\n./run-tests.sh || echo \"the tests ended with $?\"\n" +
			"echo 'waiting for the branch'\n" + waitForBranch("go") +
			"for i in $(seq 20); do echo \"line $i\"; sleep 0.05; done\n",
	}
}

// setupSteps are all steps of a setup, in order.
var setupSteps = []string{"machine", "broker", "environment", "packages", "repositories", "setup_script"}

func TestAWorkspaceIsBuiltBeforeTheEyesAndAnAgentMendsItsRepository(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	a.credential(world)
	repo := world.Git.Add("journey", testworld.Shop)
	world.Model.Script("mend the cart of the journey", testworld.RepairShop(shop)...)
	world.Model.Script("what did you change on the journey", testworld.Reply{testworld.Say("An operator, ", "nothing else.")})
	a.environment(shopEnvironment(repo).with(body{"name": "shop"}))
	a.claude(body{"name": "builder", "system": "You mend shops."})

	// The setup is shown as it runs: what the script printed is here before the script can go on.
	out, wait := a.follow("workspace", "create", "shop", "--environment", "shop", "-f")
	until(t, "the script's first lines", func() bool { return strings.Contains(out.String(), "waiting for the branch\n") })
	if w := get[[]Workspace](a, "/api/workspaces"); len(w) != 1 || w[0].Status != "provisioning" || w[0].SetupStep != "setup_script" {
		t.Errorf("meanwhile the workspace is %+v", w)
	}
	if strings.Contains(out.String(), "line 1\n") {
		t.Error("the script did not wait")
	}
	repo.Commit("go", "Go on", nil)
	if code := wait(); code != 0 || !strings.HasSuffix(out.String(), "line 20\n✓ ready\n") {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	place := -1
	var headings []string
	for _, step := range setupSteps {
		headings = append(headings, "◐ "+step+"\n")
	}
	for _, want := range append(headings, "hello from a Debian package", "hello from an npm package", testworld.ShopFails, "the tests ended with 1", "line 1\n", "line 20\n") {
		at := strings.Index(out.String(), want)
		if at <= place || strings.Count(out.String(), want) != 1 {
			t.Errorf("%q is not once and in its place of:\n%s", want, out)
		}
		place = max(at, place)
	}
	w := get[[]Workspace](a, "/api/workspaces")[0]
	for i, step := range get[struct{ Steps []Step }](a, "/api/workspaces/"+w.ID+"/setup-log").Steps {
		if step.Step != setupSteps[i] || step.State != "done" || step.DurationMS == nil || step.DroppedBytes != 0 {
			t.Errorf("step %d: %+v", i, step)
		}
	}
	if text := string(a.download("/api/workspaces/" + w.ID + "/setup-log")); !strings.Contains(text, "line 20") {
		t.Errorf("the log: %s", text)
	}
	if stdout, _, code := a.cli("workspace", "list"); code != 0 || !strings.Contains(stdout, "shop") || !strings.Contains(stdout, "ready") {
		t.Errorf("workspace list: exit %d\n%s", code, stdout)
	}

	// The agent at work, on the command line.
	stdout, stderr, code := a.cli("run", "builder", "--workspace", "shop", "--cwd", shop, "-p", "Please mend the cart of the journey.")
	if code != 0 {
		t.Fatalf("run: exit %d\n%s%s", code, stdout, stderr)
	}
	place = -1
	for _, want := range []string{"I'll look at the cart before I run its tests.", "exit 1", "adds where it should multiply", "exit 0", "multiplies the price by the quantity now.\n"} {
		at := strings.Index(stdout, want)
		if at <= place {
			t.Errorf("%q is not in its place of:\n%s", want, stdout)
		}
		place = max(at, place)
	}
	id := strings.TrimSpace(strings.TrimPrefix(stderr[strings.Index(stderr, "conversation "):], "conversation "))
	checkRepair(t, a, id, 1)
	if !world.Model.Heard("You mend shops.") {
		t.Error("the model did not hear the system prompt")
	}

	// What changed is on the disk: as a diff, and as a patch to take home.
	at := "?path=" + url.QueryEscape(shop)
	diff := get[struct {
		Diff      string
		Truncated bool
	}](a, "/api/workspaces/"+w.ID+"/diff"+at)
	if !strings.Contains(diff.Diff, "-    echo $(($1 + $2))\n+    echo $(($1 * $2))\n") || diff.Truncated {
		t.Errorf("the diff: %+v", diff)
	}
	status, err := json.Marshal(get[json.RawMessage](a, "/api/workspaces/"+w.ID+"/git-status"+at))
	if err != nil || !strings.Contains(string(status), "cart.sh") || strings.Contains(string(status), "README") {
		t.Errorf("the status: %s %v", status, err)
	}
	clone := checkout(t, repo)
	patch := filepath.Join(t.TempDir(), "shop.patch")
	if err := os.WriteFile(patch, a.download("/api/workspaces/"+w.ID+"/patch"+at), 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, clone, "apply", patch)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(clone, "run-tests.sh")).CombinedOutput(); err != nil || !strings.Contains(string(out), testworld.ShopPasses) {
		t.Errorf("the tests with the patch applied: %v\n%s", err, out)
	}

	// The same on the command line.
	for _, c := range []struct {
		verb string
		args []string
		want string
		exit int
	}{
		{"files", []string{shop}, "run-tests.sh", 0},
		{"files", []string{"--json", shop}, `"truncated": false`, 0},
		{"cat", []string{shop + "/cart.sh"}, "echo $(($1 * $2))\n", 0},
		{"cat", []string{"--max-bytes", "2", shop + "/cart.sh"}, "the first bytes of", 0},
		{"cat", []string{"/etc/passwd"}, "path_outside_sandbox", 1},
		{"git-status", []string{shop}, " M cart.sh\n", 0},
		{"diff", []string{shop}, diff.Diff, 0},
		{"diff", []string{"--ref", "nowhere", shop}, "ref_not_found", 1},
		{"diff", []string{"--staged", "--json", shop}, `"diff": ""`, 0},
		{"cat", nil, "accepts 2 arg(s)", 2},
	} {
		stdout, stderr, code := a.cli(append([]string{"workspace", c.verb, "shop"}, c.args...)...)
		if said := stdout + stderr; code != c.exit || !strings.Contains(said, c.want) {
			t.Errorf("workspace %s shop %v: exit %d\n%s", c.verb, c.args, code, said)
		}
	}

	// A second prompt continues the same session.
	stdout, stderr, code = a.cli("run", "builder", "--conversation", id, "-p", "And what did you change on the journey?")
	if code != 0 || !strings.Contains(stdout, "An operator, nothing else.") {
		t.Errorf("the second prompt: exit %d\n%s%s", code, stdout, stderr)
	}
	calls := world.Model.Calls()
	last := slices.IndexFunc(calls, func(c testworld.ModelCall) bool { return c.Marker == "what did you change on the journey" })
	if last < 0 || !bytes.Contains(calls[last].Body, []byte("mend the cart of the journey")) {
		t.Error("the second turn does not know of the first")
	}

	// The list, by pages of any size, and the stream are the same rows.
	all := a.events(id, 500)
	for i, e := range all {
		if e.Seq != int64(i+1) {
			t.Fatalf("row %d has number %d", i+1, e.Seq)
		}
	}
	sameRows(t, "the list by small pages", a.events(id, 7), all)
	sameRows(t, "the stream", a.replay(id), all)

	a.modelKeyStaysOutside(world)
	a.deletedLeavesNothing(w)
	if c := get[Conversation](a, "/api/conversations/"+id); c.Status != "terminated" || c.WorkspaceID != w.ID {
		t.Errorf("the conversation of a deleted workspace: %+v", c)
	}
	if no := a.refused("POST", "/api/conversations/"+id+"/prompts", body{"prompt": "hello"}); no.Status != 410 {
		t.Errorf("a prompt after the workspace's end: %+v", no)
	}
}

// checkRepair looks for everything that RepairShop does in the transcript's rows of a turn.
func checkRepair(tb testing.TB, a *Account, id string, turn int) {
	tb.Helper()
	if t := a.completed(id, turn); t.StopReason != "end_turn" {
		tb.Errorf("the turn's stop reason is %q", t.StopReason)
	}
	var results []Event
	for _, e := range a.rows(id, "tool_result") {
		if e.TurnNumber == turn {
			results = append(results, e)
		}
	}
	if len(results) != 4 {
		tb.Fatalf("%d results of tools: %+v", len(results), results)
	}
	read, failing, edit, passing := results[0].Body, results[1].Body, results[2].Body, results[3].Body
	if read.Status != "completed" || !strings.Contains(read.Output, "line_total") {
		tb.Errorf("the read: %+v", read)
	}
	if failing.Status != "failed" || failing.ExitCode == nil || *failing.ExitCode != 1 || !strings.Contains(failing.Output, testworld.ShopFails) || failing.Source.ExitCode != "machine" {
		tb.Errorf("the first test run: %+v", failing)
	}
	if edit.Status != "completed" {
		tb.Errorf("the edit: %+v", edit)
	}
	if passing.Status != "completed" || passing.ExitCode == nil || *passing.ExitCode != 0 || !strings.Contains(passing.Output, testworld.ShopPasses) || passing.Source.ExitCode != "machine" {
		tb.Errorf("the second test run: %+v", passing)
	}
	inputs := ""
	for _, e := range a.rows(id, "tool_call") {
		inputs += string(e.Body.Input)
	}
	for _, want := range []string{shop + "/cart.sh", "./run-tests.sh", "old_string"} {
		if !strings.Contains(inputs, want) {
			tb.Errorf("%q is not in the inputs %s", want, inputs)
		}
	}
}

// modelKeyStaysOutside looks for the account's model key everywhere on this host but in the model's own hands, and for
// what stands for it in the model's.
func (a *Account) modelKeyStaysOutside(world *testworld.World) {
	a.tb.Helper()
	tokens := map[string]bool{}
	processes(func(pid string, read func(string) []byte) {
		for _, file := range []string{"environ", "cmdline"} {
			all := read(file)
			if bytes.Contains(all, []byte(a.ModelKey)) {
				a.tb.Errorf("the model key is in the %s of process %s (%s)", file, pid, read("comm"))
			}
			for _, v := range bytes.Split(all, []byte{0}) {
				if token, ok := bytes.CutPrefix(v, []byte("ANTHROPIC_API_KEY=")); ok {
					tokens[string(token)] = true
				}
			}
		}
	})
	if len(tokens) == 0 {
		a.tb.Error("no adapter runs with anything that stands for a key")
	}
	for token := range tokens {
		if world.Model.Heard(token) {
			a.tb.Errorf("the model heard what stands for its key")
		}
	}
	asked := 0
	for _, r := range world.Model.Requests() {
		if r.Key() == a.ModelKey {
			asked++
		}
	}
	if asked == 0 {
		a.tb.Error("the model was never asked with the account's key")
	}
	// On the disk: machines, the egress process's spool, and the database, where it is sealed.
	out, err := exec.CommandContext(a.tb.Context(), "grep", "-rlaF", "--devices=skip", "-e", a.ModelKey, a.server.dir).CombinedOutput()
	if len(out) > 0 {
		a.tb.Errorf("the model key lies in:\n%s(%v)", out, err)
	}
}

// deletedLeavesNothing deletes a workspace and looks for what is left of its machine.
func (a *Account) deletedLeavesNothing(w Workspace) {
	a.tb.Helper()
	w = get[Workspace](a, "/api/workspaces/"+w.ID)
	if w.SandboxID == nil {
		a.tb.Fatalf("no machine: %+v", w)
	}
	name := machine(*w.SandboxID)
	if !a.server.kept(a.tb, name) || len(groups(name)) == 0 || len(running(name)) == 0 {
		a.tb.Fatal("the machine is not where the test would look for what is left of it")
	}
	a.do("DELETE", "/api/workspaces/"+w.ID, nil)
	until(a.tb, "the machine to be gone", func() bool { return !a.server.kept(a.tb, name) })
	until(a.tb, "the workspace to be gone", func() bool { return a.gone("/api/workspaces/" + w.ID) })
	until(a.tb, "its processes and groups to be gone", func() bool { return len(groups(name)) == 0 && len(running(name)) == 0 })
	processes(func(pid string, read func(string) []byte) {
		if bytes.Contains(read("mountinfo"), []byte(name)) {
			a.tb.Errorf("process %s (%s) still has a mount of it", pid, bytes.TrimSpace(read("comm")))
		}
	})
}

// replay reads a transcript from its stream.
func (a *Account) replay(id string) []Event {
	a.tb.Helper()
	frames := a.download("/api/conversations/" + id + "/stream?wait=false")
	var all []Event
	for _, frame := range bytes.Split(bytes.TrimSpace(frames), []byte("\n\n")) {
		for _, line := range bytes.Split(frame, []byte("\n")) {
			data, ok := bytes.CutPrefix(line, []byte("data: "))
			if !ok || !bytes.Contains(frame, []byte("id: ")) {
				continue
			}
			var e Event
			if err := json.Unmarshal(data, &e); err != nil {
				a.tb.Fatalf("frame %q: %v", frame, err)
			}
			all = append(all, e)
		}
	}
	return all
}

// sameRows compares transcripts row by row, as they came.
func sameRows(tb testing.TB, what string, got, want []Event) {
	tb.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			tb.Fatalf("%s ends at row %d of %d", what, len(got), len(want))
		case i >= len(want):
			tb.Fatalf("%s has %d rows more, from %s", what, len(got)-len(want), got[i].raw)
		case got[i].raw != want[i].raw:
			tb.Fatalf("%s, row %d:\n got %s\nwant %s", what, i+1, got[i].raw, want[i].raw)
		}
	}
	if len(want) == 0 {
		tb.Fatal(fmt.Sprint(what, ": there are no rows to compare"))
	}
}
