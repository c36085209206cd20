package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// offered is the load of the scenario rate, in acquisitions and releases a second.
	offered = 10_000
	// openPairs are under way at the same time, at most. Those that are due while so many are wait, and that counts.
	openPairs = 4096
)

// openLoop offers pairs on locks of their own at a steady rate, whether or not those before are done, as requests come
// from outside. The latency is that of an acquisition, from the time it was due: a server that falls behind is not spared.
func openLoop(ctx context.Context, t *trial) ([]sample, error) {
	lockers, _, err := t.owners(ctx, openPairs)
	if err != nil {
		return nil, err
	}
	if _, err := offer(ctx, lockers, t.scale.warmUp); err != nil {
		return nil, err
	}
	var took []time.Duration
	s, err := t.measure(ctx, func() (err error) {
		took, err = offer(ctx, lockers, t.scale.lasting)
		return err
	})
	s.ops, s.latencies = 2*len(took), took
	return []sample{s}, err
}

// offer begins a pair at each tick for the given time and returns when all that have begun are done, with the latencies
// of their acquisitions.
func offer(ctx context.Context, lockers []locker, lasting time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		took []time.Duration
		free = make(chan locker, len(lockers))
		end  = time.Now().Add(lasting)
	)
	for _, l := range lockers {
		free <- l
	}
	pace(ctx, 2*time.Second/offered, func(_ int, due time.Time) bool {
		var l locker
		select {
		case l = <-free:
		case <-ctx.Done():
			return false
		}
		if time.Now().After(end) {
			return false
		}
		wg.Go(func() {
			if err := l.Lock(ctx); err != nil {
				cancel(err)
				return
			}
			granted := time.Since(due)
			if err := l.Unlock(ctx); err != nil {
				cancel(err)
				return
			}
			free <- l
			mu.Lock()
			defer mu.Unlock()
			took = append(took, granted)
		})
		return true
	})
	wg.Wait()
	return slices.Clip(took), context.Cause(ctx)
}
