package load_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// manyKeys is how many keys the benchmarks of large queues and leases put.
func manyKeys() int {
	if testing.Short() {
		return 1000
	}
	return 50_000
}

// putJobs puts the keys of many locks "jobs/…" on a lease.
func putJobs(tb testing.TB, client *clientv3.Client, id clientv3.LeaseID) {
	tb.Helper()
	rig.PutMany(tb, client, manyKeys(), func(i int) clientv3.Op {
		return clientv3.OpPut(fmt.Sprintf("jobs/%05d/%x-n", i, int64(id)), "somebody", clientv3.WithLease(id))
	})
}

// worstPut puts a key of another client again and again. Stop ends that and returns the longest time that a put took.
func worstPut(tb testing.TB, client *clientv3.Client) (stop func() time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	worst := make(chan time.Duration, 1)
	go func() {
		var longest time.Duration
		for ctx.Err() == nil {
			began := time.Now()
			if _, err := client.Put(ctx, "other", ""); err == nil {
				longest = max(longest, time.Since(began))
			}
		}
		worst <- longest
	}()
	return func() time.Duration {
		cancel()
		return <-worst
	}
}

// BenchmarkNestedNames locks "jobs" while 50,000 locks "jobs/…" are held. It reports how long the session's first turn
// of that name takes, and the longest later one, and how long a put of another client takes meanwhile.
func BenchmarkNestedNames(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	client := srv.Client(b)
	granted, err := client.Grant(b.Context(), 3600)
	require.NoError(b, err)
	putJobs(b, client, granted.ID)
	for name, acquire := range map[string]func(*lease.Session, context.Context, string, ...lease.LockOption) (*lease.Lock, error){
		"Lock": (*lease.Session).Lock, "TryLock": (*lease.Session).TryLock,
	} {
		b.Run(name, func(b *testing.B) {
			turn := func(s *lease.Session) time.Duration {
				began := time.Now()
				l, err := acquire(s, b.Context(), "jobs")
				took := time.Since(began)
				require.NoError(b, err)
				require.NoError(b, l.Unlock(b.Context()))
				return took
			}
			s := rig.NewSession(b, srv.Client(b), lease.Options{})
			other := srv.Client(b)
			stop := worstPut(b, other)
			first := turn(s)
			firstPut := stop()
			stop = worstPut(b, other)
			var worst time.Duration
			for b.Loop() {
				worst = max(worst, turn(s))
			}
			b.ReportMetric(first.Seconds()*1e3, "ms/first")
			b.ReportMetric(firstPut.Seconds()*1e3, "ms/put-worst-first")
			b.ReportMetric(worst.Seconds()*1e3, "ms/worst")
			b.ReportMetric(stop().Seconds()*1e3, "ms/put-worst")
		})
	}
}

// BenchmarkClose closes a session with 50,000 locks and, for comparison, revokes a lease with as many keys in one step.
// It reports the longest time that a put of another client takes meanwhile.
func BenchmarkClose(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	for name, end := range map[string]func(b *testing.B, client *clientv3.Client) func() error{
		"Close": func(b *testing.B, client *clientv3.Client) func() error {
			b.Helper()
			s, err := lease.NewSession(b.Context(), client, lease.Options{})
			require.NoError(b, err)
			rig.Spread(b, 500, manyKeys(), func(i int) error {
				_, err := s.TryLock(b.Context(), fmt.Sprintf("jobs/%05d", i))
				return err
			})
			return func() error { return s.Close(b.Context()) }
		},
		"Revoke": func(b *testing.B, client *clientv3.Client) func() error {
			b.Helper()
			granted, err := client.Grant(b.Context(), 3600)
			require.NoError(b, err)
			putJobs(b, client, granted.ID)
			return func() error {
				_, err := client.Revoke(b.Context(), granted.ID)
				return err
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			var worst time.Duration
			for b.Loop() {
				b.StopTimer()
				do := end(b, srv.Client(b))
				stop := worstPut(b, srv.Client(b))
				b.StartTimer()
				require.NoError(b, do())
				worst = max(worst, stop())
			}
			b.ReportMetric(worst.Seconds()*1e3, "ms/put-worst")
		})
	}
}
