package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

// One of three endpoints accepts connections and never answers. Leaders that share a client, so that their requests
// meet the dead endpoint at irregular times, go on leading.
func TestElector_oneOfThreeEndpointsDead(t *testing.T) {
	const electors, renewals = 5, 10
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	proxies, addrs := rig.NewProxies(t, cluster.Endpoints())
	in := faults.NewInterceptor(t)
	client := etcdtest.NewClient(t, addrs, etcdtest.Dial(in.DialOptions()...))
	var terms []*term
	begun := make(chan *term, electors)
	lost := make(chan string, electors)
	for i := range electors {
		start(t, client, fmt.Sprint(name, i), begun)
		led := rig.Await(t, begun, "nobody leads")
		context.AfterFunc(led.work, func() { lost <- led.Describe() })
		terms = append(terms, led)
	}

	dead := proxies[0]
	dead.BlackHole()
	t.Cleanup(dead.Restore) // runs before the electors release
	began := time.Now()
	watch := etcdtest.NewClient(t, cluster.Endpoints()[:1]).Watch(t.Context(), key, clientv3.WithPrefix())
	written := make(map[string]int) // renewals
	for done := 0; done < electors; {
		select {
		case resp := <-watch:
			require.NoError(t, resp.Err())
			for _, event := range resp.Events {
				k := string(event.Kv.Key)
				if written[k]++; written[k] == renewals {
					done++
				}
			}
		case k := <-lost:
			require.FailNow(t, "leadership lost", "%s, after %v, with %v", k, time.Since(began), written)
		case <-time.After(rig.Patience):
			require.FailNow(t, "there are no renewals", "%v", written)
		}
	}
	unanswered := in.Sent(faults.Txn) - in.Answered(faults.Txn)
	t.Logf("%d renewals each in %v, %d requests to write a record and %d to renew a lease not answered", renewals, time.Since(began), unanswered,
		in.Sent(faults.LeaseKeepAlive)-in.Answered(faults.LeaseKeepAlive))
	require.Greater(t, unanswered, electors*renewals/5, "too few requests reached the dead endpoint to prove anything")
	for _, led := range terms {
		require.NoError(t, led.work.Err())
		require.Empty(t, led.over)
		token, ok := led.Token()
		require.True(t, ok)
		require.Equal(t, led.token, token)
	}
}
