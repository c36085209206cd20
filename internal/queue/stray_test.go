package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/queue"
)

// Where the oldest key is no contender it is not known who is the owner, so one read follows the event.
func TestQueue_Await_strayIsTheOldest(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		other := e.another(t)
		e.plant(t, "a/z", 1)
		first := other.enter(t, "1")
		second := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.at(time.Second)
		requirePending(t, two)
		before := e.requests()
		other.leave(t, first)
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Equal(t, time.Second, got.at)
		require.LessOrEqual(t, e.requests(), before+3, "a look, and pages of the scan past the stray")
	})
}

// A key that is no contender is not waited for, and its end is nobody's turn.
func TestQueue_Await_strayIsTheNearest(t *testing.T) {
	for name, key := range map[string]string{"stray": "a/zz", "nested": "a/b/zz", "stays": "a/stays"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				other := e.another(t)
				first := other.enter(t, "1")
				e.srv.Put(key, "")
				second := e.enter(t, "2")
				require.Equal(t, key, second.ahead.Key)
				two := e.await(t.Context(), second)
				require.Equal(t, 1, e.srv.Watchers(), "the contender's")
				if name != "stays" {
					require.True(t, e.srv.Delete(key))
				}
				e.at(time.Second)
				requirePending(t, two)
				before := e.requests()
				other.leave(t, first)
				require.NoError(t, receive(t, two).err)
				require.Equal(t, before, e.requests(), "the contender before it is the owner")
			})
		})
	}
}

// Only keys that are no contenders are before it.
func TestQueue_Await_onlyStrays(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		e.plant(t, "a/z", 3)
		p := e.enter(t, "1")
		got := receive(t, e.await(t.Context(), p))
		require.NoError(t, got.err)
		require.Zero(t, got.at)
		require.NotEmpty(t, e.reported)
	})
}

// Who has not been told what is ahead of it looks.
func TestQueue_Await_nothingIsKnown(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first, second := e.enter(t, "1"), e.enter(t, "2")
		before := e.requests()
		require.NoError(t, e.Await(t.Context(), first.Entry, queue.Ahead{}))
		require.Equal(t, before+1, e.requests(), "one read")
		second.ahead = queue.Ahead{}
		two := e.await(t.Context(), second)
		e.at(time.Second)
		requirePending(t, two)
		before = e.requests()
		e.leave(t, first)
		require.NoError(t, receive(t, two).err)
		require.Equal(t, before+1, e.requests(), "to leave")

		require.ErrorIs(t, e.Await(t.Context(), first.Entry, queue.Ahead{}), queue.ErrGone)
	})
}

// Whoever's own key is gone has no turn, at whichever of its reads it learns that.
func TestQueue_Await_findsItsOwnKeyGone(t *testing.T) {
	for name, waits := range map[string]bool{"before the watch": false, "while it waits for a waiter": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				other := e.another(t)
				other.enter(t, "1")
				second := other.enter(t, "2")
				third := e.enter(t, "3")
				if !waits {
					require.True(t, e.srv.Delete(third.Key))
				}
				three := e.await(t.Context(), third)
				if waits {
					require.True(t, e.srv.Delete(third.Key))
					synctest.Wait()
					requirePending(t, three)
					other.leave(t, second)
				}
				require.ErrorIs(t, receive(t, three).err, queue.ErrGone)
			})
		})
	}
}
