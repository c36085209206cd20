package integration_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// pain 20, and pain 17: one renewal serves all locks of a session, those held and those that come and go, and etcd's
// client has no queue of answers that could be full. Not parallel, because of the variable that it sets.
func TestSession_renewsOnceForAllLocks(t *testing.T) {
	queue := clientv3.LeaseResponseChSize
	clientv3.LeaseResponseChSize = 1 // or else it would take 16 renewals to fill the queue
	defer func() { clientv3.LeaseResponseChSize = queue }()
	core, logs := observer.New(zap.InfoLevel)
	in := faults.NewInterceptor(t)
	client := etcdtest.Start(t, etcdtest.Options{}).Client(t, etcdtest.Dial(in.DialOptions()...),
		func(cfg *clientv3.Config) { cfg.Logger = zap.New(core) })
	const ttl, locks, renewals = 3 * time.Second, 200, 4
	s := newSession(t, client, lease.Options{TTL: ttl})
	id := s.Status().LeaseID
	held := make([]*lease.Lock, locks)
	ctx := bounded(t)
	var wg sync.WaitGroup
	for i := range held {
		wg.Go(func() {
			var err error
			held[i], err = s.Lock(ctx, fmt.Sprintf("held/%d", i))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed())

	requireRenewed(t, s, id)
	start, sent := time.Now(), in.Sent(faults.LeaseKeepAlive)
	busy, stop := context.WithCancel(ctx)
	for i := range 4 {
		wg.Go(func() {
			for busy.Err() == nil {
				l, err := s.Lock(ctx, fmt.Sprintf("busy/%d", i))
				if err == nil {
					err = l.Unlock(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	require.NoError(t, in.AwaitSent(busy, faults.LeaseKeepAlive, sent+renewals))
	elapsed := time.Since(start)
	stop()
	wg.Wait()
	// They are a third of the TTL apart. On a busy machine one may have been repeated.
	require.Greater(t, elapsed, (renewals-1)*ttl/3-ttl/10, "renewed too often")
	for _, l := range held {
		require.NoError(t, context.Cause(l.Context()))
	}
	require.Empty(t, logs.FilterMessageSnippet("keepalive").All())
}

// pain 18: the session's goroutines are few, and their number does not depend on how many calls there were. Not parallel,
// since it counts all goroutines of the process.
func TestSession_callsLeaveNoGoroutines(t *testing.T) {
	s := newSession(t, etcdtest.Start(t, etcdtest.Options{}).Client(t), lease.Options{})
	const calls, few = 300, 30 // the server starts some of its own
	ctx := bounded(t)
	cycle := func() {
		l, err := s.Lock(ctx, "name")
		require.NoError(t, err)
		_, err = s.TryLock(ctx, "name")
		require.ErrorIs(t, err, lease.ErrLocked)
		require.NoError(t, l.Unlock(ctx))
	}
	cycle()
	before := runtime.NumGoroutine()
	for range calls {
		cycle()
	}
	for start := time.Now(); runtime.NumGoroutine() > before+few; time.Sleep(5 * time.Millisecond) {
		require.Less(t, time.Since(start), patience, "goroutines: %d before and %d after", before, runtime.NumGoroutine())
	}
}

// pain 19: renewal ends with the session, and with the lease; an abandoned lease expires.
func TestSession_stopsRenewing(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	other := newSession(t, srv.Client(t), lease.Options{TTL: minTTL})
	for _, tt := range []struct {
		name string
		end  func(*testing.T, *faultyLink, *lease.Session, *lease.Lock)
	}{
		{"closed", func(t *testing.T, _ *faultyLink, s *lease.Session, _ *lease.Lock) {
			t.Helper()
			require.NoError(t, s.Close(bounded(t)))
		}},
		{"closed while cut off", func(t *testing.T, link *faultyLink, s *lease.Session, _ *lease.Lock) {
			t.Helper()
			link.proxy.BlackHole()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.Close(ctx), context.DeadlineExceeded)
		}},
		{"lost", func(t *testing.T, link *faultyLink, _ *lease.Session, l *lease.Lock) {
			t.Helper()
			link.proxy.BlackHole()
			require.ErrorIs(t, awaitDone(t, l), lease.ErrLost)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			link := newFaultyLink(t, srv)
			s := newSession(t, link.client, lease.Options{TTL: minTTL})
			l := mustLock(t, s, tt.name)
			id := s.Status().LeaseID
			requireRenewed(t, s, id)

			tt.end(t, link, s, l)
			link.proxy.Restore()
			for start := time.Now(); slices.Contains(srv.Leases(t), id); time.Sleep(5 * time.Millisecond) {
				require.Less(t, time.Since(start), patience, "the lease stays")
			}
			sent := link.in.Sent(faults.LeaseKeepAlive)
			for range 2 { // as long as it takes to renew twice
				requireRenewed(t, other, other.Status().LeaseID)
			}
			require.Equal(t, sent, link.in.Sent(faults.LeaseKeepAlive))
		})
	}
}
