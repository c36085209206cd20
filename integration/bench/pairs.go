package main

import (
	"context"
	"slices"
	"time"
)

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
		})
	}
}
