package mix

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// hold is a lock or a leadership that can say why it was refused.
type hold interface {
	handle
	Explain(ctx context.Context, err error) error
}

// fate is what became of a turn.
type fate int

const (
	nothing   fate = iota // known: it was cut short
	accepted              // all that it wrote
	lost                  // the lock, and it was told so
	restored              // it was told of the restore
	explained             // a refusal was, as the restore
	wronged               // it was told something else
)

// witness is a worker of a party. It judges what it is told.
type witness struct {
	*party
	name  string
	rng   *rand.Rand
	stays bool // where the party does
}

func (p *party) witness(i int) *witness {
	name := p.name + "/witness " + strconv.Itoa(i)
	return &witness{
		party: p, name: name, stays: i == 0 && p.stays != "",
		rng: rand.New(rand.NewPCG(p.run.opts.Seed, hash(name)+uint64(p.era))),
	}
}

// untilTold works until an acquisition says that the cluster was restored.
func (w *witness) untilTold(ctx context.Context) {
	for ctx.Err() == nil {
		name := pick(w.rng, w.rush)
		if w.stays {
			name = w.party.stays
		}
		if w.turn(ctx, name) == restored {
			return
		}
		sleep(ctx, millis(w.rng, 1, 10))
	}
}

// unaware works as one who knows of nothing before: until it was refused a few times, or not.
func (w *witness) unaware(ctx context.Context) {
	const turns, most = 3, 20
	for n, seen := 0, 0; n < most && seen < turns && ctx.Err() == nil; n++ {
		if f := w.turn(ctx, w.rush[n%len(w.rush)]); f == explained || f == accepted {
			seen++
		}
	}
}

// recover works until a few tenures went as they should. It reports whether that was so before ctx ended.
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
			w.count(func(r *Restored) { r.Recovered++ })
		}
	}
	return done == turns
}

// turn is one acquisition of something.
func (w *witness) turn(ctx context.Context, name string) fate {
	verbs := []history.Verb{"", history.Campaign, history.RLock}
	if w.stays && name == w.party.stays {
		verbs = verbs[:2]
	}
	op, verb := w.log.ID(), pick(w.rng, verbs)
	w.log.Record(history.Event{Kind: history.Enter, Op: op, Actor: w.name, Name: name, Verb: verb})
	h, free, err := w.acquire(ctx, name, verb)
	if err != nil {
		w.log.Record(history.Event{Kind: history.GiveUp, Op: op, Outcome: history.Failed, Error: err.Error()})
		return w.failed(ctx, name, err)
	}
	w.log.Record(history.Event{Kind: history.Grant, Op: op, Actor: w.name, Name: name, Token: h.Token(), Key: h.Key()})
	w.took(w.party, name, h)
	f := w.work(ctx, op, name, h)
	w.log.Record(history.Event{Kind: history.Release, Op: op})
	freeing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*w.run.opts.TTL)
	defer cancel()
	err = free(freeing)
	released := history.Event{Kind: history.Released, Op: op, Outcome: history.OK}
	if err != nil {
		released.Outcome, released.Error = history.Failed, err.Error()
	}
	w.log.Record(released)
	w.left(h)
	return f
}

func (w *witness) acquire(ctx context.Context, name string, verb history.Verb) (h hold, free func(context.Context) error, err error) {
	switch verb {
	case history.RLock:
		l, err := w.session.RLock(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		return reading{l}, l.Unlock, nil
	case history.Campaign:
		l, err := election.Campaign(ctx, w.session, name, election.Options{Value: w.name})
		if err != nil {
			return nil, nil, err
		}
		return l, l.Resign, nil
	default:
		l, err := w.session.Lock(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		return l, l.Unlock, nil
	}
}

// verbs are those with which one claims and goes on.
func verbs(h hold) (claim, next history.Verb) {
	if shared(h) {
		return history.ClaimRead, history.CheckRead
	}
	return history.Claim, history.Write
}

// work claims and writes: a few times, or until the lock is lost.
func (w *witness) work(ctx context.Context, op int64, name string, h hold) fate {
	stays, f := w.stays && name == w.party.stays && w.era == 0, accepted
	verb, next := verbs(h)
	for n := 0; (n < 3 || stays) && ctx.Err() == nil && h.Err() == nil; n++ {
		outcome, err := w.write(w.name, name, op, h.Token(), verb) //nolint:contextcheck // what is on its way does not end with the turn
		switch outcome {
		case history.Refused:
			f := w.refused(ctx, name, h, err)
			if f == explained { // and it does not listen
				_, _ = w.write(w.name, name, op, h.Token(), next) //nolint:contextcheck // as above
			}
			return f
		case history.OK:
			verb = next
		default:
			f = nothing
		}
		pause := millis(w.rng, 1, 4)
		if stays {
			pause = millis(w.rng, 20, 60)
		}
		select {
		case <-time.After(pause):
		case <-h.Context().Done():
		}
	}
	if h.Err() != nil {
		return lost
	}
	return f
}

// write sends one request to a resource.
func (r *restoration) write(actor, name string, op int64, t fence.Token, verb history.Verb) (history.Outcome, error) {
	id := r.log.ID()
	value := strconv.FormatInt(id, 10)
	r.log.Record(history.Event{
		Kind: history.Send, Op: op, Actor: actor, Name: name, Token: t, Verb: verb, Value: value, Request: id,
	})
	_, outcome, err := r.out.ask(name, id, t, verb, value)
	e := history.Event{Kind: history.Answer, Request: id, Outcome: outcome}
	if err != nil {
		e.Error = err.Error()
	}
	r.log.Record(e)
	return outcome, err
}

// failed judges why nothing was acquired.
func (w *witness) failed(ctx context.Context, name string, err error) fate {
	switch {
	case errors.Is(err, lease.ErrRestored):
		if !w.mayBeTold(w.era) {
			return w.wrong("%s was told of a restore that has not been: %s: %v", w.name, name, err)
		}
		w.count(func(r *Restored) { r.Told++ })
		return restored
	case errors.Is(err, lease.ErrLost):
		return lost
	case ctx.Err() != nil:
		return nothing
	default:
		return w.wrong("%s failed to acquire %s, and was told neither of the restore nor of a loss: %v", w.name, name, err)
	}
}

// refused judges a refusal of the resource.
func (w *witness) refused(ctx context.Context, name string, h hold, stale error) fate {
	why := h.Explain(ctx, stale)
	switch {
	case errors.Is(why, lease.ErrRestored):
		if !w.mayBeTold(w.era) {
			return w.wrong("%s was told of a restore that has not been: %s: %v", w.name, name, why)
		}
		w.count(func(r *Restored) { r.Explained++ })
		return explained
	case h.Err() != nil: // after the question, so that a loss which is found meanwhile counts
		return lost
	case ctx.Err() != nil:
		return nothing
	default:
		return w.wrong("%s holds %s and was refused as if it did not: %v", w.name, name, why)
	}
}
