package story

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"managoat/internal/testworld"
)

const keptOutput = 64 << 10 // bytes of a setup step's output that its log keeps

func TestSetupsThatMisbehaveAreShownAsWhatTheyAre(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	repo := world.Git.Add("setups", testworld.Shop)
	const flood = 100 << 20
	for name, c := range map[string]struct {
		script string
		fields body
		fails  string // the step that must fail; "" is none
		look   func(t *testing.T, w Workspace, step Step)
	}{
		"reads standard input": {script: "read -r x; echo \"read '$x', $?\"", look: func(t *testing.T, w Workspace, step Step) {
			if step.Output != "read '', 1\n" {
				t.Errorf("it printed %q", step.Output)
			}
		}},
		"leaves a daemon": {script: "nohup sleep 87651 & echo left $!", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(step.Output, "left ") || *step.DurationMS > 60_000 {
				t.Errorf("it took %d ms and printed %q", *step.DurationMS, step.Output)
			}
		}},
		"never ends": {script: "echo begun; sleep 87652; echo ended", fields: body{"setup_timeout_seconds": 2}, fails: "setup_script", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(w.Error.Message, "2s") || w.Error.OutputTail != "begun" && w.Error.OutputTail != "begun\n" || w.Error.Signal == "" && w.Error.ExitCode == nil {
				t.Errorf("%+v", w.Error)
			}
			until(t, "its process to be gone", func() bool { return !alive("87652") })
		}},
		"ignores its end": {script: "trap '' TERM INT HUP; echo begun; while :; do sleep 87653; done", fields: body{"setup_timeout_seconds": 1}, fails: "setup_script", look: func(t *testing.T, w Workspace, step Step) {
			until(t, "its processes to be gone", func() bool { return !alive("87653") })
		}},
		"prints a flood": {script: fmt.Sprintf("yes 'a line of the flood' | head -c %d; echo; echo the end", flood), look: func(t *testing.T, w Workspace, step Step) {
			if len(step.Output) > keptOutput || !strings.HasSuffix(step.Output, "the end\n") || step.DroppedBytes+int64(len(step.Output)) != int64(flood+len("\nthe end\n")) {
				t.Errorf("it keeps %d bytes and dropped %d; they end with %q", len(step.Output), step.DroppedBytes, step.Output[max(0, len(step.Output)-30):])
			}
		}},
		"prints binary": {script: `head -c 30000 /dev/urandom; printf '\nnul \0, half \303'; sleep 0.3; printf '\251, cut \342\202'`, look: func(t *testing.T, w Workspace, step Step) {
			if !utf8.ValidString(step.Output) || strings.ContainsRune(step.Output, 0) || !strings.Contains(step.Output, "nul \u2400, half é, cut \ufffd") {
				t.Errorf("its end is %q", step.Output[max(0, len(step.Output)-60):])
			}
		}},
		"exits with 7": {script: "echo out; echo 'what went wrong' >&2; exit 7", fails: "setup_script", look: func(t *testing.T, w Workspace, step Step) {
			if w.Error.ExitCode == nil || *w.Error.ExitCode != 7 || step.ExitCode == nil || *step.ExitCode != 7 || !strings.Contains(w.Error.OutputTail, "what went wrong") || !strings.Contains(w.Error.Message, "7") {
				t.Errorf("%+v %+v", w.Error, step)
			}
		}},
		"kills itself": {script: "echo dying; kill -9 $$", fails: "setup_script", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(w.Error.Signal, "KILL") && !strings.Contains(strings.ToLower(w.Error.Signal), "kill") || w.Error.OutputTail == "" {
				t.Errorf("%+v", w.Error)
			}
		}},
		"has Windows line ends": {script: "echo one\r\nif true; then\r\n  echo two\r\nfi\r\n", look: func(t *testing.T, w Workspace, step Step) {
			if step.Output != "one\ntwo\n" {
				t.Errorf("it printed %q", step.Output)
			}
		}},
		"is no script": {script: "if then fi ((", fails: "setup_script", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(w.Error.OutputTail, "syntax error") {
				t.Errorf("%+v", w.Error)
			}
		}},
		"wants a package that breaks": {fields: body{"packages": body{"apt": []string{testworld.BrokenPackage.Name}}}, fails: "packages", look: func(t *testing.T, w Workspace, step Step) {
			if w.Error.ExitCode == nil || *w.Error.ExitCode == 0 || !strings.Contains(w.Error.OutputTail, testworld.BrokenPackage.Name) {
				t.Errorf("%+v", w.Error)
			}
		}},
		"wants a package that is not there": {fields: body{"packages": body{"npm": []string{"managoat-nowhere"}}}, fails: "packages", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(w.Error.OutputTail, "managoat-nowhere") {
				t.Errorf("%+v", w.Error)
			}
		}},
		"clones what is not there": {fields: body{"repositories": []body{{"url": world.Git.URL + "/nowhere.git", "mount_path": shop}}}, fails: "repositories", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(w.Error.OutputTail+w.Error.Message, "nowhere") {
				t.Errorf("%+v", w.Error)
			}
		}},
		"clones a branch that is not there": {fields: body{"repositories": []body{{"url": repo.URL, "mount_path": shop, "ref": "nowhere"}}}, fails: "repositories", look: func(t *testing.T, w Workspace, step Step) {
			if !strings.Contains(w.Error.OutputTail+w.Error.Message, "nowhere") {
				t.Errorf("%+v", w.Error)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := *a
			a.tb = t
			w := a.settled(a.workspace(a.environment(body{"setup_script": c.script}.with(c.fields))).ID)
			at := c.fails
			if at == "" {
				at = "setup_script"
			}
			step := a.steps(w.ID)[at]
			switch {
			case c.fails == "" && (w.Status != "ready" || step.State != "done"):
				t.Fatalf("the workspace is %s, the step %+v: %+v", w.Status, step, w.Error)
			case c.fails != "" && (w.Status != "failed" || step.State != "failed" || w.Error == nil || w.Error.Step != c.fails || w.Error.Message == ""):
				t.Fatalf("the workspace is %s, the step %+v: %+v", w.Status, step, w.Error)
			}
			c.look(t, w, step)
			a.do("DELETE", "/api/workspaces/"+w.ID, nil)
		})
	}
}

// alive tells whether a process of this host has a word in its command line.
func alive(word string) (found bool) {
	processes(func(_ string, read func(string) []byte) {
		found = found || bytes.Contains(read("cmdline"), []byte(word))
	})
	return found
}

func TestAFailedWorkspaceIsRetriedWithItsEnvironmentAsItIsNow(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	a := s.account(t)
	env := a.environment(body{"name": "broken", "setup_script": "echo 'a step that fails' >&2; exit 7"})
	out, wait := a.follow("workspace", "create", "mended", "--environment", "broken", "-f")
	if code := wait(); code != 1 || !strings.Contains(out.String(), "a step that fails\n") || !strings.Contains(out.String(), "setup_script") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	w := get[[]Workspace](a, "/api/workspaces")[0]
	a.do("PATCH", "/api/environments/"+env, body{"setup_script": "echo 'it works now'"})
	out, wait = a.follow("workspace", "retry", "mended", "--fresh", "-f")
	if code := wait(); code != 0 || !strings.Contains(out.String(), "it works now\n✓ ready\n") || strings.Contains(out.String(), "a step that fails") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	if no := a.refused("POST", "/api/workspaces/"+w.ID+"/retry", nil); no.Status != 409 || no.Code != "workspace_not_failed" {
		t.Errorf("a retry of a ready workspace: %+v", no)
	}
	// A rebuild applies the next edit, and says before what it takes with it.
	a.do("PATCH", "/api/environments/"+env, body{"setup_script": "echo 'rebuilt'"})
	for verb, want := range map[string]string{"show": "stale: setup_script", "rebuild-preview": "applies setup_script\n"} {
		if stdout, stderr, code := a.cli("workspace", verb, "mended"); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, %s%s", verb, code, stdout, stderr)
		}
	}
	// Nobody is there to be asked: it takes a word that it is meant.
	if _, stderr, code := a.cli("workspace", "rebuild", "mended", "--interrupt"); code != 2 || !strings.Contains(stderr, "--yes") {
		t.Errorf("a rebuild without a word: exit %d, %s", code, stderr)
	}
	out, wait = a.follow("workspace", "rebuild", "mended", "--interrupt", "--yes", "-f")
	if code := wait(); code != 0 || !strings.Contains(out.String(), "rebuilt\n✓ ready\n") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	again := get[Workspace](a, "/api/workspaces/"+w.ID)
	if again.Status != "ready" || *again.SandboxID == *w.SandboxID {
		t.Errorf("rebuilt: %+v", again)
	}
}

func TestAdaptersThatCrashBeforeThePromptFailTheirTurnWithTheirLastWords(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	a := s.account(t)
	w := a.ready(a.workspace(a.environment(body{"setup_script": "cat > /home/sprite/crash <<'END'\n#!/bin/sh\necho 'my licence has expired' >&2\nexit 3\nEND\n" +
		"cat > /home/sprite/babble <<'END'\n#!/bin/sh\necho 'Welcome to my prompt!'\nexit 4\nEND\nchmod +x crash babble"})).ID)
	for name, c := range map[string]struct {
		command string
		code    string
		says    string
		exit    int
	}{
		"it crashes":          {"/home/sprite/crash --acp", "adapter_crashed", "my licence has expired", 3},
		"it is not there":     {"no-such-agent --acp", "runtime_not_installed", "no-such-agent", 0},
		"it babbles and ends": {"/home/sprite/babble", "adapter_crashed", "", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := *a
			a.tb = t
			agent := call[struct{ ID string }](&a, "POST", "/api/agents", body{"name": name, "runtime": "acp", "runtime_command": c.command}).ID
			id := a.launch(agent, body{"workspace_id": w.ID, "prompt": "hello"}).ID
			a.ended(id, 1)
			turn := get[map[string]any](&a, "/api/conversations/"+id+"/turns/1")
			all, err := json.Marshal(turn["error"])
			if err != nil || turn["status"] != "failed" || !strings.Contains(string(all), `"code":"`+c.code+`"`) || !strings.Contains(string(all), c.says) {
				t.Errorf("the turn is %s: %s", turn["status"], all)
			}
			if c.exit != 0 && turn["exit_code"] != float64(c.exit) {
				t.Errorf("its exit code is %v", turn["exit_code"])
			}
			if c := get[Conversation](&a, "/api/conversations/"+id); c.Status != "idle" {
				t.Errorf("the conversation is %s: nobody can try again", c.Status)
			}
		})
	}
}

func TestWhateverAMachineAndAModelPrintIsTextInTheTranscript(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	a := s.account(t)
	a.credential(world)
	world.Model.Script("print rubbish", testworld.Reply{
		testworld.SayJSON(`nul \u0000, lone \ud800, colour \u001b[31mred `),
		testworld.SaySplit("split é", len("split ")+1),
		testworld.Call("Bash", testworld.Input{"command": `printf 'nul \0, half \303'; sleep 0.3; printf '\251, cut \342\202'`, "description": "print rubbish"}),
	}, testworld.Reply{testworld.Say(" done.")})
	w := a.workspace(a.environment(nil))
	id := a.launch(a.claude(nil), body{"workspace_id": w.ID, "prompt": "Please print rubbish."}).ID
	a.completed(id, 1)
	said := a.said(id)
	if want := "nul \u2400, lone \ufffd, colour \u001b[31mred split é done."; said != want {
		t.Errorf("it said %q, want %q", said, want)
	}
	result := a.rows(id, "tool_result")[0].Body
	if !utf8.ValidString(result.Output) || !strings.Contains(result.Output, ", half é, cut \ufffd") || strings.ContainsRune(result.Output, 0) {
		t.Errorf("the command printed %q", result.Output)
	}
	for _, e := range a.events(id, 500) {
		if !utf8.ValidString(e.raw) || strings.Contains(e.raw, `\u0000`) || strings.Contains(e.raw, `\ud800`) {
			t.Errorf("row %d is no text: %q", e.Seq, e.raw)
		}
	}
}

func TestReadsOfADiskStayInside(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	a := s.account(t)
	w := a.ready(a.workspace(a.environment(body{"setup_script": `set -e
cd /home/sprite
ln -s /etc/passwd out
ln -s / root
ln -s ../../etc up
ln -s loop loop
ln -s inside/file in
mkdir inside many
echo inside > inside/file
ln -s /etc inside/etc
mkfifo pipe
ln /etc/hostname hard 2>/dev/null || true
head -c 5000000 /dev/zero | tr '\0' x > big
printf 'a\0b\377' > binary
touch "$(printf 'odd \377 name')" "$(printf 'new\nline')"
touch $(seq -f 'many/%g' 2100)
chmod 000 inside/file; chmod 644 inside/file
sudo install -m 600 -o root /dev/null inside/secret
`})).ID)
	at := func(kind, path string, more ...string) string {
		return "/api/workspaces/" + w.ID + "/" + kind + "?path=" + url.QueryEscape(path) + strings.Join(more, "")
	}
	for name, c := range map[string]struct {
		path   string
		status int
		code   string
	}{
		"an absolute path outside":     {at("file", "/etc/passwd"), 422, "path_outside_sandbox"},
		"a path that climbs out":       {at("file", "../../etc/passwd"), 422, "path_outside_sandbox"},
		"one that climbs and returns":  {at("file", "../../etc/../home/sprite/../../etc/passwd"), 422, "path_outside_sandbox"},
		"a link out":                   {at("file", "out"), 422, "path_outside_sandbox"},
		"a way through a link":         {at("file", "root/etc/passwd"), 422, "path_outside_sandbox"},
		"a link by a relative way":     {at("file", "up/passwd"), 422, "path_outside_sandbox"},
		"a listing through a link":     {at("files", "inside/etc"), 422, "path_outside_sandbox"},
		"the root":                     {at("files", "/"), 422, "path_outside_sandbox"},
		"processes":                    {at("file", "/proc/self/environ"), 422, "path_outside_sandbox"},
		"a diff outside":               {at("diff", "root/etc"), 422, "path_outside_sandbox"},
		"a state outside":              {at("git-status", "/etc"), 422, "path_outside_sandbox"},
		"a patch outside":              {at("patch", "/etc"), 422, "path_outside_sandbox"},
		"nothing":                      {at("file", "nothing"), 404, "path_not_found"},
		"a directory as a file":        {at("file", "inside"), 422, "is_a_directory"},
		"a file as a directory":        {at("files", "binary"), 422, "not_a_directory"},
		"a file that sprite may not":   {at("file", "inside/secret"), 422, "path_unreadable"},
		"a NUL":                        {at("file", "a\x00b"), 422, "invalid_path"},
		"no text":                      {at("file", "a\xffb"), 422, "invalid_path"},
		"too long":                     {at("file", strings.Repeat("x/", 3000)), 422, "invalid_path"},
		"a diff with an option as ref": {at("diff", ".", "&ref=--output=/tmp/x"), 422, ""},
		"what is no repository":        {at("git-status", "inside"), 422, ""},
	} {
		if no := a.refused("GET", c.path, nil); no.Status != c.status || c.code != "" && no.Code != c.code || no.Message == "" {
			t.Errorf("%s: %d %s %q, want %d %s", name, no.Status, no.Code, no.Message, c.status, c.code)
		}
	}
	for name, path := range map[string]string{"a link that leads to itself": at("file", "loop"), "a pipe that nobody writes": at("file", "pipe")} {
		if no := a.refused("GET", path, nil); no.Status < 400 || no.Status >= 500 {
			t.Errorf("%s: %+v", name, no)
		}
	}
	type content struct {
		Content   string
		Encoding  string
		Size      int64
		Truncated bool
	}
	if got := get[content](a, at("file", "in")); got.Content != "inside\n" || got.Truncated {
		t.Errorf("a link that stays inside: %+v", got)
	}
	if got := get[content](a, at("file", "big", "&max_bytes=1000")); len(got.Content) != 1000 || !got.Truncated || got.Size != 5_000_000 {
		t.Errorf("a big file: %d bytes, %v, of %d", len(got.Content), got.Truncated, got.Size)
	}
	if got := get[content](a, at("file", "big", "&max_bytes=99999999")); len(got.Content) != 4<<20 || !got.Truncated {
		t.Errorf("a big file with a big wish: %d bytes, %v", len(got.Content), got.Truncated)
	}
	if got := get[content](a, at("file", "binary")); got.Encoding != "base64" || got.Content != "YQBi/w==" {
		t.Errorf("a binary file: %+v", got)
	}
	type listing struct {
		Entries   []struct{ Name, Type string }
		Truncated bool
	}
	if got := get[listing](a, at("files", "many")); len(got.Entries) != 2000 || !got.Truncated {
		t.Errorf("a directory of 2,100: %d entries, %v", len(got.Entries), got.Truncated)
	}
	if got := get[listing](a, at("files", "")); len(got.Entries) < 12 || got.Truncated {
		t.Errorf("the home: %+v", got)
	}
}

func TestRequestsThatAreWrongAreRefusedByTheFieldThatIs(t *testing.T) {
	t.Parallel()
	s, _ := shared(t)
	a := s.account(t)
	env := a.environment(body{"name": "taken"})
	long := strings.Repeat("x", 201)
	repository := func(url, at string) string {
		return fmt.Sprintf(`{"name":"x","repositories":[{"url":%q,"mount_path":%q}]}`, url, at)
	}
	for name, c := range map[string]struct {
		path   string
		body   string
		status int
		says   string // in the answer
	}{
		"no JSON":                      {"/api/environments", `name: x`, 400, "bad_request"},
		"half a JSON":                  {"/api/environments", `{"name": "x"`, 400, "bad_request"},
		"two JSONs":                    {"/api/environments", `{"name": "x"}{"name": "y"}`, 400, "bad_request"},
		"a list":                       {"/api/environments", `[]`, 422, "validation_failed"},
		"nothing at all":               {"/api/environments", ``, 400, "bad_request"},
		"an unknown field":             {"/api/environments", `{"name": "x", "colour": "red"}`, 422, "colour"},
		"an unknown field in a field":  {"/api/environments", `{"name": "x", "packages": {"gem": ["x"]}}`, 422, "gem"},
		"a field of another case":      {"/api/environments", `{"Name": "x"}`, 422, "Name"},
		"a number for a name":          {"/api/environments", `{"name": 7}`, 422, "name"},
		"a text for a number":          {"/api/environments", `{"name": "x", "setup_timeout_seconds": "120"}`, 422, "setup_timeout_seconds"},
		"half a second":                {"/api/environments", `{"name": "x", "setup_timeout_seconds": 1.5}`, 422, "setup_timeout_seconds"},
		"a time that is too long":      {"/api/environments", `{"name": "x", "setup_timeout_seconds": 901}`, 422, "setup_timeout_seconds"},
		"a name that is taken":         {"/api/environments", `{"name": "taken"}`, 422, "name_taken"},
		"no name":                      {"/api/environments", `{}`, 422, "name"},
		"a name of spaces":             {"/api/environments", `{"name": " \t "}`, 422, "name"},
		"a name that is too long":      {"/api/environments", `{"name": "` + long + `"}`, 422, "name"},
		"a name with a line end":       {"/api/environments", `{"name": "a\nb"}`, 422, "name"},
		"a name with a NUL":            {"/api/environments", `{"name": "a\u0000b"}`, 422, "name"},
		"a name with half a character": {"/api/environments", "{\"name\": \"a\xc3\"}", 400, "bad_request"},
		"a repository over http":       {"/api/environments", repository("http://git.test/x.git", "/home/sprite/x"), 422, "https"},
		"a repository over ssh":        {"/api/environments", repository("git@github.com:x/y.git", "/home/sprite/x"), 422, "repositories"},
		"a repository in a file":       {"/api/environments", repository("file:///etc", "/home/sprite/x"), 422, "https"},
		"a program as a repository":    {"/api/environments", repository("ext::sh -c id", "/home/sprite/x"), 422, "repositories"},
		"a token in an address":        {"/api/environments", repository("https://user:token@git.test/x.git", "/home/sprite/x"), 422, "repositories"},
		"a mount that climbs":          {"/api/environments", repository("https://git.test/x.git", "/home/sprite/../../etc"), 422, "mount_path"},
		"a mount on the system":        {"/api/environments", repository("https://git.test/x.git", "/usr"), 422, "mount_path"},
		"an option as a package":       {"/api/environments", `{"name": "x", "packages": {"apt": ["--force-yes"]}}`, 422, "packages.apt"},
		"a command as a package":       {"/api/environments", `{"name": "x", "packages": {"npm": ["x; id"]}}`, 422, "packages.npm"},
		"a variable that is ours":      {"/api/environments", `{"name": "x", "env_vars": {"MANAGOAT_TOKEN": "x"}}`, 422, "MANAGOAT_TOKEN"},
		"a variable that loads code":   {"/api/environments", `{"name": "x", "env_vars": {"LD_PRELOAD": "x"}}`, 422, "LD_PRELOAD"},
		"a variable of another form":   {"/api/environments", `{"name": "x", "env_vars": {"A-B": "x"}}`, 422, "A-B"},
		"a network of another kind":    {"/api/environments", `{"name": "x", "networking_type": "none"}`, 422, "networking_type"},
		"too large a body":             {"/api/environments", `{"name": "x", "setup_script": "` + strings.Repeat("x", 2<<20) + `"}`, 413, "payload_too_large"},
		"a runtime of later":           {"/api/agents", `{"name": "x", "runtime": "opencode", "model": "openai/m"}`, 422, "not_available_yet"},
		"a runtime of never":           {"/api/agents", `{"name": "x", "runtime": "cobol", "model": "openai/m"}`, 422, "runtime"},
		"a model that does not fit":    {"/api/agents", `{"name": "x", "runtime": "claude", "model": "openai/m"}`, 422, "model"},
		"skills":                       {"/api/agents", `{"name": "x", "runtime": "claude", "model": "anthropic/m", "skills": [{"skill_id": "x"}]}`, 422, "not_available_yet"},
		"a policy that asks":           {"/api/agents", `{"name": "x", "runtime": "claude", "model": "anthropic/m", "permission_policy": {"default": "ask"}}`, 422, "not_available_yet"},
		"a workspace of nothing":       {"/api/workspaces", `{"name": "x"}`, 422, "environment_id must be given"},
		"a workspace of no id":         {"/api/workspaces", `{"name": "x", "environment_id": "taken"}`, 404, "environment_not_found"},
		"a provider that is not there": {"/api/workspaces", `{"name": "x", "environment_id": "` + env + `", "sandbox_provider": "cloud"}`, 422, "sandbox_provider"},
		"a conversation of nobody":     {"/api/conversations", `{"prompt": "hello"}`, 422, "agent_id must be given"},
		"a key to a private address":   {"/api/inference-credentials", `{"name": "x", "provider": "anthropic", "base_url": "http://169.254.169.254", "key": "k"}`, 422, "base_url"},
		"a key with a line end":        {"/api/inference-credentials", `{"name": "x", "provider": "anthropic", "key": "a\nb"}`, 422, "key"},
	} {
		got := ask(t, http.DefaultClient, "POST", s.url+c.path, a.Key, "application/json", []byte(c.body))
		var no struct{ Error, Message string }
		if err := json.Unmarshal(got.body, &no); err != nil || got.status != c.status || no.Error == "" || no.Message == "" || !bytes.Contains(got.body, []byte(c.says)) {
			t.Errorf("%s: %d %s, want %d and %q", name, got.status, got.body, c.status, c.says)
		}
		if bytes.Contains(got.body, []byte("goroutine")) || bytes.Contains(got.body, []byte("SQLSTATE")) || bytes.Contains(got.body, []byte(".go:")) {
			t.Errorf("%s shows its inside: %s", name, got.body)
		}
	}
	for name, c := range map[string]struct {
		method, path, key, contentType string
		status                         int
		code                           string
	}{
		"another content type":  {"POST", "/api/environments", a.Key, "text/plain", 415, ""},
		"a method of nothing":   {"PUT", "/api/environments", a.Key, "application/json", 405, "method_not_allowed"},
		"an address of nothing": {"GET", "/api/nothing", a.Key, "", 404, "not_found"},
		"an unknown parameter":  {"GET", "/api/environments?colour=red", a.Key, "", 422, "validation_failed"},
		"a limit of nonsense":   {"GET", "/api/environments?limit=many", a.Key, "", 422, "validation_failed"},
		"a cursor of nonsense":  {"GET", "/api/environments?after=nonsense", a.Key, "", 400, "bad_request"},
		"a key in the address":  {"GET", "/api/environments?token=" + a.Key, "", "", 400, "api_key_in_query"},
		"a key that is none":    {"GET", "/api/environments", "mgt_nonsense", "", 401, "api_key_invalid"},
	} {
		got := ask(t, http.DefaultClient, c.method, s.url+c.path, c.key, c.contentType, []byte(strings.Repeat(`{"name":"x"}`, min(1, len(c.contentType)))))
		var no struct{ Error, Message string }
		if err := json.Unmarshal(got.body, &no); err != nil || c.status != 0 && got.status != c.status || got.status < 400 || c.code != "" && no.Error != c.code || no.Message == "" {
			t.Errorf("%s: %d %s, want %d %s", name, got.status, got.body, c.status, c.code)
		}
	}
	// Odd names that are names.
	for _, odd := range []string{`a "quoted" <b>name</b> & more`, "名前 ✓ 🐐", "'; drop table environments; --", "../../etc/passwd", "%2e%2e%2f"} {
		made := call[struct{ ID, Name string }](a, "POST", "/api/environments", body{"name": odd})
		if got := get[struct{ Name string }](a, "/api/environments/"+made.ID); made.Name != odd || got.Name != odd {
			t.Errorf("the name %q became %q", odd, got.Name)
		}
	}
}

// steps are a workspace's setup log by step.
func (a *Account) steps(id string) map[string]Step {
	a.tb.Helper()
	steps := map[string]Step{}
	for _, s := range get[struct{ Steps []Step }](a, "/api/workspaces/"+id+"/setup-log").Steps {
		steps[s.Step] = s
	}
	return steps
}
