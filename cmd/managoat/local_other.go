//go:build !linux

package main

import (
	"context"
	"errors"
	"net"
	"runtime"
	"time"
)

// errNoLocal says what there is instead: local machines are made of the kernel that the server runs on.
var errNoLocal = errors.New("local machines need Linux, and this is " + runtime.GOOS + ": use --sandbox-providers docker --sandbox-provider docker")

func newLocal(providerOptions, time.Duration, int64) (provider, error) { return nil, errNoLocal }

func localGuests(string) (func(ctx context.Context, ref string) (net.Conn, error), error) {
	return func(context.Context, string) (net.Conn, error) { return nil, errNoLocal }, nil
}
