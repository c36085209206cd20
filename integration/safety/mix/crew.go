package mix

import (
	"context"
	"math/rand/v2"
	"slices"
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
	renew   func()                // replaces the session; nil: sessions are not replaced

	draining <-chan struct{} // closed when workers must not begin anything new
	patience context.Context //nolint:containedctx // of the waiters; it ends if they are not served in time
	wg       sync.WaitGroup
}

// workerNames stands between the client's name and the number in the name of a worker.
const workerNames = "/worker "

// start starts workers. The first of them is a sleepwalker: it does not check whether it still holds a lock.
func (c *crew) start(workers int, seed uint64) {
	for i := range workers {
		w := &worker{
			crew: c, name: c.name + workerNames + strconv.Itoa(i), sleepwalks: i == 0,
			rng: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		c.wg.Go(w.run)
	}
}

func (c *crew) drained() bool { return closed(c.draining) }

// pause returns early if the crew drains.
func (c *crew) pause(d time.Duration) { pause(c.draining, d) }

// worker acquires, writes and releases, again and again.
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

// some returns a random number of milliseconds.
func (w *worker) some(from, to int) time.Duration { return millis(w.rng, from, to) }

// turn acquires something, holds it for a while and releases it.
func (w *worker) turn() {
	s, what := w.session(), w.rng.IntN(14)
	switch {
	case what >= 12:
		w.take(w.ofMany(s))
	case what >= 10 && w.sleepwalks:
		w.take(reader(s, pick(w.rng, w.names.quiet())))
	case what >= 10:
		w.take(reader(s, pick(w.rng, w.names.shared())))
	case w.sleepwalks && what < 3:
		w.lock(exclusive(s, pick(w.rng, w.names.quiet())))
	case w.sleepwalks && what < 7:
		w.lock(exclusive(s, pick(w.rng, w.names.Cold)))
	case what < 3:
		w.lock(exclusive(s, pick(w.rng, w.names.Hot)))
	case what < 4:
		w.tryOut(exclusive(s, pick(w.rng, w.names.Hot)))
	case what < 6:
		w.lock(exclusive(s, pick(w.rng, w.names.Cold)))
	case what < 7:
		w.do(exclusive(s, pick(w.rng, w.names.locks())))
	case what < 9:
		w.campaign(pick(w.rng, w.names.Elections))
	default:
		w.lead(pick(w.rng, w.names.Elections[:2])) // in the other one Run makes room for a higher priority, which OnLost does not report
	}
}

// ofMany returns a lock of a kind that stands in several queues, or a lock or read lock that conflicts with such a
// lock.
func (w *worker) ofMany(s *lease.Session) locker {
	switch w.rng.IntN(9) {
	case 0, 1, 2:
		all := slices.Clone(w.names.sets())
		w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return ofSet(s, all[:2+w.rng.IntN(2)])
	case 3, 4:
		return ofTree(s, pick(w.rng, w.names.Paths))
	case 5, 6, 7:
		return ofSemaphore(s, w.names.Semaphore, permits)
	default:
		name := pick(w.rng, []string{w.names.Paths[0], w.names.Semaphore})
		if w.rng.IntN(2) == 0 {
			return reader(s, name)
		}
		return exclusive(s, name)
	}
}

// wait returns a context for waiting. One waiter of six gives up after a while, but not after the round has ended: from
// then on every waiter must be served.
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

// enter records that the worker is about to wait.
func (w *worker) enter(e history.Event) (op int64) {
	e.Kind, e.Op, e.Actor = history.Enter, w.log.ID(), w.name
	w.log.Record(e)
	return e.Op
}
