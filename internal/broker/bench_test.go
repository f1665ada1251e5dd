package broker

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"managoat/internal/broker/rule"
)

// benchHost is a host for a benchmark: the egress process is a second process here too.
func benchHost(b *testing.B, change func(*Settings, *Machine, *Token)) *host {
	b.Helper()
	h := newHost(b, change)
	b.Cleanup(func() { h.Client.Close() })
	return h
}

// Bytes from a loopback host into a machine: directly, and through the proxy's tunnel, the guest's multiplexed
// connection included.
func BenchmarkTunnelThroughput(b *testing.B) {
	const size = 64 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		chunk := make([]byte, 256<<10)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				for range size / len(chunk) {
					if _, err := c.Write(chunk); err != nil {
						return
					}
				}
			})
		}
	})
	h := benchHost(b, nil)
	drain := func(b *testing.B, c io.Reader) {
		b.Helper()
		if n, err := io.Copy(io.Discard, c); err != nil || n != size {
			b.Fatal(n, err)
		}
	}
	direct := func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		drain(b, c)
	}
	tunnel := func() {
		c := h.proxy()
		defer c.Close()
		if resp, _ := c.ask(b, fmt.Sprintf("CONNECT local.test:%d", l.Addr().(*net.TCPAddr).Port), auth(h.token)); resp.StatusCode != 200 {
			b.Fatal(resp.Status)
		}
		drain(b, c.r)
	}
	const transfers = 5
	var as, zs []time.Duration
	for b.Loop() {
		for range transfers {
			as = append(as, timed(direct))
			zs = append(zs, timed(tunnel))
		}
	}
	a, z := median(as), median(zs)
	b.ReportMetric(float64(a)/float64(z), "of-direct-p50")
	b.ReportMetric(float64(size>>20)/z.Seconds(), "MiB/s")
}

// The first byte of a model's answer: from the provider directly, and through the gateway.
func BenchmarkGatewayFirstByte(b *testing.B) {
	port := serve(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"type\":\"message_start\"}\n\n")
		http.NewResponseController(w).Flush()
	})
	h := benchHost(b, func(_ *Settings, _ *Machine, k *Token) { k.Model = modelCredential(port) })
	body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, make([]byte, 10<<10))
	ask := func(c net.Conn, r *bufio.Reader, key string) {
		fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	d, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	g := h.box.dial("model")
	dr, gr := bufio.NewReader(d), bufio.NewReader(g)
	report(b, func() { ask(d, dr, "k") }, func() { ask(g, gr, h.token) })
}

// A small request in absolute form: directly, and through the proxy with its policy, guard and row.
func BenchmarkProxyRequest(b *testing.B) {
	port := serve(b, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	h := benchHost(b, func(_ *Settings, _ *Machine, k *Token) {
		k.Policy = Policy{Type: rule.Limited, AllowedHosts: []string{fmt.Sprintf("*.test:%d", port), fmt.Sprintf("local.test:%d", port)}}
	})
	d, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	direct, proxied := &conn{d, bufio.NewReader(d)}, h.proxy()
	report(b, func() {
		direct.ask(b, "GET /", "")
	}, func() {
		proxied.ask(b, fmt.Sprintf("GET http://local.test:%d/", port), auth(h.token))
	})
}

// Opening a tunnel, against opening a connection.
func BenchmarkTunnelOpen(b *testing.B) {
	port := serve(b, func(w http.ResponseWriter, r *http.Request) {})
	h := benchHost(b, nil)
	report(b, func() {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}, func() {
		c := h.proxy()
		c.ask(b, fmt.Sprintf("CONNECT local.test:%d", port), auth(h.token))
		c.Close()
	})
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// rounds make a median of one iteration worth something.
const rounds = 200

// report runs both by turns and reports the medians' difference and ratio.
func report(b *testing.B, direct, through func()) {
	b.Helper()
	var ds, ts []time.Duration
	for b.Loop() {
		for range rounds {
			ds = append(ds, timed(direct))
			ts = append(ts, timed(through))
		}
	}
	d, t := median(ds), median(ts)
	b.ReportMetric(float64(t-d)/1e6, "ms-more-p50")
	b.ReportMetric(float64(t)/float64(d), "x-direct-p50")
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}
