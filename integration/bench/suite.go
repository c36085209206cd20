package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	// sessionTTL is long enough for a busy machine to renew in time.
	sessionTTL = 30 * time.Second
	// roundTimeout bounds a round. It is long because only one that hangs reaches it.
	roundTimeout = 5 * time.Minute
	// closeTimeout bounds the clean-up after a round.
	closeTimeout = 30 * time.Second
)

// suite runs scenarios against one cluster.
type suite struct {
	endpoints []string
	separate  bool // of leasefence: Options.SeparateCommits
	scale     scale
}

// run gives a result for each line of the scenario. The two implementations take turns in the order ours, theirs, theirs,
// ours and so on, since who goes first may be at an advantage.
func (s *suite) run(ctx context.Context, sc scenario) ([]*result, error) {
	impl, peer := leasefence(s.separate), mutex()
	if sc.ours != nil {
		impl = sc.ours(s.separate)
	}
	if sc.peer != nil {
		peer = sc.peer()
	}
	rivals := []*rival{{name: "leasefence", impl: impl}, {name: peer.name, impl: peer}}
	order := slices.Clone(rivals)
	scale := s.scale
	if sc.most > 0 {
		scale.rounds = min(scale.rounds, sc.most)
	}
	blocks := max(sc.blocks, 1)
	scale.lasting /= time.Duration(blocks)
	scale.warmUp /= time.Duration(blocks)
	var low floor
	for round := range scale.rounds * blocks {
		for i, r := range order {
			t := &trial{
				endpoints: s.endpoints, impl: r.impl, scale: scale, ttl: sessionTTL,
				prefix: fmt.Sprintf("bench/%s/%s/%d/", sc.name, r.name, round),
			}
			if sc.floor && i == 1 {
				// Between the two.
				f, err := s.floorRound(ctx, t, sc.section)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", sc.name, err)
				}
				low.acquires, low.releases = append(low.acquires, f.acquires...), append(low.releases, f.releases...)
			}
			samples, err := s.round(ctx, sc, t)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", sc.name, r.name, err)
			}
			r.samples = append(r.samples, samples...)
			if err := s.settle(ctx, sc.rests); err != nil {
				return nil, fmt.Errorf("%s: %w", sc.name, err)
			}
		}
		slices.Reverse(order)
	}
	return s.results(sc, rivals[0].samples, *rivals[1], low), nil
}

// rival is an implementation with what it gave.
type rival struct {
	name    string
	impl    implementation
	samples []sample
}

func (s *suite) round(ctx context.Context, sc scenario, t *trial) (samples []sample, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTimeout, fmt.Errorf("not done in %s", roundTimeout))
	defer cancel()
	defer func() { err = errors.Join(err, t.close(ctx)) }()
	samples, err = sc.measure(ctx, t)
	for _, s := range samples {
		if err == nil && (s.ops == 0 || s.elapsed <= 0) {
			err = errors.New("nothing was done in time")
		}
	}
	return samples, err
}

func (s *suite) floorRound(ctx context.Context, t *trial, section time.Duration) (f floor, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTimeout, fmt.Errorf("not done in %s", roundTimeout))
	defer cancel()
	t = &trial{endpoints: t.endpoints, prefix: t.prefix}
	defer func() { err = errors.Join(err, t.close(ctx)) }()
	n := s.scale.floor
	if section > 0 {
		n = max(min(n, int(s.scale.lasting/section)), s.scale.leastTurns/2)
	}
	return measureFloor(ctx, t, section, n)
}

// settle compacts the server's history, so that the next round starts like the one before.
func (s *suite) settle(ctx context.Context, rests bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: s.endpoints, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	// A write, so that there is a revision that is not compacted yet.
	put, err := client.Put(ctx, "bench/settle", "")
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if _, err := client.Compact(ctx, put.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if rests {
		return sleep(ctx, s.scale.rest)
	}
	return nil
}

// results puts the samples of all rounds side by side, line by line.
func (s *suite) results(sc scenario, ours []sample, theirs rival, low floor) []*result {
	var results []*result
	for _, line := range lines(ours) {
		r := &result{
			Scenario: sc.name, Line: line, What: sc.what, Latency: sc.latency, charted: sc.charted, Members: len(s.endpoints),
			Ours: summarize(ofLine(ours, line)), Goals: []outcome{},
		}
		if peers := ofLine(theirs.samples, line); len(peers) > 0 {
			f := summarize(peers)
			r.Peer, r.Theirs, r.Ratios = theirs.name, &f, newRatios(r.Ours, f)
		}
		if sc.floor {
			r.Floor = &floorFigures{Acquire: median(low.acquires), Release: median(low.releases)}
		}
		for _, g := range sc.goals {
			if g.line == line {
				r.Goals = append(r.Goals, g.judge(r))
			}
		}
		results = append(results, r)
	}
	return results
}

// lines are the lines of samples, each once, in the order of their first.
func lines(samples []sample) []string {
	var names []string
	for _, s := range samples {
		if !slices.Contains(names, s.line) {
			names = append(names, s.line)
		}
	}
	return names
}

func ofLine(samples []sample, line string) []sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.line != line })
}
