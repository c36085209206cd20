package lease

import (
	"context"
	"errors"

	"github.com/leasefence/leasefence/fence"
)

// ReadLock is a held lock that its holder shares with other readers: there is one if and only if it was acquired. It has the life
// of a [Lock], and its methods are safe for concurrent use. Its context carries the token for [fence.ReadFromContext], and none
// for [fence.FromContext]. Unlock it when you are done.
type ReadLock struct{ held }

// RLock waits until it holds the lock called name as a reader, and returns it. Readers of one name hold it at the same time;
// [Session.Lock], [Session.Do], etcd's concurrency.Mutex and etcdctl lock are its writers, each of which excludes all others.
//
// Readers and writers are served in the order in which they enter etcd's queue, so neither starve: a reader waits for the
// writers that entered before it, those that still wait among them, and a writer for everybody before it. Each reader stands in
// that queue by itself. Of the writers of one session only one does, see the package's section on order: a reader of the
// session passes the others.
//
// A read lock is not reentrant: if a writer waits, a reader that asks again waits behind it, and it waits for the reader. A read
// lock becomes no writer's, nor the other way about: two readers that waited to become writers would wait for each other. Unlock
// it, and lock anew. Names, ctx, options and errors are those of Session.Lock.
func (s *Session) RLock(ctx context.Context, name string, opts ...LockOption) (*ReadLock, error) {
	return readLock(s.rlock(ctx, name, opts...))
}

// TryRLock takes the lock called name as a reader if no writer has it or waits for it, or else returns at once an error that
// matches [ErrLocked] and carries the oldest of these writers, a [*LockedError]. Other errors are those of [Session.Lock].
func (s *Session) TryRLock(ctx context.Context, name string, opts ...LockOption) (*ReadLock, error) {
	return readLock(s.acquire(ctx, name, opts, mode{
		kind: KindReadLock, try: true,
		join:  (*contender).share,
		enter: func(c *contender, ctx context.Context) (*contender, error) { return c, c.tryEnter(ctx) },
	}))
}

// RDo is [Session.Do] with the lock taken as [Session.RLock] takes it. The context that fn gets carries the token for
// [fence.ReadFromContext]. It carries none for [fence.FromContext], not even that of a lock which the caller holds.
func (s *Session) RDo(ctx context.Context, name string, fn func(ctx context.Context, token fence.ReadToken) error, opts ...LockOption) error {
	if fn == nil {
		return errNoFunction
	}
	return s.do(ctx, name, s.rlock, func(ctx context.Context, token fence.Token) error { return fn(ctx, fence.ReadToken(token)) }, opts)
}

func (s *Session) rlock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.acquire(ctx, name, opts, mode{kind: KindReadLock, join: (*contender).share, enter: (*contender).enterAndWait})
}

func (c *contender) share() { c.shared = true }

func readLock(l *Lock, err error) (*ReadLock, error) {
	if err != nil {
		return nil, err
	}
	return &ReadLock{held{l}}, nil
}

var errNoFunction = errors.New("lease: fn is nil, want a function")

// Token is the fencing token of this hold: larger than that of every earlier writer of the name. A resource that keeps a mark of
// readers refuses the writers before it from the first use of the token on; see package fence. It is fixed at the grant.
func (l *ReadLock) Token() fence.ReadToken { return fence.ReadToken(l.lock.token) }

// Name is the name that was locked, without the session's prefix.
func (l *ReadLock) Name() string { return l.lock.Name() }

// Key is the hold's key in etcd.
func (l *ReadLock) Key() string { return l.lock.Key() }
