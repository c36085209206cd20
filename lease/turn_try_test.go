package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// requireLocked checks the error of TryLock, and that TryLock has written nothing.
func (e *env) requireLocked(t *testing.T, owner, key string, token fence.Token) {
	t.Helper()
	rev := e.srv.Rev()
	began := e.now()
	l, err := e.s.TryLock(t.Context(), "a", lease.WithOwner("who asks"))
	require.Nil(t, l)
	require.ErrorIs(t, err, lease.ErrLocked)
	require.NotErrorIs(t, err, lease.ErrLost)
	var locked *lease.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, lease.LockedError{Name: "a", Owner: owner, Key: key, Token: token}, *locked)
	require.Equal(t, rev, e.srv.Rev())
	require.Equal(t, began, e.now())
}

// TryLock fails behind any caller of its own session, and names the holder, with its token in the era of the session that
// asks. It looks for the holder below the session's prefix only.
func TestTurns_tryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{Owner: "we", Prefix: "p/", Era: 3})
		e.join(t).lock(t, "a")
		other := open(t, e.srv, lease.Options{Owner: "they", Prefix: "p/"})
		l := e.lock(t, "a", lease.WithOwner("the holder"))
		require.Equal(t, uint16(3), l.Token().Era())
		other.requireLocked(t, "the holder", l.Key(), fence.Token(l.Token().Revision()))
		e.requireLocked(t, "the holder", l.Key(), l.Token())
		waiting := e.line(t, "a", 2)
		e.requireLocked(t, "the holder", l.Key(), l.Token())
		theirs := other.wait(t.Context(), "a")

		require.NoError(t, l.Unlock(t.Context()))
		held := receive(t, theirs).lock
		synctest.Wait()
		token, err := fence.NewToken(3, held.Token().Revision())
		require.NoError(t, err)
		e.requireLocked(t, "they", held.Key(), token) // though the first in the session is one of its own
		pass(t, held, waiting...)
		pass(t, e.lock(t, "a"))
		require.Empty(t, e.keys("p/"))
	})
}

// The caller ahead in the session has not entered etcd's queue yet.
func TestTurns_tryLockBeforeAnybodyHasEntered(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second})
		ctx, giveUp := context.WithCancel(t.Context())
		first := e.wait(ctx, "a", lease.WithOwner("the first"))
		e.requireLocked(t, "the first", "", 0)

		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnRequest: giveUp, After: time.Millisecond})
		_, err := e.s.TryLock(t.Context(), "a")
		require.EqualError(t, err, `lease: lock "a" is about to be taken by "the first", of this session`)
		require.ErrorIs(t, receive(t, first).err, context.Canceled)
	})
}

// leaves reports whether a request leaves a queue, or those of a set.
func leaves(c fakeetcd.Call) bool {
	ops := c.Request.(*pb.TxnRequest).Success
	if len(ops) > 0 && ops[0].GetRequestTxn() != nil {
		ops = ops[0].GetRequestTxn().Success
	}
	return len(ops) > 0 && ops[0].GetRequestDeleteRange() != nil
}

func requireExclusive[L any](t *testing.T, e *env, held hold, next <-chan outcome[L]) {
	t.Helper()
	e.at(time.Minute)
	requirePending(t, next)
	require.NoError(t, held.Err())
	require.NoError(t, held.Unlock(t.Context()))
	receive(t, next)
}

// An acquisition that tries has entered behind nested names, finds an older contender and leaves. That request is
// delayed, and the older contender goes. When the request arrives, it deletes no key that is a hold by then.
func TestTurns_lateRequestToLeave(t *testing.T) {
	with := func(t *testing.T, late time.Duration) (e, other, third *env) {
		t.Helper()
		e = start(t, lease.Options{TTL: time.Hour}) // attempts of 5 s
		e.srv.Put("a/nested/x", "")
		require.NoError(t, e.lock(t, "a").Unlock(t.Context())) // e knows that "a" has nested names
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: leaves, Before: late, Late: true})
		return e, e.join(t), e.join(t)
	}
	inBubble(t, "it is not late: nothing is left to clean up", func(t *testing.T) {
		left, hooks := cleanUps()
		e := start(t, lease.Options{Hooks: hooks})
		other := e.join(t)
		e.srv.Put("a/nested/x", "")
		require.NoError(t, e.lock(t, "a").Unlock(t.Context()))
		for _, try := range []func() error{
			func() error { return second(e.s.TryLock(t.Context(), "a")) },
			func() error { return second(e.s.TryLockAll(t.Context(), "a", "b")) },
		} {
			e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, After: time.Second})
			tried := later(try)
			synctest.Wait()
			l := other.lock(t, "a") // after the reading of the queue by names
			require.ErrorIs(t, receive(t, tried), lease.ErrLocked)
			require.NoError(t, l.Unlock(t.Context()))
			synctest.Wait()
			require.Zero(t, left.Load())
		}
		l := other.lock(t, "a")
		require.ErrorIs(t, second(e.s.TryPermit(t.Context(), "a", 1)), lease.ErrLocked)
		require.NoError(t, l.Unlock(t.Context()))
		synctest.Wait()
		require.Zero(t, left.Load())
	})
	inBubble(t, "the attempt is repeated", func(t *testing.T) {
		e, other, third := with(t, 8*time.Second)
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, After: time.Second}) // the reading of the queue by names
		tried := begin(e, func() (*lease.Lock, error) { return e.s.TryLock(t.Context(), "a") })
		l := other.lock(t, "a")
		e.at(2 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		got := receive(t, tried)
		next := third.wait(t.Context(), "a")
		if got.err == nil { // its first key was deleted before it entered with another one
			requireExclusive(t, e, got.lock, next)
			return
		}
		require.ErrorIs(t, got.err, lease.ErrLocked)
		receive(t, next)
	})
	inBubble(t, "the next caller does not get the place", func(t *testing.T) {
		e, other, third := with(t, 1100*time.Millisecond)
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, After: time.Second})
		tried := begin(e, func() (*lease.Lock, error) { return e.s.TryLock(timeout(t, 2*time.Second), "a") })
		waiting := e.wait(t.Context(), "a")
		l := other.lock(t, "a")
		e.at(1500 * time.Millisecond)
		require.NoError(t, l.Unlock(t.Context()))
		require.ErrorIs(t, receive(t, tried).err, context.DeadlineExceeded)
		got := granted(t, waiting).lock
		next := third.wait(t.Context(), "a")
		requireExclusive(t, e, got, next)
	})
	inBubble(t, "a permit", func(t *testing.T) {
		e, other, third := with(t, 5100*time.Millisecond)
		l := other.lock(t, "a") // in the turnstile
		waiting := e.waitPermit(t.Context(), "a", 1)
		e.at(2 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		got := granted(t, waiting).lock
		next := third.waitPermit(t.Context(), "a", 1)
		requireExclusive(t, e, got, next)
	})
	inBubble(t, "a permit, and the request to leave is refused", func(t *testing.T) {
		e, other, _ := with(t, 0)
		e.c.Reset()
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: leaves, Err: rpctypes.ErrGRPCRequestTooManyRequests})
		l := other.lock(t, "a")
		waiting := e.waitPermit(t.Context(), "a", 1)
		e.at(2 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, granted(t, waiting).lock.Unlock(t.Context()))
		e.at(2 * time.Minute)
		require.Equal(t, []string{"a/nested/x"}, e.keys(""))
	})
}
