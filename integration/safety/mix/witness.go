package mix

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

type fate int

const (
	nothing   fate = iota // the turn was cut short, or the lock was lost
	accepted              // all its writes were accepted
	told                  // the acquisition failed with lease.ErrRestored
	explained             // a write was refused, and Explain named the restore
)

// witness is a worker of a party. It goes on until it has learned of the restore; the checkers judge each error that it
// gets.
type witness struct {
	*party
	*worker
	stays bool // it holds the name party.stays until it is lost, again and again
}

func (p *party) start(wg *sync.WaitGroup, work func(*witness)) {
	for i := range witnesses {
		name := p.name + "/witness " + strconv.Itoa(i)
		w := &witness{party: p, stays: i == 0 && p.stays != "" && p.era == 0, worker: &worker{
			crew: &crew{log: p.tape.Recorder, out: p.out}, name: name, rng: rand.New(rand.NewPCG(p.opts.Seed, hash(name)+uint64(p.era))),
		}}
		wg.Go(func() { work(w) })
	}
}

// until takes turns until as many have ended as wanted, and returns how many have.
func (w *witness) until(ctx context.Context, many int, wanted ...fate) (n int) {
	for n < many && ctx.Err() == nil {
		if slices.Contains(wanted, w.turn(ctx)) {
			n++
		}
		sleep(ctx, w.some(1, 10))
	}
	return n
}

// turn acquires a name in a random way, writes and releases.
func (w *witness) turn(ctx context.Context) (f fate) {
	name := pick(w.rng, w.rush)
	if w.stays {
		name = w.party.stays
	}
	s := w.current()
	kinds := []locker{exclusive(s, name), candidate(s, name, election.Options{Value: w.name}, ""), reader(s, name)}
	if w.stays {
		kinds = kinds[:2] // another reader would be let in
	}
	err := w.under(ctx, pick(w.rng, kinds), func(op int64, h *held) {
		w.granted.Store(h.token.Revision())
		if w.stays {
			w.staying.Store(true)
			defer w.staying.Store(false)
		}
		f = w.use(ctx, op, h)
	})
	if errors.Is(err, lease.ErrRestored) {
		f = told
	}
	return f
}

// use claims and writes a few times. A witness that stays goes on until the lock is lost.
func (w *witness) use(ctx context.Context, op int64, h *held) fate {
	f, verb, next := accepted, history.Claim, history.Write
	if h.shared {
		verb, next = history.ClaimRead, history.CheckRead
	}
	value := strconv.FormatInt(op, 10)
	for n := 0; (n < 3 || w.stays) && ctx.Err() == nil && h.err() == nil; n++ {
		_, outcome, err := w.out.send(w.name, h.resource, op, h.token, verb, value) // requests under way do not end with the turn
		switch outcome {
		case history.Refused:
			why := h.explain(ctx, err)
			w.log.Record(history.Event{Kind: history.Explained, Op: op, Error: why.Error()})
			if !errors.Is(why, lease.ErrRestored) {
				return nothing
			}
			_, _, _ = w.out.send(w.name, h.resource, op, h.token, next, value) // it writes all the same, and must be refused
			return explained
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
		return nothing
	}
	return f
}
