package mix

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// round is a period of faults and the peace after it.
type round struct {
	*run
	number   int
	names    names
	store    *store
	out      *writer
	pulse    *pulse
	before   int // violations before it
	crews    []*crew
	berths   []*berth
	draining chan struct{}
	giveUp   context.CancelFunc // cancels all waiters
	watchers []*watcher
	watching sync.WaitGroup
	unwatch  context.CancelFunc // ends all watchers
}

func (r *round) complain(invariant, format string, args ...any) {
	r.report.violate(r.number, invariant, format, args...)
}

// begin begins a history and opens the resources.
func (run *run) begin(number int) *round {
	r := &round{run: run, number: number, names: roundNames(number), before: run.report.violations(), draining: make(chan struct{})}
	run.tape.begin(run.tb, number)
	unfenced := ""
	if run.opts.Unfenced && number == 1 {
		unfenced = r.names.Hot[0]
	}
	r.store = newStore(run.tb, run.tape.Recorder, r.names, run.database, unfenced)
	var err error
	r.out, err = newWriter(run.tape.Recorder, r.store.addr(), run.opts.Seed+uint64(number))
	require.NoError(run.tb, err)
	return r
}

// end checks the history, which is deleted if it is clean.
func (r *round) end() check.Report {
	verdict := check.Check(r.tape.end(r.tb))
	r.report.judge(r.number, verdict)
	if r.report.violations() == r.before && !r.opts.KeepAll {
		require.NoError(r.tb, os.Remove(r.tape.file.Name()))
	} else {
		r.report.Histories = append(r.report.Histories, r.tape.file.Name())
	}
	return verdict
}

// newRound starts the workers of all clients. ctx is the run's.
func (run *run) newRound(ctx context.Context, number int) *round {
	r, seed := run.begin(number), run.opts.Seed+uint64(number)<<16
	run.tape.Record(history.Event{Kind: history.Note, Name: history.NoteTTL, Value: ttl.String()})
	r.pulse = run.startPulse(ctx)
	watching, unwatch := context.WithCancel(ctx)
	r.unwatch = unwatch
	r.observe(watching, seed)
	patience, giveUp := context.WithCancel(ctx)
	r.giveUp = giveUp
	for i, c := range run.clients {
		crew := &crew{
			name: c.name, log: run.tape.Recorder, names: r.names, out: r.out,
			session: c.current, renew: func() { _ = c.replace(patience) }, // an error means that patience has ended
			draining: r.draining, patience: patience,
		}
		crew.start(run.opts.workers(), seed+uint64(i))
		r.crews = append(r.crews, crew)
	}
	for i, l := range run.links {
		b := &berth{link: l, round: r, name: fmt.Sprintf("holder %d.%d", i, number), user: userOf(ofHolder, i)}
		require.NoError(run.tb, b.launch())
		r.berths = append(r.berths, b)
	}
	return r
}

// watcher is an observer of one election.
type watcher struct {
	name, election string

	token atomic.Int64 // of the leader that it sees; 0: none; -1: it has to begin again
	seen  atomic.Int64 // of the last leader that it has seen
}

func (r *round) observe(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for _, name := range r.names.Elections {
		c := pick(rng, r.clients)
		w := &watcher{name: c.name + "/observer of " + name, election: name}
		r.watchers = append(r.watchers, w)
		r.watching.Go(func() {
			for {
				err := w.observe(ctx, r.tape, c.etcd)
				if ctx.Err() != nil {
					return
				}
				if !forbidden(err) {
					r.complain("I8", "%s has ended: %v", w.name, err)
					return
				}
				// Without permission to read it gets an error and has to begin again.
				w.token.Store(-1)
				r.tape.Record(history.Event{Kind: history.Observe, Actor: w.name, Name: name, Outcome: history.Failed})
				sleep(ctx, 50*time.Millisecond)
			}
		})
	}
}

func (w *watcher) observe(ctx context.Context, t *tape, etcd *clientv3.Client) (err error) {
	for l, err := range election.Observe(ctx, etcd, w.election) {
		if err != nil {
			return err
		}
		w.token.Store(l.Revision)
		if l.Revision != 0 {
			w.seen.Store(l.Revision)
		}
		t.Record(history.Event{Kind: history.Observe, Actor: w.name, Name: w.election, Token: fence.Token(l.Revision)})
	}
	return nil
}

// settle ends the round after all faults are healed. It waits until every waiter is served, runs the peace, and waits
// until no key is left and the observers have seen everything. The checkers decide whether that was so.
func (r *round) settle(ctx context.Context) {
	r.pulse.end() // a commit that a fault has lost must not excuse anything after the fault
	r.pulse = r.startPulse(ctx)
	defer r.pulse.end()
	healed := time.Now()
	r.tape.Record(history.Event{Kind: history.Note, Name: history.NoteHealed})
	close(r.draining)
	var processes sync.WaitGroup
	for _, b := range r.berths {
		processes.Go(func() {
			if err := b.drain(2 * patience); err != nil {
				r.complain("end", "%v", err)
			}
		})
	}
	for _, c := range r.crews {
		r.await(&c.wg, r.giveUp, "end", "the workers of "+c.name+" have not ended")
	}
	r.report.most(slowestServed, int(time.Since(healed).Milliseconds()))
	r.giveUp()
	processes.Wait()
	r.peace(ctx)
	r.eventually(ctx, func(ctx context.Context) (bool, error) {
		left, err := r.leftKeys(ctx, roundPrefix(r.number))
		return len(left) == 0, err
	})
	for _, w := range r.watchers {
		r.eventually(ctx, func(context.Context) (bool, error) { // it has seen the last leader, and that there is none now
			return w.token.Load() == 0 && w.seen.Load() >= r.tape.lastLed(w.election), nil
		})
	}
	r.unwatch()
	r.watching.Wait()
	r.out.close()
	catching, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := r.watch.catchUp(catching); err != nil {
		r.complain("end", "%v", err)
	}
	r.store.Close()
}

// await waits for workers. After the patience it stops them and complains. The checkers decide whether they were served
// in time.
func (r *round) await(workers *sync.WaitGroup, stop func(), invariant, otherwise string) {
	late := time.AfterFunc(patience, stop)
	workers.Wait()
	if !late.Stop() {
		r.complain(invariant, "%s in %v", otherwise, patience)
	}
}

// eventually waits until done, for at most the time in which a waiter must be served. While the cluster is slow, that time
// begins again.
func (r *round) eventually(ctx context.Context, done func(context.Context) (bool, error)) {
	began := r.tape.Now()
	await(ctx, patience, func(ctx context.Context) (bool, error) {
		yes, err := done(ctx)
		now := r.tape.Now()
		return yes || now-began > served && !r.pulse.wasSlow(now-served), err
	})
}

// names are the names that a round locks, campaigns for and writes to.
type names struct {
	Hot, Cold, Elections []string

	Paths     []string // of a tree, the root first
	Semaphore string
}

// permits is the number of permits of the semaphore.
const permits = 2

// namesPrefix is the prefix of all names, and clients have permission on nothing else. It has no slash, so that the
// names of two rounds are not in one tree.
const namesPrefix = "mix-"

// roundPrefix is the prefix of the names of a round.
func roundPrefix(round int) string { return fmt.Sprintf("%s%05d-", namesPrefix, round) }

func roundNames(round int) names {
	all := func(names ...string) []string {
		for i, name := range names {
			names[i] = roundPrefix(round) + name
		}
		return names
	}
	return names{
		Hot:       all("hot", "hot/below", "hot2"), // a lock and a lock below it are independent
		Cold:      all("cold0", "cold1", "cold2", "cold3", "cold4", "cold5", "cold6", "cold7", "cold8"),
		Elections: all("lead0", "lead1", "lead2"),
		Paths:     all("tree", "tree/a", "tree/b", "tree/a/c"), Semaphore: roundPrefix(round) + "many",
	}
}

// preferring is the election in which candidates have priorities and leaders transfer their leadership.
func (n names) preferring() string { return n.Elections[2] }

// inSQL reports whether the resource of that name is in a database: a register.
func (n names) inSQL(name string) bool { return name == n.Cold[0] }

// quiet are the locks that sleepwalkers take as readers and as writers: of a register, a set and a counter.
func (n names) quiet() []string { return n.Cold[1:4] }

// shared are the locks that readers take.
func (n names) shared() []string {
	return append([]string{n.Hot[0], n.Hot[2], n.Cold[0]}, n.quiet()...)
}

// sets are the locks that are also taken together.
func (n names) sets() []string { return append([]string{n.Cold[3]}, n.Cold[6:9]...) }

// own returns a name that no crew uses and that has no resource.
func (n names) own(whose string) string { return n.Hot[0] + "-own-" + whose }

// all are the names that have a resource. The semaphore gets one slot too many, so that the history shows a permit too
// many.
func (n names) all() []string {
	all := append(n.locks(), n.Elections...)
	for _, path := range n.Paths {
		all = append(all, nodeOf(path))
	}
	all = append(all, n.Semaphore)
	for slot := range permits + 1 {
		all = append(all, fmt.Sprintf("%s/~slot/%d", n.Semaphore, slot))
	}
	return all
}

// locks are those that are no elections, and of the plain kind.
func (n names) locks() []string { return slices.Concat(n.Hot, n.Cold) }

// update returns the verb that updates a name's resource: a register, a set or a counter. Each group of names has all.
func (n names) update(name string) history.Verb {
	verbs := []history.Verb{history.Write, history.Add, history.Increment}
	for _, group := range [][]string{n.Hot, n.Cold, n.Elections} {
		if i := slices.Index(group, name); i >= 0 {
			return verbs[i%len(verbs)]
		}
	}
	return history.Write
}
