// Package certificate is where the server's TLS certificate comes from: two files that are read again when they change, or
// an authority that speaks ACME (RFC 8555).
package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"managoat/internal/refusal"
)

// callTimeout bounds one request to an authority.
const callTimeout = 30 * time.Second

// Options say where the certificate comes from: Cert and Key, or Domains. Neither: there is none, the server is plain.
type Options struct {
	Cert, Key string // PEM files
	Host      string // that the certificate of the files must be for: the public URL's

	Domains   []string // of the certificates that an authority is asked for
	Contact   string   // mail address the authority may write to; "": none
	Directory string   // URL of the authority's directory
	Cache     string   // directory of the account's key and the certificates, made 0700
	ExtraCA   []byte   // PEM of certificates that are trusted beside the host's, for a private authority

	Log *slog.Logger
}

// Source is where the certificate comes from.
type Source struct {
	o     Options
	files *files
	acme  *autocert.Manager
}

// Open reads the files, or gets ready to ask the authority. nil: the server is plain.
func Open(o Options) (*Source, error) {
	switch {
	case o.Cert != "":
		f, err := openFiles(o)
		if err != nil {
			return nil, fmt.Errorf("the certificate cannot be served: %w", err)
		}
		return &Source{o: o, files: f}, nil
	case len(o.Domains) > 0:
		roots, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("the host's root certificates: %w", err)
		}
		roots.AppendCertsFromPEM(o.ExtraCA)
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		return &Source{o: o, acme: &autocert.Manager{
			Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(o.Cache), HostPolicy: autocert.HostWhitelist(o.Domains...), Email: o.Contact,
			Client: &acme.Client{DirectoryURL: o.Directory, HTTPClient: &http.Client{Transport: transport, Timeout: callTimeout}, UserAgent: "managoat"},
		}}, nil
	}
	return nil, nil
}

// TLS is the configuration of the server's listener, HTTP/2 included. The authority's question TLS-ALPN-01 is answered on
// the same port, so that no other is needed.
func (s *Source) TLS() *tls.Config {
	conf := &tls.Config{NextProtos: []string{"h2", "http/1.1"}}
	if s.acme != nil {
		conf = s.acme.TLSConfig()
	} else {
		conf.GetCertificate = s.files.get
	}
	conf.MinVersion = tls.VersionTLS12
	return conf
}

// Obtain asks the authority for what is missing, so that the first visitor does not wait and a fault is in the log at the
// start. The listener must be served. What fails is asked for again when somebody connects.
func (s *Source) Obtain(ctx context.Context) {
	if s.acme == nil {
		return
	}
	for _, domain := range s.o.Domains {
		got := make(chan error, 1)
		go func() { // takes no context, and ends by itself
			_, err := s.acme.GetCertificate(&tls.ClientHelloInfo{ServerName: domain,
				CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}})
			got <- err
		}()
		select {
		case err := <-got:
			if err != nil {
				s.o.Log.Error("no certificate yet; the next connection asks for it again", "domain", domain, "authority", s.o.Directory, "err", err)
			} else {
				s.o.Log.Info("the certificate is there", "domain", domain)
			}
		case <-ctx.Done():
			return
		}
	}
}

// Plain is the handler of a listener without TLS: it sends readers to the public URL, whatever host they asked for, and
// answers the authority's question HTTP-01.
func (s *Source) Plain(url string) http.Handler {
	url = strings.TrimSuffix(url, "/")
	redirect := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			// To send it on would hide that it went over the network for all to read.
			no := refusal.New(refusal.BadRequest, "This port only sends browsers on to https. Use %s, and revoke a key that was sent here.", url)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(no.Status())
			json.NewEncoder(w).Encode(no)
			return
		}
		http.Redirect(w, r, url+r.URL.RequestURI(), http.StatusPermanentRedirect)
	})
	if s.acme != nil {
		return s.acme.HTTPHandler(redirect)
	}
	return redirect
}

// covers says in its error why a certificate is not one to serve a host with.
func covers(leaf *x509.Certificate, host string, now time.Time) error {
	if err := leaf.VerifyHostname(host); err != nil {
		return fmt.Errorf("it is not for the public URL's host: %w", err)
	}
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("it ended on %s", leaf.NotAfter.UTC().Format(time.DateTime))
	}
	return nil
}
