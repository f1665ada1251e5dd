package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"managoat/internal/client"
)

// profile is what `managoat login` remembers.
type profile struct {
	URL string `json:"url"`
	Key string `json:"key"`
}

// defaultURL is where `managoat serve` listens unless told otherwise.
const defaultURL = "http://127.0.0.1:8080"

// checkURL refuses what cannot be a server's address, before it looks like a server that is down.
func checkURL(s string) error {
	if u, err := url.Parse(s); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return &codedError{exitUsage, fmt.Errorf("%q is not the address of a server: it begins with http:// or https://, such as %s", s, defaultURL)}
	}
	return nil
}

func profilePath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "managoat", "login.json"), nil
}

func (p profile) save() error {
	path, err := profilePath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// connect makes the client of the server that the environment names, or that login remembered.
func connect() (*client.Client, error) {
	if key := os.Getenv("MANAGOAT_TOKEN"); key != "" {
		base := os.Getenv("MANAGOAT_BASE_URL")
		if base == "" {
			base = defaultURL
		}
		base = strings.TrimSuffix(base, "/")
		return to(base, key), checkURL(base)
	}
	path, err := profilePath()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &codedError{exitUsage, errors.New("not signed in: run `managoat login`, or set MANAGOAT_TOKEN and MANAGOAT_BASE_URL")}
	}
	if err != nil {
		return nil, err
	}
	var p profile
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("%s cannot be read: run `managoat login` again", path)
	}
	return to(p.URL, p.Key), nil
}

// to is a client of a server, which says on standard error when a stream has to wait for the server.
func to(base, key string) *client.Client {
	return &client.Client{Base: base, Key: key, Away: func(cause error) {
		if cause == nil {
			fmt.Fprintf(os.Stderr, "managoat: %s answers again\n", base)
			return
		}
		fmt.Fprintf(os.Stderr, "managoat: %s\nmanagoat: waiting for the server; it is asked again until it answers\n", visible(cause.Error()))
	}}
}

// coded gives a client's error its exit code.
func coded(err error) error {
	var refused *client.Refused
	var gone *client.Unreachable
	switch {
	case err == nil:
		return nil
	case errors.As(err, &gone):
		return &codedError{exitUnreachable, err}
	case errors.As(err, &refused):
		return &codedError{exitRefused, err}
	}
	return err
}
