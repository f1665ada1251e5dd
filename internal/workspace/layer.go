package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"managoat/internal/environment"
)

// What an environment's packages install is kept as a layer, which later setups of the account stand on instead of
// installing it again. It holds what is installed after the step packages of a setup, and becomes a layer when that setup
// has succeeded.

func none(p environment.Packages) bool { return len(p.Apt)+len(p.Npm)+len(p.Pip) == 0 }

// installs tells whether this setup installs packages. Until it has, the machine holds no secret: what is installed may
// run anything, and whatever it writes is there for the account's other machines.
func (r *setup) installs() bool {
	return !none(r.env.Packages) && r.built.Layer == nil && r.built.Capabilities.Root
}

// layer names the layer of this setup's packages by all that what is installed depends on beside the machine's base: the
// account, the packages in any order, where they come from, and the networking under which whatever they run is let out.
// Variables and secrets are not among it, since nothing sees them while packages are installed. "" without packages.
func (r *setup) layer() string {
	if none(r.env.Packages) {
		return ""
	}
	fields := environment.Digests(r.env)
	raw, err := json.Marshal([]any{
		r.w.TenantID, fields["packages"], fields["networking_type"], fields["networking_config"],
		r.s.o.AptSources, r.s.o.NPMRegistry, r.s.o.PIPIndex,
	})
	if err != nil {
		panic(err) // text
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// snapshot copies what was just installed. A setup does not depend on it: what cannot be copied is logged.
func (r *setup) snapshot(ctx context.Context) {
	var err error
	if r.installed, err = r.s.o.Machines.Snapshot(ctx, r.w.TenantID, r.machine); err != nil {
		r.s.log.Warn("the packages of a setup are not kept for later ones", "workspace", r.w.ID, "error", err)
	}
}

// keep makes a layer of what this setup installed, which takes until it is on disk: nobody waits for that but the end of
// Run.
func (r *setup) keep(ctx context.Context) {
	installed := r.installed
	if installed == nil {
		return
	}
	r.installed = nil
	ctx = context.WithoutCancel(ctx)
	r.s.keeping.Go(func() {
		if err := installed.Keep(ctx, r.layer()); err != nil {
			r.s.log.Warn("the packages of a setup are not kept for later ones", "workspace", r.w.ID, "error", err)
		}
	})
}

// discard removes the copy of a setup that did not succeed.
func (r *setup) discard() {
	if r.installed == nil {
		return
	}
	if err := r.installed.Discard(); err != nil {
		r.s.log.Warn("remove the copied packages of a setup that failed", "workspace", r.w.ID, "error", err)
	}
}

// old says an age for people.
func old(d time.Duration) string {
	for _, u := range []struct {
		name string
		is   time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}} {
		switch n := d / u.is; {
		case n == 1:
			return "1 " + u.name
		case n > 1:
			return fmt.Sprintf("%d %ss", n, u.name)
		}
	}
	return "less than a minute"
}
