// Leader is a service of several processes, of which one leads and writes to a fenced resource. If the leader dies,
// hangs or is told to stop, another one leads.
//
//	go -C examples run ./leader  # the demo: starts everything, kills and pauses leaders
//
// The demo, demo.go, needs nothing but Go. To start a service of your own, begin with service.go, which is the life of a
// process and the leader's work; http.go serves GET /leader, GET /healthz and POST /transfer?to=ID, and etcd.go has the
// flags of the connection. With -join the program is one process of the service, as you would deploy it, with an existing
// etcd:
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
	"syscall"
	"time"

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
