package conversation_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"managoat/internal/conversation/conversationtest"
	"managoat/internal/secret"
	"managoat/sandbox/guest"
)

// run runs a command as sprite in a workspace's machine.
func run(t *testing.T, w *conversationtest.World, workspaceID uuid.UUID, command string) string {
	t.Helper()
	return w.InMachine(workspaceID, command)
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

func secretOf(s string) secret.Value { return secret.New(s) }
