package lease_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// etcd deletes all keys of a revoked lease in one step. So for a lease with many keys, Close first deletes them in
// batches, for at most half of its time, and the remaining keys go with the lease.
func TestSession_Close_withVeryManyLocks(t *testing.T) {
	const bound = 4 * time.Second
	for name, row := range map[string]struct {
		locks int
		fault fakeetcd.Fault // for the batch with "a/7", or for all
		all   bool
		sent  int  // batches
		parts bool // and parts of a batch that was refused
		left  int  // keys when the lease is revoked
		took  time.Duration
	}{
		"few":           {locks: 999, left: 999},
		"many":          {locks: 1050, sent: 11},
		"a lost answer": {locks: 1050, fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}, sent: 11},
		"a refusal":     {locks: 1000, fault: fakeetcd.Fault{Err: errDenied}, sent: 10, parts: true, left: 1},
		"slow answers":  {locks: 1000, fault: fakeetcd.Fault{After: 300 * time.Millisecond}, all: true, sent: 7, left: 300, took: bound / 2},
		"no answers":    {locks: 1000, fault: fakeetcd.Fault{Lose: fakeetcd.Answer}, all: true, sent: 1, left: 900, took: bound / 2},
		"lost requests": {locks: 1000, fault: fakeetcd.Fault{Lose: fakeetcd.Request}, all: true, sent: 1, left: 1000, took: bound / 2},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			var wg sync.WaitGroup
			for i := range row.locks {
				wg.Go(func() {
					_, err := e.s.TryLock(t.Context(), fmt.Sprintf("a/%d", i))
					assert.NoError(t, err)
				})
			}
			wg.Wait()
			e.srv.Put("a/7/stranger", "")
			row.fault.Match = touches("a/7/")
			if row.all {
				row.fault.Match = writes
			}
			e.c.Inject(fakeetcd.Txn, row.fault)
			left := -1
			e.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{OnRequest: func() { left = len(e.keys("a/")) - 1 }})
			before, began := len(e.writes()), e.now()
			require.NoError(t, e.s.Close(timeout(t, bound)))
			require.Equal(t, row.left, left)
			batches := make(map[string]bool) // a batch that is sent again counts once
			for _, call := range e.writes()[before:] {
				require.LessOrEqual(t, len(call.Request.(*pb.TxnRequest).Success), 100)
				batches[call.Request.(*pb.TxnRequest).String()] = true
			}
			require.GreaterOrEqual(t, len(batches), row.sent)
			require.Equal(t, row.parts, len(batches) > row.sent)
			require.Equal(t, row.took, (e.now() - began).Truncate(time.Second))
			require.Equal(t, []string{"a/7/stranger"}, e.keys(""))
			require.Empty(t, e.leaseIDs())
		})
	}
}

// A key that somebody has put in a lock's place is not deleted with the lock.
func TestSession_Close_deletesOnlyItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var first *lease.Lock
		for i := range 1000 {
			l := e.lock(t, fmt.Sprintf("a/%d", i))
			if first == nil {
				first = l
			}
		}
		e.srv.Put(first.Key(), "another's")
		require.NoError(t, e.s.Close(context.WithoutCancel(t.Context())))
		require.Equal(t, []string{first.Key()}, e.keys(""))
	})
}
