package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// steppingBack is an election with a leader, a candidate whose request to step back meets a fault, and one of higher
// priority that has asked it to.
func steppingBack(t *testing.T, fault faults.Rule) (srv *etcdtest.Server, leader *election.Leadership, second, third *campaign) {
	t.Helper()
	srv = etcdtest.Start(t, etcdtest.Options{})
	leader = mustLead(t, newSession(t, srv.Client(t), lease.Options{}), "n", election.Options{Value: "first"})
	rig := newLockRig(t, srv, lease.Options{})
	second = goCampaign(t.Context(), rig.Session, "n", election.Options{Value: "second"})
	awaitQueue(t, srv, "n", 2)
	fault.Method, fault.Match, fault.Times = faults.Txn, isHandOver, 1
	met := rig.in.Inject(t, fault)
	s := newSession(t, srv.Client(t), lease.Options{})
	third = goCampaign(t.Context(), s, "n", election.Options{Value: "third", Priority: 1})
	awaitClosed(t, met.Hit(), "nobody steps back")
	return srv, leader, second, third
}

// A candidate whose turn comes before its request to step back arrives has its turn: who leads does not step back.
func TestCampaign_isNotPassedOnceItLeads(t *testing.T) {
	t.Parallel()
	until := make(chan struct{})
	srv, leader, second, third := steppingBack(t, faults.Rule{Fault: faults.DelayRequest, Until: until})
	require.NoError(t, leader.Resign(bounded(t)))
	close(until)
	l := second.won(t)
	third.requireWaiting(t)
	require.NoError(t, l.Err())
	require.NoError(t, l.Resign(bounded(t)))
	require.NoError(t, third.won(t).Resign(bounded(t)))
	require.Equal(t, []string{"", "first", "second", "third", ""}, values(leadersOf(t, srv, "n")))
}

// One that does not learn that it has stepped back, or whose request arrives late, stands in the queue once, behind the
// one that asked for it.
func TestCampaign_stepsBackOnce(t *testing.T) {
	t.Parallel()
	for _, fault := range []faults.Rule{
		{Fault: faults.LoseRequest},
		{Fault: faults.LoseAnswer},
		{Fault: faults.LateRequest, Delay: 200 * time.Millisecond},
	} {
		t.Run(fault.Fault.String(), func(t *testing.T) {
			t.Parallel()
			srv, leader, second, third := steppingBack(t, fault)
			awaitOrder(t, srv, "n", "first", "third", "second")
			require.NoError(t, leader.Resign(bounded(t)))
			l := third.won(t)
			second.requireWaiting(t)
			require.NoError(t, l.Resign(bounded(t)))
			require.NoError(t, second.won(t).Resign(bounded(t)))
			awaitQueue(t, srv, "n", 0)
			history := leadersOf(t, srv, "n")
			requireGrowing(t, history)
			require.Equal(t, []string{"", "first", "third", "second", ""}, values(history))
		})
	}
}
