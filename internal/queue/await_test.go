package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

func TestQueue_Await_turn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		third, _ := e.enter(t, "3")
		require.NoError(t, e.Await(t.Context(), first), "it is the owner")
		two, three := e.await(t.Context(), second), e.await(t.Context(), third)
		require.Equal(t, 2, e.srv.Watchers(), "one each, on the one before")
		e.at(time.Minute)
		e.leave(t, first)
		require.Equal(t, time.Minute, receive(t, two).at, "at once")
		requirePending(t, three)
		synctest.Wait()
		require.Equal(t, 1, e.srv.Watchers())
		e.leave(t, second)
		require.NoError(t, receive(t, three).err)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

// The one before gives up without having been the owner: there is still the one before that.
func TestQueue_Await_predecessorGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		third, _ := e.enter(t, "3")
		three := e.await(t.Context(), third)
		e.leave(t, second)
		synctest.Wait()
		requirePending(t, three)
		require.Equal(t, 1, e.srv.Watchers())
		e.leave(t, first)
		require.NoError(t, receive(t, three).err)
	})
}

// Whatever goes between the read and the watch shows in the read that follows the watch.
func TestQueue_Await_predecessorGoesBeforeTheWatchExists(t *testing.T) {
	for name, tc := range map[string]struct {
		leave []int
		turn  bool
	}{
		"the nearest": {[]int{2}, false}, "the owner": {[]int{1}, false}, "both": {[]int{1, 2}, true}, "both, in turn": {[]int{2, 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				other := open(t, e.srv) // whose requests are not delayed
				first, _ := e.enter(t, "1")
				second, _ := e.enter(t, "2")
				third, _ := e.enter(t, "3")
				entries := map[int]queue.Entry{1: first, 2: second}
				e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Before: time.Second})
				three := e.await(t.Context(), third)
				for _, n := range tc.leave {
					other.leave(t, entries[n])
					delete(entries, n)
				}
				e.at(time.Second - 1)
				requirePending(t, three)
				e.at(time.Second)
				if !tc.turn {
					requirePending(t, three)
					for _, entry := range entries {
						other.leave(t, entry)
					}
				}
				got := receive(t, three)
				require.NoError(t, got.err)
				require.Equal(t, time.Second, got.at)
			})
		})
	}
}

// A predecessor that is overwritten is waited for until it is deleted, also when its key is there again at once.
func TestQueue_Await_predecessorIsTamperedWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		two := e.await(t.Context(), second)
		calls := len(e.c.Calls(fakeetcd.Txn))
		e.srv.Put(first.Key, "x")
		synctest.Wait()
		requirePending(t, two)
		require.Len(t, e.c.Calls(fakeetcd.Txn), calls, "the watch tells of deletions only")
		require.True(t, e.srv.Delete(first.Key))
		e.srv.Put(first.Key, "y")
		require.NoError(t, receive(t, two).err)
	})
}

// pain 5, in part: whoever is not in the queue has no turn to wait for.
func TestQueue_Await_ownKeyIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		third, _ := e.enter(t, "3")
		three := e.await(t.Context(), third)
		require.True(t, e.srv.Delete(third.Key))
		e.leave(t, second)
		require.ErrorIs(t, receive(t, three).err, queue.ErrGone, "when it looks")
		require.ErrorIs(t, e.Await(t.Context(), third), queue.ErrGone)
		e.srv.Put(third.Key, "somebody else's")
		require.ErrorIs(t, e.Await(t.Context(), third), queue.ErrGone)
		e.leave(t, first)
		require.NoError(t, e.Await(t.Context(), mustEnter(t, e, "4")))
	})
}

func mustEnter(t *testing.T, e *env, suffix string) queue.Entry {
	t.Helper()
	entry, _ := e.enter(t, suffix)
	return entry
}

func TestQueue_Await_isBoundedByItsContext(t *testing.T) {
	mine := errors.New("mine")
	for name, fault := range map[fakeetcd.Method]fakeetcd.Fault{
		fakeetcd.Compact: {}, // none: while it waits
		fakeetcd.Txn:     {Lose: fakeetcd.Request},
		fakeetcd.Watch:   {Lose: fakeetcd.Request},
	} {
		t.Run(name.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				e.enter(t, "1")
				second, _ := e.enter(t, "2")
				e.c.Inject(name, fault)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 12*time.Second, mine)
				defer cancel()
				got := receive(t, e.await(ctx, second))
				require.ErrorIs(t, got.err, mine)
				require.NotErrorIs(t, got.err, context.DeadlineExceeded)
				require.Equal(t, 12*time.Second, got.at)
			})
		})
	}
}

// A refusal is final; what passes is waited for.
func TestQueue_Await_errors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCPermissionDenied})
		require.ErrorIs(t, e.Await(t.Context(), second), rpctypes.ErrPermissionDenied)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 5, Err: fakeetcd.ErrUnavailable})
		two := e.await(t.Context(), second)
		e.at(time.Second)
		requirePending(t, two)
		e.leave(t, first)
		require.NoError(t, receive(t, two).err)
	})
}

// pain 7: the watch's revision is compacted while its stream is broken.
func TestQueue_Await_compaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		other := open(t, e.srv)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.c.Cut()
		e.c.BreakWatches(fakeetcd.ErrUnavailable)
		for range 5 {
			e.srv.Put("x", "")
		}
		require.NoError(t, e.srv.Compact(e.srv.Rev()))
		e.at(time.Second)
		e.c.Restore()
		e.at(2 * time.Second)
		requirePending(t, two) // it reads, and watches again
		require.Equal(t, 1, e.srv.Watchers())
		e.c.Cut()
		e.c.BreakWatches(fakeetcd.ErrUnavailable)
		other.leave(t, first)
		e.srv.Put("x", "")
		require.NoError(t, e.srv.Compact(e.srv.Rev()))
		e.at(3 * time.Second)
		e.c.Restore()
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Less(t, got.at, 3200*time.Millisecond)
	})
}

// Suspect opens the watches on another stream; what they did not tell, the read does.
func TestStreams_Suspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		two, guard := e.await(t.Context(), second), e.guard(t.Context(), second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		e.leave(t, first)
		e.at(time.Minute)
		requirePending(t, two)
		watches := len(e.c.Calls(fakeetcd.Watch))
		e.Streams.Suspect()
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Less(t, got.at, time.Minute+100*time.Millisecond)
		e.at(2 * time.Minute)
		requirePending(t, guard)
		require.Len(t, e.c.Calls(fakeetcd.Watch), watches+1, "the guard's")
		require.True(t, e.srv.Delete(second.Key))
		require.NoError(t, receive(t, guard).err)
	})
}

// pain 24: a watch that is not confirmed gives up its stream, and with it the others that were on it.
func TestStreams_watchIsNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		first, _ := e.enter(t, "1")
		second, _ := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		e.leave(t, first)
		e.at(time.Minute)
		requirePending(t, two)
		e.guard(t.Context(), second) // its confirmation comes after the event that is stuck
		got := receive(t, two)
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at, time.Minute+5*time.Second)
		require.Greater(t, got.at, time.Minute+5*time.Second/2)
	})
}

// A watch that is refused each time is opened with pauses.
func TestQueue_Await_doesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.enter(t, "1")
		second, _ := e.enter(t, "2")
		before := len(e.c.Calls(fakeetcd.Txn))
		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		got := receive(t, e.await(timeout(t, time.Minute), second))
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.Less(t, len(e.c.Calls(fakeetcd.Txn)[before:]), 300)
		require.Greater(t, len(e.c.Calls(fakeetcd.Txn)[before:]), 60)
		for _, call := range e.c.Calls(fakeetcd.Watch) {
			require.Equal(t, []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}, call.Request.(*pb.WatchCreateRequest).Filters)
		}
	})
}
