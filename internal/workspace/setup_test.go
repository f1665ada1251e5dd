package workspace_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"managoat/internal/environment"
	"managoat/internal/secret"
	"managoat/internal/stream"
	"managoat/internal/vault"
	"managoat/internal/workspace"
	"managoat/internal/workspace/workspacetest"
	"managoat/sandbox"
	"managoat/sandbox/guest"

	"github.com/google/uuid"
)

// script is an environment that only has a setup script.
func script(text string) func(*environment.Input) {
	return func(in *environment.Input) { in.SetupScript = text }
}

// run runs a command as sprite in a workspace's machine and returns what it printed.
func run(t *testing.T, w *workspacetest.World, id uuid.UUID, command string) string {
	t.Helper()
	up, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, id)
	if err != nil {
		t.Fatal(err)
	}
	out, errs, exit, err := up.Guest.Run(t.Context(), guest.Exec{ID: uuid.NewString(), Argv: []string{"bash", "-c", command}, User: guest.Sprite, Spool: guest.SpoolLog})
	if err != nil {
		t.Fatal(err)
	}
	if exit.Code != 0 {
		t.Fatalf("%s: exit %d %s: %s", command, exit.Code, exit.Signal, errs)
	}
	return string(out)
}

// Each kind of script that a person writes by mistake gets the answer that says what was wrong with it.
func TestSetupScriptsGetTheRightAnswer(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	for name, c := range map[string]struct {
		script  string
		timeout int
		ready   bool
		code    int    // of a failed one; -1: none
		message string // in its error
		output  string // in its log
	}{
		"one that reads standard input finds it empty": {script: "read answer || echo \"nothing to read\"\ncat\necho after", ready: true, output: "nothing to read\nafter\n"},
		"one that leaves a daemon ends without it":     {script: "nohup sleep 600 & echo started", ready: true, output: "started\n"},
		"one that never ends is stopped":               {script: "echo working; sleep 600", timeout: 10, code: -1, message: "did not end within 10s", output: "working\n"},
		"exit code 7 is kept":                          {script: "echo before; echo broken >&2; exit 7", code: 7, message: "exited with code 7", output: "broken\n"},
		"a signal is named":                            {script: "kill -SEGV $$", code: -1, message: "SIGSEGV"},
		"a syntax error is bash's own":                 {script: "if true; then", code: 2, message: "exited with code 2", output: "syntax error"},
		"binary output is stored as text":              {script: `printf 'a\000b\377c\303'; printf '\251\n'`, ready: true, output: "a\u2400b\uFFFDcé\n"},
		"CRLF is no trouble":                           {script: "echo one\r\necho two\r\n", ready: true, output: "one\ntwo\n"},
		"sudo is root in the machine":                  {script: "sudo id -u; sudo touch /opt/made && ls -l /opt/made && id -un", ready: true, output: "0\n"},
		"the last command's code counts":               {script: "false", code: 1, message: "exited with code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws := create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
				in.SetupScript = c.script
				if c.timeout > 0 {
					in.SetupTimeoutSeconds = c.timeout
				}
			}))
			ws = settled(t, w, ws.ID)
			step := setupLog(t, w, ws.ID)["setup_script"]
			if !strings.Contains(step.Output, c.output) {
				t.Errorf("the log says %q, want %q in it", step.Output, c.output)
			}
			if c.ready {
				if ws.Status != workspace.Ready || ws.MachineStatus != "ready" || ws.SetupStep != "" || ws.Error != nil {
					t.Fatalf("status %s, machine %s, step %q, error %+v", ws.Status, ws.MachineStatus, ws.SetupStep, ws.Error)
				}
				if step.State != "done" || step.ExitCode == nil || *step.ExitCode != 0 {
					t.Errorf("step is %s with exit code %v", step.State, step.ExitCode)
				}
				return
			}
			if ws.Status != workspace.Failed || ws.MachineStatus != "failed" || ws.Error == nil {
				t.Fatalf("status %s, machine %s, error %+v", ws.Status, ws.MachineStatus, ws.Error)
			}
			e := ws.Error
			if e.Step != "setup_script" || ws.SetupStep != "setup_script" || !strings.Contains(e.Message, c.message) {
				t.Errorf("error %+v, want %q", e, c.message)
			}
			if !strings.Contains(e.OutputTail, strings.TrimSpace(c.output)) {
				t.Errorf("the error's last lines are %q, want %q in them", e.OutputTail, c.output)
			}
			switch {
			case c.code < 0 && (e.ExitCode != nil || e.Signal == ""):
				t.Errorf("a script that a signal ended has exit code %v, signal %q", e.ExitCode, e.Signal)
			case c.code >= 0 && (e.ExitCode == nil || *e.ExitCode != c.code || step.ExitCode == nil || *step.ExitCode != c.code):
				t.Errorf("exit code %v, in the log %v, want %d", e.ExitCode, step.ExitCode, c.code)
			}
			if infos, err := w.Provider.List(t.Context(), map[string]string{"managoat.workspace": ws.ID.String()}); err != nil || len(infos) != 0 {
				t.Errorf("the machine of a failed setup is still there: %v %v", infos, err)
			}
		})
	}
}

func TestAHundredMegabytesOfOutputKeepTheirEndAndAreCounted(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	const total = 100 << 20
	ws := create(t, w, makeEnvironment(t, w, script(`yes "one line of a build that never stops talking" | head -c 104857600; echo; echo END`)))
	ws = ready(t, w, ws.ID)
	step := setupLog(t, w, ws.ID)["setup_script"]
	if !strings.HasSuffix(step.Output, "\nEND\n") {
		t.Errorf("the log ends with %q", step.Output[max(0, len(step.Output)-80):])
	}
	if len(step.Output) > 64<<10 {
		t.Errorf("the log keeps %d bytes", len(step.Output))
	}
	if step.DroppedBytes == 0 || step.DroppedBytes+int64(len(step.Output)) > total+(1<<20) {
		t.Errorf("%d bytes were dropped before the %d that are kept", step.DroppedBytes, len(step.Output))
	}
	var shown, dropped int64
	for _, e := range events[stream.SetupBody](t, w, stream.WorkspaceSetup, ws.ID) {
		size := len(strings.Join(e.Lines, ""))
		if size > stream.MaxLines {
			t.Fatalf("an event carries %d bytes", size)
		}
		shown, dropped = shown+int64(size), dropped+e.Dropped
	}
	if shown > 16<<20 || dropped == 0 {
		t.Errorf("the stream carries %d bytes and drops %d", shown, dropped)
	}
}

// What a script prints is on the stream while it runs, whole, in order and line by line.
func TestOutputIsOnTheStreamWhileTheStepRuns(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := create(t, w, makeEnvironment(t, w, script(`printf 'no newline yet'; sleep 2; for i in $(seq 200); do echo "line $i"; done; sleep 1; echo last`)))
	text := func() string {
		var b strings.Builder
		for _, e := range events[stream.SetupBody](t, w, stream.WorkspaceSetup, ws.ID) {
			if e.Step == "setup_script" {
				b.WriteString(strings.Join(e.Lines, ""))
			}
		}
		return b.String()
	}
	eventually(t, "the first bytes, while the script sleeps", func() bool { return text() == "no newline yet" })
	if got := setupLog(t, w, ws.ID)["setup_script"]; got.State != "running" || got.Output != "no newline yet" {
		t.Errorf("the log says %s %q meanwhile", got.State, got.Output)
	}
	ready(t, w, ws.ID)
	want := "no newline yet"
	for i := range 200 {
		want += fmt.Sprintf("line %d\n", i+1)
	}
	want += "last\n"
	if got := text(); got != want {
		t.Errorf("the stream carried %q", got)
	}
	var steps []string
	for _, e := range events[workspace.StatusBody](t, w, stream.WorkspaceStatus, ws.ID) {
		steps = append(steps, string(e.Status)+" "+e.SetupStep)
	}
	if got, want := strings.Join(steps, ", "), "provisioning , provisioning machine"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "provisioning setup_script, ready ") {
		t.Errorf("the status went %s", got)
	}
}

func TestASetupScriptFindsItsEnvironmentAndNothingOfAConversation(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ctx := t.Context()
	env := makeEnvironment(t, w, func(in *environment.Input) {
		in.EnvVars = map[string]string{"PLAIN": "it's $HOME, \"quoted\" `and` \\more", "BOTH": "variable"}
		in.SetupScript = `
env | sort | grep -v '^PLAIN='
[ "$PLAIN" = "it's \$HOME, \"quoted\" \` + "`and\\`" + ` \\more" ] || exit 3
. ~/.env
[ "$PLAIN" = "it's \$HOME, \"quoted\" \` + "`and\\`" + ` \\more" ] || exit 4
[ "$SECRET" = from-the-vault ] || exit 5
[ "$BOTH" = from-the-environment ] || exit 6
[ "$(stat -c '%a %U' ~/.env)" = "600 sprite" ] || exit 7
[ "$(ls "$MANAGOAT_RUNTIME_TEMPLATE" | tr '\n' ' ')" = "claude codex gemini " ] || exit 8
[ -z "$(ls -A "$MANAGOAT_RUNTIME_TEMPLATE/claude")" ] || exit 9
echo "the secret is $SECRET"
echo '{}' > "$MANAGOAT_RUNTIME_TEMPLATE/claude/settings.json"
shopt login_shell`
	})
	for key, value := range map[string]string{"SECRET": "from-the-environment's own", "BOTH": "from-the-environment"} {
		if _, err := w.Environments.PutSecret(ctx, w.Owner.Actor, env.ID, environment.SecretInput{Key: key, Value: secret.New(value)}); err != nil {
			t.Fatal(err)
		}
	}
	v, err := w.Vaults.Create(ctx, w.Owner.Actor, vault.Input{Name: "vault"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Vaults.PutSecret(ctx, w.Owner.Actor, v.ID, vault.SecretInput{Key: "SECRET", Value: secret.New("from-the-vault")}); err != nil {
		t.Fatal(err)
	}
	ws, err := w.Workspaces.Create(ctx, w.Owner.Actor, workspace.CreateInput{Name: "both", EnvironmentID: env.ID, VaultID: &v.ID})
	if err != nil {
		t.Fatal(err)
	}
	ready(t, w, ws.ID)
	out := setupLog(t, w, ws.ID)["setup_script"].Output
	for _, want := range []string{
		"\nMANAGOAT_RUNTIME_TEMPLATE=/home/sprite/.managoat/template\n", "\nHOME=/home/sprite\n", "\nHTTPS_PROXY=http://127.0.0.1:3128\n",
		"\nGIT_SSL_CAINFO=/etc/ssl/certs/managoat-ca.pem\n", "\nNODE_EXTRA_CA_CERTS=/etc/ssl/certs/managoat-ca.pem\n", "\nNPM_CONFIG_REGISTRY=https://npm.test:",
		"the secret is [REDACTED]\n", "login_shell    \ton\n",
	} {
		if !strings.Contains("\n"+out, want) {
			t.Errorf("missing %q in\n%s", want, out)
		}
	}
	for _, never := range []string{"MANAGOAT_TOKEN", "MANAGOAT_CONVERSATION_ID", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "from-the-vault", "from-the-environment"} {
		if strings.Contains(out, never) {
			t.Errorf("%q in\n%s", never, out)
		}
	}
	if got := run(t, w, ws.ID, "cat ~/.managoat/template/claude/settings.json; ls -A ~/.managoat"); got != "{}\ntemplate\n" {
		t.Errorf("the script left %q", got)
	}
}

func TestPackagesComeFromTheInstancesRegistries(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
		in.Packages = environment.Packages{Apt: []string{"managoat-hello"}, Npm: []string{"managoat-greet"}}
		in.SetupScript = "managoat-hello && managoat-greet && sudo apt-get install -y --reinstall managoat-hello >/dev/null && echo again"
	}))
	ws = ready(t, w, ws.ID)
	steps := setupLog(t, w, ws.ID)
	if got := steps["setup_script"].Output; !strings.HasPrefix(got, "hello from a Debian package\nhello from an npm package\n") || !strings.HasSuffix(got, "again\n") {
		t.Errorf("the script found %q", got)
	}
	if got := steps["packages"]; got.Note != "apt 1, npm 1" || !strings.Contains(got.Output, "$ apt-get -o APT::Update::Error-Mode=any update") {
		t.Errorf("the step says %q and printed %q", got.Note, got.Output)
	}
}

// What a script installs itself, as people write it down, finds its way out as well.
func TestAScriptInstallsWithSudo(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := ready(t, w, create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
		in.EnvVars, in.SetupTimeoutSeconds = map[string]string{"MINE": "kept"}, 600
		in.SetupScript = "sudo sh -c 'echo $MINE $(id -u)'; sudo npm install -g managoat-greet >/dev/null && managoat-greet; sudo apt-get update >/dev/null; sudo apt-get install -y managoat-hello >/dev/null && managoat-hello"
	})).ID)
	if got := setupLog(t, w, ws.ID)["setup_script"].Output; !strings.HasPrefix(got, "kept 0\n") || !strings.Contains(got, "\nhello from an npm package\n") || !strings.HasSuffix(got, "\nhello from a Debian package\n") {
		t.Errorf("the script printed %q", got)
	}
}

func TestAPackageThatFailsNamesItsCommandAndItsLastLines(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	for name, c := range map[string]struct {
		packages environment.Packages
		code     int
		message  string
		tail     string
	}{
		"a postinst that fails":        {environment.Packages{Apt: []string{"managoat-broken"}}, 100, "apt-get install exited with code 100", "managoat-broken: this package cannot be configured"},
		"an apt package that is not":   {environment.Packages{Apt: []string{"no-such-package"}}, 100, "apt-get install exited with code 100", "E: Unable to locate package no-such-package"},
		"an npm package that is not":   {environment.Packages{Npm: []string{"no-such-package"}}, 1, "npm install exited with code 1", "404"},
		"apt first, npm not even then": {environment.Packages{Apt: []string{"no-such-package"}, Npm: []string{"managoat-greet"}}, 100, "apt-get install", "E: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws := settled(t, w, create(t, w, makeEnvironment(t, w, func(in *environment.Input) { in.Packages = c.packages })).ID)
			if ws.Status != workspace.Failed || ws.Error.Step != "packages" || ws.Error.ExitCode == nil || *ws.Error.ExitCode != c.code ||
				!strings.Contains(ws.Error.Message, c.message) || !strings.Contains(ws.Error.OutputTail, c.tail) {
				t.Errorf("status %s, error %+v\n%s", ws.Status, ws.Error, logText(t, w, ws.ID))
			}
		})
	}
}

// A machine whose setup script left another apt at work waits for its lock.
func TestAptWaitsForAnotherOnesLock(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t)
	ws := create(t, w, makeEnvironment(t, w, script(`
sudo python3 -c '
import fcntl, time
f = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(f, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(3)' > /tmp/lock &
until grep -q locked /tmp/lock; do sleep 0.1; done
sudo apt-get update >/dev/null && sudo apt-get install -y managoat-hello && managoat-hello`)))
	ws = ready(t, w, ws.ID)
	if got := setupLog(t, w, ws.ID)["setup_script"].Output; !strings.Contains(got, "hello from a Debian package") {
		t.Errorf("the script printed %q", got)
	}
}

func TestAScriptThatNeedsTooMuchMemoryIsToldTheLimit(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Limits = sandbox.Limits{MemoryBytes: 128 << 20} })
	ws := settled(t, w, create(t, w, makeEnvironment(t, w, script(`python3 -c 'x = "a" * (400 << 20)'`))).ID)
	if ws.Status != workspace.Failed || !strings.Contains(ws.Error.Message, "out_of_memory") || !strings.Contains(ws.Error.Message, "128 MiB") {
		t.Errorf("status %s, error %+v", ws.Status, ws.Error)
	}
}

// A machine that filled its disk is frozen by its provider and answers nothing: the setup ends with the reason, at once.
func TestAScriptThatFillsTheDiskIsToldTheLimit(t *testing.T) {
	t.Parallel()
	w := workspacetest.New(t, func(h *workspacetest.Host) { h.Limits = sandbox.Limits{DiskBytes: 64 << 20} })
	ws := settled(t, w, create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
		in.SetupScript, in.SetupTimeoutSeconds = "echo filling; head -c 300000000 /dev/urandom > ~/big; sleep 600", 600
	})).ID)
	if ws.Status != workspace.Failed || !strings.Contains(ws.Error.Message, "disk_full") || !strings.Contains(ws.Error.Message, "64 MiB") || ws.Error.OutputTail != "filling" {
		t.Errorf("status %s, error %+v", ws.Status, ws.Error)
	}
}

// Python packages go where every python of the machine finds them.
func TestPythonPackagesComeFromTheInstancesIndex(t *testing.T) {
	t.Parallel()
	const host = "pip.test"
	index, port := pythonIndex(t)
	w := workspacetest.Quiet(t, func(h *workspacetest.Host) {
		h.PIP = "https://" + host + ":" + port + "/simple"
		h.Resolve += "," + host + "=127.0.0.1"
		h.Private += ",machine=" + host + ":" + port
	})
	certificate, err := w.Outside.CA.Issue(host)
	if err != nil {
		t.Fatal(err)
	}
	index.TLS.Certificates = []tls.Certificate{certificate}
	index.StartTLS()
	w.Server.Run(t)
	ws := settled(t, w, create(t, w, makeEnvironment(t, w, func(in *environment.Input) {
		in.Packages.Pip = []string{"managoat-wheel==1.0"}
		in.SetupScript = "python3 -c 'import managoat_wheel; print(managoat_wheel.said)'; pip config list 2>/dev/null"
	})).ID)
	if ws.Status != workspace.Ready {
		t.Fatalf("error %+v\n%s", ws.Error, logText(t, w, ws.ID))
	}
	if got := setupLog(t, w, ws.ID)["setup_script"].Output; !strings.HasPrefix(got, "hello from a wheel\n") {
		t.Errorf("the script printed %q", got)
	}
	failed := settled(t, w, create(t, w, makeEnvironment(t, w, func(in *environment.Input) { in.Packages.Pip = []string{"no-such-wheel"} })).ID)
	if failed.Status != workspace.Failed || !strings.Contains(failed.Error.Message, "pip install exited with code 1") || !strings.Contains(failed.Error.OutputTail, "no-such-wheel") {
		t.Errorf("error %+v", failed.Error)
	}
}

// Not every base has pip.
func TestABaseWithoutPipSaysWhatToAdd(t *testing.T) {
	t.Parallel()
	for name, python := range map[string]string{"no python": "", "a python without pip": "#!/bin/sh\necho no module named pip >&2\nexit 1\n"} {
		path := t.TempDir()
		if python != "" {
			if err := os.WriteFile(filepath.Join(path, "python3"), []byte(python), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/bin/sh", "-c", workspace.PIPScript, "pip", "install", "--", "uvicorn")
		cmd.Env = []string{"PATH=" + path}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 127 || string(out) != "pip is not in this machine: add python3-pip to the apt packages\n" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// pythonIndex is an index of one wheel, not started yet, and its port.
func pythonIndex(t *testing.T) (*httptest.Server, string) {
	t.Helper()
	const file = "managoat_wheel-1.0-py3-none-any.whl"
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, content := range map[string]string{
		"managoat_wheel.py":                     "said = 'hello from a wheel'\n",
		"managoat_wheel-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: managoat-wheel\nVersion: 1.0\n",
		"managoat_wheel-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"managoat_wheel-1.0.dist-info/RECORD":   "managoat_wheel.py,,\nmanagoat_wheel-1.0.dist-info/METADATA,,\nmanagoat_wheel-1.0.dist-info/WHEEL,,\nmanagoat_wheel-1.0.dist-info/RECORD,,\n",
	} {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/simple/managoat-wheel/":
			rw.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(rw, "<!DOCTYPE html><html><body><a href=\"/%s#sha256=%x\">%s</a></body></html>", file, sha256.Sum256(wheel.Bytes()), file)
		case "/" + file:
			rw.Write(wheel.Bytes())
		default:
			http.NotFound(rw, r)
		}
	}))
	s.TLS = &tls.Config{}
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return s, port
}
