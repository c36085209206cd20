package main

import (
	"context"
	"slices"
	"time"
)

// pairs makes all lockers, which have different names, lock and unlock for the given time, and at least once. It
// returns how long each pair took.
func pairs(ctx context.Context, lockers []locker, lasting time.Duration) ([]time.Duration, error) {
	took := make([][]time.Duration, len(lockers))
	end := time.Now().Add(lasting)
	err := each(ctx, len(lockers), func(ctx context.Context, i int) error {
		for len(took[i]) == 0 || time.Now().Before(end) {
			start := time.Now()
			if err := lockers[i].Lock(ctx); err != nil {
				return err
			}
			if err := lockers[i].Unlock(ctx); err != nil {
				return err
			}
			took[i] = append(took[i], time.Since(start))
		}
		return nil
	})
	return slices.Concat(took...), err
}

// pairsOfOwners measures n goroutines of one process, each with its own lock.
func pairsOfOwners(n int) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		lockers, err := t.owners(ctx, n)
		if err != nil {
			return nil, err
		}
		return t.repeat(ctx, func(lasting time.Duration) ([]time.Duration, error) { return pairs(ctx, lockers, lasting) })
	}
}
