package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"managoat/internal/netguard/hostname"
)

// Sizes and times of a tunnel.
const (
	firstBuffer = 8 << 10   // bytes held per direction, to begin with
	mostBuffer  = 256 << 10 // what a direction that fills its buffer gets in the end: bulk costs fewer calls
	tunnelIdle  = time.Hour // a tunnel through which nothing went for this long is closed
	tunnelCheck = time.Minute
)

// errServerName says that a TLS client asked for another name than the one its tunnel was opened to.
type errServerName struct{ asked string }

func (e errServerName) Error() string { return "the TLS client asked for " + e.asked }

// errEnded says that we ended the tunnel: its token or machine was removed, or the process ends.
var errEnded = errors.New("ended by the broker")

var errIdle = fmt.Errorf("nothing went through for %s", tunnelIdle)

// tunnel carries bytes between a machine and a host, half-closes included, until both directions have ended.
type tunnel struct {
	client, upstream net.Conn
	early            []byte // what the client sent ahead
	host             string // folded; what a TLS client must ask for
	out, in          int64  // bytes to and from the host, valid after run

	mu    sync.Mutex
	cause error
}

// run returns nil when both sides closed in order. Both connections are closed when it returns.
func (t *tunnel) run(ctx context.Context) error {
	var active atomic.Int64
	touch := func() { active.Store(time.Now().UnixNano()) }
	touch()
	stop := context.AfterFunc(ctx, func() { t.fail(errEnded) })
	defer stop()
	idle := time.NewTicker(tunnelCheck)
	defer idle.Stop()

	ended := make(chan struct{}, 2)
	go func() {
		defer func() { ended <- struct{}{} }()
		r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(t.early), t.client), maxHello)
		if err := t.vetHello(r); err != nil {
			t.fail(err)
			return
		}
		t.copy(t.upstream, r, &t.out, touch)
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		t.copy(t.client, t.upstream, &t.in, touch)
	}()
	for running := 2; running > 0; {
		select {
		case <-ended:
			running--
		case <-idle.C:
			if time.Since(time.Unix(0, active.Load())) > tunnelIdle {
				t.fail(errIdle)
			}
		}
	}
	t.client.Close()
	t.upstream.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause
}

// fail ends the tunnel at once; the first cause counts. Both sides see a reset: an orderly end would make half a
// transfer look whole.
func (t *tunnel) fail(err error) {
	t.mu.Lock()
	first := t.cause == nil
	if first {
		t.cause = err
	}
	t.mu.Unlock()
	if first {
		reset(t.client)
		reset(t.upstream)
	}
}

func reset(c net.Conn) {
	switch c := c.(type) {
	case interface{ Reset() error }:
		c.Reset()
	case *net.TCPConn:
		c.SetLinger(0)
	}
	c.Close()
}

// vetHello makes sure that what a TLS client asks for is what its tunnel was allowed to. Other protocols pass.
func (t *tunnel) vetHello(r *bufio.Reader) error {
	name, isTLS, err := peekServerName(r, func() { t.client.SetReadDeadline(time.Now().Add(helloTimeout)) })
	if !isTLS {
		return nil // also nothing at all: the copy meets the same end and passes it on
	}
	if err == nil && name != "" {
		if asked, foldErr := hostname.Fold(name); foldErr != nil || asked != t.host {
			err = errServerName{name}
		}
	}
	if err != nil {
		t.client.Write(alertUnrecognizedName) // best effort, as what follows
		if half, ok := t.client.(interface{ CloseWrite() error }); ok {
			half.CloseWrite() // before the reset, which could overtake the alert
		}
		return err
	}
	t.client.SetReadDeadline(time.Time{}) // fails when the client is done writing: then the next read says so
	return nil
}

// copy passes one direction on until its end, and passes that on too.
func (t *tunnel) copy(dst net.Conn, src io.Reader, count *int64, touch func()) {
	buf := make([]byte, firstBuffer)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			touch()
			w, werr := dst.Write(buf[:n])
			*count += int64(w)
			if werr != nil {
				t.fail(werr)
				return
			}
			if n == len(buf) && n < mostBuffer {
				buf = make([]byte, 2*n)
			}
		}
		switch {
		case err == io.EOF:
			if half, ok := dst.(interface{ CloseWrite() error }); ok {
				if err := half.CloseWrite(); err != nil {
					t.fail(err)
				}
				return
			}
			dst.Close()
			return
		case err != nil:
			t.fail(err)
			return
		}
	}
}
