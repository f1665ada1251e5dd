//go:build linux

package bridge

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	address       = "@managoat-guest"
	bootPatience  = 30 * time.Second // for the guest to listen, where the bridge is there first
	bootPause     = 5 * time.Millisecond
	keyPatience   = 10 * time.Second // for a caller to show its key
	strangerLimit = 16               // callers that have not shown it yet; more wait
)

// Main connects standard input and output with the guest, until either ends.
func Main() error {
	// No process of the machine may read the key out of this one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	conn, err := dial()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(conn, os.Getenv(KeyVariable)); err != nil {
		return err
	}
	go func() {
		io.Copy(conn, os.Stdin)
		conn.CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// dial waits for a guest that is about to listen.
func dial() (*net.UnixConn, error) {
	for deadline := time.Now().Add(bootPatience); ; time.Sleep(bootPause) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: address, Net: "unix"})
		if err == nil || time.Now().After(deadline) {
			return conn, err
		}
	}
}

// Listener hands out the connections of callers that know the key.
type Listener struct {
	l     *net.UnixListener
	key   []byte
	known chan net.Conn
	ended context.Context
	end   context.CancelFunc
}

// Listen takes the address, which nothing of the machine can have before: the guest is its first process.
func Listen(key string) (*Listener, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("the machine's key has %d characters, not %d", len(key), KeySize)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return nil, err
	}
	first, err := standard()
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("standard input and output: %w", err)
	}
	b := &Listener{l: l, key: []byte(key), known: make(chan net.Conn)}
	b.ended, b.end = context.WithCancel(context.Background())
	go b.accept()
	if first != nil {
		go b.hand(first)
	}
	return b, nil
}

// standard takes this process's standard input and output as the connection of who started it. Without one, where nobody is
// attached, it returns nil. What this process starts has neither.
func standard() (net.Conn, error) {
	var st unix.Stat_t
	if err := unix.Fstat(0, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	var ends [2]*os.File
	for fd := range ends {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		// Without it a read could not be given up.
		if err := unix.SetNonblock(own, true); err != nil {
			return nil, err
		}
		ends[fd] = os.NewFile(uintptr(own), "standard")
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil, err
		}
	}
	return &pipes{File: ends[0], out: ends[1]}, nil
}

// pipes is a connection of two pipes: the one read from, and out.
type pipes struct {
	*os.File
	out *os.File
}

func (p *pipes) Write(b []byte) (int, error)        { return p.out.Write(b) }
func (p *pipes) Close() error                       { return errors.Join(p.File.Close(), p.out.Close()) }
func (p *pipes) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }
func (p *pipes) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}
func (p *pipes) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "standard", Net: "unix"} }
func (p *pipes) RemoteAddr() net.Addr { return p.LocalAddr() }

// hand says to a caller that it is connected, and has Accept return it.
func (b *Listener) hand(conn net.Conn) {
	if _, err := conn.Write([]byte{Connected}); err == nil {
		select {
		case b.known <- conn:
			return
		case <-b.ended.Done():
		}
	}
	conn.Close()
}

func (b *Listener) accept() {
	defer b.end()
	strangers := make(chan struct{}, strangerLimit)
	for {
		conn, err := b.l.AcceptUnix()
		if err != nil {
			return
		}
		if !fromRoot(conn) { // so that the sandbox's user cannot take all places of strangers
			conn.Close()
			continue
		}
		strangers <- struct{}{}
		go func() {
			defer func() { <-strangers }()
			if b.introduced(conn) {
				b.hand(conn)
			} else {
				conn.Close()
			}
		}()
	}
}

func fromRoot(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	root := false
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		root = err == nil && peer.Uid == 0
	})
	return err == nil && root
}

func (b *Listener) introduced(conn *net.UnixConn) bool {
	conn.SetDeadline(time.Now().Add(keyPatience))
	var key [KeySize]byte
	if _, err := io.ReadFull(conn, key[:]); err != nil || subtle.ConstantTimeCompare(key[:], b.key) != 1 {
		return false
	}
	return conn.SetDeadline(time.Time{}) == nil
}

// Accept waits for the next caller that knows the key.
func (b *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-b.known:
		return conn, nil
	case <-b.ended.Done():
		return nil, errors.New("the guest's socket is closed")
	}
}

// Close ends the listener.
func (b *Listener) Close() error { return b.l.Close() }

// Addr of the socket.
func (b *Listener) Addr() net.Addr { return b.l.Addr() }
