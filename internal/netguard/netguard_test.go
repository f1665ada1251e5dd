package netguard

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAddressesThatAreNotThePublicInternetAreRefused(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"0.0.0.0": "unspecified", "0.1.2.3": "unspecified", "10.0.0.1": "private", "100.64.0.1": "carrier-grade NAT", "100.127.255.255": "carrier-grade NAT",
		"127.0.0.1": "loopback", "127.255.0.1": "loopback", "169.254.1.1": "link-local", "172.16.0.1": "private", "172.31.255.255": "private",
		"192.168.1.1": "private", "224.0.0.1": "multicast", "239.1.1.1": "multicast", "255.255.255.255": "broadcast",
		"::": "IPv4-compatible", "::1": "loopback", "::127.0.0.1": "IPv4-compatible", "::ffff:127.0.0.1": "IPv4-mapped", "::ffff:8.8.8.8": "IPv4-mapped",
		"64:ff9b::7f00:1": "NAT64", "64:ff9b:1::1": "NAT64", "2002:7f00:1::": "6to4", "2001:0:1::1": "Teredo",
		"fc00::1": "unique local", "fd12::1": "unique local", "fe80::1": "link-local", "febf::1": "link-local", "fec0::1": "site-local",
		"ff02::1": "multicast", "2001:db8::1%eth0": "scoped",
		"169.254.169.254": kindMetadata, "169.254.170.2": kindMetadata, "fd00:ec2::254": kindMetadata, "100.100.100.200": kindMetadata,
		"168.63.129.16": kindMetadata, "192.0.0.192": kindMetadata, "fd20:ce::254": kindMetadata, "fd00:ec2::254%eth0": kindMetadata,
		"::ffff:169.254.169.254": kindMetadata, "64:ff9b::a9fe:a9fe": kindMetadata, "2002:a9fe:a9fe::1": kindMetadata, "::169.254.169.254": kindMetadata,
		"2001:0:0:0:0:0:5601:5601": kindMetadata, // Teredo's inverted notation
		// public, and what is reserved for documentation is nobody's network
		"1.1.1.1": "", "8.8.8.8": "", "100.63.255.255": "", "100.128.0.1": "", "172.32.0.1": "", "172.15.0.1": "", "169.253.1.1": "", "126.1.1.1": "", "128.0.0.1": "",
		"192.0.2.1": "", "198.51.100.1": "", "203.0.113.1": "", "2001:db8::1": "", "2606:4700::1111": "", "2001:4860:4860::8888": "", "223.255.255.255": "",
	} {
		if got := kind(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
	if kind(netip.Addr{}) == "" {
		t.Error("the zero address is public")
	}
}

// listen answers every connection with its own address.
func listen(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, c.LocalAddr().String())
			c.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func dial(t *testing.T, g *Guard, purpose Purpose, addr string) (string, error) {
	t.Helper()
	c, err := g.Dial(t.Context(), purpose, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(got), nil
}

func wantRefusal(t *testing.T, err error, kind string) {
	t.Helper()
	var refused *Refusal
	if !errors.As(err, &refused) || refused.Kind != kind {
		t.Errorf("got %v, want a refusal of a %s address", err, kind)
	}
}

func TestANameThatResolvesAnewBetweenCheckAndDialReachesTheVettedAddressOnly(t *testing.T) {
	t.Parallel()
	at := listen(t, "127.0.0.1:0")
	var asked atomic.Int32
	g := New(Options{
		AllowPrivate: []Allowance{{Machine, "rebind.example", int(at.Port())}},
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			if asked.Add(1) == 1 {
				return []netip.Addr{at.Addr()}, nil
			}
			return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
		},
	})
	addr := net.JoinHostPort("rebind.example", portOf(at))
	if got, err := dial(t, g, Machine, addr); err != nil || got != at.String() {
		t.Errorf("got %q, %v, want the vetted %s", got, err, at)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the name was resolved %d times for one dial", n)
	}
	_, err := dial(t, g, Machine, addr)
	wantRefusal(t, err, kindMetadata)
}

func portOf(at netip.AddrPort) string { return at.String()[strings.LastIndexByte(at.String(), ':')+1:] }

func TestOnePrivateAddressAmongPublicOnesRefusesTheName(t *testing.T) {
	t.Parallel()
	g := New(Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.1")}, nil
	}})
	_, err := dial(t, g, Webhook, "mixed.example:443")
	wantRefusal(t, err, "private")
}

func TestAnAllowanceOpensOneHostForOnePurposeAtOnePort(t *testing.T) {
	t.Parallel()
	at := listen(t, "127.0.0.1:0")
	port := portOf(at)
	allow, err := ParseAllowances("model=model.test:" + port + ", webhook=127.0.0.1:*,machine=meta.test:*")
	if err != nil {
		t.Fatal(err)
	}
	resolve, err := ParseResolve("Model.test.=127.0.0.1,other.test=127.0.0.1,meta.test=169.254.169.254")
	if err != nil {
		t.Fatal(err)
	}
	g := New(Options{AllowPrivate: allow, Resolve: resolve})
	for _, c := range []struct {
		purpose Purpose
		addr    string
		kind    string
	}{
		{Model, "MODEL.test.:" + port, ""},
		{Model, "other.test:" + port, "loopback"},   // another name of the same address
		{Model, "127.0.0.1:" + port, "loopback"},    // the address itself is another host
		{Machine, "model.test:" + port, "loopback"}, // another purpose
		{Model, "model.test:1", "loopback"},         // another port
		{Webhook, "127.0.0.1:" + port, ""},
		{Webhook, "[::ffff:127.0.0.1]:" + port, "IPv4-mapped"},
		{Machine, "meta.test:80", kindMetadata}, // whatever the settings
	} {
		got, err := dial(t, g, c.purpose, c.addr)
		if c.kind != "" {
			wantRefusal(t, err, c.kind)
		} else if err != nil || got != at.String() {
			t.Errorf("%s %s: %q, %v", c.purpose, c.addr, got, err)
		}
	}
}

func TestTheNextAddressIsTriedWhenOneDoesNotAnswer(t *testing.T) {
	t.Parallel()
	at := listen(t, "127.0.0.1:0")
	g := New(Options{
		AllowPrivate: []Allowance{{Machine, "two.test", 0}},
		Resolve:      map[string][]netip.Addr{"two.test": {netip.MustParseAddr("127.99.99.99"), at.Addr()}},
	})
	if got, err := dial(t, g, Machine, "two.test:"+portOf(at)); err != nil || got != at.String() {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := dial(t, g, Machine, "two.test:1"); err == nil {
		t.Error("a port nobody listens on was reached")
	}
}

func TestAResolverThatDoesNotAnswerIsAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, lookup := range map[string]func(context.Context, string) ([]netip.Addr, error){
		"error":        func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") },
		"no addresses": func(context.Context, string) ([]netip.Addr, error) { return nil, nil },
	} {
		_, err := dial(t, New(Options{Lookup: lookup}), Machine, "gone.example:443")
		var resolve *ResolveError
		if !errors.As(err, &resolve) || resolve.Host != "gone.example" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSettingsNameTheirBadEntry(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"model=a.test:1,git":        `"git"`,
		"mail=a.test:25":            `"mail"`,
		"machine=10.0.0.0/8:80":     "never a network",
		"machine=a.test":            `"machine=a.test"`,
		"machine=*.test:80":         `"machine=*.test:80"`,
		"machine=a.test:http":       `"machine=a.test:http"`,
		"webhook=http://a.test:*":   "never a network or a URL",
		"machine=a.test:80 b.test:": `"machine=a.test:80 b.test:"`,
	} {
		if _, err := ParseAllowances(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseAllowances(%q): %v, want it to name %s", in, err, want)
		}
	}
	for _, in := range []string{"a.test", "a.test=", "a.test=b.test", "=127.0.0.1", "*.test=127.0.0.1", "127.0.0.2=127.0.0.1", "ok.test=127.0.0.1,a.test=300.1.1.1"} {
		bad := in[strings.LastIndexByte(in, ',')+1:]
		if _, err := ParseResolve(in); err == nil || !strings.Contains(err.Error(), `"`+bad+`"`) {
			t.Errorf("ParseResolve(%q): %v, want it to name %q", in, err, bad)
		}
	}
	if _, err := ParsePorts("80,http"); err == nil || !strings.Contains(err.Error(), `"http"`) {
		t.Errorf("ParsePorts: %v", err)
	}
	for _, blank := range []string{"", " ", " , "} {
		allow, err1 := ParseAllowances(blank)
		resolve, err2 := ParseResolve(blank)
		ports, err3 := ParsePorts(blank)
		if err := errors.Join(err1, err2, err3); err != nil || len(allow)+len(resolve)+len(ports) != 0 {
			t.Errorf("%q is not unset: %v %v %v %v", blank, allow, resolve, ports, err)
		}
	}
	resolve, err := ParseResolve("a.test=127.0.0.1, A.TEST=[::1]")
	if err != nil || len(resolve["a.test"]) != 2 {
		t.Errorf("a name that comes twice: %v, %v", resolve, err)
	}
}

func TestReadCATakesAFileOrItsTextAndNothingElse(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, append([]byte("a comment\n"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{path, string(text)} {
		got, err := ReadCA(setting)
		if err != nil || !x509.NewCertPool().AppendCertsFromPEM(got) {
			t.Errorf("ReadCA: %v", err)
		}
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"/nowhere/ca.pem", empty, string(key), string(broken), string(text) + string(broken)} {
		if _, err := ReadCA(setting); err == nil {
			t.Errorf("ReadCA(%.40q) found nothing wrong", setting)
		}
	}
}

func client(t *testing.T, o Options, purpose Purpose) *http.Client {
	t.Helper()
	c, err := New(o).Client(purpose, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func TestEveryRedirectHopIsCheckedAgain(t *testing.T) {
	t.Parallel()
	secret := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("the private server was reached") }))
	defer secret.Close()
	open := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, secret.URL, http.StatusFound) }))
	defer open.Close()
	allow, err := ParseAllowances("webhook=" + open.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, err = client(t, Options{AllowPrivate: allow}, Webhook).Get(open.URL)
	wantRefusal(t, err, "loopback")
}

func TestARedirectElsewhereTakesNoCredentialAlong(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer other.Close()
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer first.Close()
	allow, err := ParseAllowances("mcp=127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, first.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "k")
	req.Header.Set("Authorization", "Bearer k")
	req.Header.Set("Accept", "text/plain")
	resp, err := client(t, Options{AllowPrivate: allow}, MCP).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	h := <-got
	if h.Get("X-Api-Key") != "" || h.Get("Authorization") != "" || h.Get("Accept") != "text/plain" {
		t.Errorf("headers at the other host: %v", h)
	}
}

func TestARedirectFromHTTPSToHTTPIsRefused(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("the plain server was reached") }))
	defer plain.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer server.Close()
	allow, err := ParseAllowances("git=127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	_, err = client(t, Options{AllowPrivate: allow, ExtraCA: ca}, Git).Get(server.URL)
	if err == nil || !strings.Contains(err.Error(), "https to http") {
		t.Errorf("got %v", err)
	}
	// Without the extra CA the server itself is not believed.
	if _, err = client(t, Options{AllowPrivate: allow}, Git).Get(server.URL); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v", err)
	}
}

// Whatever the settings say, what parses is folded and no allowance opens a metadata address.
func FuzzSettings(f *testing.F) {
	f.Add("machine=169.254.169.254:*", "a.test=169.254.169.254")
	f.Add("model=[::ffff:169.254.169.254]:80", "b.test=::ffff:10.0.0.1")
	f.Add("webhook=a.test:80,git=b.test:*", "a.test=127.0.0.1,a.test=::1")
	f.Fuzz(func(t *testing.T, allow, resolve string) {
		allowances, err := ParseAllowances(allow)
		if err != nil {
			return
		}
		names, err := ParseResolve(resolve)
		if err != nil {
			return
		}
		g := New(Options{AllowPrivate: allowances, Resolve: names, Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return nil, errors.New("no resolver")
		}})
		for _, a := range allowances {
			if !Allows(allowances, a.Purpose, strings.ToUpper(a.Host), max(a.Port, 1)) {
				t.Fatalf("%+v does not allow itself", a)
			}
			vetted, err := g.vet(t.Context(), a.Purpose, a.Host, max(a.Port, 1))
			if err != nil {
				continue
			}
			for _, addr := range vetted {
				if kind(addr) == kindMetadata {
					t.Fatalf("%+v opens %s", a, addr)
				}
			}
		}
	})
}
