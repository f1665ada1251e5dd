package conversation_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/internal/agent"
	"managoat/internal/conversation"
	"managoat/internal/conversation/conversationtest"
	"managoat/internal/environment"
	"managoat/internal/mcp"
	"managoat/internal/refusal"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/sandbox/guest"
)

// templates is a setup script that looks at what it finds and fills the runtime template, the same for each runtime: plain
// files and directories of every mode, what is not to be copied, and what Managoat writes itself.
const templates = `set -e
cd "$MANAGOAT_RUNTIME_TEMPLATE"
[ "$PWD" = /home/sprite/.managoat/template ]
find . | sort > /home/sprite/found
for r in claude codex gemini; do
	cd "$MANAGOAT_RUNTIME_TEMPLATE/$r"
	printf 'a\0b\377\r\n%s' "$PWD" > bytes; chmod 640 bytes
	mkdir -p deep/er deep/closed deep/empty skills/ours skills/theirs
	echo '#!/bin/sh' > deep/er/hook.sh; chmod 750 deep/er/hook.sh
	echo x > deep/closed/file; chmod 400 deep/closed/file; chmod 500 deep/closed
	ln -s /etc/passwd link; ln -s deep linked; ln -s nowhere dangling; mkfifo pipe
	perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("socket")) or die'
	for f in CLAUDE.md AGENTS.md GEMINI.md; do echo 'template words' > $f; done
	for s in ours theirs; do echo "template $s" > skills/$s/SKILL.md; echo more > skills/$s/more; done
	echo '{"auth_mode": "apikey", "OPENAI_API_KEY": "sk-of-the-template"}' > auth.json
	echo '[mcp_servers.own]' > config.toml
	echo '{"hooks": {"Stop": []}, "permissions": {"allow": ["Bash"]}, "env": {"A": "<&>"}, "big": 12345678901234567890, "showThinkingSummaries": false, "mcpServers": {"old": {"command": "false"}}}' > settings.json
	chmod 644 settings.json; cp settings.json .claude.json
done
`

// runtimesWithTemplates says where each runtime has its things in a config home.
var runtimesWithTemplates = map[string]struct {
	place, instructions string
	merged              map[string]string // by file: our key in it
}{
	agent.Claude: {"", "CLAUDE.md", map[string]string{"settings.json": "showThinkingSummaries", ".claude.json": "mcpServers"}},
	agent.Codex:  {"", "AGENTS.md", nil},
	agent.Gemini: {".gemini", "GEMINI.md", map[string]string{"settings.json": "mcpServers"}},
}

const skill = "---\nname: ours\ndescription: What we do.\n---\nAs we do it.\n"

// homes is a workspace in which config homes are made.
type homes struct {
	parking
	ws uuid.UUID
}

// make starts a conversation and has its home made. Its working directory is one that a link leads out of, so that its turn
// ends before anything is started.
func (h homes) make(runtime string, edits ...func(*agent.Config)) (id uuid.UUID, place string) {
	h.t.Helper()
	id = h.Launch(conversation.CreateInput{AgentID: h.Of(runtime, edits...), WorkspaceID: &h.ws, Cwd: "/home/sprite/away/x"}).ID
	h.again(id)
	return id, path.Join("/home/sprite/.managoat/c", id.String(), runtimesWithTemplates[runtime].place)
}

// again comes to a conversation's config home once more.
func (h homes) again(id uuid.UUID) {
	h.t.Helper()
	must(h.t, h.Ask(id, "hello"), conversation.Failed, conversation.CodeDirectory)
}

// in runs a command in the machine.
func (h homes) in(format string, args ...any) string {
	h.t.Helper()
	return h.InMachine(h.ws, fmt.Sprintf(format, args...))
}

// object reads a JSON file.
func (h homes) object(file string) map[string]json.RawMessage {
	h.t.Helper()
	var v map[string]json.RawMessage
	if err := json.Unmarshal([]byte(h.in("cat %s", file)), &v); err != nil {
		h.t.Fatalf("%s: %v", file, err)
	}
	return v
}

func TestConfigHomes(t *testing.T) {
	t.Parallel()
	w := conversationtest.New(t, conversationtest.Options{Lives: lives})
	for r := range runtimesWithTemplates {
		w.Of(r) // with its key
	}
	set := func(t *testing.T, script string) homes {
		t.Helper()
		ws := w.Ready(w.Workspace(w.Environment(func(in *environment.Input) { in.SetupScript = script })).ID).ID
		h := homes{parking{w, t}, ws}
		h.in("ln -s /etc /home/sprite/away")
		return h
	}
	one := set(t, templates)

	if got := one.in("cat /home/sprite/found"); got != ".\n./claude\n./codex\n./gemini" {
		t.Errorf("the script found %q", got)
	}
	for runtime, where := range runtimesWithTemplates {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			h := homes{parking{w, t}, one.ws}
			from := "/home/sprite/.managoat/template/" + runtime
			copied(h, runtime, from)
			oursWin(h, runtime)
			for file, key := range where.merged {
				merged(h, runtime, file, key)
			}
		})
	}
	t.Run("acp has no template", func(t *testing.T) {
		t.Parallel()
		h := homes{parking{w, t}, one.ws}
		h.in("mkdir /home/sprite/.managoat/template/acp && touch /home/sprite/.managoat/template/acp/file")
		id := w.Launch(conversation.CreateInput{AgentID: w.Agent(""), WorkspaceID: &h.ws}).ID
		must(t, w.Ask(id, "say hi"), conversation.Completed, "")
		if got := h.in("ls -A /home/sprite/.managoat/c/%s", id); got != "" {
			t.Errorf("its home holds %q", got)
		}
	})
	t.Run("codex and gemini have their homes and then say that they are not installed", func(t *testing.T) {
		t.Parallel()
		for runtime, dir := range map[string]string{agent.Codex: "/home/sprite", agent.Gemini: "/tmp/gemini-workspace"} {
			id := w.Launch(conversation.CreateInput{AgentID: w.Of(runtime), WorkspaceID: &one.ws}).ID
			turn := w.Ask(id, "hello")
			must(t, turn, conversation.Failed, conversation.CodeNotInstalled)
			if got := stages(w, id); !strings.HasSuffix(got, "home done, adapter failed runtime_not_installed, turn failed runtime_not_installed") || !strings.Contains(turn.Error.Message, "claude") {
				t.Errorf("%s: %s; %s", runtime, got, turn.Error.Message)
			}
			if v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, id); err != nil || v.Cwd != dir || v.Status != conversation.Idle {
				t.Errorf("%s: %+v %v", runtime, v, err)
			}
			w.InMachine(one.ws, "test -d "+dir+" && test -O "+dir)
			if got := notices(w, id); got != "" {
				t.Errorf("%s: notices %s", runtime, got)
			}
		}
	})
	t.Run("a wake copies nothing and sets our keys again", func(t *testing.T) {
		t.Parallel()
		wakes(set(t, templates))
	})
	t.Run("what cannot be copied fails every conversation until it is mended", func(t *testing.T) {
		t.Parallel()
		broken(set(t, `cd "$MANAGOAT_RUNTIME_TEMPLATE" && mkdir codex/deep && sudo install -m 600 /dev/null codex/deep/secret && sudo install -d -m 700 gemini/locked`))
	})
	t.Run("links are not templates", func(t *testing.T) {
		t.Parallel()
		links(set(t, `for r in claude codex gemini; do touch "$MANAGOAT_RUNTIME_TEMPLATE/$r/copied"; done`))
	})
	t.Run("a rebuilt machine has a new template before any conversation", func(t *testing.T) {
		t.Parallel()
		rebuilt(set(t, `echo first > "$MANAGOAT_RUNTIME_TEMPLATE/codex/built"`))
	})
	t.Run("a home that cannot be removed is in nobody's way", func(t *testing.T) {
		t.Parallel()
		h := homes{parking{w, t}, one.ws}
		id, place := h.make(agent.Codex)
		h.in("cd %s; deep=$(printf 'd/%%.0s' $(seq 400)); for i in 1 2 3; do mkdir -p $deep; cd $deep; done", place)
		if _, err := w.Conversations.Terminate(t.Context(), w.Owner.Actor, id); err != nil {
			t.Fatal(err)
		}
		h.make(agent.Codex)
		h.in("rm -r %s/d", place)
		h.make(agent.Codex)
		h.in("test ! -e %s", place)
	})
	t.Run("a machine of its own", func(t *testing.T) {
		t.Parallel()
		ownMachine(w, t)
	})
	t.Run("variables of MCP servers", func(t *testing.T) {
		t.Parallel()
		variables(w, t)
	})
}

// copied checks what is copied: regular files and directories, byte for byte, with their modes; and only once.
func copied(h homes, runtime, from string) {
	first, home := h.make(runtime)
	const list = `find . \( -type f -o -type d \) ! -name '*.json' -printf '%%P %%y %%m\n' | sort`
	if got, want := h.in("cd %s && "+list, home), h.in("cd %s && chmod 700 . && "+list, from); got != want || !strings.Contains(got, "deep/er/hook.sh f 750\n") || !strings.Contains(got, "deep/closed d 500\n") {
		h.t.Errorf("%s: the home holds\n%s\nthe template\n%s", runtime, got, want)
	}
	h.in("cd %s && cmp bytes %[2]s/bytes && cmp config.toml %[2]s/config.toml && cmp deep/closed/file %[2]s/deep/closed/file && grep -q %[2]s bytes", home, from)
	if got := h.in(`find %s ! -type f ! -type d`, home); got != "" {
		h.t.Errorf("%s: copied %s", runtime, got)
	}
	if got := h.in("stat -c %%a /home/sprite/.managoat/c/%s", first); got != "700" {
		h.t.Errorf("%s: the home's mode is %s", runtime, got)
	}
	h.in("echo changed > %s/later; echo changed >> %[1]s/bytes", from)
	h.again(first)
	_, second := h.make(runtime)
	h.in("test ! -e %s/later && ! grep -q changed %[1]s/bytes && test -e %s/later && grep -q changed %[2]s/bytes", home, second)
}

// oursWin checks what is written over the template's.
func oursWin(h homes, runtime string) {
	file := runtimesWithTemplates[runtime].instructions
	_, plain := h.make(runtime)
	if got := h.in("cd %s && cat %s skills/ours/SKILL.md && ls skills/ours", plain, file); got != "template words\ntemplate ours\nSKILL.md\nmore" {
		h.t.Errorf("%s without instructions and skills: %s", runtime, got)
	}
	_, home := h.make(runtime, func(c *agent.Config) {
		c.System, c.Skills = "agent's words", []agent.Skill{{Name: "ours", Content: skill}, {Name: "another", Content: strings.Replace(skill, "ours", "another", 1)}}
	})
	if got := h.in("cd %s && cat %s && ls skills skills/ours skills/theirs && cat skills/theirs/SKILL.md", home, file); got != "agent's wordsskills:\nanother\nours\ntheirs\n\nskills/ours:\nSKILL.md\n\nskills/theirs:\nSKILL.md\nmore\ntemplate theirs" {
		h.t.Errorf("%s: %s", runtime, got)
	}
	if got := h.in("cat %s/skills/ours/SKILL.md", home); got+"\n" != skill {
		h.t.Errorf("%s: the skill is %q", runtime, got)
	}
	if runtime != agent.Codex {
		return
	}
	if got := h.in("cd %s && cat auth.json && stat -c ' %%a' auth.json && cat config.toml", plain); got != `{"auth_mode":"apikey","OPENAI_API_KEY":null} 600`+"\n[mcp_servers.own]" {
		h.t.Errorf("auth.json and config.toml: %s", got)
	}
}

var ownServer = mcp.Servers{"shelf": {Command: "shelf", Args: []string{"--cost", "$$5"}, Env: map[string]string{"A": "b"}}, "far": {Type: "http", URL: "https://example.com/mcp", Headers: map[string]string{"X": "y"}}}

// shown is how the servers stand in a file whose reader expands variables.
const shown = `{"far":{"type":"http","url":"https://example.com/mcp","headers":{"X":"y"}},"shelf":{"command":"shelf","args":["--cost","${MANAGOAT_DOLLAR:-$}5"],"env":{"A":"b"}}}`

// merged checks that a JSON file keeps all but our key, and its mode.
func merged(h homes, runtime, file, key string) {
	_, home := h.make(runtime, func(c *agent.Config) { c.MCPServers = ownServer })
	got := h.object(home + "/" + file)
	for k, want := range h.object("/home/sprite/.managoat/template/" + runtime + "/" + file) {
		if k != key && compact(got[k]) != compact(want) {
			h.t.Errorf("%s %s: %s became %s", runtime, file, k, got[k])
		}
	}
	want := "true"
	if key == "mcpServers" {
		want = shown
	}
	if compact(got[key]) != want {
		h.t.Errorf("%s %s: %s is %s", runtime, file, key, got[key])
	}
	if mode := h.in("stat -c %%a %s/%s", home, file); mode != "644" {
		h.t.Errorf("%s %s has mode %s", runtime, file, mode)
	}
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return "not JSON"
	}
	return b.String()
}

// wakes checks that a home is what the conversation made of it, but for our keys, and that the agent's servers are those it has
// now.
func wakes(h homes) {
	type made struct{ id, agent uuid.UUID }
	all := map[string]made{}
	for runtime := range runtimesWithTemplates {
		agent := h.Of(runtime, func(c *agent.Config) { c.System, c.MCPServers = "first words", ownServer })
		id := h.Launch(conversation.CreateInput{AgentID: agent, WorkspaceID: &h.ws, Cwd: "/home/sprite/away/x"}).ID
		h.again(id)
		all[runtime] = made{id, agent}
	}
	h.in("mkdir -p /tmp/gemini-workspace && echo kept > /tmp/gemini-workspace/work")
	for runtime, m := range all {
		where := runtimesWithTemplates[runtime]
		h.in("cd /home/sprite/.managoat/c/%s/%s && rm bytes && echo mine > %s && rm -r skills", m.id, where.place, where.instructions)
		for file := range where.merged {
			h.in(`cd /home/sprite/.managoat/c/%s/%s && echo '{"hooks": 1, "mine": {"x": 2}, "mcpServers": {"mine": {"command": "x"}}}' > %s`, m.id, where.place, file)
		}
		h.in("touch /home/sprite/.managoat/template/%s/later", runtime)
		edit := func(c *agent.Config) error {
			c.System, c.MCPServers = "second words", mcp.Servers{"shelf": ownServer["shelf"]}
			return nil
		}
		if _, err := h.Agents.Update(h.t.Context(), h.Owner.Actor, m.agent, 0, edit); err != nil {
			h.t.Fatal(err)
		}
	}
	h.pass(&h.ws, time.Hour)
	h.sweep()
	h.parked(&h.ws)
	for runtime, m := range all {
		where := runtimesWithTemplates[runtime]
		h.again(m.id)
		home := path.Join("/home/sprite/.managoat/c", m.id.String(), where.place)
		if got := h.in("cd %s && cat %s; ls -d bytes skills later 2>/dev/null; true", home, where.instructions); got != "mine" {
			h.t.Errorf("%s: after the wake the home has %q", runtime, got)
		}
		for file, key := range where.merged {
			got := h.object(home + "/" + file)
			want := "true"
			if key == "mcpServers" {
				want = `{"shelf":` + strings.SplitAfterN(shown, `"shelf":`, 2)[1]
			}
			if compact(got[key]) != want || compact(got["mine"]) != `{"x":2}` || compact(got["hooks"]) != "1" {
				h.t.Errorf("%s: %s is %s", runtime, file, got)
			}
		}
	}
	if got := h.in("cat /tmp/gemini-workspace/work"); got != "kept" {
		h.t.Errorf("gemini's own folder lost %q", got)
	}
}

// broken checks how a template fails conversations of a workspace, and that the next prompt goes on when it is mended.
func broken(h homes) {
	const template = "/home/sprite/.managoat/template/"
	type fault struct{ name, runtime, break_, mend, reason, path string }
	faults := []fault{
		{"a file written with sudo", agent.Codex, "true", "rm -f codex/deep/secret", "unreadable", template + "codex/deep/secret"},
		{"a directory made with sudo", agent.Gemini, "true", "rmdir gemini/locked", "unreadable", template + "gemini/locked"},
		{"a directory that cannot be written", agent.Codex, "mkdir codex/skills && chmod 500 codex/skills", "chmod 700 codex/skills", "read_only", ""},
		{"a tree that goes too deep", agent.Codex, "mkdir -p codex/$(printf 'd/%.0s' {1..120})", "rm -r codex/d", guest.ErrTooLarge, template + "codex"},
	}
	for runtime, where := range runtimesWithTemplates {
		for file := range where.merged {
			at := runtime + "/" + file
			for name, content := range map[string]string{"a list": "[1]", "half": "{", "null": "null"} {
				faults = append(faults, fault{name, runtime, "echo '" + content + "' > " + at, "rm " + at, "not_a_json_object", template + at})
			}
			faults = append(faults, fault{"a directory", runtime, "mkdir " + at, "rmdir " + at, "not_a_json_object", template + at})
		}
	}
	for _, f := range faults {
		h.InMachine(h.ws, "cd "+template+" && "+f.break_)
		launch := func() uuid.UUID {
			return h.Launch(conversation.CreateInput{WorkspaceID: &h.ws, Cwd: "/home/sprite/away/x",
				AgentID: h.Of(f.runtime, func(c *agent.Config) { c.Skills = []agent.Skill{{Name: "ours", Content: skill}} })}).ID
		}
		id := launch()
		for _, c := range []uuid.UUID{id, id, launch()} { // the same way until it is mended
			turn := h.Ask(c, "hello")
			must(h.t, turn, conversation.Failed, conversation.CodeRuntimeTemplate)
			if at := turn.Error.Fields["path"]; turn.Error.Fields["reason"] != f.reason || at != f.path && f.path != "" || !strings.Contains(turn.Error.Message, f.path) ||
				!strings.HasSuffix(turn.Error.Message, "or rebuild the workspace.") {
				h.t.Errorf("%s %s: %+v", f.runtime, f.name, turn.Error)
			}
		}
		if v, err := h.Conversations.Get(h.t.Context(), h.Owner.Actor, id); err != nil || v.Status != conversation.Idle {
			h.t.Errorf("%s %s: the conversation is %s %v", f.runtime, f.name, v.Status, err)
		}
		h.in("cd %s && %s", template, f.mend)
		h.again(id)
	}
	// A file that the conversation itself breaks later is named where it lies.
	id, home := h.make(agent.Claude)
	h.in("echo nonsense > %s/settings.json", home)
	turn := h.Ask(id, "hello")
	must(h.t, turn, conversation.Failed, conversation.CodeRuntimeTemplate)
	if turn.Error.Fields["path"] != home+"/settings.json" {
		h.t.Errorf("broken later: %+v", turn.Error)
	}
	h.in("rm %s/settings.json", home)
	h.again(id)
	// A file where our directory must lie gives way.
	h.in("rm -r %scodex/skills && echo x > %[1]scodex/skills", template)
	_, home = h.make(agent.Codex, func(c *agent.Config) { c.Skills = []agent.Skill{{Name: "ours", Content: skill}} })
	h.in("test -f %s/skills/ours/SKILL.md", home)
}

// links checks that neither a runtime's directory nor the template is used through a link.
func links(h homes) {
	for _, link := range []string{
		"for r in claude codex gemini; do mv template/$r $r-real && ln -s ../$r-real template/$r; done",
		"rm template/* && for r in claude codex gemini; do mv $r-real template/$r; done && mv template real && ln -s real template",
	} {
		h.in("cd /home/sprite/.managoat && %s", link)
		for runtime := range runtimesWithTemplates {
			if _, home := h.make(runtime); h.in("ls -d %s/copied 2>/dev/null || true", home) != "" {
				h.t.Errorf("%s: copied through a link: %s", runtime, link)
			}
		}
	}
	h.in("cd /home/sprite/.managoat && rm template && mv real template")
	_, home := h.make(agent.Gemini)
	h.in("test -f %s/copied", home)
}

// rebuilt checks that a machine that is built anew has its template before conversations move there.
func rebuilt(h homes) {
	first, home := h.make(agent.Codex)
	second, other := h.make(agent.Codex)
	h.in("grep first %s/built %s/built && echo x > %[1]s/mine", home, other)
	ws, err := h.Workspaces.Get(h.t.Context(), h.Owner.Actor, h.ws)
	if err != nil {
		h.t.Fatal(err)
	}
	edit := func(in *environment.Input) error {
		in.SetupScript = "ln -s /etc /home/sprite/away; ls -d ~/.managoat/c > ~/moved-before-the-script; " + strings.Replace(in.SetupScript, "first", "second", 1)
		return nil
	}
	if _, err := h.Environments.Update(h.t.Context(), h.Owner.Actor, *ws.EnvironmentID, edit); err != nil {
		h.t.Fatal(err)
	}
	h.DestroyMachine(h.ws)
	h.again(first)
	h.again(second)
	if got := h.in("cat %s/built %s/built; ls %[1]s/mine 2>/dev/null; cat ~/moved-before-the-script", home, other); got != "second\nsecond" {
		h.t.Errorf("the homes on the new machine: %s", got)
	}
	if got := notices(h.World, first); got != "new_machine" {
		h.t.Errorf("notices: %s", got)
	}
}

// ownMachine checks conversations without a workspace: they have the template of their own setup, and one that it fails stays
// failed.
func ownMachine(w *conversationtest.World, t *testing.T) {
	launch := func(script string) conversation.Conversation {
		env := w.Environment(func(in *environment.Input) { in.SetupScript = script })
		return w.Launch(conversation.CreateInput{AgentID: w.Of(agent.Codex), EnvironmentID: &env})
	}
	good := launch(`echo hi > "$MANAGOAT_RUNTIME_TEMPLATE/codex/mine"`)
	must(t, w.Ask(good.ID, "hello"), conversation.Failed, conversation.CodeNotInstalled)
	if got := w.InMachine(good.WorkspaceID, "cat ~/.managoat/c/"+good.ID.String()+"/mine"); got != "hi" {
		t.Errorf("its home has %q", got)
	}
	bad := launch(`sleep 1; cd "$MANAGOAT_RUNTIME_TEMPLATE/codex" && sudo install -m 600 /dev/null secret`)
	w.Prompt(bad.ID, "hello")
	if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, bad.ID, conversation.PromptInput{Prompt: "later", Queue: true}); err != nil {
		t.Fatal(err)
	}
	must(t, w.Ended(bad.ID, 1), conversation.Failed, conversation.CodeRuntimeTemplate)
	if got := story(w, bad.ID); got != "1? hello, 1! runtime_template, 1 failed runtime_template, 2? later, 2! runtime_template, 2 failed runtime_template" {
		t.Errorf("the transcript: %s", got)
	}
	v, err := w.Conversations.Get(t.Context(), w.Owner.Actor, bad.ID)
	if err != nil || v.Status != conversation.Failed || v.Error == nil || v.Error.Code != conversation.CodeRuntimeTemplate || v.Error.Fields["reason"] != "unreadable" {
		t.Errorf("%+v %v", v, err)
	} else if m := v.Error.Message; !strings.Contains(m, "start a new conversation") || strings.Contains(m, "workspace") {
		t.Errorf("there is no workspace to mend or to rebuild, and the advice is: %s", m)
	}
	if _, err := w.Conversations.Prompt(t.Context(), w.Owner.Actor, bad.ID, conversation.PromptInput{Prompt: "again"}); !refusal.Is(err, refusal.ConversationTerminated) {
		t.Errorf("a prompt into it: %v", err)
	}
}

// variables checks where the values in MCP servers come from, when, and what a session is told of the servers.
func variables(w *conversationtest.World, t *testing.T) {
	env := w.Environment(func(in *environment.Input) { in.EnvVars = map[string]string{"PLAIN": "plain", "BOTH": "environment"} })
	box, err := w.Vaults.Create(t.Context(), w.Owner.Actor, vault.Input{Name: "box " + uuid.NewString()})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := w.Vaults.PutSecret(t.Context(), w.Owner.Actor, box.ID, vault.SecretInput{Key: key, Value: secretOf(value)}); err != nil {
			t.Fatal(err)
		}
	}
	put("BOTH", "vault")
	made, err := w.Workspaces.Create(t.Context(), w.Owner.Actor, workspace.CreateInput{Name: "variables", EnvironmentID: env, VaultID: &box.ID})
	if err != nil {
		t.Fatal(err)
	}
	ws := w.Ready(made.ID).ID
	a := w.Agent("", func(c *agent.Config) {
		c.MCPServers = mcp.Servers{
			"near": {Command: "${PLAIN}", Args: []string{"${BOTH} $${BOTH} $5"}, Env: map[string]string{"K": "${NEW}"}},
			"far":  {Type: "http", URL: "${ADDRESS}", Headers: map[string]string{"Authorization": "Bearer ${NEW}"}},
		}
	})
	id := w.Launch(conversation.CreateInput{AgentID: a, WorkspaceID: &ws}).ID
	turn := w.Ask(id, "servers")
	must(t, turn, conversation.Failed, conversation.CodeMCPVariables)
	if got := fmt.Sprint(turn.Error.Fields["missing"]); got != "[ADDRESS NEW]" || !strings.Contains(turn.Error.Message, "ADDRESS, NEW") {
		t.Errorf("missing %s: %s", got, turn.Error.Message)
	}
	put("NEW", "new")
	put("ADDRESS", "ftp://example.com")
	turn = w.Ask(id, "servers")
	must(t, turn, conversation.Failed, conversation.CodeMCPInvalid)
	if !strings.Contains(turn.Error.Message, "far.url") {
		t.Errorf("an address that is none: %+v", turn.Error)
	}
	put("ADDRESS", "http://x.example.com/mcp")
	must(t, w.Ask(id, "servers"), conversation.Completed, "")
	const want = `[{"headers":[{"name":"Authorization","value":"Bearer new"}],"name":"far","type":"http","url":"http://x.example.com/mcp"},` +
		`{"args":["vault ${BOTH} $5"],"command":"plain","env":[{"name":"K","value":"new"}],"name":"near"}]`
	if got := w.Said(id); got != strings.ReplaceAll(want, "http://x.example.com/mcp", "[REDACTED]") {
		t.Errorf("the session was told %s", got)
	}
	// The agent drops one, and its next wake has it no more; a type that the runtime does not take is no silent loss.
	change := func(s mcp.Servers) {
		t.Helper()
		edit := func(c *agent.Config) error { c.MCPServers = s; return nil }
		if _, err := w.Agents.Update(t.Context(), w.Owner.Actor, a, 0, edit); err != nil {
			t.Fatal(err)
		}
		w.StopMachine(ws)
	}
	change(mcp.Servers{"near": {Command: "x"}})
	must(t, w.Ask(id, "servers"), conversation.Completed, "")
	if got := w.Said(id); !strings.HasSuffix(got, `[{"args":[],"command":"x","env":[],"name":"near"}]`) {
		t.Errorf("after the wake it was told %s", got)
	}
	change(mcp.Servers{"far": {Type: "sse", URL: "https://example.com"}})
	turn = w.Ask(id, "servers")
	must(t, turn, conversation.Failed, conversation.CodeMCPTransport)
	if turn.Error.Fields["server"] != "far" || turn.Error.Fields["type"] != "sse" {
		t.Errorf("%+v", turn.Error)
	}
	// An agent that is gone leaves those that its conversation began with.
	if err := w.Agents.Delete(t.Context(), w.Owner.Actor, a); err != nil {
		t.Fatal(err)
	}
	must(t, w.Ask(id, "servers"), conversation.Completed, "")
	if got := w.Said(id); !strings.HasSuffix(got, `"name":"near"}]`) || strings.Count(got, "Bearer") != 2 {
		t.Errorf("without its agent it was told %s", got)
	}
}
