package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/lease"
)

// config is the configuration of a process.
type config struct {
	etcd   clientv3.Config
	name   string // of the election
	id     string // of this process
	http   string // address to serve at
	ledger string // URL of the ledger to write to
	ttl    time.Duration
	era    uint16 // of the tokens

	log      *slog.Logger
	warnings *slog.Logger // for the library: it logs more at level INFO than a service needs
}

// node is one process of the service.
type node struct {
	config
	client *clientv3.Client
	book   *ledger.Client // nil: the leader only leads
	health *election.Health

	present atomic.Pointer[election.Leader]     // the leader that this process has seen last; nil at first
	leading atomic.Pointer[election.Leadership] // nil unless this process leads
}

// stopTimeout is how long the leader may take to return after the end of its leadership. It is longer than one step of
// work may take.
const stopTimeout = stepTimeout + 5*time.Second

// join is the life of a process: it campaigns, leads when its turn comes, campaigns again when it has lost the lead,
// and serves HTTP. It returns nil when ctx has ended.
func join(ctx context.Context, c config) (err error) {
	n := &node{config: c}
	if c.ledger != "" {
		if n.book, err = ledger.NewClient(c.ledger); err != nil {
			return fmt.Errorf("ledger at %q: %w", c.ledger, err)
		}
	}

	// One client and one session for everything that the process does in etcd.
	n.client, err = clientv3.New(c.etcd)
	if err != nil {
		return err
	}
	defer func() { _ = n.client.Close() }() // the error only says that the connection's context has ended

	session, err := lease.NewSession(ctx, n.client, lease.Options{TTL: c.ttl, Owner: c.id, Era: c.era, Logger: c.warnings})
	if err != nil {
		return n.stopped(ctx, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.ttl)
		defer cancel()
		err = errors.Join(err, session.Close(ctx))
	}()

	// Health fails when renewals are overdue or a former leader hangs; it never fails for a process that only waits.
	n.health, err = election.NewHealth(session.Status().TTL / 3)
	if err != nil {
		return err
	}

	// If one part of the process fails, the whole process ends.
	all, fail := context.WithCancelCause(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer fail(nil)
	parts.Go(func() { fail(n.observe(all)) })
	address, err := n.serve(all, &parts, fail)
	if err != nil {
		return err
	}
	c.log.Info("campaigns", "id", c.id, "http", address)

	err = election.Run(all, session, c.name, election.Options{
		Value:  c.id, // shown by GET /leader; it could also be an address for clients
		Health: n.health,
	}, n.lead,
		election.WithRejoin(), // after a transfer this process waits for its next turn
		election.WithOnLost(func(err error) { c.log.Warn("has lost the lead", "err", err) }),
		// A leader that does not stop keeps the others from leading, since its lease is still renewed: end the process.
		election.WithStopTimeout(stopTimeout, func(err error) {
			c.log.Error("ends at once", "err", err)
			os.Exit(1)
		}))
	return n.stopped(ctx, err)
}

// stopped returns err, or nil if the process was told to stop; then it only logs err.
func (n *node) stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	n.log.Info("stops", "why", err)
	return nil
}

// observe keeps present up to date.
func (n *node) observe(ctx context.Context) error {
	for leader, err := range election.Observe(ctx, n.client, n.name) {
		if err != nil {
			return fmt.Errorf("observe the election: %w", err)
		}
		n.present.Store(&leader)
	}
	return context.Cause(ctx)
}
