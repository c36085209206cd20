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

// amounts are the workers' entries.
var amounts = map[string][]int{"A": {100, 50}, "B": {10, 20}}

// worker takes the lock, writes its entries and releases the lock.
type worker struct{ name, endpoint, ledger string }

func (w worker) run() {
	if err := w.work(context.Background()); err != nil {
		slog.Error("fails", "err", err)
		os.Exit(1)
	}
}

func (w worker) work(ctx context.Context) (err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{w.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	session, err := lease.NewSession(ctx, client, lease.Options{TTL: stage.TTL, Owner: "quickstart " + w.name})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(ctx)) }()

	lock, err := session.Lock(ctx, "ledger")
	if err != nil {
		return err
	}
	slog.Info("has the lock", "token", lock.Token())
	if err := w.write(lock.Context(), lock); err != nil {
		return err
	}
	err = lock.Unlock(ctx)
	if lost, is := errors.AsType[*lease.LostError](err); is {
		slog.Warn("lock is lost", "why", lost.Reason)
		return nil
	}
	slog.Info("unlocks")
	return err
}

// write is the critical section: read, compute, write. ctx is the lock's: it carries the token to the ledger.
func (w worker) write(ctx context.Context, lock *lease.Lock) error {
	book, err := ledger.NewClient(w.ledger)
	if err != nil {
		return err
	}
	// Claim before the first read: from now on the ledger refuses older tokens, so the entry that is read stays the
	// last until the write.
	if err := book.Claim(ctx); err != nil {
		return err
	}
	goOn := bufio.NewScanner(os.Stdin)
	for _, amount := range amounts[w.name] {
		last, err := book.Last(ctx)
		if err != nil {
			return err
		}
		next := last.Next(amount, w.name)

		// A program can only check its lock right before the write.
		if err := lock.Err(); err != nil {
			return err
		}
		slog.Info("goes to write", "entry", fmt.Sprint(next), "left", time.Until(lock.Deadline()).Round(10*time.Millisecond))
		if !goOn.Scan() { // only this is there for the demo
			return errors.New("the demo has ended")
		}
		// The pause comes here. The write is not bound to the lock's context: it stands for a write that is already on
		// its way, which nothing can take back.
		err = book.Append(context.WithoutCancel(ctx), next)
		if errors.Is(err, fence.ErrStale) {
			slog.Warn("is refused", "err", err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
