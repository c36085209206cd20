package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// newTestHub starts a hub on an empty server. It ends with the test.
func newTestHub(t *testing.T) (*hub, *leasetest.Server, *leasetest.Client) {
	t.Helper()
	srv := leasetest.New(t)
	client := srv.Client(t)
	return startHub(t, client.Client), srv, client
}

func newFake(t *testing.T) (*fakeetcd.Server, *fakeetcd.Client) {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv, srv.NewClient(context.WithoutCancel(t.Context()))
}

func startHub(t *testing.T, client *clientv3.Client) *hub {
	t.Helper()
	a := newApp()
	a.etcd.commandTimeout = 5 * time.Second
	return a.newHub(t.Context(), client, ui{every: time.Second}, nil)
}

// watched are the names that h watches.
func watched(h *hub) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.topics))
}

// The hub watches a name while somebody looks, and for a while after that.
func TestHub_forgetsWhatNobodyLooksAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, _ := newTestHub(t)
		s := srv.Session(t, lease.Options{})
		one, leave, err := h.look("a")
		require.NoError(t, err)
		other, leaveToo, err := h.look("a")
		require.NoError(t, err)
		require.Same(t, one, other)
		synctest.Wait()
		held, err := s.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, held.Unlock(t.Context()))
		leave()
		time.Sleep(2 * linger)
		require.Len(t, watched(h), 1, "the other viewer still looks")
		leaveToo()
		time.Sleep(linger - time.Second)
		again, leave, err := h.look("a")
		require.NoError(t, err)
		require.Same(t, one, again)
		require.Len(t, one.log, 1)
		leave()
		time.Sleep(linger - time.Second)
		require.Len(t, watched(h), 1)
		time.Sleep(2 * time.Second)
		require.Empty(t, watched(h))
	})
}

// Browsers cannot make the hub watch any number of names: the name that was left first makes room for a new one.
func TestHub_boundsTheNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, _ := newTestHub(t)
		var leave [mostTopics]func()
		var left []string
		for n := range mostTopics {
			var err error
			_, leave[n], err = h.look(fmt.Sprint(n))
			require.NoError(t, err)
		}
		_, _, err := h.look("more")
		require.ErrorContains(t, err, "64 names are open already")
		for _, n := range rand.Perm(mostTopics) {
			time.Sleep(time.Second)
			leave[n]()
			left = append(left, fmt.Sprint(n))
		}
		_, _, err = h.look("more")
		require.NoError(t, err)
		require.Len(t, watched(h), mostTopics)
		require.NotContains(t, watched(h), left[0])
	})
}

// The hub lists the names once for all browsers, and not at all without any.
func TestHub_listsWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := newFake(t)
		h := startHub(t, client.Client)
		listed := func() int { return len(client.Calls(fakeetcd.Get)) }
		time.Sleep(time.Minute)
		require.Zero(t, listed())
		var leave []func()
		for range 100 {
			leave = append(leave, h.viewList())
		}
		time.Sleep(time.Second + time.Millisecond)
		_, first := h.list("", false, nil)
		time.Sleep(9 * time.Second)
		require.Equal(t, 11, listed())
		same, _ := h.list("", false, first)
		require.Nil(t, same, "a list that has not changed is not sent again")
		for _, leave := range leave {
			leave()
		}
		time.Sleep(time.Minute)
		require.Equal(t, 11, listed(), "nobody looked any more")

		defer h.viewList()()
		time.Sleep(time.Second)
		client.Cut()
		time.Sleep(10 * time.Second)
		old, sent := h.list("", false, nil)
		require.Contains(t, old.Error, "has not answered for 5s")
		require.NotZero(t, old.AsOf)
		client.Restore()
		time.Sleep(10 * time.Second)
		shown, _ := h.list("", false, sent)
		require.Empty(t, shown.Error)
		require.Greater(t, shown.AsOf, old.AsOf)
	})
}

// After a time without viewers the hub does not show the old list as the present one. A viewer that comes back at once
// gets it without waiting.
func TestHub_showsNoOldList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := newTestHub(t)
		shown := func() *listView {
			list, _ := h.list("", false, nil)
			return list
		}
		leave := h.viewList()
		synctest.Wait()
		require.NotNil(t, shown())
		leave()
		leave = h.viewList()
		require.NotNil(t, shown())
		leave()
		time.Sleep(time.Hour)
		client.Partition()
		defer h.viewList()()
		require.Nil(t, shown())
		time.Sleep(10 * time.Second)
		require.Contains(t, shown().Error, "has not answered for 5s")
	})
}

// The timeline says how a hold has ended, as far as etcd shows it.
func TestTopic_saysHowHoldsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, _ := newTestHub(t)
		topic, leave, err := h.look("a")
		require.NoError(t, err)
		defer leave()
		synctest.Wait()
		ended := func(s *leasetest.Session, end func(l *lease.Lock)) spell {
			t.Helper()
			l, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(tendEvery * 5 / 4) // so that no hold ends at the very time of a look at the leases
			end(l)
			synctest.Wait()
			topic.mu.Lock()
			defer topic.mu.Unlock()
			require.Empty(t, topic.open)
			last := *topic.log[len(topic.log)-1]
			require.NotZero(t, last.Begin)
			require.GreaterOrEqual(t, last.End-last.Begin, tendEvery.Milliseconds())
			return last
		}
		s := srv.Session(t, lease.Options{})
		unlocked := ended(s, func(l *lease.Lock) { require.NoError(t, l.Unlock(t.Context())) })
		require.Equal(t, "released", unlocked.How)
		closed := ended(s, func(*lease.Lock) { require.NoError(t, s.Close(t.Context())) })
		require.Equal(t, "ended with its session", closed.How)
		s = srv.Session(t, lease.Options{TTL: 20 * time.Second})
		expired := ended(s, func(*lease.Lock) {
			s.Partition()
			time.Sleep(30 * time.Second)
		})
		require.Equal(t, "lease expired", expired.How)
		require.Equal(t, []bool{false, false, true}, []bool{unlocked.Lost, closed.Lost, expired.Lost})
	})
}

// The timeline shows a gap while etcd does not answer: holds of that time may be missing.
func TestTopic_showsGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := newTestHub(t)
		topic, leave, err := h.look("a")
		require.NoError(t, err)
		defer leave()
		time.Sleep(time.Second)
		client.Partition()
		time.Sleep(time.Minute)
		topic.mu.Lock()
		require.Len(t, topic.log, 1)
		require.True(t, topic.log[0].Gap)
		require.Zero(t, topic.log[0].End)
		topic.mu.Unlock()
		client.Heal()
		time.Sleep(10 * time.Second)
		topic.mu.Lock()
		defer topic.mu.Unlock()
		require.Len(t, topic.log, 1)
		require.Greater(t, topic.log[0].End-topic.log[0].Begin, time.Minute.Milliseconds())
		require.Empty(t, topic.health.err)
	})
}

// While the watch is silent, a state that etcd no longer has is not shown as the present one, however long the queue is.
// The timeline says later how the hold of that time has ended.
func TestTopic_saysThatItsWatchIsBehind(t *testing.T) {
	for _, contenders := range []int{2, mostContenders + 2} {
		synctest.Test(t, func(t *testing.T) {
			_, client := newFake(t)
			granted, err := client.Grant(t.Context(), 3600)
			require.NoError(t, err)
			dies, err := client.Grant(t.Context(), 61)
			require.NoError(t, err)
			for n := range contenders {
				on := granted.ID
				if n == 0 {
					on = dies.ID
				}
				_, err := client.Put(t.Context(), fmt.Sprintf("a/%x-%d", int64(on), n), "", clientv3.WithLease(on))
				require.NoError(t, err)
			}
			topic, leave, err := startHub(t, client.Client).look("a")
			require.NoError(t, err)
			defer leave()
			shown := func() *nameView {
				view, _ := topic.view()
				return view
			}
			synctest.Wait()
			require.Equal(t, contenders == 2, shown().Holders[0].TTL != nil, "the page does not wait for the next look at the leases")
			time.Sleep(time.Minute + time.Second/2)
			require.Empty(t, shown().Error)
			require.Greater(t, shown().AsOf, time.Now().Add(-2*tendEvery).UnixMilli())

			client.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
			time.Sleep(time.Second / 2)
			changed := time.Now().UnixMilli()
			time.Sleep(tendEvery * 3 / 4) // one look; soon the watch moves to another stream
			require.Contains(t, shown().Error, "the queue has changed since")
			require.Less(t, shown().AsOf, changed, "the age is that of the queue")

			time.Sleep(time.Minute)
			require.Empty(t, shown().Error)
			require.Greater(t, shown().AsOf, changed)
			require.Equal(t, contenders-1, shown().Holding+shown().Waiting)
			require.False(t, slices.ContainsFunc(shown().Log, func(s spell) bool { return s.Gap }))
			require.Equal(t, contenders == 2, shown().Log[0].How == "lease expired", "of a long queue no lease was read")
		})
	}
}

// longQueue is a client of a server with so many contenders for "a" that reading the remaining time of their leases takes
// ten seconds.
func longQueue(t *testing.T) *fakeetcd.Client {
	t.Helper()
	_, client := newFake(t)
	for range 1000 {
		granted, err := client.Grant(t.Context(), 3600)
		require.NoError(t, err)
		_, err = client.Put(t.Context(), fmt.Sprintf("a/%x-", int64(granted.ID)), "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
	}
	client.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Before: 40 * time.Millisecond})
	return client
}

// A queue is no gap in the timeline because it is too long to read the remaining time of all its leases.
func TestTopic_showsNoGapForALongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := longQueue(t)
		client.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Before: time.Second})
		topic, leave, err := startHub(t, client.Client).look("a")
		require.NoError(t, err)
		defer leave()
		for range 20 {
			time.Sleep(time.Second)
			view, _ := topic.view()
			require.Empty(t, view.Error)
			require.False(t, slices.ContainsFunc(view.Log, func(s spell) bool { return s.Gap }))
		}
	})
}

// A full timeline drops the oldest hold that has ended, not one that lasts. The ends of holds that are not on it any
// more are not looked into.
func TestTopic_boundsTheTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := newFake(t)
		topic, leave, err := startHub(t, client.Client).look("a")
		require.NoError(t, err)
		defer leave()
		synctest.Wait()
		stays := lease.Contender{Key: "a/r1", Revision: 1}
		for n := range int64(2 * mostSpells) {
			topic.see(t.Context(), lease.Queue{Name: "a", Holders: []lease.Contender{stays, {Key: "a/r2", Revision: n + 2}}})
		}
		topic.mu.Lock()
		require.Len(t, topic.log, mostSpells)
		require.EqualValues(t, 1, topic.log[0].rev)
		require.EqualValues(t, 2*mostSpells+1, topic.log[mostSpells-1].rev)
		topic.mu.Unlock()

		var many []lease.Contender
		for n := range int64(2 * mostSpells) {
			many = append(many, lease.Contender{Key: fmt.Sprint("a/r", n), Revision: 1000 + n})
		}
		topic.see(t.Context(), lease.Queue{Name: "a", Holders: many})
		synctest.Wait()
		before := len(client.Calls(fakeetcd.TimeToLive))
		topic.see(t.Context(), lease.Queue{Name: "a"})
		synctest.Wait()
		require.Len(t, client.Calls(fakeetcd.TimeToLive), before+mostSpells)
	})
}

// The trail reads rows as the databases write them.
func TestTrail_reads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trail")
	at := time.Date(2026, 11, 23, 17, 7, 33, 5e6, time.UTC).UnixMilli()
	for name, text := range map[string]string{
		"PostgreSQL": `{"key":"a","token":7,"holder":"h","ttl_ms":1,"granted_at":"2026-11-23T18:07:33.005+01:00","released_at":null,"release_cause":null}`,
		"MySQL":      `{"key":"a","token":7,"holder":"h","ttl_ms":1,"granted_at":"2026-11-23 17:07:33.005000"}`,
		"SQLite":     `[{"key":"a","token":7,"holder":"h","ttl_ms":1,"granted_at":"2026-11-23 17:07:33.005"}]`,
		"an era":     `{"key":"a","token":"281474976710663","holder":"h","granted_at":"2026-11-23T17:07:33.005Z"}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			l, err := newTrail(file)
			require.NoError(t, err)
			require.Equal(t, []trailEntry{{Resource: "a", Token: "7", Holder: "h", Begin: at, rev: 7}}, l.of("a", nil).Rows)
			require.Len(t, l.of("b", map[int64]bool{7: true}).Rows, 1)
			require.Empty(t, l.of("b", map[int64]bool{8: true}).Rows)
		})
	}
	t.Run("many", func(t *testing.T) {
		var text []byte
		for n := range mostShown + 1 {
			row := fmt.Sprintf(`"key":"a","token":%d,"granted_at":"2026-11-23 17:07:33"`, n+1)
			text = fmt.Appendf(text, `{%s} {%s,"refused_at":"2026-11-23 17:07:33","highest":%d}`, row, row, n+2)
		}
		require.NoError(t, os.WriteFile(file, text, 0o600))
		l, err := newTrail(file)
		require.NoError(t, err)
		shown := l.of("a", nil).Rows
		require.Len(t, shown, 2*mostShown)
		require.Equal(t, []string{"201", "2"}, []string{shown[0].Token, shown[len(shown)-1].Token}, "the oldest are left out")
	})
	t.Run("too long", func(t *testing.T) {
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
		require.NoError(t, os.Truncate(file, mostTrail+1))
		_, err := newTrail(file)
		require.ErrorContains(t, err, file+" has 67108865 bytes, want 67108864 at most")
	})
	for name, text := range map[string]string{
		"no JSON": `{"key":"a"} x`, "no token": `{"key":"a","granted_at":"2026-11-23 17:07:33"}`, "no time": `{"key":"a","token":7}`,
		"no mark": `{"key":"a","token":7,"refused_at":"2026-11-23 17:07:33"}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			_, err := newTrail(file)
			require.ErrorContains(t, err, "value ")
		})
	}
}
