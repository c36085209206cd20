package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// succession is what a lead of the next in line finds when it begins.
type succession struct {
	at    time.Time
	token fence.Token
	old   error // why the one before had ended by then; nil if it had not
}

// succeed has somebody wait for old's place by Run. It leads until the end of the test.
func succeed(t *testing.T, srv *etcdtest.Server, old *election.Leadership) <-chan succession {
	t.Helper()
	s := newSession(t, srv.Client(t), lease.Options{})
	begun, before := make(chan succession, 1), old.Context()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := election.Run(ctx, s, old.Name(), election.Options{Value: "next"}, func(ctx context.Context, token fence.Token) error {
			begun <- succession{time.Now(), token, context.Cause(before)}
			<-ctx.Done()
			return nil
		})
		assert.ErrorIs(t, err, context.Canceled)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	awaitQueue(t, srv, old.Name(), 2)
	return begun
}

// A leader that is cut off for good ends before the next one's lead begins; and that does about a TTL later, which the
// server's clock says. The cuts are spread over the time between two renewals.
func TestRun_succeedsALeaderThatIsCutOff(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for i, phase := range []float64{0, 0.3, 0.6, 0.9} {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			t.Parallel()
			link := newFaultyLink(t, srv)
			s := newSession(t, link.client, lease.Options{TTL: minTTL})
			leader := mustLead(t, s, fmt.Sprint("n", i), election.Options{Value: "old"})
			next := succeed(t, srv, leader)

			renewed := link.in.Answered(faults.LeaseKeepAlive)
			require.NoError(t, link.in.AwaitAnswered(bounded(t), faults.LeaseKeepAlive, renewed+1))
			time.Sleep(time.Duration(phase * float64(minTTL/3))) // it is the phase, not a wait for anything
			link.proxy.BlackHole()
			cut := time.Now()
			lost := awaitOver(t, leader)
			told := time.Since(cut)
			lostFor(t, lost, lease.DeadlinePassed)
			got := awaitSuccession(t, next)
			t.Logf("TTL %v: the leader was told %v after the cut, the next one led after %v", minTTL, told, got.at.Sub(cut))
			require.ErrorIs(t, got.old, lease.ErrLost, "two leaders")
			require.Greater(t, got.token, leader.Token())
			lostFor(t, leader.Resign(bounded(t)), lease.DeadlinePassed)
		})
	}
}

func awaitSuccession(t *testing.T, next <-chan succession) succession {
	t.Helper()
	select {
	case got := <-next:
		return got
	case <-time.After(patience):
		require.FailNow(t, "nobody leads")
		return succession{}
	}
}

// Who revokes a lease lets the next one lead at once. The leader is told, and its token is too old by then.
func TestRun_succeedsALeaderWhoseLeaseIsRevoked(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	leader := mustLead(t, s, "n", election.Options{Value: "old"})
	next := succeed(t, srv, leader)
	began := time.Now()
	srv.Revoke(t, s.Status().LeaseID)
	got := awaitSuccession(t, next)
	t.Logf("the next one led after %v", got.at.Sub(began))
	lostFor(t, awaitOver(t, leader), lease.LeaseGone)
	var guard fence.Guard
	require.NoError(t, guard.Claim("r", got.token))
	require.ErrorIs(t, guard.Check("r", leader.Token()), fence.ErrStale)
	require.ErrorIs(t, leader.Proclaim(bounded(t), "still me"), lease.ErrLost)
	require.Equal(t, []string{"", "old", "next"}, values(leadersOf(t, srv, "n")))
}

// requireLeads checks that the leader still is, for everybody, and that the other one waits.
func requireLeads(t *testing.T, cluster *etcdtest.Cluster, l *election.Leadership, waiting *campaign) {
	t.Helper()
	got, err := election.Current(bounded(t), cluster.Client(t), l.Name())
	require.NoError(t, err)
	require.Equal(t, l.Token(), got.Token)
	require.NoError(t, l.Err())
	waiting.requireWaiting(t)
}

// A cluster changes its leader, loses a member and gets it back under a leader, one who waits and one who observes. Nobody
// loses anything by that.
func TestCampaign_survivesTheLossOfMembers(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	// Each is connected to all members.
	first := newSession(t, cluster.Client(t), lease.Options{TTL: 10 * time.Second})
	second := newSession(t, cluster.Client(t), lease.Options{TTL: 10 * time.Second})
	id, next := first.Status().LeaseID, second.Status().LeaseID
	observed := goObserve(t, cluster.Client(t), "n")
	observed.awaitValue(t, "")
	leader := mustLead(t, first, "n", election.Options{Value: "first"})
	waiting := goCampaign(t.Context(), second, "n", election.Options{Value: "second"})
	awaitQueue(t, cluster.Members[0], "n", 2)
	observed.awaitValue(t, "first")

	old := cluster.Leader(t)
	to := cluster.Members[0]
	if to == old {
		to = cluster.Members[1]
	}
	cluster.MoveLeader(t, to)
	requireLeads(t, cluster, leader, waiting)
	require.NoError(t, leader.Proclaim(bounded(t), "after the move"))
	observed.awaitValue(t, "after the move")

	for _, m := range cluster.Members { // one after the other, so also the one that anybody is connected to
		m.Crash()
		value := "without " + m.Name()
		require.NoError(t, leader.Proclaim(bounded(t), value))
		requireLeads(t, cluster, leader, waiting)
		observed.awaitValue(t, value)
		m.Restart(t)
	}
	require.Equal(t, id, first.Status().LeaseID)
	require.Equal(t, next, second.Status().LeaseID)

	crashed := cluster.Leader(t)
	crashed.Crash() // while the leadership changes hands
	require.NoError(t, leader.Resign(bounded(t)))
	l := waiting.won(t)
	require.Greater(t, l.Token(), leader.Token())
	require.ErrorIs(t, leader.Err(), election.ErrResigned)
	observed.awaitValue(t, "second")
	require.NoError(t, l.Resign(bounded(t)))

	history := leadersOf(t, cluster.NextLeader(t, crashed), "n")
	require.Equal(t, []string{"", "first", "after the move", "without m0", "without m1", "without m2", "second", ""},
		values(history))
	require.Equal(t, len(history), observed.requireEnd(t, history))
}
