package conversation_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/conversation/conversationtest"
	"managoat/sandbox/guest"
)

// run runs a command as sprite in a workspace's machine.
func run(t *testing.T, w *conversationtest.World, workspaceID uuid.UUID, command string) string {
	t.Helper()
	up, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, workspaceID)
	if err != nil {
		t.Fatal(err)
	}
	out, errs, exit, err := up.Guest.Run(t.Context(), guest.Exec{ID: uuid.NewString(), Argv: []string{"bash", "-c", command}, User: guest.Sprite, Spool: guest.SpoolLog})
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v %v %s", command, exit, err, errs)
	}
	return strings.TrimSpace(string(out))
}

func touch(t *testing.T, w *conversationtest.World, workspaceID uuid.UUID, file string) {
	t.Helper()
	run(t, w, workspaceID, "touch "+file)
}

func exists(t *testing.T, w *conversationtest.World, workspaceID uuid.UUID, file string) bool {
	t.Helper()
	up, err := w.Workspaces.Peek(t.Context(), w.Owner.TenantID, workspaceID)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = up.Guest.Stat(t.Context(), []string{guest.Home}, file)
	var missing *guest.FileError
	if err != nil && !(errors.As(err, &missing) && missing.Code == guest.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}
