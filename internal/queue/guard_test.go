package queue_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// guards are Guards, with a record of the calls of the entries' functions.
type guards struct {
	*queue.Guards

	e *env

	mu       sync.Mutex
	byPlace  map[string]*queue.Guarded // by key
	notices  []notice
	before   map[notice]bool // returned by drain before; a notice may be repeated
	warnings []string
}

// notice is one call of an entry's function.
type notice struct {
	Key string
	Rev int64
	End queue.End
}

// every is the period in which keys without a watch are read.
const every = 10 * time.Second

func deleted(p place) notice     { return notice{p.Key, p.Rev, queue.Deleted} }
func overwritten(p place) notice { return notice{p.Key, p.Rev, queue.Overwritten} }

func (e *env) guards(t *testing.T) *guards {
	t.Helper()
	g := &guards{e: e, byPlace: make(map[string]*queue.Guarded), before: make(map[notice]bool)}
	g.Guards = &queue.Guards{Queue: e.Queue, Spawn: e.spawn, Every: every, Warn: func(err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.warnings = append(g.warnings, err.Error())
	}}
	return g
}

func (g *guards) add(list ...place) {
	for _, p := range list {
		tell := func(end queue.End) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.notices = append(g.notices, notice{p.Key, p.Rev, end})
		}
		guarded := &queue.Guarded{Entry: p.Entry, Ended: tell, Touched: func(int64) { tell(0) }}
		g.byPlace[p.Key] = guarded
		g.Add(guarded)
	}
}

func (g *guards) remove(list ...place) {
	for _, p := range list {
		g.Remove(g.byPlace[p.Key])
		delete(g.byPlace, p.Key)
	}
}

// soFar returns the notices since the last drain. A test must not read the field itself: synctest.Wait orders what
// goroutines wrote before it, but not what they write after it.
func (g *guards) soFar() []notice {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.notices)
}

// warned returns all warnings.
func (g *guards) warned() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.warnings)
}

// drain returns the notices since its last call, without those that it has returned before.
func (g *guards) drain() []notice {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []notice
	for _, one := range g.notices {
		if !g.before[one] {
			g.before[one] = true
			list = append(list, one)
		}
	}
	g.notices = nil
	return list
}

func (g *guards) requireNotices(t *testing.T, want ...notice) {
	t.Helper()
	got := g.drain()
	missing := slices.DeleteFunc(slices.Clone(want), func(one notice) bool { return slices.Contains(got, one) })
	extra := slices.DeleteFunc(got, func(one notice) bool { return slices.Contains(want, one) })
	require.Empty(t, missing[:min(3, len(missing))], "%d missing", len(missing))
	require.Empty(t, extra[:min(3, len(extra))], "%d without a reason", len(extra))
}

// guarded returns n places in as many queues with these names, guarded and watched.
func (g *guards) guarded(t *testing.T, n int, name func(int) string) []place {
	t.Helper()
	list := g.e.places(t, n, name)
	g.add(list...)
	time.Sleep(time.Second)
	synctest.Wait()
	return list
}

func (e *env) places(t *testing.T, n int, name func(int) string) []place {
	t.Helper()
	var list []place
	for i := range n {
		list = append(list, e.into(t, name(i), "x"))
	}
	return list
}

// An entry that is removed before GuardAfter costs no request.
func TestGuards_youngEntriesAreNotWatched(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		calls := len(e.c.Calls(fakeetcd.Any))
		for i := range 100 {
			p := e.enter(t, string(rune('A'+i)))
			g.add(p)
			time.Sleep(queue.GuardAfter - 1)
			g.remove(p)
			e.leave(t, p)
			time.Sleep(time.Nanosecond)
		}
		time.Sleep(time.Minute)
		require.Len(t, e.c.Calls(fakeetcd.Any), calls+200, "to enter and to leave")
		require.Zero(t, e.srv.Watchers())

		p := e.enter(t, "x")
		began := time.Now()
		g.add(p)
		g.Add(g.byPlace[p.Key]) // it is guarded already
		require.NoError(t, e.srv.Await(t.Context(), func() bool { return e.srv.Watchers() > 0 }))
		require.Equal(t, queue.GuardAfter, time.Since(began))
		synctest.Wait()
		calls = e.requests()
		g.Add(g.byPlace[p.Key])
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, e.srv.Watchers())
		require.Equal(t, calls, e.requests())
	})
}

// numbered returns names with a common prefix.
func numbered(i int) string { return fmt.Sprintf("jobs/%03d", i) }

// scattered returns names without one.
func scattered(i int) string { return string(rune('A'+i%50)) + fmt.Sprint(i/50) }

const mostWatched = 256

// requireWatchers requires the number of watches that n guarded entries have.
func (e *env) requireWatchers(t *testing.T, n int) {
	t.Helper()
	require.Equal(t, min(n, mostWatched), e.srv.Watchers())
}

// Each entry's end is reported and nothing else: of the first 256 at once, of the others within the period. Each
// watch is of one key, so it shows nobody else's keys.
func TestGuards_fewOrMany(t *testing.T) {
	for _, n := range []int{1, 17, mostWatched, mostWatched + 1, 400} {
		bubbleOf(t, fmt.Sprint(n), func(t *testing.T, e *env) {
			g := e.guards(t)
			list := e.places(t, n, numbered)
			e.allowOps(16) // in a read
			g.add(list...)
			time.Sleep(3 * every)
			synctest.Wait()
			e.requireWatchers(t, n)
			for _, call := range e.c.Calls(fakeetcd.Watch) {
				require.Empty(t, call.Request.(*pb.WatchCreateRequest).RangeEnd)
			}
			g.requireNotices(t)

			var want []notice
			for i, p := range list {
				if i%2 == 0 {
					require.True(t, e.srv.Delete(p.Key))
					want = append(want, deleted(p))
				} else {
					e.srv.Put(p.Key, "x")
					want = append(want, overwritten(p))
				}
			}
			synctest.Wait()
			require.Len(t, g.soFar(), min(n, mostWatched), "at once")
			time.Sleep(every)
			synctest.Wait()
			g.requireNotices(t, want...)
			require.Empty(t, g.warned())
			g.remove(list...)
			synctest.Wait()
			require.Zero(t, e.srv.Watchers())
		})
	}
}

// When watches become free, the keys without one get them.
func TestGuards_fewAgain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		first := g.guarded(t, mostWatched, numbered)
		others := g.guarded(t, 10, scattered)
		e.requireWatchers(t, mostWatched)
		g.remove(first[3:]...)
		time.Sleep(every)
		synctest.Wait()
		e.requireWatchers(t, 13)
		calls := e.requests()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, calls, e.requests(), "nothing polls")
		var want []notice
		for _, p := range append(first[:3], others...) {
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		}
		synctest.Wait()
		g.requireNotices(t, want...)
	})
}

// Keys beyond the limit are first read after a period. A change just after the entry is still reported within a period.
func TestGuards_withoutAWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		list := g.guarded(t, mostWatched+100, numbered)
		keys := 0
		for _, call := range e.c.Calls(fakeetcd.Txn) {
			if r := call.Request.(*pb.TxnRequest); len(r.Compare) == 0 {
				keys += len(r.Success)
			}
		}
		require.Equal(t, mostWatched, keys)
		for i := range 50 {
			time.Sleep(time.Duration(i) * queue.GuardAfter / 3) // at any phase of the period
			p := e.enter(t, "late/"+fmt.Sprint(i))
			g.add(p)
			require.True(t, e.srv.Delete(p.Key))
			time.Sleep(every)
			synctest.Wait()
			g.requireNotices(t, deleted(p))
			g.remove(p)
		}
		g.remove(list...)
	})
}
