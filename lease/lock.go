package lease

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
)

// Lock is a held lock: there is one if and only if it was acquired. Its methods are safe for concurrent use.
// Whoever receives it unlocks it.
type Lock struct {
	g     *grant
	name  string
	owner string        // the text in the key
	mark  string        // in the key, of a candidate in an election
	entry queue.Guarded // zero until its turn in the session
	late  bool          // an attempt to enter whose outcome is unknown may still arrive at the server
	token fence.Token

	links          // in its name's order, under g.turns.mu
	waiter *waiter // while it waits for its turn in the session, or if it gave up then

	life context.Context //nolint:containedctx // the life of the handle, which Context hands out
	end  context.CancelCauseFunc
	ctx  context.Context //nolint:containedctx // life, with the token

	maxHold     *time.Timer // nil without a longest hold
	unlocked    atomic.Bool
	unconfirmed atomic.Bool // it was unlocked, and the deletion of its key not confirmed
}

// newLock is an acquisition that has not begun; it ends with its lease.
func (s *Session) newLock(g *grant, name, owner string) *Lock {
	l := &Lock{g: g, name: name, owner: owner}
	l.entry.Ended = l.keyEnded
	l.life, l.end = context.WithCancelCause(g.handles)
	return l
}

// Token is the fencing token of this hold: larger than that of every earlier holder of the name. It is fixed at
// the grant; a handle that was lost never shows its successor's.
func (l *Lock) Token() fence.Token { return l.token }

// Context ends when the lock is lost or unlocked, whichever is first, and [context.Cause] says which: a
// [*LostError], [ErrUnlocked] or [ErrMaxHold]. It ends before the server can grant the lock to somebody else
// (see the package's guarantees), with no help from the network. It carries the token for [fence.FromContext],
// and is not tied to the context given to Lock.
func (l *Lock) Context() context.Context { return l.ctx }

// Err is nil while the lock is held, and the cause of its context after that. It compares the clock itself: in a
// process that has just woken up from a pause it is right before the timer has run that ends the context. Look at
// it right before a write, where that is cheaper than having the resource refuse it.
func (l *Lock) Err() error {
	l.g.checkDeadline()
	return context.Cause(l.life)
}

// Deadline is when the lock is lost unless the lease is renewed before, as it is every third of its TTL.
func (l *Lock) Deadline() time.Time { return l.g.status().Deadline }

// Name is the name that was locked, without the session's prefix.
func (l *Lock) Name() string { return l.name }

// Key is the lock's key in etcd.
func (l *Lock) Key() string { return l.entry.Key }

// Held is a comparison for the caller's own etcd transactions: true while this hold's key is there. Unlike the
// context it is checked by the server, in one step with the transaction.
func (l *Lock) Held() clientv3.Cmp { return l.entry.Held() }

// lost is why the handle was lost, nil if it is held or was unlocked.
func (l *Lock) lost() *LostError { return lostBy(l.life) }

func lostBy(life context.Context) *LostError {
	lost, _ := context.Cause(life).(*LostError) //nolint:errorlint // the cause is ours and not wrapped
	return lost
}
