package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

// The host is suspended past the deadline while the answer is on its way, and no timer tells before the answer
// does: what counts is the look at the clock that follows it.
func TestSession_Lock_looksAtTheClockAfterTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: 100 * time.Millisecond})
		time.AfterFunc(90*time.Millisecond, func() { host.Suspend(usable) })
		_, err := e.s.TryLock(t.Context(), "a")
		requireLost(t, err, lease.ReasonDeadlinePassed)
		require.Equal(t, 100*time.Millisecond, e.now(), "with the answer")
		synctest.Wait()
		require.Empty(t, e.keys(""), "nothing is left")
	})
}

// The same for one who has waited: the lock is let go while the host is suspended.
func TestSession_Lock_looksAtTheClockAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		e := start(t, lease.Options{})
		holder := e.join(t).lock(t, "a")
		next := e.wait(t.Context(), "a")
		e.at(90 * time.Millisecond)
		host.Suspend(usable)
		require.True(t, e.srv.Delete(holder.Key()))
		got := receive(t, next)
		requireLost(t, got.err, lease.ReasonDeadlinePassed)
		require.Equal(t, 90*time.Millisecond, got.at, "with the event")
	})
}

// A lease that is past its deadline is replaced before the acquisition begins, though no timer has told of it.
func TestSession_Lock_replacesALeasePastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		e := start(t, lease.Options{})
		old := e.s.Status().LeaseID
		e.at(90 * time.Millisecond)
		host.Suspend(usable)
		l := e.lock(t, "a")
		require.NotEqual(t, old, e.s.Status().LeaseID)
		requireLive(t, l)
	})
}
