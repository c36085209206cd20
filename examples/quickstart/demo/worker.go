//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/stage"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// lockName is the lock's name. The resource happens to have the same name here.
const lockName = "ledger"

// amounts are the workers' entries.
var amounts = map[string][]int{"A": {100, 50}, "B": {10, 20}}

// worker takes the lock, writes its entries and releases the lock. Before each write it waits for a line on its
// standard input; only that is there for the demo.
type worker struct {
	name, endpoint, ledger string

	log  *slog.Logger
	goOn *bufio.Scanner
}

func (w *worker) run(ctx context.Context) (code int) {
	w.log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	w.goOn = bufio.NewScanner(os.Stdin)
	if err := w.work(ctx); err != nil {
		w.log.Error("fails", "err", err)
		return 1
	}
	return 0
}

func (w *worker) work(ctx context.Context) (err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{w.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	session, err := lease.NewSession(ctx, client, lease.Options{TTL: stage.TTL, Owner: "quickstart " + w.name})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(context.WithoutCancel(ctx))) }()

	w.log.Info("asks for the lock", "its lease", session.Status().TTL.String())
	lock, err := session.Lock(ctx, lockName)
	if err != nil {
		return err
	}
	w.log.Info(stage.Locks, "token", lock.Token())
	if err := w.write(lock.Context(), lock); err != nil { //nolint:contextcheck // a child of ctx
		return err
	}

	err = lock.Unlock(ctx)
	if lost, ok := errors.AsType[*lease.LostError](err); ok {
		w.log.Warn(stage.LockIsLost, "token", lock.Token(), "why", lost.Reason.String())
		return nil
	}
	if err == nil {
		w.log.Info(stage.Unlocks, "token", lock.Token())
	}
	return err
}

// write is the critical section: read, compute, write. ctx is the lock's: it carries the token to the database.
func (w *worker) write(ctx context.Context, lock *lease.Lock) error {
	book, err := ledger.NewClient(w.ledger)
	if err != nil {
		return err
	}
	// Claim before the first read: from now on the ledger refuses older tokens, so the entry that is read stays the
	// last until the write.
	if err := book.Claim(ctx); err != nil {
		return err
	}
	for _, amount := range amounts[w.name] {
		last, err := book.Last(ctx)
		if err != nil {
			return err
		}
		next := ledger.Entry{Seq: last.Seq + 1, Amount: amount, Balance: last.Balance + amount, Writer: w.name}

		// A program can only check its lock right before the write.
		if err := lock.Err(); err != nil {
			return err
		}
		left := time.Until(lock.Deadline()).Round(10 * time.Millisecond)
		w.log.Info(goesToWrite, "token", lock.Token(), "entry", fmt.Sprint(next), "has the lock for", left.String())
		if !w.goOn.Scan() {
			return errors.New("the demo has ended")
		}
		// The pause comes here. The write is not bound to the lock's context: it stands for a write that is already on
		// its way, which nothing can take back.
		err = book.Append(context.WithoutCancel(ctx), next)
		if stale, ok := errors.AsType[*fence.StaleError](err); ok {
			w.log.Warn(stage.IsRefused, "token", lock.Token(), "newest", stale.Highest)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
