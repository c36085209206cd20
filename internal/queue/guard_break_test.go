package queue_test

import (
	"context"
	"fmt"
	"sync/atomic"
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

// The next watch may not be confirmed for long, on a sick endpoint. A read reports what the broken one has missed,
// without waiting for it.
func TestGuards_nextWatchHangs(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		list := g.guarded(t, 3, numbered)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Hour}) // these events are lost with the stream
		require.True(t, e.srv.Delete(list[0].Key))
		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Before: time.Hour})
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		time.Sleep(time.Second)
		synctest.Wait()
		g.requireNotices(t, deleted(list[0]))
	})
}

// A watch that is refused each time is opened again after pauses, and the keys are read in each pause.
func TestGuards_doNotSpin(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"no leader": {Err: rpctypes.ErrGRPCNoLeader}, "compacted": {Err: rpctypes.ErrGRPCCompacted},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			g := e.guards(t)
			list := e.places(t, 40, numbered)
			remove := e.c.Inject(fakeetcd.Watch, fault)
			reads := len(e.c.Calls(fakeetcd.Txn))
			g.add(list...)
			e.at(time.Minute)
			watches := len(e.c.Calls(fakeetcd.Watch))
			require.LessOrEqual(t, len(e.c.Calls(fakeetcd.Txn))-reads, 3*watches)
			require.Zero(t, e.srv.Watchers())
			remove()
			e.at(time.Minute + 3*time.Second)
			e.requireWatchers(t, 40)
			require.Less(t, watches/e.srv.Watchers(), 150)
			require.Greater(t, watches/e.srv.Watchers(), 20)
		})
	}
}

// A read may take long, on an endpoint that does not answer. The events of a watch on another endpoint must not wait
// for it.
func TestGuards_eventsDuringARead(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		list := g.guarded(t, 100, numbered)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Minute})
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		time.Sleep(time.Second)
		var want []notice
		for _, p := range list {
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		}
		synctest.Wait()
		g.requireNotices(t, want...)
	})
}

// An entry that was removed is told nothing any more, though a read of its key or an event is on its way.
func TestGuards_toldNothingOnceRemoved(t *testing.T) {
	bubbleOf(t, "a read", func(t *testing.T, e *env) {
		g := e.guards(t)
		p := g.guarded(t, 1, numbered)[0]
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second})
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		synctest.Wait()
		g.remove(p)
		e.leave(t, p)
		time.Sleep(2 * time.Second)
		g.requireNotices(t)
	})
	bubbleOf(t, "an event", func(t *testing.T, e *env) {
		g := e.guards(t)
		for i := range 50 { // which of the event and the end of the watch is noticed first is random
			p, told := e.places(t, 1, numbered)[0], 0
			one := &queue.Guarded{Entry: p.Entry}
			one.Ended = func(queue.End) {
				told++
				g.Remove(one)
			}
			g.Add(one)
			time.Sleep(time.Second)
			e.srv.Put(p.Key, "x")
			require.True(t, e.srv.Delete(p.Key))
			synctest.Wait()
			require.Equal(t, 1, told, "round %d", i)
		}
	})
}

// denials are the client's errors for a watch without permission: the server sends only a text, which the client does
// not translate.
var denials = []error{
	rpctypes.ErrGRPCPermissionDenied,
	status.Error(codes.Unknown, "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
}

// deny refuses reads and, unless err is nil, watches.
func (e *env) deny(err error) (permit func()) {
	watches := func() {}
	if err != nil {
		watches = e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: err})
	}
	reads := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
	return func() {
		watches()
		reads()
	}
}

// allowOps makes the server allow so many operations in a transaction.
func (e *env) allowOps(most int) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Err:   rpctypes.ErrGRPCTooManyOps,
		Match: func(c fakeetcd.Call) bool { return len(c.Request.(*pb.TxnRequest).Success) > most },
	})
}

// After a short denial watches and reads are repeated within a second, not after a period. If only a read is refused,
// it is repeated within a period, though the watch works. One warning says so, without the key, which has the lease in
// it.
func TestGuards_deniedForAMoment(t *testing.T) {
	for _, err := range append(denials, nil) {
		bubbleOf(t, fmt.Sprint(err), func(t *testing.T, e *env) {
			g := e.guards(t)
			list := g.guarded(t, 3, numbered)
			permit := e.deny(err)
			e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour}) // this event is lost with the stream
			require.True(t, e.srv.Delete(list[1].Key))
			e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
			time.Sleep(500 * time.Millisecond)
			g.requireNotices(t)
			require.Len(t, g.warned(), 1)
			require.Contains(t, g.warned()[0], `a key below "jobs/`)
			require.NotContains(t, g.warned()[0], fmt.Sprintf("%x", e.lease))
			permit()
			if err == nil {
				time.Sleep(g.Every)
			} else {
				time.Sleep(time.Second)
			}
			synctest.Wait()
			e.requireWatchers(t, 3)
			g.requireNotices(t, deleted(list[1]))
		})
	}
}

// If everything is forbidden, few requests are sent.
func TestGuards_denied_asksSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		g.add(e.places(t, 400, numbered)...)
		e.deny(rpctypes.ErrGRPCPermissionDenied)
		time.Sleep(time.Minute)
		before := e.requests()
		time.Sleep(4 * time.Minute)
		const periods = 4 * 60 / 10
		require.LessOrEqual(t, e.requests()-before, 2*periods*(mostWatched+mostWatched+40), "one per watch, one per read of such a key, and those for the other keys together")
		require.LessOrEqual(t, len(g.warned()), 6, "one a minute")
	})
}

// asked is a context that counts how often it was asked whether it has ended.
type asked struct {
	context.Context //nolint:containedctx // asked is a context

	times atomic.Int32
}

func (a *asked) Err() error {
	a.times.Add(1)
	return a.Context.Err()
}

// With the lease the guards end too: they report and send nothing more, and leave nothing behind.
func TestGuards_endWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		life := &asked{Context: e.Life}
		e.Life = life
		g := e.guards(t)
		list := g.guarded(t, mostWatched+10, numbered)
		young := e.places(t, 1, scattered)
		g.add(young...)
		e.endLease()
		e.tasks.Wait()
		calls := e.requests()
		for _, p := range append(list, young...) {
			require.True(t, e.srv.Delete(p.Key))
		}
		time.Sleep(time.Minute)
		g.requireNotices(t)
		require.Equal(t, calls, e.requests())
		e.tasks.Wait()
		require.Zero(t, e.srv.Watchers())
		before := life.times.Load()
		time.Sleep(time.Minute)
		require.Equal(t, before, life.times.Load(), "a timer still runs")
	})
}
