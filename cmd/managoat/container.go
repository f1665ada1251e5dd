package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"managoat/internal/config"
)

// unprivileged is the number of the user, and of the group, that a server in a container is.
const unprivileged = 65532

// healthWait is how long a server may take to say how it is.
const healthWait = 10 * time.Second

// dropRootVerb exists for a container that starts as root because only there the group of the engine's socket can be known:
// it has another number on every host.
func dropRootVerb() *cobra.Command {
	cmd := verb("run", "drop-root SOCKET VERB", "Run a verb as an unprivileged user who may use a Docker Engine's socket (for containers)", cobra.MinimumNArgs(2), func(_ *cobra.Command, args []string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			info, err := os.Stat(args[0])
			if err != nil {
				return &codedError{exitRefused, fmt.Errorf("the Docker Engine's socket: %w; mount it into the container", err)}
			}
			group := int(info.Sys().(*syscall.Stat_t).Gid)
			// The user last: after it nothing more can be changed.
			if err := errors.Join(syscall.Setgroups([]int{group}), syscall.Setgid(unprivileged), syscall.Setuid(unprivileged)); err != nil {
				return &codedError{exitRefused, fmt.Errorf("become user %d: %w (the container needs the capabilities SETUID and SETGID)", unprivileged, err)}
			}
		}
		return syscall.Exec(self, append([]string{os.Args[0]}, args[1:]...), os.Environ())
	})
	cmd.Flags().SetInterspersed(false) // the verb's flags are its own
	return cmd
}

// health asks the server of these settings, at its own address, whether it can work.
func health(ctx context.Context, cfg *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	address, url := net.JoinHostPort(host, port), "http://"+net.JoinHostPort(host, port)
	if cfg.TLS() {
		url = "https://" + cfg.Host()
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		// Whether it answers is asked, at an address that is ours; whom browsers would take it for is not.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health/ready", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("no server answers on %s: %w", address, err)}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return &codedError{exitRefused, fmt.Errorf("the server on %s is not ready (%s)", address, res.Status)}
	}
	fmt.Println("ok")
	return nil
}
