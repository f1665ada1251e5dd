package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"managoat/sandbox"
	"managoat/sandbox/conformance"
)

// childMode makes the test binary do something else than test: it is started again as another user, or to be
// killed.
const childMode = "MANAGOAT_LOCAL_TEST_CHILD"

func TestMain(m *testing.M) {
	var err error
	switch mode := os.Getenv(childMode); mode {
	case "":
		os.Exit(m.Run())
	case "report":
		err = report()
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
	opts := Options{Dir: t.TempDir(), GuestBinary: conformance.GuestBinary(t)}
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
	conformance.Run(t, func(t *testing.T) sandbox.Provider {
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

// result of one check, as the child prints it.
type result struct {
	Name, Err string
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
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"test": self, "guest": conformance.GuestBinary(t)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
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

// report prints the capabilities, then the result of every check.
func report() error {
	p, err := openChild()
	if err != nil {
		return err
	}
	defer p.Close()
	out := json.NewEncoder(os.Stdout)
	caps, err := p.Capabilities(context.Background())
	if err != nil {
		return err
	}
	if err := out.Encode(caps); err != nil {
		return err
	}
	conformance.Report(context.Background(), p, 4, func(name string, err error) {
		r := result{Name: name}
		if err != nil {
			r.Err = err.Error()
		}
		out.Encode(r)
	})
	return nil
}

// unprivilegedUID is nobody's on a test host.
const unprivilegedUID = 54321

func TestConformanceWithoutRoot(t *testing.T) {
	t.Parallel()
	cmd, _ := child(t, "report", unprivilegedUID)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the child said nothing: %v", cmd.Wait())
	}
	var caps sandbox.Capabilities
	if err := json.Unmarshal(lines.Bytes(), &caps); err != nil {
		t.Fatal(err)
	}
	if caps.Root || caps.UIDRange || len(caps.Notes) < 3 {
		t.Errorf("a server without root says: %+v", caps)
	}
	checks := 0
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		checks++
		t.Run(r.Name, func(t *testing.T) {
			if r.Err != "" {
				t.Error(r.Err)
			}
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
	if want := len(conformance.Checks()); checks != want {
		t.Errorf("%d of %d checks were run", checks, want)
	}
}
