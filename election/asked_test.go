package election_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func (p *process) release(t *testing.T) {
	t.Helper()
	require.NoError(t, lease.Release(t.Context(), p.c.Client, "x", lease.ReleaseOptions{}))
}

// A leader that is asked to release leads until it has resigned, as others see it, and the next candidate follows.
func TestLeadership_stepsDownWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPair(t)
		l := p.leads(t, election.Options{Value: "one"})
		next := other.waits(t, election.Options{Value: "two"})
		before, err := election.Current(t.Context(), p.c.Client, "x")
		require.NoError(t, err)

		other.release(t)
		synctest.Wait()
		require.Equal(t, lease.ErrAskedToRelease, context.Cause(l.Context()))
		require.Equal(t, lease.ErrAskedToRelease, l.Err())
		require.ErrorIs(t, l.Proclaim(t.Context(), "three"), lease.ErrAskedToRelease)
		require.ErrorIs(t, l.Transfer(t.Context(), "two"), lease.ErrAskedToRelease)
		next.requireWaiting(t)
		now, err := election.Current(t.Context(), p.c.Client, "x")
		require.NoError(t, err)
		require.Equal(t, before, now)
		require.NoError(t, l.Resign(l.Context()), "on its own context, which has ended already")
		require.NoError(t, next.won(t).Resign(t.Context()))
	})
}

// A request to release reaches the leader even if the leader proclaims a value between the request's read and its
// write.
func TestLeadership_stepsDownWhenAsked_proclaimedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPair(t)
		l := p.leads(t, election.Options{Value: "one"})
		other.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 2, Before: 10 * time.Millisecond}) // the second is the request
		go func() {
			time.Sleep(15 * time.Millisecond)
			_ = l.Proclaim(t.Context(), "two")
		}()
		other.release(t)
		time.Sleep(time.Second)
		require.Equal(t, lease.ErrAskedToRelease, l.Err())
		now, err := election.Current(t.Context(), p.c.Client, "x")
		require.NoError(t, err)
		require.Equal(t, "two", now.Value)
		require.NoError(t, l.Resign(t.Context()))
	})
}

// A candidate that is asked to release before it knows that it leads enters the queue again at its end.
func TestRun_isAskedBeforeItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPair(t)
		first, before := other.leads(t, election.Options{}), other.waits(t, election.Options{})
		r := p.runs(t, election.Options{})
		time.Sleep(time.Second)
		require.NoError(t, first.Resign(t.Context()))
		second := before.won(t)
		time.Sleep(time.Second)
		require.NoError(t, second.Proclaim(t.Context(), "new"))
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 4 * time.Second}) // delays its check whether it was passed
		require.NoError(t, second.Resign(t.Context()))
		synctest.Wait()
		other.release(t)
		r.requireIdle(t)
		time.Sleep(20 * time.Second)
		r.leads(t)
		r.requireIdle(t)
	})
}
