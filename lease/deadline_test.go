package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A client that is cut off ends its locks by its own timer before the server drops the lease. The deadline counts from
// the send.
func TestLock_endsAtTheDeadline(t *testing.T) {
	const renewal, grant = fakeetcd.KeepAliveOnce, fakeetcd.Grant
	const s, ms = time.Second, time.Millisecond
	for name, tc := range map[string]struct {
		opts   lease.Options
		method fakeetcd.Method
		fault  fakeetcd.Fault
		cut    time.Duration
		want   time.Duration // the deadline
		early  time.Duration // the server's expiry is later by at least this
	}{
		"never renewed":              {cut: s, want: usable, early: s},
		"renewed":                    {cut: 15 * s, want: third + usable, early: s},
		"renewed often":              {cut: 55 * s, want: 5*third + usable, early: s},
		"renewal answered after 1s":  {method: renewal, fault: fakeetcd.Fault{After: s}, cut: 15 * s, want: third + usable, early: s},
		"renewal answered, then cut": {method: renewal, fault: fakeetcd.Fault{After: 2 * s}, cut: third + 2*s + 1, want: third + usable, early: s},
		"renewal 1s on its way":      {method: renewal, fault: fakeetcd.Fault{Before: s}, cut: 15 * s, want: third + usable, early: 2 * s},
		"answer under way when cut":  {method: renewal, fault: fakeetcd.Fault{After: s}, cut: third + 500*ms, want: usable, early: s},
		"grant answered after 4s":    {method: grant, fault: fakeetcd.Fault{After: 4 * s}, cut: 5 * s, want: usable, early: s},
		"grant 4s on its way":        {method: grant, fault: fakeetcd.Fault{Before: 4 * s}, cut: 5 * s, want: usable, early: 5 * s},
		"margin of 5s":               {opts: lease.Options{Margin: 5 * s}, cut: 15 * s, want: third + 25*s, early: 5 * s},
		"TTL 5s":                     {opts: lease.Options{TTL: 5 * s}, cut: s, want: 4500 * ms, early: 500 * ms},
		"TTL raised from 1s to 2s":   {opts: lease.Options{TTL: s}, cut: s, want: 2*s/3 + 1800*ms, early: 200 * ms},
		"TTL rounded up to 5s":       {opts: lease.Options{TTL: 4*s + ms}, cut: s, want: 4500 * ms, early: 500 * ms},
		"TTL 1h":                     {opts: lease.Options{TTL: time.Hour}, cut: 30 * time.Minute, want: 20*time.Minute + 3599*s, early: s},
	} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t, tc.opts, faulty(tc.method, tc.fault))
			l := e.lock(t, "a")
			end := e.ended(l)
			e.at(tc.cut)
			e.c.Cut()
			require.Equal(t, e.began.Add(tc.want), e.s.Status().Deadline)
			require.Equal(t, e.began.Add(tc.want), l.Deadline())

			e.at(tc.want - 1)
			requireLive(t, l)
			require.NotEqual(t, lease.StateLost, e.s.Status().State)
			expiry := e.srv.Leases()[0].Expiry
			require.GreaterOrEqual(t, expiry.Sub(e.began.Add(tc.want)), tc.early)

			require.Equal(t, tc.want, receive(t, end))
			lost := lossOf(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.NoError(t, lost.Err, "there was no answer at all")
			require.Equal(t, lease.StateLost, e.s.Status().State)
			requireLost(t, e.s.Status().Err, lease.ReasonDeadlinePassed)
		})
	}
}

func faulty(m fakeetcd.Method, f fakeetcd.Fault) func(*fakeetcd.Client) {
	return func(c *fakeetcd.Client) { c.Inject(m, f) }
}

// The session does not use a lease whose grant got no answer.
func TestSession_countsFromTheGrantThatWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{}, faulty(fakeetcd.Grant, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer}))
		sent := e.sent(fakeetcd.Grant)
		require.Len(t, sent, 2)
		require.Equal(t, e.began.Add(sent[1]+usable), e.s.Status().Deadline)
		require.Equal(t, e.leaseIDs()[1], e.s.Status().LeaseID)
	})
}

// A loss carries the last failure to renew, unless a later renewal has overcome it.
func TestLock_lossCarriesTheLastFailure(t *testing.T) {
	for name, overcome := range map[string]bool{"last": false, "overcome": true} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			end := e.ended(l)
			restore := e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: errDenied})
			e.at(third + time.Second)
			require.Equal(t, lease.StateJeopardy, e.s.Status().State)
			require.ErrorIs(t, e.s.Status().Err, rpctypes.ErrPermissionDenied)
			if overcome {
				restore()
				e.at(2 * third)
				require.Equal(t, lease.StateHeld, e.s.Status().State)
				e.c.Cut()
			}
			receive(t, end)
			lost := lossOf(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			if overcome {
				require.NoError(t, lost.Err)
				return
			}
			require.ErrorIs(t, lost.Err, rpctypes.ErrPermissionDenied)
			require.ErrorContains(t, lost, "permission denied")
		})
	}
}

// An answer after the deadline changes nothing for the handles; the session takes a new lease.
func TestLock_isNotRevivedByALateAnswer(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"answer at the deadline":  {After: usable - third},
		"answer 1ns after":        {After: usable - third + 1},
		"answer 100ms after":      {After: usable - third + 100*time.Millisecond},
		"request at the deadline": {Before: usable - third, Late: true},
		"request just before it":  {Before: usable - third - 1, After: 2, Late: true},
		"request 100ms after":     {Before: usable - third + 100*time.Millisecond, Late: true},
		"request an hour after":   {Before: time.Hour, Late: true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			old := e.s.Status().LeaseID
			l := e.lock(t, "a")
			end := e.ended(l)
			fault.Times = 1
			e.c.Inject(fakeetcd.KeepAliveOnce, fault)
			restore := e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
			require.Equal(t, usable, receive(t, end))
			restore()
			e.at(usable + 200*time.Millisecond)
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, lease.StateLost, e.s.Status().State)

			again := e.lock(t, "b")
			require.NotEqual(t, old, e.s.Status().LeaseID)
			require.Equal(t, lease.StateHeld, e.s.Status().State)
			require.Greater(t, again.Token(), l.Token())
			requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
			requireLive(t, again)
			e.at(2 * time.Hour)
			requireLive(t, again)
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, []string{again.Key()}, e.keys(""))
		})
	}
}
