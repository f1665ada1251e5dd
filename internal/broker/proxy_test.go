package broker

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"managoat/internal/broker/journal"
	"managoat/internal/broker/rule"
)

// serve is a loopback server of a test and its port.
func serve(t testing.TB, handler http.HandlerFunc) int {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

func serveTLS(t testing.TB, handler http.HandlerFunc) int {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = journal.NoLog // handshakes that a tunnel breaks off
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// conn is a program's connection to the proxy.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func (h *host) proxy() *conn {
	c := h.box.dial("proxy")
	return &conn{c, bufio.NewReader(c)}
}

func auth(token string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("managoat:"+token)) + "\r\n"
}

// ask sends one request and reads its answer, whole for what is no tunnel.
func (c *conn) ask(t testing.TB, line, headers string) (*http.Response, string) {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	_, rest, _ := strings.Cut(target, "://")
	host, _, _ := strings.Cut(rest+"/", "/")
	if _, err := fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: %s\r\n%s\r\n", line, host, headers); err != nil {
		t.Fatal(err)
	}
	return c.answer(t, method)
}

func (c *conn) answer(t testing.TB, method string) (*http.Response, string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
		c.SetReadDeadline(time.Time{})
		return resp, ""
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func (c *conn) Read(p []byte) (int, error) { return c.r.Read(p) }

// CloseWrite ends the program's direction.
func (c *conn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

func TestARefusalIsReadableAndKeepsTheConnection(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(_ *Settings, m *Machine, k *Token) {
		k.Policy = Policy{Type: rule.Limited, AllowedHosts: []string{"local.test", "*.example.com"}}
	})
	c := h.proxy()
	for _, x := range []struct {
		line, code, host, rule string
		status                 int
		decision               journal.Decision
	}{
		{"CONNECT evil.test:443", "host_not_allowed", "evil.test", rule.RuleAllowedHosts, 403, journal.Denied},
		{"CONNECT example.com:443", "host_not_allowed", "example.com", rule.RuleAllowedHosts, 403, journal.Denied},
		{"CONNECT local.test:22", "port_not_allowed", "local.test", rule.RulePort, 403, journal.Denied},
		{"CONNECT 127.1:443", "host_malformed", "127.1:443", rule.RuleMalformed, 400, journal.Denied},
		{"GET http://evil2.test/secret-path?secret=query", "host_not_allowed", "evil2.test", rule.RuleAllowedHosts, 403, journal.Denied},
		{"GET https://local.test/", "use_connect", "", journal.RuleProtocol, 400, journal.Denied},
		{"GET /", "not_a_proxy_request", "", journal.RuleProtocol, 400, journal.Denied},
	} {
		resp, body := c.ask(t, x.line, auth(h.token))
		var answer struct {
			Error        string   `json:"error"`
			Advice       string   `json:"advice"`
			AllowedHosts []string `json:"allowed_hosts"`
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil || resp.StatusCode != x.status || answer.Error != x.code || answer.Advice == "" || resp.Close {
			t.Errorf("%s: %d %s (close %v), %v", x.line, resp.StatusCode, body, resp.Close, err)
		}
		if x.status == 403 && len(answer.AllowedHosts) != 2 {
			t.Errorf("%s: allowed hosts %q", x.line, answer.AllowedHosts)
		}
	}
	h.await(t, "seven refusals", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == 7 })
	for _, r := range h.store.requests {
		if r.Decision != journal.Denied || r.MachineID != h.box.spec.ID || r.TenantID != h.box.spec.TenantID {
			t.Errorf("row %+v", r)
		}
		if text, _ := json.Marshal(r); bytes.Contains(text, []byte("secret")) {
			t.Errorf("a row holds a path or a query: %s", text)
		}
	}
	if r := h.row(t, "evil.test"); r.Rule != rule.RuleAllowedHosts || r.Status != 403 || r.Port != 443 || r.Method != "CONNECT" || r.ConversationID == nil || *r.ConversationID != h.spec.ConversationID {
		t.Errorf("row %+v", r)
	}
}

func TestAnUnknownTokenIsRefusedWithA407ThatKeepsTheConnection(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	h := newHost(t, nil)
	target := "http://local.test:" + strconv.Itoa(port) + "/"
	c := h.proxy()
	for _, header := range []string{auth("mgw_unknown"), auth(""), "Proxy-Authorization: Bearer " + h.token + "\r\n", "Proxy-Authorization: Basic ???\r\n"} {
		resp, body := c.ask(t, "GET "+target, header)
		if resp.StatusCode != 407 || resp.Close || resp.Header.Get("Proxy-Authenticate") == "" || !strings.Contains(body, `"proxy_token_unknown"`) {
			t.Fatalf("%q: %d %v %s", header, resp.StatusCode, resp.Header, body)
		}
	}
	if resp, body := c.ask(t, "GET "+target, auth(h.token)); resp.StatusCode != 200 || body != "hello" {
		t.Errorf("the right token on the same connection: %d %s", resp.StatusCode, body)
	}
	h.await(t, "four refusals and one answer", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == 5 })
	if r := h.store.requests[0]; r.Rule != journal.RuleUnknownToken || r.ConversationID != nil || r.Status != 407 {
		t.Errorf("row %+v", r)
	}
}

func TestATokenIsWorthNothingInAnotherMachine(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	other := newBox(t)
	if err := h.PutMachine(t.Context(), other.spec); err != nil {
		t.Fatal(err)
	}
	c := other.dial("proxy")
	if resp, _ := (&conn{c, bufio.NewReader(c)}).ask(t, "CONNECT local.test:443", auth(h.token)); resp.StatusCode != 407 {
		t.Errorf("got %d", resp.StatusCode)
	}
	m := other.dial("model")
	fmt.Fprintf(m, "POST /v1/messages HTTP/1.1\r\nHost: %s\r\nX-Api-Key: %s\r\nContent-Length: 2\r\n\r\n{}", ModelHost, h.token)
	if resp, _ := (&conn{m, bufio.NewReader(m)}).answer(t, "POST"); resp.StatusCode != 401 {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestARequestWithoutATokenHasTheMachinesPolicyAndSaysSo(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	h := newHost(t, func(_ *Settings, m *Machine, k *Token) {
		m.Policy = Policy{Type: rule.Limited, AllowedHosts: []string{"local.test:" + strconv.Itoa(port)}}
		k.Policy = Policy{Type: rule.Limited, AllowedHosts: []string{"nothing.test"}}
	})
	c := h.proxy()
	target := fmt.Sprintf("GET http://local.test:%d/", port)
	if resp, body := c.ask(t, target, ""); resp.StatusCode != 200 || body != "hello" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, _ := c.ask(t, target, auth(h.token)); resp.StatusCode != 403 {
		t.Errorf("with the token: %d", resp.StatusCode)
	}
	if resp, _ := c.ask(t, "CONNECT nothing.test:443", ""); resp.StatusCode != 403 {
		t.Errorf("a host of the token's policy: %d", resp.StatusCode)
	}
	rows, _ := h.await(t, "three", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == 3 })
	if r := rows[0]; r.Rule != journal.RuleMachine || r.TokenID != nil || r.ConversationID != nil || r.Decision != journal.Allowed || r.BytesIn != 5 || r.Status != 200 || r.Port != port {
		t.Errorf("row %+v", r)
	}
	if r := rows[2]; r.Rule != journal.RuleMachine || r.Decision != journal.Denied {
		t.Errorf("row %+v", r)
	}
	// The machine's policy can change while it runs.
	m := h.box.spec
	m.Policy = Policy{Type: rule.Limited}
	if err := h.PutMachine(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if resp, _ := c.ask(t, target, ""); resp.StatusCode != 403 {
		t.Errorf("under the new policy: %d", resp.StatusCode)
	}
}

func TestPrivateAndMetadataAddressesAreRefusedHoweverTheyAreNamed(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	c := h.proxy()
	for _, target := range []string{"inside.test:80", "meta.test:80", "mixed.test:443", "10.0.0.1:80", "169.254.169.254:80", "[::1]:80", "[::ffff:10.0.0.1]:80", "[64:ff9b::a00:1]:443"} {
		for _, line := range []string{"CONNECT " + target, "GET http://" + target + "/"} {
			resp, body := c.ask(t, line, auth(h.token))
			if resp.StatusCode != 403 || !strings.Contains(body, "address_not_allowed") {
				t.Errorf("%s: %d %s", line, resp.StatusCode, body)
			}
			if metadata := strings.Contains(target, "meta") || strings.Contains(target, "169.254"); metadata == strings.Contains(body, "MANAGOAT_ALLOW_PRIVATE") {
				t.Errorf("%s: advice %s", line, body)
			}
		}
	}
	if r := h.row(t, "inside.test"); r.Rule != journal.RulePrivate || r.Decision != journal.Denied {
		t.Errorf("row %+v", r)
	}
}

func TestAHostThatDoesNotAnswerIsA502BeforeATunnelExists(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	h := newHost(t, nil)
	c := h.proxy()
	for _, line := range []string{fmt.Sprintf("CONNECT local.test:%d", port), fmt.Sprintf("GET http://local.test:%d/", port)} {
		resp, body := c.ask(t, line, auth(h.token))
		if resp.StatusCode != 502 || !strings.Contains(body, "upstream_unreachable") || !strings.Contains(body, "refused") || strings.Contains(body, "127.0.0.1") {
			t.Errorf("%s: %d %s", line, resp.StatusCode, body)
		}
	}
	if r := h.row(t, "local.test"); r.Decision != journal.Failed || r.Status != 502 || r.Error == "" {
		t.Errorf("row %+v", r)
	}
}

// transport is a Go client inside the machine.
func (h *host) transport(t *testing.T, serverName string) *http.Transport {
	proxy := h.box.port("proxy")
	tr := &http.Transport{
		Proxy:             http.ProxyURL(&url.URL{Scheme: "http", User: url.UserPassword("managoat", h.token), Host: proxy.String()}),
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: serverName},
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func TestATunnelIsBlindAndH2PassesFromEndToEnd(t *testing.T) {
	t.Parallel()
	port := serveTLS(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto+" "+r.URL.Path) })
	h := newHost(t, nil)
	tr := h.transport(t, "")
	// The tunnel's row is written when it closes: in a quiet moment, for a server that has not read all when it closes resets.
	tr.IdleConnTimeout = 50 * time.Millisecond
	resp, err := (&http.Client{Transport: tr}).Get(fmt.Sprintf("https://local.test:%d/path", port))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "HTTP/2.0 /path" {
		t.Errorf("%s %v", body, err)
	}
	if r := h.row(t, "local.test"); r.Decision != journal.Allowed || r.Rule != rule.RuleOperator || r.Method != "CONNECT" || r.Status != 200 || r.BytesIn < 1000 || r.BytesOut < 300 || r.Error != "" {
		t.Errorf("row %+v", r)
	}
}

func TestATLSClientThatAsksForAnotherNameThanItsTunnelsIsStopped(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	port := serveTLS(t, func(w http.ResponseWriter, r *http.Request) { asked <- r.TLS.ServerName })
	h := newHost(t, nil)
	for name, ok := range map[string]bool{"evil.test": false, "local.test.evil.test": false, "LOCAL.test": true, "local.test": true} {
		_, err := (&http.Client{Transport: h.transport(t, name)}).Get(fmt.Sprintf("https://local.test:%d/", port))
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		if !ok && (err == nil || !strings.Contains(err.Error(), "unrecognized name")) {
			t.Errorf("%s: the client is not told why: %v", name, err)
		}
	}
	if n := len(asked); n != 2 {
		t.Errorf("the server was asked %d times", n)
	}
	// A client that names nobody asks for no other.
	c := h.proxy()
	if resp, _ := c.ask(t, fmt.Sprintf("CONNECT 127.0.0.1:%d", port), auth(h.token)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if err := tls.Client(c, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context()); err != nil {
		t.Errorf("without a name: %v", err)
	}
	rows, _ := h.await(t, "two mismatches", func(rows []RequestRow, _ []UsageRow) bool {
		n := 0
		for _, r := range rows {
			if r.Rule == journal.RuleSNI {
				n++
			}
		}
		return n == 2
	})
	for _, r := range rows {
		if r.Rule == journal.RuleSNI && (r.Decision != journal.Denied || r.Host != "local.test" || !strings.Contains(r.Error, "evil.test")) {
			t.Errorf("row %+v", r)
		}
	}
}

func TestAClientHelloInPiecesOrOverRecordsIsReadAllTheSame(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			got <- b
			c.Close()
		}
	}()
	h := newHost(t, nil)
	for name, ok := range map[string]bool{"local.test": true, "evil.test": false} {
		hello := clientHello(t, name)
		// The same message in many small records, each written alone.
		var records [][]byte
		for message := hello[5:]; len(message) > 0; {
			n := min(50, len(message))
			records = append(records, append([]byte{22, 3, 1, 0, byte(n)}, message[:n]...))
			message = message[n:]
		}
		for _, pieces := range [][][]byte{{hello}, {hello[:1], hello[1:6], hello[6:]}, records} {
			c := h.proxy()
			if resp, _ := c.ask(t, fmt.Sprintf("CONNECT local.test:%d", l.Addr().(*net.TCPAddr).Port), auth(h.token)); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			for _, p := range pieces {
				c.Write(p)
			}
			c.CloseWrite()
			select {
			case b := <-got:
				if want := bytes.Join(pieces, nil); ok && !bytes.Equal(b, want) || !ok && len(b) > 0 {
					t.Errorf("%s in %d pieces: %d bytes came through of %d", name, len(pieces), len(b), len(want))
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s in %d pieces: the tunnel hangs", name, len(pieces))
			}
		}
	}
}

// clientHello is what Go's client sends first.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		tls.Client(theirs, &tls.Config{ServerName: name}).HandshakeContext(t.Context())
		theirs.Close()
	}()
	b := make([]byte, 16<<10)
	n, err := ours.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

func TestServersThatSpeakFirstAndHalfClosesPassThroughATunnel(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "SSH-2.0-first\r\n")
			all, _ := io.ReadAll(c) // until the client's half-close
			fmt.Fprintf(c, "got %d", len(all))
			c.Close()
		}
	}()
	h := newHost(t, nil)
	c := h.proxy()
	if resp, _ := c.ask(t, fmt.Sprintf("CONNECT local.test:%d", l.Addr().(*net.TCPAddr).Port), auth(h.token)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if line, err := c.r.ReadString('\n'); err != nil || line != "SSH-2.0-first\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	if _, err := c.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c.r); err != nil || string(rest) != "got 100000" {
		t.Errorf("%q %v", rest, err)
	}
	if r := h.row(t, "local.test"); r.BytesOut != 100_000 || r.BytesIn != 25 || r.Error != "" || r.Decision != journal.Allowed {
		t.Errorf("row %+v", r)
	}
}

func TestAResetIsPassedOnAsAReset(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, "half of it")
		c.Read(make([]byte, 1)) // until the client has it
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}()
	h := newHost(t, nil)
	c := h.proxy()
	if resp, _ := c.ask(t, fmt.Sprintf("CONNECT local.test:%d", l.Addr().(*net.TCPAddr).Port), auth(h.token)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c.r, make([]byte, len("half of it"))); err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("x"))
	if rest, err := io.ReadAll(c.r); err == nil {
		t.Errorf("half a transfer looks whole: %q", rest)
	}
	if r := h.row(t, "local.test"); r.Error == "" {
		t.Errorf("row %+v", r)
	}
}

func TestAnEventStreamInAbsoluteFormPassesAsItComes(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	port := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("headers %v", r.Header)
		}
		io.WriteString(w, "data: 1\n\n")
		http.NewResponseController(w).Flush()
		<-gate
		io.WriteString(w, "data: 2\n\n")
	})
	h := newHost(t, nil)
	resp, err := (&http.Client{Transport: h.transport(t, "")}).Get(fmt.Sprintf("http://local.test:%d/events", port))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if line, err := r.ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Fatalf("%q %v", line, err)
	}
	close(gate)
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "\ndata: 2\n\n" {
		t.Errorf("%q %v", rest, err)
	}
}

// Hosts of plain http are anybody's. What one sends before its body is held in a process that serves every account.
func TestAHostThatSendsAHeaderWithoutEndIsGivenUp(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Much", strings.Repeat("x", 1<<20))
		io.WriteString(w, "hello")
	})
	h := newHost(t, nil)
	resp, body := h.proxy().ask(t, fmt.Sprintf("GET http://local.test:%d/", port), auth(h.token))
	if resp.StatusCode != 502 || !strings.Contains(body, "upstream_unreachable") {
		t.Errorf("%d %.200s", resp.StatusCode, body)
	}
}

func TestTheHostHeaderCannotSayAnotherHostThanTheTarget(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { got <- r.Host })
	h := newHost(t, nil)
	c := h.proxy()
	fmt.Fprintf(c, "GET http://local.test:%d/ HTTP/1.1\r\nHost: other.test\r\n%s\r\n", port, auth(h.token))
	if resp, _ := c.answer(t, "GET"); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if host := <-got; host != fmt.Sprintf("local.test:%d", port) {
		t.Errorf("the server was asked for %s", host)
	}
}

func TestAWebSocketUpgradePassesInAbsoluteForm(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		io.Copy(c, rw)
	})
	h := newHost(t, nil)
	c := h.proxy()
	fmt.Fprintf(c, "GET http://local.test:%d/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n%s\r\n", port, auth(h.token))
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	io.WriteString(c, "ping")
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b := make([]byte, 4); true {
		if _, err := io.ReadFull(c.r, b); err != nil || string(b) != "ping" {
			t.Errorf("%q %v", b, err)
		}
	}
}

func TestHTTP2ByPriorKnowledgeIsClosedCleanly(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	c := h.proxy()
	io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	all, err := io.ReadAll(c.r)
	if err != nil || !bytes.HasPrefix(all, []byte("HTTP/1.1 ")) {
		t.Errorf("%q %v", all, err)
	}
}

func TestTwoHundredTunnelsAtOnce(t *testing.T) {
	t.Parallel()
	port := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	h := newHost(t, nil)
	const n = 200
	conns := make([]*conn, n)
	for i := range conns {
		conns[i] = h.proxy()
		if resp, _ := conns[i].ask(t, fmt.Sprintf("CONNECT local.test:%d", port), auth(h.token)); resp.StatusCode != 200 {
			t.Fatalf("tunnel %d: %s", i, resp.Status)
		}
	}
	for i, c := range conns { // all are open
		text := fmt.Sprint("tunnel ", i)
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: local.test\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
	for i, c := range conns {
		if _, body := c.answer(t, "POST"); body != fmt.Sprint("tunnel ", i) {
			t.Errorf("tunnel %d answered %q", i, body)
		}
		c.Close()
	}
	h.await(t, "a row of each", func(rows []RequestRow, _ []UsageRow) bool { return len(rows) == n })
}

func TestTooManyConnectionsAreClosedAndSaidOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, nil)
	conns := make([]net.Conn, maxConnections)
	for i := range conns {
		conns[i] = h.box.dial("proxy")
	}
	over := h.proxy()
	over.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := over.r.ReadByte(); err == nil {
		t.Error("a connection over the limit is served")
	}
	h.await(t, "the limit", func(rows []RequestRow, _ []UsageRow) bool {
		return len(rows) == 1 && rows[0].Rule == journal.RuleConnections
	})
	conns[0].Close()
	c := h.proxy()
	eventually(t, "a place is free again", func() bool {
		c = h.proxy()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := c.r.Peek(1)
		return err == nil
	})
}

// eventually polls a condition of another process.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
