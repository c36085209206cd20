// Package pki issues TLS certificates to the servers and clients of tests.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime of certificates: longer than any run.
const lifetime = 365 * 24 * time.Hour

// Authority is a certificate authority.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority with a self-signed certificate.
func NewAuthority(name string) (*Authority, error) {
	template, key, err := template(name)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("pki: make authority %q: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("pki: make authority %q: %w", name, err)
	}
	return &Authority{cert, key}, nil
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

// Issue issues a certificate, with the flaws, for either side of a connection to 127.0.0.1. If a client sends no user
// and password, etcd takes the name for that of its user; "" names no user.
func (a *Authority) Issue(name string, flaws ...Flaw) (tls.Certificate, error) {
	template, key, err := template(name)
	if err != nil {
		return tls.Certificate{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, f := range flaws {
		f(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("pki: issue a certificate for %q: %w", name, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// template returns the fields that all certificates share, and a new key.
func template(name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"leasefence's tests"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
	}, key, nil
}
