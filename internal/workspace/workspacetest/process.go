package workspacetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/identity/identitytest"
	"managoat/internal/secret"
)

// serveHost is a server in a process of its own, which a test kills.
func serveHost(config string) int {
	err := func() error {
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
		keys, err := secret.Open(make([]byte, secret.KeySize)) // the environments it sets up keep no secrets
		if err != nil {
			return err
		}
		guest, err := guestOf(host.Machines)
		if err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		s, err := start(host, &identitytest.Instance{Database: &dbtest.Database{DB: d}, Keys: keys}, &Occupants{}, &Rows{}, guest, log)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		var running sync.WaitGroup
		running.Go(func() { s.Machines.Run(ctx) })
		running.Go(func() { s.Hub.Run(ctx) })
		err = s.Workspaces.Run(ctx)
		running.Wait()
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Process is a server in a process of its own.
type Process struct {
	tb  testing.TB
	cmd *exec.Cmd
}

// Spawn starts a server of a host as a process and returns when it runs.
func Spawn(tb testing.TB, host Host) *Process {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverVariable+"="+host.marshal(tb))
	cmd.Stderr = tb.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p := &Process{tb, cmd}
	tb.Cleanup(p.Kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		rest, _ := io.ReadAll(out)
		tb.Fatalf("the server did not start: %q %v %s", line, err, rest)
	}
	return p
}

// Kill ends the server as a crash does, and returns when it is gone.
func (p *Process) Kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}
