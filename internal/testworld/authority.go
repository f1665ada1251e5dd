package testworld

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates are valid from an hour ago (a machine's clock may be off) for a day.
const (
	validBefore = time.Hour
	validAfter  = 24 * time.Hour
)

// Authority signs the certificates of the world's services.
type Authority struct {
	PEM  []byte // its certificate
	File string // a file that holds PEM, for MANAGOAT_EXTRA_CA and the clients' own variables

	certificate *x509.Certificate
	key         crypto.Signer
}

func (w *World) openAuthority() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := newTemplate("Test World")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	ca := &Authority{
		PEM:         pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		File:        filepath.Join(w.dir, "ca.pem"),
		certificate: certificate,
		key:         key,
	}
	w.CA = ca
	return os.WriteFile(ca.File, ca.PEM, 0o644)
}

// Issue signs a certificate for the names, and for the loopback address so that a client without a resolver can
// dial that.
func (ca *Authority) Issue(names ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := newTemplate(names[0])
	template.DNSNames = names
	template.IPAddresses = []net.IP{net.ParseIP(loopback)}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der, ca.certificate.Raw}, PrivateKey: key}, nil
}

// Pool holds the authority alone.
func (ca *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	return pool
}

func newTemplate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system's randomness does not fail
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-validBefore),
		NotAfter:     now.Add(validAfter),
	}
}
