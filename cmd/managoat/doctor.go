package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"managoat/db"
	"managoat/internal/broker"
	"managoat/internal/config"
	"managoat/internal/runtime"
	"managoat/sandbox"
	"managoat/sandbox/conformance"
	"managoat/sandbox/docker"
)

// finding is one line of the doctor's.
type finding struct {
	ok     bool
	needed bool // a server cannot do its main job without it
	what   string
	advice string
}

func doctorVerb() *cobra.Command {
	cmd := configured("doctor", "Say what is missing on this host and how to get it", func(ctx context.Context, cfg *config.Config) error {
		bad := 0
		for _, f := range examine(ctx, cfg) {
			if f.print(); f.needed && !f.ok {
				bad++
			}
		}
		if bad > 0 {
			return &codedError{exitRefused, fmt.Errorf("%d things are missing", bad)}
		}
		return nil
	})
	cmd.AddCommand(doctorSandboxVerb())
	return cmd
}

func (f finding) print() {
	mark := "✓"
	switch {
	case !f.ok && f.needed:
		mark = "✕"
	case !f.ok:
		mark = "!"
	}
	fmt.Printf("%s %s\n", mark, f.what)
	if f.advice != "" {
		fmt.Printf("  → %s\n", f.advice)
	}
}

func examine(ctx context.Context, cfg *config.Config) []finding {
	var out []finding
	add := func(f finding) { out = append(out, f) }

	if bin, err := db.FindBinaries(cfg.Dir("pg"), cfg.PGBin, filepath.Join(cfg.RuntimesDir, "postgresql")); cfg.DatabaseURL != "" {
		add(finding{ok: true, what: "PostgreSQL: the one of --database-url"})
	} else if err != nil {
		add(finding{needed: true, what: "PostgreSQL's binaries are missing", advice: err.Error()})
	} else {
		add(finding{ok: true, what: "PostgreSQL's binaries: " + bin})
	}

	for _, tool := range []struct{ name, why, how string }{
		{"git", "the machines' base uses the host's", "apt-get install git"},
		{"npm", "installs the pinned adapters", "apt-get install nodejs npm"},
	} {
		if path, err := exec.LookPath(tool.name); err != nil {
			add(finding{needed: true, what: tool.name + " is missing (" + tool.why + ")", advice: tool.how})
		} else {
			add(finding{ok: true, what: tool.name + ": " + path})
		}
	}
	for _, name := range runtime.Installable() {
		f := finding{ok: runtime.Installed(name, cfg.RuntimesDir), what: "runtime " + name + ": installed"}
		if !f.ok {
			f.what, f.advice = "runtime "+name+" is not installed", "managoat runtimes install "+name+" (else its first conversation installs it)"
		}
		add(f)
	}
	if build, runs := broker.Running(ctx, cfg.Dir("egress")); runs && build != version {
		if build == "" {
			build = "an older version"
		}
		add(finding{what: "the egress process is of " + build + ", this binary of " + version,
			advice: "the server replaces it in a moment when nothing goes through it; `managoat down` parks the machines and ends it at once"})
	} else if runs {
		add(finding{ok: true, what: "egress process: runs, of this version"})
	}
	return append(out, examineMachines(ctx, cfg)...)
}

// engineAt is the Docker Engine that is looked at.
type engineAt struct{ host, image, runtime string }

// trial opens a provider that nothing of a running server shares: the local one in a directory of its own. The docker one, on an
// engine without the machines' image, works with a skeleton that it imports and removes again: whole is false then.
func trial(ctx context.Context, name string, at engineAt) (_ sandbox.Provider, whole bool, end func() error, err error) {
	guest, err := guestBinary()
	if err != nil {
		return nil, false, nil, fmt.Errorf("the guest is not in this binary: %w", err)
	}
	switch name {
	case "local":
		p, end, err := trialLocal(guest)
		return p, true, end, err
	case "docker":
		return trialDocker(ctx, guest, at)
	}
	return nil, false, nil, &codedError{exitUsage, fmt.Errorf("there is no sandbox provider %q; there are: local, docker", name)}
}

func trialDocker(ctx context.Context, guest []byte, at engineAt) (_ sandbox.Provider, whole bool, end func() error, err error) {
	p, err := docker.New(docker.Options{Host: at.host, Image: at.image, Runtime: at.runtime, GuestBinary: guest})
	if err != nil {
		return nil, false, nil, err
	}
	if whole, err = p.HasImage(ctx); whole || err != nil {
		return p, whole, p.Close, err
	}
	p.Close()
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, false, nil, &codedError{exitRefused, fmt.Errorf("the engine has no image %s, and this host no busybox for a skeleton: `make image`, or apt-get install busybox-static", at.image)}
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, false, nil, err
	}
	if file, err := elf.NewFile(bytes.NewReader(busybox)); err != nil || slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, false, nil, &codedError{exitRefused, fmt.Errorf("the engine has no image %s, and this host's busybox needs libraries, so that it cannot stand in: `make image`, or apt-get install busybox-static", at.image)}
	}
	applets, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, false, nil, fmt.Errorf("ask busybox for its applets: %w", err)
	}
	if p, err = docker.New(docker.Options{Host: at.host, Image: docker.SkeletonImage, Runtime: at.runtime, GuestBinary: guest}); err != nil {
		return nil, false, nil, err
	}
	if err := p.ImportSkeleton(ctx, busybox, strings.Fields(string(applets))); err != nil {
		return nil, false, nil, errors.Join(err, p.Close())
	}
	return p, false, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
		defer cancel()
		return errors.Join(p.RemoveImages(ctx), p.Close())
	}, nil
}

func trialLocal(guest []byte) (_ provider, end func() error, err error) {
	dir, err := os.MkdirTemp("", "managoat-doctor-")
	if err != nil {
		return nil, nil, fmt.Errorf("no temporary directory can be made: %w", err)
	}
	p, err := newLocal(providerOptions{dir: dir, guest: guest}, 0, 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("local machines cannot be made: %w", err), os.RemoveAll(dir))
	}
	return p, func() error { return errors.Join(p.Close(), os.RemoveAll(dir)) }, nil
}

// able says in a line each what machines of a provider have here and what they lack.
func able(caps sandbox.Capabilities) (out []finding) {
	for _, c := range []struct {
		ok   bool
		what string
	}{
		{caps.UIDRange, "a uid range of its own for every machine"},
		{caps.Root, "machine root: packages and sudo in setups"},
		{caps.MemoryLimit, "memory limit"}, {caps.CPULimit, "processor limit"}, {caps.PidsLimit, "process limit"}, {caps.DiskLimit, "disk limit"},
	} {
		out = append(out, finding{ok: c.ok, what: c.what})
	}
	for _, note := range caps.Notes {
		out = append(out, finding{ok: false, what: note})
	}
	return out
}

// examineMachines looks at every enabled provider.
func examineMachines(ctx context.Context, cfg *config.Config) (out []finding) {
	guest, err := guestBinary()
	if err != nil {
		return []finding{{needed: true, what: "the guest is not in this binary", advice: err.Error()}}
	}
	for _, name := range cfg.SandboxProviders {
		of, err := examineProvider(ctx, cfg, name, guest)
		if err != nil {
			of = []finding{{needed: true, what: name + " machines cannot start on this host", advice: err.Error()}}
		}
		out = append(out, of...)
	}
	return out
}

func examineProvider(ctx context.Context, cfg *config.Config, name string, guest []byte) (_ []finding, err error) {
	can := []finding{{ok: true, what: name + " machines: can start"}}
	var p provider
	end := func() error { return p.Close() }
	if name == "docker" {
		engine, err := docker.New(docker.Options{Host: cfg.DockerHost, Image: cfg.DockerImage, GuestBinary: guest})
		if err != nil {
			return nil, err
		}
		p = engine
		if has, err := engine.HasImage(ctx); err != nil {
			return nil, errors.Join(err, end())
		} else if !has {
			can[0] = finding{needed: true, what: "the engine has no image " + cfg.DockerImage + ", which docker machines are made from", advice: "make image"}
		}
	} else if p, end, err = trialLocal(guest); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	caps, err := p.Capabilities(ctx)
	return append(can, able(caps)...), err
}

// atOnce is how many checks of a provider run at the same time. Each has machines of its own.
const atOnce = 4

func doctorSandboxVerb() *cobra.Command {
	at, only := engineAt{}, ""
	cmd := verb("", "sandbox PROVIDER", "Run every rule that machines of a provider keep, with real ones, on this host", cobra.ExactArgs(1), func(c *cobra.Command, args []string) (err error) {
		p, whole, end, err := trial(c.Context(), args[0], at)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		caps, err := p.Capabilities(c.Context())
		if err != nil {
			return &codedError{exitRefused, err}
		}
		for _, f := range able(caps) {
			f.print()
		}
		checks := slices.DeleteFunc(conformance.Checks(), func(c conformance.Check) bool { return !strings.Contains(c.Name, only) })
		if len(checks) == 0 {
			return &codedError{exitUsage, fmt.Errorf("no rule has %q in its name", only)}
		}
		if !whole {
			finding{what: "the engine has no image " + at.image + ", so that a skeleton of busybox stands in for it", advice: "make image, then run this again for the rules that need it"}.print()
			checks = slices.DeleteFunc(checks, func(c conformance.Check) bool {
				if c.Full {
					finding{what: "only the full image proves it: " + c.Name}.print()
				}
				return c.Full
			})
		}
		began, passed := time.Now(), 0
		conformance.Report(c.Context(), p, checks, atOnce, func(r conformance.Result) {
			f := finding{ok: r.Err == nil, needed: true, what: fmt.Sprintf("%s (%s)", r.Name, duration(r.Took.Milliseconds()))}
			if r.Err != nil {
				f.advice = visible(r.Err.Error())
			} else {
				passed++
			}
			f.print()
		})
		all := len(checks)
		fmt.Printf("%d of %d rules kept, %s\n", passed, all, duration(time.Since(began).Milliseconds()))
		if passed < all {
			return &codedError{exitRefused, fmt.Errorf("%d rules are not kept by %s machines on this host", all-passed, args[0])}
		}
		return nil
	})
	env := func(name, otherwise string) string { return cmp.Or(os.Getenv("MANAGOAT_"+name), otherwise) }
	cmd.Flags().StringVar(&at.host, "docker-host", env("DOCKER_HOST", ""), "the Docker Engine to look at (default: DOCKER_HOST, or the usual socket)")
	cmd.Flags().StringVar(&at.image, "docker-image", env("DOCKER_IMAGE", docker.DefaultImage), "the image that machines are made from")
	cmd.Flags().StringVar(&at.runtime, "docker-runtime", env("DOCKER_RUNTIME", ""), "the engine's runtime for machines, such as runsc")
	cmd.Flags().StringVar(&only, "only", "", "run only the rules that have these `words` in their names")
	cmd.Long = cmd.Short + ".\n\nIt needs no server, no data directory and no network, touches no machine that is there, and takes some minutes."
	return cmd
}

func runtimesVerbs() *cobra.Command {
	cmd := &cobra.Command{Use: "runtimes", Short: "Install and list the pinned adapters", GroupID: "run", RunE: needsVerb}
	cfg := &config.Config{}
	install := verb("", "install NAME", "Install the pinned version of an adapter, with what it needs", cobra.ExactArgs(1), func(c *cobra.Command, args []string) error {
		if err := runtime.Install(c.Context(), args[0], cfg.RuntimesDir, func(line string) { fmt.Fprintln(os.Stderr, line) }); err != nil {
			return err
		}
		return nil
	})
	list := verb("", "list", "List what is installed", cobra.NoArgs, func(*cobra.Command, []string) error {
		found, err := runtime.List(cfg.RuntimesDir)
		if err != nil {
			return err
		}
		var rows [][]string
		for _, f := range found {
			state := "older"
			if f.Current {
				state = "current"
			}
			rows = append(rows, []string{f.Name, f.Version, state, f.Path})
		}
		return stdout().table([]string{"NAME", "VERSION", "STATE", "PATH"}, rows)
	})
	for _, sub := range []*cobra.Command{install, list} {
		if err := cfg.Flags(sub.Flags()); err != nil {
			sub.PreRunE = func(*cobra.Command, []string) error { return &codedError{exitUsage, err} }
		}
		cmd.AddCommand(sub)
	}
	return cmd
}
