// Package sandboxtest gives tests of what stands on machines the provider that makes them: the local one, or the one that
// MANAGOAT_TEST_PROVIDER names. The machines of a test process's tests share one place, which is made when the first asks.
package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"managoat/sandbox"
	"managoat/sandbox/docker"
	"managoat/sandbox/docker/dockertest"
	"managoat/sandbox/local"
)

// Names of the providers.
const (
	Local  = "local"
	Docker = "docker"
)

// Name is the name of the provider that makes the machines of this process's tests.
func Name() string {
	if name := os.Getenv("MANAGOAT_TEST_PROVIDER"); name != "" {
		return name
	}
	return Local
}

// Needs skips a test whose subject is what one provider alone has, where another one makes the machines.
func Needs(tb testing.TB, name, what string) {
	tb.Helper()
	if Name() != name {
		tb.Skip("only of the provider ", name, ": ", what)
	}
}

// Provider is one that its user closes.
type Provider interface {
	sandbox.Provider
	Close() error
}

var shared struct {
	once  sync.Once
	place string
	err   error
}

// Place is where the machines of this process's tests are: the local provider's directory, or the address of an engine that
// is started for them. Close removes it.
func Place() (string, error) {
	shared.once.Do(func() {
		switch Name() {
		case Local:
			shared.place, shared.err = os.MkdirTemp("", "mgt")
		case Docker:
			var e *dockertest.Engine
			if e, shared.err = dockertest.Open(); shared.err == nil {
				shared.place = e.Host
			}
		default:
			shared.err = fmt.Errorf("MANAGOAT_TEST_PROVIDER: there is no provider %q", Name())
		}
	})
	return shared.place, shared.err
}

// Close removes the place, where there is one.
func Close() error {
	if shared.place == "" {
		return nil
	}
	if Name() == Docker {
		return dockertest.Close()
	}
	return os.RemoveAll(shared.place)
}

// Open opens the provider of a place. mountRoots are the directories that machines may have mounts from.
func Open(place string, guest []byte, mountRoots []string, log *slog.Logger) (Provider, error) {
	if Name() == Docker {
		return docker.New(docker.Options{Host: place, Image: dockertest.Image, GuestBinary: guest, MountRoots: mountRoots, Log: log})
	}
	return local.New(local.Options{Dir: place, GuestBinary: guest, MountRoots: mountRoots, Log: log})
}

// Guests dials the guests of a place's machines.
type Guests interface {
	Guest(ctx context.Context, id string) (net.Conn, error)
}

// Attach reaches the guests of a place from another process.
func Attach(place string) (Guests, error) {
	if Name() == Docker {
		return docker.Attach(place)
	}
	return local.Attach(place)
}

// Sweep destroys what tests that were killed left at their place.
func Sweep(ctx context.Context, place string) error {
	if Name() == Docker {
		return dockertest.Sweep(place)
	}
	p, err := Open(place, []byte("none is started"), nil, nil)
	if err != nil {
		return err
	}
	infos, err := p.List(ctx, nil)
	for _, info := range infos {
		err = errors.Join(err, p.Destroy(ctx, info.ID))
	}
	return errors.Join(err, p.Close(), os.RemoveAll(place))
}

// Machines are the names of the machines at a place, running or stopped; with a host's id, of those that are its own.
func Machines(ctx context.Context, place, host string) (names []string, err error) {
	if Name() == Docker {
		c, err := client.New(client.WithHost(place))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		label := sandbox.LabelHost
		if host != "" {
			label += "=" + host
		}
		all, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
		for _, item := range all.Items {
			for _, name := range item.Names {
				names = append(names, strings.TrimPrefix(name, "/"))
			}
		}
		return names, err
	}
	all, err := filepath.Glob(filepath.Join(place, "machines", "*"))
	for _, dir := range all {
		names = append(names, filepath.Base(dir))
	}
	return names, err
}

// Group is how the names of a machine's control groups begin.
func Group(ctx context.Context, id string) string {
	if Name() != Docker {
		return id + "."
	}
	c, err := inspect(ctx, shared.place, id)
	if err != nil {
		return "none" // what is left of a container that is gone, the engine says as it ends
	}
	return c.ID
}

// FirstProcess is the number that this host has for the first process of a machine that runs at a place.
func FirstProcess(ctx context.Context, place, id string) (pid int, err error) {
	if Name() == Docker {
		c, err := inspect(ctx, place, id)
		if err != nil {
			return 0, err
		}
		return c.State.Pid, nil
	}
	var run struct{ Pid int }
	raw, err := os.ReadFile(filepath.Join(place, "machines", id, "run.json"))
	if err == nil {
		err = json.Unmarshal(raw, &run)
	}
	return run.Pid, err
}

// Break makes a machine that is stopped one that its provider cannot start: a file of the provider's own is not what it was.
// What it returns mends it.
func Break(ctx context.Context, place, id string) (mend func() error, err error) {
	file := filepath.Join(place, "machines", id, "guest.log")
	if Name() == Docker {
		c, err := inspect(ctx, place, id)
		if err != nil {
			return nil, err
		}
		file = c.HostnamePath
	}
	if err := errors.Join(os.Rename(file, file+".away"), os.Mkdir(file, 0o700)); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(os.Remove(file), os.Rename(file+".away", file)) }, nil
}

func inspect(ctx context.Context, place, id string) (container.InspectResponse, error) {
	c, err := client.New(client.WithHost(place))
	if err != nil {
		return container.InspectResponse{}, err
	}
	defer c.Close()
	r, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return r.Container, err
}
