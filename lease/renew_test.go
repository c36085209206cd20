package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// The lease is renewed, not each of its locks, a third of the TTL after the last renewal was sent.
func TestSession_renewsAThirdOfTheTTLAfterTheLastSend(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"answered at once": {},
		"slow answer":      {After: 2 * time.Second},
		"slow request":     {Before: 2 * time.Second},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			for i := range 100 {
				e.lock(t, strconv.Itoa(i))
			}
			e.c.Inject(fakeetcd.KeepAliveOnce, fault)
			e.at(35 * time.Second)
			require.Len(t, e.c.Calls(fakeetcd.Grant), 1)
			require.Equal(t, []time.Duration{third, 2 * third, 3 * third}, e.sent(fakeetcd.KeepAliveOnce))
			require.Equal(t, lease.StateHeld, e.s.Status().State)
			require.Equal(t, []string{""}, e.c.KeepAliveStreams(), "one stream, and one authentication, for all")
		})
	}
}

// Whatever the margin, a lost renewal leaves time for the next.
func TestSession_anyMarginHoldsThroughALostRenewal(t *testing.T) {
	for _, opts := range []lease.Options{
		{TTL: 2 * time.Second, Margin: 666 * time.Millisecond}, {TTL: 9 * time.Second, Margin: 3 * time.Second}, {Margin: 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, opts)
			l := e.lock(t, "a")
			for n := range 20 {
				e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Message(1 + n%2)})
				e.at(time.Duration(n+1) * 10 * opts.Margin)
				requireLive(t, l)
			}
		})
	}
}

// A renewal that hangs does not use up the time of the next, which goes to another endpoint. An endpoint that has not
// answered is not asked again.
func TestSession_asksEachEndpointWhileNoneAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.at(time.Second)
		e.c.Cut()
		e.at(10 * ttl)
		require.Equal(t, []time.Duration{third, third + patience, third + 2*patience, third + 3*patience}, e.sent(fakeetcd.KeepAliveOnce))
		asked := e.c.KeepAliveStreams()
		require.Empty(t, asked[0], "the client's own connection comes first")
		require.ElementsMatch(t, []string{"", "1", "2", "3"}, asked)
	})
}

// One answer is enough: the next renewal is a single one again, on the client's own connection.
func TestSession_renewsOnceAfterTrouble(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		restore := e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Match: own, After: third})
		e.at(2*third + patience - 1)
		require.Equal(t, []time.Duration{third, third + patience}, e.sent(fakeetcd.KeepAliveOnce))
		require.Equal(t, e.began.Add(third+patience+usable), e.s.Status().Deadline)
		restore()
		e.at(4*third + patience - 1)
		require.Equal(t, []time.Duration{2*third + patience, 3*third + patience}, e.sent(fakeetcd.KeepAliveOnce)[2:])
		opened := e.c.KeepAliveStreams()
		require.Len(t, opened, 3)
		require.Empty(t, opened[2], "an overtaken stream is reopened, perhaps on another endpoint")

		got := e.changes(t.Context())
		overtaken := fakeetcd.Fault{Match: own, Times: 1, Before: patience + time.Second, Err: fakeetcd.ErrUnavailable}
		e.c.Inject(fakeetcd.KeepAliveOnce, overtaken)
		e.at(4*third + 2*patience + time.Second/2)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 6, "the second of the two was answered")
		require.Equal(t, lease.StateHeld, states(got.take())[0])
		e.at(4*third + 2*patience + 2*time.Second)
		require.Empty(t, got.take(), "the failure of a renewal that was overtaken is no trouble")
	})
}

// own matches calls on the client's own connection.
func own(call fakeetcd.Call) bool { return call.Endpoint == "" }

// One of three endpoints is dead and carries the stream on the client's own connection: the lease is held, and a
// renewal is late only until that stream is opened again.
func TestSession_oneDeadEndpointOfThree(t *testing.T) {
	defer lease.WithJitter()()
	for _, dead := range []string{"1", "2", "3"} {
		bubbleWith(t, lease.Options{TTL: 2 * time.Second}, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request, Match: func(call fakeetcd.Call) bool {
				return own(call) || call.Endpoint == dead
			}})
			got := e.changes(t.Context())
			e.at(10 * time.Minute)
			requireLive(t, l)
			opened := slices.DeleteFunc(e.c.KeepAliveStreams(), func(endpoint string) bool { return endpoint != "" })
			require.LessOrEqual(t, len(opened), 10*30, "once in a TTL")
			require.LessOrEqual(t, len(got.take()), 1+2*len(opened))
			require.NotContains(t, e.c.KeepAliveStreams()[10:], dead, "it stays with the endpoint that answers")
		})
	}
}

// A fault costs no lease if it ends a sixth of the TTL before the deadline, however few endpoints there are: until then a
// renewal is sent each sixth, and one answer is enough.
func TestSession_outlivesFaultsThatEndInTime(t *testing.T) {
	defer lease.WithJitter()()
	for name, fault := range map[string]fakeetcd.Fault{
		"requests are lost": {Lose: fakeetcd.Request},
		"answers are lost":  {Lose: fakeetcd.Answer},
		"failing":           {Err: fakeetcd.ErrUnavailable},
		"failing slowly":    {Before: time.Second, Err: fakeetcd.ErrUnavailable},
	} {
		for _, endpoints := range [][]string{{"1"}, {"1", "2"}, {"1", "2", "3"}} {
			t.Run(fmt.Sprint(name, len(endpoints)), func(t *testing.T) {
				for range 100 {
					synctest.Test(t, func(t *testing.T) {
						e := startWith(t, endpoints...)
						l := e.lock(t, "a")
						e.at(ttl + rand.N(third))
						restore := e.c.Inject(fakeetcd.KeepAliveOnce, fault)
						time.Sleep(time.Until(l.Deadline()) - ttl/6)
						restore()
						time.Sleep(ttl)
						requireLive(t, l)
					})
				}
			})
		}
	}
}

// Answers that take half of the TTL cost no lease: no connection is given up before its answer comes.
func TestSession_outlivesSlowAnswers(t *testing.T) {
	defer lease.WithJitter()()
	for _, endpoints := range [][]string{{"1"}, {"1", "2"}, {"1", "2", "3"}} {
		inBubble(t, fmt.Sprint(len(endpoints)), func(t *testing.T) {
			e := startWith(t, endpoints...)
			l := e.lock(t, "a")
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{After: ttl / 2})
			e.at(100 * ttl)
			requireLive(t, l)
		})
	}
}

// Whatever etcd does, each third sees at most four renewals: one, its repetition if it fails, and two that come after a
// patience each. Streams, each of which may cost an authentication, are opened no more often than they break. Slow
// answers cost no lease, no reopened watches, and no read of the lease's keys.
func TestSession_boundsItsRenewals(t *testing.T) {
	defer lease.WithJitter()()
	const minutes = 30
	for name, tc := range map[string]struct {
		fault   fakeetcd.Fault
		lost    bool
		streams int     // at most
		perTTL  float64 // renewals, at most
	}{
		"in time":            {fakeetcd.Fault{}, false, 1, 3.5},
		"slow by 10 %":       {fakeetcd.Fault{After: ttl / 10}, false, 1, 3.5},
		"slow by 40 %":       {fakeetcd.Fault{After: 2 * ttl / 5}, false, 6, 7},
		"requests 40 % slow": {fakeetcd.Fault{Before: 2 * ttl / 5}, false, 6, 7},
		// From 8 s to the deadline at 29 s, each 4 s or more after the one before.
		"unanswered":     {fakeetcd.Fault{Lose: fakeetcd.Request}, true, 6, 6},
		"no answers":     {fakeetcd.Fault{Lose: fakeetcd.Answer}, true, 6, 6},
		"failing":        {fakeetcd.Fault{Err: fakeetcd.ErrUnavailable}, true, 10, 10},
		"refused":        {fakeetcd.Fault{Err: errDenied}, true, 10, 10},
		"failing slowly": {fakeetcd.Fault{Before: time.Second, Err: fakeetcd.ErrUnavailable}, true, 10, 10},
	} {
		for _, endpoints := range [][]string{{"1"}, {"1", "2"}, {"1", "2", "3", "4", "5"}} {
			inBubble(t, fmt.Sprint(name, len(endpoints)), func(t *testing.T) {
				e := startWith(t, endpoints...)
				l := e.lock(t, "a")
				e.at(time.Second)
				before := len(e.calls())
				e.c.Inject(fakeetcd.Any, tc.fault)
				e.at(minutes * time.Minute)
				sent := e.sent(fakeetcd.KeepAliveOnce)
				for i := range sent[min(len(sent), 4):] {
					require.GreaterOrEqual(t, sent[i+4]-sent[i], third-1)
				}
				ttls := float64(e.now() / ttl)
				if tc.lost {
					requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
					ttls = 1
				} else {
					requireLive(t, l)
					require.Len(t, e.calls(), before)
				}
				t.Logf("%.1f renewals per TTL, %d streams", float64(len(sent))/ttls, len(e.c.KeepAliveStreams()))
				require.LessOrEqual(t, float64(len(sent))/ttls, tc.perTTL)
				require.LessOrEqual(t, len(e.c.KeepAliveStreams()), tc.streams)
			})
		}
	}
}

// startWith is start with a client of these endpoints.
func startWith(t *testing.T, endpoints ...string) *env {
	t.Helper()
	return start(t, lease.Options{}, func(c *fakeetcd.Client) { c.KeepAliveEndpoints = endpoints })
}

// calls returns the session's calls without its renewals and the probes of its watches.
func (e *env) calls() []fakeetcd.Call {
	return slices.DeleteFunc(e.c.Calls(fakeetcd.Any), func(call fakeetcd.Call) bool {
		watch, ok := call.Request.(*pb.WatchCreateRequest)
		return call.Method == fakeetcd.KeepAliveOnce || ok && len(watch.Filters) > 0
	})
}

// Sessions that are in step drift apart.
func TestSession_renewsWithJitter(t *testing.T) {
	defer lease.WithJitter()()
	bubble(t, func(t *testing.T, first *env) {
		sessions := []*env{first, first.join(t), first.join(t), first.join(t)}
		first.at(10 * ttl)
		at := make(map[time.Duration]bool)
		for _, e := range sessions {
			sent := e.sent(fakeetcd.KeepAliveOnce)
			for i := range sent[1:] {
				at[sent[i]] = true
				gap := sent[i+1] - sent[i]
				require.LessOrEqual(t, gap, third)
				require.GreaterOrEqual(t, gap, third*4/5)
			}
		}
		require.Greater(t, len(at), 4*30, "hardly two at once")
	})
}

// An authentication that has to be renewed is a failure like any other. The first failure is retried at once, further
// ones at the intervals of unanswered renewals.
func TestSession_repeatsAFailedRenewal(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable":       fakeetcd.ErrUnavailable,
		"too many requests": rpctypes.ErrGRPCRequestTooManyRequests,
		"invalid token":     rpctypes.ErrGRPCInvalidAuthToken,
		"no permission":     rpctypes.ErrGRPCPermissionDenied,
		"unknown":           status.Error(codes.Unknown, "?"),
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			const failing = 23 * time.Millisecond // the time that the fake takes to fail a renewal
			l := e.lock(t, "a")
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 3, Err: err})
			e.at(2*third + 2*patience - 1)
			sent := e.sent(fakeetcd.KeepAliveOnce)
			require.Len(t, sent, 4)
			require.Equal(t, third, sent[0])
			soon := sent[1] - sent[0] - failing
			require.LessOrEqual(t, soon, 50*time.Millisecond)
			require.GreaterOrEqual(t, soon, 25*time.Millisecond)
			require.Equal(t, []time.Duration{sent[1] + patience, sent[1] + 2*patience}, sent[2:])
			require.Equal(t, []string{"", ""}, e.c.KeepAliveStreams()[:2])
			st := e.s.Status()
			require.Equal(t, lease.StateHeld, st.State)
			require.NoError(t, st.Err)
			require.Equal(t, e.began.Add(sent[3]+usable), st.Deadline)
			requireLive(t, l)
		})
	}
}

// An answer that is late but before the deadline counts, from the send of its own request.
func TestSession_lateAnswerCountsFromItsOwnSend(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const late = 9 * time.Second
		l := e.lock(t, "a")
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, After: late})
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		e.at(third + late - 1)
		require.Equal(t, lease.StateJeopardy, e.s.Status().State)
		require.Equal(t, e.began.Add(usable), e.s.Status().Deadline)
		e.at(third + late)
		require.Equal(t, lease.StateHeld, e.s.Status().State)
		require.Equal(t, e.began.Add(third+usable), e.s.Status().Deadline)
		end := e.ended(l)
		require.Equal(t, third+usable, receive(t, end))
	})
}

func TestSession_leaseNotFoundIsFinal(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		old := e.s.Status().LeaseID
		e.at(third - 100*time.Millisecond)
		l := e.lock(t, "a") // not watched before the renewal
		end := e.ended(l)
		require.NoError(t, e.srv.Revoke(old))
		require.Equal(t, third, receive(t, end))
		lost := lossOf(t, context.Cause(l.Context()), lease.ReasonLeaseGone)
		require.Equal(t, old, lost.LeaseID)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 1)
		require.Equal(t, lease.StateLost, e.s.Status().State)
		require.Empty(t, e.c.Calls(fakeetcd.Watch))
		e.at(ttl)
		require.Len(t, e.sent(fakeetcd.KeepAliveOnce), 1)
		require.Len(t, e.sent(fakeetcd.Grant), 1, "a new lease is taken when it is needed")
	})
}

// The leases of a cluster without a leader live on; so do the locks, until the deadline.
func TestSession_survivesAChangeOfLeader(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		e.at(third - time.Second)
		restore := e.c.Inject(fakeetcd.Any, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoLeader})
		e.srv.BreakWatches(rpctypes.ErrGRPCNoLeader)
		e.at(third + 5*time.Second)
		require.Equal(t, lease.StateJeopardy, e.s.Status().State)
		e.srv.ChangeLeader()
		restore()
		e.at(2 * third)
		require.Equal(t, lease.StateHeld, e.s.Status().State)
		requireLive(t, l)
		require.True(t, e.srv.Delete(l.Key()))
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted) // its watch works again
	})
}
