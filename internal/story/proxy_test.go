package story

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// proxy passes connections on to a server, and breaks them when it is told to.
type proxy struct {
	url      string
	target   string
	listener net.Listener
	running  sync.WaitGroup
	limit    func() int64 // bytes from the server after which the next connection breaks; nil: never

	mu   sync.Mutex
	open map[net.Conn]bool
	cuts int
}

// newProxy opens a proxy to a server that goes with the test.
func newProxy(tb testing.TB, s *Server, limit func() int64) *proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{url: "http://" + listener.Addr().String(), target: strings.TrimPrefix(s.url, "http://"), listener: listener, limit: limit, open: map[net.Conn]bool{}}
	p.running.Go(p.serve)
	tb.Cleanup(func() {
		listener.Close()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		limit := int64(-1)
		if p.limit != nil {
			limit = p.limit()
		}
		p.mu.Lock()
		p.open[client] = true
		p.mu.Unlock()
		p.running.Go(func() {
			io.Copy(server, client)
			server.Close()
		})
		p.running.Go(func() {
			if limit < 0 {
				io.Copy(client, server)
			} else if n, _ := io.CopyN(client, server, limit); n == limit {
				p.count()
			}
			client.Close()
			server.Close()
			p.mu.Lock()
			delete(p.open, client)
			p.mu.Unlock()
		})
	}
}

func (p *proxy) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts++
}

// cut breaks every connection that stands.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
		p.cuts++
	}
}

// broken is how many connections were broken so far.
func (p *proxy) broken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// oneEach makes every request on a connection of its own.
func oneEach() *http.Client { return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} }
