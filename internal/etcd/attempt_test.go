package etcd_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
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
// under way. A hedged request sends each further copy only while none is answered, and does not end the first one.
func TestTxn_firstAnswerOfTheCopies(t *testing.T) {
	const late, pause = 50 * time.Millisecond, 100 * time.Millisecond
	hangs := fakeetcd.Fault{Lose: fakeetcd.Request}
	for name, tc := range map[string]struct {
		faults []fakeetcd.Fault // of the copies, in turn
		err    error
		at     time.Duration
		hedged int // the number of copies that a hedged request sends; 0: it is not hedged
	}{
		"all answer":                          {[]fakeetcd.Fault{{After: late}, {After: late}, {After: late}}, nil, late, 0},
		"one answers, two hang":               {[]fakeetcd.Fault{{Lose: fakeetcd.Request}, {Lose: fakeetcd.Answer}, {After: late}}, nil, late, 0},
		"one fails":                           {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCNoLeader}, {Lose: fakeetcd.Answer}, {After: late}}, nil, late, 0},
		"one is refused finally":              {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCPermissionDenied}, {Lose: fakeetcd.Answer}, {After: late}}, rpctypes.ErrPermissionDenied, 0, 0},
		"unknown, then refused":               {[]fakeetcd.Fault{{Err: fakeetcd.ErrUnavailable, Lose: fakeetcd.Answer}, {After: late, Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCPermissionDenied}}, rpctypes.ErrPermissionDenied, late, 0},
		"all are refused":                     {[]fakeetcd.Fault{{After: late, Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCRequestTooManyRequests}, {After: late, Lose: fakeetcd.Answer, Err: rpctypes.ErrGRPCRequestTooManyRequests}}, rpctypes.ErrTooManyRequests, late, 0},
		"all fail":                            {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCNoLeader}, {Err: rpctypes.ErrGRPCNoLeader}, {Err: rpctypes.ErrGRPCNoLeader}}, rpctypes.ErrNoLeader, 0, 0},
		"two are refused, one unknown":        {[]fakeetcd.Fault{{Err: rpctypes.ErrGRPCRequestTooManyRequests}, {Err: rpctypes.ErrGRPCRequestTooManyRequests}, {Lose: fakeetcd.Answer}}, context.DeadlineExceeded, time.Second, 0},
		"one unknown, two are refused":        {[]fakeetcd.Fault{{Err: fakeetcd.ErrUnavailable, Lose: fakeetcd.Answer}, {After: late, Err: rpctypes.ErrGRPCRequestTooManyRequests}, {After: late, Err: rpctypes.ErrGRPCRequestTooManyRequests}}, fakeetcd.ErrUnavailable, 0, 0},
		"hedged, the first answers":           {nil, nil, 0, 1},
		"hedged, the first answers late":      {[]fakeetcd.Fault{{After: 250 * time.Millisecond}, hangs, hangs}, nil, 250 * time.Millisecond, 3},
		"hedged, the second answers":          {[]fakeetcd.Fault{hangs}, nil, pause, 2},
		"hedged, the third answers":           {[]fakeetcd.Fault{hangs, hangs}, nil, 2 * pause, 3},
		"hedged, the first fails":             {[]fakeetcd.Fault{{Err: fakeetcd.ErrUnavailable}}, fakeetcd.ErrUnavailable, 0, 1},
		"hedged, one hangs, the second fails": {[]fakeetcd.Fault{hangs, {Err: fakeetcd.ErrUnavailable}}, nil, 2 * pause, 3},
		"hedged, none answers":                {[]fakeetcd.Fault{hangs, hangs, hangs}, context.DeadlineExceeded, time.Second, 3},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			for _, f := range tc.faults {
				f.Times, f.Before = 1, time.Millisecond // so all copies are sent before the first is answered
				e.c.Inject(fakeetcd.Any, f)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var err error
			if tc.hedged > 0 {
				_, err = e.conn.Once(ctx).Beside(pause).Get("a")
			} else {
				_, err = e.conn.Once(ctx).WithCopies(len(tc.faults)).Txn(nil, []clientv3.Op{clientv3.OpPut("a", "")}, nil)
			}
			if tc.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.err.Error())
				require.Equal(t, name == "all are refused", etcd.Refused(err))
			}
			require.InDelta(t, tc.at, e.now(), float64(time.Millisecond))
			require.Len(t, slices.Concat(e.c.Calls(fakeetcd.Get), e.c.Calls(fakeetcd.Txn)), max(tc.hedged, len(tc.faults)))
			synctest.Wait()
		})
	}
}

// A request that is answered is not sent again, though Send waits for a copy that does not end with its context.
func TestSend_noCopyAfterTheAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var sent atomic.Int32
		_, err := etcd.Send(e.conn.Once(t.Context()).Beside(time.Second), func(context.Context) (any, error) {
			if sent.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			return nil, nil //nolint:nilnil // an answer
		})
		require.NoError(t, err)
		require.EqualValues(t, 2, sent.Load())
		require.Equal(t, time.Minute, e.now())
	})
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

func TestBackoff_bounds(t *testing.T) {
	var b etcd.Backoff
	for range 3 {
		for _, longest := range []int64{25, 50, 100, 200, 400, 800, 1000, 1000, 1000} {
			d := b.Next()
			require.LessOrEqual(t, d, time.Duration(longest)*time.Millisecond)
			require.GreaterOrEqual(t, d, time.Duration(longest)*time.Millisecond/2)
		}
		b.Reset()
	}
	seen := make(map[time.Duration]bool)
	for range 1000 { // no overflow, and different pauses
		d := b.Next()
		require.Positive(t, d)
		seen[d] = true
	}
	require.Greater(t, len(seen), 500)
}

// Short first attempts leave an endpoint that does not answer; longer ones later allow for a slow network.
func TestDo_attemptsGetMoreTime(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		seconds := []int{1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8}
		n := 0
		require.NoError(t, e.conn.Do(t.Context(), time.Second, func(a *etcd.Attempt) error {
			began := time.Now()
			<-a.Context().Done()
			got := time.Since(began)
			most := time.Duration(seconds[n]) * time.Second
			require.LessOrEqual(t, got, most)
			require.GreaterOrEqual(t, got, most/2)
			if n == 0 {
				require.Equal(t, time.Second, got)
			}
			if n++; n == len(seconds) {
				return nil
			}
			return a.Context().Err()
		}))
	})
}

// While ends with either of its contexts. The error is that one's cause, and contains the last attempt's failure only as
// text. An attempt's own time-out does not show in it.
func TestWhile_endsWithEitherContext(t *testing.T) {
	mine, lost := errors.New("mine"), errors.New("lost")
	hang := func(a *etcd.Attempt) error { <-a.Context().Done(); return a.Context().Err() }
	fail := func(*etcd.Attempt) error { return rpctypes.ErrNoLeader }
	for name, tc := range map[string]struct {
		first, then func(*etcd.Attempt) error
		failure     string
	}{
		"after a failure":   {fail, hang, " (last attempt: etcdserver: no leader)"},
		"during an attempt": {hang, hang, ""},
		"during a pause":    {fail, fail, " (last attempt: etcdserver: no leader)"},
	} {
		for _, ends := range []error{mine, lost} {
			bubbleOf(t, name+", "+ends.Error(), func(t *testing.T, e *env) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				life, end := context.WithCancelCause(t.Context())
				defer end(nil)
				time.AfterFunc(5300*time.Millisecond, func() { map[error]context.CancelCauseFunc{mine: cancel, lost: end}[ends](ends) })
				do := tc.first
				_, err := e.conn.While(ctx, life, 2*time.Second, func(a *etcd.Attempt) error {
					now := do
					do = tc.then
					return now(a)
				})
				require.EqualError(t, err, ends.Error()+tc.failure)
				require.ErrorIs(t, err, ends)
				require.NotErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, rpctypes.ErrNoLeader)
				require.Equal(t, 5300*time.Millisecond, e.now())

				_, err = e.conn.While(ctx, life, time.Second, func(*etcd.Attempt) error {
					require.Fail(t, "called")
					return nil
				})
				require.ErrorIs(t, err, ends, "the context had already ended")
			})
		}
	}
}

// Late reports whether the request may have been carried out, however the last attempt ended.
func TestWhile_late(t *testing.T) {
	for name, tc := range map[string]struct {
		fails []error // of the attempts before the last
		last  error
		late  bool
	}{
		"done at once":            {nil, nil, false},
		"refused":                 {nil, rpctypes.ErrPermissionDenied, false},
		"refused, then done":      {[]error{rpctypes.ErrTooManyRequests, etcd.ErrNotSent}, nil, false},
		"unknown, then done":      {[]error{rpctypes.ErrNoLeader}, nil, true},
		"unknown, then refused":   {[]error{rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests}, rpctypes.ErrPermissionDenied, true},
		"no space, then not done": {[]error{rpctypes.ErrNoSpace}, etcd.ErrNotDone, true},
		"unknown and final":       {nil, errors.New("x"), true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			fails := append(tc.fails, tc.last)
			late, err := e.conn.While(t.Context(), t.Context(), time.Second, func(*etcd.Attempt) error {
				fail := fails[0]
				fails = fails[1:]
				return fail
			})
			require.Equal(t, tc.last, err)
			require.Equal(t, tc.late, late)
			require.Empty(t, fails)
		})
	}
}

// Only a part that is refused because of some of its keys is sent again in smaller parts.
func TestInParts(t *testing.T) {
	list := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for name, tc := range map[string]struct {
		refuse   func(part []int) error
		refusals int
		sent     []int // sizes of the parts
		failed   []int
	}{
		"all goes well": {sent: []int{4, 4, 2}},
		"a key is forbidden": {
			refuse: func(part []int) error {
				if slices.Contains(part, 5) {
					return rpctypes.ErrPermissionDenied
				}
				return nil
			},
			refusals: math.MaxInt,
			sent:     []int{4, 4, 2, 1, 2, 1, 1, 2, 1}, failed: []int{5},
		},
		"all are forbidden": {
			refuse:   func([]int) error { return rpctypes.ErrPermissionDenied },
			refusals: 3, sent: []int{4, 2, 1}, failed: list,
		},
		"the server takes fewer": {
			refuse: func(part []int) error {
				if len(part) > 3 {
					return rpctypes.ErrTooManyOps
				}
				return nil
			},
			refusals: 1, sent: []int{4, 2, 2, 2, 2, 2},
		},
		"the password is wrong": {
			refuse:   func([]int) error { return rpctypes.ErrAuthFailed },
			refusals: math.MaxInt, sent: []int{4}, failed: list,
		},
		"nobody answers": {
			refuse:   func([]int) error { return rpctypes.ErrNoLeader },
			refusals: math.MaxInt, sent: []int{4}, failed: list,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var sent, done []int
			failed, err := etcd.InParts(list, 4, tc.refusals, func(part []int) error {
				sent = append(sent, len(part))
				if tc.refuse != nil {
					if err := tc.refuse(part); err != nil {
						return err
					}
				}
				done = append(done, part...)
				return nil
			})
			require.Equal(t, tc.failed, failed)
			require.Equal(t, tc.failed != nil, err != nil)
			require.Equal(t, tc.sent, sent)
			require.ElementsMatch(t, list, append(done, failed...))
		})
	}
}
