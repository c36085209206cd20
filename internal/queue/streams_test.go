package queue_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

func TestStreams_Watch_endsWithItsCallerOrItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queue.NewStreams("test", time.Second)
		open := func(ctx context.Context) context.Context {
			watch, opened, cancel := s.Watch(ctx)
			t.Cleanup(cancel)
			opened()
			return watch
		}
		type key struct{}
		parent, end := context.WithCancel(context.WithValue(t.Context(), key{}, "x"))
		byCaller, bySuspect := open(parent), open(t.Context())
		byItself, opened, cancel := s.Watch(t.Context())
		require.Nil(t, byCaller.Value(key{}), "the client would keep it")
		opened()
		cancel()
		require.Error(t, byItself.Err())
		end()
		synctest.Wait()
		require.Error(t, byCaller.Err())
		require.NoError(t, bySuspect.Err())
		s.Suspect()
		synctest.Wait()
		require.Error(t, bySuspect.Err())
		require.NoError(t, open(t.Context()).Err())
	})
}

// pain 24: a watch on an endpoint that does not answer is never confirmed.
func TestStreams_Watch_leavesAStreamOnWhichNothingIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queue.NewStreams("test", time.Second)
		start := time.Now()
		ended := func(watch context.Context) time.Duration {
			<-watch.Done()
			return time.Since(start)
		}
		// Each next stream gets twice the time, less up to a half, until one confirms.
		for _, seconds := range []int64{1, 2, 4, 8, 8} {
			most := time.Duration(seconds) * time.Second
			start = time.Now()
			watch, opened, cancel := s.Watch(t.Context())
			other, openedOther, cancelOther := s.Watch(t.Context())
			got := ended(watch)
			require.Greater(t, got, most/2)
			require.LessOrEqual(t, got, most)
			synctest.Wait()
			require.Error(t, other.Err(), "it stands on the same stream")
			opened()
			openedOther()
			cancel()
			cancelOther()
		}
		_, opened, cancel := s.Watch(t.Context())
		opened()
		cancel()
		start = time.Now()
		watch, opened, cancel := s.Watch(t.Context())
		require.LessOrEqual(t, ended(watch), time.Second)
		opened()
		cancel()
	})
}

// A server confirms the watches of a stream one after the other. Those at the end of a long line must not give up
// a stream that is sound, and with it the watches of all.
func TestStreams_Watch_waitsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := queue.NewStreams("test", time.Second)
		last, openedLast, cancel := s.Watch(t.Context())
		defer cancel()
		for range 100 {
			_, opened, cancel := s.Watch(t.Context())
			time.Sleep(400 * time.Millisecond)
			opened()
			cancel()
		}
		require.NoError(t, last.Err())
		openedLast()
		time.Sleep(time.Minute)
		require.NoError(t, last.Err(), "a confirmed watch is not waited for")
	})
}

// The client may keep an empty stream under a name that is not used again.
func TestStreams_Watch_hasFewNames(t *testing.T) {
	s := queue.NewStreams("test", time.Second)
	names := map[string]bool{}
	last := ""
	for range 100 {
		watch, opened, cancel := s.Watch(t.Context())
		opened()
		cancel()
		md, _ := metadata.FromOutgoingContext(watch)
		name := fmt.Sprint(md)
		require.NotEqual(t, last, name)
		names[name], last = true, name
		s.Suspect()
	}
	require.LessOrEqual(t, len(names), 4)
}

// What a lease has left empty in the client is taken over by another: the names do not become more with the leases, and no
// two have one at a time.
func TestStreamsOf_takesNamesOver(t *testing.T) {
	name := func(s *queue.Streams) string {
		watch, opened, cancel := s.Watch(t.Context())
		defer cancel()
		opened()
		md, _ := metadata.FromOutgoingContext(watch)
		got := fmt.Sprint(md)
		return got[:strings.LastIndex(got, "-")]
	}
	client := clientv3.NewCtxClient(t.Context())
	other := clientv3.NewCtxClient(t.Context())
	first, second := queue.StreamsOf(client, time.Second), queue.StreamsOf(client, time.Second)
	taken := name(first)
	require.NotEqual(t, taken, name(second))
	require.Equal(t, taken, name(queue.StreamsOf(other, time.Second)), "each client has its own")

	runtime.KeepAlive(first) // and no longer
	require.Eventually(t, func() bool {
		runtime.GC()
		return name(queue.StreamsOf(client, time.Second)) == taken
	}, time.Minute, time.Millisecond)
	require.NotEqual(t, taken, name(second))
	runtime.KeepAlive(second)
}

// Suspect opens the watches on another stream; what they did not tell, the read does.
func TestStreams_Suspect(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		g := e.guards(t)
		g.add(second)
		two := e.await(t.Context(), second)
		e.at(time.Second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		e.leave(t, first)
		e.at(time.Minute)
		requirePending(t, two)
		watches := len(e.c.Calls(fakeetcd.Watch))
		e.Streams.Suspect()
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Less(t, got.at, time.Minute+100*time.Millisecond)
		e.at(2 * time.Minute)
		g.requireTold(t)
		require.Len(t, e.c.Calls(fakeetcd.Watch), watches+1, "the guard's")
		require.True(t, e.srv.Delete(second.Key))
		synctest.Wait()
		g.requireTold(t, deleted(second))
	})
}

// pain 24: a watch that is not confirmed gives up its stream, and with it the others that were on it.
func TestStreams_watchIsNotConfirmed(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		e.leave(t, first)
		e.at(time.Minute)
		requirePending(t, two)
		e.guards(t).add(second) // its watch's confirmation comes after the event that is stuck
		got := receive(t, two)
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at, time.Minute+queue.GuardAfter+5*time.Second)
		require.Greater(t, got.at, time.Minute+queue.GuardAfter+5*time.Second/2)
	})
}
