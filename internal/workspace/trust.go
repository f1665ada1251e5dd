package workspace

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"managoat/sandbox/guest"
)

// hostRoots are where systems keep the public roots as one file, most common first.
var hostRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian and its kin, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora and its kin
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // Alpine, macOS
}

// machineRoots is where a machine's own programs look when nothing tells them otherwise.
const machineRoots = "/etc/ssl/certs/ca-certificates.crt"

// bundle is what machines trust: the host's public roots and the operator's own certificates. Most programs read one
// file and nothing else, so it must hold both.
func bundle(extra []byte) (pem []byte, public bool) {
	var b bytes.Buffer
	for _, path := range hostRoots {
		if roots, err := os.ReadFile(path); err == nil {
			public = true
			b.Write(bytes.TrimSpace(roots))
			b.WriteByte('\n')
			break
		}
	}
	if extra = bytes.TrimSpace(extra); len(extra) > 0 {
		b.Write(extra)
		b.WriteByte('\n')
	}
	return b.Bytes(), public
}

// trust writes the certificates into a machine, at its setup and at each wake: what damaged them is mended, and what the
// operator changed arrives. public tells whether the host has public roots at all.
func (s *Service) trust(ctx context.Context, g *guest.Client) (public bool, err error) {
	pem, public := bundle(s.o.ExtraCA)
	both, ctx := errgroup.WithContext(ctx)
	for _, path := range []string{guest.CABundle, machineRoots} {
		both.Go(func() error { return g.WriteRootFile(ctx, path, pem, 0o644) })
	}
	if err := both.Wait(); err != nil {
		return public, fmt.Errorf("write the machine's certificates: %w", err)
	}
	return public, nil
}

// TrustEnv are the variables that make the programs of a machine read its bundle: no two agree on one. NODE_EXTRA_CA_CERTS
// adds to what node has, all others replace.
func TrustEnv() map[string]string {
	env := map[string]string{}
	for _, name := range []string{
		"SSL_CERT_FILE",       // OpenSSL, Go, Python's urllib, cargo
		"CURL_CA_BUNDLE",      // curl, Python's requests
		"GIT_SSL_CAINFO",      // git reads nothing else
		"PIP_CERT",            // pip
		"REQUESTS_CA_BUNDLE",  // Python's requests
		"CARGO_HTTP_CAINFO",   // cargo
		"NPM_CONFIG_CAFILE",   // npm reads nothing else
		"NODE_EXTRA_CA_CERTS", // node
		"CODEX_CA_CERTIFICATE",
		"AWS_CA_BUNDLE",
		"DENO_CERT",
	} {
		env[name] = guest.CABundle
	}
	return env
}
