package lease_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

const watchAfter = 250 * time.Millisecond

// Anything that somebody else does to the lock ends the handle at once, with the reason, and is reported once.
func TestLock_noticesWhatOthersDo(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(*env, *lease.Lock)
		reason lease.Reason
	}{
		"revoke":    {func(e *env, _ *lease.Lock) { _ = e.srv.Revoke(e.s.Status().LeaseID) }, lease.ReasonLeaseGone},
		"delete":    {func(e *env, l *lease.Lock) { e.srv.Delete(l.Key()) }, lease.ReasonKeyDeleted},
		"overwrite": {func(e *env, l *lease.Lock) { e.srv.Put(l.Key(), "mine") }, lease.ReasonKeyOverwritten},
	} {
		all := tc.reason == lease.ReasonLeaseGone // the session's other locks are lost too
		for when, at := range map[string]time.Duration{"watched": time.Second, "before the watch": watchAfter / 2} {
			bubbleOf(t, name+" "+when, func(t *testing.T, e *env) {
				id := e.s.Status().LeaseID
				l, other := e.lock(t, "a"), e.lock(t, "b")
				end := e.ended(l)
				e.at(at)
				tc.do(e, l)
				require.Equal(t, max(at, watchAfter), receive(t, end))
				lost := lossOf(t, context.Cause(l.Context()), tc.reason)
				require.Equal(t, id, lost.LeaseID)
				synctest.Wait()
				if all {
					require.Empty(t, lost.Key)
					requireLost(t, context.Cause(other.Context()), tc.reason)
					require.Equal(t, lease.StateLost, e.s.Status().State)
				} else {
					require.Equal(t, l.Key(), lost.Key)
					requireLive(t, other)
					require.Equal(t, lease.StateHeld, e.s.Status().State)
				}
				require.Equal(t, tc.reason == lease.ReasonKeyOverwritten, len(e.keys("a/")) == 1, "until Unlock")
				e.at(time.Minute)
				told := "lock lost"
				if all {
					told = "lease lost"
				}
				require.Equal(t, 1, strings.Count(e.log.String(), told), e.log.String())
				require.NotContains(t, e.log.String(), "<nil>")

				require.Same(t, lost, lossOf(t, l.Unlock(t.Context()), tc.reason))
				require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrUnlocked)
				require.NotErrorIs(t, l.Unlock(t.Context()), lease.ErrLost)
				requireLost(t, context.Cause(l.Context()), tc.reason)
				synctest.Wait()
				require.Empty(t, e.keys("a/"), "an overwritten key is ours to delete")
			})
		}
	}
}

// Keys without a watch are read a little more often than once in each third of the TTL.
func TestLock_readsWhatIsNotWatched(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 300 { // 256 have a watch
			e.lock(t, fmt.Sprint(i))
		}
		reads := func() int { return len(e.c.Calls(fakeetcd.Get)) + len(e.c.Calls(fakeetcd.Txn)) }
		e.at(time.Second)
		before := reads()
		e.at(time.Second + 30*third)
		require.InDelta(t, 32, reads()-before, 2)
	})
}

// In its last second a lease has a TTL of 0, since etcd rounds down: it is not gone, and the other locks on it are
// held.
func TestLock_keyDeletedInTheLastSecondOfTheLease(t *testing.T) {
	bubbleWith(t, lease.Options{TTL: 2 * time.Second}, func(t *testing.T, e *env) {
		l, other := e.lock(t, "a"), e.lock(t, "b")
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		e.at(1500 * time.Millisecond)
		require.True(t, e.srv.Delete(l.Key()))
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
		requireLive(t, other)
	})
}

// If the server does not answer what became of the lease, the handle still ends soon.
func TestLock_endsWithoutAReasonFromTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		end := e.ended(l)
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		e.at(time.Second)
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		require.Equal(t, time.Second+watchAfter, receive(t, end))
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
	})
}

// A waiter that has lost its place learns it at once, not when its turn comes.
func TestSession_Lock_waiterLosesItsPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(context.Context, *env)
		at     time.Duration
		reason lease.Reason
	}{
		"lease revoked":   {func(_ context.Context, e *env) { _ = e.srv.Revoke(e.s.Status().LeaseID) }, time.Second, lease.ReasonLeaseGone},
		"key deleted":     {func(_ context.Context, e *env) { e.srv.Delete(e.srv.Leases()[1].Keys[0]) }, time.Second, lease.ReasonKeyDeleted},
		"key overwritten": {func(_ context.Context, e *env) { e.srv.Put(e.srv.Leases()[1].Keys[0], "x") }, time.Second, lease.ReasonKeyOverwritten},
		"key taken to another lease": {func(ctx context.Context, e *env) {
			key := e.srv.Leases()[1].Keys[0]
			_, _ = e.c.Put(ctx, key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(e.srv.Leases()[0].ID))
		}, time.Second, lease.ReasonKeyOverwritten},
		"cut off":        {func(_ context.Context, e *env) { e.c.Cut() }, usable, lease.ReasonDeadlinePassed},
		"session closed": {func(ctx context.Context, e *env) { _ = e.s.Close(ctx) }, time.Second, lease.ReasonSessionClosed},
		"lost its renewal": {func(_ context.Context, e *env) {
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		}, usable, lease.ReasonDeadlinePassed},
	} {
		bubbleOf(t, name, func(t *testing.T, a *env) {
			l := a.lock(t, "a")
			a.at(1) // a's lease is the first to expire
			b := a.join(t)
			next := b.wait(t.Context(), "a")
			b.at(time.Second)
			tc.do(t.Context(), b)
			got := receive(t, next)
			require.Equal(t, tc.at, got.at)
			requireLost(t, got.err, tc.reason)
			requireLive(t, l)
			b.c.Restore()
			b.c.Reset()
			b.at(2 * ttl)
			require.Equal(t, []string{l.Key()}, a.keys(""))
		})
	}
}

// A watch on an endpoint that has fallen silent reports nothing, while the renewals go to another. With each renewal
// the session probes its watch stream. If that has not answered for half of the TTL, the watches are opened on another
// stream.
func TestLock_watchFallsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		end := e.ended(l)
		e.at(time.Second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		require.True(t, e.srv.Delete(l.Key()))
		at := receive(t, end)
		require.Greater(t, at, third+ttl/2-1)
		require.LessOrEqual(t, at, third+ttl/2+25*time.Millisecond, "with a pause before it is watched again")
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
	})
}

// All waits end with their contexts, also while etcd's client pauses before it opens its watches again.
func TestSession_waitsEndWhileTheClientReconnects(t *testing.T) {
	for name, wait := range map[string]func(context.Context, *env) error{
		"for a lock":   func(ctx context.Context, e *env) error { return second(e.s.Lock(ctx, "a")) },
		"for a permit": func(ctx context.Context, e *env) error { return second(e.s.Permit(ctx, "p", 1)) },
		"for changes": func(ctx context.Context, e *env) error {
			var errs []error
			for _, err := range lease.Watch(ctx, e.c.Client, "a") {
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
		"of a guard": func(ctx context.Context, e *env) error {
			_, err := e.s.Lock(ctx, "b")
			<-ctx.Done()
			return errors.Join(err, e.s.Close(context.WithoutCancel(ctx)))
		},
	} {
		bubbleOf(t, name, func(t *testing.T, a *env) {
			a.lock(t, "a")
			require.NoError(t, second(a.s.Permit(t.Context(), "p", 1)))
			b := a.join(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := later(func() error { return wait(ctx, b) })
			time.Sleep(time.Second)
			b.c.BreakWatches(fakeetcd.ErrUnavailable)
			synctest.Wait()
			cancel()
			synctest.Wait()
			require.Len(t, ended, 1, "it waits for the client")
		})
	}
}

// answeredWatches is a watcher on which some watches get one answer, and no events. It tells the streams apart by their metadata.
type answeredWatches struct {
	clientv3.Watcher

	mu     sync.Mutex // held during answer
	answer func(stream string, watch clientv3.Op) *clientv3.WatchResponse
}

func (a *answeredWatches) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	md, _ := metadata.FromOutgoingContext(ctx)
	a.mu.Lock()
	answer := a.answer(fmt.Sprint(md), clientv3.OpGet(key, opts...))
	a.mu.Unlock()
	if answer == nil {
		return a.Watcher.Watch(ctx, key, opts...)
	}
	events := make(chan clientv3.WatchResponse, 1)
	events <- *answer
	context.AfterFunc(ctx, func() { close(events) })
	return events
}

func refused(err error) *clientv3.WatchResponse {
	return &clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true, CancelReason: err.Error()}
}

// waitBehind makes a session hold the lock "a" and another, with the given answers to its watches, wait for it.
func waitBehind(t *testing.T, answer func(string, clientv3.Op) *clientv3.WatchResponse) (a, b *env, l *lease.Lock, next <-chan acquired) {
	t.Helper()
	a = start(t, lease.Options{})
	b = open(t, a.srv, lease.Options{}, func(c *fakeetcd.Client) { c.Watcher = &answeredWatches{Watcher: c.Watcher, answer: answer} })
	l = a.lock(t, "a")
	return a, b, l, b.wait(timeout(t, time.Hour), "a")
}

// While a watch lasts, so does its stream, with the auth token that the client had when it opened it. If the server
// refuses the next probe, the watches are opened on another stream, with another token: until then a waiter polls.
func TestSession_Lock_tokenOfTheWatchesExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, expired := "", false
		a, b, _, _ := waitBehind(t, func(stream string, _ clientv3.Op) *clientv3.WatchResponse {
			if first = cmp.Or(first, stream); stream == first && expired {
				return refused(rpctypes.ErrInvalidAuthToken)
			}
			return nil
		})
		expired = true
		l := a.lock(t, "b")
		next := b.wait(t.Context(), "b")
		a.at(third + time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, third+time.Second, granted(t, next).at)
	})
}

// A session that may not watch the key with which it probes says nothing of the stream, which others use too.
func TestSession_Lock_probeIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams := map[string]bool{}
		_, b, _, _ := waitBehind(t, func(stream string, watch clientv3.Op) *clientv3.WatchResponse {
			if strings.HasPrefix(string(watch.KeyBytes()), "forbidden/") {
				return refused(rpctypes.ErrPermissionDenied)
			}
			streams[stream] = true
			return nil
		})
		other, err := lease.NewSession(t.Context(), b.c.Client, lease.Options{})
		require.NoError(t, err)
		b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Err: errDenied, Match: writes})
		require.ErrorIs(t, second(other.TryLock(t.Context(), "forbidden")), rpctypes.ErrPermissionDenied)
		b.at(10 * time.Minute)
		require.NoError(t, other.Close(t.Context()))
		require.Len(t, streams, 1)
	})
}

// A member that lags confirms watches and shows no events. The second probe shows that it is behind what the session knew
// at the first.
func TestSession_Lock_watchLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := ""
		a, _, l, next := waitBehind(t, func(stream string, _ clientv3.Op) *clientv3.WatchResponse {
			if first = cmp.Or(first, stream); stream == first {
				return &clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: 1}, Created: true}
			}
			return nil
		})
		a.at(time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		got := granted(t, next)
		require.GreaterOrEqual(t, got.at, 2*third)
		require.LessOrEqual(t, got.at, 2*third+time.Second)
	})
}
