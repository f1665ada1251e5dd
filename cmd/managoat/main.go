// Command managoat is the server, the egress process and the command line of Managoat in one binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"managoat/internal/config"
)

// version is set by the build.
var version = "development"

// Exit codes of every verb.
const (
	exitOK          = 0
	exitRefused     = 1
	exitUsage       = 2
	exitUnreachable = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	os.Exit(report(err))
}

// codedError carries the exit code of a verb that failed.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func report(err error) int {
	if err == nil {
		return exitOK
	}
	var coded *codedError
	if errors.As(err, &coded) {
		if msg := coded.Error(); msg != "" {
			fmt.Fprintln(os.Stderr, "managoat:", msg)
		}
		return coded.code
	}
	fmt.Fprintln(os.Stderr, "managoat:", err)
	return exitRefused
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "managoat", Short: "Self-hosted, multi-tenant runtime for coding agents",
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &codedError{exitUsage, fmt.Errorf("%w\nSee: %s --help", err, c.CommandPath())}
	})
	// cobra's own check of a root's arguments knows no exit code.
	cmd.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return noVerb(c, args[0])
	}
	// Asked for the help of a verb that is not there, cobra shows that of what is above it.
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		if rest := c.Flags().Args(); c.HasSubCommands() && len(rest) > 0 {
			os.Exit(report(noVerb(c, rest[0])))
		}
		help(c, args)
	})
	cmd.SetHelpCommand(&cobra.Command{Use: "help [VERB]", Short: "Help about a verb", RunE: func(c *cobra.Command, args []string) error {
		found, rest, err := c.Root().Find(args)
		if err == nil && found.HasSubCommands() && len(rest) > 0 {
			err = noVerb(found, rest[0])
		}
		if err != nil {
			return err
		}
		return found.Help()
	}})
	cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	cmd.AddGroup(&cobra.Group{ID: "use", Title: "Use a server:"}, &cobra.Group{ID: "run", Title: "Run a server:"})
	cmd.AddCommand(serverVerbs()...)
	return cmd
}

// needsVerb ends a command that only holds others.
func needsVerb(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return noVerb(c, args[0])
	}
	return &codedError{exitUsage, fmt.Errorf("%s needs a verb\n%s", c.Name(), strings.TrimSpace(c.UsageString()))}
}

// noVerb refuses a verb that a command does not have, and names those that may be meant.
func noVerb(c *cobra.Command, name string) error {
	said := fmt.Sprintf("%s has no verb %q", c.Name(), name)
	if !c.HasParent() {
		said = fmt.Sprintf("there is no verb %q", name)
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(name); len(near) > 0 {
		said += ". Do you mean " + strings.Join(near, " or ") + "?"
	}
	return &codedError{exitUsage, fmt.Errorf("%s\nSee: %s --help", said, c.CommandPath())}
}

// verb makes a command whose arguments are checked by args.
func verb(group, use, short string, args cobra.PositionalArgs, run func(*cobra.Command, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, GroupID: group, RunE: run, Args: func(c *cobra.Command, a []string) error {
		if err := args(c, a); err != nil {
			return &codedError{exitUsage, fmt.Errorf("%w\nUsage: %s", err, c.UseLine())}
		}
		return nil
	}}
}

// configured is verb for commands that take the server's settings and nothing else.
func configured(use, short string, run func(context.Context, *config.Config) error) *cobra.Command {
	return operatorVerb(use, short, cobra.NoArgs, func(ctx context.Context, cfg *config.Config, _ []string) error { return run(ctx, cfg) })
}

// operatorVerb is verb for commands that take the server's settings.
func operatorVerb(use, short string, args cobra.PositionalArgs, run func(context.Context, *config.Config, []string) error) *cobra.Command {
	cfg := &config.Config{}
	cmd := verb("run", use, short, args, func(c *cobra.Command, args []string) error {
		if err := cfg.Check(); err != nil {
			return &codedError{exitUsage, err}
		}
		setLog(cfg)
		return run(c.Context(), cfg, args)
	})
	if err := cfg.Flags(cmd.Flags()); err != nil {
		cmd.PreRunE = func(*cobra.Command, []string) error { return &codedError{exitUsage, err} }
	}
	return cmd
}

// onStore has the help of a verb that works on the database alone show those of the server's settings that lead there. It takes
// them all, from the environment that the server has.
func onStore(cmd *cobra.Command) *cobra.Command {
	for _, s := range config.Settings {
		if flag := cmd.Flags().Lookup(s.Flag); flag != nil {
			flag.Hidden = !s.Store
		}
	}
	return cmd
}

func setLog(cfg *config.Config) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		level = slog.LevelInfo // checked before
	}
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, opts)
	if cfg.LogFormat == "json" {
		h = slog.NewJSONHandler(os.Stderr, opts)
	}
	slog.SetDefault(slog.New(h))
}
