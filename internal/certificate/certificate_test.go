package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const host = "goat.test"

// pair writes a certificate of a host, which ends at a time, and its key.
func pair(t *testing.T, serial int64, host string, ends time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{host}, NotBefore: ends.Add(-48 * time.Hour), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// place puts a file in place of another, as those do who renew certificates.
func place(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), what)
}

func TestAFileOfACertificateThatCannotBeServedIsRefused(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	cert, key := pair(t, 1, host, later)
	_, otherKey := pair(t, 2, host, later)
	foreign, foreignKey := pair(t, 3, "other.test", later)
	old, oldKey := pair(t, 4, host, time.Now().Add(-time.Hour))
	for name, c := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"a good one":                 {cert, key, ""},
		"no certificate":             {[]byte("x"), key, "failed to find any PEM data"},
		"the key of another":         {cert, otherKey, "private key does not match"},
		"the files the wrong way":    {key, cert, "PEM"},
		"a certificate of elsewhere": {foreign, foreignKey, "not for the public URL's host"},
		"one whose time is over":     {old, oldKey, "it ended on "},
	} {
		dir := t.TempDir()
		o := Options{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), Host: host, Log: slog.New(slog.DiscardHandler)}
		place(t, o.Cert, c.cert)
		place(t, o.Key, c.key)
		_, err := Open(o)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), o.Cert)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestARenewedCertificateIsServedWithoutARestartAndABadOneIsNot(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), &journal{}
	o := Options{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), Host: host, Log: slog.New(slog.NewTextHandler(log, nil))}
	renew := func(serial int64) {
		cert, key := pair(t, serial, host, time.Now().Add(time.Hour))
		place(t, o.Cert, cert)
		place(t, o.Key, key)
	}
	renew(1)
	source, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", source.TLS())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Close(); <-served }()

	serial := func() int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{ServerName: host, InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	until := func(what string, met func() bool) {
		t.Helper()
		end, again := time.After(time.Minute), time.NewTicker(lookEvery/4)
		defer again.Stop()
		for !met() {
			select {
			case <-again.C:
			case <-end:
				t.Fatalf("waited a minute for %s", what)
			}
		}
	}
	if got := serial(); got != 1 {
		t.Fatalf("the certificate is %d", got)
	}
	renew(2)
	until("the second certificate", func() bool { return serial() == 2 })

	// The key is not there yet: the one before stays, which is said once.
	bad := func() int { return log.count("the one before stays") }
	cert, key := pair(t, 3, host, time.Now().Add(time.Hour))
	was := bad()
	place(t, o.Cert, cert)
	until("the half-renewed pair to be noticed", func() bool { return serial() == 2 && bad() == was+1 })
	os.Remove(o.Key)
	until("the missing key to be noticed", func() bool { return serial() == 2 && bad() == was+2 })
	looks := 0
	until("some more looks", func() bool { looks++; return serial() == 2 && looks > 12 })
	if bad() != was+2 {
		t.Errorf("the same fault is said again and again: %d times", bad()-was)
	}
	place(t, o.Key, key)
	until("the third certificate", func() bool { return serial() == 3 })
}

func TestThePlainListenerOnlySendsReadersToThePublicURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := Options{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), Host: host, Log: slog.New(slog.DiscardHandler)}
	cert, key := pair(t, 1, host, time.Now().Add(time.Hour))
	place(t, o.Cert, cert)
	place(t, o.Key, key)
	source, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, target, location string
		status                   int
	}{
		{"GET", "/workspaces?page=2", "https://goat.test:8443/workspaces?page=2", 308},
		{"HEAD", "/", "https://goat.test:8443/", 308},
		{"GET", "//evil.test/x", "https://goat.test:8443//evil.test/x", 308},
		{"POST", "/api/workspaces", "", 400},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(c.target, "?")
		r.Host = net.JoinHostPort("evil.test", "80")
		w := httptest.NewRecorder()
		source.Plain("https://goat.test:8443/").ServeHTTP(w, r)
		if c.method == "POST" && !strings.Contains(w.Body.String(), `"bad_request"`) {
			t.Errorf("%s", w.Body)
		}
		if got := fmt.Sprint(w.Code, w.Header().Get("Location")); got != fmt.Sprint(c.status, c.location) {
			t.Errorf("%s %s: %s", c.method, c.target, got)
		}
	}
}
