package etcd_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
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

// A caller's context ends at the instant of its answer, or at the instant when its transaction is to be sent: the
// result is true in either case.
func TestLine_cancel_atTheAnswer(t *testing.T) {
	for name, wait := range map[string]time.Duration{"answer": 0, "turn": time.Millisecond} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t)
			for range 100 {
				free := e.occupy(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				txns := e.enters("a", 4)
				if wait == 0 {
					e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes("a-000/x"), After: time.Millisecond})
				}
				all := e.sendAll(ctx, txns)
				time.Sleep(wait)
				free[0]()
				for i, o := range receiveAll(t, all) {
					there := e.has(txns[i].Queue + "x")
					if o.err == nil {
						require.True(t, o.res.Succeeded)
						require.True(t, there)
						continue
					}
					require.False(t, there && etcd.Refused(o.err))
				}
				cancel()
				for _, f := range free {
					f()
				}
				time.Sleep(time.Second)
				e.c.Reset()
				for _, kv := range e.srv.Keys("a") {
					e.srv.Delete(string(kv.Key))
				}
			}
		})
	}
}
