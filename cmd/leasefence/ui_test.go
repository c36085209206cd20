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
)

// startHub starts a hub on an empty server. It ends with the test.
func startHub(t *testing.T) (*hub, *fakeetcd.Server, *fakeetcd.Client) {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	client := srv.NewClient(context.WithoutCancel(t.Context()))
	a := newApp()
	a.etcd.commandTimeout = 5 * time.Second
	return a.newHub(t.Context(), client.Client, ui{every: time.Second}, nil), srv, client
}

// look looks at a name until the test ends.
func look(t *testing.T, h *hub, name string) *topic {
	t.Helper()
	topic, leave, err := h.look(name)
	require.NoError(t, err)
	t.Cleanup(leave)
	return topic
}

// shown is a topic as the page gets it.
func shown(t *topic) *nameView {
	view, _ := t.view()
	return view
}

// newSession makes a session with a client of its own.
func newSession(t *testing.T, srv *fakeetcd.Server, ttl time.Duration) (*lease.Session, *fakeetcd.Client) {
	t.Helper()
	client := srv.NewClient(context.WithoutCancel(t.Context()))
	s, err := lease.NewSession(t.Context(), client.Client, lease.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() {
		client.Restore()
		_ = s.Close(context.WithoutCancel(t.Context()))
	})
	return s, client
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
		h, srv, _ := startHub(t)
		s, _ := newSession(t, srv, 0)
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
		h, _, _ := startHub(t)
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
		look(t, h, "more")
		require.Len(t, watched(h), mostTopics)
		require.NotContains(t, watched(h), left[0])
	})
}

// The hub lists the names once for all browsers, and not at all without any. Then it forgets the list.
func TestHub_listsWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := startHub(t)
		listed := func() int { return len(client.Calls(fakeetcd.Get)) }
		time.Sleep(time.Minute)
		require.Zero(t, listed())
		var leave []func()
		for range 100 {
			leave = append(leave, h.viewList())
		}
		_, unknown := h.list("", false, nil)
		time.Sleep(time.Second + time.Millisecond)
		known, first := h.list("", false, unknown)
		require.NotNil(t, known, "that there are no names is news")
		time.Sleep(9 * time.Second)
		require.Equal(t, 11, listed())
		same, _ := h.list("", false, first)
		require.Nil(t, same, "a list that has not changed is not sent again")
		for _, leave := range leave {
			leave()
		}
		time.Sleep(time.Minute)
		require.Equal(t, 11, listed(), "nobody looked any more")

		client.Cut()
		late := h.viewList()
		old, _ := h.list("", false, nil)
		require.Zero(t, old.AsOf, "an old list is not shown as the present one")
		client.Restore()
		time.Sleep(10 * time.Second)
		late()
		defer h.viewList()()
		at, _ := h.list("", false, nil)
		require.NotZero(t, at.AsOf, "a viewer that comes back at once does not wait")
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

// The timeline says how a hold has ended, as far as etcd shows it.
func TestTopic_saysHowHoldsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, _ := startHub(t)
		topic := look(t, h, "a")
		synctest.Wait()
		ended := func(s *lease.Session, end func(l *lease.Lock)) spell {
			t.Helper()
			l, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(tendEvery * 5 / 4) // so that no hold ends at the very time of a look at the leases
			end(l)
			synctest.Wait()
			view := shown(topic)
			require.Empty(t, view.Holders)
			last := view.Log[len(view.Log)-1]
			require.NotZero(t, last.Begin)
			require.GreaterOrEqual(t, last.End-last.Begin, tendEvery.Milliseconds())
			return last
		}
		s, _ := newSession(t, srv, 0)
		unlocked := ended(s, func(l *lease.Lock) { require.NoError(t, l.Unlock(t.Context())) })
		require.Equal(t, "released", unlocked.How)
		closed := ended(s, func(*lease.Lock) { require.NoError(t, s.Close(t.Context())) })
		require.Equal(t, "ended with its session", closed.How)
		s, client := newSession(t, srv, 20*time.Second)
		expired := ended(s, func(*lease.Lock) {
			client.Cut()
			time.Sleep(30 * time.Second)
		})
		require.Equal(t, "lease expired", expired.How)
		require.Equal(t, []bool{false, false, true}, []bool{unlocked.Lost, closed.Lost, expired.Lost})
	})
}

// The timeline shows a gap while etcd does not answer: holds of that time may be missing.
func TestTopic_showsGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := startHub(t)
		topic := look(t, h, "a")
		time.Sleep(time.Second)
		client.Cut()
		time.Sleep(time.Minute)
		log := shown(topic).Log
		require.Len(t, log, 1)
		require.True(t, log[0].Gap)
		require.Zero(t, log[0].End)
		client.Restore()
		time.Sleep(10 * time.Second)
		view := shown(topic)
		require.Len(t, view.Log, 1)
		require.Greater(t, view.Log[0].End-view.Log[0].Begin, time.Minute.Milliseconds())
		require.Empty(t, view.Error)
	})
}

// While the watch is silent, a state that etcd no longer has is not shown as the present one, however long the queue is.
// The timeline says later how the hold of that time has ended.
func TestTopic_saysThatItsWatchIsBehind(t *testing.T) {
	for _, contenders := range []int{2, mostContenders + 2} {
		synctest.Test(t, func(t *testing.T) {
			h, _, client := startHub(t)
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
			topic := look(t, h, "a")
			synctest.Wait()
			require.Equal(t, contenders == 2, shown(topic).Holders[0].TTL != nil, "the page does not wait for the next look at the leases")
			time.Sleep(time.Minute + time.Second/2)
			require.Empty(t, shown(topic).Error)
			require.Greater(t, shown(topic).AsOf, time.Now().Add(-2*tendEvery).UnixMilli())

			client.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
			time.Sleep(time.Second / 2)
			changed := time.Now().UnixMilli()
			time.Sleep(tendEvery * 3 / 4) // one look; soon the watch moves to another stream
			require.Contains(t, shown(topic).Error, "the queue has changed since")
			require.Less(t, shown(topic).AsOf, changed, "the age is that of the queue")

			time.Sleep(time.Minute)
			require.Empty(t, shown(topic).Error)
			require.Greater(t, shown(topic).AsOf, changed)
			require.Equal(t, contenders-1, shown(topic).Holding+shown(topic).Waiting)
			require.False(t, slices.ContainsFunc(shown(topic).Log, func(s spell) bool { return s.Gap }))
			require.Equal(t, contenders == 2, shown(topic).Log[0].How == "lease expired", "of a long queue no lease was read")
		})
	}
}

// longQueue makes so many contenders for "a" that reading the remaining time of their leases takes ten seconds.
func longQueue(t *testing.T, client *fakeetcd.Client) {
	t.Helper()
	for range 1000 {
		granted, err := client.Grant(t.Context(), 3600)
		require.NoError(t, err)
		_, err = client.Put(t.Context(), fmt.Sprintf("a/%x-", int64(granted.ID)), "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
	}
	client.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Before: 40 * time.Millisecond})
}

// A queue is no gap in the timeline because it is too long to read the remaining time of all its leases.
func TestTopic_showsNoGapForALongQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := startHub(t)
		longQueue(t, client)
		client.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Before: time.Second})
		topic := look(t, h, "a")
		for range 20 {
			time.Sleep(time.Second)
			view := shown(topic)
			require.Empty(t, view.Error)
			require.False(t, slices.ContainsFunc(view.Log, func(s spell) bool { return s.Gap }))
		}
	})
}

// A full timeline drops the oldest hold that has ended, not one that lasts. The ends of holds that are not on it any
// more are not looked into.
func TestTopic_boundsTheTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, client := startHub(t)
		topic := look(t, h, "a")
		synctest.Wait()
		stays := lease.Contender{Key: "a/r1", Revision: 1}
		for n := range int64(2 * mostSpells) {
			topic.see(t.Context(), lease.Queue{Name: "a", Holders: []lease.Contender{stays, {Key: "a/r2", Revision: n + 2}}})
		}
		log := shown(topic).Log
		require.Len(t, log, mostSpells)
		require.EqualValues(t, 1, log[0].rev)
		require.EqualValues(t, 2*mostSpells+1, log[mostSpells-1].rev)

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
