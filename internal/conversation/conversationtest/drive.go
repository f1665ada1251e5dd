package conversationtest

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"managoat/internal/conversation"
	"managoat/internal/input"
	"managoat/internal/stream"
	"managoat/internal/transcript"
	"managoat/internal/workspace"
	"managoat/sandbox"
	"managoat/sandbox/guest"
	"managoat/sandbox/sandboxtest"
)

// patience is how long a test waits for what must come. It only ever passes when something is broken.
const patience = 5 * time.Minute

// Until waits for a condition.
func (w *World) Until(what string, met func() bool) {
	w.tb.Helper()
	ctx, cancel := context.WithTimeout(w.tb.Context(), patience)
	defer cancel()
	for pause := 5 * time.Millisecond; !met(); pause = min(2*pause, 40*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			w.tb.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// Ready waits until a workspace's setup has ended well.
func (w *World) Ready(id uuid.UUID) workspace.Workspace {
	w.tb.Helper()
	var ws workspace.Workspace
	w.Until("the workspace to be set up", func() bool {
		var err error
		if ws, err = w.Workspaces.Get(w.tb.Context(), w.Owner.Actor, id); err != nil {
			w.tb.Fatal(err)
		}
		if ws.Status == workspace.Failed {
			w.tb.Fatalf("the setup failed: %+v", ws.Error)
		}
		return ws.Status == workspace.Ready
	})
	return ws
}

// Launch starts a conversation.
func (w *World) Launch(in conversation.CreateInput) conversation.Conversation {
	w.tb.Helper()
	c, err := w.Conversations.Create(w.tb.Context(), w.Owner.Actor, in)
	if err != nil {
		w.tb.Fatal(err)
	}
	return c
}

// Prompt opens a turn.
func (w *World) Prompt(id uuid.UUID, lines ...string) conversation.Turn {
	w.tb.Helper()
	t, err := w.Conversations.Prompt(w.tb.Context(), w.Owner.Actor, id, conversation.PromptInput{Prompt: strings.Join(lines, "\n")})
	if err != nil {
		w.tb.Fatal(err)
	}
	return t
}

// Turn reads a turn.
func (w *World) Turn(id uuid.UUID, number int) conversation.Turn {
	w.tb.Helper()
	t, err := w.Conversations.Turn(w.tb.Context(), w.Owner.Actor, id, number)
	if err != nil {
		w.tb.Fatal(err)
	}
	return t
}

// Ended waits for a turn's end.
func (w *World) Ended(id uuid.UUID, number int) conversation.Turn {
	w.tb.Helper()
	var t conversation.Turn
	w.Until("the turn to end", func() bool {
		t = w.Turn(id, number)
		return t.EndedAt != nil
	})
	return t
}

// Ask sends a prompt and waits for its turn's end.
func (w *World) Ask(id uuid.UUID, lines ...string) conversation.Turn {
	w.tb.Helper()
	return w.Ended(id, w.Prompt(id, lines...).TurnNumber)
}

// Rows reads a transcript.
func (w *World) Rows(id uuid.UUID) []transcript.Stored {
	w.tb.Helper()
	rows, more, err := w.Reader.List(w.tb.Context(), stream.Query{TenantID: w.Owner.TenantID, ConversationID: id}, 500)
	if err != nil {
		w.tb.Fatal(err)
	}
	for more {
		var next []transcript.Stored
		next, more, err = w.Reader.List(w.tb.Context(), stream.Query{TenantID: w.Owner.TenantID, ConversationID: id, After: rows[len(rows)-1].Seq}, 500)
		if err != nil {
			w.tb.Fatal(err)
		}
		rows = append(rows, next...)
	}
	return rows
}

// Bodies are the bodies of a transcript's rows of one type.
func Bodies[T any](w *World, id uuid.UUID, kind string) []T {
	w.tb.Helper()
	var out []T
	for _, r := range w.Rows(id) {
		if r.Type != kind {
			continue
		}
		var b T
		if err := json.Unmarshal(r.Body, &b); err != nil {
			w.tb.Fatalf("row %d: %v", r.Seq, err)
		}
		out = append(out, b)
	}
	return out
}

// Said is all that the agent said in a conversation.
func (w *World) Said(id uuid.UUID) string {
	w.tb.Helper()
	var b strings.Builder
	for _, m := range Bodies[transcript.MessageBody](w, id, transcript.Message) {
		b.WriteString(m.Text)
	}
	return b.String()
}

// InMachine runs a command as sprite in a workspace's machine and returns what it printed.
func (w *World) InMachine(workspaceID uuid.UUID, command string) string {
	w.tb.Helper()
	up, err := w.Workspaces.Peek(w.tb.Context(), w.Owner.TenantID, workspaceID)
	if err != nil {
		w.tb.Fatal(err)
	}
	out, errs, exit, err := up.Guest.Run(w.tb.Context(), guest.Exec{ID: uuid.NewString(), Argv: []string{"bash", "-c", command}, User: guest.Sprite, Spool: guest.SpoolLog})
	if err != nil || exit.Code != 0 {
		w.tb.Fatalf("%s: %+v %v %s", command, exit, err, errs)
	}
	return strings.TrimSpace(string(out))
}

// StopMachine stops a workspace's machine behind the server's back, as a crash of its host does.
func (w *World) StopMachine(workspaceID uuid.UUID) {
	w.tb.Helper()
	if err := w.Provider.Stop(w.tb.Context(), w.machine(workspaceID)); err != nil {
		w.tb.Fatal(err)
	}
}

// DestroyMachine removes a workspace's machine with its disk behind the server's back.
func (w *World) DestroyMachine(workspaceID uuid.UUID) {
	w.tb.Helper()
	if err := w.Provider.Destroy(w.tb.Context(), w.machine(workspaceID)); err != nil {
		w.tb.Fatal(err)
	}
}

// machine is the provider's id of a workspace's machine.
func (w *World) machine(workspaceID uuid.UUID) string {
	w.tb.Helper()
	infos, err := w.Provider.List(w.tb.Context(), map[string]string{sandbox.LabelInstance: w.name, sandbox.LabelWorkspace: workspaceID.String()})
	if err != nil || len(infos) != 1 {
		w.tb.Fatalf("the machines of the workspace: %+v %v", infos, err)
	}
	return infos[0].ID
}

// Page is the first page of a list.
var Page = input.Page{}

// InSetup is the guest of a machine that is still being set up.
func (w *World) InSetup(workspaceID uuid.UUID) *guest.Client {
	w.tb.Helper()
	ws, err := w.Workspaces.Get(w.tb.Context(), w.Owner.Actor, workspaceID)
	if err != nil || ws.SandboxID == nil {
		w.tb.Fatalf("%+v %v", ws, err)
	}
	g, err := w.Machines.Connect(w.tb.Context(), w.Owner.TenantID, *ws.SandboxID)
	if err != nil {
		w.tb.Fatal(err)
	}
	return g
}

// DuringSetup runs a command as sprite in a machine that is still being set up.
func (w *World) DuringSetup(workspaceID uuid.UUID, command string) {
	w.tb.Helper()
	g := w.InSetup(workspaceID)
	if _, errs, exit, err := g.Run(w.tb.Context(), guest.Exec{ID: uuid.NewString(), Argv: []string{"bash", "-c", command}, User: guest.Sprite, Spool: guest.SpoolLog}); err != nil || exit.Code != 0 {
		w.tb.Fatalf("%s: %+v %v %s", command, exit, err, errs)
	}
}

// KillEgress ends the host's egress process as a crash does, with every tunnel and model stream in it.
func (w *World) KillEgress() {
	w.tb.Helper()
	c, err := net.Dial("unix", filepath.Join(w.dir, "egress", "egress.sock"))
	if err != nil {
		w.tb.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		w.tb.Fatal(err)
	}
	var peer *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		w.tb.Fatal(cerr, err)
	}
	if err := unix.Kill(int(peer.Pid), unix.SIGKILL); err != nil {
		w.tb.Fatal(err)
	}
}

// KillGuest ends the first process of a workspace's machine as the kernel does that needs memory.
func (w *World) KillGuest(workspaceID uuid.UUID) {
	w.tb.Helper()
	pid, err := sandboxtest.FirstProcess(w.tb.Context(), shared.machines, w.machine(workspaceID))
	if err != nil || pid <= 1 {
		w.tb.Fatal(pid, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		w.tb.Fatal(err)
	}
}

// BreakMachine makes a workspace's machine, which is parked, one that its provider cannot start now. What it returns mends it.
func (w *World) BreakMachine(workspaceID uuid.UUID) (mend func()) {
	w.tb.Helper()
	undo, err := sandboxtest.Break(w.tb.Context(), shared.machines, w.machine(workspaceID))
	if err != nil {
		w.tb.Fatal(err)
	}
	return func() {
		w.tb.Helper()
		if err := undo(); err != nil {
			w.tb.Fatal(err)
		}
	}
}
