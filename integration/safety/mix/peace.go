package mix

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// peace follows after all faults are healed and all locks are released. No fault then excuses it if a waiter is served
// late or out of order, or if a holder learns of a loss late or never. Only a cluster that is slow by itself does.
func (r *round) peace(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.tape.Record(history.Event{Kind: history.Note, Name: history.NotePeace})
	var wg sync.WaitGroup
	for i, name := range r.names.Elections {
		wg.Go(func() { r.leadInTurn(ctx, i, name) })
	}
	wg.Go(func() { r.standInLine(ctx, len(r.names.Elections)) })
	for _, line := range r.lines(ctx) {
		wg.Go(func() {
			r.standTogether(ctx, func(i int) (*client, locker) {
				c := r.client(i)
				return c, line[i%len(line)](c)
			})
		})
	}
	wg.Go(func() { r.lastStrike(ctx, "").takeTogether(60, r.client(4), r.client(5)) })
	wg.Go(func() { r.loseKeys(ctx) })
	wg.Go(func() {
		last := r.clients[len(r.clients)-1]
		s := r.lastStrike(ctx, lateAnswers)
		s.begin(last.name)
		s.heal(lateThenNone(s, last))
	})
	wg.Go(func() { r.writeStale(ctx, 6) })
	wg.Wait()
}

// client returns a client without faults: any but the last, which loses leases at their deadlines.
func (r *round) client(i int) *client { return r.clients[i%(len(r.clients)-1)] }

// lastStrike returns a fault of the peace. No client but its target may notice it.
func (r *round) lastStrike(ctx context.Context, kind string) *strike {
	return &strike{nemesis: r.nemesis, ctx: ctx, kind: kind, rng: rand.New(rand.NewPCG(r.opts.Seed, uint64(r.number)))}
}

// writeStale sends a stale write, so that every round shows what a resource does with one. On a slow machine a lease may
// be lost before the lock is granted, so it asks again.
func (r *round) writeStale(ctx context.Context, i int) {
	c := r.client(i)
	write := func(op int64, h *held) {
		actor := c.name + "/stale"
		_, _, _ = r.out.send(actor, h.resource, op, h.token, history.Claim, "")
		_, _, _ = r.out.send(actor, h.resource, op, h.token-1, history.Write, strconv.FormatInt(op, 10)+".before")
	}
	for served := false; !served && ctx.Err() == nil; {
		served = r.serve(ctx, c, i, exclusive(c.current(), r.names.Hot[0]), write)
	}
}

// serve lets a worker of a client hold a lock while work runs. It reports whether the worker got the lock.
func (r *round) serve(ctx context.Context, c *client, i int, k locker, work func(int64, *held)) bool {
	return r.lastStrike(ctx, "").worker(c, "caller "+strconv.Itoa(i)).under(ctx, k, work) == nil
}

// leadInTurn has leaders follow each other for two TTLs while observers watch: 20 as fast as they can, and then one after
// the other for half a second each. An observer that is behind needs 100 ms for each change, since etcd serves watches
// that begin in the past so rarely: it would not catch up with leaders that change faster all the time.
func (r *round) leadInTurn(ctx context.Context, i int, name string) {
	const fast, term = 20, 500 * time.Millisecond
	began, c := time.Now(), r.client(i)
	for n := 0; n < fast || time.Since(began) < 2*ttl; n++ {
		lead := func(int64, *held) {
			if n >= fast {
				sleep(ctx, term)
			}
		}
		if time.Since(began) > served || !r.serve(ctx, c, i, candidate(c.current(), name, election.Options{Value: c.name}, ""), lead) {
			return // on a busy machine there are fewer: each must still have the whole time in which it is to be served
		}
	}
}

// standInLine lets callers of one session wait for a lock. Each deletion of one of their keys arrives once more, when
// the key is in use again. It must do no harm.
func (r *round) standInLine(ctx context.Context, i int) {
	const late, watched = 400 * time.Millisecond, time.Second // a session watches a key that it has held for 250 ms
	c := r.client(i)
	rule := faults.Rule{Fault: faults.RepeatRequest, Method: faults.Txn, Match: onlyReleases, Delay: late}
	again := c.in.Inject(r.tb, rule)
	defer again.Remove()
	k := exclusive(c.current(), r.names.own("line"))
	r.standTogether(ctx, func(int) (*client, locker) { return c, k })
	r.serve(ctx, c, callers, k, func(int64, *held) { sleep(ctx, watched) })
	r.report.count(repeated, again.Hits()) // not those that shared a commit with an acquisition
}

const callers = 18

// standTogether starts callers one after the other while the first of them holds its lock. kind returns each caller's
// client and lock. The checkers know which of these locks may be held together, and which callers must not be
// overtaken.
func (r *round) standTogether(ctx context.Context, kind func(i int) (*client, locker)) {
	const apart, holds = 30 * time.Millisecond, 20 * time.Millisecond
	lock := func(i int, work func(int64, *held)) {
		c, k := kind(i)
		r.serve(ctx, c, i, k, work)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	lock(0, func(int64, *held) {
		for i := range callers {
			wg.Go(func() { lock(i, func(int64, *held) { sleep(ctx, holds) }) })
			sleep(ctx, apart)
		}
	})
}

// lines returns what callers of several clients wait for together, in turn: locks of all kinds, etcd's own mutex among
// them, of which some exclude each other and some do not; permits, and locks that exclude all permits.
func (r *round) lines(ctx context.Context) [][]func(*client) locker {
	of := func(kind func(*lease.Session, string) locker, whose string) func(*client) locker {
		return func(c *client) locker { return kind(c.current(), r.names.own(whose)) }
	}
	etcds := func(whose string) func(*client) locker {
		return func(c *client) locker { return stock(ctx, c, r.names.own(whose), (*mutex).hasKey) }
	}
	set := func(s *lease.Session, name string) locker { return ofSet(s, r.names.own("other"), name) }
	left := func(s *lease.Session, name string) locker { return ofTree(s, name+"/left") }
	right := func(s *lease.Session, name string) locker { return ofTree(s, name+"/right") }
	permit := of(ofSemaphore, "permits")
	return [][]func(*client) locker{
		{
			of(exclusive, "all"), of(set, "all"), of(left, "all"), of(right, "all"), of(reader, "all"), of(reader, "all"),
			etcds("all"), of(exclusive, "other"), of(reader, "all"),
		},
		{of(exclusive, "permits"), permit, permit, permit, etcds("permits"), permit, permit, permit, permit},
	}
}

// loseKeys lets an operator take the keys of handles, which must then end. The handles are held long enough to be
// watched.
func (r *round) loseKeys(ctx context.Context) {
	const each, watched = 3, 600 * time.Millisecond
	var wg sync.WaitGroup
	defer wg.Wait()
	kinds := []func(*lease.Session, string) locker{
		exclusive,
		func(s *lease.Session, name string) locker {
			return ofSet(s, name, name+"-too", name+"-also")
		},
		func(s *lease.Session, name string) locker { return ofTree(s, name+"/below") },
		ofSemaphore,
	}
	for i := range each * len(takings) {
		taking, kind := takings[i%len(takings)], kinds[i%len(kinds)]
		wg.Go(func() {
			s := r.lastStrike(ctx, taking.name)
			s.alone(r.client(i), "", kind, func(h *held) {
				sleep(ctx, watched)
				s.heal(s.taken(taking.take, h.key, h.token))
				s.awaitEnd(h)
			})
		})
	}
}
