package security_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// intervention is what an operator does to a key that is not theirs.
type intervention struct {
	want lease.Reason
	do   func(t *testing.T, operator *clientv3.Client, key string)
}

// asFarAsKnown is the reason that a handle's end gives. The key's end is all that is known of a revoked lease if the server
// does not answer at once what has become of it: the handle does not wait for that.
func (i intervention) asFarAsKnown(in *faults.Interceptor) lease.Reason {
	if i.want == lease.ReasonLeaseGone && in.Answered(faults.TimeToLive) == 0 {
		return lease.ReasonKeyDeleted
	}
	return i.want
}

// interventions are done with etcdctl in practice: lease revoke, del, put, put --lease.
func interventions() map[string]intervention {
	return map[string]intervention{
		"lease revoked": {lease.ReasonLeaseGone, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			resp, err := operator.Get(rig.Bounded(t), key)
			require.NoError(t, err)
			r, err := operator.Revoke(rig.Bounded(t), clientv3.LeaseID(resp.Kvs[0].Lease))
			must(t, r, err)
		}},
		"key deleted": {lease.ReasonKeyDeleted, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			r, err := operator.Delete(rig.Bounded(t), key)
			must(t, r, err)
		}},
		"key overwritten": {lease.ReasonKeyOverwritten, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			r, err := operator.Put(rig.Bounded(t), key, "mine")
			must(t, r, err)
		}},
		"key taken to another lease": {lease.ReasonKeyOverwritten, func(t *testing.T, operator *clientv3.Client, key string) {
			t.Helper()
			other, err := operator.Grant(rig.Bounded(t), 60)
			require.NoError(t, err)
			r, err := operator.Put(rig.Bounded(t), key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(other.ID))
			must(t, r, err)
		}},
	}
}

// Whatever an operator does to a key or its lease ends the tenure at once, by the watch and not by a renewal or the
// deadline, and says what was done. The next one has a greater token, and a resource that has seen it refuses the
// first.
func TestTenure_operatorTakesItAway(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for what, row := range interventions() {
		for _, way := range rig.Ways {
			t.Run(way.Name+", "+what, func(t *testing.T) {
				t.Parallel()
				in, dial := counted(t)
				opts := lease.Options{Prefix: t.Name() + "/", TTL: time.Minute}
				s := rig.NewSession(t, srv.Client(t, dial), opts)
				next := rig.NewSession(t, srv.Client(t), opts)
				held, err := way.Take(rig.Bounded(t), s, "n")
				require.NoError(t, err)
				var resource fence.Guard
				require.NoError(t, resource.Claim("r", held.Token()))
				waiter := make(chan *lease.Lock, 1)
				go func() {
					l, _ := next.Lock(rig.Bounded(t), "n")
					waiter <- l
				}()
				renewals := in.Sent(faults.LeaseKeepAlive)
				row.do(t, srv.Client(t), held.Key())
				cause := rig.AwaitEnd(t, held.Context())
				want := row.asFarAsKnown(in)
				rig.RequireLost(t, cause, want)
				require.Equal(t, renewals, in.Sent(faults.LeaseKeepAlive), "a renewal told it")
				rig.RequireLost(t, held.Free(rig.Bounded(t)), want)

				successor := <-waiter
				require.NotNil(t, successor)
				require.Greater(t, successor.Token(), held.Token())
				require.NoError(t, resource.Claim("r", successor.Token()))
				require.ErrorIs(t, resource.Check("r", held.Token()), fence.ErrStale)
				require.NoError(t, resource.Check("r", successor.Token()))
				require.NoError(t, successor.Unlock(rig.Bounded(t)))
				require.Equal(t, want == lease.ReasonLeaseGone, s.Status().State == lease.StateLost)
			})
		}
	}
}
