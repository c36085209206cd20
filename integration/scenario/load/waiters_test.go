package load_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Each of up to two thousand waiters gets one turn, and a turn costs the other waiters no requests.
func TestLoad_twoThousandWaiters(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{UnsafeNoFsync: true})
	direct := cluster.Client(t)
	for _, row := range []struct{ clients, waiters, requests int }{
		// In a process a turn is one request, which hands the key over. If it were a release and an entry, there would be two.
		{1, 2000, 3000},
		// Between processes a turn takes an entry, two watches with a read after each, and a release. On a slow machine the
		// holder's key gets a guard, another watch and a read, and requests are retried. If all other waiters read too, a turn
		// would take more than twenty requests.
		{20, 500, 15 * 500},
	} {
		t.Run(fmt.Sprintf("%d clients, %d waiters", row.clients, row.waiters), func(t *testing.T) {
			// Long enough for a busy machine.
			opts := lease.Options{TTL: 10 * time.Second}
			held := rig.MustLock(t, rig.NewSession(t, direct, opts), "n")
			in := faults.NewInterceptor(t) // of all waiters
			done := make(chan error, row.waiters)
			ctx := rig.Bounded(t)
			for range row.clients {
				s := rig.NewSession(t, cluster.Client(t, etcdtest.Dial(in.DialOptions()...)), opts)
				for range row.waiters / row.clients {
					go func() {
						l, err := s.Lock(ctx, "n")
						if err == nil {
							err = l.Unlock(ctx)
						}
						done <- err
					}()
				}
			}
			rig.AwaitQueue(t, direct, "n", 1+row.clients) // only the first waiter of each session is in etcd's queue
			asked := func() int { return in.Sent(faults.Txn) + in.Sent(faults.Range) + in.Sent(faults.Watch) }
			before, begun := asked(), time.Now()
			require.NoError(t, held.Unlock(rig.Bounded(t)))
			for range row.waiters {
				require.NoError(t, <-done)
			}
			requests := asked() - before
			t.Logf("%d turns in %v, %d requests", row.waiters, time.Since(begun), requests)
			require.Less(t, requests, row.requests)
			rig.AwaitQueue(t, direct, "n", 0)
		})
	}
}
