package workspacetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/identity/identitytest"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
	"managoat/sandbox/conformance/conformancetest"
)

// ready begins the line that a server in a process of its own prints when it runs.
const ready = "ready"

// serveHost is a server in a process of its own, which a test kills.
func serveHost(config string) int {
	if err := serveUntilTold(config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveUntilTold(config string) error {
	var host Host
	if err := json.Unmarshal([]byte(config), &host); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := db.Open(ctx, db.URLs{App: host.App, Platform: host.Platform}, db.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	keys, err := secret.Open(make([]byte, secret.KeySize)) // the environments it sets up keep no secrets
	if err != nil {
		return err
	}
	guest, err := os.ReadFile(host.Guest)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := start(host, &identitytest.Instance{Database: &dbtest.Database{DB: d}, Keys: keys}, &Occupants{}, &Rows{}, guest, log)
	if err != nil {
		return err
	}
	tried := ""
	if host.Try != nil {
		_, err := s.Workspaces.Create(ctx, tenant.SystemActor(host.Tenant, "test"), *host.Try)
		tried = fmt.Sprint(err)
		if r, ok := refusal.As(err); ok {
			tried = string(r.Code) + ": " + r.Message
		}
	}
	fmt.Println(ready, tried)
	var running sync.WaitGroup
	running.Go(func() { s.Machines.Run(ctx) })
	running.Go(func() { s.Hub.Run(ctx) })
	err = s.Workspaces.Run(ctx)
	running.Wait()
	return errors.Join(err, s.shut())
}

// Process is a server in a process of its own.
type Process struct {
	// Tried is how the workspace of Host.Try was refused.
	Tried string

	cmd *exec.Cmd
}

// Spawn starts a server of a host as a process and returns when it runs. uid is whom it runs as: 0, or one that may do
// nothing but what any user may.
func Spawn(tb testing.TB, host Host, uid int) *Process {
	tb.Helper()
	dir, err := os.MkdirTemp("", "mgt")
	if err != nil {
		tb.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	exe := filepath.Join(dir, "server")
	// By another process: what this one starts meanwhile would have the file open for writing, until it is another program.
	if out, err := exec.Command("install", "-m", "755", self, exe).CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	host.Guest = filepath.Join(dir, "guest")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(host.Guest, conformancetest.GuestBinary(tb), 0o644))
	if uid != 0 {
		host.Dir, host.Machines = filepath.Join(dir, "egress"), filepath.Join(dir, "machines")
		for _, own := range []string{host.Dir, host.Machines} {
			err = errors.Join(err, os.Mkdir(own, 0o700), os.Chown(own, uid, uid))
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := json.Marshal(host)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverVariable+"="+string(raw))
	cmd.Dir, cmd.Stderr = dir, tb.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p := &Process{cmd: cmd}
	tb.Cleanup(func() {
		p.stop()
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), ready)
	if err != nil || !ok {
		said, _ := io.ReadAll(out)
		tb.Fatalf("the server did not start: %q %v %s", line, err, said)
	}
	p.Tried = strings.TrimSpace(rest)
	return p
}

// Nobody is a user without any right who may still reach the database.
func (w *World) Nobody(tb testing.TB) int {
	tb.Helper()
	u, err := url.Parse(w.URLs.App)
	if err != nil {
		tb.Fatal(err)
	}
	var st syscall.Stat_t
	if syscall.Stat(u.Query().Get("host"), &st) == nil && st.Uid != 0 {
		return int(st.Uid) // PostgreSQL's own: the directory of its socket is closed to others
	}
	return 54321
}

// Kill ends the server as a crash does, and returns when it is gone.
func (p *Process) Kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// stop ends the server and what it started, unless it was killed.
func (p *Process) stop() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(time.Minute, func() { p.cmd.Process.Kill() })
	p.cmd.Wait()
	late.Stop()
}
