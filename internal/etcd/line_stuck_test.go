package etcd_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

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
