package mix

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// restoration is the last part of a run: the cluster is taken back to a snapshot while clients work. It has a history of
// its own, which package check is not for: revisions start again in it.
type restoration struct {
	run     *run
	log     record
	out     *writer
	store   *store
	rush    []string // names that all parties want
	parties []*party
	late    []*client // that came after the restore
	gap     int64     // of revisions; more than are used before the era is raised, so that no mark is passed by then
	killed  time.Duration

	mu         sync.Mutex // guards the fields below
	back       bool       // revisions go back now, or have gone
	live       map[hold]*tenant
	ended      []*tenant   // by a loss, of those that were live at the restore
	highest    fence.Token // that was given out before the era was raised
	report     Restored
	violations []string
}

// witnesses of each party.
const witnesses = 4

// newcomers are clients that come after the restore.
const newcomers = 2

// restore takes the cluster back.
func (run *run) restore(life context.Context) (err error) {
	run.endWatch() // it would not find its revisions again
	ctx, cancel := context.WithTimeout(life, 3*time.Minute)
	defer cancel()
	// A member that is asked with an auth token waits until it has applied what it had when it gave out the token. After a
	// restore that can take for ever, so clients that were there before would be told nothing.
	if _, err := run.etcd.AuthDisable(ctx); err != nil {
		return fmt.Errorf("mix: turn authentication off before the restore: %w", err)
	}
	number := run.report.Counts.Rounds + 1
	r := &restoration{run: run, log: run.tape, live: map[hold]*tenant{}}
	if err := run.tape.begin(number); err != nil {
		return err
	}
	n := roundNames(number)
	r.rush = append(append(r.rush, n.Hot...), n.Elections...)
	if r.store, err = newStore(run.tape, n, nil, run.opts.Saboteur); err != nil {
		return err
	}
	run.resources.store.Store(r.store)
	defer run.resources.store.Store(nil)
	if r.out, err = newWriter(run.tape, run.resources.addr(), run.opts.Seed); err != nil {
		return err
	}
	defer r.out.close()
	for i, c := range run.clients {
		// Some have leases that outlive the time without a cluster and are seldom renewed: one is told by a renewal, the
		// others by what they ask for before.
		p := &party{
			restoration: r, name: c.name, etcd: c.etcd, ttl: run.opts.TTL, tokens: map[string]fence.Token{},
			quiet: i == 0 && len(run.clients) > 1,
		}
		if i%8 < 3 {
			p.ttl *= 4
		}
		if i < len(n.Cold) {
			p.stays = n.Cold[i]
		}
		r.parties = append(r.parties, p)
	}
	r.gap = int64(10 * witnesses * (len(r.parties) + newcomers))
	began := time.Now()
	err = r.pass(ctx)
	r.leave(life)
	if err != nil {
		return err
	}
	r.report.Duration = time.Since(began)
	return r.judge(number)
}

// pass is the restore, from the work before to the work after.
func (r *restoration) pass(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	var old, unaware, ends sync.WaitGroup
	defer old.Wait()
	defer ends.Wait()
	defer unaware.Wait()
	defer stop()
	join := func(first int) error { // every other party: the leases of those that come after the snapshot are not in it
		for i := first; i < len(r.parties); i += 2 {
			p := r.parties[i]
			if err := p.open(ctx, 0); err != nil {
				return err
			}
			for j := range witnesses {
				if p.quiet && j > 0 {
					break
				}
				w := p.witness(j)
				old.Go(func() { w.untilTold(working) })
			}
		}
		return nil
	}
	if err := join(0); err != nil {
		return err
	}
	if err := r.ready(ctx, 0); err != nil {
		return err
	}
	file := filepath.Join(r.run.opts.Dir, "data", "snapshot.db")
	if err := etcdproc.Save(ctx, r.run.etcd, file); err != nil {
		return err
	}
	saved, err := presentRevision(ctx, r.run.etcd) // no lower than the snapshot's
	if err != nil {
		return err
	}
	if err := join(1); err != nil {
		return err
	}
	if err := r.ready(ctx, saved+r.gap); err != nil {
		return err
	}
	for quiet := r.parties[0]; !r.has(quiet, saved+r.gap) && ctx.Err() == nil; {
		quiet.witness(1).turn(ctx, r.rush[0]) // so that there is a revision that it has seen
	}
	live, err := r.takeBack(ctx, file)
	if err != nil {
		return err
	}
	ends.Go(func() { r.awaitEnds(ctx, live) })
	late, err := r.newcomers(ctx)
	if err != nil {
		return err
	}
	for _, p := range late {
		for j := range witnesses {
			w := p.witness(j)
			unaware.Go(func() { w.unaware(working) })
		}
	}
	ends.Wait()
	if !r.inTime(&old, stop) {
		r.wrong("not everybody was told of the restore, %v after the cluster was back", r.patience())
	}
	r.closeSessions(ctx, r.parties) // their keys have come back, and are in the way of others
	if !r.inTime(&unaware, stop) {
		r.wrong("newcomers were not served in %v", r.patience())
	}
	r.closeSessions(ctx, late)
	r.parties = append(r.parties, late...)
	if err := r.raiseEra(ctx); err != nil {
		return err
	}
	r.writeStale() //nolint:contextcheck // requests of a writer end by themselves
	return nil
}

// takeBack restores the cluster and returns the handles that were live when its members were killed.
func (r *restoration) takeBack(ctx context.Context, file string) (live []*tenant, err error) {
	before, err := presentRevision(ctx, r.run.etcd)
	if err != nil {
		return nil, err
	}
	fault := history.Event{Kind: history.Fault, Fault: r.log.ID(), Name: "restored from a snapshot", Target: "cluster"}
	r.log.Record(fault)
	r.killed = r.log.Now()
	r.mu.Lock()
	r.back = true
	for _, t := range r.live {
		if t.Err() == nil {
			live = append(live, t)
		}
	}
	r.mu.Unlock()
	if err := r.run.cluster.Restore(ctx, file, 0); err != nil {
		return nil, err
	}
	r.report.Down, r.report.Handles = r.log.Now()-r.killed, len(live)
	fault.Kind = history.Heal
	r.log.Record(fault)
	if r.run.opts.Saboteur.ForgetMarks {
		forgetful, err := newStore(r.run.tape, roundNames(r.run.report.Counts.Rounds+1), nil, Saboteur{})
		if err != nil {
			return nil, err
		}
		r.run.resources.store.Store(forgetful)
	}
	after, err := presentRevision(ctx, r.run.etcd)
	r.report.Back = before - after
	return live, err
}

// awaitEnds waits for the end of handles that were live when the members were killed.
func (r *restoration) awaitEnds(ctx context.Context, live []*tenant) {
	back := time.Now()
	for _, t := range live {
		bound := t.party.ttl + 3*time.Second // the deadline, or a renewal that tells
		select {
		case <-ctx.Done():
			return
		case <-t.Context().Done():
		case <-time.After(time.Until(back.Add(bound))):
			r.wrong("a handle of %s for %s is live %v after the cluster was back", t.party.name, t.name, bound)
			continue
		}
		cause := context.Cause(t.Context()) //nolint:contextcheck // the handle's
		if !errors.Is(cause, lease.ErrLost) {
			continue // it was let go
		}
		r.mu.Lock()
		r.report.Ended++
		if errors.Is(cause, lease.ErrRestored) {
			r.report.EndedTold++
		}
		r.ended = append(r.ended, t)
		r.mu.Unlock()
	}
	r.report.LastEnded = time.Since(back)
}

// raiseEra opens new sessions of all parties in the next era and waits until they are served.
func (r *restoration) raiseEra(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, p := range r.parties {
		if err := p.open(ctx, nextEra); err != nil {
			return err
		}
		for j := range witnesses {
			w := p.witness(j)
			wg.Go(func() {
				if !w.recover(ctx) {
					r.wrong("%s was not served in the next era in %v", w.worker.name, r.patience())
				}
			})
		}
	}
	wg.Wait()
	return nil
}

// writeStale writes with the tokens of handles that the restore has ended, where the name has had a later holder.
func (r *restoration) writeStale() {
	marks := r.store.guard.Marks()
	for _, t := range r.ended {
		if marks[t.name] > t.Token() {
			_, verb := verbs(t.hold)
			_, _, _ = r.out.send(t.party.name+"/asleep", t.name, 0, t.Token(), verb, "") // the history tells
		}
	}
}

// judge brings the report up to date.
func (r *restoration) judge(number int) error {
	path, err := r.run.tape.end()
	if err != nil {
		return err
	}
	events, err := history.ReadFile(path)
	if err != nil {
		return err
	}
	for _, text := range append(r.report.sift(events, r.killed), r.violations...) {
		r.run.report.violate(Violation{Invariant: "I9", Round: number, Text: text, History: path})
	}
	r.run.report.Restored = &r.report
	if r.report.met() {
		r.run.report.Counts.Restores++
	}
	return r.run.keep(path, r.report.Lower == 0 && len(r.violations) == 0)
}

func (r *restoration) wrong(format string, args ...any) fate {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
	return wronged
}

// patience bounds each step: the restore may bring back the longest lease, which nobody renews.
func (r *restoration) patience() time.Duration { return served(4 * r.run.opts.TTL) }

// inTime waits for workers, and stops them when the patience is over. It reports whether they ended by themselves.
func (r *restoration) inTime(workers *sync.WaitGroup, stop func()) bool {
	late := time.AfterFunc(r.patience(), stop)
	workers.Wait()
	return late.Stop()
}
