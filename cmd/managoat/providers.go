package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"

	"managoat/internal/broker"
	"managoat/internal/config"
	"managoat/sandbox"
	"managoat/sandbox/docker"
)

// providerOptions are what providers of every kind are opened with.
type providerOptions struct {
	dir        string // of the local provider's machines
	guest      []byte
	mountRoots []string
	aptSources []byte
	extraCA    []byte
	limits     sandbox.Limits
	log        *slog.Logger
}

// provider is one that is closed when the server ends.
type provider interface {
	sandbox.Provider
	Close() error
}

// openProviders opens the enabled providers. close ends their own work; machines go on.
func openProviders(cfg *config.Config, o providerOptions) (all map[string]sandbox.Provider, close func(), err error) {
	all = map[string]sandbox.Provider{}
	var closers []func() error
	close = func() {
		for _, c := range closers {
			if err := c(); err != nil {
				o.log.Warn("close a sandbox provider", "error", err)
			}
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(cfg.SandboxProviders))) {
		var p provider
		switch name {
		case "local":
			age, room := cfg.PackageLayers()
			p, err = newLocal(o, age, room)
		case "docker":
			p, err = docker.New(docker.Options{Host: cfg.DockerHost, Image: cfg.DockerImage, Runtime: cfg.DockerRuntime, GuestBinary: o.guest,
				MountRoots: o.mountRoots, AptSources: o.aptSources, Defaults: o.limits, Log: o.log})
		default:
			err = fmt.Errorf("there is no sandbox provider %q", name)
		}
		if err != nil {
			close()
			return nil, nil, err
		}
		all[name], closers = p, append(closers, p.Close)
	}
	return all, close, nil
}

// dialGuest opens a machine's guest for the egress process, which knows directories, the engine's address, and nothing of
// services.
func dialGuest(dir string) (func(ctx context.Context, s broker.Settings, m broker.Machine) (net.Conn, error), error) {
	localGuest, err := localGuests(dir)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	engines := map[string]*docker.Guests{}
	return func(ctx context.Context, s broker.Settings, m broker.Machine) (net.Conn, error) {
		switch m.Provider {
		case "local":
			return localGuest(ctx, m.Ref)
		case "docker":
			mu.Lock()
			engine, err := engines[s.DockerHost], error(nil)
			if engine == nil {
				if engine, err = docker.Attach(s.DockerHost); err == nil {
					engines[s.DockerHost] = engine
				}
			}
			mu.Unlock()
			if err != nil {
				return nil, err
			}
			return engine.Guest(ctx, m.Ref)
		}
		return nil, errors.New("no provider " + m.Provider)
	}, nil
}
