package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestRelease_waits(t *testing.T) {
	wait := lease.ReleaseOptions{Mode: lease.ReleaseWait}
	for name, end := range map[string]func(context.Context, *env, *lease.Lock) (latest time.Duration){
		"unlocked": func(ctx context.Context, _ *env, l *lease.Lock) time.Duration { _ = l.Unlock(ctx); return time.Second },
		"cut off":  func(_ context.Context, e *env, _ *lease.Lock) time.Duration { e.c.Cut(); return ttl + time.Second },
		"revoked": func(_ context.Context, e *env, _ *lease.Lock) time.Duration {
			_ = e.srv.Revoke(e.s.Status().LeaseID)
			return time.Second
		},
		"deleted": func(_ context.Context, e *env, l *lease.Lock) time.Duration {
			e.srv.Delete(l.Key())
			return time.Second
		},
		"taken off its lease": func(_ context.Context, e *env, l *lease.Lock) time.Duration {
			e.srv.Put(l.Key(), "")
			return time.Second
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l, looking := e.lock(t, "a"), e.srv.NewClient(t.Context())
			require.ErrorIs(t, lease.Release(timeout(t, time.Hour), looking.Client, "a", wait), context.DeadlineExceeded)
			requireLive(t, l)
			began, done := time.Now(), later(func() error { return lease.Release(t.Context(), looking.Client, "a", wait) })
			synctest.Wait()
			latest := end(t.Context(), e, l)
			require.NoError(t, receive(t, done))
			require.LessOrEqual(t, time.Since(began), latest)
			for _, call := range looking.Calls(fakeetcd.Any) {
				require.False(t, writes(call), "it writes nothing")
			}
		})
	}
}

// oblivious is a member that knows no lease.
type oblivious struct{ clientv3.Lease }

func (oblivious) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{TTL: -1}, nil
}

// A lease that one member does not know may still live. Only if the cluster does not know it, its key is deleted, and
// no other key.
func TestRelease_waits_keyWithoutItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l, bystander, looking := e.lock(t, "a"), e.lock(t, "b"), e.srv.NewClient(t.Context())
		looking.Lease = oblivious{looking.Lease}
		wait := lease.ReleaseOptions{Mode: lease.ReleaseWait}
		require.ErrorIs(t, lease.Release(timeout(t, time.Minute), looking.Client, "a", wait), context.DeadlineExceeded)
		requireLive(t, l)

		looking.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: puts, Err: rpctypes.ErrGRPCLeaseNotFound})
		require.NoError(t, lease.Release(t.Context(), looking.Client, "a", wait))
		require.Empty(t, e.keys("a"))
		requireLive(t, bystander)
	})
}
