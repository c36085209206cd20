package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A caller whose context has ended gets no lock, not even a free one, and leaves no key.
func TestSession_Lock_contextEnds(t *testing.T) {
	for name, end := range map[string]func(e *env, cancel func()){
		"before": func(_ *env, cancel func()) { cancel() },
		"while the server answers": func(e *env, cancel func()) {
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: time.Second})
			time.AfterFunc(time.Second/2, cancel)
		},
		"after the answer": func(e *env, cancel func()) { e.c.EditAnswers(func(fakeetcd.Method, any) { cancel() }) },
	} {
		for how, take := range takes {
			bubbleOf(t, how+" "+name, func(t *testing.T, e *env) {
				ctx, cancel := context.WithCancelCause(t.Context())
				end(e, func() { cancel(errMine) })
				_, err := take(e.s, ctx, "a")
				require.ErrorIs(t, err, errMine)
				require.ErrorContains(t, err, `lease: lock "a":`)
				require.NotErrorIs(t, err, lease.ErrLost)
				synctest.Wait()
				require.Empty(t, e.keys(""))
				require.Equal(t, name == "before", len(e.c.Calls(fakeetcd.Txn)) == 0)
			})
		}
	}
}

// A context may end with any cause, such as an error of etcd about something else. It does not end the session's lease, and
// the error does not explain it.
func TestSession_Lock_contextEndsWithAnErrorOfEtcd(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		e.join(t).lock(t, "b")
		for _, cause := range []error{rpctypes.ErrLeaseNotFound, rpctypes.ErrPermissionDenied} {
			ctx, cancel := context.WithCancelCause(t.Context())
			got := later(func() error { return second(e.s.Lock(ctx, "b")) })
			synctest.Wait()
			cancel(cause)
			err := receive(t, got)
			require.ErrorIs(t, err, cause)
			require.NotContains(t, err.Error(), "it takes permission")
			requireLive(t, l)
		}
	})
}

// A revision that no token can hold is an error, and the key is deleted.
func TestSession_Lock_revisionBeyondTheToken(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.EditAnswers(func(_ fakeetcd.Method, answer any) {
			if resp, ok := answer.(*pb.TxnResponse); ok {
				resp.Header.Revision = 1 << 48
			}
		})
		require.ErrorIs(t, second(e.s.TryLock(t.Context(), "a")), fence.ErrInvalidToken)
		synctest.Wait()
		calls := e.c.Calls(fakeetcd.Txn)
		require.Len(t, calls, 2)
		deletion := calls[1].Request.(*pb.TxnRequest).Success[0].GetRequestTxn()
		require.Equal(t, e.keys("")[0], string(deletion.Success[0].GetRequestDeleteRange().Key))
		require.Equal(t, int64(1<<48), deletion.Compare[0].GetCreateRevision()) // not the revision that the fake has
	})
}

// A final refusal is returned at once and not retried.
func TestSession_Lock_refused(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: errDenied})
		for _, take := range takes {
			_, err := take(e.s, t.Context(), "a")
			require.ErrorContains(t, err, "permission denied")
			require.ErrorContains(t, err, `permission to read and write the keys with the prefix "a/", and to write every key attached`)
		}
		require.ErrorContains(t, second(e.s.LockAll(t.Context(), "b", "c")), `with the prefix "b/", and likewise for the other names, and to write`)
		require.ErrorContains(t, second(e.s.LockTree(t.Context(), "d/e")), `with the prefix "d/", and to write`)
		e.at(time.Minute)
		require.Len(t, e.c.Calls(fakeetcd.Txn), 4)
		for err, says := range map[error]string{
			rpctypes.ErrGRPCTooManyOps:      "the server's --max-txn-ops is too low, want 4 or more, and twice the number of names of a set",
			rpctypes.ErrGRPCRequestTooLarge: "and the server's --max-request-bytes",
			status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2 vs. 1)"): "see the client's MaxCallRecvMsgSize",
		} {
			e.c.Reset()
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Err: err})
			require.ErrorContains(t, second(e.s.LockAll(t.Context(), "b", "c")), says)
		}
	})
}

// A lease that is gone, which the session does not know yet, is replaced.
func TestSession_Lock_replacesALeaseThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, name := range []string{"a", "b", "c"} { // without waiters behind the lost lock, which would be lost with it
			old := e.s.Status().LeaseID
			before := e.lock(t, "before")
			require.NoError(t, e.srv.Revoke(old))
			l := granted(t, e.wait(t.Context(), name)).lock
			require.Equal(t, []clientv3.LeaseID{e.s.Status().LeaseID}, e.leaseIDs())
			requireLost(t, context.Cause(before.Context()), lease.ReasonLeaseGone)
			requireLive(t, l)
		}
		require.Len(t, e.c.Calls(fakeetcd.Grant), 4)
		require.Len(t, e.keys(""), 1)
	})
}

// If a new lease is refused, all acquisitions that wait for it get the error, and the next one asks again.
func TestSession_Lock_newLeaseIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startLost(t)
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{Times: 1, Before: time.Second, Err: errDenied})
		one, two := e.wait(t.Context(), "a"), e.wait(t.Context(), "b")
		for _, next := range []<-chan acquired{one, two} {
			got := receive(t, next)
			require.ErrorContains(t, got.err, "take a new lease: etcdserver: permission denied")
			require.NotErrorIs(t, got.err, lease.ErrClosed)
			require.Equal(t, third+time.Second, got.at)
		}
		require.Len(t, e.c.Calls(fakeetcd.Grant), 2, "one request for all waiters")
		e.lock(t, "a")
		require.Equal(t, lease.StateHeld, e.s.Status().State)
	})
}

// A lock or a set that has entered past a stray key, and then is refused the read of who is first, is deleted once: no
// request of it can still arrive.
func TestSession_TryLock_refusedAfterEntering(t *testing.T) {
	for name, try := range map[string]func(context.Context, *lease.Session) error{
		"lock": func(ctx context.Context, s *lease.Session) error { return second(s.TryLock(ctx, "a")) },
		"set":  func(ctx context.Context, s *lease.Session) error { return second(s.TryLockAll(ctx, "a", "b")) },
	} {
		for _, refusal := range []error{errDenied, rpctypes.ErrGRPCRequestTooManyRequests} {
			inBubble(t, name+" "+refusal.Error(), func(t *testing.T) {
				left, hooks := cleanUps()
				e := start(t, lease.Options{Hooks: hooks})
				e.srv.Put("a/planted", "")
				gets := 0
				e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Err: refusal, Match: func(fakeetcd.Call) bool { gets++; return gets > 1 }})
				require.Error(t, try(timeout(t, time.Second), e.s))
				e.c.Reset()
				e.at(time.Minute)
				require.Equal(t, []string{"a/planted"}, e.keys(""))
				require.Zero(t, left.Load())
			})
		}
	}
}

// cleanUps returns hooks that count the keys that are to be deleted in the background.
func cleanUps() (left *atomic.Int64, hooks *lease.Hooks) {
	left = new(atomic.Int64)
	return left, &lease.Hooks{CleanUp: func(_ clientv3.LeaseID, keys int) { left.Store(int64(keys)) }}
}

// Errors of an overloaded, full or restarting server are retried, whether or not the server carried out the request: no
// caller sees them, and no key stays behind.
func TestSession_retriesTransientErrors(t *testing.T) {
	for _, err := range []error{
		status.Error(codes.Unknown, "raft proposal dropped"), // the leader is being moved
		rpctypes.ErrGRPCNoSpace,
		rpctypes.ErrGRPCCorrupt,
		rpctypes.ErrGRPCRequestTooManyRequests, // the server is thousands of commits behind
		status.Error(codes.Canceled, "proxy: shutting down"),
	} {
		for name, lose := range map[string]fakeetcd.Message{"not done": fakeetcd.Request, "done": fakeetcd.Answer} {
			if name == "done" && errors.Is(err, rpctypes.ErrGRPCRequestTooManyRequests) {
				continue // that one is refused before it is carried out
			}
			bubbleOf(t, status.Convert(err).Message()+", "+name, func(t *testing.T, e *env) {
				fail := func(m fakeetcd.Method) {
					e.c.Inject(m, fakeetcd.Fault{Times: 5, Lose: lose, Err: err})
				}
				fail(fakeetcd.Txn)
				l := granted(t, e.wait(t.Context(), "a")).lock
				waiting := e.line(t, "a", 2)
				fail(fakeetcd.Txn)
				other := e.lock(t, "b")
				require.Len(t, e.keys(""), 2)
				fail(fakeetcd.Txn)
				require.NoError(t, l.Unlock(t.Context()))
				got := granted(t, waiting[0])
				fail(fakeetcd.Txn)
				require.NoError(t, got.lock.Unlock(t.Context()))
				got = granted(t, waiting[1])
				fail(fakeetcd.Txn)
				require.NoError(t, got.lock.Unlock(t.Context()))
				require.NoError(t, other.Unlock(t.Context()))
				require.Less(t, e.now(), time.Minute)
				require.Empty(t, e.keys(""))
				fail(fakeetcd.Revoke)
				require.NoError(t, e.s.Close(t.Context()))
				require.Empty(t, e.srv.Leases())
			})
		}
	}
}

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
	bubbleWith(t, lease.Options{Owner: "we", Prefix: "p/", Era: 3}, func(t *testing.T, e *env) {
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
	with := func(t *testing.T, late time.Duration) (e, other, third *env, left *atomic.Int64) {
		t.Helper()
		left, hooks := cleanUps()
		e = start(t, lease.Options{TTL: time.Hour, Hooks: hooks}) // attempts of 5 s
		e.srv.Put("a/nested/x", "")
		require.NoError(t, e.lock(t, "a").Unlock(t.Context())) // e knows that "a" has nested names
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: leaves, Before: late, Late: true})
		return e, e.join(t), e.join(t), left
	}
	inBubble(t, "it is not late: nothing is left to clean up", func(t *testing.T) {
		e, other, _, left := with(t, 0)
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
		e, other, third, _ := with(t, 8*time.Second)
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
		e, other, third, _ := with(t, 1100*time.Millisecond)
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
		e, other, third, _ := with(t, 5100*time.Millisecond)
		l := other.lock(t, "a") // in the turnstile
		waiting := e.waitPermit(t.Context(), "a", 1)
		e.at(2 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		got := granted(t, waiting).lock
		next := third.waitPermit(t.Context(), "a", 1)
		requireExclusive(t, e, got, next)
	})
	inBubble(t, "a permit, and the request to leave is refused", func(t *testing.T) {
		e, other, _, _ := with(t, 0)
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
