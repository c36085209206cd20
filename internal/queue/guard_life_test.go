package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// finished reports whether all spawned goroutines have ended.
func (e *env) finished() bool {
	done := make(chan struct{})
	go func() {
		e.tasks.Wait()
		close(done)
	}()
	synctest.Wait()
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Everything ends with the lease, in whatever state it is.
func TestGuards_lifeEnds(t *testing.T) {
	for name, prepare := range map[string]func(*env){
		"watched":        func(*env) {},
		"not confirmed":  func(e *env) { e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Before: time.Hour}) },
		"not read":       func(e *env) { e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Hour}) },
		"not reachable":  func(e *env) { e.c.Cut() },
		"broken always":  func(e *env) { e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable}) },
		"reading fails":  func(e *env) { e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable}) },
		"suspect always": func(e *env) { e.spawn(func(ctx context.Context) { suspect(ctx, e) }) },
	} {
		for _, n := range []int{1, 40} {
			inBubble(t, fmt.Sprint(name, n), func(t *testing.T) {
				e := start(t)
				g := e.guards(t)
				list := e.places(t, n+2, numbered)
				prepare(e)
				g.add(list[:n]...)
				e.at(time.Second)
				g.end()
				if name != "suspect always" {
					require.True(t, e.finished())
				}
				e.c.Restore()
				e.c.Reset()
				g.add(list[n:]...) // after the end: nothing is started
				e.srv.Delete(list[0].Key)
				e.at(time.Minute)
				g.requireNotices(t)
				if name != "suspect always" {
					require.True(t, e.finished())
				}
			})
		}
	}
}

func suspect(ctx context.Context, e *env) {
	for ctx.Err() == nil {
		e.Conn.Streams(e.Bound).Suspect()
		time.Sleep(10 * time.Millisecond)
	}
}

// If the owner of the goroutines has ended first, nothing is started.
func TestGuards_tooLateToSpawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := e.places(t, 40, numbered)
		g.Spawn = func(func(context.Context)) bool { return false }
		g.add(list...)
		time.Sleep(time.Second)
		g.remove(list[:20]...)
		g.add(e.places(t, 1, scattered)...)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
		require.True(t, e.finished())
	})
}

// Entries that were removed cost nothing, and leave no goroutine.
func TestGuards_allAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		for range 3 {
			list := g.guarded(t, 40, numbered)
			g.remove(list...)
			require.True(t, e.finished())
			require.Zero(t, e.srv.Watchers())
			for _, p := range list {
				e.leave(t, p)
			}
		}
		calls := e.requests()
		time.Sleep(time.Hour)
		require.Equal(t, calls, e.requests())
		g.requireNotices(t)
	})
}

// denials are the client's errors for a watch without permission. The server sends only a text, which the client does
// not translate.
var denials = map[string]error{
	"by its code": rpctypes.ErrGRPCPermissionDenied,
	"by its text": status.Error(codes.Unknown, "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
}

// deny refuses watches and reads of the keys.
func (e *env) deny(err error, which func(key []byte) bool) (permit func()) {
	watches := e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: err, Match: func(c fakeetcd.Call) bool {
		return which(c.Request.(*pb.WatchCreateRequest).Key)
	}})
	reads := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied, Match: func(c fakeetcd.Call) bool {
		for _, op := range c.Request.(*pb.TxnRequest).Success {
			if r := op.GetRequestRange(); r != nil && which(r.Key) {
				return true
			}
		}
		return false
	}})
	return func() {
		watches()
		reads()
	}
}

func anyKey([]byte) bool { return true }

// When a missing permission is back, changes from meanwhile are reported, and later ones too.
func TestGuards_deniedForAWhile(t *testing.T) {
	for how, err := range denials {
		for _, n := range []int{1, 40, 300} {
			for when, away := range map[string]time.Duration{"at first": 0, "later": 5 * time.Second} {
				t.Run(fmt.Sprint(how, n, when), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { deniedForAWhile(t, err, n, away) })
				})
			}
		}
	}
}

func deniedForAWhile(t *testing.T, err error, n int, away time.Duration) {
	t.Helper()
	e := start(t)
	g := e.guards(t)
	list := e.places(t, n, numbered)
	g.add(list...)
	time.Sleep(away)
	permit := e.deny(err, anyKey)
	e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
	time.Sleep(500 * time.Millisecond)
	require.True(t, e.srv.Delete(list[n/2].Key))
	time.Sleep(2 * time.Minute)
	g.requireNotices(t)
	require.NotEmpty(t, g.warned())
	require.Contains(t, g.warned()[0], list[0].Prefix[:4])
	require.NotContains(t, g.warned()[0], fmt.Sprintf("%x", e.lease))
	require.LessOrEqual(t, len(g.warned()), 3)
	permit()
	time.Sleep(2 * every)
	synctest.Wait()
	g.requireNotices(t, deleted(list[n/2]))
	e.requireWatchers(t, n)

	g.remove(list[n/2])
	var want []notice
	for i, p := range list {
		if i != n/2 {
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		}
	}
	time.Sleep(every)
	synctest.Wait()
	g.requireNotices(t, want...)
}

// After a short denial watches and reads are repeated within a second, not after a period.
func TestGuards_deniedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := g.guarded(t, 3, numbered)
		permit := e.deny(rpctypes.ErrGRPCPermissionDenied, anyKey)
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		require.True(t, e.srv.Delete(list[1].Key))
		time.Sleep(500 * time.Millisecond)
		g.requireNotices(t)
		permit()
		time.Sleep(time.Second)
		synctest.Wait()
		g.requireNotices(t, deleted(list[1]))
		e.requireWatchers(t, 3)
	})
}

// Forbidden keys do not affect the guard of the others.
func TestGuards_someAreDenied(t *testing.T) {
	for _, n := range []int{2, 40, 400} {
		inBubble(t, fmt.Sprint(n), func(t *testing.T) {
			e := start(t)
			g := e.guards(t)
			list := e.places(t, n, numbered)
			forbidden := []byte(list[1].Key)
			e.deny(rpctypes.ErrGRPCPermissionDenied, func(key []byte) bool { return bytes.Equal(key, forbidden) })
			g.add(list...)
			time.Sleep(queue.GuardAfter - 1)
			var want []notice
			for i, p := range list { // deleted before they are watched or read
				require.True(t, e.srv.Delete(p.Key))
				if i != 1 {
					want = append(want, deleted(p))
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			g.requireNotices(t, want...)
		})
	}
}

// If everything is forbidden, few requests are sent.
func TestGuards_denied_asksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		g.add(e.places(t, 2000, numbered)...)
		e.deny(rpctypes.ErrGRPCPermissionDenied, anyKey)
		time.Sleep(time.Minute)
		before := e.requests()
		time.Sleep(10 * time.Minute)
		const periods = 10 * 60 / 10
		require.LessOrEqual(t, e.requests()-before, 2*periods*(mostWatched+mostWatched+40), "one per watch, one per read of such a key, and those for the other keys together")
		require.LessOrEqual(t, len(g.warned()), 12, "one a minute")
	})
}
