package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// asked counts the requests that e sends during a turn, and those of them that open watches.
func (e *env) asked(turn func()) (requests, watches int) {
	requests, watches = e.requests(), len(e.c.Calls(fakeetcd.Watch))
	turn()
	synctest.Wait()
	return e.requests() - requests, len(e.c.Calls(fakeetcd.Watch)) - watches
}

// Two sessions with callers of their own take turns: each hands over to its next caller. Our first entry has found an
// empty queue, so that the queue is contended is known only from the wait.
func TestQueue_Await_keptWatchAfterHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		ours, theirs := e.enter(t, "0"), other.enter(t, "0")
		for round := range 6 {
			requests, watches := e.asked(func() {
				suffix := []string{"1", "0"}[round%2]
				_, next := e.handOver(t, ours, suffix)
				got := e.await(t.Context(), next)
				_, theirs = other.handOver(t, theirs, suffix)
				require.NoError(t, receive(t, got).err)
				ours = next
			})
			if round > 2 { // the first wait learns that the queue is brisk, and the other session uses two keys in turn
				require.Equal(t, []int{1, 0}, []int{requests, watches}, "round %d", round)
			}
		}
	})
}

// In a long queue the first end comes late and the second soon after it. Such a queue is not brisk: a watch that
// lasts only for shortWait would be opened for nothing.
func TestQueue_Await_longWaitThatEndsSoon(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		for round := range 4 {
			_, watches := e.asked(func() {
				first, second, ours := other.enter(t, "1"), other.enter(t, "2"), e.enter(t, "3")
				got := e.await(t.Context(), ours)
				time.Sleep(2 * queue.GuardAfter)
				other.leave(t, first)
				synctest.Wait()
				other.leave(t, second)
				require.NoError(t, receive(t, got).err)
				e.leave(t, ours)
			})
			require.Equal(t, 2, watches, "round %d", round)
		}
	})
}
