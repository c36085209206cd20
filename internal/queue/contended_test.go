package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// entered enters, and returns the number of operations of each request that it took.
func (e *env) entered(t *testing.T, name, suffix string) (place, []int) {
	t.Helper()
	before := e.requests()
	entry, ahead, err := e.Enter(e.once(t.Context()), queue.NewEntry(name, e.lease, suffix), "")
	require.NoError(t, err)
	var ops []int
	for _, call := range e.c.Calls(fakeetcd.Any)[before:] {
		ops = append(ops, len(call.Request.(*pb.TxnRequest).Success))
	}
	return place{entry, ahead}, ops
}

// An empty queue is entered by the smallest request; one that was recently not empty, by one that reads too.
func TestQueue_Enter_contention(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first, ops := e.entered(t, "a", "1")
		require.Equal(t, []int{1}, ops)
		second, ops := e.entered(t, "a", "2")
		require.Equal(t, []int{1, 2}, ops, "the first entry that meets another needs two")
		require.Equal(t, first.Key, second.ahead.Key)
		third, ops := e.entered(t, "a", "3")
		require.Equal(t, []int{2}, ops)
		require.Equal(t, second.Key, third.ahead.Key)
		for _, p := range []place{first, second, third} {
			e.leave(t, p)
		}

		for i := range 8 { // the queue is empty now, but does not count as empty at once
			p, ops := e.entered(t, "a", "4")
			require.Equal(t, []int{2}, ops, i)
			require.True(t, p.ahead.None)
			e.leave(t, p)
			other, ops := e.entered(t, "b", "1")
			require.Equal(t, []int{1}, ops, "another queue")
			e.leave(t, other)
		}
		p, ops := e.entered(t, "a", "5")
		require.Equal(t, []int{1}, ops)
		require.True(t, p.ahead.None)
	})
}

// The other contender has left before the second request. The next entry still takes the queue for one that is not
// empty.
func TestQueue_Enter_contentionThatHasJustEnded(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first, _ := e.entered(t, "a", "1")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
			Match:     func(call fakeetcd.Call) bool { return len(call.Request.(*pb.TxnRequest).Success) == 2 },
			Times:     1,
			OnRequest: func() { e.srv.Delete(first.Key) },
		})
		second, ops := e.entered(t, "a", "2")
		require.Equal(t, []int{1, 2}, ops)
		require.True(t, second.ahead.None)
		_, ops = e.entered(t, "a", "3")
		require.Equal(t, []int{2}, ops)
	})
}

// A bounded number of queues is remembered.
func TestQueue_Enter_contentionIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 1025 {
			e.srv.Put(fmt.Sprint(i)+"/x", "")
			e.places(t, 1, func(int) string { return fmt.Sprint(i) })
		}
		_, ops := e.entered(t, "0", "2")
		require.Len(t, ops, 2, "the queue was forgotten")
		_, ops = e.entered(t, "1024", "2")
		require.Len(t, ops, 1)
	})
}
