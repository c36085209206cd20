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

// restoration is the last part of a run: the cluster is restored from a snapshot while clients work. Package check
// cannot check its history, since revisions start again in it.
type restoration struct {
	run     *run
	log     record
	out     *writer
	store   *store
	rush    []string // names that all parties want
	parties []*party
	late    []*client     // clients that came after the restore
	gap     int64         // revisions after the snapshot: so many that no token passes a mark before the era is raised
	killed  time.Duration // when the members were killed

	mu         sync.Mutex // guards the fields below
	back       bool       // revisions are going back, or have gone back
	live       map[hold]*tenant
	ended      []*tenant   // of those that were live at the restore: the tenants that a loss has ended
	highest    fence.Token // the highest token that was granted before the era was raised
	report     Restored
	violations []string
}

// witnesses is the number of witnesses of each party.
const witnesses = 4

// newcomers is the number of clients that come after the restore.
const newcomers = 2

// restore runs the restoration.
func (run *run) restore(life context.Context) (err error) {
	run.endWatch() // revisions start again, so it would miss changes
	ctx, cancel := context.WithTimeout(life, 3*time.Minute)
	defer cancel()
	// Before a member serves a request with an auth token, it waits for the revision at which the token was given out.
	// After a restore that revision may never come, so clients with a token would learn nothing.
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
		// Some parties have leases that outlive the time without a cluster and are seldom renewed. The quiet one learns
		// of the restore from a renewal, the others from an acquisition before that.
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

// pass runs all steps, from the work before the restore to the work after it.
func (r *restoration) pass(ctx context.Context) error {
	working, stop := context.WithCancel(ctx)
	var old, unaware, ends sync.WaitGroup
	defer old.Wait()
	defer ends.Wait()
	defer unaware.Wait()
	defer stop()
	join := func(first int) error { // half of the parties: the snapshot has the leases of the first half only
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
				old.Go(func() { w.untilRestored(working) })
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
	saved, err := presentRevision(ctx, r.run.etcd) // not below the snapshot's revision
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
		quiet.witness(1).turn(ctx, r.rush[0]) // it must have seen a revision that the restore takes back
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
		r.wrong("not every witness got an error that reports the restore, %v after the cluster was back", r.patience())
	}
	r.closeSessions(ctx, r.parties) // their keys have come back and block others
	if !r.inTime(&unaware, stop) {
		r.wrong("newcomers were not served in %v", r.patience())
	}
	r.closeSessions(ctx, late)
	r.parties = append(r.parties, late...)
	if err := r.raiseEra(ctx); err != nil {
		return err
	}
	r.writeStale() //nolint:contextcheck // a writer's requests have a timeout
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
		bound := t.party.ttl + 3*time.Second // the deadline, or a renewal that finds the restore
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
			continue // it was released
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

// raiseEra opens a session of each party in the next era, and waits until all witnesses are served.
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

// writeStale writes with the tokens of handles that the restore has ended, if the name has had a later holder.
func (r *restoration) writeStale() {
	marks := r.store.guard.Marks()
	for _, t := range r.ended {
		if marks[t.name] > t.Token() {
			_, verb := verbs(t.hold)
			_, _, _ = r.out.send(t.party.name+"/asleep", t.name, 0, t.Token(), verb, "") // sift finds writes that were accepted
		}
	}
}

// judge checks the history and adds the results to the report.
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

// patience is the bound of each step: a lease of four TTLs may come back and expire, since nobody renews it.
func (r *restoration) patience() time.Duration { return served(4 * r.run.opts.TTL) }

// inTime waits for workers, and stops them after the patience. It reports whether they ended before that.
func (r *restoration) inTime(workers *sync.WaitGroup, stop func()) bool {
	late := time.AfterFunc(r.patience(), stop)
	workers.Wait()
	return late.Stop()
}
