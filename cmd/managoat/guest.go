package main

import (
	"embed"
	"errors"
	"io/fs"
)

// guestFiles holds the guest's binary, put there by `make build`.
//
//go:embed guest
var guestFiles embed.FS

// guestBinary is the guest for machines on this host's processor. Machines are always Linux, whatever the server runs on.
func guestBinary() ([]byte, error) {
	b, err := guestFiles.ReadFile("guest/managoat-guest")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("this binary was built without the guest: build it with `make build` or `make release`")
	}
	return b, err
}
