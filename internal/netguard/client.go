package netguard

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Times and sizes of HTTP calls.
const (
	tlsTimeout        = 10 * time.Second
	idleConnTimeout   = 90 * time.Second
	maxIdleConns      = 256
	maxIdlePerHost    = 16
	maxRedirects      = 5
	maxResponseHeader = 256 << 10 // bytes
)

// Transport makes an HTTP transport whose every connection is guarded. It knows no proxy of the environment:
// behind one the guard could not see what is dialled. It fails when the extra CA cannot be read.
func (g *Guard) Transport(purpose Purpose) (*http.Transport, error) {
	roots, err := g.roots()
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext:            g.Dialer(purpose),
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    tlsTimeout,
		ForceAttemptHTTP2:      true,
		IdleConnTimeout:        idleConnTimeout,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		MaxResponseHeaderBytes: maxResponseHeader,
	}, nil
}

// Client makes an HTTP client for the server's own calls. Every redirect is a new guarded dial; a redirect away
// from https is refused, and one to another host takes no header along that could be a credential.
func (g *Guard) Client(purpose Purpose, timeout time.Duration) (*http.Client, error) {
	transport, err := g.Transport(purpose)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport, Timeout: timeout, CheckRedirect: checkRedirect}, nil
}

// harmless are the headers that follow a redirect to another host.
var harmless = []string{"Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "User-Agent"}

func checkRedirect(next *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	case next.URL.Scheme != "http" && next.URL.Scheme != "https":
		return fmt.Errorf("redirect to a %s URL is refused", next.URL.Scheme)
	case last.URL.Scheme == "https" && next.URL.Scheme != "https":
		return errors.New("redirect from https to http is refused")
	}
	if next.URL.Host != via[0].URL.Host {
		for name := range next.Header {
			if !slices.Contains(harmless, name) {
				next.Header.Del(name)
			}
		}
	}
	return nil
}

func (g *Guard) roots() (*x509.CertPool, error) {
	if len(g.o.ExtraCA) == 0 {
		return nil, nil // the host's own
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the host's root certificates: %w", err)
	}
	if !roots.AppendCertsFromPEM(g.o.ExtraCA) {
		return nil, errors.New("the extra CA holds no PEM certificate")
	}
	return roots, nil
}
