package mix

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
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
	late    []*client // clients that came after the restore
	gap     int64     // revisions after the snapshot: so many that no token passes a mark before the era is raised

	mu      sync.Mutex // guards the fields below
	back    bool       // revisions are going back, or have gone back
	live    map[*held]*party
	ended   []*held     // of those that were live at the restore: the handles that a loss has ended
	highest fence.Token // the highest token that was granted before the era was raised
}

const (
	witnesses = 4 // of each party
	nextEra   = 1 // of the tokens after the restore

	// patience is the bound of each step: a lease of four TTLs may come back and expire, since nobody renews it.
	patience = served + 6*ttl
)

func (r *restoration) wrong(format string, args ...any) {
	r.report.violate(r.number, "I9", format, args...)
}

func (run *run) restore(life context.Context) error {
	run.endWatch() // revisions start again, so it would miss changes
	ctx, cancel := context.WithTimeout(life, 3*time.Minute)
	defer cancel()
	// Before a member serves a request with an auth token, it waits for the revision at which the token was given out.
	// After a restore that revision may never come, so clients with a token would learn nothing.
	if _, err := run.etcd.AuthDisable(ctx); err != nil {
		return fmt.Errorf("mix: turn authentication off before the restore: %w", err)
	}
	r := &restoration{run: run, number: run.rounds + 1, live: map[*held]*party{}}
	before, n := run.report.violations(), roundNames(r.number)
	r.rush = append(append(r.rush, n.Hot...), n.Elections...)
	if err := run.tape.begin(r.number); err != nil {
		return err
	}
	var err error
	if r.store, err = newStore(run.tape, n, nil, !run.opts.Unfenced); err != nil {
		return err
	}
	defer r.store.Close()
	if r.out, err = newWriter(run.tape, r.store.addr(), run.opts.Seed); err != nil {
		return err
	}
	defer r.out.close()
	for i, c := range run.clients {
		p := r.newParty(c.name, c.etcd)
		p.stays = n.Cold[i]
		if i%8 < 3 { // their leases outlive the time without a cluster, and are seldom renewed
			p.ttl *= 4
		}
		r.parties = append(r.parties, p)
	}
	r.gap = int64(10 * witnesses * (len(r.parties) + newcomers))
	err = r.pass(ctx)
	r.leave(life)
	if err != nil {
		return err
	}
	all, err := run.tape.end()
	if err != nil {
		return err
	}
	r.judge(all)
	return run.keep(before == run.report.violations())
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

// pass runs all steps, from the work before the restore to the work after it.
func (r *restoration) pass(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	var old, unaware sync.WaitGroup
	defer old.Wait()
	defer unaware.Wait()
	defer stop()
	// The snapshot has the leases of half of the parties.
	file := filepath.Join(r.opts.Dir, "data", "snapshot.db")
	var saved int64 // not below the snapshot's revision
	for half := range 2 {
		for i := half; i < len(r.parties); i += 2 {
			p := r.parties[i]
			if err := p.open(ctx, 0); err != nil {
				return err
			}
			p.start(&old, func(w *witness) { w.until(working, 1, func(f fate) bool { return f == told }) })
		}
		if err := r.ready(ctx, saved); err != nil {
			return err
		}
		if half > 0 {
			break
		}
		err := etcdproc.Save(ctx, r.etcd, file)
		if err == nil {
			saved, err = presentRevision(ctx, r.etcd)
		}
		if err != nil {
			return err
		}
		saved += r.gap
	}
	live, err := r.takeBack(ctx, file)
	if err != nil {
		return err
	}
	r.awaitEnds(ctx, live)
	late, err := r.newcomers(ctx)
	if err != nil {
		return err
	}
	for _, p := range late {
		p.start(&unaware, func(w *witness) { w.until(working, 3, func(f fate) bool { return f != nothing && f != lost }) })
	}
	if !inTime(&old, stop) {
		r.wrong("not every witness got an error that reports the restore, %v after the cluster was back", patience)
	}
	r.closeSessions(ctx, r.parties) // their keys have come back and block others
	if !inTime(&unaware, stop) {
		r.wrong("newcomers were not served in %v", patience)
	}
	r.closeSessions(ctx, late)
	r.parties = append(r.parties, late...)
	if err := r.raiseEra(ctx); err != nil {
		return err
	}
	// The holders that the restore has ended write, too.
	marks := r.store.guard.Marks()
	for _, h := range r.ended {
		if marks[h.resource] > h.token {
			_, verb := verbs(h)
			_, _, _ = r.out.send("asleep", h.resource, 0, h.token, verb, "") // its requests have a timeout; judge finds writes that were accepted
		}
	}
	return nil
}

// takeBack restores the cluster and returns the handles that were live when its members were killed.
func (r *restoration) takeBack(ctx context.Context, file string) (live map[*held]*party, err error) {
	before, err := presentRevision(ctx, r.etcd)
	if err != nil {
		return nil, err
	}
	fault := history.Event{At: r.tape.Now(), Kind: history.Fault, Fault: r.tape.ID(), Name: restoredFault, Target: "cluster"}
	r.tape.Record(fault)
	live = map[*held]*party{}
	r.mu.Lock()
	r.back = true
	for h, p := range r.live {
		if h.err() == nil {
			live[h] = p
		}
	}
	r.mu.Unlock()
	if err := r.cluster.Restore(ctx, file, 0); err != nil {
		return nil, err
	}
	r.report.longest(restoredDown, r.tape.Now()-fault.At)
	r.report.count(restoredLive, len(live))
	fault.Kind, fault.At = history.Heal, 0
	r.tape.Record(fault)
	after, err := presentRevision(ctx, r.etcd)
	r.report.count(restoredBack, int(before-after))
	return live, err
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
		r.ended = append(r.ended, h)
	}
}

// raiseEra opens a session of each party in the next era, and waits until all witnesses are served.
func (r *restoration) raiseEra(ctx context.Context) error {
	const turns = 4
	ctx, cancel := context.WithTimeout(ctx, patience)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, p := range r.parties {
		if err := p.open(ctx, nextEra); err != nil {
			return err
		}
		p.start(&wg, func(w *witness) {
			done := w.until(ctx, turns, func(f fate) bool { return f == accepted })
			r.report.count(restoredAfter, done)
			if done < turns {
				r.wrong("%s was not served in the next era in %v", w.worker.name, patience)
			}
		})
	}
	wg.Wait()
	return nil
}

// inTime waits for workers, and stops them after the patience. It reports whether they ended before that.
func inTime(workers *sync.WaitGroup, stop func()) bool {
	late := time.AfterFunc(patience, stop)
	workers.Wait()
	return late.Stop()
}

// leave closes all sessions and the clients that came late. It revokes the leases that are left: the restore may bring
// back leases of closed sessions.
func (r *restoration) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, served)
	defer cancel()
	r.closeSessions(ctx, r.parties)
	own := map[clientv3.LeaseID]bool{}
	for _, c := range r.clients {
		own[c.current().Status().LeaseID] = true
	}
	for _, c := range r.late {
		_ = c.close(ctx) // its session is closed
	}
	_ = insist(ctx, func(ctx context.Context) error { // closeClients finds the leases that are left
		resp, err := r.etcd.Leases(ctx)
		if err != nil {
			return err
		}
		for _, l := range resp.Leases {
			if own[l.ID] {
				continue
			}
			if _, err := r.etcd.Revoke(ctx, l.ID); err != nil {
				return err
			}
		}
		return nil
	})
}
