package main

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"
)

// holdWorkers acquire and release at the same time.
const holdWorkers = 256

// holdMany measures one process that acquires many locks of one session, holds them all for some TTLs, and releases them:
// the acquisitions and releases, the renewals while nothing else happens, and the heap in the meantime.
func holdMany(ctx context.Context, t *trial) ([]sample, error) {
	t.ttl = t.scale.holdTTL
	n := t.scale.holds
	heapBefore := heap()
	lockers, s, err := t.owners(ctx, n)
	if err != nil {
		return nil, err
	}
	acquire, err := t.all(ctx, "acquire", lockers, locker.Lock)
	if err != nil {
		return nil, err
	}

	before, err := t.counters(ctx)
	if err != nil {
		return nil, err
	}
	held := time.Duration(t.scale.holdTTLs) * t.ttl
	if err := sleep(ctx, held); err != nil {
		return nil, err
	}
	after, err := t.counters(ctx)
	if err != nil {
		return nil, err
	}
	sent, due := after.minus(before).keepAlives, 3*float64(t.scale.holdTTLs)
	acquire.note("heap of a held lock, bytes", float64(heap()-heapBefore)/float64(n))
	acquire.note("renewals while all are held", sent)
	acquire.note("renewals off from one per TTL/3", math.Abs(sent-due))
	acquire.note("watches while all are held", after.watchers)

	release, err := t.all(ctx, "release", lockers, locker.Unlock)
	if err != nil {
		return nil, err
	}
	samples := []sample{acquire, release}
	if !t.impl.closesHeld {
		return samples, nil
	}
	if _, err := t.all(ctx, "", lockers, locker.Lock); err != nil {
		return nil, err
	}
	closing, err := t.measure(ctx, func() error { return s.close(ctx) })
	closing.line, closing.ops = "close", n
	return append(samples, closing), err
}

// all has the workers do the same with every locker.
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

// heap is the size of what is in use. The second collection frees what the first one has finalized.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
