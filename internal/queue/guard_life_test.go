package queue_test

import (
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

// denials are the client's errors for a watch without permission: the server sends only a text, which the client does
// not translate.
var denials = []error{
	rpctypes.ErrGRPCPermissionDenied,
	status.Error(codes.Unknown, "rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
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

// allowOps makes the server allow so many operations in a transaction.
func (e *env) allowOps(most int) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Err:   rpctypes.ErrGRPCTooManyOps,
		Match: func(c fakeetcd.Call) bool { return len(c.Request.(*pb.TxnRequest).Success) > most },
	})
}

// After a short denial watches and reads are repeated within a second, not after a period. One warning says so, without
// the key, which has the lease in it.
func TestGuards_deniedForAMoment(t *testing.T) {
	for _, err := range denials {
		bubbleOf(t, err.Error(), func(e *env) {
			t := e.t
			g := e.guards(t)
			list := g.guarded(t, 3, numbered)
			permit := e.deny(err, anyKey)
			e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
			require.True(t, e.srv.Delete(list[1].Key))
			time.Sleep(500 * time.Millisecond)
			g.requireNotices(t)
			require.Len(t, g.warned(), 1)
			require.Contains(t, g.warned()[0], `a key below "jobs/`)
			require.NotContains(t, g.warned()[0], fmt.Sprintf("%x", e.lease))
			permit()
			time.Sleep(time.Second)
			synctest.Wait()
			e.requireWatchers(t, 3)
			g.requireNotices(t, deleted(list[1]))
		})
	}
}

// A read that is refused is repeated within a period, though the watch works.
func TestGuards_deniedForAMoment_reads(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		g := e.guards(t)
		list := g.guarded(t, 3, numbered)
		permit := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		require.True(t, e.srv.Delete(list[1].Key))
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) // drops the event
		time.Sleep(time.Second)
		e.requireWatchers(t, 3)
		g.requireNotices(t)
		permit()
		time.Sleep(g.Every)
		synctest.Wait()
		g.requireNotices(t, deleted(list[1]))
	})
}

// If everything is forbidden, few requests are sent.
func TestGuards_denied_asksSeldom(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		g := e.guards(t)
		g.add(e.places(t, 400, numbered)...)
		e.deny(rpctypes.ErrGRPCPermissionDenied, anyKey)
		time.Sleep(time.Minute)
		before := e.requests()
		time.Sleep(4 * time.Minute)
		const periods = 4 * 60 / 10
		require.LessOrEqual(t, e.requests()-before, 2*periods*(mostWatched+mostWatched+40), "one per watch, one per read of such a key, and those for the other keys together")
		require.LessOrEqual(t, len(g.warned()), 6, "one a minute")
	})
}
