package handlers

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"managoat/db"
	"managoat/internal/machine"
	"managoat/internal/peer"
	"managoat/internal/refusal"
)

// Host is what the other servers of the instance may ask of this one: what only it can do, since the machine is on its host.
type Host struct {
	Key      peer.Key
	Machines *machine.Service
	Look     func(db.Ref) // at an operation that this server does, or must
}

// PeerRoutes is the part of the table that servers of the instance call each other by. It is in no document, and no key opens
// it.
func PeerRoutes(h Host) []Route {
	return []Route{
		{Method: get, Path: machine.GuestPath, Access: Peers, Summary: "A stream to a machine's guest", Web: h.guest},
		{Method: get, Path: machine.UsePath, Access: Peers, Summary: "What a machine uses", Web: h.use},
		{Method: post, Path: machine.LookPath, Access: Peers, Summary: "See what was asked of an operation", Web: h.look},
	}
}

// check finds out whether a server of the instance calls. Whoever does not gets to know nothing; the log says why.
func (g *edge) check(c echo.Context) error {
	r := c.Request()
	if g.cfg.Peer == nil {
		return refusal.New(refusal.NotFound, "There is nothing at this address.")
	}
	if _, err := g.cfg.Peer.Key.Check(r, g.cfg.Peer.Machines.Host(), time.Now()); err != nil {
		g.cfg.Log.WarnContext(r.Context(), "a call between servers was refused", "path", r.URL.Path, "address", c.RealIP(), "why", err)
		return refusal.New(refusal.Unauthenticated, "Only servers of this instance call this.")
	}
	return nil
}

// named reads the account and the row that a path names.
func named(c echo.Context) (ref db.Ref, err error) {
	if ref.TenantID, err = uuid.Parse(c.Param("account")); err == nil {
		ref.ID, err = uuid.Parse(c.Param("id"))
	}
	if err != nil {
		return ref, refusal.NotFoundError()
	}
	return ref, nil
}

// guest makes a stream to the guest of the connection.
func (h Host) guest(c echo.Context) error {
	ref, err := named(c)
	if err != nil {
		return err
	}
	if c.Request().Header.Get("Upgrade") != peer.Protocol {
		return refusal.New(refusal.BadRequest, "The request cannot be read.")
	}
	guest, err := h.Machines.GuestHere(c.Request().Context(), ref.TenantID, ref.ID)
	if err != nil {
		return err
	}
	defer guest.Close()
	caller, buffered, err := c.Response().Hijack()
	if err != nil {
		return err
	}
	defer caller.Close()
	c.Response().Committed, c.Response().Status = true, http.StatusSwitchingProtocols
	if err := caller.SetDeadline(time.Time{}); err != nil { // those of the request
		return err
	}
	if _, err := io.WriteString(caller, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+peer.Protocol+"\r\n\r\n"); err != nil {
		return nil // it has gone
	}
	relay(c.Request().Context(), caller, buffered, guest)
	return nil
}

// relay carries bytes both ways until one side ends or this server does. What flows is one multiplexed connection, which ends
// as a whole: nobody closes one direction of it.
func relay(ctx context.Context, caller net.Conn, buffered io.Reader, guest net.Conn) {
	end := func() {
		caller.Close()
		guest.Close()
	}
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	both.Go(func() {
		defer end()
		_, _ = io.Copy(guest, buffered) // how it ends the multiplexers at both ends see
	})
	both.Go(func() {
		defer end()
		_, _ = io.Copy(caller, guest)
	})
	both.Wait()
}

func (h Host) use(c echo.Context) error {
	ref, err := named(c)
	if err != nil {
		return err
	}
	use, err := h.Machines.UseHere(c.Request().Context(), ref.TenantID, ref.ID)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, use)
}

func (h Host) look(c echo.Context) error {
	ref, err := named(c)
	if err != nil {
		return err
	}
	h.Look(ref)
	return c.NoContent(http.StatusNoContent)
}
