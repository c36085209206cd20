// Package pki issues TLS certificates to the servers and clients of tests.
package pki

import (
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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lifetime of certificates: longer than any run.
const lifetime = 365 * 24 * time.Hour

// Authority is a certificate authority.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority with a self-signed certificate.
func NewAuthority(tb testing.TB, name string) *Authority {
	tb.Helper()
	template, key := template(tb)
	template.Subject.CommonName = name
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(tb, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(tb, err)
	return &Authority{cert, key}
}

// Pool returns a pool that trusts only this authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Flaw makes a certificate invalid in one respect.
type Flaw func(*x509.Certificate)

// Expired is the flaw of a certificate that has expired.
func Expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
}

// Issue issues a certificate, with the flaws, for either side of a connection to 127.0.0.1. It has no common name, which
// etcd would take for the name of a user.
func (a *Authority) Issue(tb testing.TB, flaws ...Flaw) tls.Certificate {
	tb.Helper()
	template, key := template(tb)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, f := range flaws {
		f(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(tb, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// template returns the fields that all certificates share, and a new key.
func template(tb testing.TB) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	require.NoError(tb, err)
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"leasefence's tests"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
	}, key
}

// Files are the paths of the certificate and key of one side of a connection, and of the authority that it trusts. An
// etcd server reads its certificate again for each connection.
type Files struct{ Cert, Key, Authority string }

// NewFiles writes a certificate, its key and the authority's certificate into a new folder.
func NewFiles(tb testing.TB, a *Authority, cert tls.Certificate) Files {
	tb.Helper()
	dir := tb.TempDir()
	f := Files{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "authority.pem")}
	writePEM(tb, f.Authority, "CERTIFICATE", a.cert.Raw)
	f.Install(tb, cert)
	return f
}

// Install replaces the certificate and its key.
func (f Files) Install(tb testing.TB, cert tls.Certificate) {
	tb.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(tb, err)
	writePEM(tb, f.Cert, "CERTIFICATE", cert.Certificate[0])
	writePEM(tb, f.Key, "PRIVATE KEY", key)
}

// writePEM writes one PEM block of a kind to a file.
func writePEM(tb testing.TB, path, kind string, der []byte) {
	tb.Helper()
	require.NoError(tb, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
