package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"managoat/sandbox"
	"managoat/sandbox/conformance/conformancetest"
)

// childMode makes the test binary do something else than test: it is started again as another user, or to be
// killed.
const childMode = "MANAGOAT_LOCAL_TEST_CHILD"

func TestMain(m *testing.M) {
	var err error
	switch mode := os.Getenv(childMode); mode {
	case "":
		os.Exit(m.Run())
	case "own":
		err = own()
	case "adopt":
		err = adopt()
	default:
		err = fmt.Errorf("unknown mode %q", mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func open(t testing.TB, change ...func(*Options)) *Provider {
	t.Helper()
	opts := Options{Dir: t.TempDir(), GuestBinary: conformancetest.GuestBinary(t)}
	for _, f := range change {
		f(&opts)
	}
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestConformanceAsRoot(t *testing.T) {
	t.Parallel()
	conformancetest.Run(t, func(t *testing.T) sandbox.Provider {
		p := open(t)
		caps, err := p.Capabilities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !caps.Root || !caps.UIDRange || !caps.DiskLimit {
			t.Errorf("a server that is root can do less than it should: %+v", caps)
		}
		return p
	})
}

// child starts this test binary again in a mode, as uid, with a directory of its own.
func child(t *testing.T, mode string, uid uint32) (*exec.Cmd, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "managoat-local-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "guest"), conformancetest.GuestBinary(t), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// By another process: what this one starts meanwhile would have the file open for writing, until it is another program.
	if out, err := exec.Command("install", "-m", "755", self, filepath.Join(dir, "test")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data := filepath.Join(dir, "data")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(data, 0o700), os.Chown(data, int(uid), int(uid))); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "test"))
	cmd.Dir = dir
	cmd.Env = []string{childMode + "=" + mode, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd, data
}

func openChild() (*Provider, error) {
	binary, err := os.ReadFile("guest")
	if err != nil {
		return nil, err
	}
	return New(Options{Dir: "data", GuestBinary: binary})
}

// unprivilegedUID is nobody's on a test host.
const unprivilegedUID = 54321
