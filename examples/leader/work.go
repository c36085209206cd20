package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

const (
	period      = 300 * time.Millisecond // between two steps of work
	stepTimeout = 10 * time.Second
)

// lead is what the leader does, until ctx ends. The next leader does not start before it has returned, unless this
// process is paused or cut off; the token is for that case.
func (n *node) lead(ctx context.Context, token fence.Token) error {
	leadership, ok := election.FromContext(ctx)
	if !ok {
		return errors.New("the context is of no leadership")
	}
	n.leading.Store(leadership)
	defer n.leading.Store(nil)

	n.log.Info("leads", "token", token)
	err := n.work(ctx, leadership)
	if errors.Is(err, fence.ErrStale) {
		n.log.Warn("is refused as stale", "token", token, "err", err, "leadership", leadership.Err())
		err = restored(ctx, leadership, err)
	}
	n.log.Info("leads no more", "token", token, "why", errors.Join(context.Cause(ctx), err))
	return err
}

// restored returns what ends the process: with etcd's revisions gone back, every leadership would be refused. Otherwise
// somebody else leads, and it returns nil: campaign again.
func restored(ctx context.Context, leadership *election.Leadership, refusal error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	if err := leadership.Explain(ctx, refusal); errors.Is(err, lease.ErrRestored) {
		return err
	}
	return nil
}

// work writes to the ledger, with the token of this leadership, which the context carries.
func (n *node) work(ctx context.Context, leadership *election.Leadership) error {
	if n.book == nil {
		<-ctx.Done()
		return nil
	}
	// First of all: from now on the ledger refuses older tokens, so what is read next stays true until we write.
	if err := n.book.Claim(ctx); err != nil {
		return fmt.Errorf("claim the ledger: %w", err)
	}
	next := time.NewTicker(period)
	defer next.Stop()
	for leadership.Err() == nil { // the clock is asked: right also when the process has just woken up
		if err := n.step(ctx); err != nil {
			return err
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// step is one piece of work: read, compute, write. It is not cut off when the leadership ends: that would not call a
// write back that has been sent, only leave open what became of it. It does no harm, thanks to the token.
func (n *node) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	last, err := n.book.Last(ctx)
	if err != nil {
		return err
	}
	// If the process is paused here, for however long, the write is late. Nothing on this side can prevent it.
	return n.book.Append(ctx, ledger.Entry{Seq: last.Seq + 1, Amount: 1, Balance: last.Balance + 1, Writer: n.id})
}
