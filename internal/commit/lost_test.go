package commit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/retry"
)

// Where an answer does not come, each caller is left in doubt, and nothing is sent a second time.
func TestLine_lost(t *testing.T) {
	for name, tc := range map[string]struct {
		fault fakeetcd.Fault
		acted bool
		took  time.Duration
	}{
		"answer":            {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}, true, 0},
		"answer, later":     {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, After: time.Second}, true, time.Second},
		"answer, silence":   {fakeetcd.Fault{Lose: fakeetcd.Answer}, true, bound},
		"request":           {fakeetcd.Fault{Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable}, false, 0},
		"request, silence":  {fakeetcd.Fault{Lose: fakeetcd.Request}, false, bound},
		"too slow":          {fakeetcd.Fault{After: time.Minute}, true, bound},
		"too slow, later":   {fakeetcd.Fault{Before: 2 * bound, Late: true}, true, bound},
		"timeout":           {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCTimeout}, true, 0},
		"leader gone":       {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCTimeoutDueToLeaderFail}, true, 0},
		"no leader":         {fakeetcd.Fault{Lose: fakeetcd.Request, Err: rpctypes.ErrGRPCNoLeader}, false, 0},
		"internal":          {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: status.Error(codes.Internal, "")}, true, 0},
		"cancelled":         {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: status.Error(codes.Canceled, "")}, true, 0},
		"deadline exceeded": {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: status.Error(codes.DeadlineExceeded, "")}, true, 0},
		"unknown":           {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: status.Error(codes.Unknown, "")}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				tc.fault.Match, tc.fault.Times = writes("a-003/x"), 1
				e.c.Inject(fakeetcd.Txn, tc.fault)
				free := e.occupy(t)
				sent := e.record()
				all := e.sendAll(t.Context(), append(e.enters("a", 10), e.plant("b", 5)...))
				free[0]()
				for _, o := range receiveAll(t, all) {
					require.Error(t, o.err)
					require.False(t, retry.Refused(o.err))
					require.Equal(t, tc.took, o.at)
				}
				time.Sleep(time.Minute)
				require.Len(t, sent(), 1)
				require.Equal(t, 15, carried(sent()[0]))
				require.Equal(t, tc.acted, e.has("a-003/x"))
				for _, kv := range e.srv.Keys("a") {
					require.EqualValues(t, 1, kv.Version)
				}

				_, err := e.Commit(t.Context(), e.enter("later/x"))
				require.NoError(t, err)
			})
		})
	}
}

// A request that had to wait and goes by itself has a bound too: its caller may have none.
func TestLine_lost_single(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes("a/x"), Lose: fakeetcd.Answer})
		got := e.send(t.Context(), e.enter("a/x"))
		free[0]()
		o := receive(t, got)
		require.Error(t, o.err)
		require.False(t, retry.Refused(o.err))
		require.Equal(t, bound, o.at)
	})
}

// A request is sent again in parts only if it was refused. What is in doubt is so for those in that part alone.
func TestLine_lost_part(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		limitOps(e, 5)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
			Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable,
			Match: func(call fakeetcd.Call) bool {
				return writes("a-011/x")(call) && !request(tooMany(5))(call)
			},
		})
		outcomes, reqs := e.together(t, e.enters("a", 20))
		lost := 0
		for i, o := range outcomes {
			if o.err != nil {
				lost++
				require.Equal(t, codes.Unavailable, retry.Code(o.err))
				require.False(t, retry.Refused(o.err))
			} else {
				require.NotEqual(t, 11, i)
				requireAllGood(t, []outcome{o})
			}
		}
		require.Positive(t, lost)
		require.LessOrEqual(t, lost, 5)
		carried := make(map[string]int)
		for _, req := range reqs {
			if !tooMany(5)(req) {
				for _, key := range written(req) {
					carried[key]++
				}
			}
		}
		require.Len(t, carried, 20)
		for key, n := range carried {
			require.Equal(t, 1, n, key)
		}
	})
}
