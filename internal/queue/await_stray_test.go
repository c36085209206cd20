package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/queue"
)

// Where the oldest key is no contender, the owner is the oldest that is one.
func TestQueue_Await_strayIsTheOldest(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		other := e.another(t)
		e.plant(t, "a/Z", 1)
		first := other.enter(t, "1")
		second := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.at(time.Second)
		requirePending(t, two)
		before := e.requests() + other.requests()
		other.leave(t, first)
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Equal(t, time.Second, got.at)
		require.Equal(t, before+1, e.requests()+other.requests(), "to leave")
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
				require.Equal(t, queue.Ahead{}, second.ahead)
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
