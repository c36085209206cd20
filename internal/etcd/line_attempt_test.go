package etcd_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// tryOnce commits txn in the background, in an attempt of [etcd.Conn.While] that is not repeated.
func (e *env) tryOnce(ctx, life context.Context, longest time.Duration, txn etcd.Txn) <-chan outcome {
	got := make(chan outcome, 1)
	go func() {
		var o outcome
		_, _ = e.conn.While(ctx, life, longest, func(a *etcd.Attempt) error {
			o.res, o.err = e.line.Commit(a, txn)
			return nil
		})
		o.at = e.now()
		got <- o
	}()
	synctest.Wait()
	return got
}

// A transaction that waits or was sent ends for its caller with whichever of the attempt's two contexts ends first.
func TestLine_attempt_ends(t *testing.T) {
	for name, which := range map[string]int{"caller": 0, "life": 1} {
		for name2, sent := range map[string]bool{"waiting": false, "sent": true} {
			bubbleOf(t, name+", "+name2, func(t *testing.T, e *env) {
				free := e.occupy(t)
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 10 * time.Millisecond})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				ctxs := []context.Context{t.Context(), t.Context()}
				ctxs[which] = ctx
				leaves := e.tryOnce(ctxs[0], ctxs[1], bound, e.enter("b/x"))
				stays := e.tryOnce(t.Context(), t.Context(), bound, e.enter("a/x"))
				if sent {
					free()
				}
				time.Sleep(time.Millisecond)
				cancel(errors.New("for a reason"))
				o := receive(t, leaves)
				require.ErrorIs(t, o.err, context.Canceled)
				require.Equal(t, !sent, errors.Is(o.err, etcd.ErrNotSent))
				require.Equal(t, !sent, etcd.Refused(o.err))
				require.Equal(t, time.Millisecond, o.at)
				free()
				requireAllGood(t, []outcome{receive(t, stays)})
				require.Equal(t, sent, e.has("b/x"))
			})
		}
	}
}

// An attempt that is carried with others has at least its own time limit.
func TestLine_attempt_bound(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer})
		all := []<-chan outcome{
			e.tryOnce(t.Context(), t.Context(), bound/2, e.enter("a/x")),
			e.tryOnce(t.Context(), t.Context(), 2*bound, e.enter("b/x")),
			e.send(t.Context(), e.enter("c/x")),
		}
		free()
		for _, o := range receiveAll(t, all) {
			require.Error(t, o.err)
			require.False(t, etcd.Refused(o.err))
			require.LessOrEqual(t, o.at, 2*bound)
		}
		require.Equal(t, 2*bound, e.now(), "the longest limit counts")

		e.owner.running.Wait() // the lane is free only then
		came := e.now()
		o := receive(t, e.tryOnce(t.Context(), t.Context(), bound/2, e.enter("d/x")))
		require.Error(t, o.err)
		require.Equal(t, bound/2, o.at-came, "alone, an attempt has its own limit")
	})
}

// An attempt with a long time limit, as later attempts have, does not share a request with one that is to be repeated
// soon.
func TestLine_attempt_patienceDiffers(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		sent := e.record()
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer})
		patient := e.tryOnce(t.Context(), t.Context(), 8*bound, e.enter("a/x"))
		fresh := e.tryOnce(t.Context(), t.Context(), bound, e.enter("b/x"))
		free()
		o := receive(t, fresh)
		require.Error(t, o.err)
		require.Less(t, o.at, 2*bound)
		require.Error(t, receive(t, patient).err)
		require.Len(t, sent(), 2)
	})
}

// Attempts that send copies share a request, which is sent in as many copies as any of them has. Attempts without
// copies do not share it: they would take a transaction that the first copy has carried out for a failed one.
func TestLine_attempt_copies(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		sent := e.record()
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond})
		twice := e.sendIn(e.conn.Once(t.Context()).WithCopies(2), e.enter("a/x"))
		once := e.send(t.Context(), e.enter("b/x"))
		thrice := e.sendIn(e.conn.Once(t.Context()).WithCopies(3), e.enter("c/x"))
		free()
		for _, o := range receiveAll(t, []<-chan outcome{twice, once, thrice}) {
			require.NoError(t, o.err)
		}
		var carries []int
		for _, r := range sent() {
			carries = append(carries, carried(r))
		}
		require.Equal(t, []int{2, 2, 2, 1}, carries)
		for _, key := range []string{"a/x", "b/x", "c/x"} {
			require.True(t, e.has(key), key)
		}

		alone := e.record()
		require.NoError(t, receive(t, e.sendIn(e.conn.Once(t.Context()).WithCopies(3), e.enter("d/x"))).err)
		require.Len(t, alone(), 3)
	})
}
