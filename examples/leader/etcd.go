package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// connection is how a process reaches etcd.
type connection struct {
	endpoints, user, passwordFile string
	tls                           transport.TLSInfo
}

func (c *connection) register() {
	flag.StringVar(&c.endpoints, "etcd", "127.0.0.1:2379", "with -join: etcd's addresses, comma-separated")
	flag.StringVar(&c.user, "user", "", "with -join: etcd's user")
	// There is no flag for the password itself: every user of the machine can read a command line.
	flag.StringVar(&c.passwordFile, "password-file", "", "with -join: file with the user's password")
	flag.StringVar(&c.tls.TrustedCAFile, "cacert", "", "with -join: file with the CA of etcd's certificate; turns TLS on")
	flag.StringVar(&c.tls.CertFile, "cert", "", "with -join: file with this client's certificate; turns TLS on")
	flag.StringVar(&c.tls.KeyFile, "key", "", "with -join: file with the certificate's key")
}

func (c *connection) client() (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints: strings.Split(c.endpoints, ","), Username: c.user, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second, // else a dead connection is noticed late
	}
	if (c.user == "") != (c.passwordFile == "") {
		return nil, fmt.Errorf("-user is %q, -password-file %q: want both or none", c.user, c.passwordFile)
	}
	if c.passwordFile != "" {
		password, err := os.ReadFile(c.passwordFile)
		if err != nil {
			return nil, fmt.Errorf("-password-file: %w", err)
		}
		config.Password = strings.TrimRight(string(password), "\r\n")
	}
	if c.tls.CertFile+c.tls.KeyFile+c.tls.TrustedCAFile != "" {
		tls, err := c.tls.ClientConfig() // it reads the certificate again for each connection
		if err != nil {
			return nil, fmt.Errorf("-cacert, -cert and -key: %w", err)
		}
		config.TLS = tls
	}
	return clientv3.New(config)
}
