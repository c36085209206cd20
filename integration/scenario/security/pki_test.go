package security_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/pki"
)

// authority is a certificate authority of a test's own.
type authority struct{ *pki.Authority }

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a, err := pki.NewAuthority(name)
	require.NoError(t, err)
	return &authority{a}
}

// issue makes a certificate for both sides of a connection to 127.0.0.1, less what the flaws take away.
func (a *authority) issue(t *testing.T, name string, flaws ...pki.Flaw) tls.Certificate {
	t.Helper()
	cert, err := a.Issue(name, flaws...)
	require.NoError(t, err)
	return cert
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

// files are the places from which a server reads its certificates, anew for each connection.
type files struct{ pki.Files }

// newFiles has a server ask its clients for a certificate of the authority.
func newFiles(t *testing.T, a *authority, cert tls.Certificate) *files {
	t.Helper()
	f, err := pki.NewFiles(t.TempDir(), a.Authority, cert)
	require.NoError(t, err)
	return &files{f}
}

// install puts another certificate in place of the server's.
func (f *files) install(t *testing.T, cert tls.Certificate) {
	t.Helper()
	require.NoError(t, f.Install(cert))
}

// start runs a server that speaks TLS.
func (f *files) start(t *testing.T) *etcdtest.Server {
	t.Helper()
	return etcdtest.Start(t, etcdtest.Options{TLS: &transport.TLSInfo{
		CertFile: f.Cert, KeyFile: f.Key, TrustedCAFile: f.Authority, ClientCertAuth: true,
	}})
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, pki.WritePEM(path, kind, der))
}
