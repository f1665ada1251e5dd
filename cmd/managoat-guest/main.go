// Command managoat-guest is everything Managoat runs inside a machine, in one small static binary: the guest
// (pid 1, see sandbox/guest), the step that boots a machine of the local provider, and the step that confines
// each command. The name or first argument it is called by says which.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"managoat/sandbox/guest/boot"
	"managoat/sandbox/guest/bridge"
	"managoat/sandbox/guest/probe"
	"managoat/sandbox/guest/recorder"
	"managoat/sandbox/guest/server"
	"managoat/sandbox/guest/shim"
	"managoat/sandbox/guest/sudo"
	"managoat/sandbox/guest/thin"
)

// guestName is argv[0] of the guest where something else made the machine.
const guestName = "managoat-guest"

func main() {
	name := path.Base(os.Args[0])
	switch name {
	case shim.Name:
		shim.Main(os.Args[1:])
	case boot.Name:
		err := boot.Boot()
		if err == nil {
			err = inherited(server.Config{Root: true, Nested: true})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case boot.NetworkName:
		fmt.Fprintln(os.Stderr, boot.Network(os.Args[1:]))
		os.Exit(1)
	case boot.HoldName:
		time.Sleep(boot.HoldPeriod)
	case recorder.Bash, recorder.Sh, "-" + recorder.Bash, "-" + recorder.Sh:
		recorder.Main(os.Args)
	case recorder.CopyName:
		recorder.Copy()
	case sudo.Name:
		sudo.Main(os.Args[1:])
	case thin.Name:
		thin.Main(os.Args[1:])
	case probe.Name:
		probe.Main()
	case guestName:
		fmt.Fprintln(os.Stderr, inherited(server.Config{}))
		os.Exit(1)
	case bridge.Name:
		run := contained
		if len(os.Args) > 1 && os.Args[1] == bridge.Argument {
			run = bridge.Main
		}
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "%s: this program is started by Managoat\n", name)
		os.Exit(2)
	}
}

// harden makes this process one that nothing of the machine can read or end.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	// A handler for every signal: without one, those that programs of the machine may send here would end it.
	signal.Notify(make(chan os.Signal, 1))
	server.KeepThreads()
	unix.Umask(0) // files are made with the mode that was asked for
	return nil
}

// contained is the guest of a container. It serves until the machine ends.
func contained() error {
	if err := harden(); err != nil {
		return err
	}
	l, oom, err := boot.Container()
	if err != nil {
		return err
	}
	s, err := server.New(server.Config{Root: true, OOM: oom, Log: log.New(os.Stderr, "", log.LstdFlags|log.LUTC)})
	if err != nil {
		return err
	}
	return s.Serve(l)
}

// inherited is the guest on the descriptors that a local provider started it with. It serves until the machine ends.
func inherited(c server.Config) error {
	if err := harden(); err != nil {
		return err
	}
	for fd := boot.ListenFD; fd < boot.ConfigFD; fd++ {
		unix.CloseOnExec(fd)
	}
	// The kernel names whoever listens to those who connect: this process, not the server that bound.
	if err := unix.Listen(boot.ListenFD, unix.SOMAXCONN); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	file := os.NewFile(boot.ListenFD, "listener")
	l, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	file.Close()
	ready := os.NewFile(boot.ReadyFD, "ready")
	c.OOM, c.Log = os.NewFile(boot.OOMFD, "oom"), log.New(os.Stderr, "", log.LstdFlags|log.LUTC)
	s, err := server.New(c)
	if err != nil {
		fmt.Fprint(ready, err)
		return err
	}
	if _, err := ready.WriteString(boot.Ready); err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	ready.Close()
	return s.Serve(l)
}
