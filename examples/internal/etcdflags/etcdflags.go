// Package etcdflags has flags for a user, a password and certificates for etcd.
package etcdflags

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Flags are the values of the flags.
type Flags struct {
	user, passwordFile string
	tls                transport.TLSInfo
}

// Register registers the flags.
func (f *Flags) Register(flags *flag.FlagSet) {
	flags.StringVar(&f.user, "user", "", "etcd's user")
	// There is no flag for the password itself: every user of the machine can read a command line.
	flags.StringVar(&f.passwordFile, "password-file", "", "file with the user's password")
	flags.StringVar(&f.tls.TrustedCAFile, "cacert", "", "file with the CA of etcd's certificate; turns TLS on")
	flags.StringVar(&f.tls.CertFile, "cert", "", "file with this client's certificate; turns TLS on")
	flags.StringVar(&f.tls.KeyFile, "key", "", "file with the certificate's key")
}

// Config is the configuration of a client. The certificate is read again for each connection, so it can be replaced.
func (f *Flags) Config(endpoints []string) (clientv3.Config, error) {
	c := clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), Username: f.user}
	if (f.user == "") != (f.passwordFile == "") {
		return c, errors.New("-user and -password-file: one is empty, want both or none")
	}
	if (f.tls.CertFile == "") != (f.tls.KeyFile == "") {
		return c, errors.New("-cert and -key: one is empty, want both or none")
	}
	if f.passwordFile != "" {
		password, err := os.ReadFile(f.passwordFile)
		if err != nil {
			return c, fmt.Errorf("-password-file: %w", err)
		}
		c.Password = strings.TrimRight(string(password), "\r\n")
	}
	if f.tls.CertFile != "" || f.tls.TrustedCAFile != "" {
		tls, err := f.tls.ClientConfig()
		if err != nil {
			return c, fmt.Errorf("-cacert, -cert and -key: %w", err)
		}
		c.TLS = tls
	}
	return c, nil
}
