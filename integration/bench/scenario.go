package main

import (
	"context"
	"time"
)

// measurement is one round of one implementation.
type measurement func(ctx context.Context, t *trial) ([]sample, error)

// scenario is what is measured, and what is hoped for.
type scenario struct {
	name    string
	what    string
	latency string // what the latencies are of
	charted charted
	measure measurement
	goals   []goal

	ours    func(separate bool) implementation // default: leasefence
	peer    func() implementation              // default: mutex
	floor   bool                               // measure the floor in each round
	section time.Duration                      // how long a critical section lasts
	blocks  int                                // split each round into so many; default 1
	most    int                                // rounds at most; default: as many as asked for
	rests   bool                               // after each round, for a server that has deleted much
}

// scale is how much is done.
type scale struct {
	rounds      int
	warmUp      time.Duration
	lasting     time.Duration // of one measurement
	leastTurns  int           // where each takes a given time
	floor       int           // repetitions
	holds       int           // locks held by one process
	holdTTL     time.Duration
	holdTTLs    int           // how long they are held
	rest        time.Duration // after a round with much to clean up
	herd        int           // waiting clients
	herdRepeats int           // with 2
	crashes     int           // of leaders, all at once
	// quiet is how long the servers get no request before nothing moves any more. It should be more than the 250 ms after
	// which leasefence begins to watch a lock that is held, and the 500 ms after which etcd repeats a read that it must
	// ask its leader about.
	quiet time.Duration
}

func fullScale() scale {
	return scale{
		rounds: 4, warmUp: 500 * time.Millisecond, lasting: 2 * time.Second, leastTurns: 20, floor: 100,
		holds: 50_000, holdTTL: 10 * time.Second, holdTTLs: 3,
		rest: time.Second, herd: 200, herdRepeats: 2, crashes: 100, quiet: 700 * time.Millisecond,
	}
}

func shortScale() scale {
	return scale{
		rounds: 1, warmUp: 100 * time.Millisecond, lasting: 400 * time.Millisecond, leastTurns: 5, floor: 20,
		holds: 2000, holdTTL: 2 * time.Second, holdTTLs: 1,
		rest: 200 * time.Millisecond, herd: 20, herdRepeats: 1, crashes: 5, quiet: 400 * time.Millisecond,
	}
}
