package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// line starts n callers that wait for the lock, in this order.
func (e *env) line(t *testing.T, name string, n int) []<-chan acquired {
	t.Helper()
	var waiting []<-chan acquired
	for range n {
		waiting = append(waiting, e.wait(t.Context(), name))
	}
	return waiting
}

// startLine starts a session that holds a lock for which n of its callers wait.
func startLine(t *testing.T, opts lease.Options, n int) (*env, *lease.Lock, []<-chan acquired) {
	t.Helper()
	e := start(t, opts)
	l := e.lock(t, "a")
	return e, l, e.line(t, "a", n)
}

// pass unlocks l, and then each waiter's lock, and checks that the waiters get it in this order, one at a time, each
// with a larger token.
func pass(t *testing.T, l *lease.Lock, waiting ...<-chan acquired) {
	t.Helper()
	for i, next := range waiting {
		synctest.Wait()
		for _, w := range waiting[i:] {
			requirePending(t, w)
		}
		require.NoError(t, l.Unlock(t.Context()))
		got := receive(t, next)
		require.NoError(t, got.err, "number %d of %d", i, len(waiting))
		require.Greater(t, got.lock.Token(), l.Token())
		requireLive(t, got.lock)
		l = got.lock
	}
	require.NoError(t, l.Unlock(t.Context()))
}

// A session that hands over to itself does not delay others: its next caller goes to the back of etcd's queue.
func TestTurns_othersComeInBetween(t *testing.T) {
	bubble(t, func(t *testing.T, a *env) {
		b, c := a.join(t), a.join(t)
		l := a.lock(t, "a")
		as := a.line(t, "a", 4)
		bs := b.line(t, "a", 2)
		cs := c.line(t, "a", 1)
		require.Len(t, a.keys(""), 3, "one of each session")
		pass(t, l, bs[0], cs[0], as[0], bs[1], as[1], as[2], as[3])
		require.Zero(t, a.now(), "no time is lost between two holders")
		require.Empty(t, a.keys(""))
	})
}

// However many callers wait in a process, one of them stands in etcd's queue, and none sends requests while it waits. A
// release takes one request.
func TestTurns_aThousandWaitersCostAsMuchAsOne(t *testing.T) {
	bubble(t, func(t *testing.T, a *env) {
		const waiters = 1000
		b := a.join(t)
		l := a.lock(t, "a")
		waiting := b.line(t, "a", waiters)
		require.Len(t, a.keys(""), 2)
		a.at(time.Second)
		require.LessOrEqual(t, len(b.c.Calls(fakeetcd.Watch)), 2)
		idle := func() int { return len(b.calls()) }
		before := idle()
		require.Less(t, before, 10)
		a.at(time.Hour)
		require.Equal(t, before, idle())

		require.NoError(t, l.Unlock(t.Context()))
		token, key := l.Token(), l.Key()
		for i, w := range waiting {
			next := granted(t, w).lock
			require.Greater(t, next.Token(), token)
			require.NotEqual(t, key, next.Key(), "a request of the old hold must not meet the new one's key")
			token, key = next.Token(), next.Key()
			require.Equal(t, []string{key}, a.keys(""))
			before, rev := idle(), a.srv.Rev()
			require.NoError(t, next.Unlock(t.Context()))
			require.Equal(t, rev+1, a.srv.Rev(), "Unlock and the next grant are one commit")
			if i > 0 { // before that, token is of the first in etcd's queue; and the first release also ends the watches
				require.Equal(t, fence.Token(rev), token)
				require.Equal(t, before+1, idle(), "requests for a release")
			}
		}
		require.Equal(t, time.Hour, a.now(), "without delay")
		require.Empty(t, a.keys(""))
	})
}

// If sessions take a lock in turns, a turn costs a request to enter and one to leave. Behind a waiter it costs one more
// read.
func TestSession_Lock_requestsATurn(t *testing.T) {
	for clients, most := range map[int]float64{2: 2.1, 3: 2.1, 8: 3.2, 32: 3.2} {
		inBubble(t, fmt.Sprint(clients), func(t *testing.T) {
			srv := newServer(t)
			var sessions []*env
			for range clients {
				e := open(t, srv, lease.Options{TTL: time.Hour})
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Millisecond, After: time.Millisecond / 2})
				e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Millisecond / 2})
				sessions = append(sessions, e)
			}
			sent := func() (n int) {
				for _, e := range sessions {
					n += len(e.c.Calls(fakeetcd.Any))
				}
				return n
			}
			rounds := func(n int) {
				var all sync.WaitGroup
				for _, e := range sessions {
					all.Go(func() {
						for range n {
							assert.NoError(t, kinds["lock a"].do(t.Context(), e.s, func() { time.Sleep(time.Millisecond) }))
						}
					})
				}
				all.Wait()
			}
			rounds(3) // until each stands behind the same key again
			before := sent()
			const turns = 30
			rounds(turns)
			a := float64(sent()-before) / float64(turns*clients)
			t.Logf("%.2f requests a turn", a)
			require.LessOrEqual(t, a, most)
		})
	}
}

var errMine = errors.New("mine")

// A waiter that gives up in the session's order leaves nothing behind, wherever it stands, and the others go on.
func TestTurns_waiterGivesUp(t *testing.T) {
	const waiters = 6
	for name, quitters := range map[string][]int{
		"first": {0}, "middle": {2}, "last": {waiters - 1}, "neighbours": {1, 2, 3}, "all but the last": {0, 1, 2, 3, 4}, "all": {0, 1, 2, 3, 4, 5},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			var waiting []<-chan acquired
			var cancels []context.CancelCauseFunc
			for range waiters {
				ctx, cancel := context.WithCancelCause(t.Context())
				waiting, cancels = append(waiting, e.wait(ctx, "a")), append(cancels, cancel)
			}
			e.at(time.Second)
			sent := len(e.c.Calls(fakeetcd.Any))
			for _, i := range quitters {
				cancels[i](errMine)
				got := receive(t, waiting[i])
				require.ErrorIs(t, got.err, errMine)
				require.NotErrorIs(t, got.err, lease.ErrLost)
				require.Equal(t, time.Second, got.at)
			}
			require.Len(t, e.c.Calls(fakeetcd.Any), sent, "they never entered etcd's queue")
			for i := range slices.Backward(waiting) {
				if slices.Contains(quitters, i) {
					waiting = slices.Delete(waiting, i, i+1)
				}
			}
			pass(t, l, waiting...)
			require.Empty(t, e.keys(""))
		})
	}
}

// The caller gives up just as its turn comes. In either order of the two, the lock goes to it or to the next caller.
func TestTurns_waiterGivesUpAsItsTurnComes(t *testing.T) {
	for round := range 300 {
		bubble(t, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			ctx, cancel := context.WithCancelCause(t.Context())
			one, two := e.wait(ctx, "a"), e.wait(ctx, "a")
			three := e.wait(t.Context(), "a")
			go func() {
				for range rand.N(20) {
					runtime.Gosched()
				}
				cancel(errMine)
			}()
			if round%2 == 0 { // in the middle of the request, or before or after it
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Millisecond})
			}
			require.NoError(t, l.Unlock(t.Context()))
			for _, quitter := range []<-chan acquired{one, two} {
				if got := receive(t, quitter); got.err != nil {
					require.ErrorIs(t, got.err, errMine)
				} else {
					requirePending(t, three)
					require.NoError(t, got.lock.Unlock(t.Context()))
				}
			}
			got := granted(t, three)
			require.LessOrEqual(t, got.at, time.Millisecond)
			require.Equal(t, []string{got.lock.Key()}, e.keys(""))
			require.NoError(t, got.lock.Unlock(t.Context()))
			synctest.Wait()
			require.Empty(t, e.keys(""))
		})
	}
}

// The first of the session gives up while it stands in etcd's queue. The next caller inherits its place, if its key
// would have the same text for people.
func TestTurns_placeInTheQueueIsInherited(t *testing.T) {
	for name, tc := range map[string]struct {
		heir      string
		inherited bool
	}{"same text": {"same", true}, "other text": {"other", false}} {
		bubbleOf(t, name, func(t *testing.T, a *env) {
			b := open(t, a.srv, lease.Options{Owner: "same"})
			c := a.join(t)
			l := a.lock(t, "a")
			a.at(time.Second)
			ctx, cancel := context.WithCancelCause(t.Context())
			first := b.wait(ctx, "a")
			between := c.wait(t.Context(), "a")
			heir := b.wait(t.Context(), "a", lease.WithOwner(tc.heir))
			last := b.wait(t.Context(), "a")
			a.at(2 * time.Second)
			require.Len(t, a.keys(""), 3)
			rev := a.srv.Rev()
			cancel(errMine)
			require.ErrorIs(t, receive(t, first).err, errMine)
			synctest.Wait()
			require.Len(t, a.keys(""), 3)
			require.Equal(t, tc.inherited, rev == a.srv.Rev())
			require.Equal(t, tc.inherited, a.srv.Keys("")[1].CreateRevision < a.srv.Keys("")[2].CreateRevision)
			if tc.inherited {
				pass(t, l, heir, between, last)
			} else {
				pass(t, l, between, heir, last)
			}
			synctest.Wait()
			require.Empty(t, a.keys(""))
		})
	}
}

// An operator deletes the holder's key, after the holder's context has ended, while its function goes on. The hold is
// lost, and the next caller of the session need not wait for its Unlock.
func TestTurns_holdersKeyIsDeleted_contextHasEnded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *env){
		"asked to release":  func(t *testing.T, e *env) { t.Helper(); e.release(t, "a", lease.ReleaseOptions{}) },
		"held for too long": func(*testing.T, *env) {},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l := e.lock(t, "a", lease.WithMaxHold(time.Second))
			next := e.wait(t.Context(), "a")
			end(t, e)
			e.at(2 * time.Second)
			require.Error(t, l.Err())
			requirePending(t, next)
			require.True(t, e.srv.Delete(l.Key()))
			got := granted(t, next)
			requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted)
			require.NoError(t, got.lock.Unlock(t.Context()))
			require.Empty(t, e.keys(""))
		})
	}
}

// An operator overwrites the holder's key, which stays: the old hold is lost, and nobody gets the lock until it is
// unlocked.
func TestTurns_holdersKeyIsOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l, waiting := startLine(t, lease.Options{}, 3)
		e.at(time.Second)
		e.srv.Put(l.Key(), "mine")
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyOverwritten)
		e.at(time.Minute)
		requirePending(t, waiting[0])
		requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyOverwritten)
		got := granted(t, waiting[0])
		require.LessOrEqual(t, got.at, time.Minute+time.Second)
		pass(t, got.lock, waiting[1:]...)
		synctest.Wait()
		require.Empty(t, e.keys(""))
	})
}

// Of the waiters of a session, only the one whose key is deleted reports a loss. It may learn of that from a read of
// the queue, before its key is watched, or from the watch.
func TestTurns_waitersKeyIsDeleted(t *testing.T) {
	for name, at := range map[string]time.Duration{"before the watch": watchAfter / 2, "watched": time.Second} {
		bubbleOf(t, name, func(t *testing.T, a *env) {
			b, c := a.join(t), a.join(t)
			l := a.lock(t, "a")
			ahead := b.wait(t.Context(), "a")
			first := c.wait(t.Context(), "a")
			key := a.srv.Leases()[2].Keys[0]
			waiting := c.line(t, "a", 3)
			a.at(at - 1)
			require.True(t, a.srv.Delete(key))
			require.NoError(t, l.Unlock(t.Context())) // first looks at the queue now
			got := receive(t, first)
			require.Equal(t, key, lossOf(t, got.err, lease.ReasonKeyDeleted).Key)
			require.LessOrEqual(t, got.at, at)
			pass(t, receive(t, ahead).lock, waiting...)
			require.Empty(t, a.keys(""))
		})
	}
}
