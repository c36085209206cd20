package lease

import (
	"context"

	"github.com/leasefence/leasefence/fence"
)

// ReadLock is a lock that its holder shares with other readers: a ReadLock exists only after a successful acquisition.
// Its context ends as that of a [Lock] does, and its methods are safe for concurrent use. The context carries the token
// for [fence.ReadFromContext], and none for [fence.FromContext]. Unlock it when you are done.
type ReadLock struct{ held }

// RLock waits until it holds the lock called name as a reader, and returns it. Readers of one name hold it at the same
// time. Its writers, each of which excludes all others, are [Session.Lock], [Session.Do], concurrency.Mutex of etcd and
// etcdctl lock.
//
// Readers and writers are served in the order in which they enter etcd's queue, see the package's section on order. Of
// the writers of one session only the first has a place there: a reader of that session overtakes the others.
//
// A read lock is not reentrant: if a writer waits, a second RLock of the same caller waits behind that writer, which
// waits for the first. A read lock cannot be turned into a write lock, nor a write lock into a read lock: two readers
// that waited to become writers would wait for each other. Unlock it, and lock again. Names, ctx, options and errors
// are those of [Session.Lock].
func (s *Session) RLock(ctx context.Context, name string, opts ...LockOption) (*ReadLock, error) {
	return grip[ReadLock](s.acquire(ctx, name, opts, mode{kind: KindReadLock}))
}

// TryRLock takes the lock called name as a reader if no writer holds it or waits for it. Otherwise it returns at once a
// [*LockedError], which matches [ErrLocked] and names the oldest of these writers. Other errors are those of
// [Session.Lock].
func (s *Session) TryRLock(ctx context.Context, name string, opts ...LockOption) (*ReadLock, error) {
	return grip[ReadLock](s.acquire(ctx, name, opts, mode{kind: KindReadLock, try: true}))
}

// RDo is [Session.Do] with the lock taken as [Session.RLock] takes it. The context that fn gets carries the token for
// [fence.ReadFromContext]. It carries none for [fence.FromContext], not even the token of a lock that the caller holds.
func (s *Session) RDo(ctx context.Context, name string, fn func(ctx context.Context, token fence.ReadToken) error, opts ...LockOption) error {
	if fn == nil {
		return errNoFunction
	}
	return s.do(ctx, name, func() (*Lock, error) { return s.acquire(ctx, name, opts, mode{kind: KindReadLock}) },
		func(ctx context.Context, token fence.Token) error { return fn(ctx, fence.ReadToken(token)) })
}

// Token returns the fencing token of this hold: larger than that of every earlier writer of the name. Once it is used
// at a resource that keeps a mark of readers, that resource refuses the writers before this hold; see package fence. It
// is fixed at the grant.
func (l *ReadLock) Token() fence.ReadToken { return fence.ReadToken(l.lock.token) }

// Name returns the name that was locked, without the session's prefix.
func (l *ReadLock) Name() string { return l.lock.Name() }

// Key returns the hold's key in etcd.
func (l *ReadLock) Key() string { return l.lock.Key() }
