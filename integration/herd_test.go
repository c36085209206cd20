package integration_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// traffic counts what clients ask of the server, renewals apart, and the watches that they have there.
type traffic struct {
	requests atomic.Int64 // a watch that is opened is one; its end is none
	watches  atomic.Int64
}

func countTraffic(in *faults.Interceptor) *traffic {
	c := new(traffic)
	in.OnRequest(func(method string, req any) {
		watch, ok := req.(*etcdserverpb.WatchRequest)
		if method != faults.LeaseKeepAlive && (!ok || watch.GetCreateRequest() != nil) {
			c.requests.Add(1)
		}
	})
	in.OnAnswer(func(_ string, _, reply any) {
		switch resp, ok := reply.(*etcdserverpb.WatchResponse); {
		case !ok:
		case resp.Created:
			c.watches.Add(1)
		case resp.Canceled:
			c.watches.Add(-1)
		}
	})
	return c
}

// settle waits until nothing more is asked and returns how much was.
func (c *traffic) settle() int64 {
	last := int64(-1)
	for last != c.requests.Load() {
		last = c.requests.Load()
		time.Sleep(time.Second / 2) // longer than it takes until a key is watched
	}
	return last
}

// requireIdle checks that nothing is asked for some time.
func (c *traffic) requireIdle(t *testing.T) {
	t.Helper()
	before := c.settle()
	time.Sleep(2 * time.Second) // the subject is that nothing happens
	require.Equal(t, before, c.requests.Load())
}

// TestLock_idleWaiters is pain 39: those who wait in one process cost as much as one of them, while they wait and when it
// is their turn.
func TestLock_idleWaiters(t *testing.T) {
	t.Parallel()
	for _, waiters := range []int{2, 1000} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			holder := mustLock(t, newSession(t, srv.Client(t), lease.Options{}), "n")
			rig := newLockRig(t, srv, lease.Options{})
			sent := countTraffic(rig.in)
			granted := make(chan *lease.Lock)
			ctx := bounded(t)
			for range waiters {
				go func() {
					l, err := rig.Lock(ctx, "n")
					if err != nil {
						t.Errorf("not granted: %v", err)
					}
					granted <- l
				}()
			}
			awaitQueue(t, srv, "n", 2)
			sent.requireIdle(t)
			require.Equal(t, int64(2), sent.watches.Load(), "of the one who stands in etcd's queue: its own key and the holder's")
			require.LessOrEqual(t, sent.requests.Load(), int64(6), "to enter, in two steps, two watches and a look after each")
			require.Len(t, srv.Keys(t, "n/"), 2)

			before := sent.requests.Load()
			begin := time.Now()
			require.NoError(t, holder.Unlock(bounded(t)))
			last := holder.Token()
			for range waiters {
				l := <-granted
				require.NotNil(t, l)
				require.Greater(t, l.Token(), last)
				last = l.Token()
				require.NoError(t, l.Unlock(bounded(t)))
			}
			turns := int64(waiters)
			// A key that stands for more than 250 ms, on a machine that is busy, is watched.
			t.Logf("%d requests for %d releases in %v", sent.requests.Load()-before, turns, time.Since(begin))
			require.GreaterOrEqual(t, sent.requests.Load()-before, turns)
			require.LessOrEqual(t, sent.requests.Load()-before, turns+turns/20+2)
			require.Empty(t, srv.Keys(t, "n/"))
		})
	}
}

// TestLock_herd is pain 39 for waiters that have nothing in common: a release wakes one of them, however many there are,
// and none has more than two watches.
func TestLock_herd(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{2, 50} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			holder := mustLock(t, newSession(t, srv.Client(t), lease.Options{}), "n")
			in := faults.NewInterceptor(t)
			sent := countTraffic(in)
			var waiting []*attempt
			for n := range clients {
				s := newSession(t, srv.Client(t, etcdtest.Dial(in.DialOptions()...)), lease.Options{})
				waiting = append(waiting, goLock(bounded(t), s, "n"))
				awaitQueue(t, srv, "n", n+2)
			}
			sent.requireIdle(t)
			require.LessOrEqual(t, sent.watches.Load(), int64(2*clients))

			before := sent.requests.Load()
			require.NoError(t, holder.Unlock(bounded(t)))
			for n, next := range waiting {
				l := next.granted(t)
				for _, later := range waiting[n+1:] {
					later.waiting(t)
				}
				require.NoError(t, l.Unlock(bounded(t)))
			}
			releases := int64(clients)
			t.Logf("%d requests for %d releases", sent.requests.Load()-before, releases)
			require.LessOrEqual(t, sent.requests.Load()-before, 2*releases, "a look for the next one, and Unlock")
			require.Empty(t, srv.Keys(t, "n/"))
		})
	}
}
