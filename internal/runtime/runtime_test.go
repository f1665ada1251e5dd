package runtime

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdk "github.com/coder/acp-go-sdk"

	"managoat/sandbox/guest"
)

func TestClaudesCommandIsFoundInItsWrapper(t *testing.T) {
	t.Parallel()
	wrap := func(word string) []string {
		return []string{"bash", "-c", "source /home/sprite/.managoat/c/x/shell-snapshots/snapshot-bash-1.sh 2>/dev/null || true && { shopt -u extglob || setopt NO_EXTENDED_GLOB; } 2>/dev/null || true && eval " + word + " < /dev/null && pwd -P >| /tmp/claude-32a2-cwd"}
	}
	for word, want := range map[string]string{
		`'echo out; echo err >&2; exit 3'`:     `echo out; echo err >&2; exit 3`,
		`'it'"'"'s' `:                          "",
		`'it'"'"'s'`:                           `it's`,
		`'it'\''s'`:                            `it's`,
		`ls`:                                   `ls`,
		`"say \"hi\" \$HOME \n"`:               `say "hi" $HOME \n`,
		"'two\nlines && eval '\\''x'\\'''":     "two\nlines && eval 'x'",
		`'echo " < /dev/null && pwd -P" done'`: `echo " < /dev/null && pwd -P" done`,
		`'unclosed`:                            "",
	} {
		got, ok := claude{}.Recorded(wrap(word))
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q %v, want %q", word, got, ok, want)
		}
	}
	for _, argv := range [][]string{nil, {"bash"}, {"bash", "-c", "touch hooked"}, {"bash", "-c", "node server.js && pwd -P"}} {
		if got, ok := (claude{}).Recorded(argv); ok {
			t.Errorf("%q is the command %q of a tool call", argv, got)
		}
	}
	if got, ok := (command{}).Recorded([]string{"bash", "-lc", "make"}); !ok || got != "make" {
		t.Errorf("%q %v", got, ok)
	}
}

// Updates as adapters send them, in the forms that were recorded.
func TestOutcomesAreReadFromTheFieldsOfEveryAdapter(t *testing.T) {
	t.Parallel()
	three, zero := 3, 0
	for name, c := range map[string]struct {
		runtime string
		update  string
		want    Outcome
	}{
		"claude, a command that failed":  {Claude, `{"status":"failed","rawOutput":"Exit code 3\nout\nerrline","content":[{"type":"content","content":{"type":"text","text":"fenced"}}]}`, Outcome{Output: "out\nerrline", Told: true, ExitCode: &three}},
		"claude, one that printed none":  {Claude, `{"status":"failed","rawOutput":"Exit code 3"}`, Outcome{Told: true, ExitCode: &three}},
		"claude, one that went well":     {Claude, `{"status":"completed","rawOutput":"fine","_meta":{"claudeCode":{"toolName":"Bash","toolResponse":{"stdout":"fine\n","stderr":"","interrupted":false}}}}`, Outcome{Output: "fine\n", Told: true}},
		"claude, a code that is a guess": {Claude, `{"status":"failed","rawOutput":"it failed","_meta":{"terminal_exit":{"exit_code":1}}}`, Outcome{Output: "it failed", Told: true}},
		"claude, an edit":                {Claude, `{"status":"completed","content":[{"type":"content","content":{"type":"text","text":"updated"}}],"_meta":{"claudeCode":{"toolResponse":{"filePath":"/x"}}}}`, Outcome{Output: "updated", Told: true}},
		"a terminal's exit":              {Command, `{"status":"failed","_meta":{"terminal_exit":{"exit_code":3,"signal":null}}}`, Outcome{ExitCode: &three}},
		"an object with everything":      {Command, `{"status":"failed","rawOutput":{"stdout":"out\n","stderr":"err\n","exit_code":3}}`, Outcome{Output: "out\nerr\n", Told: true, ExitCode: &three}},
		"an object with metadata":        {Command, `{"status":"completed","rawOutput":{"output":"x","metadata":{"exit":0}}}`, Outcome{Output: "x", Told: true, ExitCode: &zero}},
		"nothing at all":                 {Command, `{"status":"completed","content":[]}`, Outcome{}},
	} {
		var u sdk.SessionToolCallUpdate
		if err := json.Unmarshal([]byte(c.update), &u); err != nil {
			t.Fatal(err)
		}
		m := ReadMessage(json.RawMessage(`{"update":` + c.update + `}`))
		r, ok := Get(c.runtime)
		if !ok {
			t.Fatal(c.runtime)
		}
		got := r.Outcome(ToolCall{Status: string(*u.Status), RawOutput: m.RawOutput, Response: m.Meta.Claude.Response, Content: u.Content, Exit: m.Meta.TerminalExit})
		code := func(n *int) int {
			if n == nil {
				return -1
			}
			return *n
		}
		if got.Output != c.want.Output || got.Told != c.want.Told || code(got.ExitCode) != code(c.want.ExitCode) {
			t.Errorf("%s: %+v, exit %d; want %+v, exit %d", name, got, code(got.ExitCode), c.want, code(c.want.ExitCode))
		}
	}
}

func TestNothingLeadsAroundTheModelGateway(t *testing.T) {
	t.Parallel()
	l := Launch{Home: "/home/sprite/.managoat/c/1", Model: "some-model", Provider: "anthropic", Token: "mgw_token"}
	set, unset := claude{}.Fixed(l)
	if set["ANTHROPIC_BASE_URL"] != "http://"+guest.ModelHost || set["ANTHROPIC_API_KEY"] != "mgw_token" || set["ANTHROPIC_MODEL"] != "some-model" || set["CLAUDE_CONFIG_DIR"] != l.Home {
		t.Errorf("%v", set)
	}
	for _, name := range []string{"CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"} {
		if !slices.Contains(unset, name) {
			t.Errorf("%s may be set", name)
		}
	}
	for _, provider := range []string{"openai", "openai_compatible", "google"} {
		l.Provider = provider
		set, _ := command{}.Fixed(l)
		found := false
		for name, value := range set {
			found = found || strings.HasSuffix(name, "_BASE_URL") && strings.HasPrefix(value, ModelURL)
		}
		if !found {
			t.Errorf("%s: %v", provider, set)
		}
	}
	if set, _ := (command{}).Fixed(Launch{}); len(set) != 0 {
		t.Errorf("a command without a model gets %v", set)
	}
}

func TestAHomeHoldsTheGatewaysTokenAndNoKey(t *testing.T) {
	t.Parallel()
	l := Launch{Home: "/home/sprite/.managoat/c/1", Provider: "openai", Token: "mgw_token", Model: "some-model", System: "words", Skills: []Skill{{"one", "text"}}}
	files := codex{}.Credentials(l)
	if len(files) != 1 || files[0].Path != "auth.json" || string(files[0].Data) != `{"auth_mode":"apikey","OPENAI_API_KEY":"mgw_token"}` || files[0].Mode != 0o600 {
		t.Errorf("codex logs in with %+v", files)
	}
	for name, want := range map[string]struct{ variable, instructions, skill string }{
		Claude: {"CLAUDE_CONFIG_DIR", "CLAUDE.md", "skills/one"}, Codex: {"CODEX_HOME", "AGENTS.md", "skills/one"}, Gemini: {"GEMINI_CLI_HOME", ".gemini/GEMINI.md", ".gemini/skills/one"},
	} {
		r, _ := Get(name)
		if set, _ := r.Fixed(l); set[want.variable] != l.Home {
			t.Errorf("%s is pointed at its home with %v", name, set)
		}
		files := r.Files(l)
		if len(files) != 2 || files[0].Path != want.instructions || string(files[0].Data) != "words" || files[1].Replaces != want.skill || files[1].Path != want.skill+"/SKILL.md" || string(files[1].Data) != "text" {
			t.Errorf("%s: %+v", name, files)
		}
		for _, f := range append(files, r.Credentials(Launch{})...) {
			if strings.Contains(string(f.Data), "mgw_token") {
				t.Errorf("%s: %s holds a token before any start", name, f.Path)
			}
		}
	}
}

func TestLocksPinExactVersionsWithDigests(t *testing.T) {
	t.Parallel()
	for _, p := range packages {
		var manifest struct {
			Version      string
			Dependencies map[string]string
		}
		b, err := locks.ReadFile("locks/" + p.Name + "/package.json")
		if err != nil || json.Unmarshal(b, &manifest) != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		for name, version := range manifest.Dependencies {
			if strings.ContainsAny(version, "^~*<>=x ") {
				t.Errorf("%s: %s is not pinned: %s", p.Name, name, version)
			}
		}
		var lock struct {
			Packages map[string]struct {
				Resolved, Integrity      string
				HasInstallScript         bool
				InBundle, Link, Optional bool
			}
		}
		b, err = locks.ReadFile("locks/" + p.Name + "/package-lock.json")
		if err != nil || json.Unmarshal(b, &lock) != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		for name, e := range lock.Packages {
			if name == "" || e.InBundle {
				continue
			}
			// Where it comes from is npm's setting on the host; what comes is not.
			if !strings.HasPrefix(e.Integrity, "sha512-") || e.Resolved != "" || e.HasInstallScript {
				t.Errorf("%s: %s has integrity %q, comes from %q, install script %v", p.Name, name, e.Integrity, e.Resolved, e.HasInstallScript)
			}
		}
	}
}

func TestTheDirectoryIsMountedBeforeAnythingIsInstalled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "runtimes")
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
	mounts := Mounts(dir)
	if len(mounts) != 2 || mounts[0].Target != MountPoint || mounts[1].Target+"/bin" != guest.NodePath {
		t.Errorf("%+v", mounts)
	}
	for _, m := range mounts {
		if info, err := os.Stat(m.Source); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", m.Source, err)
		}
	}
	if Installed(Claude, dir) || Installed(Codex, dir) || !Installed(command{}.Installs(), dir) {
		t.Error("what is not there is installed")
	}
	node, _ := pinned(Node)
	adapter, _ := pinned(Claude)
	for _, p := range []Pinned{node, adapter} {
		if err := os.MkdirAll(filepath.Join(dir, p.Dir()), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "claude", "0.1.0-00000000"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !Installed(Claude, dir) {
		t.Error("it is not installed")
	}
	found, err := List(dir)
	if err != nil || len(found) != 3 || found[0].Name != Node || found[1].Version != "0.1.0" || found[1].Current || !found[2].Current || found[2].Version != adapter.Version {
		t.Errorf("%+v %v", found, err)
	}
	if err := Install(t.Context(), "nothing", dir, func(string) {}); err == nil || !strings.Contains(err.Error(), "node, claude") {
		t.Errorf("%v", err)
	}
}

func TestOneInstallationOfANameRunsAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := lockName(t.Context(), dir, "x", func(string) { t.Error("waited for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	waits, got := make(chan string, 1), make(chan error)
	go func() {
		second, err := lockName(t.Context(), dir, "x", func(line string) { waits <- line })
		if err == nil {
			second()
		}
		got <- err
	}()
	if line := <-waits; line != "waiting for another installation of x" {
		t.Error(line)
	}
	unlock()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// What npm installed must be readable for the machines' users, whatever the server's umask is.
func TestInstalledFilesMayBeReadByEverybody(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"data": 0o600, "bin/run": 0o700} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/nowhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := openTree(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o755, "bin": 0o755, "data": 0o644, "bin/run": 0o755} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v %v, want %v", name, info.Mode().Perm(), err, want)
		}
	}
}
