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
	period      = 300 * time.Millisecond // pause between two steps of work
	stepTimeout = 10 * time.Second       // bound of one step
)

// lead does the leader's work until ctx ends. The next leader does not start before lead has returned, unless this
// process is paused or cut off; the token is for that case.
func (n *node) lead(ctx context.Context, token fence.Token) error {
	leadership, ok := election.FromContext(ctx)
	if !ok {
		return errors.New("the context has no leadership")
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

// restored returns an error, which ends the process, if the token was refused because a restore took etcd's revisions
// back: the ledger would refuse every later leadership, too. Otherwise somebody else leads by now, and it returns nil:
// campaign again.
func restored(ctx context.Context, leadership *election.Leadership, refusal error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	if err := leadership.Explain(ctx, refusal); errors.Is(err, lease.ErrRestored) {
		return err
	}
	return nil
}

// work writes to the ledger. The context carries the token of this leadership.
func (n *node) work(ctx context.Context, leadership *election.Leadership) error {
	if n.book == nil {
		<-ctx.Done()
		return nil
	}
	// Claim before the first read: from now on the ledger refuses older tokens, so the entry that is read stays the
	// last until the write.
	if err := n.book.Claim(ctx); err != nil {
		return fmt.Errorf("claim the ledger: %w", err)
	}
	next := time.NewTicker(period)
	defer next.Stop()
	for leadership.Err() == nil { // Err reads the clock, so it is right even if the process has just been paused
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

// step is one piece of work: read, compute, write. The end of the leadership does not cancel it: that could not take
// back a write that is already sent, and would leave its outcome unknown. The token makes a late write harmless.
func (n *node) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	last, err := n.book.Last(ctx)
	if err != nil {
		return err
	}
	// If the process is paused here, the write is late. Nothing on this side can prevent that.
	return n.book.Append(ctx, ledger.Entry{Seq: last.Seq + 1, Amount: 1, Balance: last.Balance + 1, Writer: n.id})
}
