package lease_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestSession_renewsAThirdOfTheTTLAfterTheLastSend(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"answered at once": {},
		"slow answer":      {After: 2 * time.Second},
		"slow request":     {Before: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, lease.Options{})
				e.c.Inject(fakeetcd.KeepAliveOnce, fault)
				e.at(35 * time.Second)
				require.Equal(t, []time.Duration{third, 2 * third, 3 * third}, e.sent(fakeetcd.KeepAliveOnce))
				require.Equal(t, lease.Held, e.s.Status().State)
			})
		})
	}
}

// pain 18, 20: locks do not renew, their lease does.
func TestSession_renewsOnceForAllLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		for i := range 100 {
			e.lock(t, string(rune('a'+i)))
		}
		e.at(3*third + time.Second)
		require.Equal(t, []time.Duration{third, 2 * third, 3 * third}, e.sent(fakeetcd.KeepAliveOnce))
		require.Len(t, e.c.Calls(fakeetcd.Grant), 1)
		require.Len(t, e.leaseIDs(), 1)
	})
}

// pain 21: the server raises 1 s to 2 s without a word.
func TestSession_countsWithTheGrantedTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{TTL: time.Second})
		st := e.s.Status()
		require.Equal(t, 2*time.Second, st.TTL)
		require.Equal(t, e.began.Add(1800*time.Millisecond), st.Deadline)
		e.at(1400 * time.Millisecond)
		sent := e.sent(fakeetcd.KeepAliveOnce)
		require.Len(t, sent, 2)
		require.InDelta(t, 2*time.Second/3, sent[0], 10)
		require.InDelta(t, 4*time.Second/3, sent[1], 10)
	})
}

func TestSession_roundsTheTTLUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{TTL: 4001 * time.Millisecond})
		require.Equal(t, 5*time.Second, e.s.Status().TTL)
	})
}

// pain 24: an attempt that hangs does not use up the time of the next ones, of which there are more each time: one of them
// meets an endpoint that answers, whatever else the client has sent between them.
func TestSession_sendsMoreRenewalsBesideThoseThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.at(time.Second)
		e.c.Cut()
		e.at(usable)
		all := e.sent(fakeetcd.KeepAliveOnce)
		sent := slices.Compact(slices.Clone(all))
		require.GreaterOrEqual(t, len(sent), 7)
		require.Equal(t, third, sent[0])
		for i, at := range sent[1:] {
			gap := at - sent[i]
			require.LessOrEqual(t, gap, patience)
			require.Greater(t, gap, patience-jitter)
		}
		var want []time.Duration
		for i, at := range sent {
			want = append(want, slices.Repeat([]time.Duration{at}, i+1)...)
		}
		require.Equal(t, want, all)
		e.at(10 * ttl)
		require.Equal(t, all, e.sent(fakeetcd.KeepAliveOnce), "a lost lease is not renewed")
	})
}

// One answer is enough, and the next renewal is a single one again.
func TestSession_renewsOnceAfterTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 5, Lose: fakeetcd.Request})
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{After: time.Millisecond})
		e.at(2 * third)
		sent := e.sent(fakeetcd.KeepAliveOnce)
		require.Len(t, sent, 1+2+3)
		require.Equal(t, e.began.Add(sent[5]+usable), e.s.Status().Deadline)
		e.at(sent[5] + third + 2*patience)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 6+1)
	})
}

// Attempts that fail are repeated one by one: nothing is amiss with the endpoint that answers them.
func TestSession_failuresAreNoReasonToSendMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable})
		e.at(usable)
		sent := e.sent(fakeetcd.KeepAliveOnce)
		require.Greater(t, len(sent), 7)
		require.Equal(t, slices.Compact(slices.Clone(sent)), sent)
	})
}

// pain 22: an authentication that has to be made anew is a failure like another.
func TestSession_repeatsAFailedRenewal(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable":       fakeetcd.ErrUnavailable,
		"too many requests": rpctypes.ErrGRPCRequestTooManyRequests,
		"invalid token":     rpctypes.ErrGRPCInvalidAuthToken,
		"no permission":     rpctypes.ErrGRPCPermissionDenied,
		"unknown":           status.Error(codes.Unknown, "?"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const failing = 23 * time.Millisecond // what the fake takes to fail a renewal
				e := start(t, lease.Options{})
				l := e.lock(t, "a")
				e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 3, Err: err})
				e.at(third + time.Second)
				sent := e.sent(fakeetcd.KeepAliveOnce)
				require.Len(t, sent, 4)
				require.Equal(t, third, sent[0])
				for i, longest := range []int64{25, 50, 100} {
					gap := sent[i+1] - sent[i] - failing
					require.LessOrEqual(t, gap, time.Duration(longest)*time.Millisecond)
					require.GreaterOrEqual(t, gap, time.Duration(longest)*time.Millisecond/2)
				}
				st := e.s.Status()
				require.Equal(t, lease.Held, st.State)
				require.NoError(t, st.Err)
				require.Equal(t, e.began.Add(sent[3]+usable), st.Deadline)
				requireLive(t, l)
			})
		})
	}
}

// pain 38: one heartbeat that failed is not a loss.
func TestSession_oneLostAnswerCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		e.at(2 * third)
		sent := slices.Compact(e.sent(fakeetcd.KeepAliveOnce))
		require.Len(t, sent, 2)
		require.Equal(t, e.began.Add(sent[1]+usable), e.s.Status().Deadline)
		requireLive(t, l)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// A round ends with its first answer, and what was sent beside it changes nothing any more.
func TestSession_oneAnswerEndsTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, After: 6 * time.Second})
		e.at(third + patience)
		sent := slices.Compact(e.sent(fakeetcd.KeepAliveOnce))
		require.Len(t, sent, 2)
		deadline := e.began.Add(sent[1] + usable)
		require.Equal(t, deadline, e.s.Status().Deadline)
		e.at(sent[1] + third - 1)
		require.Equal(t, deadline, e.s.Status().Deadline)
		require.Equal(t, sent, slices.Compact(e.sent(fakeetcd.KeepAliveOnce)))
		e.at(sent[1] + third)
		require.Len(t, slices.Compact(e.sent(fakeetcd.KeepAliveOnce)), 3)
	})
}

// An answer that comes late but before the deadline counts, from the send of its own request.
func TestSession_lateAnswerCountsFromItsOwnSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 9 * time.Second
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, After: late})
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		e.at(third + late - 1)
		require.Equal(t, lease.Jeopardy, e.s.Status().State)
		require.Equal(t, e.began.Add(usable), e.s.Status().Deadline)
		e.at(third + late)
		require.Equal(t, lease.Held, e.s.Status().State)
		require.Equal(t, e.began.Add(third+usable), e.s.Status().Deadline)
		end := e.ended(l)
		require.Equal(t, third+usable, receive(t, end))
	})
}

func TestSession_leaseNotFoundIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		old := e.s.Status().LeaseID
		e.at(third - 100*time.Millisecond)
		l := e.lock(t, "a") // not watched before the renewal
		end := e.ended(l)
		require.NoError(t, e.srv.Revoke(old))
		require.Equal(t, third, receive(t, end))
		lost := lossOf(t, context.Cause(l.Context()), lease.LeaseGone)
		require.Equal(t, old, lost.LeaseID)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 1)
		require.Equal(t, lease.Lost, e.s.Status().State)
		require.Empty(t, e.c.Calls(fakeetcd.Watch))
		e.at(ttl)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 1)
		require.Len(t, e.sent(fakeetcd.Grant), 1, "a new lease is taken when it is needed")
	})
}

// pain 19: nobody renews what nobody uses any more.
func TestSession_renewsNoLongerThanItLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.at(third)
		require.NoError(t, e.s.Close(t.Context()))
		e.at(10 * ttl)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 1)
		require.Empty(t, e.leaseIDs())
	})
}

// pain 16: the leases of a cluster without a leader live on; so do the locks, until the deadline.
func TestSession_survivesAChangeOfLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.at(third - time.Second)
		restore := e.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader})
		e.srv.BreakWatches(rpctypes.ErrGRPCNoLeader)
		e.at(third + 5*time.Second)
		require.Equal(t, lease.Jeopardy, e.s.Status().State)
		e.srv.ChangeLeader()
		restore()
		e.at(2 * third)
		require.Equal(t, lease.Held, e.s.Status().State)
		requireLive(t, l)
		require.True(t, e.srv.Delete(l.Key()))
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.KeyDeleted) // its watch works again
	})
}
