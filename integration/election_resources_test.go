package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// Whatever an election does, nothing of it is left when its sessions are closed and its observers have ended: no key, no
// lease and, though the client is still open, no goroutine. Not parallel, since it sees the goroutines of all tests.
func TestElection_leavesNothing(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	_, err := client.Get(bounded(t), "n") // so that it is connected
	require.NoError(t, err)
	etcdtest.VerifyNoLeaks(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sessions := make([]*lease.Session, 4)
	for i := range sessions {
		sessions[i] = newSession(t, client, lease.Options{TTL: faultTTL})
	}
	observed := goObserve(t, client, "n")
	other := goObserve(t, client, "m")

	resigned := mustLead(t, sessions[0], "n", election.Options{})
	require.NoError(t, resigned.Resign(bounded(t)))
	lost := mustLead(t, sessions[0], "n", election.Options{})
	kept := mustLead(t, sessions[1], "m", election.Options{Value: "kept"})
	other.awaitValue(t, "kept")
	givesUp := goCampaign(ctx, sessions[1], "n", election.Options{})
	waits := goCampaign(ctx, sessions[2], "n", election.Options{Priority: 3})
	awaitQueue(t, srv, "n", 3)
	var running sync.WaitGroup
	led := make(chan struct{})
	running.Go(func() {
		err := election.Run(ctx, sessions[3], "n", election.Options{Value: "run"}, func(ctx context.Context, _ fence.Token) error {
			close(led)
			<-ctx.Done()
			return nil
		})
		assert.ErrorIs(t, err, context.Canceled)
	})
	awaitQueue(t, srv, "n", 4)
	time.Sleep(time.Second / 2) // their keys are watched by then, which must end too

	givesUp.cancel()
	awaitClosed(t, givesUp.done, "Campaign did not return")
	require.ErrorIs(t, givesUp.err, context.Canceled)
	srv.Revoke(t, leaseOf(t, "n", lost.Key()))
	lostFor(t, awaitOver(t, lost), lease.LeaseGone)
	next := waits.won(t)
	require.NoError(t, next.Transfer(bounded(t), "run"))
	awaitClosed(t, led, "lead was not called")
	observed.awaitValue(t, "run")

	cancel()
	running.Wait()
	observed.awaitValue(t, "")
	for _, s := range sessions {
		require.NoError(t, s.Close(bounded(t)))
	}
	require.ErrorIs(t, awaitOver(t, kept), lease.ErrClosed)
	other.awaitValue(t, "")
	require.Empty(t, srv.Keys(t, ""))
	require.Empty(t, srv.Leases(t))
}
