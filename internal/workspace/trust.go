package workspace

import (
	"bytes"
	"os"

	"managoat/sandbox/guest"
)

// hostRoots are where systems keep the public roots as one file, most common first.
var hostRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian and its kin, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora and its kin
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // Alpine, macOS
}

// bundle is what machines trust: the host's public roots and the operator's own certificates. Most programs read one
// file and nothing else, so it must hold both.
func bundle(extra []byte) []byte {
	var b bytes.Buffer
	for _, path := range hostRoots {
		if roots, err := os.ReadFile(path); err == nil {
			b.Write(bytes.TrimSpace(roots))
			b.WriteByte('\n')
			break
		}
	}
	if extra = bytes.TrimSpace(extra); len(extra) > 0 {
		b.Write(extra)
		b.WriteByte('\n')
	}
	return b.Bytes()
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
