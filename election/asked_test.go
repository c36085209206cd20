package election_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
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
		require.NoError(t, l.Resign(t.Context()))
		require.NoError(t, next.won(t).Resign(t.Context()))
	})
}

// A leader that has not seen the request sees it when it writes its key.
func TestLeadership_stepsDownWhenAsked_whileItProclaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		l := p.leads(t, election.Options{Value: "one"})
		p.release(t) // there is no watch yet
		require.ErrorIs(t, l.Proclaim(t.Context(), "two"), lease.ErrAskedToRelease)
		require.Equal(t, lease.ErrAskedToRelease, l.Err())
		require.NoError(t, l.Resign(t.Context()))
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

// Run resigns when lead has returned, whatever lead returned, and enters the queue again at its end.
func TestRun_stepsDownWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPair(t)
		ctx, cancel := context.WithCancel(t.Context())
		var tokens []fence.Token
		ended := make(chan error, 1)
		go func() {
			ended <- election.Run(ctx, p.s, "x", election.Options{}, func(ctx context.Context, token fence.Token) error {
				tokens = append(tokens, token)
				<-ctx.Done()
				time.Sleep(time.Second)
				if len(tokens) == 1 {
					return errors.New("interrupted")
				}
				return context.Cause(ctx)
			}, election.WithOnLost(toldNothing(t)))
		}()
		synctest.Wait()
		next := other.waits(t, election.Options{})
		other.release(t)
		next.requireWaiting(t)
		time.Sleep(2 * time.Second)
		leader := next.won(t)
		require.Greater(t, leader.Token(), tokens[0])
		require.NoError(t, leader.Resign(t.Context()))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, tokens, 2)

		// Alone, it leads again.
		other.release(t)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Len(t, tokens, 3)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// A candidate that is asked to release before it knows that it leads enters the queue again at its end.
func TestRun_isAskedBeforeItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := newPair(t)
		first, before := other.leads(t, election.Options{}), other.waits(t, election.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var led atomic.Int32
		ended := make(chan error, 1)
		go func() {
			ended <- election.Run(ctx, p.s, "x", election.Options{}, func(ctx context.Context, _ fence.Token) error {
				led.Add(1)
				<-ctx.Done()
				return nil
			})
		}()
		time.Sleep(time.Second)
		require.NoError(t, first.Resign(t.Context()))
		second := before.won(t)
		time.Sleep(time.Second)
		require.NoError(t, second.Proclaim(t.Context(), "new"))
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 4 * time.Second}) // delays its check whether it was passed
		require.NoError(t, second.Resign(t.Context()))
		synctest.Wait()
		other.release(t)
		synctest.Wait()
		require.Zero(t, led.Load())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, led.Load())
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}
