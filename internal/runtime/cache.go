package runtime

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"time"
)

// compileCacheScript makes an adapter's node read its modules' bytecode from beside it instead of compiling them anew, a
// sixth of its start. It is a module that is loaded first, not NODE_COMPILE_CACHE, which what an agent starts would inherit.
//
//go:embed compile-cache.cjs
var compileCacheScript []byte

const (
	compileCacheFile    = "compile-cache.cjs"
	compileCacheDir     = "compile-cache"
	compileCacheTimeout = 30 * time.Second
	machineUID          = 1000 // guest.Sprite's, whose cache node looks for
)

// warm starts the adapter that was installed in staging once, so that it leaves its compile cache there. Node knows a
// module by its path and a cache by its user's number: bubblewrap shows both as machines have them, and keeps the
// adapter from everything else. On a host without it adapters start as well, only later.
func (p Pinned) warm(ctx context.Context, dir, staging string) error {
	cache := filepath.Join(staging, compileCacheDir)
	if err := os.Mkdir(cache, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, compileCacheTimeout)
	defer cancel()
	node, _ := pinned(p.After)
	uid := strconv.Itoa(machineUID)
	argv := []string{"--unshare-all", "--die-with-parent", "--new-session", "--uid", uid, "--gid", uid,
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--ro-bind", filepath.Join(dir, node.Dir()), node.inMachine(""),
		"--ro-bind", staging, p.inMachine(""), "--bind", cache, p.inMachine(compileCacheDir),
		"--clearenv", "--setenv", "HOME", "/tmp", "--setenv", "PATH", "/usr/bin"}
	if _, err := os.Stat("/usr/lib64"); err == nil {
		argv = append(argv, "--symlink", "usr/lib64", "/lib64")
	}
	cmd := exec.CommandContext(ctx, "bwrap", append(append(argv, "--"), p.argv()...)...)
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, asked := io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}`+"\n")
	answers := bufio.NewReader(stdout)
	_, answered := answers.ReadSlice('\n')
	stdin.Close()
	io.Copy(io.Discard, answers)
	if err := errors.Join(asked, answered, cmd.Wait()); err != nil {
		return err
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) == 0 {
		return errors.Join(err, errors.New("it left none"))
	}
	return nil
}

// argv starts the adapter in a machine, with options of node.
func (p Pinned) argv(options ...string) []string {
	node, _ := pinned(p.After)
	argv := append([]string{node.inMachine("bin/node")}, options...)
	return append(argv, "--require", p.inMachine(compileCacheFile), p.inMachine(path.Join("node_modules", p.Entry)))
}

// addCompileCache gives a new installation of an adapter its compile cache.
func (p Pinned) addCompileCache(ctx context.Context, dir, staging string, progress func(string)) error {
	if p.After != Node {
		return nil
	}
	if err := os.WriteFile(filepath.Join(staging, compileCacheFile), compileCacheScript, 0o644); err != nil {
		return err
	}
	if err := p.warm(ctx, dir, staging); err != nil {
		progress(fmt.Sprintf("%s has no compile cache, and starts a little later: %v", p.Name, err))
	}
	return ctx.Err()
}
