package server

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
)

// Times and limits of egress.
const (
	egressWait     = 10 * time.Second // for an egress process that is being restarted
	maxConnections = 1024             // open at once; more wait in the listeners' backlog
)

// listeners are where programs connect. The names are in the machine's /etc/hosts.
var listeners = []struct{ name, addr string }{
	{"proxy", guest.ProxyAddr},
	{"model", guest.ModelAddr + ":80"},
	{"api", guest.APIAddr + ":80"},
}

// unavailable is what a program is told when there is no egress process to take its connection.
const unavailable = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"

const unavailableBody = `{"error":"egress_unavailable","advice":"the machine's way out is not up; try again in a few seconds"}` + "\n"

// egress hands connections made inside to the newest egress process.
type egress struct {
	mu      sync.Mutex
	session *yamux.Session
	changed chan struct{} // closed and replaced when session changes
}

// attach makes session the one that is served and returns what undoes it.
func (e *egress) attach(session *yamux.Session) (detach func()) {
	e.set(session, nil)
	return func() { e.set(nil, session) }
}

// set replaces the session, unless it is no longer the one expected. nil expects anything.
func (e *egress) set(session, expected *yamux.Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if expected != nil && e.session != expected {
		return
	}
	e.session = session
	close(e.changed)
	e.changed = make(chan struct{})
}

// open opens a stream to the egress process, waiting a while for one.
func (e *egress) open() (*yamux.Stream, error) {
	deadline := time.NewTimer(egressWait)
	defer deadline.Stop()
	for {
		e.mu.Lock()
		session, changed := e.session, e.changed
		e.mu.Unlock()
		if session != nil {
			if stream, err := session.OpenStream(); err == nil {
				return stream, nil
			}
		}
		select {
		case <-changed:
		case <-deadline.C:
			return nil, errors.New("no egress process")
		}
	}
}

// listen opens the listeners and serves them for the life of the machine.
func (e *egress) listen(log *log.Logger) error {
	slots := make(chan struct{}, maxConnections)
	for _, l := range listeners {
		ln, err := net.Listen("tcp4", l.addr)
		if err != nil {
			return fmt.Errorf("egress: %w", err)
		}
		go func() {
			for {
				slots <- struct{}{}
				conn, err := ln.Accept()
				if err != nil {
					log.Printf("egress: %v", err)
					<-slots
					time.Sleep(100 * time.Millisecond) // out of descriptors: connections that end free some
					continue
				}
				go func() {
					defer func() { <-slots }()
					e.pass(l.name, conn.(*net.TCPConn))
				}()
			}
		}()
	}
	return nil
}

// pass carries one connection.
func (e *egress) pass(listener string, conn *net.TCPConn) {
	defer conn.Close()
	stream, err := e.open()
	if err == nil {
		err = wire.WriteMessage(stream, guest.EgressRequest{Listener: listener})
		if err != nil {
			stream.Close()
		}
	}
	if err != nil {
		// Read what the program sends, or closing with unread bytes would reset the answer away.
		fmt.Fprintf(conn, unavailable, len(unavailableBody), unavailableBody)
		conn.CloseWrite()
		conn.SetReadDeadline(time.Now().Add(time.Second))
		io.Copy(io.Discard, io.LimitReader(conn, 1<<20))
		return
	}
	wire.Join(conn, wire.NewPipe(stream))
}
