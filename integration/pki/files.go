package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

// Files are the paths of the certificate and key of one side of a connection, and of the authority that it trusts. An
// etcd server reads its certificate again for each connection.
type Files struct{ Cert, Key, Authority string }

// NewFiles writes a certificate, its key and the authority's certificate into a folder.
func NewFiles(dir string, a *Authority, cert tls.Certificate) (Files, error) {
	f := Files{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "authority.pem")}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return f, fmt.Errorf("pki: %w", err)
	}
	if err := writePEM(f.Authority, "CERTIFICATE", a.cert.Raw); err != nil {
		return f, err
	}
	return f, f.Install(cert)
}

// Install replaces the certificate and its key.
func (f Files) Install(cert tls.Certificate) error {
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := writePEM(f.Cert, "CERTIFICATE", cert.Certificate[0]); err != nil {
		return err
	}
	return writePEM(f.Key, "PRIVATE KEY", key)
}

// Client returns a client's TLS configuration with the present content of the files.
func (f Files) Client() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	authority, err := os.ReadFile(f.Authority)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("pki: %s holds no certificate", f.Authority)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

// writePEM writes one PEM block of a kind to a file.
func writePEM(path, kind string, der []byte) error {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}
