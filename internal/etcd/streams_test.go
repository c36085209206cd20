package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/leasefence/leasefence/internal/etcd"
)

func TestStreams_Watch_endsWithItsCallerOrItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := etcd.NewStreams("test", time.Second)
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

// A watch that has ended leaves nothing on its caller's context, nor on the stream's.
func TestStreams_Watch_leavesNothingRegistered(t *testing.T) {
	s := etcd.NewStreams("test", time.Second)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	for range 10 {
		_, opened, cancel := s.Watch(ctx)
		opened()
		cancel()
	}
	require.Zero(t, s.Registered(ctx))
}

// A watch on an endpoint that does not answer is never confirmed.
func TestStreams_Watch_leavesAStreamOnWhichNothingIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := etcd.NewStreams("test", time.Second)
		start := time.Now()
		ended := func(watch context.Context) time.Duration {
			<-watch.Done()
			return time.Since(start)
		}
		// Each next stream gets twice the time, less up to a half, until a watch is confirmed.
		for _, seconds := range []int64{1, 2, 4, 8, 8} {
			most := time.Duration(seconds) * time.Second
			start = time.Now()
			watch, opened, cancel := s.Watch(t.Context())
			other, openedOther, cancelOther := s.Watch(t.Context())
			got := ended(watch)
			require.Greater(t, got, most/2)
			require.LessOrEqual(t, got, most)
			synctest.Wait()
			require.Error(t, other.Err(), "it is on the same stream")
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

// If the server has become slow, all watches are reopened at most three times, and not for each further watch. When
// the server is fast again, a silent stream is given up as fast as before.
func TestStreams_Watch_waitsForASlowServer(t *testing.T) {
	for _, took := range []time.Duration{400 * time.Millisecond, 900 * time.Millisecond, 1600 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := etcd.NewStreams("test", time.Second)
			// open opens a watch that is confirmed after a time, and counts the streams that were given up before.
			open := func(took time.Duration) (watch context.Context, givenUp int) {
				for ; ; givenUp++ {
					watch, opened, cancel := s.Watch(t.Context())
					confirmed := time.NewTimer(took)
					select {
					case <-confirmed.C:
						opened()
						t.Cleanup(cancel)
						return watch, givenUp
					case <-watch.Done():
						opened()
						cancel()
					}
				}
			}
			_, givenUp := open(took)
			require.LessOrEqual(t, givenUp, 3)
			stands, _ := open(took)
			for range 50 {
				_, givenUp := open(took)
				require.Zero(t, givenUp, "%v", took)
			}
			require.NoError(t, stands.Err())

			open(0)
			began := time.Now()
			silent, opened, cancel := s.Watch(t.Context())
			<-silent.Done()
			require.LessOrEqual(t, time.Since(began), time.Second)
			opened()
			cancel()
		})
	}
}

// A server confirms the watches of a stream one after the other. A watch far behind must not give up a stream that
// works, which would end all watches.
func TestStreams_Watch_waitsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := etcd.NewStreams("test", time.Second)
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

// There are few names, since the client may keep an empty stream under a name that is not used again.
func TestStreams_Watch_hasFewNames(t *testing.T) {
	s := etcd.NewStreams("test", time.Second)
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

// A member that is too slow for a short lease is no reason to reopen the watches of a long one on the same client.
// Leases with the same patience share their streams, and so the names in the client.
func TestConn_Streams(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		long, _, cancel := e.conn.Streams(5 * time.Second).Watch(t.Context())
		defer cancel()
		short, opened, cancelShort := e.conn.Streams(time.Second).Watch(t.Context())
		defer cancelShort()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Error(t, short.Err())
		require.NoError(t, long.Err())
		opened()
		again := e.conn.Streams(time.Second)
		require.Same(t, e.conn.Streams(time.Second), again)
		name := func(watch context.Context) string {
			md, _ := metadata.FromOutgoingContext(watch)
			return fmt.Sprint(md)
		}
		require.NotEqual(t, name(long), name(short))
	})
}
