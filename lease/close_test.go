package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestSession_Close_endsEverything(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.join(t)
		held, theirs := e.lock(t, "a"), other.lock(t, "b")
		behindOurs, behindTheirs := e.wait(t.Context(), "a"), e.wait(t.Context(), "b")
		e.at(time.Second)
		require.NoError(t, e.s.Close(t.Context()))
		for _, err := range []error{context.Cause(held.Context()), receive(t, behindOurs).err, receive(t, behindTheirs).err, e.s.Status().Err} {
			requireLost(t, err, lease.ReasonSessionClosed)
			require.ErrorIs(t, err, lease.ErrClosed)
		}
		require.Equal(t, lease.StateLost, e.s.Status().State)
		require.Equal(t, []string{theirs.Key()}, e.keys(""))
		require.Equal(t, []clientv3.LeaseID{other.s.Status().LeaseID}, e.leaseIDs())
		requireLost(t, held.Unlock(t.Context()), lease.ReasonSessionClosed)
		require.ErrorIs(t, held.Unlock(t.Context()), lease.ErrUnlocked)

		n := len(e.c.Calls(fakeetcd.Any))
		for _, take := range takes {
			_, err := take(e.s, t.Context(), "c")
			require.ErrorIs(t, err, lease.ErrClosed)
			require.ErrorContains(t, err, `lock "c"`)
		}
		require.ErrorIs(t, e.s.Do(t.Context(), "c", nothing), lease.ErrClosed)
		e.at(time.Hour)
		require.Len(t, e.c.Calls(fakeetcd.Any), n)
		requireLive(t, theirs)
		require.NoError(t, theirs.Unlock(t.Context()), "Close leaves the client open")
	})
}

func nothing(context.Context, fence.Token) error { return nil }

// If etcd refuses to revoke the lease, because it has a key that we may not write, Close deletes our keys and says what
// remains. Further calls return the result of the first.
func TestSession_Close_again(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.lock(t, "a")
		e.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{Times: 1, Before: 2 * time.Second, Err: errDenied})
		first := later(func() error { return e.s.Close(t.Context()) })
		e.at(time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errMine)
		require.ErrorIs(t, e.s.Close(ctx), errMine)
		require.Equal(t, time.Second, e.now())
		again := e.s.Close(t.Context())
		require.ErrorContains(t, again, "permission denied (revoking a lease requires permission to write every key attached to it)")
		require.ErrorContains(t, again, fmt.Sprintf("lease %x expires by itself", int64(e.leaseIDs()[0])))
		require.Empty(t, e.keys(""))
		require.Equal(t, again, receive(t, first))
		require.Equal(t, again, e.s.Close(t.Context()))
		require.Len(t, e.c.Calls(fakeetcd.Revoke), 1)
	})
}

// Behind a black hole Close ends with its context, or after 10 s at most: the lease expires by itself.
func TestSession_Close_behindABlackHole(t *testing.T) {
	for name, tc := range map[string]struct {
		bound time.Duration // 0: none
		cut   time.Duration
		want  time.Duration
		told  error
	}{
		"ctx ends":             {2 * time.Second, time.Second, 3 * time.Second, errMine},
		"at once":              {1, time.Second, time.Second + 1, errMine},
		"without a bound":      {0, time.Second, 11 * time.Second, nil},
		"after a renewal":      {0, 15 * time.Second, 25 * time.Second, nil},
		"in jeopardy":          {0, third - 1, third + 10*time.Second - 1, nil},
		"ctx outlives a lease": {time.Hour, time.Second, 11 * time.Second, nil},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			end := e.ended(l)
			e.at(tc.cut)
			e.c.Cut()
			ctx := t.Context()
			if tc.bound > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, tc.bound, errMine)
				defer cancel()
			}
			err := receive(t, later(func() error { return e.s.Close(ctx) }))
			require.Equal(t, tc.want, e.now())
			require.Error(t, err)
			require.ErrorContains(t, err, "expires by itself")
			if tc.told != nil {
				require.ErrorIs(t, err, tc.told)
			}
			require.Equal(t, tc.cut, receive(t, end), "handles end at once, not with Close")
			n := len(e.c.Calls(fakeetcd.Any))
			e.at(time.Hour)
			require.Len(t, e.c.Calls(fakeetcd.Any), n, "no further requests")
			require.Empty(t, e.keys(""), "the lease has expired by itself")
		})
	}
}

// Acquisitions that wait for a new lease end with Close, and so does the request for it.
func TestSession_Close_whileHealing(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.at(time.Second)
		e.c.Cut()
		e.at(usable)
		one := e.wait(t.Context(), "a")
		two := e.wait(timeout(t, 5*time.Second), "b")
		e.at(2 * ttl)
		require.ErrorIs(t, receive(t, two).err, context.DeadlineExceeded)
		requirePending(t, one)
		require.NotEmpty(t, e.c.Calls(fakeetcd.Grant)[1:])
		err := e.s.Close(timeout(t, time.Second))
		require.Error(t, err)
		got := receive(t, one)
		require.ErrorIs(t, got.err, lease.ErrClosed)
		require.Equal(t, 2*ttl, got.at, "at once")
		require.LessOrEqual(t, e.now(), 2*ttl+time.Second)
		n := len(e.c.Calls(fakeetcd.Any))
		e.at(time.Hour)
		require.Len(t, e.c.Calls(fakeetcd.Any), n)
	})
}

// A lease that is granted while Close waits for a function is not used.
func TestSession_Close_asTheNewLeaseComesDuringWork(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		work := later(func() error {
			return e.s.Do(t.Context(), "a", func(context.Context, fence.Token) error {
				time.Sleep(time.Minute)
				return nil
			})
		})
		e.at(1)
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		e.at(third)
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{After: time.Second})
		next := e.wait(t.Context(), "b")
		done := later(func() error { return e.s.Close(t.Context()) })
		e.at(third + 2*time.Second)
		requirePending(t, done)
		require.ErrorIs(t, receive(t, next).err, lease.ErrClosed)
		require.ErrorIs(t, second(e.s.TryLock(t.Context(), "c")), lease.ErrClosed)
		require.Equal(t, lease.StateLost, e.s.Status().State)
		require.NoError(t, receive(t, done))
		require.Equal(t, time.Minute, e.now())
		require.ErrorIs(t, receive(t, work), lease.ErrLost)
		require.Empty(t, e.keys(""))
	})
}

// Close waits for the work, for as long as its context lasts, and does not revoke the lease under it.
func TestSession_Close_waitsForDo(t *testing.T) {
	const work = time.Minute
	for name, bound := range map[string]time.Duration{"to its end": time.Hour, "no longer than its context": time.Second} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			cause := make(chan error, 1)
			done := later(func() error {
				return e.s.Do(t.Context(), "a", func(ctx context.Context, _ fence.Token) error {
					<-ctx.Done()
					cause <- context.Cause(ctx)
					time.Sleep(work)
					return nil
				})
			})
			e.at(time.Second)
			closed := later(func() error { return e.s.Close(timeout(t, bound)) })
			e.at(time.Second + min(bound, work-1))
			require.Empty(t, e.c.Calls(fakeetcd.Revoke))
			require.Len(t, e.keys("a"), 1)
			err := receive(t, closed)
			require.Equal(t, time.Second+min(bound, work), e.now())
			if bound > work {
				require.NoError(t, err)
				require.Empty(t, e.leaseIDs())
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "functions under Do or Run, have not ended")
			}
			requireLost(t, receive(t, cause), lease.ReasonSessionClosed)
			require.ErrorIs(t, receive(t, done), lease.ErrClosed)
			e.at(2 * time.Minute)
			require.Empty(t, e.leaseIDs())
		})
	}
}

// With a context that has ended, Close blames nothing that does not run.
func TestSession_Close_contextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errMine)
		for range 20 { // a choice between two that are ready is random
			err := start(t, lease.Options{}).s.Close(ctx)
			require.ErrorIs(t, err, errMine)
			require.NotContains(t, err.Error(), "have not ended")
		}
	})
}

// Close revokes an earlier lease too, after the present one and within the same bound.
func TestSession_Close_withAnEarlierLease(t *testing.T) {
	for name, stuck := range map[string]int{"one revocation is lost": 1, "both are": 2} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			e.lock(t, "a")
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Answer})
			e.at(usable) // the session has lost its lease, which the server still has with the key of the lock
			e.c.Reset()
			e.lock(t, "b")
			leases := e.leaseIDs()
			require.Len(t, leases, 2)
			e.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{Lose: fakeetcd.Request, Match: func(call fakeetcd.Call) bool {
				return stuck == 2 || call.Request.(*pb.LeaseRevokeRequest).ID == int64(leases[0])
			}})
			require.ErrorContains(t, e.s.Close(t.Context()), fmt.Sprintf("lease %x expires by itself", int64(leases[0])))
			require.Equal(t, leases[:stuck], e.leaseIDs())
			require.Equal(t, usable+10*time.Second, e.now())
		})
	}
}

func TestSession_Close_boundedWhileAskingWhy(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		e.at(time.Second)
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		require.True(t, e.srv.Delete(l.Key()))
		synctest.Wait()
		require.NoError(t, e.s.Close(t.Context()))
		require.Equal(t, time.Second, e.now())
	})
}

// slowLog takes 20 ms for a line.
type slowLog struct{ strings.Builder }

func (w *slowLog) Write(line []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return w.Builder.Write(line)
}

// Close returns when a slow log has the last lines.
func TestSession_Close_writesTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log slowLog
		e := start(t, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		e.lock(t, "a")
		require.NoError(t, e.s.Close(t.Context()))
		require.Contains(t, log.String(), "new lease")
	})
}

// etcd deletes all keys of a revoked lease in one step. So for a lease with many keys, Close first deletes them in
// batches, for at most half of its time, and the remaining keys go with the lease.
func TestSession_Close_withVeryManyLocks(t *testing.T) {
	const bound = 4 * time.Second
	for name, row := range map[string]struct {
		locks int
		fault fakeetcd.Fault // for the batch with "a/7", or for all
		all   bool
		sent  int  // batches
		parts bool // and parts of a batch that was refused
		left  int  // keys when the lease is revoked
		took  time.Duration
	}{
		"few":           {locks: 999, left: 999},
		"many":          {locks: 1050, sent: 11},
		"a lost answer": {locks: 1050, fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}, sent: 11},
		"a refusal":     {locks: 1000, fault: fakeetcd.Fault{Err: errDenied}, sent: 10, parts: true, left: 1},
		"slow answers":  {locks: 1000, fault: fakeetcd.Fault{After: 300 * time.Millisecond}, all: true, sent: 7, left: 300, took: bound / 2},
		"no answers":    {locks: 1000, fault: fakeetcd.Fault{Lose: fakeetcd.Answer}, all: true, sent: 1, left: 900, took: bound / 2},
		"lost requests": {locks: 1000, fault: fakeetcd.Fault{Lose: fakeetcd.Request}, all: true, sent: 1, left: 1000, took: bound / 2},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			var wg sync.WaitGroup
			for i := range row.locks {
				wg.Go(func() {
					_, err := e.s.TryLock(t.Context(), fmt.Sprintf("a/%d", i))
					assert.NoError(t, err)
				})
			}
			wg.Wait()
			e.srv.Put("a/7/stranger", "")
			row.fault.Match = touches("a/7/")
			if row.all {
				row.fault.Match = writes
			}
			e.c.Inject(fakeetcd.Txn, row.fault)
			left := -1
			e.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{OnRequest: func() { left = len(e.keys("a/")) - 1 }})
			before, began := len(e.writes()), e.now()
			require.NoError(t, e.s.Close(timeout(t, bound)))
			require.Equal(t, row.left, left)
			batches := make(map[string]bool) // a batch that is sent again counts once
			for _, call := range e.writes()[before:] {
				require.LessOrEqual(t, len(call.Request.(*pb.TxnRequest).Success), 100)
				batches[call.Request.(*pb.TxnRequest).String()] = true
			}
			require.GreaterOrEqual(t, len(batches), row.sent)
			require.Equal(t, row.parts, len(batches) > row.sent)
			require.Equal(t, row.took, (e.now() - began).Truncate(time.Second))
			require.Equal(t, []string{"a/7/stranger"}, e.keys(""))
			require.Empty(t, e.leaseIDs())
		})
	}
}

// A key that somebody has put in a lock's place is not deleted with the lock.
func TestSession_Close_deletesOnlyItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 1000 {
			e.lock(t, fmt.Sprintf("a/%d", i))
		}
		taken := e.keys("a/0/")[0]
		e.srv.Put(taken, "another's")
		require.NoError(t, e.s.Close(t.Context()))
		require.Equal(t, []string{taken}, e.keys(""))
	})
}

// deaf is a lease client whose requests ignore their context.
type deaf struct {
	clientv3.Lease

	release chan struct{}
}

// Revoke implements [clientv3.Lease].
func (c deaf) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	<-c.release
	return c.Lease.Revoke(ctx, id)
}

// Close is bounded even if a request is not, and the renewals stop.
func TestSession_Close_isBoundedThoughTheClientBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		e := start(t, lease.Options{}, func(c *fakeetcd.Client) { c.Lease = deaf{c.Lease, release} })
		e.lock(t, "a")
		require.ErrorIs(t, e.s.Close(timeout(t, 5*time.Second)), context.DeadlineExceeded)
		require.Equal(t, 6*time.Second, e.now())
		e.at(2 * ttl)
		require.Empty(t, e.sent(fakeetcd.KeepAliveOnce))
		require.Empty(t, e.leaseIDs())
		close(release)
		require.ErrorIs(t, e.s.Close(t.Context()), context.DeadlineExceeded, "the first call has ended")
	})
}
