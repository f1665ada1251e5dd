package main

import (
	"context"
	"net"
	"time"

	"managoat/sandbox/local"
)

// newLocal opens the local provider. age and room are of package layers; 0 is the provider's own default.
func newLocal(o providerOptions, age time.Duration, room int64) (provider, error) {
	return local.New(local.Options{Dir: o.dir, GuestBinary: o.guest, MountRoots: o.mountRoots, AptSources: o.aptSources, ExtraCA: o.extraCA,
		Defaults: o.limits, LayerAge: age, LayerBytes: room, Log: o.log})
}

// localGuests opens guests of the local machines below a directory.
func localGuests(dir string) (func(ctx context.Context, ref string) (net.Conn, error), error) {
	guests, err := local.Attach(dir)
	if err != nil {
		return nil, err
	}
	return guests.Guest, nil
}
