package etcd_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// If an answer is lost, the outcome is unknown to each caller, and nothing is sent again.
func TestLine_lost(t *testing.T) {
	for name, tc := range map[string]struct {
		fault fakeetcd.Fault
		acted bool
		took  time.Duration
	}{
		"answer":           {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}, true, 0},
		"answer, later":    {fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, After: time.Second}, true, time.Second},
		"answer, silence":  {fakeetcd.Fault{Lose: fakeetcd.Answer}, true, bound},
		"request":          {fakeetcd.Fault{Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable}, false, 0},
		"request, silence": {fakeetcd.Fault{Lose: fakeetcd.Request}, false, bound},
		"too slow":         {fakeetcd.Fault{After: time.Minute}, true, bound},
		"too slow, later":  {fakeetcd.Fault{Before: 2 * bound, Late: true}, true, bound},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			tc.fault.Match, tc.fault.Times = writes("a-003/x"), 1
			e.c.Inject(fakeetcd.Txn, tc.fault)
			free := e.occupy(t)
			sent := e.record()
			all := e.sendAll(t.Context(), append(e.enters("a", 10), e.plant("b", 5)...))
			free()
			for _, o := range receiveAll(t, all) {
				require.Error(t, o.err)
				require.False(t, etcd.Refused(o.err))
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
	}
}

// A batch fails, and then its parts fail with another error. If the first error leaves the outcome unknown, a refused
// part may have been carried out by the first request. If the first error is a refusal, it has not.
func TestLine_lost_thenRefused(t *testing.T) {
	tooLarge := status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2 vs. 1)")
	for name, tc := range map[string]struct {
		first, then error
		lose        fakeetcd.Message // of the first
		refused     bool
	}{
		"no space, too many requests":            {rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCRequestTooManyRequests, fakeetcd.Answer, false},
		"no space, permission denied":            {rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCPermissionDenied, fakeetcd.Answer, false},
		"too large, permission denied":           {tooLarge, rpctypes.ErrGRPCPermissionDenied, fakeetcd.Answer, false},
		"too large, no space":                    {tooLarge, rpctypes.ErrGRPCNoSpace, fakeetcd.Answer, false},
		"too many operations, permission denied": {rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCPermissionDenied, fakeetcd.Request, true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			free := e.occupy(t)
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Lose: tc.lose, Err: tc.first, Times: 1})
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Err: tc.then})
			all := e.sendAll(t.Context(), append(e.enters("a", 10), e.plant("b", 5)...))
			free()
			for i, o := range receiveAll(t, all) {
				switch {
				case i >= 10 && tc.refused: // transactions that only delete
					require.NoError(t, o.err)
				case i >= 10: // the first request has deleted the keys
					require.Error(t, o.err)
					require.False(t, etcd.Refused(o.err))
				default:
					require.ErrorContains(t, o.err, rpctypes.Error(tc.then).Error())
					require.Equal(t, tc.refused, etcd.Refused(o.err))
					require.NotEqual(t, tc.refused, e.has("a-003/x"), "the test proves nothing")
				}
			}
		})
	}
}

// An answer's revision is compared with the highest one that was known when its request was sent: answers may
// overtake each other.
func TestLine_answersThatCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var highest atomic.Int64
		var seen [][2]int64
		e := startWith(t, etcd.LineOptions{
			Highest: highest.Load,
			Saw:     func(before, rev int64) { seen = append(seen, [2]int64{before, rev}) },
		})
		rev := e.srv.Rev()
		highest.Store(rev)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: time.Second})
		slow := e.send(t.Context(), e.enter("a/x"))
		e.srv.Put("elsewhere", "")
		highest.Store(e.srv.Rev()) // another answer reports it
		require.NoError(t, receive(t, slow).err)
		require.Equal(t, [][2]int64{{rev, rev + 1}}, seen)
	})
}
