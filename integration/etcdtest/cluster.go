package etcdtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaderTimeout bounds the wait for an election.
const leaderTimeout = 30 * time.Second

// Cluster is a set of etcd members in the test's process that form one cluster.
type Cluster struct {
	// Members are all members, in a fixed order, running or not.
	Members []*Server
}

// StartCluster runs a cluster of n members until the test ends. It returns when all members serve clients.
func StartCluster(tb testing.TB, n int, opts Options) *Cluster {
	tb.Helper()
	require.GreaterOrEqual(tb, n, 2, "a cluster of one: use Start")
	members, err := startMembers(tb.TempDir(), n, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { crashAll(members) })
	return &Cluster{Members: members}
}

// Endpoints returns the addresses of all members, as host:port, running or not.
func (c *Cluster) Endpoints() []string {
	endpoints := make([]string, len(c.Members))
	for i, m := range c.Members {
		endpoints[i] = m.Endpoint()
	}
	return endpoints
}

// Client returns a client of all members, as [NewClient] does.
func (c *Cluster) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, c.Endpoints(), opts...)
}

// Leader returns the member that a majority, and the member itself, take for the leader. It waits for a leader and
// fails the test if none is elected in time.
func (c *Cluster) Leader(tb testing.TB) *Server {
	tb.Helper()
	return c.NextLeader(tb, nil)
}

// NextLeader waits until a member other than old leads, and returns it, for instance after old was crashed or isolated.
func (c *Cluster) NextLeader(tb testing.TB, old *Server) *Server {
	tb.Helper()
	var leader *Server
	awaitState(tb, "no leader, or the old one", func() bool {
		leader = c.leader()
		return leader != nil && leader != old
	})
	return leader
}

// MoveLeader makes a member the leader. When it returns, [Cluster.Leader] returns that member.
func (c *Cluster) MoveLeader(tb testing.TB, to *Server) {
	tb.Helper()
	leader := c.Leader(tb)
	if leader == to {
		return
	}
	ctx, cancel := callContext()
	defer cancel()
	from := leader.Etcd(tb).Server
	require.NoError(tb, from.MoveLeader(ctx, uint64(from.MemberID()), uint64(to.Etcd(tb).Server.MemberID())))
	awaitState(tb, "the leader has not moved", func() bool { return c.leader() == to })
}

// Isolate drops all messages between a member and the other running members, in both directions, while clients still
// reach all of them. An isolated leader steps down after one or two election timeouts. The other members elect a new
// leader in the meantime, so for a moment there may be two; only the new one can commit. See [Server.AwaitNoLeader] and
// [Cluster.NextLeader].
func (c *Cluster) Isolate(tb testing.TB, member *Server) {
	tb.Helper()
	c.eachLink(tb, member, func(from *Server, to types.ID) { from.Etcd(tb).Server.CutPeer(to) })
}

// Heal undoes Isolate.
func (c *Cluster) Heal(tb testing.TB, member *Server) {
	tb.Helper()
	c.eachLink(tb, member, func(from *Server, to types.ID) { from.Etcd(tb).Server.MendPeer(to) })
}

func (c *Cluster) eachLink(tb testing.TB, member *Server, do func(from *Server, to types.ID)) {
	tb.Helper()
	for _, other := range c.Members {
		if other == member || !other.Running() {
			continue
		}
		do(member, other.Etcd(tb).Server.MemberID())
		do(other, member.Etcd(tb).Server.MemberID())
	}
}

// AwaitNoLeader waits until the server knows of no leader, for instance after it was isolated.
func (s *Server) AwaitNoLeader(tb testing.TB) {
	tb.Helper()
	awaitState(tb, "still a leader", func() bool { return s.Etcd(tb).Server.Leader() == 0 })
}

// leader returns the member that [Cluster.Leader] describes, nil if there is none now.
func (c *Cluster) leader() *Server {
	votes := map[types.ID]int{}
	self := map[types.ID]*Server{}
	for _, m := range c.Members {
		id, sees := m.leaderSeen()
		votes[sees]++
		if id == sees {
			self[id] = m
		}
	}
	for id, m := range self {
		// An isolated old leader considers itself the leader until its election timeout has passed, but has no majority.
		if id != 0 && votes[id] > len(c.Members)/2 {
			return m
		}
	}
	return nil
}

// awaitState polls, since etcd has no event for the state of a whole cluster.
func awaitState(tb testing.TB, failure string, reached func() bool) {
	tb.Helper()
	deadline := time.Now().Add(leaderTimeout)
	for !reached() {
		require.True(tb, time.Now().Before(deadline), "%s in %s", failure, leaderTimeout)
		time.Sleep(5 * time.Millisecond)
	}
}
