package etcd_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// Transactions of a queue that was refused are sent alone, so they no longer make the others' batches fail. Once one
// succeeds, they share requests again.
func TestLine_isolation_refusedBefore(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		permit := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: writes("bad/x"), Err: rpctypes.ErrGRPCPermissionDenied})
		for round := range 4 {
			txns := append(e.enters("a"+strconv.Itoa(round), 20), e.enter("bad/x"))
			outcomes, reqs := e.together(t, txns)
			requireAllGood(t, outcomes[:20])
			switch round {
			case 0:
				require.ErrorIs(t, outcomes[20].err, rpctypes.ErrPermissionDenied)
				require.Greater(t, len(reqs), 2)
			case 1:
				require.ErrorIs(t, outcomes[20].err, rpctypes.ErrPermissionDenied)
				require.Len(t, reqs, 2)
				permit()
			case 2:
				requireAllGood(t, outcomes[20:])
				require.Len(t, reqs, 2)
				_, err := e.Commit(t.Context(), leave("bad/x"))
				require.NoError(t, err)
			default:
				requireAllGood(t, outcomes[20:])
				require.Len(t, reqs, 1)
			}
		}
	})
}

// A caller that repeats a refused transaction without end sends few: etcd commits each like any other.
func TestLine_isolation_refusedInALoop(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond, Err: rpctypes.ErrGRPCPermissionDenied})
		sent := e.record()
		for e.now() < time.Second {
			_, err := e.Commit(t.Context(), e.enter("bad/x"))
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		}
		require.LessOrEqual(t, len(sent()), 120)
	})
}

// etcd refuses to delete and put a key in one transaction. Those that leave go first then.
func TestLine_isolation_sameKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const key = "a-000/planted"
		leaving := e.plant("a", 1)[0]
		outcomes, _ := e.together(t, slices.Concat(e.enters("b", 3), []etcd.Txn{e.enter(key), leaving}, e.enters("c", 3)))
		requireAllGood(t, outcomes)
		require.Equal(t, outcomes[3].res.Revision, e.srv.Keys(key)[0].CreateRevision)
		require.Greater(t, outcomes[3].res.Revision, outcomes[4].res.Revision)
	})
}

// patience is the longest time for which stuck requests may hold up others.
const patience = 11 * time.Millisecond

// All lanes have requests to an endpoint that does not answer. Transactions that come at any time do not wait long.
func TestLine_stuck(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 24 * time.Millisecond, 40 * time.Millisecond, time.Second} {
		bubbleOf(t, after.String(), func(t *testing.T, e *env) {
			e.occupy(t)
			for _, name := range []string{"a", "b", "c"} {
				time.Sleep(after)
				came := e.now()
				for _, o := range receiveAll(t, e.sendAll(t.Context(), e.enters(name, 5))) {
					requireAllGood(t, []outcome{o})
					require.LessOrEqual(t, o.at-came, patience)
				}
			}
		})
	}
}

// After its owner has ended, a line holds up no caller: neither those that wait, whatever the lanes do, nor later ones.
func TestLine_ownerEnds_whileWaiting(t *testing.T) {
	for name, freed := range map[string]bool{"lanes come free": true, "lanes are stuck": false} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			free := e.occupy(t)
			all := e.sendAll(t.Context(), e.enters("a", 10))
			e.owner.end()
			synctest.Wait()
			if freed {
				free()
			}
			for _, o := range receiveAll(t, all) {
				require.ErrorIs(t, o.err, etcd.ErrNotSent)
				require.True(t, etcd.Refused(o.err))
				require.LessOrEqual(t, o.at, patience)
			}
			came := e.now()
			for _, o := range receiveAll(t, e.sendAll(t.Context(), e.enters("b", 10))) {
				require.True(t, o.err == nil || etcd.Refused(o.err))
				require.LessOrEqual(t, o.at-came, patience)
			}
			free()
			came = e.now()
			for _, o := range receiveAll(t, e.sendAll(t.Context(), e.enters("c", 10))) {
				require.True(t, o.err == nil || etcd.Refused(o.err))
				require.Equal(t, came, o.at)
			}
			require.Empty(t, e.srv.Keys("a"))
		})
	}
}

// A shared request ends with the owner, and its outcome is unknown.
func TestLine_ownerEnds_whileSent(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer})
		all := e.sendAll(t.Context(), e.enters("a", 10))
		free()
		time.Sleep(time.Millisecond)
		e.owner.end()
		for _, o := range receiveAll(t, all) {
			require.ErrorIs(t, o.err, context.Canceled)
			require.False(t, etcd.Refused(o.err))
			require.Equal(t, time.Millisecond, o.at)
		}
	})
}

// A stuck request holds up no waiting transaction, also none of the same queue. If it returns after all, it does not
// free the lane that another one has by now: one is under way at a time.
func TestLine_lanes_stuckOneReturns(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		first, second := make(chan struct{}), make(chan struct{})
		e.hold("a/1", first)
		all := e.sendAll(t.Context(), []etcd.Txn{e.enter("a/1"), e.enter("a/2")})
		time.Sleep(2 * patience)
		require.True(t, e.has("a/2"))
		e.hold("b/x", second)
		all = append(all, e.send(t.Context(), e.enter("b/x")))
		sent := e.record()
		all = append(all, e.sendAll(t.Context(), e.enters("c", 2))...)
		free()
		close(first)
		synctest.Wait()
		require.Empty(t, sent(), "they wait for the one that is under way")
		close(second)
		requireAllGood(t, receiveAll(t, all))
		require.Len(t, sent(), 1)
	})
}

// Each request of a lane has the full time before the lane counts as stuck.
func TestLine_lanes_eachRequestHasItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		var all []<-chan outcome
		for _, txn := range e.enters("a", 3) {
			gate := make(chan struct{})
			e.hold(txn.Queue+"x", gate)
			time.Sleep(patience * 2 / 3)
			sent := e.record()
			all = append(all, e.send(t.Context(), txn))
			require.Empty(t, sent())
			free()
			free = func() { close(gate); synctest.Wait() }
		}
		free()
		requireAllGood(t, receiveAll(t, all))
	})
}

// A request is stuck. Very many wait, and most of them give up just as their number has opened another lane. The others
// do not wait for the stuck request.
func TestLine_lanes_mostGiveUpBesideAStuckRequest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		time.Sleep(9 * time.Millisecond)
		came := e.now()
		patient := e.sendAll(t.Context(), e.enters("patient", 5))
		giveUp, cancel := context.WithCancel(t.Context())
		run, once := e.owner.run, sync.Once{}
		e.owner.run = func(f func(context.Context)) {
			once.Do(func() {
				cancel()
				time.Sleep(time.Nanosecond) // until they have given up
			})
			run(f)
		}
		e.sendAll(giveUp, e.enters("impatient", 115))
		for _, o := range receiveAll(t, patient) {
			require.NoError(t, o.err)
			require.LessOrEqual(t, o.at-came, patience)
		}
		free()
	})
}

// A batch fails, and then its parts fail with another error. If the first error leaves the outcome unknown, a refused
// part may have been carried out by the first request. If the first error is a refusal, it has not.
func TestLine_lost_thenRefused(t *testing.T) {
	tooLarge := status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2 vs. 1)")
	for name, tc := range map[string]struct {
		first, then error
		lose        fakeetcd.Message // of the first
		refused     bool
	}{
		"no space, too many requests":            {rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCRequestTooManyRequests, fakeetcd.Answer, false},
		"no space, permission denied":            {rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCPermissionDenied, fakeetcd.Answer, false},
		"too large, permission denied":           {tooLarge, rpctypes.ErrGRPCPermissionDenied, fakeetcd.Answer, false},
		"too large, no space":                    {tooLarge, rpctypes.ErrGRPCNoSpace, fakeetcd.Answer, false},
		"too many operations, permission denied": {rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCPermissionDenied, fakeetcd.Request, true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			free := e.occupy(t)
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Lose: tc.lose, Err: tc.first, Times: 1})
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Err: tc.then})
			all := e.sendAll(t.Context(), append(e.enters("a", 10), e.plant("b", 5)...))
			free()
			for i, o := range receiveAll(t, all) {
				switch {
				case i >= 10 && tc.refused: // transactions that only delete
					require.NoError(t, o.err)
				case i >= 10: // the first request has deleted the keys
					require.Error(t, o.err)
					require.False(t, etcd.Refused(o.err))
				default:
					require.ErrorContains(t, o.err, rpctypes.Error(tc.then).Error())
					require.Equal(t, tc.refused, etcd.Refused(o.err))
					require.NotEqual(t, tc.refused, e.has("a-003/x"), "the test proves nothing")
				}
			}
		})
	}
}

// An answer's revision is compared with the highest one that was known when its request was sent: answers may
// overtake each other.
func TestLine_answersThatCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var highest atomic.Int64
		var seen [][2]int64
		e := startWith(t, etcd.LineOptions{
			Highest: highest.Load,
			Saw:     func(before, rev int64) { seen = append(seen, [2]int64{before, rev}) },
		})
		rev := e.srv.Rev()
		highest.Store(rev)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: time.Second})
		slow := e.send(t.Context(), e.enter("a/x"))
		e.srv.Put("elsewhere", "")
		highest.Store(e.srv.Rev()) // another answer reports it
		require.NoError(t, receive(t, slow).err)
		require.Equal(t, [][2]int64{{rev, rev + 1}}, seen)
	})
}

// tryOnce commits txn in the background, in one attempt with these limits.
func (e *env) tryOnce(ctx, life context.Context, longest time.Duration, txn etcd.Txn) <-chan outcome {
	return e.sendIn(e.conn.Once(ctx).Within(life, longest), txn)
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

// An attempt that is carried with others has at least its own time limit. One with a long limit, as later attempts have,
// does not share a request with one that is to be repeated soon.
func TestLine_attempt_bound(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		sent := e.record()
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer})
		all := []<-chan outcome{
			e.tryOnce(t.Context(), t.Context(), bound/2, e.enter("a/x")),
			e.tryOnce(t.Context(), t.Context(), 2*bound, e.enter("b/x")),
			e.send(t.Context(), e.enter("c/x")),
		}
		patient := e.tryOnce(t.Context(), t.Context(), 8*bound, e.enter("p/x"))
		free()
		for _, o := range receiveAll(t, all) {
			require.Error(t, o.err)
			require.False(t, etcd.Refused(o.err))
			require.LessOrEqual(t, o.at, 2*bound)
		}
		require.Equal(t, 2*bound, e.now(), "the longest limit counts")
		require.Len(t, sent(), 2)
		require.Error(t, receive(t, patient).err)

		e.owner.running.Wait() // the lane is free only then
		came := e.now()
		o := receive(t, e.tryOnce(t.Context(), t.Context(), bound/2, e.enter("d/x")))
		require.Error(t, o.err)
		require.Equal(t, bound/2, o.at-came, "alone, an attempt has its own limit")
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
