package main

import (
	"context"
	"time"
)

// measurement is one round of one contender.
type measurement func(ctx context.Context, t *trial) ([]sample, error)

// scenario is what is measured, and what is hoped for.
type scenario struct {
	name    string
	what    string // short, for the chart
	unit    string // of the latencies; they are counted in it too
	by      figure
	measure measurement // of leasefence and of the peer
	limit   measurement // of a bare program
	ours    func() implementation
	peer    func() implementation

	// Goals, for each line: at least this share of the limit, and so many times better than the peer; 0 if there is none.
	leastShare, leastTimes float64

	blocks int  // split each round into so many; default 1
	most   int  // rounds at most; default: as many as asked for
	rests  bool // after each round, for a server that has deleted much
}

// contender is one of those that a scenario compares.
type contender struct {
	name    string
	impl    implementation
	measure measurement
}

func (sc *scenario) contender(who role) contender {
	switch who {
	case ours:
		return contender{"leasefence", sc.ours(), sc.measure}
	case limit:
		return contender{bareName, implementation{}, sc.limit}
	default:
		impl := sc.peer()
		return contender{impl.name, impl, sc.measure}
	}
}

// with has a measurement made of another implementation, which is made anew for each round.
func with(impl func() implementation, m measurement) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		t.impl = impl()
		return m(ctx, t)
	}
}

// scale is how much is done.
type scale struct {
	rounds     int
	warmUp     time.Duration
	lasting    time.Duration // of one measurement
	leastTurns int           // where each takes a given time
	holds      int           // locks held by one process
	holdTTL    time.Duration
	holdTTLs   int           // how long they are held
	rest       time.Duration // after a round with much to clean up
}

func fullScale() scale {
	return scale{
		rounds: 4, warmUp: 500 * time.Millisecond, lasting: 2 * time.Second, leastTurns: 20,
		holds: 50_000, holdTTL: 10 * time.Second, holdTTLs: 3, rest: time.Second,
	}
}

func shortScale() scale {
	return scale{
		rounds: 1, warmUp: 100 * time.Millisecond, lasting: 400 * time.Millisecond, leastTurns: 5,
		holds: 2000, holdTTL: 2 * time.Second, holdTTLs: 1, rest: 200 * time.Millisecond,
	}
}
