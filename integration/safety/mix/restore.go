package mix

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// restoration is the last part of a run: the cluster is restored from a snapshot while clients work. Revisions start
// again in its history, so package check checks only the resources, which are not restored.
type restoration struct {
	*run
	number  int // of the round whose names it uses
	out     *writer
	store   *store
	rush    []string // names that all parties want
	parties []*party

	mu   sync.Mutex // guards the fields below
	back bool       // revisions are going back, or have gone back
	live map[*held]*party
}

const (
	witnesses = 4 // of each party
	nextEra   = 1 // of the tokens after the restore
)

func (r *restoration) wrong(format string, args ...any) {
	r.report.violate(r.number, "I9", format, args...)
}

func (run *run) restore(life context.Context) {
	run.endWatch() // revisions start again, so it would miss changes
	ctx, cancel := context.WithTimeout(life, 15*patience)
	defer cancel()
	// Before a member serves a request with an auth token, it waits for the revision at which the token was given out.
	// After a restore that revision may never come, so clients with a token would learn nothing.
	_, err := run.etcd.AuthDisable(ctx)
	require.NoError(run.tb, err)
	r := &restoration{run: run, number: run.rounds + 1, live: map[*held]*party{}}
	before, n := run.report.violations(), roundNames(r.number)
	r.rush = append(append(r.rush, n.Hot...), n.Elections...)
	run.tape.begin(run.tb, r.number)
	r.store = newStore(run.tb, run.tape, n, nil, !run.opts.Unfenced)
	defer r.store.Close()
	r.out, err = newWriter(run.tape, r.store.addr(), run.opts.Seed)
	require.NoError(run.tb, err)
	defer r.out.close()
	r.pass(ctx, n.Cold)
	r.leave(life, r.parties)
	r.judge(run.tape.end(run.tb))
	run.keep(before == run.report.violations())
}

// judge checks the history, and counts what the resources did with lower tokens after the members were killed.
func (r *restoration) judge(all []history.Event) {
	verdict := check.Resources(all)
	r.report.judge(r.number, verdict)
	killed := slices.IndexFunc(all, func(e history.Event) bool { return e.Kind == history.Fault && e.Name == restoredFault })
	before := check.Resources(all[:killed])
	r.report.count(restoredFenced, verdict.Count(check.AllRefused)-before.Count(check.AllRefused))
	r.report.count(restoredStale, verdict.Count(check.ControlStale)-before.Count(check.ControlStale))
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
			p := r.newParty(r.newClient(userOf(ofClient, i)), own[i])
			if i%8 < 3 { // their leases outlive the time without a cluster, and are seldom renewed
				p.ttl *= 4
			}
			p.join(ctx, 0)
			p.start(&old, func(w *witness) { w.until(working, 1, func(f fate) bool { return f == told }) })
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
	r.awaitEnds(ctx, r.takeBack(ctx, file))
	existing := len(r.parties)
	for i := range newcomers {
		p := r.newParty(r.newClient(userOf(ofNewcomer, i)), "")
		p.join(ctx, 0)
		p.start(&unaware, func(w *witness) { w.until(working, 3, func(f fate) bool { return f != nothing && f != lost }) })
	}
	if !inTime(&old, stop) {
		r.wrong("not every witness got an error that reports the restore, %v after the cluster was back", patience)
	}
	r.leave(ctx, r.parties[:existing]) // their keys have come back and block others
	if !inTime(&unaware, stop) {
		r.wrong("newcomers were not served in %v", patience)
	}
	r.leave(ctx, r.parties[existing:])
	r.raiseEra(ctx)
}

// takeBack restores the cluster and returns the handles that were live when its members were killed.
func (r *restoration) takeBack(ctx context.Context, file string) map[*held]*party {
	before := r.revision(ctx)
	fault := history.Event{At: r.tape.Now(), Kind: history.Fault, Fault: r.tape.ID(), Name: restoredFault, Target: "cluster"}
	r.tape.Record(fault)
	r.mu.Lock()
	r.back = true
	live := maps.Clone(r.live)
	r.mu.Unlock()
	maps.DeleteFunc(live, func(h *held, _ *party) bool { return h.err() != nil })
	require.NoError(r.tb, r.cluster.Restore(ctx, file, 0))
	r.report.longest(restoredDown, r.tape.Now()-fault.At)
	r.report.count(restoredLive, len(live))
	fault.Kind, fault.At = history.Heal, 0
	r.tape.Record(fault)
	r.report.count(restoredBack, int(before-r.revision(ctx)))
	return live
}

func (r *restoration) revision(ctx context.Context) int64 {
	rev, err := presentRevision(ctx, r.etcd)
	require.NoError(r.tb, err)
	return rev
}

// restoredFault is the name of the restore in the history.
const restoredFault = "restored from a snapshot"

// awaitEnds waits for the end of handles that were live when the members were killed.
func (r *restoration) awaitEnds(ctx context.Context, live map[*held]*party) {
	back := time.Now()
	for h, p := range live {
		bound := p.ttl + 3*time.Second // the deadline, or a renewal that finds the restore
		select {
		case <-ctx.Done():
			return
		case <-h.ctx.Done():
		case <-time.After(time.Until(back.Add(bound))):
		}
		if h.ctx.Err() == nil { // the time may be over because the wait for another handle was long
			r.wrong("a handle of %s for %s is live %v after the cluster was back", p.name, h.resource, bound)
			continue
		}
		cause := context.Cause(h.ctx)
		if !errors.Is(cause, lease.ErrLost) {
			continue // it was released
		}
		r.report.count(restoredEnded, 1)
		if errors.Is(cause, lease.ErrRestored) {
			r.report.count(restoredSaid, 1)
		}
	}
}

// raiseEra opens a session of each party in the next era, and waits until all witnesses are served.
func (r *restoration) raiseEra(ctx context.Context) {
	const turns, bound = 4, 5 * patience // for some hundred turns of all witnesses
	ctx, cancel := context.WithTimeout(ctx, bound)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, p := range r.parties {
		p.join(ctx, nextEra)
		p.start(&wg, func(w *witness) {
			done := w.until(ctx, turns, func(f fate) bool { return f == accepted })
			r.report.count(restoredAfter, done)
			if done < turns {
				r.wrong("%s was not served in the next era in %v", w.name, bound)
			}
		})
	}
	wg.Wait()
}

// inTime waits for workers, and stops them after the patience. It reports whether they ended before that.
func inTime(workers *sync.WaitGroup, stop func()) bool {
	late := time.AfterFunc(patience, stop)
	workers.Wait()
	return late.Stop()
}
