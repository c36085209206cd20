package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

func TestQueue_Guard(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*env, queue.Entry)
		want queue.End
	}{
		"deleted":            {func(e *env, entry queue.Entry) { e.srv.Delete(entry.Key) }, queue.Deleted},
		"revoked":            {func(e *env, _ queue.Entry) { _ = e.srv.Revoke(e.lease) }, queue.Deleted},
		"overwritten":        {func(e *env, entry queue.Entry) { e.srv.Put(entry.Key, "x") }, queue.Overwritten},
		"deleted, recreated": {func(e *env, entry queue.Entry) { e.srv.Delete(entry.Key); e.srv.Put(entry.Key, "x") }, queue.Deleted},
	} {
		for when, delay := range map[string]time.Duration{"watched": 0, "before the watch exists": time.Minute, "before the read": -1} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := start(t)
					entry, _ := e.enter(t, "x")
					if delay < 0 {
						tc.do(e, entry)
					} else if delay > 0 {
						e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Before: delay})
					}
					got := e.guard(t.Context(), entry)
					if delay >= 0 {
						e.at(time.Second)
						requirePending(t, got)
						tc.do(e, entry)
					}
					end := receive(t, got)
					require.NoError(t, end.err)
					require.Equal(t, tc.want, end.val)
					if delay == 0 {
						require.Equal(t, time.Second, end.at)
					}
				})
			})
		}
	}
}

// A watch that resumes begins at the revision at which it was opened; when that is the put's own, the put is told of again.
func TestQueue_Guard_isNotFooledByItsOwnPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		entry, _ := e.enter(t, "x")
		got := e.guard(t.Context(), entry)
		for i := range 3 {
			e.c.BreakWatches(fakeetcd.ErrUnavailable)
			e.at(time.Duration(i+1) * time.Second)
			requirePending(t, got)
		}
		require.Len(t, e.c.Calls(fakeetcd.Watch), 4)
		require.True(t, e.srv.Delete(entry.Key))
		require.Equal(t, queue.Deleted, receive(t, got).val)
	})
}

func TestQueue_Guard_survivesCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		entry, _ := e.enter(t, "x")
		got := e.guard(t.Context(), entry)
		e.c.Cut()
		e.c.BreakWatches(fakeetcd.ErrUnavailable)
		e.srv.Put("y", "")
		require.NoError(t, e.srv.Compact(e.srv.Put("y", "")))
		e.at(time.Second)
		e.c.Restore()
		e.at(2 * time.Second)
		requirePending(t, got)
		require.Equal(t, 1, e.srv.Watchers())
		e.srv.Put(entry.Key, "")
		require.Equal(t, queue.Overwritten, receive(t, got).val)
	})
}

// A value of one's own, as an election's proclamation, is an overwriting too: the caller counts from its own revision.
func TestQueue_Guard_tellsEveryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		entry, _ := e.enter(t, "x")
		got := e.guard(t.Context(), entry)
		_, err := e.c.Put(t.Context(), entry.Key, "y", clientv3.WithLease(e.lease))
		require.NoError(t, err)
		require.Equal(t, queue.Overwritten, receive(t, got).val)
	})
}

func TestQueue_Guard_errors(t *testing.T) {
	mine := errors.New("mine")
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		entry, _ := e.enter(t, "x")
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCPermissionDenied})
		end, err := e.Guard(t.Context(), entry)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.Zero(t, end)

		ctx, cancel := context.WithCancelCause(t.Context())
		got := e.guard(ctx, entry)
		cancel(mine)
		require.Equal(t, mine, receive(t, got).err)

		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied}) // each time, and at once
		ctx, stop := context.WithTimeoutCause(t.Context(), time.Minute, mine)
		defer stop()
		before := len(e.c.Calls(fakeetcd.Get))
		require.ErrorIs(t, receive(t, e.guard(ctx, entry)).err, mine)
		require.Less(t, len(e.c.Calls(fakeetcd.Get)[before:]), 3000)
	})
}
