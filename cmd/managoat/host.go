package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"managoat/internal/config"
	"managoat/internal/machine"
)

func hostVerbs() *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "See the hosts of an instance and take them out of service, as its operator", GroupID: "run", RunE: needsVerb,
		Long: `The hosts of an instance: the servers on one database, each with its own machines.

These verbs work on the database, beside servers that run and without them. Give the settings of one of the
servers: its data directory, and its database URL where it has one.`}
	list, drain, forget := hostListVerb(), hostDrainVerb(), hostForgetVerb()
	for _, c := range []*cobra.Command{list, drain, forget} {
		c.GroupID = ""
	}
	cmd.AddCommand(onStore(list), onStore(drain), onStore(forget))
	return cmd
}

func hostListVerb() *cobra.Command {
	var asJSON bool
	cmd := operatorVerb("list", "List the hosts, what they have and what runs there", cobra.NoArgs, onHosts(func(ctx context.Context, hosts *machine.Hosts, _ []string) error {
		all, err := hosts.List(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return stdout().json(all)
		}
		rows := make([][]string, len(all))
		for i, h := range all {
			places := strconv.Itoa(h.Places)
			if h.Capped {
				places += " at most"
			}
			rows[i] = []string{h.ID.String(), h.Name, h.URL, h.Version, strings.Join(h.Providers, ","), when(h.StartedAt), when(h.SeenAt),
				places, fmt.Sprintf("%d running, %d parked", h.Running, h.Parked), hostState(h)}
		}
		return stdout().table([]string{"ID", "NAME", "ADDRESS", "VERSION", "PROVIDERS", "UP SINCE", "SEEN", "PLACES", "MACHINES", "STATE"}, rows)
	}))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func when(t time.Time) string { return t.Local().Format(time.DateTime) }

// hostState says how a host is, and what that means for its machines.
func hostState(h machine.Host) string {
	var states []string
	switch {
	case h.Forgotten:
		states = append(states, "given up: its machines are being marked as lost")
	case h.Away && h.Running+h.Parked > 0:
		states = append(states, "away: its machines wait for it")
	case h.Away:
		states = append(states, "away")
	}
	switch {
	case h.Drained:
		states = append(states, "drained")
	case h.DrainingSince != nil:
		states = append(states, "draining since "+when(*h.DrainingSince))
	}
	if len(states) == 0 {
		return "up"
	}
	return strings.Join(states, "; ")
}

func hostDrainVerb() *cobra.Command {
	var undo, asJSON bool
	cmd := operatorVerb("drain HOST", "Take a host out of service: its machines park as their turns end, and none is made there", cobra.ExactArgs(1), onHosts(func(ctx context.Context, hosts *machine.Hosts, args []string) error {
		h, err := hosts.Drain(ctx, args[0], !undo)
		if err != nil {
			return err
		}
		if asJSON {
			return stdout().json(h)
		}
		switch {
		case undo:
			stdout().text(fmt.Sprintf("The host %s takes machines and prompts again.\n", h.Name))
		case h.Drained:
			stdout().text(fmt.Sprintf("The host %s is drained: nothing runs there, and nothing begins there. Machines parked: %d, with their disks.\n", h.Name, h.Parked))
		default:
			stdout().text(fmt.Sprintf("The host %s is being drained: nothing begins there, and its machines park as their turns end. Running still: %d. See: managoat host list\n", h.Name, h.Running))
		}
		return nil
	}))
	cmd.Long = `Take a host out of service. HOST is its id, the beginning of it, or its name.

No machine is made there any more. Turns that run or wait there go on to their end; then their machine parks, with its
disk. Prompts into its machines are refused (host_draining) until the host is back, so that this comes to an end. It is
kept in the database: a server that starts again on a drained host leaves it drained.

When managoat host list says "drained" the host can be taken down. Bring it back with --undo.`
	cmd.Flags().BoolVar(&undo, "undo", false, "take the host back into service")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func hostForgetVerb() *cobra.Command {
	var asJSON bool
	var sure func(func() (loss, error)) error
	cmd := operatorVerb("forget HOST", "Give up a host that is gone for good, and the machines on it", cobra.ExactArgs(1), onHosts(func(ctx context.Context, hosts *machine.Hosts, args []string) error {
		if err := sure(func() (loss, error) {
			h, err := hosts.Find(ctx, args[0])
			return loss{h.Name, []string{fmt.Sprintf("This gives up the host %s and %d machines with their disks.", h.Name, h.Running+h.Parked)}}, err
		}); err != nil {
			return err
		}
		h, err := hosts.Forget(ctx, args[0])
		if err != nil {
			return err
		}
		if asJSON {
			return stdout().json(h)
		}
		stdout().text(fmt.Sprintf("The host %s is given up. Machines on it: %d. Each is marked as lost by the servers that live, and the next prompt builds another.\n", h.Name, h.Running+h.Parked))
		return nil
	}))
	cmd.Long = fmt.Sprintf(`Give up a host that is gone for good. HOST is its id, the beginning of it, or its name.

Its machines are marked as lost: what is on their disks is given up, and the next prompt into each workspace builds a new
machine on another host. A host that has given a sign of life in the last %d minutes is refused.`, int(machine.ForgetAfter.Minutes()))
	sure = asks(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// onHosts runs a verb on the hosts of the instance whose settings it has.
func onHosts(run func(context.Context, *machine.Hosts, []string) error) func(context.Context, *config.Config, []string) error {
	return func(ctx context.Context, cfg *config.Config, args []string) error {
		if err := anInstance(cfg); err != nil {
			return err
		}
		return operate(ctx, cfg, func(b *base) error {
			return run(ctx, machine.NewHosts(b.db, commandLine), args)
		})
	}
}
