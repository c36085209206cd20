package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// workerEnv makes the program a worker. It holds the worker's workerConfig.
const workerEnv = "LEASEFENCE_QUICKSTART_WORKER"

// ttl is the shortest that an etcd server with its default election timeout grants.
const ttl = 2 * time.Second

// lockName is the lock's name; what it protects has the same name here, but need not.
const lockName = "ledger"

// workerConfig is what a worker is told.
type workerConfig struct {
	Name      string
	Endpoints []string // of etcd
	Prefix    string   // of the keys in etcd
	Ledger    string   // URL
	Amounts   []int    // to add to the balance, one entry each
	Verbose   bool
}

func workerMain(text string) int {
	var config workerConfig
	err := json.Unmarshal([]byte(text), &config)
	if err == nil {
		err = work(context.Background(), config, newLink(os.Stdin, os.Stdout))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// work is a worker's life: it takes the lock, writes its entries and lets the lock go. It tells the parent of every
// step and takes it only when the parent has heard; nothing else here is for show.
func work(ctx context.Context, config workerConfig, parent *link) (err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: config.Endpoints})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	opts := lease.Options{TTL: ttl, Prefix: config.Prefix, Owner: "quickstart " + config.Name}
	if config.Verbose {
		opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	session, err := lease.NewSession(ctx, client, opts)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
		defer cancel()
		err = errors.Join(err, session.Close(ctx))
	}()
	granted := session.Status().TTL
	parent.tell(report{Kind: ready, TTL: granted, Text: fmt.Sprintf("has a lease of %v and asks for the lock", granted)})

	lock, err := session.Lock(ctx, lockName)
	if err != nil {
		return err
	}
	parent.tell(report{Kind: locked, Token: lock.Token(), Key: lock.Key(), Text: "has the lock"})

	if err := writeEntries(lock.Context(), config, lock, parent); err != nil { //nolint:contextcheck // it is a child of ctx
		return err
	}

	err = lock.Unlock(ctx)
	if lost, ok := errors.AsType[*lease.LostError](err); ok {
		text := fmt.Sprintf("sees that its lock is lost: %v", lost.Reason)
		parent.tell(report{Kind: unlocked, Token: lock.Token(), Lost: true, Text: text})
		return nil
	}
	if err != nil {
		return err
	}
	parent.tell(report{Kind: unlocked, Token: lock.Token(), Text: "unlocks"})
	return nil
}

// writeEntries is the critical section: read, compute, write. ctx is the lock's: it carries the token, all the way to the
// database.
func writeEntries(ctx context.Context, config workerConfig, lock *lease.Lock, parent *link) error {
	book, err := ledger.NewClient(config.Ledger)
	if err != nil {
		return err
	}
	// First of all: from now on the ledger refuses older tokens, so what is read next stays true until we write.
	if err := book.Claim(ctx); err != nil {
		return err
	}
	for _, amount := range config.Amounts {
		last, err := book.Last(ctx)
		if err != nil {
			return err
		}
		next := ledger.Entry{Seq: last.Seq + 1, Amount: amount, Balance: last.Balance + amount, Writer: config.Name}

		// All that a program can do by itself: look at the lock right before the write.
		if err := lock.Err(); err != nil {
			return err
		}
		left := time.Until(lock.Deadline()).Round(10 * time.Millisecond)
		parent.tell(report{
			Kind: writing, Token: lock.Token(),
			Text: fmt.Sprintf("read %v; has the lock for %v more; goes to write %v", last.Place(), left, next),
		})
		// The pause comes here. The write is not bound to the lock's context: it stands for one that is on its way
		// already, which nothing can call back.
		err = book.Append(context.WithoutCancel(ctx), next)
		switch {
		case errors.Is(err, fence.ErrStale):
			parent.tell(report{Kind: refused, Token: lock.Token(), Text: fmt.Sprintf("is told: %v", err)})
			return nil
		case err != nil:
			return err
		}
		parent.tell(report{Kind: written, Token: lock.Token(), Text: fmt.Sprintf("is told: #%d is written", next.Seq)})
	}
	return nil
}
