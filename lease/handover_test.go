package lease_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// puts reports whether a call is a transaction that enters a queue.
func puts(call fakeetcd.Call) bool {
	r, ok := call.Request.(*pb.TxnRequest)
	return ok && slices.ContainsFunc(r.Success, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
}

// Unlock gives up before its answer, or before it sends anything. The next caller has to find out what became of the
// request that enters for it, whether that arrived, did not, or arrives after the next caller has entered, holds, or has
// unlocked.
func TestHandOver_unlockGivesUp(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"not sent":             {},
		"answer lost":          {Times: 1, Lose: fakeetcd.Answer},
		"request lost":         {Times: 1, Lose: fakeetcd.Request},
		"arrives at once":      {Times: 1, Before: time.Second + 1, Late: true},
		"arrives soon":         {Times: 1, Before: 1500 * time.Millisecond, Late: true},
		"arrives during hold":  {Times: 1, Before: 4 * time.Second, Late: true},
		"arrives after it":     {Times: 1, Before: 30 * time.Second, Late: true},
		"all are slow":         {Times: 3, Before: 1500 * time.Millisecond, Late: true},
		"all are very slow":    {Times: 5, Before: 7 * time.Second, Late: true},
		"all answers are lost": {Times: 5, Lose: fakeetcd.Answer},
	} {
		inBubble(t, name, func(t *testing.T) {
			e, l, waiting := startLine(t, lease.Options{TTL: time.Hour}, 3)
			e.c.Inject(fakeetcd.Txn, fault)
			bound := time.Second
			if name == "not sent" {
				bound = 0
			}
			err := l.Unlock(timeout(t, bound))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, lease.ErrLost)
			got := granted(t, waiting[0])
			require.Greater(t, got.lock.Token(), l.Token())
			synctest.Wait()
			require.Equal(t, []string{got.lock.Key()}, e.keys(""))
			time.Sleep(5 * time.Second)
			requireLive(t, got.lock)
			pass(t, got.lock, waiting[1:]...)
			e.at(50 * time.Minute)
			require.Empty(t, e.keys(""))
		})
	}
}

// Every request to enter is refused. Unlock still releases the lock, and does not return the next caller's error.
func TestHandOver_refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l, waiting := startLine(t, lease.Options{}, 3)
		restore := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: errDenied, Match: puts})
		require.NoError(t, l.Unlock(t.Context()))
		for _, next := range waiting {
			got := receive(t, next)
			require.ErrorContains(t, got.err, rpctypes.Error(errDenied).Error())
			require.NotErrorIs(t, got.err, lease.ErrLost)
			require.Zero(t, got.at)
		}
		require.Empty(t, e.keys(""))
		require.Equal(t, lease.StateHeld, e.s.Status().State)
		restore()
		pass(t, e.lock(t, "a"), e.line(t, "a", 2)...)
		require.Empty(t, e.keys(""))
	})
}

// A full disk: Unlock releases at once, and the next caller waits until there is space or its context ends.
func TestHandOver_noSpace(t *testing.T) {
	for name, lose := range map[string]fakeetcd.Message{"not done": fakeetcd.Request, "done": fakeetcd.Answer} {
		inBubble(t, name, func(t *testing.T) {
			e, l, waiting := startLine(t, lease.Options{}, 3)
			restore := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: lose, Err: rpctypes.ErrGRPCNoSpace, Match: puts})
			require.NoError(t, l.Unlock(t.Context()))
			require.Zero(t, e.now())
			err := second(e.s.Lock(timeout(t, time.Minute), "b"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "database space exceeded")
			require.Less(t, len(e.c.Calls(fakeetcd.Txn)), 200, "retries with pauses")
			restore()
			got := granted(t, waiting[0])
			pass(t, got.lock, waiting[1:]...)
			require.Empty(t, e.keys(""))
		})
	}
}

// Somebody has put the very key with which the next caller was to enter.
func TestHandOver_keyIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l, waiting := startLine(t, lease.Options{}, 3)
		taken := make(chan string, 1)
		arrive := make(chan struct{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Until: arrive, Match: func(call fakeetcd.Call) bool {
			if !leaves(call) || !puts(call) {
				return false
			}
			taken <- string(call.Request.(*pb.TxnRequest).Success[2].GetRequestPut().Key)
			return true
		}})
		unlocked := later(func() error { return l.Unlock(t.Context()) })
		key := receive(t, taken)
		e.srv.Put(key, "theirs")
		close(arrive)
		require.NoError(t, receive(t, unlocked))
		got := granted(t, waiting[0])
		require.NotEqual(t, key, got.lock.Key())
		pass(t, got.lock, waiting[1:]...)
		e.at(time.Hour)
		require.Equal(t, []string{key}, e.keys(""), "nobody else's key is deleted")
	})
}
