package k8slock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
)

// The server's clock goes on while the host is suspended. A tenure whose deadline has passed ends when the host wakes
// up, or half a second later on a host without alarms.
func TestLock_suspendedHost(t *testing.T) {
	for what, late := range map[string]time.Duration{"alarms": 0, "no alarms": time.Second / 2} {
		inBubble(t, what, func(t *testing.T) {
			host, began := hosttest.Start(t, late == 0), time.Now()
			a := newCandidate(t, newServer(t), k8slock.Options{})
			work := a.begins(t)
			time.Sleep(5*time.Second + 1)
			host.Suspend(leaseDuration - margin - 5*time.Second - 2)
			synctest.Wait()
			require.NoError(t, work.Err())

			host.Suspend(1)
			<-work.Done()
			requireLost(work, t)
			require.LessOrEqual(t, time.Since(began), 5*time.Second+1+late)
			a.requireNoTenure(t)

			a.update(t)
			work = a.context(t)
			host.Suspend(leaseDuration)
			require.NoError(t, a.Update(t.Context(), a.leaderRecord()), "a new tenure")
			requireLost(work, t)
		})
	}
}

// A tenure sets its alarm only when its deadline changes, and closes it when it ends.
func TestLock_setsItsAlarmOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, true)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		time.Sleep(leaseDuration - margin - 1)
		synctest.Wait()
		before := host.Alarms()
		require.Equal(t, hosttest.Alarms{Open: 1, Made: 1, Set: 1}, before)
		a.update(t)
		time.Sleep(leaseDuration - margin - 1)
		synctest.Wait()
		require.Equal(t, 1, host.Alarms().Set-before.Set, "at the deadline before the renewal")
		require.NoError(t, a.Update(t.Context(), released()))
		synctest.Wait()
		require.Zero(t, host.Alarms().Open)
	})
}

// If the deadline passes during a renewal, before a timer notices it, the renewal's success comes too late.
func TestLock_renewalAcrossTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		work := a.begins(t)
		time.Sleep(leaseDuration - margin - 400*time.Millisecond)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 100 * time.Millisecond})
		time.AfterFunc(50*time.Millisecond, func() { host.Suspend(350 * time.Millisecond) })
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), k8slock.ErrLost)
		requireLost(work, t)
	})
}
