package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"managoat/internal/client"
)

func loginVerb() *cobra.Command {
	var email string
	var keyStdin, passwordStdin bool
	cmd := verb("use", "login [URL]", "Remember a server and an API key for it", cobra.MaximumNArgs(1), func(c *cobra.Command, args []string) error {
		p := profile{URL: defaultURL}
		if len(args) == 1 {
			p.URL = strings.TrimSuffix(args[0], "/")
		}
		if err := checkURL(p.URL); err != nil {
			return err
		}
		cl := &client.Client{Base: p.URL}
		if keyStdin {
			key, err := line(os.Stdin)
			if err != nil {
				return err
			}
			p.Key = key
		} else {
			key, err := mintKey(c, cl, email, passwordStdin)
			if err != nil {
				return err
			}
			p.Key = key
		}
		cl.Key = p.Key
		var me struct {
			Data struct {
				Account string `json:"account"`
			} `json:"data"`
		}
		if err := cl.Get(c.Context(), "/api/auth/me", &me); err != nil {
			return coded(err)
		}
		if err := p.save(); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "Signed in to %s.\n", p.URL)
		return nil
	})
	cmd.Flags().StringVar(&email, "email", "", "your e-mail; a new API key is made with your password")
	cmd.Flags().BoolVar(&keyStdin, "key-stdin", false, "read an API key from standard input")
	cmd.Flags().BoolVar(&passwordStdin, "password-stdin", false, "read the password from standard input")
	return cmd
}

func mintKey(c *cobra.Command, cl *client.Client, email string, fromStdin bool) (string, error) {
	if email == "" {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return "", &codedError{exitUsage, errors.New("give --key-stdin, or --email with --password-stdin")}
		}
		fmt.Fprint(os.Stderr, "E-mail: ")
		var err error
		if email, err = line(os.Stdin); err != nil {
			return "", err
		}
	}
	password, err := readPassword(fromStdin)
	if err != nil {
		return "", err
	}
	var out struct {
		APIKey string `json:"api_key"`
	}
	err = cl.Do(c.Context(), "POST", "/api/auth/token", map[string]string{"email": email, "password": password}, &out)
	return out.APIKey, coded(err)
}

func readPassword(fromStdin bool) (string, error) {
	if fromStdin {
		return line(os.Stdin)
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return "", &codedError{exitUsage, errors.New("there is no terminal to ask for the password: give --password-stdin")}
	}
	fmt.Fprint(os.Stderr, "Password: ")
	b, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(os.Stderr)
	return string(b), err
}

// line reads the first line of r, without its end.
func line(r io.Reader) (string, error) {
	s, err := bufio.NewReader(io.LimitReader(r, 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if s = strings.TrimRight(s, "\r\n"); s == "" {
		return "", &codedError{exitUsage, errors.New("standard input was empty")}
	}
	return s, nil
}

func meVerb() *cobra.Command {
	var asJSON bool
	cmd := sub("me", "Show who the key belongs to", cobra.NoArgs, func(c *cobra.Command, cl *client.Client, _ []string) error {
		var out struct {
			Data json.RawMessage `json:"data"`
		}
		if err := cl.Get(c.Context(), "/api/auth/me", &out); err != nil {
			return err
		}
		if asJSON {
			return stdout().json(out.Data)
		}
		var me struct{ Email, Account, Role string }
		if err := json.Unmarshal(out.Data, &me); err != nil {
			return err
		}
		stdout().text(fmt.Sprintf("%s (%s of %s) at %s\n", me.Email, me.Role, me.Account, cl.Base))
		return nil
	})
	cmd.GroupID = "use"
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
