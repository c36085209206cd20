package main

import (
	"context"
	"slices"
	"time"
)

// pair is one acquisition and one release of a lock that nobody else wants.
func pair(ctx context.Context, l locker) (time.Duration, error) {
	start := time.Now()
	if err := l.Lock(ctx); err != nil {
		return 0, err
	}
	err := l.Unlock(ctx)
	return time.Since(start), err
}

// pairs has all lockers, which are of different names, do pairs for the given time.
func pairs(ctx context.Context, lockers []locker, lasting time.Duration) ([]time.Duration, error) {
	took := make([][]time.Duration, len(lockers))
	end := time.Now().Add(lasting)
	err := each(ctx, len(lockers), func(ctx context.Context, i int) error {
		for time.Now().Before(end) {
			d, err := pair(ctx, lockers[i])
			if err != nil {
				return err
			}
			took[i] = append(took[i], d)
		}
		return nil
	})
	return slices.Concat(took...), err
}

// pairsOfOwners measures n goroutines of one process, each with a lock of its own.
func pairsOfOwners(n int) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		lockers, _, err := t.owners(ctx, n)
		if err != nil {
			return nil, err
		}
		if _, err := pairs(ctx, lockers, t.scale.warmUp); err != nil {
			return nil, err
		}
		var took []time.Duration
		s, err := t.measure(ctx, func() (err error) {
			took, err = pairs(ctx, lockers, t.scale.lasting)
			return err
		})
		s.ops, s.latencies = len(took), took
		return []sample{s}, err
	}
}
