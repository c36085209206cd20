package queue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// merging are entries that stand in watches which are being replaced: the new ones are not confirmed for a second.
func merging(t *testing.T, g *guards) (present, fresh []place) {
	t.Helper()
	present = g.guarded(t, 16, numbered)
	g.e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Before: time.Second})
	fresh = g.e.places(t, 20, scattered)
	g.add(fresh...)
	time.Sleep(500 * time.Millisecond)
	synctest.Wait()
	require.Less(t, g.e.srv.Watchers(), 16)
	return present, fresh
}

// While watches are replaced nothing is missed: what no watch tells, a read does.
func TestGuards_merge(t *testing.T) {
	for name, breaks := range map[string]func(*env){
		"all is well":     func(*env) {},
		"streams break":   func(e *env) { e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) },
		"streams hang":    func(e *env) { e.Streams.Suspect() },
		"it is compacted": func(e *env) { e.compact() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				g := e.guards(t)
				present, fresh := merging(t, g)
				var want []told
				for i := range 10 {
					require.True(t, e.srv.Delete(present[i].Key))
					e.srv.Put(fresh[i].Key, "")
					want = append(want, deleted(present[i]), overwritten(fresh[i]))
				}
				breaks(e)
				time.Sleep(time.Minute)
				synctest.Wait()
				g.requireTold(t, want...)

				e.c.Reset()
				e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) // which ends what etcd's client has forgotten, too
				time.Sleep(time.Minute)
				synctest.Wait()
				e.requireWatchers(t, 36)
				want = nil
				for _, p := range append(present[10:], fresh[10:]...) {
					require.True(t, e.srv.Delete(p.Key))
					want = append(want, deleted(p))
				}
				synctest.Wait()
				g.requireTold(t, want...)
			})
		})
	}
}

// An event may have arrived that the old watch has not come to yet, since it reads, when the new ones are there.
func TestGuards_merge_theOldAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		present := g.guarded(t, 20, func(i int) string { return numbered(2 * i) })

		// Each of these lies in a watch that exists. The reads take long.
		between := e.places(t, 20, func(i int) string { return numbered(2*i + 1) })
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 20, Before: 10 * time.Second})
		g.add(between...)
		time.Sleep(500 * time.Millisecond)
		var want []told
		for _, p := range present {
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		}
		synctest.Wait()

		other := e.another(t) // whose requests are not slow
		for i := range 20 {
			entered, _, err := other.Enter(t.Context(), queue.NewEntry(scattered(i), e.lease, "x"), "", false)
			require.NoError(t, err)
			g.add(place{Entry: entered})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		g.requireTold(t, want...)
	})
}

// One watch is not confirmed for long: that holds up no others on other streams, nor when its entry goes.
func TestGuards_merge_oneHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := g.guarded(t, 100, numbered)
		g.remove(list[5:]...)
		slow := e.srv.NewClient(t.Context())
		slow.Inject(fakeetcd.Watch, fakeetcd.Fault{Before: time.Hour})
		more := e.places(t, 1, scattered)
		e.c.Watcher = routed{e.c.Watcher, slow, func(s span) bool { return s.low == more[0].Key }}
		g.add(more...)
		for i := range 2 {
			time.Sleep(time.Second)
			require.True(t, e.srv.Delete(list[i].Key))
			synctest.Wait()
			g.requireTold(t, deleted(list[i]))
			if i == 0 {
				g.remove(more...)
			}
		}
		require.Equal(t, 5, e.srv.Watchers())
	})
}

// routed has some of the watches go through another client's network.
type routed struct {
	clientv3.Watcher

	other *fakeetcd.Client
	which func(span) bool
}

func (r routed) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if r.which(span{key, string(clientv3.OpGet(key, opts...).RangeBytes())}) {
		return r.other.Watch(ctx, key, opts...)
	}
	return r.Watcher.Watch(ctx, key, opts...)
}
