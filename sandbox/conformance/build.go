package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// GuestBinary builds cmd/managoat-guest once per test process and returns it.
func GuestBinary(t testing.TB) []byte {
	t.Helper()
	binary, err := buildGuest()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

var buildGuest = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "managoat-guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "managoat-guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "managoat/cmd/managoat-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the guest: %w\n%s", err, msg)
	}
	return os.ReadFile(out)
})
