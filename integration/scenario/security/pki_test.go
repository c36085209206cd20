package security_test

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
	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// authority is a certificate authority of a test's own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{key: newKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

func serial(t *testing.T) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	require.NoError(t, err)
	return n
}

// pool trusts the authority alone.
func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// flaw is what is wrong with a certificate.
type flaw func(*x509.Certificate)

func expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
}

func notYetValid(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
}

func otherHost(c *x509.Certificate) {
	c.IPAddresses, c.DNSNames = nil, []string{"etcd.example"}
}

func serversOnly(c *x509.Certificate) {
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
}

// issue makes a certificate for both sides of a connection to 127.0.0.1, less what the flaws take away.
func (a *authority) issue(t *testing.T, name string, flaws ...flaw) tls.Certificate {
	t.Helper()
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	for _, f := range flaws {
		f(template)
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// files are the places from which a server reads its certificates, anew for each connection.
type files struct{ transport.TLSInfo }

// newFiles has a server ask its clients for a certificate of the authority.
func newFiles(t *testing.T, a *authority, cert tls.Certificate) *files {
	t.Helper()
	dir := t.TempDir()
	f := &files{transport.TLSInfo{
		CertFile:      filepath.Join(dir, "server.crt"),
		KeyFile:       filepath.Join(dir, "server.key"),
		TrustedCAFile: filepath.Join(dir, "ca.crt"), ClientCertAuth: true,
	}}
	writePEM(t, f.TrustedCAFile, "CERTIFICATE", a.cert.Raw)
	f.install(t, cert)
	return f
}

// install puts another certificate in place of the server's.
func (f *files) install(t *testing.T, cert tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	writePEM(t, f.CertFile, "CERTIFICATE", cert.Certificate[0])
	writePEM(t, f.KeyFile, "PRIVATE KEY", key)
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// start runs a server that speaks TLS.
func (f *files) start(t *testing.T) *etcdtest.Server {
	t.Helper()
	return etcdtest.Start(t, etcdtest.Options{TLS: &f.TLSInfo})
}
