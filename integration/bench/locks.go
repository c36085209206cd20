package main

import (
	"context"
	"runtime"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/lease"
)

// locker is one goroutine's lock, which it uses again for each turn, as users of etcd's Mutex do.
type locker struct {
	lock, unlock func(ctx context.Context) error
}

type session struct {
	locker func(name string) locker
	close  func(ctx context.Context) error
}

// implementation is a kind of lock or election that bench compares.
type implementation struct {
	open func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error)
	// alone means that each goroutine that contends for a name needs its own session.
	alone bool
}

func newOurs(newLocker func(s *lease.Session, name string) locker) implementation {
	return implementation{open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := lease.NewSession(ctx, client, lease.Options{TTL: ttl})
		return session{func(name string) locker { return newLocker(s, name) }, s.Close}, err
	}}
}

func leasefence() implementation {
	return newOurs(func(s *lease.Session, name string) locker {
		var l *lease.Lock
		return locker{func(ctx context.Context) (err error) {
			l, err = s.Lock(ctx, name)
			return err
		}, func(ctx context.Context) error { return l.Unlock(ctx) }}
	})
}

// candidates are leasefence's candidates; a turn is a leadership.
func candidates() implementation {
	return newOurs(func(s *lease.Session, name string) locker {
		var l *election.Leadership
		return locker{func(ctx context.Context) (err error) {
			l, err = election.Campaign(ctx, s, name, election.Options{Value: "bench"})
			return err
		}, func(ctx context.Context) error { return l.Resign(ctx) }}
	})
}

func newTheirs(newLocker func(s *concurrency.Session, name string) locker) implementation {
	return implementation{alone: true, open: func(_ context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second))) // ends when its client is closed
		return session{func(name string) locker { return newLocker(s, name) }, func(context.Context) error { return s.Close() }}, err
	}}
}

func mutex() implementation {
	return newTheirs(func(s *concurrency.Session, name string) locker {
		m := concurrency.NewMutex(s, name)
		return locker{m.Lock, m.Unlock}
	})
}

func theirCandidates() implementation {
	return newTheirs(func(s *concurrency.Session, name string) locker {
		e := concurrency.NewElection(s, name)
		return locker{func(ctx context.Context) error { return e.Campaign(ctx, "bench") }, e.Resign}
	})
}

// holdWorkers is how many goroutines acquire and release.
const holdWorkers = 256

// holdMany measures one process that acquires many locks of one session, holds them all for a while, and releases
// them. It measures the acquisitions, the releases, the renewals in between, and the heap of the held locks.
func holdMany(ctx context.Context, t *trial) ([]sample, error) {
	t.ttl = t.scale.holdTTL
	heapBefore := heap()
	lockers, err := t.owners(ctx, t.scale.holds)
	if err != nil {
		return nil, err
	}
	acquire, err := t.all(ctx, "acquire", lockers, func(l locker) func(context.Context) error { return l.lock })
	if err != nil {
		return nil, err
	}
	held, err := t.measure(ctx, func() error { return sleep(ctx, t.scale.holding) })
	if err != nil {
		return nil, err
	}
	acquire.extra = map[string]float64{
		"heap of a held lock, bytes":          float64(heap()-heapBefore) / float64(len(lockers)),
		"renewals per TTL while all are held": held.cost[renewals] * float64(t.ttl) / float64(t.scale.holding),
	}
	release, err := t.all(ctx, "release", lockers, func(l locker) func(context.Context) error { return l.unlock })
	return []sample{acquire, release}, err
}

// all makes the workers call do for every locker.
func (t *trial) all(ctx context.Context, line string, lockers []locker, do func(locker) func(context.Context) error) (sample, error) {
	took := make([][]time.Duration, holdWorkers)
	s, err := t.measure(ctx, func() error {
		return each(ctx, holdWorkers, func(ctx context.Context, worker int) error {
			for i := worker; i < len(lockers); i += holdWorkers {
				start := time.Now()
				if err := do(lockers[i])(ctx); err != nil {
					return err
				}
				took[worker] = append(took[worker], time.Since(start))
			}
			return nil
		})
	})
	s.line, s.ops, s.latencies = line, len(lockers), slices.Concat(took...)
	return s, err
}

// heap returns the size of the heap in use. The second collection frees what the first has finalized.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// pairsOfOwners measures n goroutines of one process, each with its own lock: how long it takes to lock and unlock it.
// Each does that for the given time, and at least once.
func pairsOfOwners(n int) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		lockers, err := t.owners(ctx, n)
		if err != nil {
			return nil, err
		}
		return t.repeat(ctx, func(lasting time.Duration) ([]time.Duration, error) {
			took := make([][]time.Duration, n)
			end := time.Now().Add(lasting)
			err := each(ctx, n, func(ctx context.Context, i int) error {
				for len(took[i]) == 0 || time.Now().Before(end) {
					start := time.Now()
					if err := lockers[i].lock(ctx); err != nil {
						return err
					}
					if err := lockers[i].unlock(ctx); err != nil {
						return err
					}
					took[i] = append(took[i], time.Since(start))
				}
				return nil
			})
			return slices.Concat(took...), err
		})
	}
}
