package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
)

// Lock is a held lock: there is one if and only if it was acquired. Its methods are safe for concurrent use.
// Unlock it when you are done.
type Lock struct {
	*contender

	token   fence.Token
	made    sync.Once       // makes ctx when somebody asks for it
	ctx     context.Context //nolint:containedctx // the contender's life, with the token
	maxHold *time.Timer     // nil without a longest hold

	unlocked    atomic.Bool
	unconfirmed atomic.Bool // it was unlocked, and the deletion of its key not confirmed
}

// Token is the fencing token of this hold: larger than that of every earlier holder of the name. It is fixed at
// the grant; a handle that was lost never shows its successor's.
func (l *Lock) Token() fence.Token { return l.token }

// Context ends when the lock is lost or unlocked, whichever is first, and [context.Cause] says which: a
// [*LostError], [ErrUnlocked], [ErrMaxHold] or [ErrAskedToRelease]. It ends before the server can grant the lock to somebody else
// (see the package's guarantees), with no help from the network. It carries the token for [fence.FromContext] and the name, with
// the session's prefix, for [fence.LockFromContext]. It is not tied to the context given to Lock.
func (l *Lock) Context() context.Context {
	l.made.Do(func() {
		if l.shared {
			l.ctx = fence.WithLock(fence.NewReadContext(l.life, fence.ReadToken(l.token)), l.names()...)
			return
		}
		ctx := fence.WithLock(fence.NewContext(l.life, l.token), l.names()...)
		l.ctx = audit.NewContext(ctx, audit.Holder{Name: l.owner, TTL: l.g.ttl})
	})
	return l.ctx
}

// names are those of the locks that the token is of: that of the queue, in a set all. Of a tree it is the node's, as it stands in
// the keys, since Session.Lock of the path is another lock.
func (c *contender) names() []string {
	all := make([]string, 1, 1+len(c.with))
	all[0] = c.g.s.opts.Prefix + c.name
	for _, other := range c.with {
		if !other.shared {
			all = append(all, other.g.s.opts.Prefix+other.name)
		}
	}
	return all
}

// Err is nil while the lock is held, and the cause of its context after that. It compares the clock itself: in a
// process that has just woken up from a pause it is right even before the timer has run that ends the context. Call it just
// before a write to save a round trip that the resource would refuse.
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

// IsOwner is a comparison for the caller's own etcd transactions: true while this hold's key is there. Unlike the
// context it is checked by the server, in one step with the transaction. Put a read or a write into it: a transaction that
// only compares is answered by any member of etcd, and that may lag.
func (l *Lock) IsOwner() clientv3.Cmp { return l.entry.Held() }
