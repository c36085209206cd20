package main

import (
	"context"
	"runtime"
	"slices"
	"time"
)

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
	acquire, err := t.all(ctx, "acquire", lockers, locker.Lock)
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
	release, err := t.all(ctx, "release", lockers, locker.Unlock)
	return []sample{acquire, release}, err
}

// all makes the workers call do for every locker.
func (t *trial) all(ctx context.Context, line string, lockers []locker, do func(locker, context.Context) error) (sample, error) {
	took := make([][]time.Duration, holdWorkers)
	s, err := t.measure(ctx, func() error {
		return each(ctx, holdWorkers, func(ctx context.Context, worker int) error {
			for i := worker; i < len(lockers); i += holdWorkers {
				start := time.Now()
				if err := do(lockers[i], ctx); err != nil {
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
