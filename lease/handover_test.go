package lease_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
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

// Unlock, or the next caller, gives up while the request that releases the lock and enters for the next caller is under
// way, lost or not sent yet. A second Unlock waits for the deletion, after which the lock counts as unlocked. The next
// caller that waits gets the lock, whether the request arrived, did not, or arrives after that caller has entered, holds,
// or has unlocked. It inherits the place of the one that gave up; with another text for people it enters by itself.
func TestHandOver_isDisturbed(t *testing.T) {
	lost := fakeetcd.ErrUnavailable
	for name, tc := range map[string]struct {
		fault fakeetcd.Fault
		bound time.Duration // of Unlock, a second if it is 0
		cut   bool          // for ten seconds
		took  time.Duration // by two calls of Unlock, at most; 0: any time
	}{
		"not sent":                  {bound: -1},
		"request lost":              {fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request}, took: time.Second},
		"answer lost":               {fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer}, took: time.Second},
		"answer lost with an error": {fault: fakeetcd.Fault{Times: 1, After: 2 * time.Second, Lose: fakeetcd.Answer, Err: lost}},
		"answers lost with errors":  {fault: fakeetcd.Fault{Times: 3, After: 700 * time.Millisecond, Lose: fakeetcd.Answer, Err: lost}},
		"three answers lost":        {fault: fakeetcd.Fault{Times: 3, Lose: fakeetcd.Answer}, took: attempt + 2*time.Second},
		"five answers lost":         {fault: fakeetcd.Fault{Times: 5, Lose: fakeetcd.Answer}},
		"request under way":         {fault: fakeetcd.Fault{Times: 1, Before: 2 * time.Second}},
		"answer under way":          {fault: fakeetcd.Fault{Times: 1, After: 2 * time.Second}},
		"arrives at once":           {fault: fakeetcd.Fault{Times: 1, Before: time.Second + 1, Late: true}},
		"arrives soon":              {fault: fakeetcd.Fault{Times: 1, Before: 1500 * time.Millisecond, Late: true}},
		"arrives during the hold":   {fault: fakeetcd.Fault{Times: 1, Before: 4 * time.Second, Late: true}},
		"arrives later":             {fault: fakeetcd.Fault{Times: 1, Before: 7 * time.Second, Late: true}, took: time.Second},
		"arrives after the hold":    {fault: fakeetcd.Fault{Times: 1, Before: 30 * time.Second, Late: true}},
		"two arrive later":          {fault: fakeetcd.Fault{Times: 2, Before: 7 * time.Second, Late: true}},
		"three arrive soon":         {fault: fakeetcd.Fault{Times: 3, Before: 1500 * time.Millisecond, Late: true}},
		"five arrive later":         {fault: fakeetcd.Fault{Times: 5, Before: 7 * time.Second, Late: true}},
		"cut off":                   {cut: true, took: 10 * time.Second},
		"slow throughout":           {fault: fakeetcd.Fault{Before: 2 * time.Second}, took: 3 * time.Second},
	} {
		for _, who := range []string{"Unlock", "Unlock, and again", "the waiter", "the waiter, another text"} {
			unlockGivesUp := strings.HasPrefix(who, "Unlock")
			if !unlockGivesUp && tc.bound != 0 {
				continue
			}
			inBubble(t, name+", "+who, func(t *testing.T) {
				text := "same"
				if strings.HasSuffix(who, "text") {
					text = "other"
				}
				e := start(t, lease.Options{Owner: "same"})
				l := e.lock(t, "a")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				waiting := []<-chan acquired{e.wait(ctx, "a"), e.wait(t.Context(), "a", lease.WithOwner(text)), e.wait(t.Context(), "a")}
				e.c.Inject(fakeetcd.Txn, tc.fault)
				if tc.cut {
					e.c.Cut()
					time.AfterFunc(10*time.Second, e.c.Restore)
				}
				if unlockGivesUp {
					err := l.Unlock(timeout(t, cmp.Or(tc.bound, time.Second)))
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.NotErrorIs(t, err, lease.ErrLost)
				} else {
					unlocked := later(func() error { return l.Unlock(t.Context()) })
					e.at(time.Second)
					cancel(errMine)
					got := receive(t, waiting[0])
					require.ErrorIs(t, got.err, errMine)
					require.Equal(t, time.Second, got.at)
					require.NoError(t, receive(t, unlocked))
					waiting = waiting[1:]
				}
				if who == "Unlock, and again" {
					err := l.Unlock(timeout(t, 0))
					if err != nil { // nil: it was deleted in the background
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.NotErrorIs(t, err, lease.ErrUnlocked)
						require.ErrorContains(t, err, "in the background")
						require.NoError(t, l.Unlock(t.Context()))
					}
					if tc.took > 0 {
						require.Less(t, e.now(), tc.took+100*time.Millisecond) // other requests may share its line
					}
					require.NotContains(t, e.keys(""), l.Key())
					require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrUnlocked)
				}
				next := granted(t, waiting[0]).lock
				require.Greater(t, next.Token(), l.Token())
				synctest.Wait()
				require.Equal(t, []string{next.Key()}, e.keys(""))
				require.Equal(t, text, string(e.srv.Keys("")[0].Value))
				time.Sleep(5 * time.Second)
				requireLive(t, next)
				pass(t, next, waiting[1:]...)
				e.at(time.Hour)
				require.Empty(t, e.keys(""))
			})
		}
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
