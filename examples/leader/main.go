// Leader is a service of several processes, of which one leads and writes to a fenced resource. If the leader dies,
// hangs or is told to stop, another one leads.
//
//	go -C examples run ./leader  # the demo: starts everything, kills and pauses leaders
//
// The demo, demo.go, needs nothing but Go. To start a service of your own, begin with service.go: the life of a
// process, the leader's work, and then GET /leader, GET /healthz and POST /transfer?to=ID. With -join the program is one
// process of the service, as you would deploy it, with an existing etcd:
//
//	leader -join -id A -etcd 10.0.0.1:2379,10.0.0.2:2379 -election reports/leader -ledger http://ledger -http 10.0.0.5:8080
//
// SIGTERM and Ctrl-C end the process with status 0: it resigns first, so that the next candidate leads within
// milliseconds. If it ends with another status, start it again. If the ledger has seen tokens that etcd has not granted
// yet, because etcd was restored from a snapshot, the process ends and says so: start all processes with a higher -era.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/ledger"
)

func main() {
	join := flag.Bool("join", false, "run one process of the service instead of the demo")
	var etcd connection
	etcd.register()
	book := flag.String("ledger", "", "with -join: URL of the ledger to write to")
	var s service
	flag.StringVar(&s.id, "id", "", "with -join: this process's name, which others see when it leads")
	flag.StringVar(&s.election, "election", "leader", "with -join: the election's name")
	flag.StringVar(&s.address, "http", "127.0.0.1:0", "with -join: the address to serve HTTP at")
	flag.DurationVar(&s.ttl, "ttl", 10*time.Second, "with -join: the lease's TTL, after which another process leads if the leader dies")
	flag.UintVar(&s.era, "era", 0, "with -join: raise it after a restore of etcd, in all processes alike")
	flag.Parse()

	run := demo
	if *join {
		run = func() error { return runService(&s, etcd, *book) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// runService runs a process of the service until a signal ends it.
func runService(s *service, etcd connection, book string) (err error) {
	if s.id == "" || book == "" || s.era > math.MaxInt16 {
		return fmt.Errorf("-id is %q, -ledger %q, -era %d: want a name, a URL, and 0 to %d", s.id, book, s.era, math.MaxInt16)
	}
	if s.book, err = ledger.NewClient(book); err != nil {
		return err
	}
	if s.client, err = etcd.client(); err != nil {
		return err
	}
	defer func() { _ = s.client.Close() }() // the error only says that the connection's context has ended
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = s.run(ctx)
	if ctx.Err() != nil {
		slog.Info("stops", "why", err)
		return nil
	}
	return err
}

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
