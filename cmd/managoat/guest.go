package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
)

// guestFiles holds the guest's binaries, put there by `make build` (this machine's processor) and `make release` (all).
//
//go:embed guest
var guestFiles embed.FS

// guestBinary is the guest for machines on this host's processor. Machines are always Linux, whatever the server runs on.
func guestBinary() ([]byte, error) { return guestFor(runtime.GOARCH) }

// guestFor is the guest for machines on a processor, in Go's words.
func guestFor(arch string) ([]byte, error) {
	b, err := guestFiles.ReadFile("guest/managoat-guest-" + arch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this binary was built without the guest for %s machines: build it with `make build` or `make release`", arch)
	}
	return b, err
}
