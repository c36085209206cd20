package mix

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// adopter is the number of the client whose sessions adopt leases that the client has granted itself.
const adopter = 1

// run is a run of the mix.
type run struct {
	opts      Options
	tape      *tape
	secured   *secured
	cluster   *etcdproc.Cluster
	etcd      *clientv3.Client   // straight to the members
	members   []*clientv3.Client // straight to one each
	scaffold  scaffold
	watch     *keyWatch
	endWatch  context.CancelFunc
	monitor   *monitor
	resources *resources
	database  *database
	clients   []*client
	nemesis   *nemesis
	slowest   time.Duration // longest time to serve all waiters after a round
	slow      int           // slow commits of a plain client after all faults were healed
	slowFor   time.Duration // the longest of them
	report    *Report
	heaps     []uint64 // after each round
	routines  []int    // after each round
}

// Run runs the mix and reports what it has found. When ctx ends, the present round is cut short and checked as usual.
// An error means that the run itself could not be carried out.
func Run(ctx context.Context, opts Options) (*Report, error) {
	opts, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	leaks := []goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreTopFunction(stuckStream)}
	r := &run{opts: opts, tape: newTape(opts.Dir), report: newReport(opts)}
	if err := r.mix(ctx); err != nil {
		return nil, err
	}
	known := stuck
	if slices.ContainsFunc(r.clients, func(c *client) bool { return c.hung }) {
		known = append(slices.Clone(stuck), unclosed...)
	}
	for _, f := range known {
		leaks = append(leaks, goleak.IgnoreAnyFunction(f))
	}
	if err := goleak.Find(leaks...); err != nil {
		r.report.violate(Violation{Invariant: "end", Text: "goroutines are left: " + err.Error()})
	}
	return r.report, nil
}

func (r *run) mix(ctx context.Context) (err error) {
	// When ctx ends, the present round is still finished: its requests use life.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	defer r.scaffold.clean()
	data := filepath.Join(r.opts.Dir, "data")
	if r.secured, err = newSecured(filepath.Join(data, "certificates")); err != nil {
		return err
	}
	if r.cluster, err = etcdproc.Start(ctx, data, 3, etcdproc.Options{Program: r.opts.Server, Settings: r.secured.settings()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.cluster.Kill()) }()
	if err := r.secured.enable(ctx, r.cluster.Endpoints(), r.users()); err != nil {
		return err
	}
	err = r.scaffold.try(func() {
		r.etcd = etcdtest.NewClient(&r.scaffold, r.cluster.Endpoints(), r.secured.root.option())
		for _, e := range r.cluster.Endpoints() {
			r.members = append(r.members, etcdtest.NewClient(&r.scaffold, []string{e}, r.secured.root.option()))
		}
	})
	if err != nil {
		return err
	}
	r.watch, r.monitor = newKeyWatch(r.etcd, r.tape), newMonitor(r.etcd, r.cluster.Endpoints(), r.secured.root.tls())
	watching, endWatch := context.WithCancel(life)
	r.endWatch = endWatch
	wg.Go(func() { r.watch.run(watching) })
	wg.Go(func() { r.monitor.run(life) })
	wg.Go(func() { r.heartbeat(life) })
	r.resources = serveResources()
	defer r.resources.Close()
	if r.database, err = openDatabase(ctx, r.opts.Dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.database.close()) }()
	defer r.closeClients(life)
	for i := range r.opts.Clients {
		id, err := r.secured.newIdentity(userOf(ofClient, i))
		if err != nil {
			return err
		}
		c, err := newClient(ctx, r.tape, id, r.cluster.Endpoints(), r.opts.TTL, i == adopter)
		if err != nil {
			return err
		}
		r.clients = append(r.clients, c)
	}
	r.nemesis = &nemesis{
		seed: r.opts.Seed, ttl: r.opts.TTL, tape: r.tape, cluster: r.cluster, etcd: r.etcd, watch: r.watch, monitor: r.monitor,
		clients: r.clients, secured: r.secured, slowDisks: r.opts.Server != "", life: life,
	}
	r.nemesis.prepare()
	for number := 1; ctx.Err() == nil && r.goesOn(number); number++ {
		if err := r.round(ctx, life, number); err != nil {
			return err
		}
	}
	if r.opts.First && len(r.report.Violations) > 0 {
		return nil
	}
	if r.opts.Peer > 0 && ctx.Err() == nil {
		if r.report.Peer, err = r.peer(ctx, life); err != nil {
			return err
		}
	}
	if r.opts.Restore && ctx.Err() == nil {
		return r.restore(life)
	}
	return nil
}

// users returns the users of all clients.
func (r *run) users() []string {
	var users []string
	for kind, all := range map[string]int{ofClient: r.opts.Clients, ofHolder: r.opts.Holders, ofNewcomer: newcomers} {
		for n := range all {
			users = append(users, userOf(kind, n))
		}
	}
	return users
}

// goesOn reports whether to start the round with that number.
func (r *run) goesOn(number int) bool {
	now := r.tape.Now()
	switch {
	case r.opts.First && len(r.report.Violations) > 0:
		return false
	case number == 1 || now < r.opts.Duration:
		return true
	case now > 2*r.opts.Duration || r.opts.Floors == nil || len(r.report.Violations) > 0:
		return false
	}
	reached := *r.report
	reached.Counts.Restores = math.MaxInt // the restore comes after the rounds
	return len(reached.Missed(r.opts.Floors)) > 0
}

// round runs one round and checks its history.
func (r *run) round(ctx, life context.Context, number int) error {
	round, err := r.newRound(life, number)
	if err != nil {
		return err
	}
	raging, cancel := context.WithTimeout(ctx, r.opts.Round)
	r.nemesis.rage(raging, round, faultClasses())
	cancel()
	if r.opts.Saboteur.Litter {
		if _, err := r.etcd.Put(life, round.names.Cold[0]+"/litter", ""); err != nil {
			return err
		}
	}
	round.settle(life)
	r.tape.Record(history.Event{Kind: history.Note, Name: history.NoteEnd})
	path, err := r.tape.end()
	if err != nil {
		return err
	}
	if err := r.watch.err(); err != nil {
		return err
	}
	return r.judge(life, round, path)
}

// judge checks the history of a round and adds what it finds to the report.
func (r *run) judge(ctx context.Context, round *round, path string) error {
	events, err := history.ReadFile(path)
	if err != nil {
		return err
	}
	began := time.Now()
	verdict := check.Check(events)
	for _, v := range verdict.Violations {
		round.violations = append(round.violations, Violation{
			Invariant: v.Invariant, Round: round.number, Text: fmt.Sprintf("%s: %s (found by %s)", v.Name, v.Text, v.Checker),
		})
	}
	for _, m := range verdict.Malformed {
		round.complain("history", "%s", m)
	}
	r.checkMemory(round)
	for _, v := range round.violations {
		v.History = path
		r.report.violate(v)
	}
	r.update(ctx, round, len(events), verdict)
	_, _ = fmt.Fprintf(r.opts.Progress, "%s, checked in %v\n", r.report.line(), time.Since(began).Round(time.Millisecond))
	return r.keep(path, len(round.violations) == 0)
}

// keep deletes a history if it is clean.
func (r *run) keep(path string, clean bool) error {
	if clean && !r.opts.KeepAll {
		return os.Remove(path)
	}
	r.report.Histories = append(r.report.Histories, path)
	return nil
}

// update brings the report up to the end of a round.
func (r *run) update(ctx context.Context, round *round, events int, verdict check.Report) {
	r.monitor.look(ctx, true)
	c := r.tape.tally.counts()
	c.LeaderChanges, c.Expiries = r.monitor.counts()
	r.report.Faults, c.Faults = r.nemesis.strikes()
	for _, client := range r.clients {
		c.StaleAuth += client.id.refused.of(rpctypes.ErrInvalidAuthToken)
	}
	c.RevokedEarly = r.nemesis.revokedEarly()
	c.Rounds, c.Events = round.number, r.report.Counts.Events+events
	c.ControlStale = r.report.Counts.ControlStale + int(verdict.Count("  stale"))
	c.StaleByReader = r.report.Counts.StaleByReader + int(verdict.Count("  of writers, by a reader's token"))
	c.SlowestToServe, c.SlowCommits, c.LongestCommit, c.Heap = r.slowest, r.slow, r.slowFor, r.heaps[len(r.heaps)-1]
	r.report.Counts, r.report.Duration = c, r.tape.Now()
}

// checkMemory compares heap and goroutines after a round, when no worker holds or waits, with those after the third
// round.
func (r *run) checkMemory(round *round) {
	const first, room, most = 3, 64 << 20, 300
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.heaps = append(r.heaps, m.HeapAlloc)
	r.routines = append(r.routines, runtime.NumGoroutine())
	if n := len(r.routines); n > first && r.routines[n-1] > 2*r.routines[first-1]+most {
		round.complain("memory", "%d goroutines, after %d in round %d", r.routines[n-1], r.routines[first-1], first)
	}
	if len(r.heaps) > first && m.HeapAlloc > 2*r.heaps[first-1]+room {
		round.complain("memory", "%d MiB on the heap, after %d in round %d", m.HeapAlloc>>20, r.heaps[first-1]>>20, first)
	}
}

// closeClients closes all clients and then looks for keys and leases that are left on the servers.
func (r *run) closeClients(ctx context.Context) {
	bound := served(r.opts.TTL)
	for _, c := range r.clients {
		closing, cancel := context.WithTimeout(ctx, bound)
		if err := c.close(closing); err != nil {
			r.report.violate(Violation{Invariant: "end", Text: err.Error()})
		}
		cancel()
	}
	if left := r.leftKeys(ctx, "", bound); len(left) > 0 {
		r.report.violate(Violation{Invariant: "I7", Text: fmt.Sprintf("keys are left after Close: %q", left)})
	}
	if left := r.leftLeases(ctx, bound); left > 0 {
		r.report.violate(Violation{Invariant: "end", Text: fmt.Sprintf("%d leases are left %v after Close", left, bound)})
	}
}

// leftKeys waits until there is no key with the prefix, and returns those that are left when the bound is over.
func (r *run) leftKeys(ctx context.Context, prefix string, bound time.Duration) []string {
	var left []string
	await(ctx, bound, func(ctx context.Context) (bool, error) {
		resp, err := r.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			if left == nil { // otherwise the keys of the last answer say more
				left = []string{err.Error()}
			}
			return false, err
		}
		left = nil
		for _, kv := range resp.Kvs {
			left = append(left, string(kv.Key))
		}
		return len(left) == 0, nil
	})
	return left
}

// leftLeases does the same for leases, and returns how many are left.
func (r *run) leftLeases(ctx context.Context, bound time.Duration) int {
	left := 0
	await(ctx, bound, func(ctx context.Context) (bool, error) {
		resp, err := r.etcd.Leases(ctx)
		if err != nil {
			return false, err
		}
		left = len(resp.Leases)
		return left == 0, nil
	})
	return left
}

// await calls ask until it returns true or the bound has passed.
func await(ctx context.Context, bound time.Duration, ask func(context.Context) (bool, error)) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	_ = insist(ctx, func(ctx context.Context) error { // the caller uses what ask has found
		yes, err := ask(ctx)
		if err == nil && !yes {
			err = errors.New("not yet")
		}
		return err
	})
}

// heartbeat records when this process did not run for a while. The checkers need that, since the library is not to
// blame for an event that is late then.
func (r *run) heartbeat(ctx context.Context) {
	const beat, noted = 50 * time.Millisecond, 250 * time.Millisecond
	last := time.Now()
	for ctx.Err() == nil {
		sleep(ctx, beat)
		now := time.Now()
		if gap := now.Sub(last); gap > noted {
			r.tape.tally.stalled(gap)
			r.tape.Record(history.Event{Kind: history.Note, Name: history.NoteStall, Value: gap.String()})
		}
		last = now
	}
}
