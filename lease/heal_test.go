package lease_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// startLost starts a session whose first renewal has found its lease revoked.
func startLost(t *testing.T) *env {
	t.Helper()
	e := start(t, lease.Options{})
	require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
	e.at(third)
	return e
}

// Callers that wait for a new lease are served in the order of arrival, except those that give up, and before a caller
// that comes once the lease is there.
func TestHeal_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startLost(t)
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{Times: 1, Before: time.Second})
		waiting := e.line(t, "a", 10)
		impatient := e.wait(timeout(t, time.Second/2), "a")
		waiting = append(waiting, e.line(t, "a", 10)...)
		latecomer := begin(e, func() (*lease.Lock, error) {
			for status := range e.s.Changes(t.Context()) {
				if status.State == lease.StateHeld {
					break
				}
			}
			return e.s.Lock(t.Context(), "a")
		})
		first := granted(t, waiting[0])
		require.Equal(t, third+time.Second, first.at)
		require.ErrorIs(t, receive(t, impatient).err, context.DeadlineExceeded)
		pass(t, first.lock, append(waiting[1:], latecomer)...)
		require.Empty(t, e.keys(""))
	})
}

// A new lease whose answer comes after its deadline is useless: the session asks for another.
func TestHeal_lostBeforeItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 2 * time.Second
		e := start(t, lease.Options{TTL: ttl})
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		e.at(ttl / 3)
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{Times: 7, Lose: fakeetcd.Request}) // until attempts may take that long
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{Times: 5, After: ttl})
		waiting := e.line(t, "a", 2)
		first := granted(t, waiting[0])
		pass(t, first.lock, waiting[1])
		require.NoError(t, e.s.Close(t.Context()))
		e.at(time.Hour)
		require.Empty(t, e.leaseIDs())
	})
}

// A caller that gives up just as the new lease comes leaves no place in the order.
func TestHeal_callerGivesUpAsTheLeaseComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startLost(t)
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{Times: 1, Before: time.Second})
		goOn := make(chan struct{})
		late := e.wait(heldUp{timeout(t, time.Second/2), goOn}, "a")
		e.at(third + time.Second)
		require.Equal(t, lease.StateHeld, e.s.Status().State)
		close(goOn)
		require.ErrorIs(t, receive(t, late).err, context.DeadlineExceeded)
		l, err := e.s.Lock(timeout(t, time.Minute), "a")
		require.NoError(t, err, "nobody stands ahead")
		require.NoError(t, l.Unlock(t.Context()))
		require.Empty(t, e.keys(""))
	})
}

// heldUp is a context that blocks whoever asks for the cause of its end.
type heldUp struct {
	context.Context //nolint:containedctx // It is one.

	goOn <-chan struct{}
}

// Value implements [context.Context].
func (c heldUp) Value(key any) any {
	if c.Err() != nil {
		<-c.goOn
	}
	return c.Context.Value(key)
}

// A new lease is not used if it was granted before a restore that the session notices before the answer comes.
func TestHeal_restoredMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, r := startRestored(t, lease.Options{})
		e.lock(t, "a")
		old := e.s.Status().LeaseID
		r.lag.Store(40) // the session checks whether revisions went back,
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable})
		e.at(third)
		require.NoError(t, e.srv.Revoke(old))
		e.at(2 * third)
		require.Equal(t, lease.StateLost, e.s.Status().State)
		e.c.Inject(fakeetcd.Grant, fakeetcd.Fault{After: attempt - 1})
		next := e.wait(t.Context(), "b")
		r.back.Store(40)
		e.c.Reset() // and learns it now
		e.at(2*third + attempt - 2)
		requirePending(t, next)
		require.ErrorIs(t, receive(t, next).err, lease.ErrRestored)
		require.Equal(t, old, e.s.Status().LeaseID)
	})
}

// If a server grants leases and then knows none of them, the session does not ask for one after the other, whoever
// calls: it replaces the first at once, and further ones after growing pauses. The error says what was wrong.
func TestSession_leasesInVain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		remove := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCLeaseNotFound})
		errs := make(chan error, 10)
		for i := range 10 {
			go func() {
				ctx, err := timeout(t, 10*time.Second), lease.ErrLost
				for errors.Is(err, lease.ErrLost) { // another call has found that the lease is gone
					err = second(e.s.Lock(ctx, strconv.Itoa(i)))
				}
				errs <- err
			}()
		}
		for range 10 {
			err := <-errs
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		for range 100 { // calls that end before there is a lease do not make it ask more often
			require.Error(t, second(e.s.TryLock(timeout(t, time.Millisecond), "a")))
		}
		err := second(e.s.Lock(timeout(t, 10*time.Second), "a"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "requested lease not found")
		require.Less(t, len(e.c.Calls(fakeetcd.Grant)), 60)
		remove()
		began := e.now()
		l := granted(t, e.wait(t.Context(), "a")).lock
		require.Less(t, e.now()-began, 3*time.Second)

		// A lease on which a lock was held is replaced at once, and so is the next.
		for range 2 {
			require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
			<-l.Context().Done()
			began = e.now()
			l = granted(t, e.wait(t.Context(), "a")).lock
			require.Zero(t, e.now()-began)
		}
	})
}

// A lease without keys of ours that etcd denies us, because somebody else has attached a key to it, is replaced once
// per call. It is not replaced if a lock stands on it, or if the permission on the name is missing.
func TestSession_replacesALeaseThatOthersHaveSpoilt(t *testing.T) {
	for name, row := range map[string]struct {
		denied, hidden int  // how often etcd denies us to acquire, and to see the lease's keys
		held, want     bool // a lock stands on it; the lease is replaced
		obtained       bool
	}{
		"spoilt":            {denied: 1, hidden: 1, want: true, obtained: true},
		"spoilt, once more": {denied: 2, hidden: 2, want: true},
		"a lock is held":    {denied: 1, hidden: 1, held: true},
		"no permission":     {denied: 1},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			before := e.s.Status().LeaseID
			if row.held {
				e.lock(t, "b")
			}
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: row.denied, Err: errDenied, Match: writes})
			if row.hidden > 0 {
				e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Times: row.hidden, Err: errDenied})
			}
			_, err := e.s.TryLock(t.Context(), "a")
			if row.obtained {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			}
			require.Equal(t, row.want, e.s.Status().LeaseID != before)
			require.NoError(t, e.s.Close(t.Context()))
			require.Empty(t, e.leaseIDs(), "Close gives back the lease that was replaced too")
		})
	}
}
