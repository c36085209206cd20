package mix

import (
	"context"
	"errors"
	"strconv"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

type fate int

const (
	nothing   fate = iota // the turn was cut short, or a wrong error was reported as a violation
	accepted              // all its writes were accepted
	lost                  // the lock was lost, and an error said so
	told                  // the acquisition failed with lease.ErrRestored
	explained             // a write was refused, and Explain named the restore
)

// witness is a worker of a party. It judges each error that it gets.
type witness struct {
	*party
	*worker
	stays bool // it holds the name party.stays until it is lost, again and again
	turns int
}

// until takes turns until as many have ended as wanted, and returns how many have.
func (w *witness) until(ctx context.Context, many int, wanted func(fate) bool) (n int) {
	for n < many && ctx.Err() == nil {
		if wanted(w.turn(ctx)) {
			n++
		}
		sleep(ctx, w.some(1, 10))
	}
	return n
}

// turn acquires a name in a random way, writes and releases.
func (w *witness) turn(ctx context.Context) (f fate) {
	w.turns++
	name := w.rush[(w.turns+w.rng.IntN(2))%len(w.rush)]
	if w.stays {
		name = w.party.stays
	}
	s := w.current()
	kinds := []locker{exclusive(s, name), candidate(s, name, election.Options{Value: w.name}, ""), reader(s, name)}
	if w.stays {
		kinds = kinds[:2] // another reader would be let in
	}
	err := w.under(ctx, pick(w.rng, kinds), func(op int64, h *held) {
		w.took(h)
		defer w.left(h)
		f = w.use(ctx, op, h)
	})
	if err != nil {
		return w.failed(ctx, name, err)
	}
	return f
}

// verbs returns the verbs for the first request of a tenure and for the later ones.
func verbs(h *held) (claim, next history.Verb) {
	if h.shared {
		return history.ClaimRead, history.CheckRead
	}
	return history.Claim, history.Write
}

// use claims and writes a few times. A witness that stays goes on until the lock is lost.
func (w *witness) use(ctx context.Context, op int64, h *held) fate {
	f := accepted
	verb, next := verbs(h)
	value := strconv.FormatInt(op, 10)
	for n := 0; (n < 3 || w.stays) && ctx.Err() == nil && h.err() == nil; n++ {
		_, outcome, err := w.party.out.send(w.name, h.resource, op, h.token, verb, value) // requests under way do not end with the turn
		switch outcome {
		case history.Refused:
			f := w.refused(ctx, h, err)
			if f == explained { // it writes all the same, and must be refused
				_, _, _ = w.party.out.send(w.name, h.resource, op, h.token, next, value)
			}
			return f
		case history.OK:
			verb = next
		default:
			f = nothing
		}
		rest := w.some(1, 4)
		if w.stays {
			rest = w.some(20, 60)
		}
		sleep(h.ctx, rest)
	}
	if h.err() != nil {
		return lost
	}
	return f
}

// reported judges an error that reports a restore. There must have been a restore.
func (w *witness) reported(name string, err error, as fate, figure string) fate {
	w.restoration.mu.Lock()
	defer w.restoration.mu.Unlock()
	if !w.back || w.era != 0 {
		w.wrong("%s got an error that reports a restore that has not happened: %s: %v", w.name, name, err)
		return nothing
	}
	w.report.count(figure, 1)
	return as
}

// failed judges the error of an acquisition.
func (w *witness) failed(ctx context.Context, name string, err error) fate {
	switch {
	case errors.Is(err, lease.ErrRestored):
		return w.reported(name, err, told, restoredTold)
	case errors.Is(err, lease.ErrLost):
		return lost
	case ctx.Err() == nil:
		w.wrong("%s failed to acquire %s, and the error reports neither the restore nor a loss: %v", w.name, name, err)
	}
	return nothing
}

// refused judges what Explain says about a refused token.
func (w *witness) refused(ctx context.Context, h *held, stale error) fate {
	why := h.explain(ctx, stale)
	switch {
	case errors.Is(why, lease.ErrRestored):
		return w.reported(h.resource, why, explained, restoredWhy)
	case h.err() != nil: // asked after Explain, which may find a loss
		return lost
	case ctx.Err() == nil:
		w.wrong("%s holds %s and its token was refused: %v", w.name, h.resource, why)
	}
	return nothing
}
