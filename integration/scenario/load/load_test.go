// Package load_test has a scenario of thousands of waiters, and benchmarks of the kinds of locks and of large sessions
// and queues.
package load_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

type unlocker interface {
	Unlock(ctx context.Context) error
}

// kind is a kind of lock, with a call that takes one.
type kind struct {
	name string
	take func() (unlocker, error)
}

// compare locks and unlocks each kind of lock in turn, and reports the ratio of each median to that of the first, a plain
// lock.
func compare(b *testing.B, kinds []kind) {
	b.Helper()
	took := make([][]time.Duration, len(kinds))
	for b.Loop() {
		for i, kind := range kinds {
			began := time.Now()
			l, err := kind.take()
			require.NoError(b, err)
			require.NoError(b, l.Unlock(b.Context()))
			took[i] = append(took[i], time.Since(began))
		}
	}
	var plain float64
	for i, kind := range kinds {
		slices.Sort(took[i])
		median := took[i][len(took[i])/2].Seconds()
		if i == 0 {
			plain = median
		}
		b.ReportMetric(median/plain, kind.name+"/lock")
	}
}

// BenchmarkKinds compares all kinds of locks.
func BenchmarkKinds(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	s := rig.NewSession(b, srv.Client(b), lease.Options{})
	set := func(n int) []string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("set%d/%d", n, i))
		}
		return names
	}
	ctx := b.Context()
	compare(b, []kind{
		{"lock", func() (unlocker, error) { return s.Lock(ctx, "lock") }},
		{"reader", func() (unlocker, error) { return s.RLock(ctx, "reader") }},
		{"set1", func() (unlocker, error) { return s.LockAll(ctx, set(1)...) }},
		{"tree3", func() (unlocker, error) { return s.LockTree(ctx, "a/b/c") }},
		{"permit", func() (unlocker, error) { return s.Permit(ctx, "permit", 3) }},
		{"set8", func() (unlocker, error) { return s.LockAll(ctx, set(8)...) }},
		{"set64", func() (unlocker, error) { return s.LockAll(ctx, set(64)...) }},
	})
}

// rate calls do again and again in n goroutines for d, and returns how many calls a second succeeded. With -short it
// takes a fifth of d: then a benchmark only has to work.
func rate(b *testing.B, d time.Duration, n int, do func(ctx context.Context, i int) error) float64 {
	b.Helper()
	if testing.Short() {
		d /= 5
	}
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	var calls atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			for do(ctx, i) == nil {
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()) / time.Since(began).Seconds()
}

// BenchmarkReaders runs 64 goroutines of eight sessions, each with its own client, through sections of 5 ms under one
// name: first as readers, then as writers. It reports the sections per second of both and their ratio. Then a ninth
// session writes among the readers, at most twenty times a second. The benchmark reports how many sections long the
// writer waits: the median and the 90th percentile.
func BenchmarkReaders(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	const sessions, each, section = 8, 8, 5 * time.Millisecond
	var all []*lease.Session
	for range sessions {
		all = append(all, rig.NewSession(b, srv.Client(b), lease.Options{}))
	}
	run := func(do func(s *lease.Session, ctx context.Context) error) float64 {
		return rate(b, 3*time.Second, sessions*each, func(ctx context.Context, i int) error { return do(all[i%sessions], ctx) })
	}
	writer := rig.NewSession(b, srv.Client(b), lease.Options{})
	write := func(ctx context.Context) (waits []time.Duration) {
		for turn := b.Context(); ; turn = ctx { // one turn at least, and its unlock
			began := time.Now()
			l, err := writer.Lock(turn, "mixed")
			if err != nil {
				return waits
			}
			waits = append(waits, time.Since(began))
			_ = l.Unlock(b.Context())
			time.Sleep(50 * time.Millisecond)
		}
	}
	var readers, writers float64
	var waits []time.Duration
	for b.Loop() {
		readers += run(func(s *lease.Session, ctx context.Context) error {
			return s.RDo(ctx, "readers", func(context.Context, fence.ReadToken) error { time.Sleep(section); return nil })
		})
		writers += run(func(s *lease.Session, ctx context.Context) error {
			return s.Do(ctx, "writers", func(context.Context, fence.Token) error { time.Sleep(section); return nil })
		})
		ctx, end := context.WithCancel(b.Context())
		among := make(chan []time.Duration)
		go func() { among <- write(ctx) }()
		run(func(s *lease.Session, ctx context.Context) error {
			return s.RDo(ctx, "mixed", func(context.Context, fence.ReadToken) error { time.Sleep(section); return nil })
		})
		end()
		waits = append(waits, <-among...)
	}
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2])/float64(section), "writer-waits-p50")
	b.ReportMetric(float64(waits[len(waits)*9/10])/float64(section), "writer-waits-p90")
	b.ReportMetric(readers/float64(b.N), "sections/s-readers")
	b.ReportMetric(writers/float64(b.N), "sections/s-writers")
	b.ReportMetric(readers/writers, "readers/writers")
}

// BenchmarkTreeChildren compares one more child of a root with 50,000 locked children with a plain lock.
func BenchmarkTreeChildren(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	ctx := b.Context()
	s := rig.NewSession(b, srv.Client(b), lease.Options{})
	rig.Spread(b, 64, manyKeys(), func(i int) error {
		_, err := s.LockTree(ctx, fmt.Sprint("root/", i))
		return err
	})
	compare(b, []kind{
		{"lock", func() (unlocker, error) { return s.Lock(ctx, "plain") }},
		{"child", func() (unlocker, error) { return s.LockTree(ctx, "root/one-more") }},
	})
}

// BenchmarkHooks runs 256 goroutines of one session, each with its own lock, in turn without hooks and with all of
// them. It reports the ratio of lock and unlock pairs with hooks to those without.
func BenchmarkHooks(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	var calls atomic.Int64
	count := func() { calls.Add(1) }
	hooks := &lease.Hooks{
		AcquireStart: func(ctx context.Context, _ lease.Acquisition) context.Context { count(); return ctx },
		Queued:       func(context.Context, lease.Acquisition, string) { count() },
		AcquireEnd:   func(context.Context, lease.Acquisition, lease.Acquired) { count() },
		Released:     func(context.Context, lease.Hold, error) { count() },
		Lost:         func(context.Context, lease.Hold, *lease.LostError) { count() },
		Renewed:      func(lease.Renewal) { count() },
		StateChanged: func(lease.Status) { count() },
		CleanUp:      func(clientv3.LeaseID, int) { count() },
	}
	run := func(opts lease.Options) float64 {
		s := rig.NewSession(b, srv.Client(b), opts)
		return rate(b, 2*time.Second, 256, func(ctx context.Context, i int) error {
			return s.Do(ctx, fmt.Sprintf("own/%d", i), func(context.Context, fence.Token) error { return nil })
		})
	}
	var ratios []float64
	for b.Loop() {
		var pairs [2]float64
		for i := range pairs { // each comes first equally often, since the database grows
			with := (i + len(ratios)) % 2
			pairs[with] = run([...]lease.Options{{}, {Hooks: hooks}}[with])
		}
		ratios = append(ratios, pairs[1]/pairs[0])
	}
	require.Positive(b, calls.Load())
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "with/without")
}

// Each of up to two thousand waiters gets one turn, and a turn costs the other waiters no requests.
func TestLoad_twoThousandWaiters(t *testing.T) {
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{UnsafeNoFsync: true})
	direct := cluster.Client(t)
	for _, row := range []struct{ clients, waiters, requests int }{
		// In a process a turn is one request, which hands the key over. If it were a release and an entry, there would be two.
		{1, 2000, 3000},
		// Between processes a turn takes an entry, two watches with a read after each, and a release. On a slow machine the
		// holder's key gets a guard, another watch and a read, and requests are retried. If all other waiters read too, a turn
		// would take more than twenty requests.
		{20, 200, 15 * 200},
	} {
		t.Run(fmt.Sprintf("%d clients, %d waiters", row.clients, row.waiters), func(t *testing.T) {
			opts := lease.Options{TTL: time.Minute} // long enough for a busy machine
			held := rig.MustLock(t, rig.NewSession(t, direct, opts), "n")
			in := faults.NewInterceptor(t) // of all waiters
			done := make(chan error, row.waiters)
			ctx := t.Context() // all turns together may take long
			for range row.clients {
				s := rig.NewSession(t, cluster.Client(t, etcdtest.Dial(in.DialOptions()...)), opts)
				for range row.waiters / row.clients {
					go func() {
						l, err := s.Lock(ctx, "n")
						if err == nil {
							err = l.Unlock(ctx)
						}
						done <- err
					}()
				}
			}
			rig.AwaitQueue(t, direct, "n", 1+row.clients) // only the first waiter of each session is in etcd's queue
			asked := func() int { return in.Sent(faults.Txn) + in.Sent(faults.Range) + in.Sent(faults.Watch) }
			before, begun := asked(), time.Now()
			require.NoError(t, held.Unlock(rig.Bounded(t)))
			for range row.waiters {
				require.NoError(t, rig.Await(t, done, "no turn"))
			}
			requests := asked() - before
			t.Logf("%d turns in %v, %d requests", row.waiters, time.Since(begun), requests)
			require.Less(t, requests, row.requests)
			rig.AwaitQueue(t, direct, "n", 0)
		})
	}
}

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

func TestMain(m *testing.M) { etcdtest.Main(m) }
