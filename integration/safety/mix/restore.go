package mix

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// restoration is the last part of a run: the cluster is restored from a snapshot while clients work. Package check
// decides by its history whether each client learned of it.
type restoration struct {
	*round
	rush    []string // names that all parties want
	parties []*party
}

const (
	witnesses = 4 // of each party
	nextEra   = 1 // of the tokens after the restore
)

// party is a client in a restore.
type party struct {
	*restoration
	*client
	stays   string       // the name that its first witness holds for as long as it can; "": none
	staying atomic.Bool  // it holds that name
	granted atomic.Int64 // the highest revision of its tokens, or one that is nearly as high
}

func (run *run) restore(life context.Context) {
	run.endWatch() // revisions start again, so it would miss changes
	ctx, cancel := context.WithTimeout(life, 15*patience)
	defer cancel()
	// Before a member serves a request with an auth token, it waits for the revision at which the token was given out.
	// After a restore that revision may never come, so clients with a token would learn nothing.
	_, err := run.etcd.AuthDisable(ctx)
	require.NoError(run.tb, err)
	r := &restoration{round: run.begin(run.rounds + 1)}
	r.rush = slices.Concat(r.names.Hot, r.names.Elections)
	r.pass(ctx, r.names.Cold)
	r.leave(life, r.parties)
	r.out.close()
	r.store.Close()
	r.end()
}

// pass runs all steps, from the work before the restore to the work after it. Each party has a name of its own.
func (r *restoration) pass(ctx context.Context, own []string) {
	working, stop := context.WithCancel(ctx)
	var old, unaware sync.WaitGroup
	defer old.Wait()
	defer unaware.Wait()
	defer stop()
	start := func(from int) {
		for i := from; i < r.opts.clients(); i += 2 {
			p := &party{restoration: r, client: r.newClient(userOf(ofClient, i)), stays: own[i]}
			if i%8 < 3 { // their leases outlive the time without a cluster, and are seldom renewed
				p.ttl *= 4
			}
			p.join(ctx, 0)
			p.start(&old, func(w *witness) { w.until(working, 1, told) })
		}
	}
	// The snapshot has the leases of half of the parties. It is so old that no token passes a mark before the era is raised.
	gap := int64(10 * witnesses * (r.opts.clients() + newcomers))
	file := filepath.Join(r.tb.TempDir(), "snapshot.db")
	start(0)
	r.ready(ctx, 0)
	require.NoError(r.tb, etcdproc.Save(ctx, r.etcd, file))
	saved := r.revision(ctx)
	start(1)
	r.ready(ctx, saved+gap)
	r.takeBack(ctx, file)
	existing := len(r.parties)
	for i := range newcomers {
		p := &party{restoration: r, client: r.newClient(userOf(ofNewcomer, i))}
		p.ttl *= 4 // a slow machine must not lose the leases of those who are to be served
		p.join(ctx, 0)
		p.start(&unaware, func(w *witness) { w.until(working, 3, accepted, told, explained) })
	}
	r.await(&old, stop, "I9", "not every witness got an error that reports the restore")
	r.leave(ctx, r.parties[:existing]) // their keys have come back and block others
	r.await(&unaware, stop, "I9", "newcomers were not served")
	r.leave(ctx, r.parties[existing:])
	r.raiseEra(ctx)
}

// takeBack restores the cluster.
func (r *restoration) takeBack(ctx context.Context, file string) {
	before, began := r.revision(ctx), r.tape.Now()
	require.NoError(r.tb, r.cluster.Restore(ctx, file, 0))
	r.report.most(restoredDown, int((r.tape.Now() - began).Milliseconds()))
	r.tape.fault(began, history.Event{Name: history.Restored, Target: "cluster"})
	r.report.count(restoredBack, int(before-r.revision(ctx)))
}

func (r *restoration) revision(ctx context.Context) int64 {
	rev, err := presentRevision(ctx, r.etcd)
	require.NoError(r.tb, err)
	return rev
}

// raiseEra opens a session of each party in the next era, and waits until all witnesses are served.
func (r *restoration) raiseEra(ctx context.Context) {
	const turns, bound = 4, 5 * patience // for some hundred turns of all witnesses
	r.tape.Record(history.Event{Kind: history.Note, Name: history.NoteEra})
	ctx, cancel := context.WithTimeout(ctx, bound)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, p := range r.parties {
		p.ttl = 4 * ttl
		p.join(ctx, nextEra)
		p.start(&wg, func(w *witness) {
			done := w.until(ctx, turns, accepted)
			r.report.count(restoredAfter, done)
			if done < turns {
				r.complain("I9", "%s was not served in the next era in %v", w.name, bound)
			}
		})
	}
	wg.Wait()
}

// join opens a session. leave closes it.
func (p *party) join(ctx context.Context, era uint16) {
	p.era = era
	p.tape.Record(history.Event{Kind: history.Note, Name: history.NoteTTL, Actor: p.name, Value: p.ttl.String()})
	require.NoError(p.tb, insist(ctx, p.open))
	if era == 0 {
		p.parties = append(p.parties, p)
	}
}

func (r *restoration) leave(ctx context.Context, parties []*party) {
	var wg sync.WaitGroup
	for _, p := range parties {
		wg.Go(func() {
			if err := closeSession(ctx, p.current()); err != nil {
				r.complain("I9", "a session of %s in era %d: %v", p.name, p.era, err)
			}
		})
	}
	wg.Wait()
}

// ready waits until every name that all parties want has a mark, and every party a token, of that revision or above. It
// also waits until each party that is to stay holds its lock.
func (r *restoration) ready(ctx context.Context, revision int64) {
	missing := ""
	await(ctx, 5*patience, func(context.Context) (bool, error) {
		missing = r.missing(revision)
		return missing == "", nil
	})
	require.Empty(r.tb, missing, "it has not come to revision %d", revision)
}

func (r *restoration) missing(revision int64) string {
	marks := r.store.guard.Marks()
	for _, name := range r.rush {
		if marks[name].Revision() < revision {
			return name
		}
	}
	for _, p := range r.parties {
		if p.granted.Load() < revision || !p.staying.Load() {
			return p.name
		}
	}
	return ""
}

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
