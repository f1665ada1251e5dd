package story

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"testing"

	"managoat/internal/runtime"
	"managoat/internal/testworld"
	"managoat/sandbox/docker/dockertest"
	"managoat/sandbox/sandboxtest"
)

// Names of what the tests can be given, so that they need not make it.
const (
	binaryVariable   = "MANAGOAT_TEST_BINARY"  // the server to test
	runtimesVariable = "MANAGOAT_RUNTIMES_DIR" // where adapters are installed
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := common.close(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// common is what most tests of this process share, made when the first one asks: starting a server takes seconds.
var common ground

type ground struct {
	once     sync.Once
	dir      string // for everything that is made here; PostgreSQL's user passes through it
	binary   string
	runtimes string
	provider []string // settings of every server
	err      error

	serve    sync.Once
	serveErr error
	world    *testworld.World
	faults   faults
	server   *Server
}

// open finds or builds the binary, and installs the adapter.
func (g *ground) open(tb testing.TB) {
	tb.Helper()
	g.once.Do(func() { g.err = g.lay() })
	if g.err != nil {
		tb.Fatal(g.err)
	}
}

func (g *ground) lay() (err error) {
	if g.dir, err = os.MkdirTemp("", "mgs"); err != nil {
		return err
	}
	if err := os.Chmod(g.dir, 0o755); err != nil {
		return err
	}
	if g.binary = os.Getenv(binaryVariable); g.binary == "" {
		root, err := filepath.Abs("../..")
		if err != nil {
			return err
		}
		if g.binary, err = build(root, g.dir, "tests"); err != nil {
			return err
		}
	}
	if g.runtimes = os.Getenv(runtimesVariable); g.runtimes == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		g.runtimes = filepath.Join(cache, "managoat-tests", "runtimes")
	}
	if sandboxtest.Name() == sandboxtest.Docker {
		host, err := sandboxtest.Place()
		if err != nil {
			return err
		}
		g.provider = []string{"MANAGOAT_SANDBOX_PROVIDERS=docker", "MANAGOAT_SANDBOX_PROVIDER=docker", "MANAGOAT_DOCKER_HOST=" + host, "MANAGOAT_DOCKER_IMAGE=" + dockertest.Image}
	}
	for _, name := range []string{"node", runtime.Claude} {
		if out, err := exec.Command(g.binary, "runtimes", "install", name, "--runtimes-dir", g.runtimes).CombinedOutput(); err != nil {
			return fmt.Errorf("install %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// build makes the server of a source tree with the guest inside, as `make build` does, and leaves the tree alone.
func build(root, dir, version string) (string, error) {
	guest, binary, overlay := filepath.Join(dir, "managoat-guest"), filepath.Join(dir, "managoat"), filepath.Join(dir, "overlay.json")
	place := filepath.Join(root, "cmd/managoat/guest/managoat-guest")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {place + "-" + goruntime.GOARCH: guest, place: guest}}) // the first is an earlier tree's
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o644); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"-o", guest, "./cmd/managoat-guest"},
		{"-overlay", overlay, "-o", binary, "./cmd/managoat"},
	} {
		cmd := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=" + version}, args...)...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the server: %w\n%s", err, out)
		}
	}
	return binary, nil
}

// shared is the server that tests use which do nothing to the server itself, and the world around it.
func shared(tb testing.TB) (*Server, *testworld.World) {
	tb.Helper()
	common.open(tb)
	common.serve.Do(func() {
		dir := filepath.Join(common.dir, "world")
		if common.serveErr = os.Mkdir(dir, 0o755); common.serveErr != nil {
			return
		}
		common.world = testworld.Open(&common.faults, dir)
		common.server = newServer(filepath.Join(common.dir, "shared"), append(common.world.Environ(), "MANAGOAT_TRUSTED_PROXIES=127.0.0.1/32")...)
		common.serveErr = common.server.start()
	})
	if common.serveErr != nil {
		tb.Fatal(common.serveErr)
	}
	at := common.server.log.Len()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the server meanwhile:\n%s", common.server.log.Notable(at))
		}
	})
	return common.server, common.world
}

// close parks and stops the shared server, and looks for anything that is left of it.
func (g *ground) close() error {
	var errs []error
	if g.server != nil {
		errs = append(errs, g.server.down(), g.server.leftovers())
	}
	if g.world != nil {
		errs = append(errs, g.world.Close())
	}
	errs = append(errs, g.faults.err(), dockertest.Close())
	if g.dir != "" {
		errs = append(errs, os.RemoveAll(g.dir))
	}
	return errors.Join(errs...)
}

// faults collects what the shared world reports, which outlives every single test.
type faults struct {
	mu  sync.Mutex
	all []error
}

func (f *faults) Helper() {}

func (f *faults) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := fmt.Errorf(format, args...)
	f.all = append(f.all, err)
	fmt.Fprintln(os.Stderr, err) // beside the test that will wait in vain
}

func (f *faults) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.all...)
}
