package election_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// An error that a retry cannot help ends the iteration, is yielded once, and does not end later observers.
func TestObserve_endsWithAFinalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		remove := s.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		err := observe(t, s.c, "n").ended(t)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.ErrorContains(t, err, `election: observe "n": `)
		remove()

		// The same later, when the watch breaks.
		a, b := observe(t, s.c, "n"), observe(t, s.c, "n")
		a.sees(t, l)
		b.sees(t, l)
		remove = s.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		joined := observe(t, s.c, "n")
		require.ErrorIs(t, joined.ended(t), rpctypes.ErrPermissionDenied)
		a.seesNothing(t)
		s.c.BreakWatches(rpctypes.ErrGRPCPermissionDenied)
		require.ErrorIs(t, a.ended(t), rpctypes.ErrPermissionDenied)
		require.ErrorIs(t, b.ended(t), rpctypes.ErrPermissionDenied)
		remove()

		// A new observer is not affected.
		a = observe(t, s.c, "n")
		a.sees(t, l)
		_ = s.c.Close()
		require.ErrorContains(t, a.ended(t), `election: observe "n": the etcd client is closed`)
	})
}

// After an error a new observer can begin, even if another one has not noticed the error yet.
func TestObserve_beginsAnewAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		last := error(nil)
		for got, err := range election.Observe(t.Context(), s.c.Client, "n") {
			if last = err; err != nil {
				continue
			}
			require.Equal(t, l, got)
			remove := s.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
			s.c.BreakWatches(rpctypes.ErrGRPCPermissionDenied)
			time.Sleep(time.Second)
			remove()
			observe(t, s.c, "n").sees(t, l)
		}
		require.ErrorIs(t, last, rpctypes.ErrPermissionDenied)
	})
}

func TestObserve_endsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		ended, cancelEnded := context.WithCancel(t.Context())
		cancelEnded()
		for l, err := range election.Observe(ended, s.c.Client, "n") {
			require.FailNow(t, "Observe yielded although its context had ended", "%v, %v", l, err)
		}

		// While the observer waits, while it reads, while etcd's client pauses before it opens its watches again, and
		// between two leaders that the observer yields.
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("enough"))
		defer cancel()
		began, seen := time.Now(), 0
		for got, err := range election.Observe(ctx, s.c.Client, "n") {
			require.NoError(t, err)
			require.Equal(t, l, got)
			seen++
		}
		require.Equal(t, 1, seen)
		require.Equal(t, time.Minute, time.Since(began))

		a := observe(t, s.own, "n")
		a.sees(t, l)
		s.own.BreakWatches(fakeetcd.ErrUnavailable)
		synctest.Wait()
		a.stop()
		synctest.Wait()
		require.False(t, a.waiting(), "the observer waits for the client")

		time.Sleep(catchUp)
		a = observe(t, s.own, "n")
		a.sees(t, l)
		ctx, cancelThis := context.WithCancel(t.Context())
		defer cancelThis()
		for _, err := range election.Observe(ctx, s.own.Client, "n") {
			require.NoError(t, err)
			s.proclaims(t, l, "b")
			synctest.Wait()
			cancelThis()
			seen++
		}
		require.Equal(t, 2, seen)

		s.own.Inject(fakeetcd.Get, fakeetcd.Fault{Lose: fakeetcd.Request})
		joined := observe(t, s.own, "n")
		time.Sleep(time.Minute)
		joined.seesNothing(t)
		joined.stop()
		require.NoError(t, joined.ended(t))
	})
}
