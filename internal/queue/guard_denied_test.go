package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// denials are how the client tells of a watch that is not permitted. The server says it in words, which the client
// does not translate.
var denials = map[string]error{
	"by its code": rpctypes.ErrGRPCPermissionDenied,
	"in words":    status.Error(codes.Unknown, "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
}

// deny has the watches refused that are not permitted.
func (e *env) deny(t *testing.T, err error, which func(span) bool) {
	t.Helper()
	refused := e.srv.NewClient(t.Context())
	refused.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: err})
	e.c.Watcher = routed{e.c.Watcher, refused, which}
}

func (s span) several() bool { return s.high != s.low+"\x00" }

// A user may have permission for each name by itself. Then each has a watch of its own, however many they are.
func TestGuards_spansAreDenied(t *testing.T) {
	for how, err := range denials {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				e.deny(t, err, span.several)
				g := e.guards(t)
				list := g.guarded(t, 40, numbered)
				require.Equal(t, 40, e.srv.Watchers())
				more := g.guarded(t, 5, scattered)
				require.Equal(t, 45, e.srv.Watchers())
				require.Empty(t, g.warnings)
				var want []told
				for _, p := range append(list[20:], more...) {
					require.True(t, e.srv.Delete(p.Key))
					want = append(want, deleted(p))
				}
				synctest.Wait()
				g.requireTold(t, want...)
				g.remove(list...)
				synctest.Wait()
				require.Equal(t, 5, e.srv.Watchers())
				g.remove(more...)
				synctest.Wait()
				require.Zero(t, e.srv.Watchers())
			})
		})
	}
}

// While it turns out that spans are denied, nothing is missed.
func TestGuards_spansAreDenied_nothingIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.deny(t, rpctypes.ErrGRPCPermissionDenied, span.several)
		g := e.guards(t)
		few := g.guarded(t, 16, numbered)
		more := e.places(t, 16, scattered)
		g.add(more...)
		var want []told
		for i := range 16 { // one by one, in the time that it takes
			time.Sleep(20 * time.Millisecond)
			require.True(t, e.srv.Delete(few[i].Key))
			e.srv.Put(more[i].Key, "")
			want = append(want, deleted(few[i]), overwritten(more[i]))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		g.requireTold(t, want...)
		require.Equal(t, 32, e.srv.Watchers())
		require.Empty(t, g.warnings)
	})
}

// A watch that was permitted is not any more when it is opened again.
func TestGuards_spansAreDeniedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := g.guarded(t, 40, numbered)
		e.requireWatchers(t, 40)
		e.deny(t, rpctypes.ErrGRPCPermissionDenied, span.several)
		e.c.Cut()
		require.True(t, e.srv.Delete(list[7].Key))
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		e.c.Restore()
		time.Sleep(time.Second)
		synctest.Wait()
		g.requireTold(t, deleted(list[7]))
		require.Equal(t, 40, e.srv.Watchers())
		require.True(t, e.srv.Delete(list[39].Key))
		synctest.Wait()
		g.requireTold(t, deleted(list[39]))
	})
}

// A single key that must not be watched is reported, once; the others are guarded.
func TestGuards_keyIsDenied(t *testing.T) {
	for how, err := range denials {
		for _, n := range []int{2, 20} {
			t.Run(how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := start(t)
					g := e.guards(t)
					list := e.places(t, n, numbered)
					e.deny(t, err, func(s span) bool { return s.low <= list[1].Key && list[1].Key < s.high })
					g.add(list...)
					time.Sleep(time.Minute)
					synctest.Wait()
					require.Len(t, g.warnings, 1)
					require.Contains(t, g.warnings[0], list[1].Prefix)
					require.NotContains(t, g.warnings[0], list[1].Key)
					require.Contains(t, g.warnings[0], "permission denied")
					for _, p := range list {
						require.True(t, e.srv.Delete(p.Key))
					}
					synctest.Wait()
					require.Len(t, g.drain(), n-1)
					g.remove(list...)
					synctest.Wait()
					require.Zero(t, e.srv.Watchers())
				})
			})
		}
	}
}
