package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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

// The timeline says how a hold has ended, as far as etcd shows it, also if etcd answers slowly.
func TestTopic_saysHowHoldsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, slow := startHub(t)
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
		slow.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{After: 2 * time.Second})
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

// The page learns what has become of a release although nobody reads standard error.
func TestServer_answersWhileStandardErrorBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, srv, _ := startHub(t)
		s, _ := newSession(t, srv, 0)
		held, err := s.Lock(t.Context(), "a")
		require.NoError(t, err)
		stderr, writer := io.Pipe()
		defer func() { require.NoError(t, stderr.Close()) }()
		h.app.stderr = writer
		h.write = true
		pages := &uiServer{hub: h, local: true}
		order := fmt.Sprintf(`{"name":"a","typed":"a","mode":"ask","token":%q}`, held.Token())
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/release", strings.NewReader(order))
		r.Header.Set("X-Leasefence", "1")
		w := httptest.NewRecorder()
		answered := false
		go func() {
			pages.handler().ServeHTTP(w, r)
			answered = true
		}()
		synctest.Wait()
		require.True(t, answered)
		require.Equal(t, http.StatusNoContent, w.Code)
	})
}

// A browser that leaves is no viewer any more, and makes room for another stream.
func TestServer_streamEndsWithItsBrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, _ := startHub(t)
		pages := &uiServer{hub: h, local: true, streams: make(chan struct{}, 1)}
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/stream?name=a", http.NoBody)
		r.Header.Set("X-Leasefence", "1")
		go pages.handler().ServeHTTP(httptest.NewRecorder(), r)
		viewers := func() [3]int {
			time.Sleep(time.Second)
			h.mu.Lock()
			defer h.mu.Unlock()
			return [...]int{h.viewers, h.topics["a"].viewers, len(pages.streams)}
		}
		require.Equal(t, [...]int{1, 1, 1}, viewers())
		leave()
		require.Equal(t, [...]int{0, 0, 0}, viewers())
	})
}
