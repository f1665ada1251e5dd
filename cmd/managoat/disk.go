package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"managoat/internal/client"
	"managoat/internal/files"
)

// diskVerbs read a workspace's disk. A read never wakes a parked machine.
func diskVerbs() []*cobra.Command {
	list := diskVerb("files WORKSPACE [PATH]", "List a directory of its machine", nil, func(p printer, l files.Listing) error {
		rows := make([][]string, len(l.Entries))
		for i, e := range l.Entries {
			name, size := e.Name, strconv.FormatInt(e.Size, 10)
			switch e.Type {
			case "directory":
				name, size = name+"/", "-"
			case "symlink":
				name += " -> " + e.Target
			}
			rows[i] = []string{e.Mode, size, e.ModifiedAt.Local().Format("2006-01-02 15:04"), name}
		}
		if l.Truncated {
			defer fmt.Fprintf(os.Stderr, "%s holds more than these %d entries.\n", visible(l.Path), len(l.Entries))
		}
		return p.table([]string{"MODE", "SIZE", "CHANGED", "NAME"}, rows)
	})

	cat := diskVerb("cat WORKSPACE PATH", "Print a file of its machine", []string{"max-bytes"}, func(p printer, f files.Content) error {
		content := f.Content
		if f.Encoding == "base64" {
			raw, err := base64.StdEncoding.DecodeString(f.Content)
			if err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
			if content = string(raw); p.terminal && !utf8.ValidString(content) {
				return &codedError{exitRefused, fmt.Errorf("%s is not text: send it to a file, or take --json", visible(f.Path))}
			}
		}
		p.text(content)
		if f.Truncated {
			fmt.Fprintf(os.Stderr, "These are the first bytes of %d: --max-bytes shows more, up to 4194304.\n", f.Size)
		}
		return nil
	})

	status := diskVerb("git-status WORKSPACE [PATH]", "The state of a repository on its machine", nil, func(p printer, s files.GitStatus) error {
		branch := "no branch"
		if s.Branch != nil {
			branch = *s.Branch
		}
		line := "## " + branch
		if s.Upstream != "" {
			line += "..." + s.Upstream
		}
		for _, n := range []struct {
			count int
			word  string
		}{{s.Ahead, "ahead"}, {s.Behind, "behind"}} {
			if n.count > 0 {
				line += fmt.Sprintf(", %s %d", n.word, n.count)
			}
		}
		if s.Operation != "" {
			line += ", " + s.Operation + " in progress"
		}
		p.text(line + "\n")
		for _, e := range s.Entries {
			name := e.Path
			if e.RenamedFrom != "" {
				name = e.RenamedFrom + " -> " + name
			}
			p.text(blank(e.Index) + blank(e.Worktree) + " " + strings.ReplaceAll(name, "\n", `\n`) + "\n")
		}
		if s.Truncated {
			fmt.Fprintf(os.Stderr, "There are more than these %d.\n", len(s.Entries))
		}
		return nil
	})

	diff := diskVerb("diff WORKSPACE [PATH]", "What changed in a repository on its machine", []string{"staged", "untracked", "ref", "max-bytes"}, func(p printer, d files.Diff) error {
		p.text(d.Diff)
		if d.Truncated {
			fmt.Fprintln(os.Stderr, "The diff is longer: --max-bytes shows more, up to 4194304.")
		}
		return nil
	})
	return []*cobra.Command{list, cat, status, diff}
}

// blank is a column of git's short state.
func blank(state string) string {
	if state == "" || state == "." {
		return " "
	}
	return state
}

// diskVerb is a verb that reads at a path of a workspace: its name is the last part of the API's address.
func diskVerb[T any](use, short string, flags []string, show func(printer, T) error) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	args := cobra.RangeArgs(1, 2)
	if !strings.Contains(use, "[") {
		args = cobra.ExactArgs(2)
	}
	address := name
	if name == "cat" {
		address = "file"
	}
	var asJSON bool
	cmd := sub(use, short, args, func(c *cobra.Command, cl *client.Client, args []string) error {
		id, err := find(c, cl, "/api/workspaces", "workspace", args[0])
		if err != nil {
			return err
		}
		query := url.Values{}
		if len(args) > 1 {
			query.Set("path", args[1])
		}
		for _, flag := range flags {
			if f := c.Flags().Lookup(flag); f.Changed {
				query.Set(strings.ReplaceAll(flag, "-", "_"), f.Value.String())
			}
		}
		var out struct{ Data json.RawMessage }
		if err := cl.Get(c.Context(), "/api/workspaces/"+id+"/"+address+"?"+query.Encode(), &out); err != nil {
			return err
		}
		if asJSON {
			return stdout().json(out.Data)
		}
		var data T
		if err := json.Unmarshal(out.Data, &data); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		return show(stdout(), data)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	for _, flag := range flags {
		switch flag {
		case "max-bytes":
			cmd.Flags().Int64(flag, 256<<10, "how much at most, up to 4194304")
		case "staged":
			cmd.Flags().Bool(flag, false, "the index with the last commit")
		case "untracked":
			cmd.Flags().Bool(flag, false, "new files that git does not know yet count as added")
		case "ref":
			cmd.Flags().String(flag, "", "one commit, branch or tag to compare with")
		}
	}
	return cmd
}
