package mix

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// round is a period of faults and the peace after it.
type round struct {
	run      *run
	number   int
	names    names
	out      *writer
	pulse    *pulse
	crews    []*crew
	berths   []*berth
	draining chan struct{}
	giveUp   context.CancelFunc // cancels all waiters
	watchers []*watcher

	mu         sync.Mutex // guards the field below
	violations []Violation
}

func (r *round) complain(invariant, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, Violation{Invariant: invariant, Round: r.number, Text: fmt.Sprintf(format, args...)})
}

// complainSince complains that a request of that time was not served, unless the cluster has been slow since a TTL
// before it.
func (r *round) complainSince(asked time.Duration, invariant, format string, args ...any) {
	if n, _ := r.pulse.slow(asked - r.run.opts.TTL); n == 0 {
		r.complain(invariant, format, args...)
	}
}

// newRound starts the workers of all clients. ctx is the run's.
func (run *run) newRound(ctx context.Context, number int) (*round, error) {
	r := &round{run: run, number: number, names: roundNames(number), draining: make(chan struct{})}
	if err := run.tape.begin(number); err != nil {
		return nil, err
	}
	run.tape.Record(history.Event{Kind: history.Note, Name: history.NoteTTL, Value: run.opts.TTL.String()})
	s, err := newStore(run.tape, r.names, run.database, run.opts.Saboteur)
	if err != nil {
		return nil, err
	}
	run.resources.store.Store(s)
	seed := run.opts.Seed + uint64(number)<<16
	if r.out, err = newWriter(run.tape, run.resources.addr(), seed); err != nil {
		return nil, err
	}
	r.pulse = run.startPulse(ctx)
	r.observe(ctx, seed)
	patience, giveUp := context.WithCancel(ctx)
	r.giveUp = giveUp
	for i, c := range run.clients {
		crew := &crew{
			name: c.name, log: run.tape, names: r.names, out: r.out, ttl: run.opts.TTL, saboteur: run.opts.Saboteur,
			session: c.current, renew: func() { _ = c.replace(patience) }, // an error means that patience has ended
			draining: r.draining, patience: patience,
		}
		crew.start(run.opts.Workers, seed+uint64(i))
		r.crews = append(r.crews, crew)
	}
	for i := range run.opts.Holders {
		l, err := newLink(run.cluster.Endpoints()) //nolint:contextcheck // it outlives the call
		if err != nil {
			r.settle(ctx)
			return nil, err
		}
		b := &berth{round: r, name: fmt.Sprintf("holder %d.%d", i, number), user: userOf(ofHolder, i), link: l}
		if err := b.launch(); err != nil {
			l.close()
			r.settle(ctx)
			return nil, err
		}
		r.berths = append(r.berths, b)
	}
	return r, nil
}

// watcher is an observer of one election.
type watcher struct {
	name string
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex // guards the fields below
	token fence.Token
	err   error
}

func (r *round) observe(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for _, name := range r.names.Elections {
		c := pick(rng, r.run.clients)
		ctx, stop := context.WithCancel(ctx)
		w := &watcher{name: c.name + "/observer of " + name, stop: stop, done: make(chan struct{})}
		r.watchers = append(r.watchers, w)
		go func() {
			defer close(w.done)
			// An observer without permission to read gets an error and has to begin again.
			for w.observe(ctx, r.run.tape, c.etcd, name) {
				r.run.tape.Record(history.Event{Kind: history.Observe, Actor: w.name, Name: name, Outcome: history.Failed})
				sleep(ctx, 50*time.Millisecond)
			}
		}()
	}
}

// observe reports whether the observation has ended because the members refused permission.
func (w *watcher) observe(ctx context.Context, t *tape, etcd *clientv3.Client, name string) bool {
	for l, err := range election.Observe(ctx, etcd, name) {
		if forbidden(err) {
			return true
		}
		if err == nil {
			t.Record(history.Event{Kind: history.Observe, Actor: w.name, Name: name, Token: fence.Token(l.Revision)})
		}
		w.see(fence.Token(l.Revision), err)
	}
	return false
}

func (w *watcher) see(t fence.Token, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token, w.err = t, err
}

func (w *watcher) state() (fence.Token, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.token, w.err
}

// settle ends the round after all faults are healed. It waits until every waiter is served, runs the peace, and checks
// that no key is left.
func (r *round) settle(ctx context.Context) {
	bound := served(r.run.opts.TTL)
	r.pulse.end() // a commit that a fault has lost must not excuse anything after the fault
	r.pulse = r.run.startPulse(ctx)
	defer r.pulse.end()
	healed, began := time.Now(), r.run.tape.Now()
	close(r.draining)
	var processes sync.WaitGroup
	for _, b := range r.berths {
		processes.Go(func() {
			defer b.link.close()
			if err := b.holder.drain(3 * bound); err != nil {
				r.complain("end", "%v", err)
			}
		})
	}
	r.awaitServed(bound)
	r.run.slowest = max(r.run.slowest, time.Since(healed))
	r.awaitCrews(3 * bound)
	r.giveUp()
	processes.Wait()
	r.peace(ctx)
	if left := r.run.leftKeys(ctx, roundPrefix(r.number), bound); len(left) > 0 {
		r.complain("I7", "%v after all locks were released, keys are left: %s", bound, strings.Join(left, ", "))
	}
	r.awaitObservers(ctx, bound)
	r.out.close()
	catching, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := r.run.watch.catchUp(catching); err != nil {
		r.complain("end", "%v", err)
	}
	r.run.resources.store.Store(nil)
	n, longest := r.pulse.slow(began)
	r.run.slow, r.run.slowFor = r.run.slow+n, max(r.run.slowFor, longest)
}

// awaitServed checks that every waiter is served within the bound, as I7 says.
func (r *round) awaitServed(bound time.Duration) {
	late := time.After(bound)
	for {
		waiters, changed := r.run.tape.tally.waiting()
		if len(waiters) == 0 {
			return
		}
		select {
		case <-changed:
		case <-late:
			defer r.giveUp() // the waiters give up, so that the run can end
			c := r.run.tape.tally.counts()
			r.complain("I7", "%v after all faults were healed, %d callers still wait: %s (until now this process has stalled %d times, for %v at most)",
				bound, len(waiters), strings.Join(waiters, "; "), c.Stalls, c.LongestStall)
			return
		}
	}
}

func (r *round) awaitCrews(bound time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, c := range r.crews {
			c.wg.Wait()
		}
	}()
	select {
	case <-done:
	case <-time.After(bound):
		r.complain("end", "workers are stuck %v after all faults were healed", bound)
		r.giveUp()
		<-done
	}
}

// awaitObservers waits until every observer sees that there is no leader, and stops the observers.
func (r *round) awaitObservers(ctx context.Context, bound time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, w := range r.watchers {
		await(ctx, bound, func(context.Context) (bool, error) {
			token, _ := w.state()
			return token == 0, nil
		})
		switch token, err := w.state(); {
		case err != nil:
			r.complain("I8", "%s has ended: %v", w.name, err)
		case token != 0:
			r.complain("I8", "%s still sees token %d, %v after all have resigned", w.name, token, bound)
		}
		w.stop()
		<-w.done
	}
}
