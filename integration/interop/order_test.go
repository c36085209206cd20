package interop_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// mustLead campaigns in an election without other candidates.
func mustLead(t *testing.T, s *lease.Session, name string, opts election.Options) *election.Leadership {
	t.Helper()
	l, err := election.Campaign(rig.Bounded(t), s, name, opts)
	require.NoError(t, err)
	return l
}

func leaderOf(kv *mvccpb.KeyValue) election.Leader {
	return election.Leader{
		Value: string(kv.Value), Revision: kv.CreateRevision,
		Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease),
	}
}

// values returns the values of leaders; "" stands for no leader.
func values(leaders []election.Leader) []string {
	list := make([]string, len(leaders))
	for i, l := range leaders {
		list[i] = l.Value
	}
	return list
}

// awaitOrder waits until the values of the candidates are in this order.
func awaitOrder(t *testing.T, srv *etcdtest.Server, name string, order ...string) {
	t.Helper()
	client := srv.Client(t)
	var all []election.Leader
	rig.Eventually(t, func() (reached bool) {
		var err error
		all, err = election.Candidates(rig.Bounded(t), client, name)
		require.NoError(t, err)
		return slices.Equal(values(all), order)
	}, func() string { return fmt.Sprintf("the order is %q, want %q", values(all), order) })
}

// mixedPeer is a candidate of etcd's own if its name is a capital letter.
func mixedPeer(t *testing.T, srv *etcdtest.Server, name string) interopPeer {
	t.Helper()
	if name[0] >= 'a' {
		return ourCandidate(t, srv, election.Options{Value: name})
	}
	if name[0]%2 == 0 {
		return etcdctlPeer(etcdtest.Etcdctl(t), srv, "elect", name)
	}
	return stockCandidate(t, srv, name)
}

// Transfer passes our candidates, and no candidate of etcd's own. The others lead in their order.
func TestLeadership_Transfer_amongEtcdsOwnCandidates(t *testing.T) {
	t.Parallel()
	for to, c := range map[string]struct {
		names, order []string
		blocked      bool
	}{
		"c": {names: []string{"a", "b", "c", "D", "e"}, order: []string{"c", "D", "e", "b"}},
		"C": {names: []string{"a", "b", "C", "D", "e"}, order: []string{"C", "D", "e", "b"}},
		"D": {names: []string{"a", "b", "D", "e"}, order: []string{"D", "e", "b"}},
		"e": {names: []string{"a", "b", "C", "d", "e"}, order: []string{"b", "C", "d", "e"}, blocked: true},
		"F": {names: []string{"a", "b", "C", "d", "F"}, order: []string{"b", "C", "d", "F"}, blocked: true},
	} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			first := rig.NewSession(t, srv.Client(t), lease.Options{})
			leader := mustLead(t, first, "job", election.Options{Value: c.names[0]})
			queue := map[string]*contender{}
			for _, name := range c.names[1:] {
				queue[name] = enterQueue(t, srv, mixedPeer(t, srv, name), "job")
			}
			err := leader.Transfer(rig.Bounded(t), to)
			if c.blocked {
				require.ErrorIs(t, err, election.ErrBlocked)
				require.NoError(t, leader.Err())
				awaitOrder(t, srv, "job", c.names...)
				require.NoError(t, leader.Resign(rig.Bounded(t)))
			} else {
				require.NoError(t, err)
			}
			awaitOrder(t, srv, "job", c.order...) // a candidate that was passed over enters again first
			observed := rig.Observe(t, srv.Client(t), "job")
			observed.AwaitValue(t, c.order[0])
			var led []election.Leader
			for i, name := range c.order {
				led = append(led, leaderOf(srv.KeyValues(t, queue[name].await(t).key)[0]))
				for _, later := range c.order[i+1:] {
					require.False(t, queue[later].done(), "%s leads while %s does", later, name)
				}
				queue[name].unlock(t)
			}
			observed.Sees(t, append(led, election.Leader{})...)
			observed.SeesNoMore(t)
			require.Empty(t, srv.Keys(t, "job/"))
		})
	}
}
