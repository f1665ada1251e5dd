package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"managoat/sandbox"
	"managoat/sandbox/guest"
)

// serveEgress answers every connection of a machine until the check ends.
func serveEgress(t T, c *guest.Client, serve func(conn net.Conn, r guest.EgressRequest)) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		c.Close()
		all.Wait()
	})
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			conn, r, err := c.Accept(ctx)
			if err != nil {
				return
			}
			all.Add(1)
			go func() {
				defer all.Done()
				defer conn.Close()
				serve(conn, r)
			}()
		}
	}()
}

func closeWrite(conn net.Conn) error { return conn.(interface{ CloseWrite() error }).CloseWrite() }

// tcp is bash talking over a connection: standard input goes out, what comes back is printed.
func tcp(host string, port int, script string) []string {
	return []string{"bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d || exit 1; %s", host, port, script)}
}

var egress = []Check{
	{Name: "connections inside arrive at the egress process, each saying where it was made", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		serveEgress(t, dial(t, p, m.id, guest.RoleEgress), func(conn net.Conn, r guest.EgressRequest) {
			fmt.Fprintf(conn, "you reached %s", r.Listener)
		})
		for want, at := range map[string][]string{
			"proxy": tcp("127.0.0.1", 3128, "cat <&3"),
			"model": tcp(guest.ModelHost, 80, "cat <&3"),
			"api":   tcp(guest.APIHost, 80, "cat <&3"),
		} {
			if r := m.exec(guest.Exec{Argv: at}); r.out != "you reached "+want {
				t.Errorf("%s: %q %q", want, r.out, r.err)
			}
		}
	}},
	{Name: "half-closes and resets pass through in both directions", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		got := make(chan string, 1)
		broken := make(chan error, 1)
		serveEgress(t, dial(t, p, m.id, guest.RoleEgress), func(conn net.Conn, r guest.EgressRequest) {
			switch r.Listener {
			case "proxy": // the program ends its direction, then reads the answer
				all, err := io.ReadAll(conn)
				got <- fmt.Sprint(string(all), err)
				io.WriteString(conn, "answer")
			case "model": // we end ours first and read on
				io.WriteString(conn, "first")
				closeWrite(conn)
				all, err := io.ReadAll(conn)
				got <- fmt.Sprint(string(all), err)
			case "api": // the program goes away while we write
				var err error
				for err == nil {
					_, err = conn.Write(make([]byte, 64<<10))
				}
				broken <- err
			}
		})
		if r := m.exec(guest.Exec{Argv: []string{"perl", "-MIO::Socket::INET", "-e", `
			my $s = IO::Socket::INET->new("127.0.0.1:3128") or die $!; print $s "question"; $s->flush; shutdown($s, 1); local $/; print <$s>`}}); r.out != "answer" {
			t.Errorf("proxy: %q %q", r.out, r.err)
		}
		equal(t, "the egress process read", within(t, got), "question<nil>")
		if r := m.exec(guest.Exec{Argv: tcp(guest.ModelHost, 80, "cat <&3; echo second >&3")}); r.out != "first" {
			t.Errorf("model: %q %q", r.out, r.err)
		}
		equal(t, "the egress process read", within(t, got), "second\n<nil>")
		m.exec(guest.Exec{Argv: tcp(guest.APIHost, 80, "head -c 100000 <&3 >/dev/null")})
		select {
		case err := <-broken:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("writing to a program that is gone: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("writing to a program that is gone goes on")
		}
	}},
	{Name: "without an egress process a connection waits, then gets a readable refusal", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		began := time.Now()
		r := m.exec(guest.Exec{Argv: tcp("127.0.0.1", 3128, "printf 'GET / HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3")})
		if !strings.HasPrefix(r.out, "HTTP/1.1 502 ") || !strings.Contains(r.out, `{"error":"egress_unavailable"`) {
			t.Errorf("got %q %q", r.out, r.err)
		}
		if d := time.Since(began); d < 5*time.Second || d > 30*time.Second {
			t.Errorf("it took %s", d)
		}
	}},
	{Name: "an egress process that comes back takes the connections that waited; the newest wins", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		says := func(what string) *guest.Client {
			c := dial(t, p, m.id, guest.RoleEgress)
			serveEgress(t, c, func(conn net.Conn, r guest.EgressRequest) { io.WriteString(conn, what) })
			return c
		}
		id := m.begin(guest.Exec{Argv: tcp("127.0.0.1", 3128, "echo connected >&2; cat <&3")})
		connected := errors.New("connected")
		if _, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error { return connected }); !errors.Is(err, connected) {
			t.Fatalf("follow: %v", err)
		}
		first := says("first")
		var out strings.Builder
		if _, err := m.Follow(t.Context(), id, guest.Offsets{}, func(c guest.Chunk) error {
			if c.Stream == guest.Stdout {
				out.Write(c.Data)
			}
			return nil
		}); err != nil || out.String() != "first" {
			t.Errorf("the connection that waited got %q %v", out.String(), err)
		}
		says("second")
		if r := m.exec(guest.Exec{Argv: tcp("127.0.0.1", 3128, "cat <&3")}); r.out != "second" {
			t.Errorf("after a second egress process: %q", r.out)
		}
		first.Close()
		if r := m.exec(guest.Exec{Argv: tcp("127.0.0.1", 3128, "cat <&3")}); r.out != "second" {
			t.Errorf("after the end of the first: %q", r.out)
		}
	}},
	{Name: "the machine's managoat calls the server as its conversation", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		serveEgress(t, dial(t, p, m.id, guest.RoleEgress), func(conn net.Conn, r guest.EgressRequest) {
			req, err := http.ReadRequest(bufio.NewReader(conn))
			if err != nil {
				t.Errorf("request: %v", err)
				return
			}
			body, _ := io.ReadAll(req.Body)
			status := "200 OK"
			if req.Header.Get("Authorization") != "Bearer key" {
				status = "401 Unauthorized"
			}
			fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Type: application/json\r\n\r\n%s %s %s %s\n", status, r.Listener, req.Method, req.URL, body)
		})
		run := func(token string, args ...string) result {
			return m.exec(guest.Exec{Argv: append([]string{"managoat"}, args...), Env: map[string]string{"MANAGOAT_TOKEN": token, "MANAGOAT_BASE_URL": "http://" + guest.APIHost}})
		}
		equal(t, "me", run("key", "me").out, "api GET /api/auth/me \n")
		equal(t, "api", run("key", "api", "post", "/api/conversations?x=1", `{"a":1}`).out, "api POST /api/conversations?x=1 {\"a\":1}\n")
		if r := run("wrong", "me"); r.Code != 1 || !strings.Contains(r.err, "401") {
			t.Errorf("a wrong token: %q %q %+v", r.out, r.err, r.Exit)
		}
		if r := run("", "me"); r.Code != 1 || !strings.Contains(r.err, "MANAGOAT_TOKEN") {
			t.Errorf("no token: %q %q %+v", r.out, r.err, r.Exit)
		}
		if r := run("key", "destroy", "everything"); r.Code != 2 || !strings.Contains(r.err, "managoat api METHOD PATH") {
			t.Errorf("an unknown command: %q %q %+v", r.out, r.err, r.Exit)
		}
	}},
	{Name: "an egress process may do nothing but egress", Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		c := dial(t, p, m.id, guest.RoleEgress)
		err := c.Start(t.Context(), guest.Exec{ID: ids(), Argv: []string{"true"}})
		var r *guest.Refused
		if !errors.As(err, &r) || r.Code != "denied" {
			t.Errorf("start: %v", err)
		}
		if _, _, err := c.ReadFile(t.Context(), home, guest.Home, 1); err == nil {
			t.Errorf("it could read files")
		}
	}},
	{Name: "two hundred tunnels at once carry their bytes", Full: true, Run: func(t T, p sandbox.Provider) {
		m := start(t, p)
		serveEgress(t, dial(t, p, m.id, guest.RoleEgress), func(conn net.Conn, r guest.EgressRequest) {
			io.Copy(conn, conn)
		})
		r := m.exec(guest.Exec{Argv: []string{"perl", "-MIO::Socket::INET", "-e", `
			my $d = join "", map { chr(33 + $_ * $_ % 89) } 1 .. 30000;
			my @s = map { IO::Socket::INET->new("127.0.0.1:3128") or die "$_: $!" } 1 .. 200;
			for my $i (0 .. 199) { print {$s[$i]} substr($d, $i); $s[$i]->flush; shutdown($s[$i], 1) }
			my $n = 0; for my $i (0 .. 199) { local $/; my $got = readline $s[$i]; $n++ if $got eq substr($d, $i) } print $n`}})
		equal(t, "tunnels that echoed what was sent", r.out+r.err, "200")
	}},
}

// within is what comes next, in a while.
func within[V any](t T, from <-chan V) (v V) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Errorf("nothing came in 20 s")
	}
	return v
}
