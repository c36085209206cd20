package election_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

var none = election.Leader{}

// audience is an observer that keeps up with the changes.
type audience struct {
	*action // the iteration
	seen    chan election.Leader
	stop    context.CancelFunc
}

func observe(t *testing.T, client *fakeetcd.Client, name string) *audience {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &audience{seen: make(chan election.Leader, 10000), stop: cancel}
	a.action = inBackground(func() (last error) {
		for l, err := range election.Observe(ctx, client.Client, name) {
			if last = err; err == nil { // after an error the iteration must end
				a.seen <- l
			}
		}
		return last
	})
	t.Cleanup(func() { cancel(); <-a.done })
	return a
}

// takes returns what Observe has yielded since the last call.
func (a *audience) takes() []election.Leader {
	synctest.Wait()
	got := []election.Leader{}
	for len(a.seen) > 0 {
		got = append(got, <-a.seen)
	}
	return got
}

func (a *audience) sees(t *testing.T, want ...election.Leader) {
	t.Helper()
	require.Equal(t, want, a.takes())
}

// catchUp is longer than etcd delays a watch that begins in the past, such as a hub's watch after a change of leader.
const catchUp = 200 * time.Millisecond

func (a *audience) seesNothing(t *testing.T) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, a.seen)
}

// ended waits for the end of the iteration, and returns its error.
func (a *audience) ended(t *testing.T) error {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(time.Second):
		require.FailNow(t, "the iteration goes on")
	}
	return a.err
}

// An observer that keeps up sees every change. The end of a leader costs one read, as does its beginning after nobody.
func TestObserve_seesEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		a := observe(t, s.c, "n")
		a.sees(t, none)
		reads := len(s.c.Calls(fakeetcd.Get))
		for i := range 100 {
			l := s.stands(t, strconv.Itoa(i))
			s.dies(t, l)
			time.Sleep(catchUp)
			a.sees(t, l, none)
		}
		require.Len(t, s.c.Calls(fakeetcd.Get), reads+200)
	})
}

// While somebody leads, the server sends an observer no events of nested names and waiting candidates. While nobody
// leads, it sends none of keys outside of queues.
func TestObserve_isNotSentNestedNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var sent atomic.Int64
		s.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{OnAnswer: func() { sent.Add(1) }})
		a := observe(t, s.c, "n")
		a.sees(t, none)
		s.put(t, keyOf("n/~nested", s.grant(t), ""), "below a node of a tree", 0)
		time.Sleep(catchUp)
		require.Zero(t, sent.Load())
		first := s.stands(t, "first")
		a.sees(t, first)
		require.EqualValues(t, 1, sent.Swap(0))
		second := s.stands(t, "second")
		busy := func() {
			for range 100 {
				lease := s.grant(t)
				s.dies(t, s.put(t, keyOf("n/nested", lease, ""), "nested", lease))
				s.dies(t, s.stands(t, "waits"))
			}
			time.Sleep(catchUp)
		}
		busy()
		require.Zero(t, sent.Load())
		s.dies(t, first)
		a.sees(t, second)
		require.EqualValues(t, 1, sent.Load())
		busy()
		a.seesNothing(t)
		require.EqualValues(t, 1, sent.Load())
	})
}

// All observers of a name share a watch, and all watches of a client a stream, until the last observer has left.
func TestObserve_sharesOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		l := s.stands(t, "a")
		var all []*audience
		for range 50 {
			all = append(all, observe(t, s.c, "n"))
		}
		other := observe(t, s.c, "m")
		for _, a := range all {
			a.sees(t, l)
		}
		other.sees(t, none)
		require.Equal(t, 2, s.srv.Watchers())
		require.Len(t, s.c.Calls(fakeetcd.Get), 51, "one for each observer; the hub reads for the first of a name")

		l = s.proclaims(t, l, "b")
		for _, a := range all {
			a.sees(t, l)
		}
		other.stop()
		for _, a := range all[1:] {
			a.stop()
			require.NoError(t, a.ended(t))
		}
		require.NoError(t, other.ended(t))
		synctest.Wait() // until the client has cancelled the watch at the server
		require.Equal(t, 1, s.srv.Watchers())
		s.dies(t, l)
		all[0].sees(t, none)
		all[0].stop()
		require.NoError(t, all[0].ended(t))
		synctest.Wait()
		require.Zero(t, s.srv.Watchers())
		calls := len(s.c.Calls(fakeetcd.Any))
		time.Sleep(time.Hour)
		require.Len(t, s.c.Calls(fakeetcd.Any), calls)
	})
}

// A change that happens while an observer begins is not lost between its read and its watch.
func TestObserve_changesWhileItBegins(t *testing.T) {
	for _, method := range []fakeetcd.Method{fakeetcd.Watch, fakeetcd.Get} {
		for _, delay := range []fakeetcd.Fault{{Before: time.Second}, {After: time.Second}} {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				first := s.stands(t, "first")
				delay.Times = 1
				s.c.Inject(method, delay)
				a := observe(t, s.c, "n")
				time.Sleep(time.Second / 2)
				a.seesNothing(t)
				last := s.proclaims(t, first, "last")
				time.Sleep(time.Second/2 + catchUp)
				synctest.Wait()
				for len(a.seen) > 1 {
					<-a.seen
				}
				a.sees(t, last)
			})
		}
	}
}

// A slow consumer skips to the latest change.
func TestObserve_slowConsumer(t *testing.T) {
	value := strings.Repeat("v", 100<<10)
	for name, tt := range map[string]struct {
		changes int
		value   string
		kept    bool // all of them
	}{
		"within its backlog":  {128, "", true},
		"a change more":       {129, "", false},
		"far behind":          {1000, "", false},
		"ten large values":    {10, value, true},
		"eleven large values": {11, value, false},
		"one that is larger":  {1, strings.Repeat(value, 12), true},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newStage(t)
			l := s.stands(t, "")
			fast := observe(t, s.c, "n")
			fast.sees(t, l)
			for i := range 11 { // more than a backlog keeps: what it drops must not count any longer
				l = s.proclaims(t, l, value+strconv.Itoa(-i))
				fast.sees(t, l)
			}
			var got []election.Leader
			for seen, err := range election.Observe(t.Context(), s.c.Client, "n") {
				require.NoError(t, err)
				got = append(got, seen)
				if len(got) == 1 {
					for i := range tt.changes {
						l = s.proclaims(t, l, tt.value+strconv.Itoa(i))
						fast.sees(t, l)
					}
				}
				if seen == l {
					break
				}
			}
			if tt.kept {
				require.Len(t, got, 1+tt.changes)
			} else {
				require.Len(t, got, 2, "the first and the last")
			}
		})
	}
}
