package lease_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lease.Options{})
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

// crowd starts n callers that wait for the lock in no particular order.
func (e *env) crowd(ctx context.Context, name string, n int) <-chan acquired {
	got := make(chan acquired, n)
	for range n {
		go func() {
			l, err := e.s.Lock(ctx, name)
			got <- acquired{l, err, e.now()}
		}()
	}
	synctest.Wait()
	return got
}

// However many callers wait in a process, one of them stands in etcd's queue, and none sends requests while it waits. A
// release takes one request.
func TestTurns_aThousandWaitersCostAsMuchAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 1000
		a := start(t, lease.Options{})
		b := a.join(t)
		l := a.lock(t, "a")
		got := b.crowd(t.Context(), "a", waiters)
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
		for i := range waiters {
			next := granted(t, got).lock
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
							l, err := e.s.Lock(t.Context(), "a")
							if err != nil {
								t.Error(err)
								return
							}
							time.Sleep(time.Millisecond)
							if err := l.Unlock(t.Context()); err != nil {
								t.Error(err)
							}
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
