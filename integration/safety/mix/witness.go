package mix

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// hold is a handle that can explain why its token was refused.
type hold interface {
	handle
	Explain(ctx context.Context, err error) error
}

// fate is the outcome of a turn.
type fate int

const (
	nothing   fate = iota // the turn was cut short
	accepted              // all its writes were accepted
	lost                  // the lock was lost, and an error said so
	restored              // the acquisition failed with lease.ErrRestored
	explained             // a write was refused, and Explain named the restore
	wronged               // a wrong error
)

// witness is a worker of a party. It judges each error that it gets.
type witness struct {
	*party
	worker *worker
	stays  bool // it is the witness that holds the name party.stays
}

func (p *party) witness(i int) *witness {
	name := p.name + "/witness " + strconv.Itoa(i)
	return &witness{party: p, stays: i == 0 && p.stays != "", worker: &worker{
		crew: &crew{log: p.log, ttl: p.run.opts.TTL}, name: name,
		rng: rand.New(rand.NewPCG(p.run.opts.Seed, hash(name)+uint64(p.era))),
	}}
}

// untilRestored takes turns until an acquisition fails with lease.ErrRestored.
func (w *witness) untilRestored(ctx context.Context) {
	for ctx.Err() == nil {
		name := pick(w.worker.rng, w.rush)
		if w.stays {
			name = w.party.stays
		}
		if w.turn(ctx, name) == restored {
			return
		}
		sleep(ctx, w.worker.some(1, 10))
	}
}

// unaware takes turns as a newcomer, until a few turns ended with accepted writes or with an explained refusal.
func (w *witness) unaware(ctx context.Context) {
	const turns, most = 3, 20
	for n, seen := 0, 0; n < most && seen < turns && ctx.Err() == nil; n++ {
		if f := w.turn(ctx, w.rush[n%len(w.rush)]); f == explained || f == accepted {
			seen++
		}
	}
}

// recover takes turns until the writes of a few turns were accepted. It reports whether that happened before ctx ended.
func (w *witness) recover(ctx context.Context) bool {
	const turns = 4
	done := 0
	for ctx.Err() == nil && done < turns {
		name := w.rush[done%len(w.rush)]
		if w.stays && done == 0 {
			name = w.party.stays
		}
		if w.turn(ctx, name) == accepted {
			done++
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Recovered += done
	return done == turns
}

// turn acquires the name in a random way, writes and releases.
func (w *witness) turn(ctx context.Context, name string) fate {
	kinds := []locker{
		exclusive(w.session, name), candidate(w.session, name, election.Options{Value: w.worker.name}, ""), reader(w.session, name),
	}
	if w.stays && name == w.party.stays {
		kinds = kinds[:2]
	}
	k := pick(w.worker.rng, kinds)
	op, on := w.worker.enter(k.enter), w.session.Status().LeaseID
	l, err := k.lock(ctx)
	if err != nil {
		w.worker.giveUp(op, on, err)
		return w.failed(ctx, name, err)
	}
	h := l.(hold) //nolint:forcetypeassert // the handles of all three kinds can explain
	w.worker.granted(op, name, h)
	w.took(w.party, name, h)
	f := w.work(ctx, op, name, h)
	w.worker.release(op, h, l.Unlock) //nolint:contextcheck // it has a bound of its own
	w.left(h)
	return f
}

// verbs returns the verbs for the first request of a tenure and for the later ones.
func verbs(h hold) (claim, next history.Verb) {
	if shared(h) {
		return history.ClaimRead, history.CheckRead
	}
	return history.Claim, history.Write
}

// work claims and writes a few times. A witness that stays goes on until the lock is lost.
func (w *witness) work(ctx context.Context, op int64, name string, h hold) fate {
	stays, f := w.stays && name == w.party.stays && w.era == 0, accepted
	verb, next := verbs(h)
	value := strconv.FormatInt(op, 10)
	for n := 0; (n < 3 || stays) && ctx.Err() == nil && h.Err() == nil; n++ {
		_, outcome, err := w.out.send(w.worker.name, name, op, h.Token(), verb, value) //nolint:contextcheck // requests under way do not end with the turn
		switch outcome {
		case history.Refused:
			f := w.refused(ctx, name, h, err)
			if f == explained { // it writes all the same, and must be refused
				_, _, _ = w.out.send(w.worker.name, name, op, h.Token(), next, value) //nolint:contextcheck // as above
			}
			return f
		case history.OK:
			verb = next
		default:
			f = nothing
		}
		rest := w.worker.some(1, 4)
		if stays {
			rest = w.worker.some(20, 60)
		}
		sleep(h.Context(), rest) //nolint:contextcheck // as above
	}
	if h.Err() != nil {
		return lost
	}
	return f
}

// reported judges an error that reports a restore. There must have been a restore.
func (w *witness) reported(name string, err error, as fate) fate {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.back || w.era != 0:
		w.violations = append(w.violations, fmt.Sprintf("%s got an error that reports a restore that has not happened: %s: %v", w.worker.name, name, err))
		return wronged
	case as == restored:
		w.report.Told++
	default:
		w.report.Explained++
	}
	return as
}

// failed judges the error of an acquisition.
func (w *witness) failed(ctx context.Context, name string, err error) fate {
	switch {
	case errors.Is(err, lease.ErrRestored):
		return w.reported(name, err, restored)
	case errors.Is(err, lease.ErrLost):
		return lost
	case ctx.Err() != nil:
		return nothing
	default:
		return w.wrong("%s failed to acquire %s, and the error reports neither the restore nor a loss: %v", w.worker.name, name, err)
	}
}

// refused judges what Explain says about a refused token.
func (w *witness) refused(ctx context.Context, name string, h hold, stale error) fate {
	why := h.Explain(ctx, stale)
	switch {
	case errors.Is(why, lease.ErrRestored):
		return w.reported(name, why, explained)
	case h.Err() != nil: // asked after Explain, which may find a loss
		return lost
	case ctx.Err() != nil:
		return nothing
	default:
		return w.wrong("%s holds %s and its token was refused: %v", w.worker.name, name, why)
	}
}
