// Package conformancetest runs the conformance suite under go test, and builds the guest for tests with real machines.
package conformancetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"managoat/sandbox"
	"managoat/sandbox/conformance"
)

// Run runs every check as a parallel subtest over one provider.
func Run(t *testing.T, open func(*testing.T) sandbox.Provider) {
	p := open(t)
	for _, c := range conformance.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Run(t, p)
		})
	}
}

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
