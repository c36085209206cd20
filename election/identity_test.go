package election_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/lease"
)

// pain 34: who leads is known by lease and key. Candidates with the same value, such as processes on hosts of one name,
// are different ones, also for a process that starts anew with the value of the leader.
func TestCampaign_sameValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		opts := election.Options{Value: "host"}
		leader := newProcess(t, srv, lease.Options{}).leads(t, opts)
		second := newProcess(t, srv, lease.Options{}).waits(t, opts)
		third := newProcess(t, srv, lease.Options{}).waits(t, opts)
		time.Sleep(time.Hour)
		second.requireWaiting(t)
		third.requireWaiting(t)
		requireOrder(t, leader, second, third)
	})
}

// pain 35: the server knows when a leader's lease has expired. Who comes after that leads at once, and does not wait to
// see for itself.
func TestCampaign_afterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		crashed := newProcess(t, srv, lease.Options{})
		last := crashed.leads(t, election.Options{})
		crashed.c.Cut()
		require.NoError(t, srv.Await(t.Context(), func() bool { return len(srv.Keys("")) == 0 }))

		began := time.Now()
		next := newProcess(t, srv, lease.Options{}).leads(t, election.Options{})
		require.Equal(t, began, time.Now())
		require.Greater(t, next.Token(), last.Token())
		require.ErrorIs(t, last.Err(), lease.ErrLost)
	})
}
