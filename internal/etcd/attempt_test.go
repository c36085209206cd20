package etcd_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// After an attempt that may have been carried out, the next ones send copies: one more each time, up to one per
// endpoint.
func TestDo_copies(t *testing.T) {
	hang := func(a *etcd.Attempt) error { <-a.Context().Done(); return a.Context().Err() }
	unavailable := func(*etcd.Attempt) error { return rpctypes.ErrNoLeader }
	refused := func(*etcd.Attempt) error { return rpctypes.ErrTooManyRequests }
	noSpace := func(*etcd.Attempt) error { return rpctypes.ErrNoSpace }
	notSent := func(a *etcd.Attempt) error {
		<-a.Context().Done()
		return errors.Join(etcd.ErrNotSent, a.Context().Err())
	}
	for name, tc := range map[string]struct {
		do   func(*etcd.Attempt) error
		want []int
	}{
		"not answered": {hang, []int{1, 2, 3, 3, 3}},
		"failed":       {unavailable, []int{1, 2, 3, 3, 3}},
		"refused":      {refused, []int{1, 1, 1, 1, 1}},
		"no space":     {noSpace, []int{1, 1, 1, 1, 1}},
		"not sent":     {notSent, []int{1, 1, 1, 1, 1}},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			var got []int
			require.NoError(t, e.conn.Do(t.Context(), time.Second, func(a *etcd.Attempt) error {
				if got = append(got, a.Copies()); len(got) == len(tc.want) {
					return nil
				}
				return tc.do(a)
			}))
			require.Equal(t, tc.want, got)
		})
	}
}

// The first answer of any copy counts, and ends the others. A transient failure does not count while another copy is
// under way.
func TestTxn_firstAnswerOfTheCopies(t *testing.T) {
	const late = 50 * time.Millisecond
	for name, tc := range map[string]struct {
		faults []fakeetcd.Fault // of the copies, in turn
		err    error
		at     time.Duration
	}{
		"all answer":                   {[]fakeetcd.Fault{{After: late}, {After: late}, {After: late}}, nil, late},
		"one answers, two hang":        {[]fakeetcd.Fault{{Lose: fakeetcd.Request}, {Lose: fakeetcd.Answer}, {After: late}}, nil, late},
		"one fails":                    {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCNoLeader}, {Lose: fakeetcd.Answer}, {After: late}}, nil, late},
		"one is refused finally":       {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCPermissionDenied}, {Lose: fakeetcd.Answer}, {After: late}}, rpctypes.ErrPermissionDenied, 0},
		"unknown, then refused":        {[]fakeetcd.Fault{{Err: fakeetcd.ErrUnavailable, Lose: fakeetcd.Answer}, {After: late, Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCPermissionDenied}}, rpctypes.ErrPermissionDenied, late},
		"all are refused":              {[]fakeetcd.Fault{{After: late, Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCRequestTooManyRequests}, {After: late, Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCRequestTooManyRequests}}, rpctypes.ErrTooManyRequests, late},
		"all fail":                     {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCNoLeader}, {Err: rpctypes.ErrGRPCNoLeader}, {Err: rpctypes.ErrGRPCNoLeader}}, rpctypes.ErrNoLeader, 0},
		"two are refused, one unknown": {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCRequestTooManyRequests}, {Err: rpctypes.ErrGRPCRequestTooManyRequests}, {Lose: fakeetcd.Answer}}, context.DeadlineExceeded, time.Second},
		"one unknown, two are refused": {[]fakeetcd.Fault{{Err: fakeetcd.ErrUnavailable, Lose: fakeetcd.Answer}, {After: late, Err: rpctypes.ErrGRPCRequestTooManyRequests}, {After: late, Err: rpctypes.ErrGRPCRequestTooManyRequests}}, fakeetcd.ErrUnavailable, 0},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			for _, f := range tc.faults {
				f.Times, f.Before = 1, time.Millisecond // so all copies are sent before the first is answered
				e.c.Inject(fakeetcd.Txn, f)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := e.conn.Once(ctx).WithCopies(len(tc.faults)).Txn(nil, []clientv3.Op{clientv3.OpPut("a", "")}, nil)
			if tc.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.err.Error())
				require.Equal(t, name == "all are refused", etcd.Refused(err))
			}
			require.InDelta(t, tc.at, e.now(), float64(100*time.Millisecond))
			require.Len(t, e.c.Calls(fakeetcd.Txn), len(tc.faults))
			synctest.Wait()
		})
	}
}

// A transaction that only compares gets a read: etcd treats one without operations as serializable, and a member may
// lag.
func TestTxn_onlyCompares(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.srv.Put("a", "x")
		for copies, holds := range map[int]bool{1: true, 3: false} {
			cmp := clientv3.Compare(clientv3.Value("a"), "=", map[bool]string{true: "x", false: "y"}[holds])
			resp, err := e.conn.Once(t.Context()).WithCopies(copies).Txn([]clientv3.Cmp{cmp}, nil, nil)
			require.NoError(t, err)
			require.Equal(t, holds, resp.Succeeded)
		}
		for _, call := range e.c.Calls(fakeetcd.Txn) {
			txn := call.Request.(*pb.TxnRequest)
			require.False(t, slices.ContainsFunc(txn.Failure, func(op *pb.RequestOp) bool { return op.GetRequestRange().GetSerializable() }))
			require.NotEmpty(t, txn.Failure)
		}
	})
}

// A hedged request sends each further copy only while none is answered, and does not end the first one.
func TestSend_beside(t *testing.T) {
	const pause = 100 * time.Millisecond
	hangs := fakeetcd.Fault{Lose: fakeetcd.Request}
	for name, tc := range map[string]struct {
		faults []fakeetcd.Fault
		at     time.Duration
		sent   int
		fails  bool
	}{
		"the first answers":           {nil, 0, 1, false},
		"the first answers late":      {[]fakeetcd.Fault{{After: 250 * time.Millisecond}, hangs, hangs}, 250 * time.Millisecond, 3, false},
		"the second answers":          {[]fakeetcd.Fault{hangs}, pause, 2, false},
		"the third answers":           {[]fakeetcd.Fault{hangs, hangs}, 2 * pause, 3, false},
		"the first fails":             {[]fakeetcd.Fault{{Err: fakeetcd.ErrUnavailable}}, 0, 1, true},
		"one hangs, the second fails": {[]fakeetcd.Fault{hangs, {Err: fakeetcd.ErrUnavailable}}, 2 * pause, 3, false},
		"none answers":                {[]fakeetcd.Fault{hangs, hangs, hangs}, time.Second, 3, true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			for _, f := range tc.faults {
				f.Times = 1
				e.c.Inject(fakeetcd.Get, f)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := e.conn.Once(ctx).Beside(pause).Get("a")
			require.Equal(t, tc.fails, err != nil, "%v", err)
			require.Equal(t, tc.at, e.now())
			require.Len(t, e.c.Calls(fakeetcd.Get), tc.sent)
		})
	}
}
