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

// Lock is a lock that was acquired: a Lock exists only after a successful acquisition. Its methods are safe for
// concurrent use. Unlock it when you are done.
type Lock struct {
	*contender

	token fence.Token
	made  sync.Once       // makes ctx on first use
	ctx   context.Context //nolint:containedctx // the contender's life, with the token
	timer *time.Timer     // of WithMaxHold; nil without

	unlocked    atomic.Bool
	unconfirmed atomic.Bool // unlocked, but the deletion of the key is not confirmed
}

// Token returns the fencing token of this hold: larger than that of every earlier holder of the name. It is fixed at
// the grant; a lost handle never shows its successor's token.
func (l *Lock) Token() fence.Token { return l.token }

// Context returns a context that ends when the lock is lost or unlocked, whichever comes first. Its [context.Cause] is
// a [*LostError], [ErrUnlocked], [ErrMaxHold] or [ErrAskedToRelease]. It ends before the server can grant the lock to
// somebody else (see the package's guarantees), with no help from the network. It carries the token for
// [fence.FromContext] and the name, with the session's prefix, for [fence.LockFromContext]. It is not tied to the
// context given to Lock.
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

// names returns the names, with the prefix, of the locks that the token belongs to: all names of a set; of a tree only
// the node's queue as its keys spell it, since Session.Lock of the path is another lock.
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

// Err returns nil while the lock is held, and then the cause of its context. It reads the clock itself: in a process
// that has just woken up from a pause, it is right even before the timer that ends the context has run. Call it just
// before a write to save a round trip that the resource would refuse.
func (l *Lock) Err() error {
	l.g.checkDeadline()
	return context.Cause(l.life)
}

// Deadline returns when the lock is lost unless the session renews its lease before, as it does every third of the TTL.
func (l *Lock) Deadline() time.Time { return l.g.status().Deadline }

// Name returns the name that was locked, without the session's prefix.
func (l *Lock) Name() string { return l.name }

// Key returns the lock's key in etcd.
func (l *Lock) Key() string { return l.entry.Key }

// IsOwner returns a comparison for the caller's own etcd transactions: it is true while this hold's key exists. The
// server checks it, unlike the context, in one step with the transaction. Put a read or a write into that transaction:
// any member answers a transaction that only compares, and that member may lag.
func (l *Lock) IsOwner() clientv3.Cmp { return l.entry.Held() }

// held has the methods of a [Lock] that the other kinds of locks share.
type held struct{ lock *Lock }

// grip makes the handle of another kind of lock, if the acquisition has succeeded.
func grip[H ~struct{ held }](l *Lock, err error) (*H, error) {
	if err != nil {
		return nil, err
	}
	return &H{held{l}}, nil
}

// Token returns the fencing token of this hold. It is fixed at the grant.
func (h *held) Token() fence.Token { return h.lock.Token() }

// Context is as [Lock.Context].
func (h *held) Context() context.Context { return h.lock.Context() }

// Err is as [Lock.Err].
func (h *held) Err() error { return h.lock.Err() }

// Deadline is as [Lock.Deadline].
func (h *held) Deadline() time.Time { return h.lock.Deadline() }

// Unlock is as [Lock.Unlock].
func (h *held) Unlock(ctx context.Context) error { return h.lock.Unlock(ctx) }

// Explain is as [Lock.Explain].
func (h *held) Explain(ctx context.Context, err error) error { return h.lock.Explain(ctx, err) }
