package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A restore that nothing reports brings a released key back on the lease. The session deletes it, and nothing else, as
// soon as it has a reason to look.
func TestSession_reclaimsKeysThatComeBack(t *testing.T) {
	for name, trouble := range map[string]func(e *env){
		"a renewal fails": func(e *env) {
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: rpctypes.ErrGRPCStopped, Times: 1})
		},
		"a renewal is not answered, and its stream is left": func(e *env) {
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Before: 3 * ttl})
		},
		"a stream breaks while no renewal is under way": func(e *env) { e.c.BreakKeepAlives(rpctypes.ErrGRPCStopped) },
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			id := e.s.Status().LeaseID
			gone := e.lock(t, "n")
			require.NoError(t, gone.Unlock(t.Context()))
			held := e.lock(t, "held")
			e.put(t, gone.Key(), "", id)
			others := fmt.Sprintf("n/%x-another", int64(id))
			e.put(t, others, "", id)
			time.Sleep(third + time.Second)
			require.ElementsMatch(t, []string{gone.Key(), others, held.Key()}, e.keys(""), "there is no reason to look")

			for range 2 { // as often as it comes back
				e.put(t, gone.Key(), "", id)
				trouble(e)
				time.Sleep(2 * ttl)
				synctest.Wait()
				require.ElementsMatch(t, []string{others, held.Key()}, e.keys(""))
			}
			require.NoError(t, held.Err())
			require.NoError(t, e.s.Close(t.Context()))
		})
	}
}

// A key that is released while the session looks has not come back.
func TestSession_reclaimsNothingReleasedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		e := start(t, lease.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		l := e.lock(t, "n")
		e.at(third - time.Second)
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: rpctypes.ErrGRPCStopped, Times: 1})
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{After: 2 * time.Second})
		e.at(third + time.Second)
		require.Len(t, e.c.Calls(fakeetcd.TimeToLive), 1, "the key is read, and the answer under way")
		require.NoError(t, l.Unlock(t.Context()))
		e.at(2 * third)
		require.NotContains(t, log.String(), "restored")
		again := e.lock(t, "n")
		require.Equal(t, l.Key(), again.Key(), "it may be used again")
		require.NoError(t, again.Unlock(t.Context()))
	})
}

// A session that holds nothing still notices a restore that takes revisions back, and releases the keys that came back.
func TestSession_endsWhenRevisionsGoBackWhileItHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, r := startRestored(t, lease.Options{})
		gone := e.lock(t, "n")
		require.NoError(t, gone.Unlock(t.Context()))
		e.put(t, gone.Key(), "", e.s.Status().LeaseID)
		r.back.Store(40)
		time.Sleep(third + time.Second)
		require.Equal(t, lease.StateLost, e.s.Status().State)
		time.Sleep(3 * third)
		require.Empty(t, e.keys("n/"), "nobody renews the lease")
		require.NoError(t, e.s.Close(t.Context()))
	})
}

// A finished call leaves nothing registered on the caller's context, which may live as long as the process, nor on the
// session's, and no guard of a key.
func TestSession_callsLeaveNothingRegistered(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, ctx context.Context, e, other *env){
		"Lock that waits": func(t *testing.T, ctx context.Context, e, other *env) {
			t.Helper()
			held := other.lock(t, "a")
			next, last := e.wait(ctx, "a"), e.wait(ctx, "a")
			time.Sleep(time.Second)
			require.NoError(t, held.Unlock(ctx))
			require.NoError(t, receive(t, next).lock.Unlock(ctx))
			require.NoError(t, receive(t, last).lock.Unlock(ctx))
		},
		"Lock that is given up": func(t *testing.T, ctx context.Context, e, other *env) {
			t.Helper()
			held := other.lock(t, "a")
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, second(e.s.Lock(short, "a")), context.DeadlineExceeded)
			short, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, second(e.s.LockAll(short, "a", "b")), context.DeadlineExceeded)
			require.NoError(t, held.Unlock(ctx))
			time.Sleep(time.Second) // until its key is deleted
		},
		"Do": func(t *testing.T, ctx context.Context, e, _ *env) {
			t.Helper()
			require.NoError(t, e.s.Do(ctx, "a", nothing))
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			other := e.join(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			registered := func() int {
				e.at(e.now() + time.Second)
				return e.s.Registered(ctx)
			}
			call(t, ctx, e, other)
			before := registered()
			for range 10 {
				call(t, ctx, e, other)
			}
			require.Equal(t, before, registered())
			require.Empty(t, e.c.Calls(fakeetcd.TimeToLive), "nobody asks why a key is gone that the session has deleted")
		})
	}
}
