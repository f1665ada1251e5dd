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

func guestBinary() ([]byte, error) {
	b, err := guestFiles.ReadFile("guest/managoat-guest")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("this binary was built without the guest: build it with `make build`")
	}
	return b, err
}
