package interop_test

import (
	"context"
	"strconv"
	"strings"
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

// leadersOf returns the history of an election from the server's first revision to the present one. Each entry is a new
// leader, a new value of the same leader, or no leader.
func leadersOf(t *testing.T, srv *etcdtest.Server, name string) []election.Leader {
	t.Helper()
	last := srv.Revision(t)
	ctx, cancel := context.WithCancel(rig.Bounded(t))
	defer cancel()
	queue := map[string]election.Leader{}
	changes := []election.Leader{{}}
	for resp := range srv.Client(t).Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(1)) {
		require.NoError(t, resp.Err())
		for i, ev := range resp.Events {
			if standsIn(name, ev) {
				queue[string(ev.Kv.Key)] = leaderOf(ev.Kv)
			} else {
				delete(queue, string(ev.Kv.Key))
			}
			rev := ev.Kv.ModRevision
			if i+1 < len(resp.Events) && resp.Events[i+1].Kv.ModRevision == rev {
				continue // all events of one revision count as one change
			}
			var leader election.Leader
			for _, l := range queue {
				if leader.None() || l.Revision < leader.Revision {
					leader = l
				}
			}
			if leader != changes[len(changes)-1] {
				changes = append(changes, leader)
			}
			if rev >= last {
				return changes
			}
		}
	}
	require.FailNow(t, "the watch ended before the present revision", "%d: %v", last, ctx.Err())
	return nil
}

// standsIn reports whether the event puts a candidate's key of the election name.
func standsIn(name string, ev *clientv3.Event) bool {
	child, below := strings.CutPrefix(string(ev.Kv.Key), name+"/")
	owner, _, _ := strings.Cut(child, "-")
	return ev.Type == clientv3.EventTypePut && below && owner == strconv.FormatInt(ev.Kv.Lease, 16)
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
