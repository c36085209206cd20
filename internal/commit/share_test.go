package commit_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/commit"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// at once, for what may gather a moment longer.
const soon = time.Millisecond

// Those that come while all lanes are busy go together as soon as one is free, and each gets what it would have got
// by itself.
func TestLine_share(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.srv.Put("taken/x", "of somebody")
		txns := slices.Concat(e.enters("a", 10), e.plant("b", 10),
			[]commit.Txn{e.enter("taken/x"), leave("missing/x")}, e.enters("c", 10))
		free := e.occupy(t)
		sent := e.record()
		all := e.sendAll(t.Context(), txns)
		require.Empty(t, sent(), "no lane is free")
		time.Sleep(5 * time.Millisecond) // not so long that the lanes are taken to be stuck
		freed := e.now()
		free[0]()
		outcomes := receiveAll(t, all)
		require.Len(t, sent(), 2, "not all comparisons hold, so each is on its own the second time")
		require.Equal(t, len(txns), carried(sent()[0]))
		require.Len(t, nested(sent()[1]), len(txns))
		require.Empty(t, sent()[1].Compare)
		for i, o := range outcomes {
			require.NoError(t, o.err)
			require.LessOrEqual(t, o.at-freed, soon)
			require.Equal(t, e.srv.Rev(), o.res.Revision, "of the shared commit")
			require.Len(t, o.res.Responses, map[bool]int{true: len(txns[i].Then), false: len(txns[i].Else)}[o.res.Succeeded])
			switch {
			case i == 20:
				require.False(t, o.res.Succeeded)
				require.Equal(t, "of somebody", string(o.res.Responses[0].GetResponseRange().Kvs[0].Value))
			case i == 21:
				require.False(t, o.res.Succeeded)
			case txns[i].Queue == "":
				require.True(t, o.res.Succeeded)
				require.EqualValues(t, 1, o.res.Responses[0].GetResponseDeleteRange().Deleted)
			default:
				require.True(t, o.res.Succeeded)
				kvs := o.res.Responses[1].GetResponseRange().Kvs
				require.Len(t, kvs, 1)
				require.Equal(t, txns[i].Queue+"x", string(kvs[0].Key))
				require.Equal(t, o.res.Revision, kvs[0].CreateRevision)
			}
		}
	})
}

// Whoever comes while a shared request is under way goes with the next, whatever becomes of the other lanes.
func TestLine_share_again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		sent := e.record()
		var all []<-chan outcome
		var gates []chan struct{}
		for i := range 5 {
			name := fmt.Sprint("round", i)
			gates = append(gates, make(chan struct{}))
			e.hold(name+"-000/x", gates[i])
			all = append(all, e.sendAll(t.Context(), e.enters(name, 7))...)
			if i == 0 {
				free[0]()
			} else {
				close(gates[i-1])
				synctest.Wait()
			}
			require.Len(t, sent(), i+1)
			require.Equal(t, 7, carried(sent()[i]))
		}
		close(gates[4])
		requireAllGood(t, receiveAll(t, all))
		require.Len(t, sent(), 5)
		require.Zero(t, e.now())
	})
}

// A line that has been full is as it was before: it has as many lanes, and who finds one free is alone.
func TestLine_share_leavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		for range 5 {
			all := e.sendAll(t.Context(), e.enters("a", 20))
			for _, f := range free {
				f()
			}
			requireAllGood(t, receiveAll(t, all))
			all = e.sendAll(t.Context(), e.leaves("a", 20)) // each finds a lane free
			requireAllGood(t, receiveAll(t, all))
			e.owner.running.Wait()

			before := e.owner.everSpawned()
			_, err := e.Commit(t.Context(), leave("missing"))
			require.NoError(t, err)
			require.Equal(t, before, e.owner.everSpawned())
			lanes := len(free)
			free = e.occupy(t)
			require.Len(t, free, lanes)
		}
	})
}

func (e *env) leaves(name string, n int) []commit.Txn {
	var txns []commit.Txn
	for i := range n {
		txns = append(txns, leave(fmt.Sprintf("%s-%03d/x", name, i)))
	}
	return txns
}

// A single one that had to wait is not nested.
func TestLine_share_withNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		free := e.occupy(t)
		sent := e.record()
		got := e.send(t.Context(), e.enter("a/x"))
		free[0]()
		requireAllGood(t, []outcome{receive(t, got)})
		require.Len(t, sent(), 1)
		require.LessOrEqual(t, carried(sent()[0]), 1)
	})
}

// The keys of one queue have different create revisions, in the order in which they came; those of other queues, and
// those that leave, do not wait for them.
func TestLine_queue_neverTies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		var txns []commit.Txn
		for i := range 10 {
			txns = append(txns, e.enter(fmt.Sprintf("same/%d", i)), e.enter(fmt.Sprintf("other-%d/x", i)))
			txns = append(txns, e.plant(fmt.Sprintf("same/%d", i), 1)...)
		}
		free := e.occupy(t)
		sent := e.record()
		all := e.sendAll(t.Context(), txns)
		free[0]()
		results := requireAllGood(t, receiveAll(t, all))
		require.Len(t, sent(), 10)
		require.Equal(t, 21, carried(sent()[0]))
		for _, req := range sent() {
			requireNoTies(t, req)
		}
		for i := 3; i < len(results); i += 3 {
			require.Greater(t, results[i].Revision, results[i-3].Revision)
			require.Equal(t, results[1].Revision, results[i+1].Revision)
			require.Equal(t, results[1].Revision, results[i+2].Revision)
		}
	})
}

// The same where lanes become free in the midst of it, and with a server that has a lower limit.
func TestLine_queue_neverTies_anyLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond})
		limitOps(e, 5)
		free := e.occupy(t)
		sent := e.record()
		var all []<-chan outcome
		for i := range 60 {
			all = append(all, e.send(t.Context(), e.enter(fmt.Sprintf("queue-%d/%d", i%3, i))))
			if i%10 == 9 && i/10 < len(free) {
				free[i/10]()
			}
			if i%4 == 3 {
				time.Sleep(300 * time.Microsecond)
			}
		}
		for _, f := range free {
			f()
		}
		seen := make(map[[2]int64]bool)
		for i, res := range requireAllGood(t, receiveAll(t, all)) {
			place := [2]int64{int64(i % 3), res.Revision}
			require.False(t, seen[place], "two of a queue at one revision")
			seen[place] = true
		}
		for _, req := range sent() {
			requireNoTies(t, req)
		}
	})
}

// What a caller sends after its last has returned comes after it, also if it shares with others both times.
func TestLine_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond})
		done := make(chan error, 30)
		for i := range cap(done) {
			go func() {
				key := fmt.Sprintf("queue-%d/%d", i%5, i)
				var last int64
				for range 10 {
					for _, txn := range []commit.Txn{e.enter(key), leave(key)} {
						res, err := e.Commit(t.Context(), txn)
						if err == nil && (!res.Succeeded || res.Revision <= last) {
							err = fmt.Errorf("%d after %d, %v", res.Revision, last, res.Succeeded)
						}
						if err != nil {
							done <- err
							return
						}
						last = res.Revision
					}
				}
				done <- nil
			}()
		}
		for range cap(done) {
			require.NoError(t, <-done)
		}
		require.Less(t, len(e.c.Calls(fakeetcd.Txn)), 300, "of 600: some have shared")
	})
}

// Where all comparisons hold, the parts need not be nested. After one did not, that is not tried for some time.
func TestLine_share_flat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		flat := func(name string, more ...commit.Txn) bool {
			t.Helper()
			free := e.occupy(t)
			sent := e.record()
			txns := append(e.enters(name, 5), more...)
			all := e.sendAll(t.Context(), txns)
			free[0]()
			for i, o := range receiveAll(t, all) {
				require.NoError(t, o.err)
				require.Equal(t, i < 5, o.res.Succeeded)
				require.Equal(t, e.srv.Rev(), o.res.Revision)
				if i < 5 {
					require.Len(t, o.res.Responses, len(txns[i].Then))
					require.Equal(t, o.res.Revision, o.res.Responses[1].GetResponseRange().Kvs[0].CreateRevision)
				}
			}
			for _, f := range free[1:] {
				f()
			}
			return len(nested(sent()[0])) == 0
		}
		require.True(t, flat("a"))
		require.True(t, flat("b", leave("missing/x")))
		for i := range 16 {
			require.False(t, flat(fmt.Sprint("c", i)))
		}
		require.True(t, flat("d"))
	})
}
