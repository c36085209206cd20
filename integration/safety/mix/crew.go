package mix

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// crew is the workers of one client for one round.
type crew struct {
	name     string
	log      record
	names    names
	out      *writer
	ttl      time.Duration
	saboteur Saboteur

	session func() *lease.Session // the present one
	renew   func()                // replaces it; nil where that is not done

	draining <-chan struct{} // closed when nobody is to begin anything new
	patience context.Context //nolint:containedctx // of those who wait; it ends when they were not served in time
	wg       sync.WaitGroup
}

// The names of workers end with their number. The first of a client walks in its sleep.
const workerNames = "/worker "

// start sends out workers. The first of them walks in its sleep.
func (c *crew) start(workers int, seed uint64) {
	for i := range workers {
		w := &worker{
			crew: c, name: c.name + workerNames + strconv.Itoa(i), sleepwalks: i == 0,
			rng: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		c.wg.Go(w.run)
	}
}

func (c *crew) drained() bool {
	select {
	case <-c.draining:
		return true
	default:
		return false
	}
}

// pause waits, and less if the round ends.
func (c *crew) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.draining:
	}
}

// worker acquires, works and lets go.
type worker struct {
	*crew
	name       string
	sleepwalks bool
	rng        *rand.Rand // of its own goroutine
}

func (w *worker) run() {
	for !w.drained() {
		w.turn()
		w.pause(w.some(5, 40))
		if w.renew != nil && w.rng.IntN(200) == 0 {
			w.renew()
		}
	}
}

// some is a random number of milliseconds.
func (w *worker) some(from, to int) time.Duration {
	return time.Duration(from+w.rng.IntN(to-from)) * time.Millisecond
}

// turn is one acquisition of something.
func (w *worker) turn() {
	what := w.rng.IntN(12)
	switch {
	case what >= 10 && w.sleepwalks:
		w.rlock(pick(w.rng, w.names.quiet()))
	case what >= 10:
		w.rlock(pick(w.rng, w.names.shared()))
	case w.sleepwalks && what < 3:
		w.lock(pick(w.rng, w.names.quiet()))
	case w.sleepwalks && what < 7:
		w.lock(pick(w.rng, w.names.Cold))
	case what < 3:
		w.lock(pick(w.rng, w.names.Hot))
	case what < 4:
		w.tryLock(pick(w.rng, w.names.Hot))
	case what < 6:
		w.lock(pick(w.rng, w.names.Cold))
	case what < 7:
		w.do(pick(w.rng, w.names.locks()))
	case what < 9:
		w.campaign(pick(w.rng, w.names.Elections))
	default:
		w.lead(pick(w.rng, w.names.Elections[:2])) // where Run does not campaign again by itself
	}
}

// wait returns a context for waiting. Most waiters are patient; the others give up, but nobody once the round ends: who
// waits then is to be served.
func (w *worker) wait() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(w.patience)
	if w.rng.IntN(6) != 0 {
		return ctx, cancel
	}
	timer := time.AfterFunc(w.some(1, 300), func() {
		if !w.drained() {
			cancel()
		}
	})
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}

// enter records that somebody is about to wait.
func (w *worker) enter(name string, verb history.Verb) (op int64) {
	op = w.log.ID()
	w.log.Record(history.Event{Kind: history.Enter, Op: op, Actor: w.name, Name: name, Verb: verb})
	return op
}
