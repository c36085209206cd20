package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

// A set takes one transaction to enter and one to leave, however many names it has, and has one token for all.
func TestSession_LockAll_entersAtOnce(t *testing.T) {
	for _, n := range []int{1, 8, 64} {
		bubble(t, func(t *testing.T, e *env) {
			var names []string
			for i := range n {
				names = append(names, fmt.Sprint("n", i))
			}
			before := len(e.writes())
			l, err := e.s.LockAll(t.Context(), append(names, "n0")...)
			require.NoError(t, err)
			require.Len(t, e.writes()[before:], 1)
			require.Equal(t, names, l.Names())
			require.Len(t, e.srv.Keys("n"), n)
			for _, kv := range e.srv.Keys("n") {
				require.Equal(t, l.Token().Revision(), kv.CreateRevision)
			}
			got, _ := fence.FromContext(l.Context())
			require.Equal(t, l.Token(), got)
			require.NoError(t, l.Unlock(t.Context()))
			require.Len(t, e.writes()[before:], 2)
			require.Empty(t, e.srv.Keys("n"))
		})
	}
}

// Somebody deletes a key of the set, and Unlock reports that and leaves what stands there since. If the first request is
// lost on its way, the retry still finds the other key, so that deletion was not our own.
func TestLockSet_Unlock_aKeyIsMissing(t *testing.T) {
	for name, meanwhile := range map[string]func(e *env, key string){
		"put by somebody else": func(e *env, key string) { e.srv.Put(key, "somebody else's") },
		"request repeated": func(e *env, _ string) {
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable})
			n := 0 // the retry has two copies, of which the second would find no key at all
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: func(fakeetcd.Call) bool { n++; return n == 2 }, Before: time.Second})
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l, err := e.s.LockAll(t.Context(), "a", "b")
			require.NoError(t, err)
			key := e.keys("b/")[0]
			require.True(t, e.srv.Delete(key))
			meanwhile(e, key)
			left := e.keys("b/")
			err = l.Unlock(t.Context())
			require.Equal(t, key, lossOf(t, err, lease.ReasonKeyDeleted).Key)
			require.ErrorContains(t, err, `lease: unlock ["a" "b"]: `)
			require.Equal(t, left, e.keys(""))
		})
	}
}

// A set has entered behind nested names, and the read of who was faster fails. Before the retry somebody deletes a key.
func TestSession_TryLockAll_aKeyGoesBeforeItIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.srv.Put("a/jobs/1", "")
		require.NoError(t, e.lock(t, "a").Unlock(t.Context())) // now the session knows that there are nested names
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1})     // the read before it enters
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, OnAnswer: func() {
			require.True(t, e.srv.Delete(e.keys("b/")[0]))
		}})
		_, err := e.s.TryLockAll(t.Context(), "a", "b")
		requireLost(t, err, lease.ReasonKeyDeleted)
		e.at(time.Minute)
		require.Equal(t, []string{"a/jobs/1"}, e.keys(""))

		// If somebody has put another key there, the set's other key is deleted too.
		gets := 0
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCRequestTooManyRequests, OnRequest: func() {
			e.srv.Put(e.keys("b/")[0], "somebody else's")
		}, Match: func(fakeetcd.Call) bool { gets++; return gets == 2 }})
		l, err := e.s.TryLockAll(t.Context(), "a", "b")
		if err == nil { // the deletion came before the next attempt
			require.NoError(t, l.Unlock(t.Context()))
		} else {
			require.ErrorIs(t, err, lease.ErrLocked)
		}
		e.at(2 * time.Minute)
		require.Equal(t, []string{"a/jobs/1"}, e.keys("a/"))
	})
}

// A waiter learns at once that one of its keys is gone, whichever it waits for at the time, and leaves the other
// queues.
func TestSession_LockAll_losesAKeyWhileItWaits(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			held := e.join(t).lock(t, "b")
			set := later(func() error { return second(e.s.LockAll(t.Context(), "a", "b", "c")) })
			e.at(time.Second)
			i := slices.IndexFunc(e.keys(name+"/"), func(key string) bool { return key != held.Key() })
			require.True(t, e.srv.Delete(e.keys(name + "/")[i]))
			requireLost(t, receive(t, set), lease.ReasonKeyDeleted)
			e.at(2 * time.Second)
			require.Equal(t, []string{held.Key()}, e.keys(""))
		})
	}
}

// Sets of random names in random orders are all served, one at a time and in the order of their revisions for each name.
func TestSession_LockAll_neverDeadlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions, turns = 20, 50 // a thousand sets
		var held [8]sync.Mutex
		var marks fence.Guard
		turn := func(s *lease.Session) error {
			set := rand.Perm(len(held))[:2+rand.IntN(4)]
			var names []string
			for _, i := range set {
				names = append(names, strconv.Itoa(i))
			}
			return s.DoAll(t.Context(), names, func(_ context.Context, token fence.Token) error {
				for n, i := range set {
					if !held[i].TryLock() {
						return fmt.Errorf("%d is held", i)
					}
					defer held[i].Unlock()
					if err := marks.Claim(names[n], token); err != nil {
						return err
					}
				}
				time.Sleep(rand.N(20 * time.Millisecond))
				return nil
			})
		}
		srv := newServer(t)
		done := make(chan error, sessions)
		for range sessions {
			s := open(t, srv, lease.Options{}).s
			go func() {
				var err error
				for n := 0; n < turns && err == nil; n++ {
					err = turn(s)
				}
				done <- err
			}()
		}
		for range sessions {
			require.NoError(t, receive(t, done))
		}
		time.Sleep(time.Minute)
		require.Empty(t, srv.Keys(""))
	})
}

// One name of a set has nested names: only its queue is read by names, and the others cost no request of their own.
func TestSession_TryLockAll_oneQueueWithNestedNames(t *testing.T) {
	for name, taken := range map[string]bool{"free": false, "one taken": true} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			var names []string
			for i := range queue.MostInSet {
				names = append(names, fmt.Sprintf("n%02d", i))
			}
			e.srv.Put("n05/nested/x", "")
			if taken {
				e.join(t).lock(t, "n06")
			}
			before := len(e.c.Calls(fakeetcd.Any))
			_, err := e.s.TryLockAll(t.Context(), names...)
			if taken {
				require.ErrorContains(t, err, `"n06" is held by`)
			} else {
				require.NoError(t, err)
			}
			require.LessOrEqual(t, len(e.c.Calls(fakeetcd.Any))-before, 6)
		})
	}
}

// A node's token goes with its writes: an earlier holder of a node above or below is refused once the new holder has
// claimed.
func TestSession_DoTree_carriesTheToken(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var g fence.Guard
		claim := func(path string) (token fence.Token) {
			err := e.s.DoTree(t.Context(), path, func(ctx context.Context, got fence.Token) error {
				token, _ = fence.FromContext(ctx)
				return errors.Join(g.ClaimPath(path, got), ctx.Err())
			})
			require.NoError(t, err)
			return token
		}
		below, beside, above := claim("a/b/c"), claim("a/d"), claim("a/b")
		require.ErrorIs(t, g.CheckPath("a/b/c", below), fence.ErrStale)
		require.NoError(t, g.CheckPath("a/d", beside))
		below = claim("a/b/c")
		require.ErrorIs(t, g.CheckPath("a/b", above), fence.ErrStale)
		require.NoError(t, g.CheckPath("a/b/c", below))
		require.Empty(t, e.keys(""))
	})
}
