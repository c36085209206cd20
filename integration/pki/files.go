package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
