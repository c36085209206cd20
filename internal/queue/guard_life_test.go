package queue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// finished reports whether all that was spawned has ended, now.
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

// With the lease everything ends, in whatever state it is.
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
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
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
					g.add(list[n:]...) // it is too late for that
					e.srv.Delete(list[0].Key)
					e.at(time.Minute)
					g.requireTold(t)
					if name != "suspect always" {
						require.True(t, e.finished())
					}
				})
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

// The session may have ended first: then nothing is started.
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

// What nobody guards any more costs nothing, and leaves no goroutine.
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
		g.requireTold(t)
	})
}
