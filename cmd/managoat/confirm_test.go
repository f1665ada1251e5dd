package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// A disk that goes with a slip of the fingers does not come back.
func TestWhatDestroysAsksFirst(t *testing.T) {
	t.Parallel()
	c := &cobra.Command{}
	sure := asks(c)
	var coded *codedError
	if err := sure(func() (loss, error) { t.Error("nobody is there to read it"); return loss{}, nil }); !errors.As(err, &coded) || coded.code != exitUsage {
		t.Errorf("without a terminal: %v", err)
	}
	if err := c.ParseFlags([]string{"-y"}); err != nil {
		t.Fatal(err)
	}
	if err := sure(nil); err != nil {
		t.Errorf("with --yes: %v", err)
	}
	asking := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if slices.Contains([]string{"delete", "rebuild", "forget", "remove", "destroy"}, c.Name()) {
			if asking++; c.Flags().Lookup("yes") == nil {
				t.Errorf("%s does not ask", c.CommandPath())
			}
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	if walk(root()); asking < 3 {
		t.Errorf("%d verbs destroy something", asking)
	}
}
