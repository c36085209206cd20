package security_test

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/pki"
)

// authority is a [pki.Authority] whose methods fail the test on an error.
type authority struct{ *pki.Authority }

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a, err := pki.NewAuthority(name)
	require.NoError(t, err)
	return &authority{a}
}

// issue issues a certificate, with the flaws, for either side of a connection to 127.0.0.1.
func (a *authority) issue(t *testing.T, name string, flaws ...pki.Flaw) tls.Certificate {
	t.Helper()
	cert, err := a.Issue(name, flaws...)
	require.NoError(t, err)
	return cert
}

// files are a server's certificate files, which it reads again for each connection.
type files struct{ pki.Files }

// newFiles writes the certificate of a server that demands client certificates of the authority.
func newFiles(t *testing.T, a *authority, cert tls.Certificate) *files {
	t.Helper()
	f, err := pki.NewFiles(t.TempDir(), a.Authority, cert)
	require.NoError(t, err)
	return &files{f}
}

// install replaces the server's certificate.
func (f *files) install(t *testing.T, cert tls.Certificate) {
	t.Helper()
	require.NoError(t, f.Install(cert))
}

// start runs a server with TLS.
func (f *files) start(t *testing.T) *etcdtest.Server {
	t.Helper()
	return etcdtest.Start(t, etcdtest.Options{CertFile: f.Cert, KeyFile: f.Key, ClientCAFile: f.Authority})
}
