package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// loss is what a verb takes with it for good.
type loss struct {
	name  string   // of what it is done to: typed to go on, as on the pages
	lines []string // what goes, for people
}

// asks gives a verb that destroys something its way to ask first: what is lost is said, and the name must be typed. --yes
// goes round it. Without a terminal nobody can be asked, and nothing is done.
func asks(c *cobra.Command) func(lost func() (loss, error)) error {
	yes := c.Flags().BoolP("yes", "y", false, "do not ask; needed where there is no terminal")
	return func(lost func() (loss, error)) error {
		if *yes {
			return nil
		}
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return &codedError{exitUsage, errors.New("there is no terminal to ask whether you are sure: give --yes")}
		}
		l, err := lost()
		if err != nil {
			return err
		}
		for _, line := range l.lines {
			fmt.Fprintln(os.Stderr, visible(line))
		}
		fmt.Fprintf(os.Stderr, "Type its name, %s, to go on: ", visible(l.name))
		typed, err := line(os.Stdin)
		if err != nil {
			return err
		}
		if typed != l.name {
			return &codedError{exitRefused, errors.New("that is not its name; nothing was changed")}
		}
		return nil
	}
}
