package network_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// sickHolder is a session with a hold; its endpoints will be dead in turn.
type sickHolder struct {
	name     string
	in       *faults.Interceptor
	session  *lease.Session
	id       clientv3.LeaseID
	hold     *lease.Lock
	next     <-chan *lease.Lock // receives the lock of the waiter behind it
	answered int                // renewals answered before the present endpoint died
}

// Each of three endpoints is dead for more than a TTL: it accepts connections and never answers. No session loses its
// lease or its hold, and all waiters are served while the last of them is dead.
func TestNetwork_oneOfThreeEndpointsDead(t *testing.T) {
	t.Parallel()
	const ttl, sessions, renewals = 5 * time.Second, 8, 4
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Client(t)
	proxies, addrs := rig.NewProxies(t, cluster.Endpoints())
	var holders []*sickHolder
	for i := range sessions {
		h := &sickHolder{name: fmt.Sprint(i), in: faults.NewInterceptor(t)}
		client := etcdtest.NewClient(t, addrs, etcdtest.Dial(h.in.DialOptions()...))
		h.session = rig.NewSession(t, client, lease.Options{TTL: ttl})
		h.id = h.session.Status().LeaseID
		h.hold = rig.MustLock(t, h.session, h.name)
		holders = append(holders, h)
	}
	// Each session also waits for the next one's name, through the same proxies.
	for i, h := range holders {
		h.next = rig.Wait(t, holders[(i+1)%len(holders)].session, h.name)
	}
	for _, h := range holders {
		rig.AwaitQueue(t, direct, h.name, 2)
	}

	// gRPC chooses at random where a session renews, and each of these is dead once.
	unanswered := 0
	for i, dead := range proxies {
		for _, h := range holders {
			h.answered = h.in.Answered(faults.LeaseKeepAlive)
		}
		if i > 0 {
			proxies[i-1].Restore()
		}
		dead.BlackHole()
		for _, h := range holders {
			require.NoError(t, h.in.AwaitAnswered(rig.Bounded(t), faults.LeaseKeepAlive, h.answered+renewals))
			require.NoError(t, h.hold.Err())
			require.Equal(t, h.id, h.session.Status().LeaseID)
			unanswered += h.in.Sent(faults.LeaseKeepAlive) - h.in.Answered(faults.LeaseKeepAlive)
		}
	}
	require.Positive(t, unanswered, "no renewal went to a dead endpoint")

	for _, h := range holders {
		require.NoError(t, h.hold.Unlock(rig.Bounded(t)))
		next := rig.Await(t, h.next, "a waiter was not served")
		require.Greater(t, next.Token(), h.hold.Token())
		require.NoError(t, next.Unlock(rig.Bounded(t)))
	}
	for _, h := range holders {
		require.Equal(t, h.id, h.session.Status().LeaseID)
	}
	proxies[2].Restore()
}

func TestMain(m *testing.M) { etcdtest.Main(m) }

// The answer to the request for a lease is lost. The client repeats the request by itself, and the server refuses the
// ID, which the lost request has used. The session takes another one. Package fakeetcd has no connection, so it cannot
// show this.
func TestNewSession_lostGrant(t *testing.T) {
	t.Parallel()
	srv, in := etcdtest.Start(t, etcdtest.Options{}), faults.NewInterceptor(t)
	lost := in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.LeaseGrant, Times: 1})
	s, err := lease.NewSession(rig.Bounded(t), srv.Client(t, etcdtest.Dial(in.DialOptions()...)), lease.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, lost.Hits())
	require.Equal(t, 3, in.Sent(faults.LeaseGrant))
	require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))
	require.NoError(t, s.Close(rig.Bounded(t)))
	left, err := srv.Client(t).Leases(rig.Bounded(t))
	require.NoError(t, err)
	require.Len(t, left.Leases, 1, "the lost one, which expires by itself")
}
