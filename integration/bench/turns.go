package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// stay is one stay in the critical section.
type stay struct {
	who       int
	granted   time.Time // when Lock had returned
	releasing time.Time // right before Unlock was called
}

// contend makes all lockers, which have one name, lock and unlock for the given time, and at least once. It returns
// their stays in order. A locker decides while it holds the lock whether to lock again: once one stops, all later ones
// stop. So in a fixed order no locker waits for one that has stopped.
func contend(ctx context.Context, lockers []locker, section, lasting time.Duration) ([]stay, error) {
	own := make([][]stay, len(lockers))
	end := time.Now().Add(lasting)
	err := each(ctx, len(lockers), func(ctx context.Context, i int) error {
		for again := true; again; {
			if err := lockers[i].lock(ctx); err != nil {
				return err
			}
			s := stay{who: i, granted: time.Now()}
			if err := sleep(ctx, section); err != nil {
				return err
			}
			s.releasing = time.Now()
			again = s.releasing.Before(end)
			if err := lockers[i].unlock(ctx); err != nil {
				return err
			}
			own[i] = append(own[i], s)
		}
		return nil
	})
	stays := slices.Concat(own...)
	slices.SortFunc(stays, func(a, b stay) int { return a.granted.Compare(b.granted) })
	return stays, err
}

// lockersOf makes n lockers of one name.
type lockersOf func(t *trial, ctx context.Context, n int) ([]locker, error)

// The lockers of n clients, and of n goroutines of one process.
var clients, goroutines lockersOf = (*trial).rivals, (*trial).housemates

// contest measures n lockers that contend, after a warm-up.
func (t *trial) contest(ctx context.Context, of lockersOf, n int, section time.Duration) ([]stay, sample, error) {
	lockers, err := of(t, ctx, n)
	if err != nil {
		return nil, sample{}, err
	}
	// A few turns of long sections take longer.
	warmUp, lasting := max(t.scale.warmUp, 3*section), max(t.scale.lasting, time.Duration(t.scale.leastTurns)*section)
	if _, err := contend(ctx, lockers, section, warmUp); err != nil {
		return nil, sample{}, err
	}
	var stays []stay
	s, err := t.measure(ctx, func() (err error) {
		stays, err = contend(ctx, lockers, section, lasting)
		return err
	})
	s.ops = len(stays)
	if err == nil {
		err = exclusive(stays)
	}
	return stays, s, err
}

// exclusive checks that stays, which are in order, do not overlap: the figures of a broken lock would mean nothing.
func exclusive(stays []stay) error {
	for i := 1; i < len(stays); i++ {
		if early := stays[i-1].releasing.Sub(stays[i].granted); early > 0 {
			return fmt.Errorf("two held the lock at once: locker %d got it %s before locker %d released it",
				stays[i].who, early, stays[i-1].who)
		}
	}
	return nil
}

// turns measures how fast n lockers take turns with empty sections. The latency is from one grant to the next.
func turns(n int, of lockersOf) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		stays, s, err := t.contest(ctx, of, n, 0)
		for i := 1; i < len(stays); i++ {
			s.latencies = append(s.latencies, stays[i].granted.Sub(stays[i-1].granted))
		}
		return []sample{s}, err
	}
}

// handover measures the time from the call of Unlock until another client's Lock has returned.
func handover(section time.Duration) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		stays, s, err := t.contest(ctx, clients, 2, section)
		for i := 1; i < len(stays); i++ {
			if stays[i].who != stays[i-1].who {
				s.latencies = append(s.latencies, stays[i].granted.Sub(stays[i-1].releasing))
			}
		}
		return []sample{s}, err
	}
}
