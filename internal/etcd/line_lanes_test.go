package etcd_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A request that was given up for stuck, and comes back after all, has lost its lane to another: there is one at a time.
func TestLine_lanes_stuckOneReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		first, second := make(chan struct{}), make(chan struct{})
		e.hold("a-000/x", first)
		all := e.sendAll(t.Context(), e.enters("a", 2))
		free[0]()
		time.Sleep(patience)
		e.hold("b/x", second)
		all = append(all, e.send(t.Context(), e.enter("b/x")))
		sent := e.record()
		all = append(all, e.sendAll(t.Context(), e.enters("c", 2))...)
		close(first)
		synctest.Wait()
		require.Empty(t, sent(), "they wait for the one that is under way")
		close(second)
		requireAllGood(t, receiveAll(t, all))
		require.Len(t, sent(), 1)
	})
}

// A lane is stuck by its present request, not by those before it.
func TestLine_lanes_eachRequestHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		time.Sleep(patience * 2 / 3)
		gate := make(chan struct{})
		e.hold("a/x", gate)
		all := []<-chan outcome{e.send(t.Context(), e.enter("a/x"))}
		free[0]()
		time.Sleep(patience * 2 / 3)
		sent := e.record()
		all = append(all, e.send(t.Context(), e.enter("b/x")))
		require.Empty(t, sent())
		close(gate)
		requireAllGood(t, receiveAll(t, all))
	})
}

// Those that fill a request do not wait for the one that is under way.
func TestLine_lanes_aFullRequestGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		sent := e.record()
		all := e.sendAll(t.Context(), e.enters("a", 119))
		require.Empty(t, sent())
		all = append(all, e.send(t.Context(), e.enter("b/x")))
		synctest.Wait()
		require.Len(t, sent(), 1)
		require.Equal(t, 120, carried(sent()[0]))
		requireAllGood(t, receiveAll(t, all))
		free[0]()
	})
}
