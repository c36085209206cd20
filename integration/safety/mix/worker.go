package mix

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// crew is the workers of one client for one round.
type crew struct {
	name  string
	log   *history.Recorder
	names names
	out   *writer

	session func() *lease.Session // the present one
	renew   func()                // replaces the session; nil: sessions are not replaced

	draining <-chan struct{} // closed when workers must not begin anything new
	patience context.Context //nolint:containedctx // of the waiters; it ends if they are not served in time
	wg       sync.WaitGroup
}

// worker acquires, writes and releases, again and again.
type worker struct {
	*crew
	name       string
	sleepwalks bool       // it does not check whether it still holds a lock
	rng        *rand.Rand // of its own goroutine
}

// workerNames stands between the client's name and the number in the name of a worker.
const workerNames = "/worker "

// start starts workers. The first of them is a sleepwalker.
func (c *crew) start(workers int, seed uint64) {
	for i := range workers {
		w := &worker{
			crew: c, name: c.name + workerNames + strconv.Itoa(i), sleepwalks: i == 0,
			rng: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		c.wg.Go(w.run)
	}
}

func (c *crew) drained() bool { return closed(c.draining) }

func (c *crew) pause(d time.Duration) { pause(c.draining, d) }

func (w *worker) run() {
	for !w.drained() {
		w.turn()
		w.pause(w.some(5, 40))
		if w.renew != nil && w.rng.IntN(200) == 0 {
			w.renew()
		}
	}
}

func (w *worker) some(from, to int) time.Duration { return millis(w.rng, from, to) }

// turn acquires something in a random form and holds it for a while. Sleepwalkers take locks that fewer others want.
func (w *worker) turn() {
	s, what := w.session(), w.rng.IntN(14)
	contended, shared := w.names.Hot, w.names.shared()
	if w.sleepwalks {
		contended, shared = w.names.quiet(), w.names.quiet()
	}
	switch {
	case what < 4:
		w.take(exclusive(s, pick(w.rng, contended)))
	case what < 7:
		w.take(exclusive(s, pick(w.rng, w.names.Cold)))
	case what < 10:
		w.take(w.candidate(s))
	case what < 12:
		w.take(reader(s, pick(w.rng, shared)))
	default:
		w.take(w.ofMany(s))
	}
}

// ofMany returns a lock of a kind that stands in several queues, or a lock or read lock that conflicts with such a
// lock.
func (w *worker) ofMany(s *lease.Session) locker {
	switch w.rng.IntN(10) {
	case 0, 1, 2:
		all := slices.Clone(w.names.sets())
		w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return ofSet(s, all[:2+w.rng.IntN(2)]...)
	case 3, 4:
		return ofTree(s, pick(w.rng, w.names.Paths))
	case 5, 6, 7:
		return ofSemaphore(s, w.names.Semaphore)
	case 8:
		return exclusive(s, pick(w.rng, []string{w.names.Paths[0], w.names.Semaphore}))
	default:
		return reader(s, pick(w.rng, []string{w.names.Paths[0], w.names.Semaphore}))
	}
}

// candidate returns leadership. In the election that has priorities, one leader of three transfers it.
func (w *worker) candidate(s *lease.Session) locker {
	name, opts := pick(w.rng, w.names.Elections), election.Options{Value: w.name}
	if name != w.names.preferring() {
		return candidate(s, name, opts, "")
	}
	successor := ""
	opts.Priority = w.rng.IntN(3)
	if w.rng.IntN(3) == 0 {
		successor = w.crew.name + workerNames + strconv.Itoa(w.rng.IntN(4))
	}
	k := candidate(s, name, opts, successor)
	k.do = nil // Run makes room for a higher priority, which OnLost does not report
	return k
}

// take acquires a lock in a random one of its forms and holds it for a while.
func (w *worker) take(k locker) {
	form := w.rng.IntN(4)
	if form == 0 && k.do != nil {
		w.do(k)
		return
	}
	if form == 1 && k.try != nil {
		k.enter.Try, k.lock = true, k.try
	}
	ctx, cancel := w.wait()
	defer cancel()
	_ = w.under(ctx, k, w.work) // the error is recorded
}

// wait returns a context for waiting. One waiter of six gives up after a while, but not after the round has ended: from
// then on every waiter must be served.
func (w *worker) wait() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(w.patience)
	if w.rng.IntN(6) != 0 {
		return ctx, cancel
	}
	timer := time.AfterFunc(w.some(1, 300), func() {
		if !w.drained() {
			cancel()
		}
	})
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}

// under acquires a lock, works under it and releases it. It returns an error if it does not get the lock.
func (w *worker) under(ctx context.Context, k locker, work func(op int64, h *held)) error {
	op, on := w.enter(k)
	h, err := k.lock(ctx)
	if err != nil {
		w.giveUp(op, on, err)
		return err
	}
	w.hold(op, k, h, work)
	w.release(op, h) // a lock that was granted is released even if ctx has ended
	return nil
}

// do uses the scoped form. Now and then it cancels the caller's context while the function runs. If election.Run
// campaigns again after a loss, that is recorded as another acquisition.
func (w *worker) do(k locker) {
	ctx, cancel := w.wait()
	defer cancel()
	op, on := w.enter(k)
	granted := false
	err := k.do(ctx, func(doing context.Context, token fence.Token) error {
		granted = true
		h := &held{token: token, shared: k.enter.Verb == history.RLock, ctx: doing, err: scoped(doing, k.session)}
		if p, ok := lease.PermitFromContext(doing); ok {
			h.resource = p.Name()
		}
		if l, ok := election.FromContext(doing); ok {
			h, _ = heldBy(leader{l, ""}, nil)
		}
		w.hold(op, k, h, w.work)
		if w.rng.IntN(4) == 0 {
			cancel()
			w.pause(w.some(100, 300))
		}
		if doing.Err() != nil { // the form must not release the lock before the function has returned
			w.pause(w.some(20, 60))
		}
		w.log.Record(history.Event{Kind: history.Release, Op: op, Verb: history.Returned})
		return nil
	}, func(err error) {
		w.released(op, err)
		op, on = w.enter(k)
		granted = false
	})
	if granted {
		w.released(op, err)
	} else {
		w.giveUp(op, on, err)
	}
}

// scoped returns the Err of a function that runs under Do. It asks the session first, which checks the clock: in a
// process that has just woken up, the context's timer may not have run yet.
func scoped(ctx context.Context, session *lease.Session) func() error {
	return func() error {
		if st := session.Status(); st.State == lease.StateLost {
			return st.Err
		}
		return context.Cause(ctx)
	}
}

// enter records that the worker is about to wait, and returns the lease that it uses.
func (w *worker) enter(k locker) (op int64, on clientv3.LeaseID) {
	e := k.enter
	e.Kind, e.Op, e.Actor = history.Enter, w.log.ID(), w.name
	w.log.Record(e)
	return e.Op, k.session.Status().LeaseID
}

// giveUp records that nothing was acquired, and the lease that was used. If the session is closed or has no permission,
// giveUp pauses, so that the worker does not spin until there is a new session or permission.
func (w *worker) giveUp(op int64, on clientv3.LeaseID, err error) {
	if lost, ok := errors.AsType[*lease.LostError](err); ok && lost.LeaseID != 0 {
		on = lost.LeaseID
	}
	outcome := history.Failed
	if errors.Is(err, lease.ErrLocked) {
		outcome = history.Refused
	}
	w.log.Record(history.Event{Kind: history.GiveUp, Op: op, Outcome: outcome, Error: fmt.Sprintf("%v (lease %x)", err, int64(on))})
	if errors.Is(err, lease.ErrClosed) || forbidden(err) {
		w.pause(w.some(20, 100))
	}
}

// hold records the grant, and the loss if the handle's context ends while work runs.
func (w *worker) hold(op int64, k locker, h *held, work func(op int64, h *held)) {
	if h.resource == "" {
		h.resource = k.enter.Name
	}
	w.log.Record(history.Event{
		Kind: history.Grant, Op: op, Actor: w.name, Name: h.resource, Verb: k.enter.Verb, Token: h.token, Key: h.key,
	})
	recorded := make(chan struct{})
	stopped := context.AfterFunc(h.ctx, func() {
		defer close(recorded)
		w.log.Record(history.Event{Kind: history.Lost, Op: op, Error: context.Cause(h.ctx).Error()})
	})
	work(op, h)
	if !stopped() { // the event must be in the history of this round
		<-recorded
	}
}

// look records it if the handle is live. Its context alone is not enough: in a process that was stopped, it may end a
// moment after the process has woken up.
func (w *worker) look(op int64, h *held) (live bool) {
	at := w.log.Now()
	if live = h.err() == nil; live {
		w.log.Record(history.Event{At: at, Kind: history.Live, Op: op})
	}
	return live
}

// release unlocks the handle, or leaves that to the background. Meanwhile it asks whether the handle is live: the
// handle must end before its key is deleted.
func (w *worker) release(op int64, h *held) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*ttl)
	defer cancel()
	w.log.Record(history.Event{Kind: history.Release, Op: op})
	done := make(chan error, 1)
	go func() { done <- h.unlock(ctx) }()
	for {
		w.look(op, h)
		select {
		case err := <-done:
			w.released(op, err)
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (w *worker) released(op int64, err error) {
	e := history.Event{Kind: history.Released, Op: op, Outcome: history.OK}
	switch {
	case errors.Is(err, lease.ErrLost):
		e.Outcome = history.Failed
	case err != nil:
		e.Outcome = history.Unknown
	}
	if err != nil {
		e.Error = err.Error()
	}
	w.log.Record(e)
}
