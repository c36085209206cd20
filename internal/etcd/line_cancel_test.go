package etcd_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
)

// A transaction whose caller gives up while it waits is not sent, and its error says so. The others keep their order.
func TestLine_cancel_whileWaiting(t *testing.T) {
	for name, gone := range map[string][]int{
		"first": {0}, "middle": {3}, "last": {5}, "two": {1, 2}, "both ends": {0, 5}, "all": {0, 1, 2, 3, 4, 5},
	} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t)
			free := e.occupy(t)
			sent := e.record()
			var got []<-chan outcome
			var cancels []context.CancelFunc
			txns := e.enters("a", 6)
			for _, txn := range txns {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cancels = append(cancels, cancel)
				got = append(got, e.send(ctx, txn))
			}
			time.Sleep(time.Millisecond)
			var stay []<-chan outcome
			var want []string
			for i, ch := range got {
				key := txns[i].Queue + "x"
				if !slices.Contains(gone, i) {
					stay = append(stay, ch)
					want = append(want, key)
					continue
				}
				cancels[i]()
				synctest.Wait()
				o := receive(t, ch)
				require.ErrorIs(t, o.err, etcd.ErrNotSent)
				require.ErrorIs(t, o.err, context.Canceled)
				require.True(t, etcd.Refused(o.err))
				require.Equal(t, time.Millisecond, o.at)
			}
			free[0]()
			requireAllGood(t, receiveAll(t, stay))
			var keys []string
			for _, req := range sent() {
				keys = append(keys, written(req)...)
			}
			require.Equal(t, want, keys)
			e.owner.running.Wait()
			for _, f := range free { // an empty line has freed its lanes
				f()
			}
			require.Len(t, e.occupy(t), len(free))
		})
	}
}
