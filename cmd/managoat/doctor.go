package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"managoat/db"
	"managoat/internal/config"
	"managoat/internal/runtime"
	"managoat/sandbox/local"
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
			mark := "✓"
			if !f.ok {
				mark = "!"
				if f.needed {
					mark = "✕"
					bad++
				}
			}
			fmt.Printf("%s %s\n", mark, f.what)
			if f.advice != "" {
				fmt.Printf("  → %s\n", f.advice)
			}
		}
		if bad > 0 {
			return &codedError{exitRefused, fmt.Errorf("%d things are missing", bad)}
		}
		return nil
	})
	return cmd
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
	return append(out, examineMachines(ctx)...)
}

// examineMachines asks the local provider in a directory of its own, so that nothing of a running server is touched.
func examineMachines(ctx context.Context) []finding {
	guest, err := guestBinary()
	if err != nil {
		return []finding{{needed: true, what: "the guest is not in this binary", advice: err.Error()}}
	}
	dir, err := os.MkdirTemp("", "managoat-doctor")
	if err != nil {
		return []finding{{needed: true, what: "no temporary directory can be made", advice: err.Error()}}
	}
	defer os.RemoveAll(dir)
	p, err := local.New(local.Options{Dir: dir, GuestBinary: guest})
	if err != nil {
		return []finding{{needed: true, what: "local machines cannot be made", advice: err.Error()}}
	}
	defer p.Close()
	caps, err := p.Capabilities(ctx)
	if err != nil {
		return []finding{{needed: true, what: "local machines cannot start on this host", advice: err.Error()}}
	}
	out := []finding{{ok: true, what: "local machines: can start"}}
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
