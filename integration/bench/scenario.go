package main

import (
	"context"
	"time"
)

// measurement measures one round of one contender.
type measurement func(ctx context.Context, t *trial) ([]sample, error)

// scenario is a measurement and its goals.
type scenario struct {
	name    string
	what    string      // short, for the chart
	unit    string      // an operation, whose latency is measured
	by      figure      // by which contenders are compared
	measure measurement // of leasefence and of the peer
	limit   measurement // of a bare program
	ours    func() implementation
	peer    func() implementation

	// Goals of each line: the least share of the limit, and the least ratio to the peer; 0 without a goal.
	leastShare, leastTimes float64

	blocks int  // how many blocks a round is split into; default 1
	most   int  // rounds at most; default: no limit
	rests  bool // pause after each round, since the server has deleted many keys
}

func (sc *scenario) contender(who role) (implementation, measurement) {
	switch who {
	case ours:
		return sc.ours(), sc.measure
	case peer:
		return sc.peer(), sc.measure
	default:
		return implementation{}, sc.limit
	}
}

// with returns a measurement of another implementation, which it makes anew for each round.
func with(impl func() implementation, m measurement) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		t.impl = impl()
		return m(ctx, t)
	}
}

type scale struct {
	rounds     int
	warmUp     time.Duration
	lasting    time.Duration // of one measurement
	leastTurns int           // in scenarios whose sections take a given time
	holds      int           // locks held by one process
	holdTTL    time.Duration
	holding    time.Duration // for how long they are held
	rest       time.Duration // the pause of scenarios with rests
}

func fullScale() scale {
	return scale{
		rounds: 4, warmUp: 500 * time.Millisecond, lasting: 2 * time.Second, leastTurns: 20,
		holds: 50_000, holdTTL: 10 * time.Second, holding: 30 * time.Second, rest: time.Second,
	}
}

func shortScale() scale {
	return scale{
		rounds: 1, warmUp: 100 * time.Millisecond, lasting: 400 * time.Millisecond, leastTurns: 5,
		holds: 2000, holdTTL: sessionTTL, holding: 2 * time.Second, rest: 200 * time.Millisecond,
	}
}
