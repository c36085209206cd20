package integration_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

func TestLock_uncontendedCostsTwoCommits(t *testing.T) {
	t.Parallel()
	const pairs = 100
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	s := newSession(t, client, lease.Options{})
	committed := func() (entries, revision int64) {
		resp, err := client.Status(bounded(t), srv.Endpoint())
		require.NoError(t, err)
		return int64(resp.RaftIndex), resp.Header.Revision
	}
	requests := func() (txns, others int) {
		for _, method := range []string{faults.Range, faults.Put, faults.DeleteRange, faults.Watch, faults.TimeToLive} {
			others += in.Sent(method)
		}
		return in.Sent(faults.Txn), others
	}

	for name, pair := range map[string]func(context.Context) error{
		"Lock": func(ctx context.Context) error {
			l, err := s.Lock(ctx, "job")
			if err != nil {
				return err
			}
			return l.Unlock(ctx)
		},
		"TryLock": func(ctx context.Context) error {
			l, err := s.TryLock(ctx, "job")
			if err != nil {
				return err
			}
			return l.Unlock(ctx)
		},
		"Do": func(ctx context.Context) error {
			return s.Do(ctx, "job", func(context.Context, fence.Token) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The server commits an entry of its own now and then, which can only add: the least of some rounds counts.
			least := int64(-1)
			for range 3 {
				entries, revision := committed()
				txns, others := requests()
				for range pairs {
					require.NoError(t, pair(bounded(t)))
				}
				entries2, revision2 := committed()
				txns2, others2 := requests()
				require.Equal(t, int64(2*pairs), revision2-revision, "revisions")
				require.Equal(t, 2*pairs, txns2-txns, "transactions sent")
				require.Equal(t, others, others2, "other requests sent")
				if n := entries2 - entries; least < 0 || n < least {
					least = n
				}
			}
			require.Equal(t, int64(2*pairs), least, "entries of the server's log")
		})
	}
}

// Until the next compaction, each read of a queue passes every key that ever stood in it, at 25 to 30 ns each in the
// server: a key of its own for each hold makes a lock slower with every hold.
func TestLock_usesItsKeysAgain(t *testing.T) {
	t.Parallel()
	const (
		contenders = 3
		holds      = 50 // of each
	)
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	var (
		wg   sync.WaitGroup
		keys sync.Map
		errs [contenders]error
	)
	ctx := bounded(t)
	for i := range contenders {
		wg.Go(func() {
			for range holds {
				l, err := s.Lock(ctx, "job")
				if err != nil {
					errs[i] = err
					return
				}
				keys.Store(l.Key(), true)
				if errs[i] = l.Unlock(ctx); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	used := 0
	for range keys.Range {
		used++
	}
	require.LessOrEqual(t, used, contenders)
}

// benchPeer is a lock for one contender, whose turn is one acquisition and one release.
type benchPeer func(ctx context.Context) error

func benchOurs(tb testing.TB, client *clientv3.Client, name string) benchPeer {
	tb.Helper()
	s := newSession(tb, client, lease.Options{})
	return func(ctx context.Context) error {
		l, err := s.Lock(ctx, name)
		if err != nil {
			return err
		}
		return l.Unlock(ctx)
	}
}

func benchMutex(tb testing.TB, client *clientv3.Client, name string) benchPeer {
	tb.Helper()
	s := newEtcdSession(tb, client)
	return func(ctx context.Context) error {
		m := concurrency.NewMutex(s, name)
		if err := m.Lock(ctx); err != nil {
			return err
		}
		return m.Unlock(ctx)
	}
}

// BenchmarkUncontended compares an acquisition and a release of a free lock with those of etcd's Mutex, in blocks
// that take turns, on a server with fsync on. An op is a block of each. Goal: x-of-mutex, the ratio of the medians
// of single pairs, at most 1.05.
func BenchmarkUncontended(b *testing.B) {
	const block = 50
	srv := etcdtest.StartProcess(b)
	client := srv.Client(b)
	peers := []*struct {
		name   string
		pair   benchPeer
		took   []time.Duration
		allocs uint64
	}{
		{name: "ours", pair: benchOurs(b, client, "ours")},
		{name: "mutex", pair: benchMutex(b, client, "mutex")},
	}
	ctx := b.Context()
	for _, p := range peers { // connections, sessions and caches are warm
		for range block {
			require.NoError(b, p.pair(ctx))
		}
	}

	b.ReportAllocs()
	blocks := 0
	for b.Loop() {
		for _, p := range peers {
			allocs := mallocs()
			for range block {
				start := time.Now()
				if err := p.pair(ctx); err != nil {
					require.NoError(b, err, p.name)
				}
				p.took = append(p.took, time.Since(start))
			}
			p.allocs += mallocs() - allocs
		}
		slices.Reverse(peers) // who goes first may be at an advantage
		blocks++
	}

	medians := map[string]time.Duration{}
	for _, p := range peers {
		medians[p.name] = median(p.took)
		b.ReportMetric(float64(medians[p.name]), p.name+"-ns/pair")
		b.ReportMetric(float64(p.allocs)/float64(blocks*block), p.name+"-allocs/pair")
	}
	b.ReportMetric(float64(medians["ours"])/float64(medians["mutex"]), "x-of-mutex")
}

// BenchmarkHandover has two clients take turns on one lock, ours and etcd's Mutex in blocks of their own. An op is
// a block of each.
func BenchmarkHandover(b *testing.B) {
	srv := etcdtest.StartProcess(b)
	one, two := srv.Client(b), srv.Client(b)
	peers := []*struct {
		name     string
		contend  [2]benchPeer
		turns    int // of each contender in a block
		allTurns int
		took     time.Duration
	}{
		{name: "ours", turns: 50, contend: [2]benchPeer{benchOurs(b, one, "ours"), benchOurs(b, two, "ours")}},
		{name: "mutex", turns: 5, contend: [2]benchPeer{benchMutex(b, one, "mutex"), benchMutex(b, two, "mutex")}},
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range peers {
			start := time.Now()
			require.NoError(b, takeTurns(b.Context(), p.contend, p.turns), p.name)
			p.took += time.Since(start)
			p.allTurns += 2 * p.turns
		}
	}
	rates := map[string]float64{}
	for _, p := range peers {
		rates[p.name] = float64(p.allTurns) / p.took.Seconds()
		b.ReportMetric(rates[p.name], p.name+"-turns/s")
	}
	b.ReportMetric(rates["ours"]/rates["mutex"], "x-of-mutex")
}

// takeTurns has two contenders take n turns each. The queue is in order, so while both are at it they alternate.
func takeTurns(ctx context.Context, contend [2]benchPeer, n int) error {
	var (
		errs [2]error
		wg   sync.WaitGroup
	)
	for i, turn := range contend {
		wg.Go(func() {
			for range n {
				if err := turn(ctx); err != nil {
					errs[i] = fmt.Errorf("contender %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if errs[0] != nil {
		return errs[0]
	}
	return errs[1]
}

func median(d []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(d))[len(d)/2]
}

func mallocs() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Mallocs
}
