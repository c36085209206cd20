package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// restored makes a client's cluster look restored: its revisions are lower by back. Those in answers to renewals, which
// may come from any member, are also lower by lag.
type restored struct{ back, lag atomic.Int64 }

// edit is for [fakeetcd.Client.EditAnswers].
func (r *restored) edit(m fakeetcd.Method, answer any) {
	resp, ok := answer.(interface{ GetHeader() *pb.ResponseHeader })
	if !ok {
		return
	}
	resp.GetHeader().Revision -= r.back.Load()
	if m == fakeetcd.KeepAliveOnce {
		resp.GetHeader().Revision -= r.lag.Load()
	}
}

// startRestored starts a session on a server with some history, whose revisions can be moved back.
func startRestored(t *testing.T, opts lease.Options) (*env, *restored) {
	t.Helper()
	srv := newServer(t)
	for range 50 {
		srv.Put("other", "")
	}
	r := &restored{}
	return open(t, srv, opts, func(c *fakeetcd.Client) { c.EditAnswers(r.edit) }), r
}

func TestSession_endsWhenRevisionsGoBack(t *testing.T) {
	for name, notice := range map[string]func(t *testing.T, e *env){
		"write": func(t *testing.T, e *env) {
			t.Helper()
			l, err := e.s.Lock(t.Context(), "other")
			require.Nil(t, l)
			require.ErrorIs(t, err, lease.ErrRestored)
		},
		"renewal": func(*testing.T, *env) { time.Sleep(third + time.Second) },
		"new lease": func(t *testing.T, e *env) {
			t.Helper()
			require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
			time.Sleep(third + time.Second)
			require.ErrorIs(t, second(e.s.Lock(t.Context(), "other")), lease.ErrRestored)
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			e, r := startRestored(t, lease.Options{})
			l := e.lock(t, "n")
			r.back.Store(40)
			notice(t, e)
			synctest.Wait()

			cause := context.Cause(l.Context())
			require.ErrorIs(t, cause, lease.ErrLost)
			if name != "new lease" {
				requireLost(t, cause, lease.ReasonRevisionWentBack)
				require.ErrorIs(t, cause, lease.ErrRestored)
				require.Equal(t, lease.StateLost, e.s.Status().State)
			}
			for range 2 {
				err := second(e.s.TryLock(t.Context(), "n"))
				require.ErrorIs(t, err, lease.ErrRestored)
				require.NotErrorIs(t, err, lease.ErrLost, "otherwise it would be retried forever")
				restored, ok := errors.AsType[*lease.RestoredError](err)
				require.True(t, ok)
				require.GreaterOrEqual(t, restored.Highest, l.Token().Revision())
				require.Less(t, restored.Revision, l.Token().Revision())
				require.Regexp(t, "raise Options.Era, which is 0$", restored.Error())
			}
			synctest.Wait()
			require.Equal(t, 1, strings.Count(e.log.String(), "raise the era"))
			// No other session of the process issues a lower token either, unless its era is higher, or the revisions are above
			// all that were seen before.
			require.ErrorIs(t, second(lease.NewSession(t.Context(), e.c.Client, lease.Options{})), lease.ErrRestored)
			for _, era := range []uint16{1, 0} {
				next, err := lease.NewSession(t.Context(), e.c.Client, lease.Options{Era: era})
				require.NoError(t, err)
				again, err := next.Lock(t.Context(), "again")
				require.NoError(t, err)
				require.Greater(t, again.Token(), l.Token())
				require.NoError(t, next.Close(t.Context()))
				for range 40 {
					e.srv.Put("other", "")
				}
				require.ErrorIs(t, second(e.s.TryLock(t.Context(), "n")), lease.ErrRestored, "the end of a session is final")
			}
			require.NoError(t, e.s.Close(t.Context()))
		})
	}
}

// An answer that others have overtaken carries a lower revision than theirs. It is compared with the highest revision
// known when its request was sent.
func TestSession_answersThatCrossAreNoRestore(t *testing.T) {
	for name, tc := range map[string]struct {
		slow fakeetcd.Method
		ask  func(t *testing.T, e *env, r *restored)
	}{
		"lock": {fakeetcd.Txn, func(t *testing.T, e *env, _ *restored) {
			t.Helper()
			l := e.lock(t, "slow")
			require.NoError(t, l.Err())
		}},
		"grant": {fakeetcd.Grant, func(t *testing.T, e *env, _ *restored) {
			t.Helper()
			next, err := lease.NewSession(t.Context(), e.c.Client, lease.Options{})
			require.NoError(t, err)
			require.NoError(t, next.Close(t.Context()))
		}},
		"look after a renewal": {fakeetcd.Get, func(t *testing.T, e *env, r *restored) {
			t.Helper()
			r.lag.Store(40)
			require.NoError(t, e.srv.Await(t.Context(), func() bool { return len(e.c.Calls(fakeetcd.Get)) > 0 }))
			r.lag.Store(0)
		}},
	} {
		inBubble(t, name, func(t *testing.T) {
			e, r := startRestored(t, lease.Options{})
			l := e.lock(t, "n")
			answered := make(chan struct{})
			e.c.Inject(tc.slow, fakeetcd.Fault{Times: 1, After: time.Second, OnAnswer: func() { close(answered) }})
			asked := make(chan struct{})
			go func() { defer close(asked); tc.ask(t, e, r) }()
			<-answered
			fast := e.lock(t, "fast")
			<-asked
			time.Sleep(2 * time.Second)
			require.NoError(t, l.Err())
			require.NoError(t, fast.Err())
		})
	}
}

// A member that lags answers renewals with old revisions. That proves nothing, and costs one read.
func TestSession_lagIsNoRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, r := startRestored(t, lease.Options{})
		r.lag.Store(40)
		time.Sleep(ttl - time.Second)
		require.Empty(t, e.c.Calls(fakeetcd.Get), "nothing is held")
		l := e.lock(t, "n")
		time.Sleep(2 * time.Second)
		require.Len(t, e.c.Calls(fakeetcd.Get), 1)
		require.NoError(t, context.Cause(l.Context()))
		require.Equal(t, lease.StateHeld, e.s.Status().State)
		r.lag.Store(0)
		time.Sleep(ttl)
		require.Len(t, e.c.Calls(fakeetcd.Get), 1)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

func TestLock_Explain(t *testing.T) {
	bubbleWith(t, lease.Options{Era: 2}, func(t *testing.T, e *env) {
		l := e.lock(t, "n")
		own := l.Token()
		mark := func(era uint16, rev int64) fence.Token {
			token, err := fence.NewToken(era, rev)
			require.NoError(t, err)
			return token
		}
		for name, row := range map[string]struct {
			err      error
			restored bool
		}{
			"none":                     {nil, false},
			"another error":            {errors.New("no"), false},
			"no mark":                  {&fence.StaleError{Token: own}, false},
			"ordinary":                 {&fence.StaleError{Token: own, Highest: mark(2, e.srv.Rev())}, false},
			"later era":                {&fence.StaleError{Token: own, Highest: mark(3, e.srv.Rev()+50)}, false},
			"somebody else's token":    {&fence.StaleError{Token: own + 1, Highest: mark(2, e.srv.Rev()+50)}, false},
			"not given out yet":        {&fence.StaleError{Token: own, Highest: mark(2, e.srv.Rev()+1)}, true},
			"not given out yet, deep":  {fmt.Errorf("write: %w", &fence.StaleError{Token: own, Highest: mark(2, 1<<40)}), true},
			"nothing but the sentinel": {fence.ErrStale, false},
		} {
			got := l.Explain(t.Context(), row.err)
			if !row.restored {
				require.Equal(t, row.err, got, name)
				continue
			}
			require.ErrorIs(t, got, lease.ErrRestored, name)
			require.ErrorIs(t, got, fence.ErrStale, name)
			require.ErrorIs(t, got, row.err, name)
			require.ErrorContains(t, got, "raise Options.Era, which is 2", name)
		}
		require.NoError(t, l.Err(), "it only reads")

		// Explain also works on a handle that has ended, and if etcd does not answer.
		stale := &fence.StaleError{Token: own, Highest: mark(2, e.srv.Rev()+50)}
		require.NoError(t, l.Unlock(t.Context()))
		require.ErrorIs(t, l.Explain(t.Context(), stale), lease.ErrRestored)
		e.c.Cut()
		err := l.Explain(timeout(t, time.Minute), stale)
		require.ErrorIs(t, err, fence.ErrStale)
		require.NotErrorIs(t, err, lease.ErrRestored)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		e.c.Restore()

		// The refusal of a reader's token is explained to that reader, and not to a writer with the same number.
		reader := e.rlock(t, "n")
		stale = &fence.StaleError{Token: fence.Token(reader.Token()), Highest: fence.Token(reader.Token()) + 1000, Read: true}
		require.ErrorIs(t, reader.Explain(t.Context(), stale), lease.ErrRestored)
		stale.Read = false
		require.Equal(t, error(stale), reader.Explain(t.Context(), stale))
	})
}

// A restore that nothing reports brings a released key back on the lease. The session deletes it, and nothing else, as
// soon as it has a reason to look.
func TestSession_reclaimsKeysThatComeBack(t *testing.T) {
	for name, trouble := range map[string]func(e *env){
		"a renewal fails": func(e *env) {
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: rpctypes.ErrGRPCStopped, Times: 1})
		},
		"a renewal is not answered, and its stream is left": func(e *env) {
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Before: 3 * ttl})
		},
		"a stream breaks while no renewal is under way": func(e *env) { e.c.BreakKeepAlives(rpctypes.ErrGRPCStopped) },
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			id := e.s.Status().LeaseID
			gone := e.lock(t, "n")
			require.NoError(t, gone.Unlock(t.Context()))
			held := e.lock(t, "held")
			e.put(t, gone.Key(), "", id)
			others := fmt.Sprintf("n/%x-another", int64(id))
			e.put(t, others, "", id)
			time.Sleep(third + time.Second)
			require.ElementsMatch(t, []string{gone.Key(), others, held.Key()}, e.keys(""), "there is no reason to look")

			for range 2 { // as often as it comes back
				e.put(t, gone.Key(), "", id)
				trouble(e)
				time.Sleep(2 * ttl)
				synctest.Wait()
				require.ElementsMatch(t, []string{others, held.Key()}, e.keys(""))
			}
			require.NoError(t, held.Err())
			require.NoError(t, e.s.Close(t.Context()))
		})
	}
}

// A key that is released while the session looks has not come back.
func TestSession_reclaimsNothingReleasedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "n")
		e.at(third - time.Second)
		e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: rpctypes.ErrGRPCStopped, Times: 1})
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{After: 2 * time.Second})
		e.at(third + time.Second)
		require.Len(t, e.c.Calls(fakeetcd.TimeToLive), 1, "the key is read, and the answer under way")
		require.NoError(t, l.Unlock(t.Context()))
		e.at(2 * third)
		require.NotContains(t, e.log.String(), "restored")
		again := e.lock(t, "n")
		require.Equal(t, l.Key(), again.Key(), "it may be used again")
		require.NoError(t, again.Unlock(t.Context()))
	})
}

// A session that holds nothing still notices a restore that takes revisions back, and releases the keys that came back.
func TestSession_endsWhenRevisionsGoBackWhileItHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, r := startRestored(t, lease.Options{})
		gone := e.lock(t, "n")
		require.NoError(t, gone.Unlock(t.Context()))
		e.put(t, gone.Key(), "", e.s.Status().LeaseID)
		r.back.Store(40)
		time.Sleep(third + time.Second)
		require.Equal(t, lease.StateLost, e.s.Status().State)
		time.Sleep(3 * third)
		require.Empty(t, e.keys("n/"), "nobody renews the lease")
		require.NoError(t, e.s.Close(t.Context()))
	})
}
