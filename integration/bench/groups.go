package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// groupOps is how many operations a group commit carries: nearly the server's default limit.
const groupOps = 120

// bareOwners returns n bare locks with different names.
func (t *trial) bareOwners(ctx context.Context, n int) ([]*bareLocker, error) {
	t.impl = bareLocks()
	lockers, err := t.owners(ctx, n)
	bare := make([]*bareLocker, len(lockers))
	for i, l := range lockers {
		bare[i] = l.(*bareLocker) //nolint:forcetypeassert // bareLocks makes no other lockers
	}
	return bare, err
}

// pairsInGroups measures pairs on n locks as group commits, one after the other, which go through the locks in a cycle.
func pairsInGroups(n int) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		lockers, err := t.bareOwners(ctx, n)
		if err != nil {
			return nil, err
		}
		began := map[*bareLocker]time.Time{} // when the present pair of each lock began
		next, group := 0, make([]*bareLocker, min(n, groupOps))
		return t.repeat(ctx, func(lasting time.Duration) (took []time.Duration, err error) {
			for end := time.Now().Add(lasting); len(took) == 0 || time.Now().Before(end); {
				now := time.Now()
				for i := range group {
					group[i], next = lockers[next], (next+1)%n
				}
				if err := group[0].flip(ctx, group...); err != nil {
					return nil, err
				}
				for _, l := range group {
					if l.held != 0 {
						began[l] = now
					} else {
						took = append(took, time.Since(began[l]))
					}
				}
			}
			return took, nil
		})
	}
}

// holdInGroups measures the acquisitions and releases of holdMany as group commits, one after the other.
func holdInGroups(ctx context.Context, t *trial) ([]sample, error) {
	lockers, err := t.bareOwners(ctx, t.scale.holds)
	if err != nil {
		return nil, err
	}
	var samples []sample
	for _, line := range []string{"acquire", "release"} {
		s, err := t.measure(ctx, func() error {
			for group := range slices.Chunk(lockers, groupOps) {
				if err := group[0].flip(ctx, group...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		s.line, s.ops = line, len(lockers)
		samples = append(samples, s)
	}
	return samples, nil
}

// chain measures turns of one process: each transaction deletes the key of one turn and puts that of the next.
func chain(ctx context.Context, t *trial) ([]sample, error) {
	keys, err := t.bareOwners(ctx, 2)
	if err != nil {
		return nil, err
	}
	if err := keys[0].Lock(ctx); err != nil {
		return nil, err
	}
	return t.repeat(ctx, func(lasting time.Duration) (took []time.Duration, err error) {
		for end := time.Now().Add(lasting); len(took) == 0 || time.Now().Before(end); keys[0], keys[1] = keys[1], keys[0] {
			began := time.Now()
			req, enter := keys[0].request(), keys[1].request()
			req.Compare, req.Success = append(req.Compare, enter.Compare...), append(req.Success, enter.Success...)
			resp, err := keys[0].kv.Txn(ctx, req)
			if err != nil {
				return nil, fmt.Errorf("chain: %w", err)
			}
			if !resp.Succeeded {
				return nil, errChanged
			}
			keys[0].held, keys[1].held = 0, resp.Header.Revision
			took = append(took, time.Since(began))
		}
		return took, nil
	})
}
