package lease_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

const watchAfter = 250 * time.Millisecond

func TestLock_isWatchedOnlyIfHeldForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.at(watchAfter - 1)
		require.NoError(t, l.Unlock(t.Context()))
		e.at(time.Second)
		require.Empty(t, e.c.Calls(fakeetcd.Watch))
		require.Empty(t, e.c.Calls(fakeetcd.Get))

		l = e.lock(t, "a")
		e.at(time.Minute)
		require.Equal(t, time.Second+watchAfter, e.sent(fakeetcd.Watch)[0])
		watches := slices.DeleteFunc(e.calls(), func(call fakeetcd.Call) bool { return call.Method != fakeetcd.Watch })
		require.Len(t, watches, 1)
		require.Equal(t, 1, e.srv.Watchers())
		require.NoError(t, l.Unlock(t.Context()))
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

// What somebody else does to the lock ends the handle at once, with the reason, and is told once.
func TestLock_noticesWhatOthersDo(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(*testing.T, *env, *lease.Lock)
		reason lease.Reason
		all    bool // the session's other locks are lost too
		stays  bool // the key is there until Unlock
	}{
		"revoke": {
			do: func(t *testing.T, e *env, _ *lease.Lock) {
				t.Helper()
				require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
			},
			reason: lease.ReasonLeaseGone, all: true,
		},
		"delete": {
			do:     func(t *testing.T, e *env, l *lease.Lock) { t.Helper(); require.True(t, e.srv.Delete(l.Key())) },
			reason: lease.ReasonKeyDeleted,
		},
		"overwrite": {
			do:     func(_ *testing.T, e *env, l *lease.Lock) { e.srv.Put(l.Key(), "mine") },
			reason: lease.ReasonKeyOverwritten, stays: true,
		},
	} {
		for when, at := range map[string]time.Duration{"watched": time.Second, "before the watch": watchAfter / 2} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log bytes.Buffer
					e := start(t, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
					id := e.s.Status().LeaseID
					l, other := e.lock(t, "a"), e.lock(t, "b")
					end := e.ended(l)
					e.at(at)
					tc.do(t, e, l)
					require.Equal(t, max(at, watchAfter), receive(t, end))
					lost := lossOf(t, context.Cause(l.Context()), tc.reason)
					require.Equal(t, id, lost.LeaseID)
					synctest.Wait()
					if tc.all {
						require.Empty(t, lost.Key)
						requireLost(t, context.Cause(other.Context()), tc.reason)
						require.Equal(t, lease.StateLost, e.s.Status().State)
					} else {
						require.Equal(t, l.Key(), lost.Key)
						requireLive(t, other)
						require.Equal(t, lease.StateHeld, e.s.Status().State)
					}
					require.Equal(t, tc.stays, len(e.keys("a/")) == 1)
					e.at(time.Minute)
					told := "lock lost"
					if tc.all {
						told = "lease lost"
					}
					require.Equal(t, 1, strings.Count(log.String(), told), log.String())

					require.Same(t, lost, lossOf(t, l.Unlock(t.Context()), tc.reason))
					require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrUnlocked)
					require.NotErrorIs(t, l.Unlock(t.Context()), lease.ErrLost)
					requireLost(t, context.Cause(l.Context()), tc.reason)
					synctest.Wait()
					require.Empty(t, e.keys("a/"), "an overwritten key is ours to delete")
				})
			})
		}
	}
}

// In its last second a lease has a TTL of 0, since etcd rounds down: it is not gone, and the other locks on it are held.
func TestLock_keyDeletedInTheLastSecondOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{TTL: 2 * time.Second})
		l, other := e.lock(t, "a"), e.lock(t, "b")
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		e.at(1500 * time.Millisecond)
		require.True(t, e.srv.Delete(l.Key()))
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
		requireLive(t, other)
	})
}

// If the server does not say what became of the lease, the handle ends all the same, and soon.
func TestLock_endsWithoutAReasonFromTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		end := e.ended(l)
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		e.at(time.Second)
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		require.Equal(t, time.Second+watchAfter, receive(t, end))
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
	})
}
