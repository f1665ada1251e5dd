package story

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	acmeca "github.com/letsencrypt/pebble/v2/ca"
	acmedb "github.com/letsencrypt/pebble/v2/db"
	acmeva "github.com/letsencrypt/pebble/v2/va"
	acmewfe "github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	"managoat/internal/client"
	"managoat/internal/stream"
	"managoat/internal/testworld"
)

// freePort is a port that was free a moment ago, for what must be known before it is opened.
func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// newAuthority is an ACME authority (Let's Encrypt's own for tests) to which every name is this host, and which asks its
// questions at two ports. trust is a file with its directory's certificate, roots are above those that it issues.
func newAuthority(tb testing.TB, httpPort, tlsPort int) (directory, trust string, roots *x509.CertPool) {
	tb.Helper()
	asked, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	names := &dns.Server{Listener: asked, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(127, 0, 0, 1)}}
		}
		w.WriteMsg(a)
	})}
	served := make(chan error, 1)
	go func() { served <- names.ActivateAndServe() }()
	tb.Cleanup(func() { asked.Close(); <-served })

	os.Setenv("PEBBLE_VA_NOSLEEP", "1")
	said, store := log.New(tb.Output(), "authority: ", 0), acmedb.NewMemoryStore()
	ca := acmeca.New(said, store, "", "ecdsa", 0, 1, map[string]acmeca.Profile{"default": {}})
	va := acmeva.New(said, httpPort, tlsPort, true, asked.Addr().String(), store)
	front := acmewfe.New(said, store, va, ca, []string{"ca.test"}, true, false, 1, 1)
	server := httptest.NewTLSServer(front.Handler())
	tb.Cleanup(server.Close)
	trust = filepath.Join(tb.TempDir(), "authority.pem")
	if err := os.WriteFile(trust, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644); err != nil {
		tb.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(ca.GetRootCert(0).Cert)
	return server.URL + acmewfe.DirectoryPath, trust, roots
}

// visitor is an HTTP client to which every name is one address. It takes no redirects.
func visitor(address string, roots *x509.CertPool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(ctx, network, address)
			},
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// streamed are the lines of a stream as they come.
type streamed struct {
	*http.Response
	scan *bufio.Scanner
}

// watch opens the account's stream.
func watch(tb testing.TB, hc *http.Client, base, key string) *streamed {
	tb.Helper()
	req := must(http.NewRequestWithContext(tb.Context(), "GET", base+"/api/events/stream", nil))
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := hc.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		tb.Fatalf("the stream answered %s", res.Status)
	}
	tb.Cleanup(func() { res.Body.Close() })
	return &streamed{res, bufio.NewScanner(res.Body)}
}

// until reads to a line that has a text in it.
func (l *streamed) until(tb testing.TB, text string) {
	tb.Helper()
	late := time.AfterFunc(patience, func() { l.Body.Close() })
	defer late.Stop()
	for l.scan.Scan() {
		if strings.Contains(l.scan.Text(), text) {
			return
		}
	}
	tb.Fatalf("the stream ended before %q: %v", text, l.scan.Err())
}

// brings makes something happen, and sees it come before any heartbeat could have pushed it out.
func (l *streamed) brings(tb testing.TB, a *Account) {
	tb.Helper()
	began := time.Now()
	a.workspace(a.environment(body{"name": "seen-" + uuid.NewString()[:8]}))
	l.until(tb, "workspace.status")
	if took := time.Since(began); took >= stream.Heartbeat {
		tb.Errorf("the event came after %s", took)
	}
}

// owner makes an account with the operator's verb; key is its owner's.
func (s *Server) owner(tb testing.TB, email, password string) (key string) {
	tb.Helper()
	stdout, stderr, code := s.operator(tb, password+"\n", "admin", "create-owner", "--email", email, "--password-stdin")
	if code != 0 {
		tb.Fatalf("create-owner: exit %d, %s", code, stderr)
	}
	return strings.TrimSpace(stdout)
}

// secured signs in at an https address and looks at the cookie that a browser gets.
func secured(tb testing.TB, hc *http.Client, base, email, password string) {
	tb.Helper()
	form := url.Values{"email": {email}, "password": {password}}.Encode()
	got := ask(tb, hc, "POST", base+"/sign-in", "", "application/x-www-form-urlencoded", []byte(form))
	cookie := strings.Join(got.header.Values("Set-Cookie"), "\n")
	if got.status != http.StatusSeeOther || !strings.Contains(cookie, "managoat_session=") || !strings.Contains(cookie, "; Secure") {
		tb.Errorf("sign in: %d %q %s", got.status, cookie, got.body)
	}
}

func TestTheServerGetsItsCertificateFromAnAuthorityAndStreamsOverHTTP2(t *testing.T) {
	t.Parallel()
	port, plain := freePort(t), freePort(t)
	directory, trust, roots := newAuthority(t, plain, port)
	at, base := net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "https://"+net.JoinHostPort("goat.test", strconv.Itoa(port))
	s, _ := own(t, "MANAGOAT_LISTEN="+at, "MANAGOAT_URL="+base, "MANAGOAT_ACME_DOMAINS=goat.test", "MANAGOAT_ACME_DIRECTORY="+directory,
		"MANAGOAT_ACME_CONTACT=ops@goat.test", "MANAGOAT_EXTRA_CA="+trust, fmt.Sprintf("MANAGOAT_HTTP_LISTEN=127.0.0.1:%d", plain))
	if s.url != base {
		t.Fatalf("it greets with %s", s.url)
	}
	// The server asks for it by itself, before anybody comes.
	until(t, "the certificate", func() bool { return strings.Contains(s.log.String(), "the certificate is there") })
	hc := visitor(at, roots)
	serial := func() string {
		t.Helper()
		res := must(hc.Get(base + "/health"))
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 || res.TLS.VerifiedChains == nil {
			t.Fatalf("%s over %s", res.Status, res.Proto)
		}
		return res.TLS.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	if info, err := os.Stat(filepath.Join(s.dir, "acme")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of keys: %v %v", info, err)
	}

	if out, said, code := s.operator(t, "", "health"); code != 0 || out != "ok\n" {
		t.Errorf("health: exit %d, %q %q", code, out, said)
	}

	email, password := "owner@goat.test", "a long password of the door"
	key := s.owner(t, email, password)
	secured(t, hc, base, email, password)
	events := watch(t, hc, base, key)
	if events.ProtoMajor != 2 {
		t.Errorf("the stream came over %s", events.Proto)
	}
	account := &Account{Client: &client.Client{Base: base, Key: key, HTTP: hc}, tb: t, server: s}
	events.brings(t, account)

	// Only names that were asked for are served; no other makes the server bother the authority.
	if conn, err := tls.Dial("tcp", at, &tls.Config{ServerName: "evil.test", InsecureSkipVerify: true}); err == nil {
		conn.Close()
		t.Error("another name was served")
	}
	open := visitor(net.JoinHostPort("127.0.0.1", strconv.Itoa(plain)), nil)
	if got := ask(t, open, "GET", "http://goat.test/sign-in?next=%2F", "", "", nil); got.status != http.StatusPermanentRedirect || got.header.Get("Location") != base+"/sign-in?next=%2F" {
		t.Errorf("the plain listener: %d %q", got.status, got.header.Get("Location"))
	}
	if err := s.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	hc.CloseIdleConnections()
	if again := serial(); again != first {
		t.Errorf("a restart asked for another certificate: %s after %s", again, first)
	}
}

// nginx's own timeout would end a stream that says nothing for so long; two heartbeats take longer.
const proxyPatience = 20 * time.Second

// nginx starts one with the configuration that is shipped, but for names, files and ports. It returns its address.
func nginx(tb testing.TB, s *Server, world *testworld.World, name string) (address, plain string) {
	tb.Helper()
	dir, port, plainPort := tb.TempDir(), freePort(tb), freePort(tb)
	shipped := string(must(os.ReadFile("../../deploy/nginx.conf")))
	for _, r := range [][2]string{
		{"127.0.0.1:8080", strings.TrimPrefix(s.url, "http://")},
		{"    listen [::]:80;\n", ""}, {"    listen [::]:443 ssl http2;\n", ""},
		{"listen 80;", fmt.Sprintf("listen 127.0.0.1:%d;", plainPort)}, {"listen 443 ssl", fmt.Sprintf("listen 127.0.0.1:%d ssl", port)},
		{"managoat.example.com", name}, {"/etc/ssl/managoat/fullchain.pem", dir + "/cert.pem"}, {"/etc/ssl/managoat/privkey.pem", dir + "/key.pem"},
		{"proxy_read_timeout 300s", fmt.Sprintf("proxy_read_timeout %.0fs", proxyPatience.Seconds())},
	} {
		if !strings.Contains(shipped, r[0]) {
			tb.Fatalf("the configuration has no %q", r[0])
		}
		shipped = strings.ReplaceAll(shipped, r[0], r[1])
	}
	certificate := must(world.CA.Issue(name))
	var chain []byte
	for _, der := range certificate.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	main := fmt.Sprintf(`daemon off; pid %[1]s/pid; error_log stderr info;
%[2]s
events {}
http {
    access_log off;
    client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
    include %[1]s/managoat.conf;
}
`, dir, map[bool]string{true: "user root;"}[os.Geteuid() == 0])
	for file, content := range map[string][]byte{
		"nginx.conf": []byte(main), "managoat.conf": []byte(shipped), "cert.pem": chain,
		"key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(certificate.PrivateKey))}),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // not in everybody's PATH
	}
	said := new(output)
	cmd := exec.Command(path, "-c", dir+"/nginx.conf", "-e", "stderr")
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if tb.Failed() {
			tb.Logf("nginx:\n%s", said)
		}
	})
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	until(tb, "nginx to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return address, net.JoinHostPort("127.0.0.1", strconv.Itoa(plainPort))
}

func TestBehindNginxEventsComeAtOnceAndQuietStreamsStay(t *testing.T) {
	t.Parallel()
	s, world := shared(t)
	if proxyPatience < stream.Heartbeat || proxyPatience >= 2*stream.Heartbeat {
		t.Fatal("two heartbeats prove nothing")
	}
	address, plain := nginx(t, s, world, "goat.test")
	base := "https://goat.test"
	hc := visitor(address, world.CA.Pool())
	account := s.account(t)
	events := watch(t, hc, base, account.Key)
	began := time.Now()
	through := *account
	through.Client = &client.Client{Base: base, Key: account.Key, HTTP: hc}
	events.brings(t, &through)

	// Writes of a browser pass, and their cookies come back over https alone; writes of other sites do not.
	secured(t, hc, base, account.Email, account.Password)
	foreign := must(http.NewRequest("POST", base+"/sign-in", strings.NewReader("email=x")))
	foreign.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for origin, want := range map[string]bool{base: true, "https://evil.test": false} {
		r := foreign.Clone(t.Context())
		r.Body = http.NoBody
		r.Header.Set("Origin", origin)
		res := must(hc.Do(r))
		res.Body.Close()
		if passed := res.StatusCode != http.StatusForbidden; passed != want {
			t.Errorf("a write from %s: %s", origin, res.Status)
		}
	}
	// Managoat's own refusal of what is too large, not nginx's page.
	if got := ask(t, hc, "POST", base+"/api/environments", account.Key, "application/json", make([]byte, 3<<19)); got.status != http.StatusRequestEntityTooLarge || !strings.Contains(string(got.body), "payload_too_large") {
		t.Errorf("a large body: %d %s", got.status, got.body)
	}
	// The client's own address is in the log, whatever it says of itself.
	r := must(http.NewRequest("GET", base+"/health?behind", nil))
	id := "behind-nginx-" + uuid.NewString()
	r.Header.Set("X-Request-Id", id)
	r.Header.Set("X-Forwarded-For", "203.0.113.1")
	must(hc.Do(r)).Body.Close()
	until(t, "the request in the log", func() bool { return strings.Contains(s.log.String(), id) })
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, id) && !strings.Contains(line, "address=127.0.0.2 ") {
			t.Errorf("the client is 127.0.0.2: %s", line)
		}
	}
	if got := ask(t, visitor(plain, nil), "GET", "http://goat.test/x?y", "", "", nil); got.status != http.StatusPermanentRedirect || got.header.Get("Location") != "https://goat.test/x?y" {
		t.Errorf("plain http: %d %q", got.status, got.header.Get("Location"))
	}

	for time.Since(began) < proxyPatience {
		events.until(t, "heartbeat")
	}
	events.brings(t, &through)
}
