package commit_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/retry"
)

// requireNeverSent checks that no request has ever had key in it.
func requireNeverSent(t *testing.T, e *env, key string) {
	t.Helper()
	for _, req := range e.requests() {
		require.NotContains(t, written(req), key)
	}
}

// Whoever gives up while it waits is not sent, and knows it. Those before and behind it stay as they were.
func TestLine_cancel_whileWaiting(t *testing.T) {
	for name, gone := range map[string][]int{
		"first": {0}, "middle": {3}, "last": {5}, "two": {1, 2}, "both ends": {0, 5}, "all": {0, 1, 2, 3, 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
					require.ErrorIs(t, o.err, retry.ErrNotSent)
					require.ErrorIs(t, o.err, context.Canceled)
					require.True(t, retry.Refused(o.err))
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
				for _, f := range free { // an empty line has given its lanes back
					f()
				}
				require.Len(t, e.occupy(t), len(free))
			})
		})
	}
}

func TestLine_cancel_whileWaiting_deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		o := receive(t, e.send(ctx, e.enter("a/x")))
		require.ErrorIs(t, o.err, retry.ErrNotSent)
		require.ErrorIs(t, o.err, context.DeadlineExceeded)
		require.True(t, retry.Refused(o.err))
		require.Equal(t, 5*time.Millisecond, o.at)

		_, err := e.Commit(ctx, e.enter("a/y")) // has ended before
		require.ErrorIs(t, err, retry.ErrNotSent)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, f := range free {
			f()
		}
		time.Sleep(time.Second)
		requireNeverSent(t, e, "a/x")
		requireNeverSent(t, e, "a/y")
	})
}

// Whoever gives up later returns at once, without a claim that it was not sent, and its batch does not notice.
func TestLine_cancel_afterSent(t *testing.T) {
	for name, gone := range map[string][]int{"one": {3}, "all but one": {0, 1, 2, 4, 5, 6, 7}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				free := e.occupy(t)
				gate := make(chan struct{})
				e.hold("a-000/x", gate)
				sent := e.record()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var gave, stay []<-chan outcome
				for i, txn := range e.enters("a", 8) {
					if slices.Contains(gone, i) {
						gave = append(gave, e.send(ctx, txn))
					} else {
						stay = append(stay, e.send(t.Context(), txn))
					}
				}
				free[0]()
				require.Len(t, sent(), 1)
				time.Sleep(time.Millisecond)
				cancel()
				for _, o := range receiveAll(t, gave) {
					require.ErrorIs(t, o.err, context.Canceled)
					require.NotErrorIs(t, o.err, retry.ErrNotSent)
					require.False(t, retry.Refused(o.err))
					require.Equal(t, time.Millisecond, o.at)
				}
				time.Sleep(time.Millisecond)
				for _, ch := range stay {
					requirePending(t, ch)
				}
				close(gate)
				requireAllGood(t, receiveAll(t, stay))
				require.Len(t, sent(), 1)
				require.Len(t, e.srv.Keys("a"), 8, "it has been carried out for all")
			})
		})
	}
}

// The end of a caller and its answer, or its turn to be sent, at one instant: whatever it is told is true.
func TestLine_cancel_atTheAnswer(t *testing.T) {
	for name, wait := range map[string]time.Duration{"answer": 0, "turn": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
						require.False(t, there && retry.Refused(o.err))
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
		})
	}
}
