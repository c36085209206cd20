package mix

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
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
	excused  atomic.Bool // a complaint was, since the cluster was slow
	crews    []*crew
	berths   []*berth
	draining chan struct{}
	giveUp   context.CancelFunc // cancels all waiters
	watchers []*watcher
}

func (r *round) complain(invariant, format string, args ...any) {
	r.report.violate(r.number, invariant, format, args...)
}

// complainSince complains, unless the cluster has been slow since that time.
func (r *round) complainSince(since time.Duration, invariant, format string, args ...any) {
	if r.pulse.wasSlow(since) {
		r.excused.Store(true)
		r.report.count(excused, 1)
		return
	}
	r.complain(invariant, format, args...)
}

// complainUnserved complains that a request of that time has failed. Only a slow commit since a TTL before the request
// excuses that, and only within the time in which a waiter must be served: that counts from the slow commit.
func (r *round) complainUnserved(asked time.Duration, format string, args ...any) {
	r.complainSince(max(asked-ttl, r.tape.Now()-served), "I7", format, args...)
}

// newRound starts the workers of all clients. ctx is the run's.
func (run *run) newRound(ctx context.Context, number int) *round {
	r := &round{run: run, number: number, names: roundNames(number), draining: make(chan struct{})}
	run.tape.begin(run.tb, number)
	run.tape.Record(history.Event{Kind: history.Note, Name: history.NoteTTL, Value: ttl.String()})
	seed := run.opts.Seed + uint64(number)<<16
	r.store = newStore(run.tb, run.tape, r.names, run.database, !run.opts.Unfenced)
	var err error
	r.out, err = newWriter(run.tape, r.store.addr(), seed)
	require.NoError(run.tb, err)
	r.pulse = run.startPulse(ctx)
	r.observe(ctx, seed)
	patience, giveUp := context.WithCancel(ctx)
	r.giveUp = giveUp
	for i, c := range run.clients {
		crew := &crew{
			name: c.name, log: run.tape, names: r.names, out: r.out,
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
	name  string
	token atomic.Int64 // of the leader that it sees; 0: none
	seen  atomic.Int64 // of the last leader that it has seen
	led   atomic.Int64 // of the last leader of all
	stop  context.CancelFunc
	done  chan struct{}
}

func (r *round) observe(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for _, name := range r.names.Elections {
		c := pick(rng, r.clients)
		ctx, stop := context.WithCancel(ctx)
		w := &watcher{name: c.name + "/observer of " + name, stop: stop, done: make(chan struct{})}
		r.watchers = append(r.watchers, w)
		go func() {
			defer close(w.done)
			for {
				err := w.observe(ctx, r.tape, c.etcd, name)
				if ctx.Err() != nil {
					return
				}
				if !forbidden(err) {
					r.complain("I8", "%s has ended: %v", w.name, err)
					return
				}
				// Without permission to read it gets an error and has to begin again.
				r.tape.Record(history.Event{Kind: history.Observe, Actor: w.name, Name: name, Outcome: history.Failed})
				sleep(ctx, 50*time.Millisecond)
			}
		}()
	}
}

func (w *watcher) observe(ctx context.Context, t *tape, etcd *clientv3.Client, name string) (err error) {
	for l, err := range election.Observe(ctx, etcd, name) {
		if err != nil {
			return err
		}
		w.token.Store(l.Revision)
		if l.Revision != 0 {
			w.seen.Store(l.Revision)
		}
		t.Record(history.Event{Kind: history.Observe, Actor: w.name, Name: name, Token: fence.Token(l.Revision)})
	}
	return nil
}

// settle ends the round after all faults are healed. It waits until every waiter is served, runs the peace, and checks
// that no key is left.
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
	r.awaitCrews(patience)
	r.report.longest(slowestServed, time.Since(healed))
	r.giveUp()
	processes.Wait()
	r.peace(ctx)
	bound := served
	left := r.leftKeys(ctx, roundPrefix(r.number), bound)
	if len(left) > 0 && r.pulse.wasSlow(r.tape.Now()-bound) {
		bound = patience
		left = r.leftKeys(ctx, roundPrefix(r.number), bound)
	}
	if len(left) > 0 {
		r.complain("I7", "%v after all locks were released, keys are left: %s", bound, strings.Join(left, ", "))
	}
	r.awaitObservers(ctx, served)
	r.out.close()
	catching, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := r.watch.catchUp(catching); err != nil {
		r.complain("end", "%v", err)
	}
	r.store.Close()
}

// awaitCrews waits until all workers have ended. The checkers decide whether they were served in time.
func (r *round) awaitCrews(bound time.Duration) {
	late := time.AfterFunc(bound, func() {
		r.complain("end", "workers are stuck %v after all faults were healed", bound)
		r.giveUp()
	})
	defer late.Stop()
	for _, c := range r.crews {
		c.wg.Wait()
	}
}

// awaitObservers waits until every observer has seen the last leader and that there is none now, and stops the observers.
func (r *round) awaitObservers(ctx context.Context, bound time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, w := range r.watchers {
		await(ctx, bound, func(context.Context) (bool, error) { return w.token.Load() == 0 && w.seen.Load() >= w.led.Load(), nil })
		if token, seen, led := w.token.Load(), w.seen.Load(), w.led.Load(); token != 0 || seen < led {
			r.complainSince(r.tape.Now()-bound, "I8", "%s still sees token %d, %v after all have resigned; the last leader that it has seen had token %d, the last of all %d",
				w.name, token, bound, seen, led)
		}
		w.stop()
		<-w.done
	}
}
